"""Functions that make tensors of nothing or of data from outside.

Outside a capture what they make is filled memory at once; inside, it is part of the graph, but for values at
equal distance, of their own or of their logarithms. Their ends are numbers or arrays that broadcast; the
values are then the first axis, as in NumPy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dims import Dim, Sym, as_int
from stratal.base.dlpack import read_dlpack
from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError, StratalError
from stratal.base.types import TensorType
from stratal.runtime.program import new_storage
from stratal.runtime.storage import Storage
from stratal.tensor.arrays import Array
from stratal.tensor.build import Scalar, as_tensor, iota
from stratal.tensor.build import full as full_node
from stratal.tensor.device import check_device
from stratal.tensor.functions.elementwise import FUNCTIONS, as_written, cast
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.ramps import write_ramp, written
from stratal.tensor.functions.shapes import as_shape, broadcast_to, reshape
from stratal.tensor.tensor import Tensor, hold, tensor, wrap
from stratal.tensor.values.state import MODE

LARGE = 1 << 14  # bytes from which on it counts how memory is filled


def _filled(shape: tuple[Any, ...], value: Any, dtype: DType, device: Any, requires_grad: bool) -> Tensor:
    check_device(device)
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise AttributeValueError("full: a size is negative", got=str(list(shape)))
    if MODE.trace is not None:
        made = wrap(full_node("full", value, dtype, shape))
    else:
        scalar = full_node("full", value, dtype, ())
        storage = new_storage(dtype, shape)
        _fill(storage.array, scalar.op.value.array)  # type: ignore[attr-defined]
        made = hold(storage)
    return made.requires_grad_() if requires_grad else made


def _fill(out: Array, value: Any) -> None:
    """Give all elements one value: byte by byte where its bytes are alike, which takes half the time."""
    raw = np.asarray(value, out.dtype).tobytes() if out.nbytes >= LARGE else b""
    if len(set(raw)) == 1:
        out.reshape(-1).view(np.uint8).fill(raw[0])
    else:
        out[...] = value


def full(
    shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of a shape filled with one value."""
    sizes = as_shape("full", (shape,) if not hasattr(shape, "__index__") else ((shape,),))
    if not isinstance(fill_value, Scalar):
        written = dtype is not None
        value = as_written("full", fill_value, as_dtype(dtype)) if written else as_tensor(fill_value, "full")
        return broadcast_to(value, sizes)
    plain = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    return _filled(sizes, plain, as_dtype(plain.__class__ if dtype is None else dtype), device, requires_grad)


