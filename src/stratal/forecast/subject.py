"""What is estimated: a model without memory and its optimizer, or a number of parameters."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from stratal import optim
from stratal.base.dtypes import DType, bfloat16, float16, float32, float64
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.base.types import TensorType
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter
from stratal.nn.unallocated import Region, unallocated
from stratal.optim.group import ParamGroup
from stratal.optim.optimizer import Optimizer
from stratal.optim.optimizer_state import StateTable
from stratal.tensor.capture import CompiledModule
from stratal.tensor.functions.random import get_rng_state, set_rng_state
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.notifying import Row

OPTIMIZERS: Final = {
    name.lower(): kind
    for name in optim.__all__
    if isinstance(kind := getattr(optim, name), type) and kind is not Optimizer
}
_PROBE: Final = (16, 16)  # the shape of a parameter that is stepped, to see the state it gets
_LARGE: Final = (4096, 4096)  # of one that stands for parameters of which only the number is known


class Precision(NamedTuple):
    """The dtype of parameters and gradients; None for what the model has. `mixed`: the optimizer has float32
    master copies of the parameters.
    """

    dtype: DType | None
    mixed: bool = False


PRECISIONS: Final[dict[str | None, Precision]] = {
    None: Precision(None),
    "float64": Precision(float64),
    "float32": Precision(float32),
    "bfloat16": Precision(bfloat16),
    "float16": Precision(float16),
    "bfloat16-mixed": Precision(bfloat16, mixed=True),
    "float16-mixed": Precision(float16, mixed=True),
}


def precision_of(name: str | None) -> Precision:
    """Return a precision by name. Raises: AttributeValueError."""
    if name not in PRECISIONS:
        known = ", ".join(str(p) for p in PRECISIONS if p)
        raise AttributeValueError("estimate: no such precision", got=repr(name), hint=f"one of {known}")
    return PRECISIONS[name]


class StateBytes(NamedTuple):
    """Bytes of the model's state in one process that shares it with no other."""

    parameters: int
    gradients: int
    optimizer: int


class Subject(NamedTuple):
    """A model over a region, with the optimizer of its parameters; both None for a number of parameters."""

    name: str
    num_parameters: int
    optimizer_name: str  # "" for inference
    state: StateBytes
    model: Module | None = None
    optimizer: Optimizer | None = None
    region: Region | None = None


def subject_of(model: Any, optimizer: Any, precision: Precision) -> Subject:
    """Return what is estimated. The model is copied without its parameters' memory, or built without it.

    `model`: a module, a function without arguments that builds one, or a number of parameters.
    Raises: AttributeValueError, DTypeError.
    """
    if isinstance(model, (int, float)) and not isinstance(model, bool):
        return _counted(model, optimizer, precision)
    if isinstance(model, CompiledModule):
        model = model._module
    region, drawn = Region(), get_rng_state()
    try:
        with unallocated(region):
            made = copy.deepcopy(model) if isinstance(model, Module) else _built(model)
    finally:
        set_rng_state(drawn)
    _convert(made, precision.dtype, region)
    parameters = list(made.parameters())
    nbytes = sum(p.nbytes for p in parameters)
    count, name = sum(p.numel() for p in parameters), type(made).__name__
    if optimizer is None:
        return Subject(name, count, "", StateBytes(nbytes, 0, 0), made.eval(), None, region)
    twins = list(zip(model.parameters(), parameters, strict=True)) if isinstance(model, Module) else []
    chosen = _optimizer(optimizer, parameters, twins, precision)
    trained = list({id(p): p for g in chosen.param_groups for p in g["params"]}.values())
    state = StateBytes(nbytes, sum(p.nbytes for p in trained), optimizer_bytes(chosen))
    return Subject(name, count, type(chosen).__name__, state, made, chosen, region)


