"""Functions of `tf`: a table of those that differ in name only, and those whose arguments differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype, float32, int64
from stratal.base.errors import AttributeValueError
from stratal.deferred.graph import builds
from stratal.tensor.api.functions import FUNCTIONS
from stratal.tensor.build import as_tensor, call
from stratal.tensor.functions import random
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import tracing

_SAME = (
    "abs add ceil cos divide equal erf exp floor greater greater_equal less less_equal log log1p "
    "logical_and logical_not logical_or maximum minimum multiply negative not_equal ones_like pow round "
    "rsqrt sigmoid sign sin sqrt square squeeze stack subtract tan tanh tile where zeros_like"
)
_OTHER_NAMES = {"floordiv": "floor_divide", "mod": "remainder", "realdiv": "divide", "truediv": "divide"}
_REDUCTIONS = ("all", "any", "logsumexp", "max", "mean", "min", "prod", "sum")


def listed(value: Any, name: str) -> Tensor:
    """Return a tensor as it is; of a number, a list or an array a new one."""
    return tensor(value) if isinstance(value, (list, tuple)) else as_tensor(value, name)


def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function build nodes, and take the `name` that TensorFlow's functions take."""
    building = builds(function)

    @functools.wraps(function)
    def wrapper(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        return building(*args, **kwargs)

    return wrapper


def _reduction(name: str) -> Callable[..., Any]:
    function = FUNCTIONS[name]

    def reduce(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, reduction_indices: Any = None,
        keep_dims: bool = False,
    ) -> Tensor:  # fmt: skip
        axes = axis if axis is not None else reduction_indices
        axes = tuple(axes) if isinstance(axes, list) else axes
        t = listed(input_tensor, f"reduce_{name}")
        if axes is None:
            axes = tuple(range(t.ndim))
        return function(t, axis=axes, keepdims=keepdims or keep_dims)

    reduce.__name__, reduce.__doc__ = f"reduce_{name}", f"Return `{name}` over some axes, or over all."
    return unnamed(reduce)


# -- making tensors ------------------------------------------------------------------------------------------
@unnamed
def constant(value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> Tensor:
    """Return a constant; a number fills the shape."""
    made = tensor(value, dtype)
    if shape is None:
        return made
    function = FUNCTIONS["reshape" if made.ndim else "broadcast_to"]
    return function(made, tuple(shape))


@unnamed
def zeros(shape: Sequence[int], dtype: Any = float32) -> Tensor:
    """Return zeros."""
    return FUNCTIONS["zeros"](tuple(shape), dtype=dtype)


@unnamed
def ones(shape: Sequence[int], dtype: Any = float32) -> Tensor:
    """Return ones."""
    return FUNCTIONS["ones"](tuple(shape), dtype=dtype)


@unnamed
def fill(dims: Sequence[int], value: Any) -> Tensor:
    """Return a tensor of one value."""
    return FUNCTIONS["full"](tuple(dims), value)


def _key(seed: int | None) -> Any:
    if seed is None:
        return None
    with tracing(None):  # its state stands outside of the graph, and each run carries it on
        return random.Generator(seed)


@unnamed
def random_normal(
    shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32, seed: int | None = None
) -> Tensor:
    """Return draws of a normal distribution, others in each run; a seed makes a stream of their own."""
    return random.standard_normal(tuple(shape), dtype=dtype, key=_key(seed)) * stddev + mean


@unnamed
def random_uniform(
    shape: Sequence[int], minval: Any = 0, maxval: Any = None, dtype: Any = float32, seed: int | None = None
) -> Tensor:
    """Return draws uniform in [minval, maxval), others in each run; integers need a `maxval`."""
    if as_dtype(dtype).is_integer:
        if maxval is None:
            raise AttributeValueError("random_uniform: integers need a maxval")
        return random.integers(minval, maxval, tuple(shape), dtype=dtype, key=_key(seed))
    high = 1.0 if maxval is None else maxval
    return random.uniform(tuple(shape), low=minval, high=high, dtype=dtype, key=_key(seed))


@unnamed
def truncated_normal(
    shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32, seed: int | None = None
) -> Tensor:
    """Return draws from a normal distribution without what lies further than two deviations from its mean.

    The last of eight draws that lies within; one element in 10^10 has none and is the mean.
    """
    key, found = _key(seed), None
    for _ in range(8):
        draw = random.standard_normal(tuple(shape), dtype=dtype, key=key)
        found = FUNCTIONS["where"](FUNCTIONS["abs"](draw) <= 2.0, draw, 0.0 if found is None else found)
    return found * stddev + mean


# -- functions whose arguments differ ------------------------------------------------------------------------
@unnamed
def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Return the product of matrices, or of each of their batches."""
    left, right = listed(a, "matmul"), listed(b, "matmul")
    return (left.mT if transpose_a else left) @ (right.mT if transpose_b else right)


@unnamed
def cast(x: Any, dtype: Any) -> Tensor:
    """Return a tensor of another dtype; "float" is float32, as in TensorFlow."""
    return listed(x, "cast").astype(float32 if dtype in ("float", float) else as_dtype(dtype))


@unnamed
def argmax(
    input: Any, axis: int | None = None, dimension: int | None = None, output_type: Any = int64
) -> Tensor:
    """Return where the largest elements along an axis stand; the first axis unless one is named."""
    return _extreme("argmax", input, axis, dimension, output_type)


@unnamed
def argmin(
    input: Any, axis: int | None = None, dimension: int | None = None, output_type: Any = int64
) -> Tensor:
    """Return where the smallest elements along an axis stand; the first axis unless one is named."""
    return _extreme("argmin", input, axis, dimension, output_type)


def _extreme(name: str, input: Any, axis: int | None, dimension: int | None, output_type: Any) -> Tensor:
    chosen = axis if axis is not None else dimension
    found = FUNCTIONS[name](listed(input, name), axis=0 if chosen is None else chosen)
    return found.astype(output_type)


@unnamed
def reshape(tensor: Any, shape: Sequence[int]) -> Tensor:
    """Return a tensor of another shape; one size may be -1."""
    return FUNCTIONS["reshape"](listed(tensor, "reshape"), tuple(shape))


@unnamed
def transpose(a: Any, perm: Sequence[int] | None = None) -> Tensor:
    """Return a tensor with its axes in another order, by default reversed."""
    t = listed(a, "transpose")
    return FUNCTIONS["permute_dims"](t, tuple(range(t.ndim))[::-1] if perm is None else tuple(perm))


@unnamed
def concat(values: Sequence[Any], axis: int) -> Tensor:
    """Return tensors joined along an axis."""
    return FUNCTIONS["concat"](list(values), axis=axis)


@unnamed
def expand_dims(input: Any, axis: int) -> Tensor:
    """Return a tensor with one more axis, of size 1."""
    return FUNCTIONS["expand_dims"](listed(input, "expand_dims"), axis=axis)


@unnamed
def gather(params: Any, indices: Any, axis: int = 0) -> Tensor:
    """Return the slices of a tensor at some places along an axis."""
    return FUNCTIONS["take"](listed(params, "gather"), listed(indices, "gather"), axis=axis)


@unnamed
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any) -> Tensor:
    """Return a tensor without what lies outside of an interval."""
    return FUNCTIONS["clip"](listed(t, "clip_by_value"), clip_value_min, clip_value_max)


@unnamed
def one_hot(
    indices: Any, depth: int, on_value: Any = 1.0, off_value: Any = 0.0, dtype: Any = float32
) -> Tensor:
    """Return a new last axis of `depth` with `on_value` at each index; at none for an index outside of it."""
    places = FUNCTIONS["expand_dims"](listed(indices, "one_hot"), axis=-1)
    hot = places == tensor(np.arange(depth), places.dtype)
    return FUNCTIONS["where"](hot, on_value, off_value).astype(dtype)


@unnamed
def identity(input: Any) -> Tensor:
    """Return the same value."""
    return listed(input, "identity").clone()


@unnamed
def stop_gradient(input: Any) -> Tensor:
    """Return the same value, through which no gradient flows."""
    return call("stop_gradient", listed(input, "stop_gradient"))


_NAMES = {name: name for name in _SAME.split()} | _OTHER_NAMES
_TABLE = {
    **{name: unnamed(FUNCTIONS[ours]) for name, ours in _NAMES.items()},
    **{f"reduce_{name}": _reduction(name) for name in _REDUCTIONS},
}
globals().update(_TABLE)
__all__ = [
    *_TABLE, "argmax", "argmin", "cast", "clip_by_value", "concat", "constant", "expand_dims", "fill",
    "gather",
    "identity", "matmul", "one_hot", "ones", "random_normal", "random_uniform", "reshape", "stop_gradient",
    "transpose", "truncated_normal", "zeros",
]  # fmt: skip
