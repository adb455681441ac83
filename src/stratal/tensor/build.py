"""Building ops on tensors: promotion, broadcasting, Python scalars, source lines, and what gradients may
flow.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from types import FrameType
from typing import Any

import numpy as np

from stratal.base.dims import Sym, known_equal, quotient, same_shape, undecided, upper_bound
from stratal.base.dtypes import DType, as_dtype, as_element, int64, promote, promote_scalar
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.session import SESSION
from stratal.base.source import PACKAGE, SourceLine, user_line
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, constant, items, make
from stratal.graph.op import REGISTRY, Op
from stratal.runtime.storage import Storage
from stratal.tensor.arguments import check_axis
from stratal.tensor.autocast import operand_dtypes
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_and_track
from stratal.tensor.values.handle import CONSTANT, Handle
from stratal.tensor.values.state import MODE
from stratal.tensor.values.view_writes import joint

Shape = tuple[Any, ...]
Scalar = (bool, int, float, complex)
OPS: Mapping[str, Callable[..., Op]] = REGISTRY  # by their names, to be called with attributes
_FRONT_END = f"{PACKAGE}/tensor/"
_CONSTANTS = SESSION.cache(dict[tuple[Any, ...], Node]())  # scalars and their broadcasts, which code repeats
_MOST_CONSTANTS = 4096
_SITES = SESSION.cache(dict[tuple[Any, ...], Any]())  # value of the Python scalar at each place in the code
_MOST_SITES = 1 << 16
_VARIES = object()


def where_now() -> tuple[SourceLine, ...]:
    """Return the user's line as provenance."""
    line = user_line()
    return () if line is None else (line,)


@cache
def plain(name: str) -> Op:
    """Return the record without attributes called `name`."""
    return OPS[name]()


# -- gradients -----------------------------------------------------------------------------------------------
def nodes_and_track(tensors: Sequence[Handle]) -> tuple[list[Node], int]:
    """Return the nodes of the operands of one op, and what its result is to gradients."""
    nodes = []
    tracks = []
    for t in tensors:
        node, track = node_and_track(t)
        nodes.append(node)
        tracks.append(track)
    return joint(nodes, tracks, MODE.grad)


def finish(node: Node, track: int) -> Tensor:
    """Return the tensor of an op's result; of several a tuple of tensors, though its type is not said."""
    type_ = node.type
    if isinstance(type_, TupleType):
        return tuple(finish(n, track) for n in items(node))  # type: ignore[return-value]
    return wrap(node, track if type_.dtype.is_inexact else CONSTANT)


# -- applying ops --------------------------------------------------------------------------------------------
def apply(op: Op, *tensors: Tensor) -> Tensor:
    """Apply one op to tensors that already have the types it takes. See `finish` for several results."""
    nodes, track = nodes_and_track(tensors)
    where = where_now()
    if MODE.autocast is not None:
        nodes = _in_precision(op.name, nodes, where)
    return finish(make(op, *nodes, where=where), track)


def iota(shape: Shape, axis: int = 0) -> Tensor:
    """Return the int64 index along an axis at every place of a shape."""
    return apply(OPS["iota"](shape, axis, int64))


def call(name: str, *tensors: Handle, **attributes: Any) -> Tensor:
    """Apply the op or composite called `name` to tensors. See `finish` for several results."""
    nodes, track = nodes_and_track(tensors)
    where = where_now()
    if MODE.autocast is not None:
        nodes = _in_precision(name, nodes, where)
    return wrap_all(getattr(Builder(where), name)(*nodes, **attributes), track)


def _in_precision(name: str, nodes: Sequence[Node], where: tuple[SourceLine, ...]) -> list[Node]:
    """Return operands in the dtypes that `autocast` has for them."""
    dtypes = operand_dtypes(name, [n.aval.dtype for n in nodes])
    return [to_dtype(n, dtype, where) for n, dtype in zip(nodes, dtypes, strict=True)]


def wrap_all(result: Node | Sequence[Node], track: int) -> Tensor:
    """Return tensors for the node or nodes a composite returned."""
    if isinstance(result, Node):
        return finish(result, track)
    return tuple(finish(n, track) for n in result)  # type: ignore[return-value]


@lru_cache(maxsize=64)
def cast_op(dtype: DType) -> Op:
    """Return the record that casts to a dtype."""
    return OPS["cast"](dtype)


@lru_cache(maxsize=4096)
def _broadcast_op(shape: Shape, rank: int) -> Op:
    """Return the record that stretches a shape of some rank to `shape`, new axes in front."""
    return OPS["broadcast"](shape, tuple(range(len(shape) - rank, len(shape))))


