"""vmap: a function of one example becomes one of a batch. The function runs once, on one row that stands for
all; the graph it leaves gets the new axis (`stratal.batching`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.dims import Dim, Sym, as_int, known_equal
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.batching import batch
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.control.scan import INDEX
from stratal.ops.families import moved_axis, repeated
from stratal.tensor.arguments import check_axis, check_function
from stratal.tensor.build import as_tensor, call, where_now
from stratal.tensor.functions.shapes import concat, narrow
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.transformations.regions import RegionTrace, keep_effect
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_and_track, node_of, rebind_all
from stratal.tensor.values.handle import STOPPED, TRACKED, AnyHandle, Handle
from stratal.tensor.values.state import MODE, tracing

Axes = Any  # an int, None, or a container of these that is like the values, or like their outer part
Randomness = Literal["error", "different", "same"]


class _Rows(RegionTrace):
    """The trace of a function on one row; `row` is its number."""

    def __init__(self, randomness: Randomness) -> None:
        super().__init__("vmap", MODE.trace)
        self.randomness = randomness
        self.row = node_values.placeholder("row", INDEX, self.name)

    def drawn(self, key: AnyHandle) -> AnyHandle:
        """Return the key a row draws with."""
        key = super().drawn(key)
        if self.randomness == "error":
            raise CaptureError(
                "vmap: whether rows draw the same random numbers must be said", got="randomness='error'",
                hint="randomness='different' or 'same', or hand each row a key of st.random.split",
            )  # fmt: skip
        if self.randomness == "same":
            return key
        with tracing(self):
            row = wrap(self.row)
        return call("random_fold_in", key, row)  # type: ignore[return-value]


class _Argument(NamedTuple):
    """A leaf of the arguments that differs from row to row, and the row of it that the function is given."""

    whole: Tensor
    axis: int
    node: Node
    row: Tensor


def vmap(
    function: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, randomness: Randomness = "error",
    *, chunk_size: int | None = None, axis_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that does for every row of its arguments what `function` does for one.

    `in_axes` says along which axis rows of each argument lie, None that all rows share it: one for all, or a
    container like the arguments. `out_axes` says where the axis goes in the results; None takes a result that
    no row changes as it is. PyTorch's names `in_dims` and `out_dims` are taken, too. Keyword arguments are
    shared by all rows. `axis_size` says how many rows there are where no argument does. With `chunk_size` as
    many rows are done at a time.

    Random numbers of a generator: an error, `different` from row to row, or the `same`. A key among the
    arguments says it itself. A `cond` whose predicate differs between rows computes both branches, so that
    derivatives of the one not taken must be finite, too; a `while_loop` goes on until the last row is done.

    Raises: ShapeError for rows of different numbers and axes that fit no argument; CaptureError for a value
    asked by Python, and for an outer tensor that rows give different values.
    """
    check_function("vmap", function)
    if not (chunk_size is None or isinstance(chunk_size, int)):
        raise DTypeError("vmap: chunk_size is an int", got=repr(chunk_size))
    if randomness not in ("error", "different", "same"):
        raise AttributeValueError("vmap: randomness is 'error', 'different' or 'same'", got=repr(randomness))

    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = _axes_of("in_axes", in_axes, args)
        leaves, structure = tree.flatten(args)
        leaves = [x if a is None else as_tensor(x, "vmap") for x, a in zip(leaves, axes, strict=True)]
        size = _number_of_rows(leaves, axes, axis_size)

        def rows(part: list[Any], count: Dim) -> Any:
            return _map(function, tree.unflatten(structure, part), kwargs, axes, out_axes, count, randomness)

        if chunk_size is None or chunk_size >= size:
            return rows(leaves, size)
        size = as_int(size)
        if chunk_size < 1 or randomness == "same":
            raise AttributeValueError("vmap: chunk_size takes at least 1, and no randomness='same'",
                                      got=f"chunk_size={chunk_size}, randomness={randomness!r}")  # fmt: skip
        parts = []
        for start in range(0, size, chunk_size):
            count = min(chunk_size, size - start)
            part = [x if a is None else narrow(x, a, start, count) for x, a in zip(leaves, axes, strict=True)]
            parts.append(rows(part, count))
        return _joined(parts, out_axes)

    return mapped


# -- arguments -----------------------------------------------------------------------------------------------
def _axes_of(name: str, axes: Axes, value: Any) -> list[int | None]:
    """Return the axis of each leaf of a container."""
    if axes is None or hasattr(axes, "__index__"):
        return [axes] * len(tree.leaves(value))
    if isinstance(axes, list) and isinstance(value, tuple):
        axes = tuple(axes)
    parts, shape = tree.flatten(axes, is_leaf=lambda x: x is not axes)
    children, like = tree.flatten(value, is_leaf=lambda x: x is not value)
    if shape != like or not shape.children:
        raise ShapeError(
            f"vmap: {name} is no container like the values", got=f"{axes!r} for {tree.flatten(value)[1]}",
            hint="an int, None, or a container that has one of these for each part",
        )  # fmt: skip
    return [k for part, child in zip(parts, children, strict=True) for k in _axes_of(name, part, child)]