def zeros(
    shape: Any, *more: int, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of zeros; the shape is one sequence or several numbers."""
    return _filled(as_shape("zeros", (shape, *more)), 0, as_dtype(dtype or float), device, requires_grad)


def ones(
    shape: Any, *more: int, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of ones; the shape is one sequence or several numbers."""
    return _filled(as_shape("ones", (shape, *more)), 1, as_dtype(dtype or float), device, requires_grad)


def empty(
    shape: Any, *more: int, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of no particular values: zeros, so that runs repeat."""
    return zeros(shape, *more, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(value: Any, name: str, doc: str) -> Any:
    def function(x: Any, /, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        t = as_tensor(x, "like")
        return _filled(t.shape, value, as_dtype(dtype or t.dtype), device, requires_grad)

    return named(function, name, doc)


zeros_like = _like(0, "zeros_like", "Return zeros of the shape and dtype of `x`.")
ones_like = _like(1, "ones_like", "Return ones of the shape and dtype of `x`.")
empty_like = zeros_like


def full_like(
    x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a tensor of the shape and dtype of `x` filled with one value."""
    t = as_tensor(x, "full_like")
    made = full(t.shape, fill_value, dtype=dtype or t.dtype, device=device)
    return made.requires_grad_() if requires_grad else made


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return data as a tensor: a tensor as it is unless `copy`, anything else copied."""
    check_device(device)
    if isinstance(obj, Tensor) and not copy:
        return obj if dtype is None else cast(obj, dtype)
    return tensor(obj, dtype=dtype)


def from_numpy(array: Any) -> Tensor:
    """Return a tensor with a copy of a NumPy array; `from_dlpack` shares its memory."""
    return tensor(array)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return another library's array as a tensor that shares its memory: unless `copy`, and if it is dense.

    What its owner writes there later shows here; we never write to it.
    Raises: StratalError for an array on another device, DTypeError for a dtype Stratal lacks,
    AttributeValueError where `copy=False` and only a copy is possible.
    """
    check_device(device)
    if isinstance(x, Tensor):
        return tensor(x) if copy else x
    if not hasattr(x, "__dlpack__"):
        raise DTypeError("from_dlpack: takes an array with __dlpack__", got=type(x).__name__)
    if x.__dlpack_device__()[0] not in (1, 3):  # host memory, plain or pinned
        raise StratalError(
            "from_dlpack: the array is not in the host's memory", got=f"device {x.__dlpack_device__()}",
            hint="move it to the CPU first",
        )  # fmt: skip
    try:
        array: Array = read_dlpack(x)
    except (BufferError, RuntimeError) as error:
        raise DTypeError("from_dlpack: NumPy cannot read this array", got=str(error)) from None
    dense = array.size and array.transpose(np.argsort(array.strides)[::-1]).flags.c_contiguous
    if copy or not dense or MODE.trace is not None:
        if copy is False and array.size:
            raise AttributeValueError(
                "from_dlpack: only a copy is possible", got=f"strides {array.strides} of {array.shape}",
                hint="elements must lie densely, and sharing is for outside of compiled functions",
            )  # fmt: skip
        return tensor(array)
    return hold(Storage.shared(array, TensorType(as_dtype(array.dtype), array.shape)))


def arange(
    start: Any = None, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False
) -> Tensor:
    """Return start, start + step, ... below stop."""
    check_device(device)
    if stop is None and start is None:
        raise TypeError("arange() missing 1 required positional argument: 'stop'")
    if stop is None or start is None:
        start, stop = 0, start if stop is None else stop
    start, stop, step = (x.item() if isinstance(x, Tensor) else x for x in (start, stop, step))
    if step == 0:
        raise AttributeValueError("arange: the step must not be 0")
    whole = all(isinstance(x, (int, np.integer, Sym)) for x in (start, stop, step))
    target = as_dtype(dtype) if dtype is not None else as_dtype(int if whole else float)
    if isinstance(stop, Sym) or isinstance(start, Sym):
        return _ramp((stop - start + step - (1 if step > 0 else -1)) // as_int(step), start, step, target)
    count = max(0, math.ceil((stop - start) / step))
    made = _ramp(count, start, step, target)
    return made.requires_grad_() if requires_grad else made


def _ramp(count: Dim, start: Any, step: Any, dtype: DType) -> Tensor:
    if MODE.trace is None:
        ends = [int(x) if isinstance(x, np.integer) else x for x in (start, step)]
        return written(dtype, (as_int(count),), lambda out: write_ramp(out, *ends))
    index = iota((count,))
    if isinstance(start, int) and isinstance(step, int):
        return cast(index * step + start if (start, step) != (0, 1) else index, dtype)
    return cast(cast(index, "float64") * float(step) + float(start), dtype)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return a matrix with ones on its k-th diagonal."""
    check_device(device)
    shape = matrix_sizes(n_rows, n_rows if n_cols is None else n_cols)
    k = max(-shape[0], min(k, shape[1]))  # all diagonals outside of the matrix are alike
    if MODE.trace is not None:
        return _leaf(cast(diagonal_order(shape, k, "equal"), dtype or float), requires_grad)

    def write(out: Array) -> None:
        _fill(out, 0)
        rows = out[max(-k, 0) : shape[1] - k]  # those the diagonal passes through
        rows.reshape(-1)[max(k, 0) :: shape[1] + 1] = 1

    return _leaf(written(as_dtype(dtype or float), shape, write), requires_grad)


def _leaf(made: Tensor, requires_grad: bool) -> Tensor:
    return made.requires_grad_() if requires_grad else made


def matrix_sizes(*shape: Any) -> tuple[Any, ...]:
    """Return the numbers of rows and columns of a matrix. Raises: DTypeError, AttributeValueError."""
    if not all(isinstance(n, Sym) or hasattr(n, "__index__") for n in shape):
        got = " and ".join(map(repr, shape))
        raise DTypeError("matrix: the numbers of rows and of columns are ints", got=got)
    if any(not isinstance(n, Sym) and operator.index(n) < 0 for n in shape):
        raise AttributeValueError("matrix: a size is negative", got=str(list(shape)))
    return tuple(n if isinstance(n, Sym) else operator.index(n) for n in shape)


def diagonal_order(shape: Sequence[Any], k: int, comparison: str) -> Tensor:
    """Compare column - row with k at every place of a matrix."""
    sizes = matrix_sizes(*shape)
    row, column = (iota(sizes, axis) for axis in (0, 1))
    return FUNCTIONS[comparison](column, row + k if k else row)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Return coordinate matrices of coordinate vectors."""
    given = [as_tensor(a, "meshgrid") for a in arrays]
    if indexing not in ("xy", "ij"):
        raise AttributeValueError("meshgrid: indexing is 'xy' or 'ij'", got=repr(indexing))
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[0], order[1] = 1, 0
    shape = [0] * len(given)
    for a, t in zip(order, given, strict=True):
        shape[a] = t.numel()
    return [
        broadcast_to(reshape(t, [t.numel() if k == a else 1 for k in range(len(given))]), shape)
        for a, t in zip(order, given, strict=True)
    ]

# -- values at equal distance --------------------------------------------------------------------------------
def _end(name: str, given: Any) -> Array:
    """Return an end as NumPy computes with it: in double precision."""
    if isinstance(given, Tensor) and MODE.trace is not None:
        raise CaptureError(
            f"{name}: its values are written when it is called, but this end is data",
            got=str(given.type), hint="start + (stop - start) * st.linspace(0, 1, num)",
        )  # fmt: skip
    found = given._value(name).array if isinstance(given, Tensor) else np.asarray(given)
    if found.dtype.kind in "OSUMm":
        raise DTypeError(f"{name}: the ends are numbers or arrays of them", got=repr(given))
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)


def _count(name: str, num: Any) -> int:
    if not hasattr(num, "__index__") or operator.index(num) < 0:
        raise AttributeValueError(f"{name}: needs a number of values", got=repr(num))
    return operator.index(num)


def _spaced(name: str, rule: Callable[..., Array], ends: tuple[Array, Array], num: Any, dtype: Any) -> Tensor:
    count = _count(name, num)
    try:
        np.broadcast_shapes(*(end.shape for end in ends))
    except ValueError:
        got = " and ".join(str(list(end.shape)) for end in ends)
        raise ShapeError(f"{name}: the ends do not broadcast", got=got) from None
    with np.errstate(all="ignore"):
        values = rule(*ends, count)
    target = as_dtype(dtype or (complex if values.dtype.kind == "c" else float))
    if values.dtype.kind == "c" and not target.is_complex:
        raise AttributeValueError(f"{name}: complex ends have complex values between them", got=str(target))
    return tensor(values.astype(target.np))


def linspace(
    start: Any, stop: Any, /, num: int | None = None, *, steps: int | None = None, dtype: Any = None,
    device: Any = None, requires_grad: bool = False, endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Return `num` values from start to stop at equal distance.

    Shapes: ends of s... -> [num, s...]. Raises: ShapeError for ends that do not broadcast.
    """
    check_device(device)
    ends = _end("linspace", start), _end("linspace", stop)
    count = num if num is not None else steps
    if all(end.ndim == 0 and end.dtype.kind == "f" for end in ends):
        first, last = map(float, ends)
        made = _line(first, last, _count("linspace", count), endpoint, as_dtype(dtype or float))
        return _leaf(made, requires_grad)
    made = _spaced("linspace", lambda a, b, n: np.linspace(a, b, n, endpoint=endpoint), ends, count, dtype)
    return _leaf(made, requires_grad)


def _line(first: float, last: float, count: int, endpoint: bool, dtype: DType) -> Tensor:
    """Return values between two numbers, written where they stay."""
    step = (last - first) / max(count - 1 if endpoint else count, 1)

    def write(out: Array) -> None:
        if math.isfinite(step) and (step or first == last):
            write_ramp(out, first, step)
            if endpoint:
                out[1:][-1:] = last
        else:  # steps below the least number: NumPy divides later
            with np.errstate(all="ignore"):
                out[...] = np.linspace(first, last, count, endpoint=endpoint)

    return written(dtype, (count,), write)


def logspace(
    start: Any, stop: Any, /, num: int | None = None, base: float = 10.0, *, steps: int | None = None,
    endpoint: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return `num` values from base**start to base**stop whose logarithms are at equal distance.

    Shapes: ends of s... -> [num, s...]. Raises: ShapeError for ends that do not broadcast.
    """
    check_device(device)
    ends = _end("logspace", start), _end("logspace", stop)
    count, of = num if num is not None else steps, float(base)
    made = _spaced(
        "logspace", lambda a, b, n: np.logspace(a, b, n, endpoint=endpoint, base=of), ends, count, dtype
    )
    return _leaf(made, requires_grad)


def geomspace(start: Any, stop: Any, /, num: int = 50, *, endpoint: bool = True, dtype: Any = None) -> Tensor:
    """Return `num` values from start to stop, each the same multiple of the one before.

    Shapes: ends of s... -> [num, s...]. Raises: AttributeValueError for an end of 0 and ends of unlike signs.
    """
    first, last = _end("geomspace", start), _end("geomspace", stop)

    def rule(a: Array, b: Array, n: int) -> Array:
        real = a.dtype.kind != "c" and b.dtype.kind != "c"
        if np.any(a * b <= 0 if real else (a == 0) | (b == 0)):
            got = f"{start}, {stop}"
            raise AttributeValueError("geomspace: both ends have one sign and are not 0", got=got)
        return np.geomspace(a, b, n, endpoint=endpoint)

    return _spaced("geomspace", rule, (first, last), num, dtype)


__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "from_numpy", "full", "full_like",
    "geomspace", "linspace", "logspace", "meshgrid", "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip
