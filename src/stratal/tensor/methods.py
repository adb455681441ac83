"""Methods and operators of Tensor, installed from tables: a method is a function with the tensor as first
argument.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from stratal.base.dims import Sym
from stratal.base.dtypes import DType, as_dtype
from stratal.base.elsewhere import METHODS
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError, StratalError
from stratal.tensor import (
    calculus,
    composites,
    creation,
    elementwise,
    indexing,
    linear,
    parts,
    random,
    reductions,
    selection,
    sets,
    shapes,
    sorting,
)
from stratal.tensor.at import At
from stratal.tensor.build import Scalar, as_tensor, call, full
from stratal.tensor.device import check_device, is_device
from stratal.tensor.display import show
from stratal.tensor.elementwise import FUNCTIONS, cast
from stratal.tensor.explained import explained
from stratal.tensor.gradients import backward
from stratal.tensor.kept import kept
from stratal.tensor.lazy import compute
from stratal.tensor.namespace import check_version
from stratal.tensor.tensor import Tensor, fresh, wrap
from stratal.tensor.tensor import tensor as make_tensor
from stratal.tensor.view_methods import MOVED, RESHAPED, get, viewing
from stratal.tensor.views import assign, refreshed

# -- the same function under its own name --------------------------------------------------------------------
_PLAIN: dict[Any, tuple[str, ...]] = {
    elementwise: (
        *FUNCTIONS, "clip", "hypot", "lerp", "log10", "logaddexp", "nan_to_num", "positive", "pow",
        "reciprocal", "relu", "sinc", "square",
    ),
    shapes: (
        "chunk", "expand", "flatten", "flip", "moveaxis", "narrow", "ravel", "repeat_interleave", "roll",
        "split", "tile", "transpose", "unflatten",
    ),
    reductions: (
        "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumprod", "cumsum", "log_softmax",
        "logsumexp", "max", "mean", "min", "norm", "prod", "softmax", "sum",
    ),
    sorting: ("argsort", "median", "topk"),
    selection: ("argwhere",),
    linear: ("addmm", "bmm", "diagonal", "dot", "matmul", "mm", "mv", "outer", "trace"),
    indexing: (
        "gather", "index_add", "index_select", "masked_fill", "masked_select", "scatter", "scatter_add",
        "take",
    ),
    calculus: ("diff",),
    creation: ("tril", "triu"),
    parts: ("angle", "conj", "copysign", "nextafter", "signbit"),
    sets: ("unique", "unique_consecutive"),
}  # fmt: skip

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
_IN_PLACE = (
    "abs", "absolute", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "copysign", "cos", "cosh", "cumprod", "cumsum",
    "digamma", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "floor_divide", "fmod", "ge",
    "gt", "hypot", "le", "lgamma", "log", "log10", "log1p", "log2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "multiply", "nan_to_num", "ne", "neg", "negative", "nextafter",
    "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt",
    "square", "tan", "tanh", "tril", "triu", "trunc",
)  # fmt: skip
_CASTS = {
    "bool": "bool", "byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64",
    "half": "float16",
    "bfloat16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip


def _accepts(value: Any) -> bool:
    return isinstance(value, (Tensor, Sym, *Scalar)) or hasattr(value, "__array__")


def _operator(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    function = kept(function)

    def method(self: Tensor, other: Any) -> Any:
        if not _accepts(other):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    return method


def update(self: Tensor, value: Tensor, name: str) -> Tensor:
    """Rebind a tensor to a value that keeps its type, and return it. Raises: ShapeError, DTypeError."""
    if value.dtype is not self.dtype:
        order = "buifc"
        if order.index(value.dtype.kind) > order.index(self.dtype.kind) and not value.dtype.is_bool:
            raise DTypeError(
                f"{name}: the result does not fit the tensor in place", got=f"{value.dtype} into {self.type}"
            )
        value = cast(value, self.dtype)
    if value.shape != self.shape:
        value = shapes.broadcast_to(value, self.shape)
    assign(self, value)
    return self


def _in_place(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return update(self, function(refreshed(self), *args, **kwargs), name)

    method.__doc__ = f"Give this tensor the value of `{name}` of it, and return it."
    return method


def _scaled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
        return function(
            self, other if isinstance(alpha, (int, float)) and alpha == 1 else alpha * as_tensor(other)
        )

    return apply


def _divided(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return FUNCTIONS["divide"](self, other)
    if rounding_mode not in ("floor", "trunc"):
        raise AttributeValueError("div: rounding_mode is None, 'floor' or 'trunc'", got=repr(rounding_mode))
    if rounding_mode == "floor":
        return FUNCTIONS["floor_divide"](self, other)
    return cast(FUNCTIONS["trunc"](FUNCTIONS["divide"](self, other)), self.dtype)


# -- methods that differ from the function -------------------------------------------------------------------
def reshape(self: Tensor, *shape: Any) -> Tensor:
    """Return the elements in row-major order under another shape; one size may be -1."""
    return shapes.reshape(self, shapes.as_shape("reshape", shape))


def view(self: Tensor, *shape: Any) -> Tensor:
    """Return another shape of the same elements, or the bits as another dtype."""
    if len(shape) == 1 and isinstance(shape[0], (DType, type)):
        target = as_dtype(shape[0])
        if target.itemsize != self.dtype.itemsize:
            raise DTypeError("view: dtypes differ in width", got=f"{self.type} as {target}")
        return call("bitcast", self, dtype=target)  # type: ignore[no-any-return]
    return reshape(self, *shape)


def permute(self: Tensor, *dims: Any) -> Tensor:
    """Return the tensor with its axes in another order."""
    return shapes.permute_dims(self, shapes.as_shape("permute", dims))


def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """Return the tensor with a new axis of size 1 at a place."""
    return shapes.expand_dims(self, axis=dim)


def repeat(self: Tensor, *sizes: Any) -> Tensor:
    """Return the tensor repeated as a whole along each axis, as in PyTorch."""
    return shapes.tile(self, shapes.as_shape("repeat", sizes))


def _spread(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let variance default to PyTorch's n - 1."""

    @functools.wraps(function)
    def method(
        self: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: float | None = None,
        axis: Any = None, keepdims: bool = False,
    ) -> Tensor:  # fmt: skip
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        less = float(unbiased) if correction is None else correction
        return function(self, dim if axis is None else axis, keepdim or keepdims, correction=less)

    return method


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the tensor as another dtype, or as that of another tensor; a device must be the CPU."""
    dtype = kwargs.pop("dtype", None)
    check_device(kwargs.pop("device", None))
    for ignored in ("non_blocking", "copy", "memory_format"):
        kwargs.pop(ignored, None)
    for x in args:
        if isinstance(x, Tensor):
            dtype = x.dtype
        elif is_device(x):
            check_device(x)
        elif not isinstance(x, bool):
            dtype = x
    if kwargs:
        raise AttributeValueError("to: takes a dtype or a tensor", got=", ".join(kwargs))
    return self if dtype is None else cast(self, dtype)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor as the dtype of another."""
    return cast(self, other.dtype)