# -- operands ------------------------------------------------------------------------------------------------
def as_tensor(value: Any, name: str = "op") -> Tensor:
    """Return a tensor as it is, anything else as a new one."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (*Scalar, np.ndarray, np.generic)):
        return tensor(value)
    if isinstance(value, Sym):
        return number(value)
    raise of_another_library(name, value) or DTypeError(
        f"{name}: takes tensors, arrays and numbers", got=type(value).__name__
    )


def converters(value: Any) -> list[Any]:
    """Return the methods that convert an array of a library other than NumPy; [] for other objects."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return []
    return [getattr(type(value), x) for x in ("__array__", "__dlpack__") if hasattr(type(value), x)]


def of_another_library(name: str, value: Any, depth: int = 3) -> DTypeError | None:
    """Return the error for an array of a library other than NumPy, also inside of lists; None for others."""
    if isinstance(value, (list, tuple)):
        found = (of_another_library(name, x, depth - 1) for x in value) if depth else ()
        return next(filter(None, found), None)
    if not converters(value):
        return None
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    library = {"torch": "PyTorch", "jaxlib": "JAX", "tensorflow": "TensorFlow"}.get(package, package)
    return DTypeError(
        f"{name}: takes tensors of Stratal, arrays of NumPy and numbers, and this is one of {library}",
        got=f"{kind.__module__}.{kind.__qualname__} {getattr(value, 'shape', '')}".rstrip(),
        hint="st.from_dlpack(x) shares its memory, st.tensor(x) copies it",
    )


def along(name: str, value: Any, axis: Any) -> tuple[Tensor, int]:
    """Return a tensor and one of its axes in [0, ndim). Raises: AxisError, DTypeError."""
    t = as_tensor(value, name)
    return t, check_axis(name, axis, t.ndim)


def looked_at(name: str, t: Tensor) -> Any:
    """Return an array whose elements decide whether a call is an error; None in captures."""
    if MODE.trace is None:
        return t._value(name).array
    MODE.trace.asks_values = True
    return None


def required(x: Tensor, index: Tensor, bound: int, says: str) -> Tensor:
    """Return `x`, whose computation ends with an error unless all of `index` lies in [0, bound).

    A kernel looks, so it also holds in compiled functions, before anything is written.
    """
    return apply(OPS["require"](bound, says), x, index)


def number(size: Sym) -> Tensor:
    """Return a symbolic size as an int64 scalar of the run."""
    trace = MODE.trace
    symbols = {} if trace is None else trace.symbols
    total: Any = 0
    if any(abs(end) > _EXACT for term in size.terms for end in Sym(dict((term,)), size.bounds).range()):
        raise undecided(size, "dims: a number made of sizes is beyond what floats have exactly")
    for atoms, factor in size.terms:
        term: Any = factor
        for atom in atoms:
            term = term * _atom(atom, symbols)
        total = total + term
    return as_tensor(total)


_EXACT = 1 << 53  # beyond, casts would round twice, and 64 bits may not do


def _atom(atom: str, symbols: dict[str, tuple[Handle, int]]) -> Tensor:
    parts = quotient(atom)
    if parts is not None:
        whole, divisor = parts
        return number(whole) // divisor
    if atom not in symbols:
        raise ShapeError("sizes: a symbol belongs to no argument of this function", got=atom)
    holder, axis = symbols[atom]
    return call("size", holder, axis=axis)


def default_float(dtype: DType) -> DType:
    """Return the float dtype that ops on integers compute in."""
    return dtype if dtype.is_inexact else as_dtype(float)


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """Return the shape all of them stretch to. Raises: ShapeError."""
    rank = max(map(len, shapes), default=0)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape, rank - len(shape)):
            if known_equal(result[k], 1):
                result[k] = n
            elif not known_equal(n, 1) and not known_equal(n, result[k]):
                raise ShapeError(
                    f"{name}: shapes do not broadcast together",
                    got=" and ".join(str(list(s)) for s in shapes),
                    hint=f"axis {k - rank} has sizes {result[k]} and {n}; sizes must be equal or 1",
                )
    return tuple(result)


def common_dtype(name: str, operands: Sequence[Any]) -> DType:
    """Return the dtype operands promote to; Python scalars give way to tensors of their kind."""
    dtype: DType | None = None
    for x in operands:
        if isinstance(x, Tensor):
            dtype = x.dtype if dtype is None else _promote(name, dtype, x.dtype)
    for x in operands:
        if not isinstance(x, Tensor):
            number = 0.0 if type(x) is RuntimeScalar else 0 if isinstance(x, Sym) else x
            if dtype is None:
                dtype = as_dtype(type(number))
            dtype = promote_scalar(dtype, number)
    assert dtype is not None
    return dtype


