"""Methods and operators of Tensor, installed from tables: a method is a function with the tensor as first
argument.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np

from stratal.base import tree
from stratal.base.dims import Sym
from stratal.base.dtypes import DType, as_dtype
from stratal.base.elsewhere import METHODS
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError, StratalError
from stratal.base.interrupts import deferring
from stratal.tensor.api.display import show, show_html
from stratal.tensor.api.draws import DRAWS
from stratal.tensor.api.explained import explained
from stratal.tensor.api.functions import PLAIN
from stratal.tensor.api.info import check_version
from stratal.tensor.api.writes import WRITES, update
from stratal.tensor.build import OPS, Scalar
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.composites import arithmetic
from stratal.tensor.composites.writing import At
from stratal.tensor.device import check_device, is_device
from stratal.tensor.functions import (
    creation,
    elementwise,
    indexing,
    parts,
    random,
    reductions,
    shapes,
    sorting,
)
from stratal.tensor.functions.elementwise import FUNCTIONS, cast
from stratal.tensor.functions.naming import in_words, words_of
from stratal.tensor.lazy.flushing import lazily
from stratal.tensor.tensor import Tensor
from stratal.tensor.tensor import tensor as make_tensor
from stratal.tensor.transformations.gradients import backward
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.views import shares_memory

# -- the same function under its own name --------------------------------------------------------------------
_NAMED = (
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "all", "allclose", "amax", "amin", "aminmax",
    "angle", "any", "argmax", "argmin", "argsort", "argwhere", "baddbmm", "bincount", "bmm", "broadcast_to",
    "chunk", "clamp", "clamp_max", "clamp_min", "clip", "clone", "conj", "copysign", "corrcoef",
    "count_nonzero", "cov", "cross", "cummax", "cummin", "cumprod", "cumsum", "deg2rad", "diag", "diag_embed",
    "diagflat", "diagonal", "diagonal_scatter", "diff", "dist", "div", "dot", "dsplit", "expand", "fix",
    "flatten", "flip", "fliplr", "flipud", "float_power", "fmax", "fmin", "frac", "frexp", "gather", "gcd",
    "heaviside", "histc", "histogram", "hsplit", "hypot", "index_add", "index_copy", "index_fill",
    "index_put", "index_select", "inner", "is_complex", "is_floating_point", "isclose", "isneginf",
    "isposinf", "isreal", "kron", "kthvalue", "lcm", "ldexp", "lerp", "log10", "log_softmax", "logaddexp",
    "logaddexp2", "logcumsumexp", "logsumexp", "masked_fill", "masked_scatter", "masked_select", "matmul",
    "max", "mean", "median", "min", "mm", "mode", "moveaxis", "movedim", "msort", "mv", "nan_to_num",
    "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "nextafter", "norm", "outer", "positive",
    "pow", "prod", "put", "quantile", "rad2deg", "ravel", "reciprocal", "relu", "renorm", "repeat_interleave",
    "roll", "rot90", "round", "scatter", "scatter_add", "scatter_reduce", "searchsorted", "select",
    "select_scatter", "sgn", "signbit", "sinc", "slice_scatter", "softmax", "split", "square", "sum",
    "swapaxes", "swapdims", "t", "take", "take_along_dim", "tensor_split", "tile", "topk", "trace",
    "transpose", "tril", "triu", "true_divide", "unflatten", "unfold", "unique", "unique_consecutive", "vdot",
    "vsplit",
)  # fmt: skip

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "pow": "pow", "matmul": "matmul",
}  # fmt: skip
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip
_UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
_IN_PLACE = (
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2",
    "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp_max", "clamp_min",
    "copysign", "cos", "cosh", "cumprod", "cumsum", "deg2rad", "digamma", "div", "eq", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "fix", "floor", "floor_divide", "fmod", "frac", "ge", "gt", "hypot",
    "index_add", "index_copy", "index_fill", "index_put", "ldexp", "le", "lerp", "lgamma", "log", "log10",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill",
    "masked_scatter", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "nextafter", "pow", "put",
    "rad2deg", "reciprocal", "relu", "remainder", "renorm", "round", "rsqrt", "scatter", "scatter_add",
    "scatter_reduce", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "sub", "tan", "tanh",
    "tril", "triu", "trunc",
)  # fmt: skip
_CASTS = {
    "bool": "bool", "byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64",
    "half": "float16",
    "bfloat16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip


def _operator(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    function = cached_call(function)

    def method(self: Tensor, other: Any) -> Any:
        if not (isinstance(other, (Tensor, Sym, *Scalar)) or hasattr(other, "__array__")):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    method.defers = True  # type: ignore[attr-defined]  # as `function` does
    return method


def _in_place(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    function, words = cached_call(function), words_of(function)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs:
            args, kwargs = in_words(function.__name__, words, (self, *args), kwargs)
        else:
            args = (self, *args)
        if HERE.backlog.ops:  # work before this may fail, as if it had not happened
            with lazily():
                return update(self, function(*args, **kwargs), name)
        return update(self, function(*args, **kwargs), name)

    method.__doc__ = f"Give this tensor the value of `{name}` of it, and return it."
    return method


# -- methods that differ from the function -------------------------------------------------------------------
def reshape(self: Tensor, *shape: Any) -> Tensor:
    """Return the elements in row-major order under another shape; one size may be -1."""
    return shapes.reshape(self, shapes.as_shape("reshape", shape))


_ROWS_AT_ONCE: Final = 64


def iterate(self: Tensor) -> Iterator[Tensor]:
    """Return an iterator over views of the tensor along axis 0."""
    if not self.type.shape:
        raise ShapeError("iterate: a tensor without axes cannot be iterated over", got=str(self.type))
    rows, count = cached_call(indexing.rows), len(self)
    blocks = ((first, min(first + _ROWS_AT_ONCE, count)) for first in range(0, count, _ROWS_AT_ONCE))
    return (row for first, last in blocks for row in rows(self, first, last))


def view(self: Tensor, *shape: Any) -> Tensor:
    """Return another shape of the same elements, or the bits as another dtype."""
    if len(shape) == 1 and isinstance(shape[0], (DType, type)):
        target = as_dtype(shape[0])
        if target.itemsize != self.dtype.itemsize:
            raise DTypeError("view: dtypes differ in width", got=f"{self.type} as {target}")
        return shapes.view_of(self, OPS["bitcast"](target))
    made = reshape(self, *shape)
    if not shares_memory(made, self):
        raise ShapeError("view: another shape of this tensor needs a copy", got=f"{self.type} as {made.type}",
                         hint="its axes do not lie one after another in memory: use reshape()")  # fmt: skip
    return made


def permute(self: Tensor, *dims: Any) -> Tensor:
    """Return the tensor with its axes in another order."""
    return shapes.permute_dims(self, shapes.as_shape("permute", dims))


def unsqueeze(self: Tensor, dim: int) -> Tensor:
    """Return the tensor with a new axis of size 1 at a place."""
    return shapes.expand_dims(self, axis=dim)


def repeat(self: Tensor, *sizes: Any) -> Tensor:
    """Return the tensor repeated as a whole along each axis, as in PyTorch."""
    return shapes.tile(self, shapes.as_shape("repeat", sizes))


def _in_signed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a method add unsigned integers up in int64, as PyTorch; the array API's function keeps them."""

    @functools.wraps(function)
    def method(self: Tensor, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        return function(self, axis, keepdims, dtype=reductions.signed(self, dtype))

    return method


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
    flags = [x for x in args if isinstance(x, bool)]  # non_blocking and copy
    copy = kwargs.pop("copy", len(flags) > 1 and flags[1])
    for ignored in ("non_blocking", "memory_format"):
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
    return elementwise.astype(self, self.dtype if dtype is None else dtype, copy=bool(copy))


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor as the dtype of another."""
    return cast(self, other.dtype)


def cuda(self: Tensor, device: Any = None, **_: Any) -> Tensor:
    """Refuse: there is only the CPU."""
    check_device("cuda" if device is None else device)
    return self


def cpu(self: Tensor) -> Tensor:
    """Return the tensor, which is on the CPU."""
    return self


def clip_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Move every element of this tensor into [min, max], and return it."""
    return update(self, elementwise.clip(self, min, max), "clamp_")


def where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """Return this tensor where the condition holds, else the other."""
    return elementwise.where(condition, self, other)


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


def __array_function__(
    self: Tensor, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute a function of NumPy on the arrays of tensors, which it cannot write to. No gradient flows."""
    args, kwargs = tree.map(_read_only, (args, kwargs))
    return function(*args, **kwargs)


def _read_only(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    array = np.asarray(value).view()
    array.flags.writeable = False
    return array


def register_hook(self: Tensor, hook: Any) -> None:
    """Refuse: a graph has no place to call Python while gradients are computed."""
    raise StratalError("register_hook: gradients are planned, not computed step by step", got=str(self.type),
                       hint="read .grad after backward(), or use st.grad")  # fmt: skip


_OWN = (
    __array_function__, __array_namespace__, cpu, cuda, expand_as, new_empty, new_full, new_ones, new_tensor,
    new_zeros, permute, register_hook, repeat, reshape, to, to_device, type_as, unsqueeze, view, view_as,
    where, *DRAWS, *WRITES,
)  # fmt: skip


def _install() -> None:
    methods: dict[str, Any] = FUNCTIONS | {name: PLAIN[name] for name in _NAMED}
    for short, name in _OPERATORS.items():
        function = FUNCTIONS.get(name) or methods[name]
        methods[f"__{short}__"] = _operator(function)
        methods[f"__r{short}__"] = _operator(function, swapped=True)
        if short != "matmul":  # `a @= b` is `a = a @ b`, as in PyTorch
            methods[f"__i{short}__"] = _in_place(name, function)
    for short, name in _COMPARISONS.items():
        methods[f"__{short}__"] = _operator(FUNCTIONS[name])
    for short, name in _UNARY.items():
        methods[f"__{short}__"] = cached_call(methods[name])
    methods.update(add=arithmetic.add, sub=arithmetic.subtract, subtract=arithmetic.subtract)
    methods.update(
        clamp_=clip_, clip_=clip_,
        nonzero=lambda self, as_tuple=False: indexing.nonzero(self, as_tuple=as_tuple),
        astype=lambda self, dtype, copy=True: elementwise.astype(self, dtype, copy=copy),
        squeeze=lambda self, dim=None, *, axis=None: shapes.squeeze(self, axis, dim=dim),
        unbind=lambda self, dim=0: shapes.unstack(self, axis=dim),
        sum=_in_signed(reductions.sum), prod=_in_signed(reductions.prod),
        std=_spread(reductions.std), var=_spread(reductions.var),
        T=property(cached_call(_reversed)), mT=property(cached_call(shapes.matrix_transpose)),
        H=property(_adjoint),
        mH=property(_adjoint), adjoint=_adjoint,
        real=property(parts.real), imag=property(parts.imag), conjugate=parts.conj, copy=elementwise.clone,
        reshape_as=view_as, contiguous=shapes.contiguous, is_contiguous=shapes.is_contiguous,
        split_with_sizes=shapes.split, multinomial=random.multinomial, bernoulli=random.bernoulli,
        at=property(At), __getitem__=cached_call(indexing.getitem), __setitem__=indexing.setitem,
        __iter__=iterate,
        __contains__=lambda self, value: bool(reductions.any(FUNCTIONS["equal"](self, value))),
    )  # fmt: skip
    methods.update({f"{name}_": _in_place(f"{name}_", methods[name]) for name in _IN_PLACE})
    for name, dtype in _CASTS.items():
        methods[name] = functools.partialmethod(cast, as_dtype(dtype))
    methods.update({function.__name__: function for function in _OWN})
    methods.update(sort=sorting.sort_method)
    methods.update(__repr__=show, _repr_html_=show_html, backward=backward)
    for name, module in METHODS.items():
        setattr(Tensor, name, _Elsewhere(module, name))
    for name, method in methods.items():
        if isinstance(method, property):
            made: Any = property(_deferring(method.fget))
        else:
            made = _deferring(method) if name.startswith("_") else explained(cached_call(method))
        setattr(Tensor, name, made)


def _deferring(method: Any) -> Any:
    plain = inspect.isfunction(method) and not hasattr(method, "defers")
    return deferring(method) if plain else method


class _Elsewhere:
    """A method that a module above tensors defines; the first who looks at it loads the module."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Any:
        setattr(Tensor, self.name, getattr(importlib.import_module(self.module), self.name))
        return getattr(owner if tensor is None else tensor, self.name)


_install()
__all__ = ["update"]