def _counted(number: float, optimizer: Any, precision: Precision) -> Subject:
    if not (math.isfinite(number) and number >= 0 and number == int(number)):
        raise AttributeValueError("estimate: a number of parameters is whole and not negative",
                                  got=repr(number), hint="such as 1.5e9")  # fmt: skip
    count, dtype = int(number), precision.dtype or float32
    name = f"{count:,} parameters"
    if optimizer is None:
        return Subject(name, count, "", StateBytes(count * dtype.itemsize, 0, 0))
    if isinstance(optimizer, Optimizer):
        raise _of_other_parameters()
    with unallocated():
        probe = Parameter(tensor(0.0).expand(_LARGE), dtype=dtype)
    chosen = _optimizer(optimizer, [probe], [], precision)
    nbytes = count * dtype.itemsize
    state = StateBytes(nbytes, nbytes, count * optimizer_bytes(chosen) // probe.numel())
    return Subject(name, count, type(chosen).__name__, state)


# -- models --------------------------------------------------------------------------------------------------
def _built(build: Callable[[], Any]) -> Module:
    if not callable(build) or (isinstance(build, type) and not issubclass(build, Module)):
        raise DTypeError(
            "estimate: takes a module, a function that builds one, or a number of parameters",
            got=repr(build)[:80], hint="st.estimate(lambda: Net(..)) builds it without its memory",
        )  # fmt: skip
    made = build()
    if not isinstance(made, Module):
        raise DTypeError("estimate: the function builds a module", got=type(made).__name__)
    return made


def _convert(model: Module, dtype: DType | None, region: Region) -> None:
    """Let a model's float state be of a dtype; parameters whose values wait lie over the region, too."""
    for p in model.parameters():
        found = dtype if dtype is not None and p.dtype.is_float else p.dtype
        if found is not p.dtype or p._storage is None:
            p.data = region.tensor(TensorType(found, p.shape))
    for b in model.buffers():
        if dtype is not None and b.dtype.is_float and b.dtype is not dtype:
            b.data = b.data.to(dtype)


# -- optimizers ----------------------------------------------------------------------------------------------
def _optimizer(
    given: Any, parameters: Sequence[Tensor], twins: Sequence[tuple[Tensor, Tensor]], precision: Precision
) -> Optimizer:
    """Return an optimizer of a model's parameters that take gradients, by name, class, function or example.

    Of an optimizer, one like it; `twins` are its parameters with those that stand for them.
    """
    if isinstance(given, str):
        if given.lower() not in OPTIMIZERS:
            raise AttributeValueError("estimate: no such optimizer", got=repr(given),
                                      hint=f"one of {', '.join(sorted(OPTIMIZERS))}")  # fmt: skip
        given = OPTIMIZERS[given.lower()]
    if isinstance(given, Optimizer):
        made = _like(given, {id(p): twin for p, twin in twins})
    elif callable(given):
        made = given([p for p in parameters if p.requires_grad])
    else:
        made = None
    if not isinstance(made, Optimizer):
        raise DTypeError(
            "estimate: takes an optimizer, its name or class, or a function of parameters that makes one",
            got=repr(given)[:80], hint='optimizer="adam", or lambda params: optim.SGD(params, momentum=0.9)',
        )  # fmt: skip
    if precision.mixed:
        made.master_weights = True
    return made


def _like(given: Optimizer, twin: dict[int, Tensor]) -> Optimizer:
    """Return an optimizer like another one, without its state, of the parameters that stand for its own."""
    made = type(given).__new__(type(given))
    made.__setstate__({k: v for k, v in given.__getstate__().items() if k not in ("param_groups", "state")})
    made.state = defaultdict(dict)
    made.param_groups = Row()
    for group in given.param_groups:
        if any(id(p) not in twin for p in group["params"]):
            raise _of_other_parameters()
        params = Row(twin[id(p)] for p in group["params"] if twin[id(p)].requires_grad)
        rest = {name: value for name, value in group.items() if name != "param_names"}
        made.param_groups.append(ParamGroup({**rest, "params": params}, made.runtime))
    return made


def _of_other_parameters() -> AttributeValueError:
    return AttributeValueError(
        "estimate: the optimizer is of other parameters than the model's", got="an optimizer made elsewhere",
        hint="give its name or class: it is then made for the model",
    )  # fmt: skip


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of state an optimizer has once all its parameters have stepped.

    One that takes its steps itself is asked by steps on a small parameter; the history of LBFGS, which grows,
    is taken at its longest.
    Raises: AttributeValueError where the state grows otherwise.
    """
    if optimizer._managed:
        return optimizer.state_bytes
    params = [p for group in optimizer.param_groups for p in group["params"]]
    nbytes: int = sum(p.nbytes for p in params)
    if isinstance(optimizer, optim.LBFGS):
        history: int = optimizer.param_groups[0]["history_size"]
        return nbytes * 2 * (history + 1)  # with direction and gradient
    probe = Parameter(tensor(1.0).expand(_PROBE))
    tried = _like(optimizer, {id(p): probe for p in params})
    tried.param_groups = [ParamGroup({**optimizer.param_groups[0], "params": [probe]}, optimizer.runtime)]
    found = []
    for _ in range(3):
        probe.grad = tensor(0.5).expand(_PROBE)
        tried.step()
        found.append(tried.state_bytes)
    if found[-1] != found[0]:
        raise AttributeValueError(
            "estimate: the state of this optimizer grows from step to step", got=type(optimizer).__name__,
            hint="estimate the model without an optimizer, and count what it keeps yourself",
        )  # fmt: skip
    return nbytes * found[-1] // probe.nbytes


class UnallocatedState(StateTable):
    """The state of an optimizer whose slots lie over a region."""

    __slots__ = ("region",)

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region

    def filled(
        self, shape: tuple[int, ...], value: float, dtype: DType, beside: Tensor | None = None
    ) -> Tensor:
        return self.region.tensor(TensorType(dtype, shape)) if shape else super().filled(shape, value, dtype)

    def copied(self, source: Tensor, dtype: DType) -> Tensor:
        return self.region.tensor(TensorType(dtype, source.shape))


def give_state(optimizer: Optimizer, region: Region) -> None:
    """Give an optimizer the state it has from its first step on, over a region."""
    optimizer.state = UnallocatedState(region)
    for group in optimizer.param_groups:
        optimizer._make_state(group, group["params"], tentative=False)