def clone(self: Tensor, **_: Any) -> Tensor:
    """Return the value as a tensor of its own, through which gradients flow."""
    return fresh(self)


def contiguous(self: Tensor, **_: Any) -> Tensor:
    """Return the tensor: layouts are the compiler's affair."""
    return self


def cuda(self: Tensor, device: Any = None, **_: Any) -> Tensor:
    """Refuse: there is only the CPU."""
    check_device("cuda" if device is None else device)
    return self


def cpu(self: Tensor) -> Tensor:
    """Return the tensor, which is on the CPU."""
    return self


def is_contiguous(self: Tensor, **_: Any) -> bool:
    """Return True: a value has no strides of its own."""
    return True


def is_floating_point(self: Tensor) -> bool:
    """Return whether the dtype is a float."""
    return self.dtype.is_float


def is_complex(self: Tensor) -> bool:
    """Return whether the dtype is complex."""
    return self.dtype.is_complex


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Give this tensor the value of another, stretched and cast to its type, and return it."""
    value = source if isinstance(source, Tensor) else make_tensor(source, dtype=self.dtype)
    if value.dtype is not self.dtype:
        value = cast(value, self.dtype)
    if value.shape != self.shape:
        value = shapes.broadcast_to(value, self.shape)
    assign(self, value)
    return self


def fill_(self: Tensor, value: Any) -> Tensor:
    """Give every element of this tensor one value, and return it."""
    if isinstance(value, Scalar):
        plain = value.item() if isinstance(value, np.generic) else value
        assign(self, wrap(full("fill_", plain, self.dtype, self.shape)))
        return self
    return copy_(self, value)


def zero_(self: Tensor) -> Tensor:
    """Give every element of this tensor the value 0, and return it."""
    return fill_(self, 0)


def clip_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Move every element of this tensor into [min, max], and return it."""
    return update(self, elementwise.clip(refreshed(self), min, max), "clamp_")