def _number_of_rows(leaves: Sequence[Any], axes: Sequence[int | None], wanted: int | None) -> Dim:
    if not (wanted is None or isinstance(wanted, (int, np.integer, Sym))):
        raise DTypeError("vmap: axis_size is an int", got=repr(wanted)[:80])
    sizes: list[tuple[Dim, str]] = [] if wanted is None else [(wanted, "axis_size")]
    for x, axis in zip(leaves, axes, strict=True):
        if axis is not None:
            sizes.append((x.shape[_axis_in(x, axis)], f"axis {axis} of {x.type}"))
    if not sizes:
        raise ShapeError(
            "vmap: no argument has rows", got="in_axes=None for all", hint="set in_axes for one, or axis_size"
        )
    if not all(known_equal(size, sizes[0][0]) for size, _ in sizes):
        got = ", ".join(f"{size} ({where})" for size, where in sizes)
        raise ShapeError("vmap: arguments have different numbers of rows", got=got)
    return sizes[0][0]


def _axis_in(t: Tensor, axis: int) -> int:
    if not t.ndim:
        raise ShapeError("vmap: a scalar has no rows", got=str(t.type), hint="in_axes=None shares it")
    return check_axis("vmap", axis, t.ndim)


# -- the function on one row ---------------------------------------------------------------------------------
def _map(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], axes: Sequence[int | None],
    out_axes: Axes, size: Dim, randomness: Randomness,
) -> Any:  # fmt: skip
    b = Builder(where_now())
    leaves, structure = tree.flatten(args)
    trace = _Rows(randomness)
    arguments: list[_Argument] = []
    given: dict[Node, Node] = {trace.row: b.iota(shape=(size,), axis=0, dtype=INDEX.dtype)}
    for k, axis in enumerate(axes):
        if axis is not None:
            one = _row_of(b, leaves[k], axis, trace, given)
            arguments.append(one)
            leaves[k] = one.row
    with tracing(trace):
        result = function(*tree.unflatten(structure, leaves), **kwargs)
        found, out_structure = _results(result)
        changed: list[tuple[Handle, int | None, Node, int]]
        changed = [(c.tensor, None, c.node, c.track) for c in trace.written()]
        rows = [a for a in arguments if node_of(a.row) is not a.node]
        changed += [(a.whole, a.axis, *node_and_track(a.row)) for a in rows]
        inside = [node_and_track(t) for t in found]
    trace.closed = True
    places = _axes_of("out_axes", out_axes, result)
    wanted = trace.resolved([n for n, _ in inside] + [n for _, _, n, _ in changed] + trace.tokens)
    made = iter(zip(batch(wanted, given, size), wanted, strict=True))
    outputs = [
        wrap(_placed(b, *next(made), axis, size), _track_now(track))
        for (_, track), axis in zip(inside, places, strict=True)
    ]
    rebind_all(
        [(t, _rewritten(b, t, *next(made), axis, size), _track_now(track)) for t, axis, _, track in changed]
    )
    for token, before in made:
        keep_effect(b.reduce_max(token, axes=(0,)) if token.aval.ndim > before.aval.ndim else token)
    return tree.unflatten(out_structure, outputs)


def _row_of(b: Builder, t: Tensor, axis: int, trace: _Rows, given: dict[Node, Node]) -> _Argument:
    """Return the row of an argument, and note in `given` what it stands for."""
    whole, track = node_and_track(t)
    axis = _axis_in(t, axis)
    node = node_values.placeholder("", TensorType(t.dtype, t.shape[:axis] + t.shape[axis + 1 :]), trace.name)
    given[node] = moved_axis(b, whole, axis, 0)
    with tracing(trace):
        row = wrap(node, track)
    trace.arguments.append(row)
    return _Argument(t, axis, node, row)


def _results(result: Any) -> tuple[list[Tensor], tree.Structure]:
    leaves, structure = tree.flatten(result)
    try:
        return [as_tensor(x, "vmap") for x in leaves], structure
    except DTypeError as error:
        raise DTypeError("vmap: the function must return tensors", got=error.got) from None


def _track_now(track: int) -> int:
    return STOPPED if track == TRACKED and not MODE.grad else track


def _placed(b: Builder, made: Node, before: Node, axis: int | None, size: Dim) -> Node:
    """Return a result with the axis where it was asked for."""
    has_axis = made.aval.ndim > before.aval.ndim
    if axis is None:
        if has_axis:
            raise ShapeError(
                "vmap: out_axes=None is for results that are the same for every row", got=str(before.aval)
            )
        return made
    rows = made if has_axis else repeated(b, size, made)
    return moved_axis(b, rows, 0, check_axis("vmap", axis, rows.aval.ndim))


def _rewritten(b: Builder, tensor: Handle, made: Node, before: Node, axis: int | None, size: Dim) -> Node:
    """Return the new value of a tensor that was changed in place: an argument, or one from around."""
    if axis is None and made.aval.ndim > before.aval.ndim:
        raise CaptureError(
            "vmap: rows give a tensor from around the function different values", got=str(tensor.type),
            hint="hand it in with an axis of rows, or return the new value; running statistics have no rows",
        )  # fmt: skip
    return _placed(b, made, before, axis, size)


# -- chunks --------------------------------------------------------------------------------------------------
def _joined(parts: Sequence[Any], out_axes: Axes) -> Any:
    """Return the results of chunks one after another."""
    places = _axes_of("out_axes", out_axes, parts[0])
    columns: Iterable[tuple[Tensor, ...]] = zip(*map(tree.leaves, parts), strict=True)
    joined = [
        column[0] if axis is None else concat(list(column), axis=axis)
        for column, axis in zip(columns, places, strict=True)
    ]
    return tree.unflatten(tree.flatten(parts[0])[1], joined)
