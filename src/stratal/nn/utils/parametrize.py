"""Parameters computed from others: a weight that is read as a function of what is trained.

A parametrized tensor is gone from its module's parameters; reading it calls its parametrizations in order
on the originals, which are trained and saved under `parametrizations.<name>.original`. The names are those
of torch.nn.utils.parametrize.
"""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.containers import ModuleDict, ModuleList
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor and the originals they start from."""

    def __init__(self, modules: list[Module], original: Tensor) -> None:
        super().__init__(modules)
        self.is_tensor = True
        with no_grad():
            start = _inverse(modules[0], original)
        self.is_tensor = isinstance(start, Tensor)
        parts = {"original": start} if self.is_tensor else {f"original{k}": x for k, x in enumerate(start)}
        for name, value in parts.items():
            if isinstance(original, Parameter):
                self.register_parameter(name, Parameter(value, original.requires_grad))
            else:
                self.register_buffer(name, value)

    def originals(self) -> list[Tensor]:
        """Return the tensors the first parametrization is called with."""
        return [*self._parameters.values(), *self._buffers.values()]

    def forward(self) -> Tensor:
        first, *others = self
        value: Tensor = first(*self.originals())
        for parametrization in others:
            value = parametrization(value)
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Give the originals the values from which the parametrizations make `value`."""
        with no_grad():
            found: Any = value
            for parametrization in reversed(list(self)):
                found = _inverse(parametrization, found)
            found = [found] if isinstance(found, Tensor) else list(found)
            for original, new in zip(self.originals(), found, strict=True):
                original.copy_(new)


def _inverse(parametrization: Module, value: Tensor) -> Any:
    """Return what a parametrization makes a value from; without `right_inverse`, the value itself."""
    inverse = getattr(parametrization, "right_inverse", None)
    return value if inverse is None else inverse(value)


class _Parametrized:
    """Reads and assigns the parametrized tensor of a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: Any) -> Tensor:
        return module.parametrizations[self.name]()

    def assign(self, module: Any, value: Any) -> None:
        module.parametrizations[self.name].right_inverse(value)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether a tensor of the module, or, without a name, any, is parametrized."""
    found = module._modules.get("parametrizations")
    return found is not None and (tensor_name is None or tensor_name in found)


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let `module.<tensor_name>` be read through a parametrization; return the module.

    The parametrization's `right_inverse`, where it has one, says what the originals start from. Several are
    called in the order in which they were registered. Raises: ShapeError where, unless `unsafe`, the result
    has another shape or dtype.
    """
    if is_parametrized(module, tensor_name):
        chain = module.parametrizations[tensor_name]
        before = chain()
        _check(tensor_name, parametrization, before, unsafe)
        chain.append(parametrization)
        chain.right_inverse(before.detach())
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise AttributeValueError(
            f"register_parametrization: {type(module).__name__} has no parameter or buffer of that name",
            got=repr(tensor_name),
        )
    original = getattr(module, tensor_name)
    _check(tensor_name, parametrization, original, unsafe)
    chain = ParametrizationList([parametrization], original)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = chain
    module._computed[tensor_name] = _Parametrized(tensor_name)
    return module


def _check(name: str, parametrization: Module, value: Tensor, unsafe: bool) -> None:
    if unsafe:
        return
    with no_grad():
        start = _inverse(parametrization, value.detach())
        result = parametrization(*([start] if isinstance(start, Tensor) else start))
    if not isinstance(result, Tensor) or result.type != value.type:
        got = result.type if isinstance(result, Tensor) else type(result).__name__
        raise ShapeError(
            f"register_parametrization: {name!r} keeps its shape and dtype", got=f"{got} for {value.type}",
            hint="unsafe=True allows another",
        )  # fmt: skip


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a parametrized tensor an ordinary one again, of its present value; return the module.

    Without `leave_parametrized` it gets the value of its one original.
    """
    if not is_parametrized(module, tensor_name):
        raise AttributeValueError(
            "remove_parametrizations: the tensor is not parametrized", got=repr(tensor_name)
        )
    chain = module.parametrizations[tensor_name]
    if not leave_parametrized and not chain.is_tensor:
        raise AttributeValueError(
            "remove_parametrizations: a tensor of several originals stays as it is parametrized",
            got="leave_parametrized=False",
        )
    originals = chain.originals()
    with no_grad():
        value = chain().detach() if leave_parametrized else originals[0].detach()
    del module.parametrizations[tensor_name]
    del module._computed[tensor_name]
    if not len(module.parametrizations):
        delattr(module, "parametrizations")
    if isinstance(originals[0], Parameter):
        module.register_parameter(tensor_name, Parameter(value, originals[0].requires_grad))
    else:
        module.register_buffer(tensor_name, value)
    return module