def normal_(self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the normal distribution, and return it."""
    drawn = random.randn(self.shape, dtype=self.dtype, generator=generator)
    return update(self, drawn * std + mean, "normal_")


def uniform_(self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Give this tensor draws from the uniform distribution on [from_, to), and return it."""
    drawn = random.rand(self.shape, dtype=self.dtype, generator=generator)
    return update(self, drawn * (to - from_) + from_, "uniform_")


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Give this tensor 1 with probability `p`, else 0, and return it."""
    return update(self, random.rand(self.shape, generator=generator) < p, "bernoulli_")


def where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """Return this tensor where the condition holds, else the other."""
    return elementwise.where(condition, self, other)  # type: ignore[no-any-return]


def new_tensor(self: Tensor, data: Any, dtype: Any = None) -> Tensor:
    """Return a tensor of data in the dtype of this one."""
    return make_tensor(data, dtype=dtype or self.dtype)


def new_zeros(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Return zeros in the dtype of this tensor."""
    return creation.zeros(*size, dtype=dtype or self.dtype)


def new_ones(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Return ones in the dtype of this tensor."""
    return creation.ones(*size, dtype=dtype or self.dtype)


def new_full(self: Tensor, size: Any, fill_value: Any, dtype: Any = None) -> Tensor:
    """Return a filled tensor in the dtype of this one."""
    return creation.full(size, fill_value, dtype=dtype or self.dtype)


def new_empty(self: Tensor, *size: Any, dtype: Any = None) -> Tensor:
    """Return a tensor in the dtype of this one, of any values (zeros)."""
    return new_zeros(self, *size, dtype=dtype)


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor stretched to the shape of another."""
    return shapes.broadcast_to(self, other.shape)


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the elements under the shape of another tensor."""
    return shapes.reshape(self, other.shape)


def t(self: Tensor) -> Tensor:
    """Return a matrix with its axes exchanged; a vector as it is."""
    if self.ndim > 2:
        raise ShapeError(
            "t: takes a matrix or a vector", got=str(self.type), hint="use .mT or transpose(dim0, dim1)"
        )
    return shapes.permute_dims(self, range(self.ndim)[::-1])


def _reversed(self: Tensor) -> Tensor:
    """The matrix with its axes exchanged (all of them, for more than two)."""
    return shapes.permute_dims(self, range(self.ndim)[::-1])


def _adjoint(self: Tensor) -> Tensor:
    """The matrix with its last two axes exchanged, conjugated."""
    return parts.conj(shapes.matrix_transpose(self))


def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return the tensor on a device, of which there is one: the CPU."""
    check_device(device)
    if stream is not None:
        raise AttributeValueError("to_device: the CPU has no streams", got=repr(stream), hint="leave it out")
    return self


def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """Return `stratal`, whose functions follow the array API standard."""
    check_version(api_version)
    return sys.modules["stratal"]


def register_hook(self: Tensor, hook: Any) -> None:
    """Refuse: a graph has no place to call Python while gradients are computed."""
    raise StratalError("register_hook: gradients are planned, not computed step by step", got=str(self.type),
                       hint="read .grad after backward(), or use st.grad")  # fmt: skip


def _contains(self: Tensor, value: Any) -> bool:
    return bool(reductions.any(FUNCTIONS["equal"](self, value)))


_OWN = (
    __array_namespace__, bernoulli_, clone, contiguous, copy_, cpu, cuda, expand_as, fill_, is_complex,
    is_contiguous, is_floating_point, new_empty, new_full, new_ones, new_tensor, new_zeros, normal_, permute,
    register_hook, repeat, reshape, to, to_device, type_as, uniform_, unsqueeze, view, view_as, where, zero_,
)  # fmt: skip


def _install() -> None:
    methods: dict[str, Any] = {}
    for module, names in _PLAIN.items():
        methods.update({name: getattr(module, name) for name in names})
    others = composites.FUNCTIONS
    methods.update({name: others[name] for name in composites.METHODS})
    methods.update({f"{name}_": _in_place(f"{name}_", others[name]) for name in composites.IN_PLACE})
    for short, name in _OPERATORS.items():
        function = FUNCTIONS[name]
        methods[f"__{short}__"] = _operator(function)
        methods[f"__r{short}__"] = _operator(function, swapped=True)
        methods[f"__i{short}__"] = _in_place(name, function)
    for short, name in _COMPARISONS.items():
        methods[f"__{short}__"] = _operator(FUNCTIONS[name])
    for short, name in _UNARY.items():
        methods[f"__{short}__"] = kept(getattr(elementwise, name))
    for name, function in {"pow": elementwise.pow, "matmul": linear.matmul}.items():
        methods[f"__{name}__"] = _operator(function)
        methods[f"__r{name}__"] = _operator(function, swapped=True)
        methods[f"__i{name}__"] = _in_place(name, function)
    methods.update(add=_scaled(FUNCTIONS["add"]), sub=_scaled(FUNCTIONS["subtract"]), div=_divided)
    methods.update(subtract=methods["sub"], true_divide=_divided)
    methods.update(add_=_in_place("add_", methods["add"]), sub_=_in_place("sub_", methods["sub"]))
    methods.update(mul_=_in_place("mul_", FUNCTIONS["multiply"]), div_=_in_place("div_", _divided))
    methods.update(pow_=_in_place("pow_", elementwise.pow), lerp_=_in_place("lerp_", elementwise.lerp))
    methods.update(
        clamp=elementwise.clip, clamp_=clip_, clip_=clip_,
        masked_fill_=_in_place("masked_fill_", indexing.masked_fill),
        scatter_=_in_place("scatter_", indexing.scatter),
        scatter_add_=_in_place("scatter_add_", indexing.scatter_add),
        index_add_=_in_place("index_add_", indexing.index_add),
        nonzero=lambda self, as_tuple=False: _nonzero(self, as_tuple), astype=lambda self, dtype,
        copy=True: cast(self, dtype),
        squeeze=lambda self, dim=None, *, axis=None: shapes.squeeze(self, axis, dim=dim),
        swapaxes=shapes.transpose, swapdims=shapes.transpose, movedim=shapes.moveaxis, t=t,
        std=_spread(reductions.std),
        var=_spread(reductions.var), unbind=lambda self, dim=0: shapes.unstack(self, axis=dim),
        broadcast_to=shapes.broadcast_to, T=property(viewing(kept(_reversed), "T")),
        mT=property(viewing(kept(shapes.matrix_transpose), "mT")),
        H=property(_adjoint), mH=property(_adjoint), adjoint=_adjoint,
        real=property(parts.real), imag=property(parts.imag), conjugate=parts.conj, copy=clone,
        reshape_as=view_as, split_with_sizes=shapes.split, take_along_dim=indexing.take_along_axis,
        searchsorted=sorting.searchsorted, multinomial=random.multinomial, bernoulli=random.bernoulli,
        at=property(At), __getitem__=get, __setitem__=indexing.setitem,
        __contains__=_contains,
    )  # fmt: skip
    methods.update({f"{name}_": _in_place(f"{name}_", methods[name]) for name in _IN_PLACE})
    for name, dtype in _CASTS.items():
        methods[name] = functools.partialmethod(cast, as_dtype(dtype))
    methods.update({function.__name__: function for function in _OWN})
    methods.update(sort=sorting.sort_method)
    methods.update(_compute=compute, __repr__=show, backward=backward)
    for name, module in METHODS.items():
        setattr(Tensor, name, _Elsewhere(module, name))
    for name, method in methods.items():
        if name.startswith("_") or isinstance(method, property):
            setattr(Tensor, name, method)
            continue
        method = explained(kept(method))
        setattr(Tensor, name, viewing(method, name) if name in RESHAPED or name in MOVED else method)


class _Elsewhere:
    """A method that a module above tensors defines; the first who looks at it loads the module."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        setattr(Tensor, self.name, getattr(importlib.import_module(self.module), self.name))
        return getattr(owner if tensor is None else tensor, self.name)


def _nonzero(self: Tensor, as_tuple: bool) -> Any:
    found = indexing.nonzero(self)
    return found if as_tuple else shapes.stack(found, axis=-1)


_install()
__all__ = ["update"]