def _promote(name: str, a: DType, b: DType) -> DType:
    try:
        return promote(a, b)
    except DTypeError as error:
        raise DTypeError(f"{name}: no dtype holds both operands", got=error.got, hint=error.hint) from None


def normalise(name: str, operands: Sequence[Any]) -> list[Any]:
    """Return operands as tensors, plain Python scalars, and symbolic sizes, which are ints of a run."""
    return [x if isinstance(x, Tensor) or type(x) in Scalar else _foreign(name, x) for x in operands]


def _foreign(name: str, value: Any) -> Any:
    if isinstance(value, Scalar):  # np.float64 is a float
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Sym):
        return value
    return as_tensor(value, name)


def to_dtype(node: Node, dtype: DType, where: tuple[SourceLine, ...]) -> Node:
    if node.type.dtype is dtype:  # type: ignore[union-attr]
        return node
    return make(cast_op(dtype), node, where=where)


def to_shape(node: Node, shape: Shape, where: tuple[SourceLine, ...]) -> Node:
    """Broadcast a node to a shape, new axes in front."""
    have = node.type.shape  # type: ignore[union-attr]
    if same_shape(have, shape):
        return node
    return make(_broadcast_op(shape, len(have)), node, where=where)


def unify(
    name: str, *operands: Any, dtype: DType | None = None
) -> tuple[list[Node], int, tuple[SourceLine, ...]]:
    """Return operands as nodes of one dtype and shape, what their result is to gradients, and the user's
    line.
    """
    given = normalise(name, operands)
    tensors = [x for x in given if isinstance(x, Tensor)]
    where = where_now()
    nodes, track = nodes_and_track(tensors)
    if dtype is None:
        dtype = common_dtype(name, given)
    shape = broadcast_shapes(name, *[t.shape for t in tensors]) if tensors else ()
    found = iter(nodes)
    result = []
    for x in given:
        if isinstance(x, Tensor):
            result.append(to_shape(to_dtype(next(found), dtype, where), shape, where))
        else:
            result.append(scalar(name, x, dtype, shape, where))
    return result, track, where


# -- Python scalars ------------------------------------------------------------------------------------------
def scalar(name: str, value: Any, dtype: DType, shape: Shape, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return a Python scalar as a node of a dtype and shape.

    It is a constant of the graph, until the scalar at one place in the code is seen to change: from then on
    it is an input, so that a value that changes every step is not compiled anew.
    """
    if isinstance(value, Sym):
        as_element(name, upper_bound(value), dtype)  # or it does not fit
        return to_shape(to_dtype(node_and_track(number(value))[0], dtype, where), shape, where)
    if not isinstance(value, bool) and MODE.trace is None and changes(value):
        array = as_element(name, value, dtype)
        return to_shape(node_values.leaf(Storage.copy_of(array, TensorType(dtype, ()))), shape, where)
    return full(name, value, dtype, shape)


def full(name: str, value: Any, dtype: DType, shape: Shape) -> Node:
    """Return a constant scalar, or a number that varies, broadcast to a shape."""
    if type(value) is RuntimeScalar:
        return to_shape(value.element(dtype), shape, ())
    sign: Any = math.copysign(1.0, value) if isinstance(value, float) else 0
    sign = repr(value) if isinstance(value, complex) else sign
    key = (dtype, value, type(value), shape, sign)
    found = _CONSTANTS.get(key)
    if found is None:
        if len(_CONSTANTS) >= _MOST_CONSTANTS:
            _CONSTANTS.clear()
        found = to_shape(constant(as_element(name, value, dtype)), shape, ())
        _CONSTANTS[key] = found
    return found


def changes(value: Any, about: Any = None, depth: int = 2) -> bool:
    """Return whether a value has been another one at this place in the code; `about` tells several apart.

    A place is an instruction of the caller's and the path of calls from there: the numbers a composite has of
    its own lie at places of their own.
    """
    frame: FrameType | None = sys._getframe(depth)
    path = []
    while frame is not None and frame.f_code.co_filename.startswith(_FRONT_END):
        path.append(frame.f_lasti)
        frame = frame.f_back
    if frame is None:
        return False
    code = frame.f_code
    site = (code.co_filename, code.co_firstlineno, frame.f_lasti, about, *path)
    before = _SITES.get(site, _SITES)
    if before is _SITES:
        if len(_SITES) >= _MOST_SITES:
            _SITES.clear()
        _SITES[site] = value
        return False
    if before is _VARIES:
        return True
    if before == value or (before != before and value != value):
        return False
    _SITES[site] = _VARIES
    return True
