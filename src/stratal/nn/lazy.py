"""Lazy layers: those whose input size the first call tells, and which are the plain layer from then on.

Until then their parameters are `UninitializedParameter`s, which optimizers refuse. Loading a state dict tells
the size, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError
from stratal.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from stratal.nn.hooks import TABLES
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter
from stratal.nn.running_statistics import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import tracing

_KEPT = ("training", *TABLES)


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known before the first call of its module."""

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(np.zeros(0, as_dtype(float).np), requires_grad, dtype=dtype)

    @property
    def shape(self) -> Any:
        raise CallOrderError(
            "UninitializedParameter: has no shape before the first call of its module",
            hint="call the model on one batch, then make the optimizer",
        )

    def numel(self) -> Any:
        return self.shape

    def detach(self) -> Tensor:
        return self

    def __repr__(self) -> str:
        return "<UninitializedParameter>"


class Lazy(Module):
    """What lazy layers share. A subclass names the layer it becomes, the argument that is missing, and where
    inputs and state dicts show it.
    """

    becomes: Any  # a class of layers
    missing: str
    defaults: Mapping[str, Any] = MappingProxyType({})  # that differ from those of the plain layer

    def of_input(self, input: Tensor) -> int:
        """Return the size that an input has. Raises: ShapeError."""
        raise NotImplementedError

    def of_state(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """Return the size that parameters and buffers of these shapes have."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "becomes"):
            whole = inspect.signature(cls.becomes)
            rest = [
                p.replace(default=cls.defaults.get(name, p.default))
                for name, p in whole.parameters.items()
                if name != cls.missing
            ]
            cls.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        try:
            given = inspect.signature(type(self)).bind(*args, **kwargs)
        except TypeError as error:
            raise AttributeValueError(f"{type(self).__name__}: {error}", got=f"{args}, {kwargs}") from None
        given.apply_defaults()
        self._given = given
        plain = self._plain(0)  # so that what is wrong shows now
        self._text = plain.extra_repr()
        for name, parameter in plain._parameters.items():
            dtype = None if parameter is None else parameter.dtype
            self._parameters[name] = None if parameter is None else UninitializedParameter(dtype=dtype)
        self._load_state_dict_pre_hooks.update(plain._load_state_dict_pre_hooks)
        self._of_state_hook = self.register_load_state_dict_pre_hook(_read_sizes)

    def _plain(self, size: int) -> Module:
        return self.becomes(**{self.missing: size}, **self._given.arguments)

    def has_uninitialized_params(self) -> bool:
        """Return whether the size is still unknown."""
        return True

    def initialize_parameters(self, input: Tensor) -> None:
        """Become the plain layer for inputs like this one."""
        self._become(self.of_input(input))

    def _become(self, size: int) -> None:
        dtypes = {p.dtype for p in self._parameters.values() if p is not None}
        frozen = {n for n, p in self._parameters.items() if p is not None and not p.requires_grad}
        self._of_state_hook.remove()
        kept = {name: self.__dict__[name] for name in _KEPT}
        with tracing(None):  # parameters are no values of a function that is being captured
            plain = self._plain(size)
        self.__dict__.clear()
        self.__dict__.update({**plain.__dict__, **kept})
        self.__class__ = self.becomes
        for dtype in dtypes:
            self.to(dtype=dtype)
        for name in frozen:
            self._parameters[name].requires_grad_(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(args[0] if args else kwargs["input"])
        return self.forward(*args, **kwargs)

    def extra_repr(self) -> str:
        return self._text


def _read_sizes(module: Lazy, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Let a layer become plain by what a state dict holds for it."""
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    shapes = {
        name: tuple(map(int, v.shape)) for name, v in own.items() if not isinstance(v, UninitializedParameter)
    }
    if {"weight", "running_mean"} & shapes.keys():
        module._become(module.of_state(shapes))


class LazyLinear(Lazy):
    """A linear layer of as many `in_features` as the last axis of its first input has."""

    becomes = Linear
    missing = "in_features"

    def of_input(self, input: Tensor) -> int:
        return int(input.shape[-1])

    def of_state(self, shapes: dict[str, tuple[int, ...]]) -> int:
        return shapes["weight"][1]


class _LazyConvolution(Lazy):
    """A convolution of as many `in_channels` as its first input has."""

    missing = "in_channels"

    def of_input(self, input: Tensor) -> int:
        dims = self.becomes.dims
        if input.ndim not in (dims + 1, dims + 2):
            raise ShapeError(
                f"{type(self).__name__}: takes {dims + 1} or {dims + 2} axes", got=str(input.type)
            )
        return int(input.shape[-dims - 1])

    def of_state(self, shapes: dict[str, tuple[int, ...]]) -> int:
        first, second, *_ = shapes["weight"]
        return first if self.becomes.transposed else second * int(self._given.arguments["groups"])


class _LazyNorm(Lazy):
    """A normalisation of as many `num_features` as its first input has channels."""

    missing = "num_features"

    def of_input(self, input: Tensor) -> int:
        ranks = self.becomes.ranks()
        if input.ndim not in ranks:
            takes = " or ".join(map(str, ranks))
            raise ShapeError(f"{type(self).__name__}: takes {takes} axes", got=str(input.type))
        return int(input.shape[self.channels(input.ndim)])

    def channels(self, ndim: int) -> int:
        """Return the axis of the channels."""
        return 1

    def of_state(self, shapes: dict[str, tuple[int, ...]]) -> int:
        return (shapes.get("weight") or shapes["running_mean"])[0]


def _lazy(base: type[Lazy], *plain: type[Module]) -> list[type[Lazy]]:
    """Return the lazy layers that become these plain ones."""
    made = []
    for layer in plain:
        text = f"`{layer.__name__}` without `{base.missing}`."
        fields = {"becomes": layer, "__module__": __name__, "__doc__": text}
        made.append(type(f"Lazy{layer.__name__}", (base,), fields))
    return made


class _LazyInstanceNorm(_LazyNorm):
    """By default with parameters and statistics, which plain ones lack, as in PyTorch."""

    defaults = MappingProxyType({"affine": True, "track_running_stats": True})

    def channels(self, ndim: int) -> int:
        return ndim - int(self.becomes.ranks()[0])


LazyConv1d, LazyConv2d, LazyConv3d = _lazy(_LazyConvolution, Conv1d, Conv2d, Conv3d)
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = _lazy(
    _LazyConvolution, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
)
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = _lazy(_LazyNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d)
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = _lazy(
    _LazyInstanceNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
)
