"""Calls that came before, on small values that are there, run at once: no node, nothing pending.

A call's template (`values/deferred`) says how: by NumPy, op by op, where that has the bits of a kernel
(`immediate`), else by the program that computed such a call when it was the only one that waited. Nothing is
compiled for it. Calls on values that wait, that take gradients, or are large stay as they are: one program
computes them together with what else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from operator import attrgetter, methodcaller
from threading import local
from typing import Any, Final

import numpy as np

from stratal.base.errors import StratalError
from stratal.graph.node import Const, topological
from stratal.ops.elementwise.conversion import Select
from stratal.ops.families import Elementwise
from stratal.ops.views.shapes import Broadcast
from stratal.runtime.program import OutputMemory
from stratal.runtime.storage import Array, Storage, row_major
from stratal.tensor.lazy import program_cache
from stratal.tensor.tensor import hold
from stratal.tensor.values.deferred import CallTemplate, Row, only
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED, Handle
from stratal.tensor.values.immediate_values import SMALL, is_exact
from stratal.tensor.values.state import MODE
from stratal.tensor.values.views import relate

Direct = Callable[[Sequence[Handle]], Any]  # returns None where the call is computed as any other
_MOST_ROWS: Final = 16
_STORAGE, _EXPORTS, _ARRAY = map(attrgetter, ("_storage", "_exports", "array"))  # faster than loops
_OFTEN: Final = 100  # calls from which on a program of several ops pays for its compilation


def is_small(template: CallTemplate) -> bool:
    """Return whether a call is worth computing at once: on few elements, no gradients, no random numbers."""
    nodes = [*template.operands, *(r.node for r in template.results)]
    return (
        not (template.draws or template.numbers)
        and all(r.track in (CONSTANT, STOPPED) for r in template.results)
        and all(hasattr(n.type, "dtype") and 0 < n.aval.size <= SMALL for n in nodes)
    )


def are_ready(tensors: Sequence[Handle]) -> bool:
    """Return whether operands have their values, and no gradient asks what becomes of them."""
    grad = MODE.grad
    return _ready(tensors) is not None and not any(t._track == TRACKED and grad for t in tensors)


def _ready(tensors: Sequence[Handle]) -> list[Storage] | None:
    """Return the values of operands; None where some wait, or NumPy may write to them."""
    storages = list(map(_STORAGE, tensors))
    if None in storages:
        return None
    if any(map(_EXPORTS, storages)) and any(storage.exported for storage in storages):
        return None
    return storages


def _results(template: CallTemplate) -> Callable[[Sequence[Storage], Sequence[Handle]], Any]:
    """Return what makes a call's results of their values, and of its operands."""
    tracks, views, container = [r.track for r in template.results], template.views, template.container
    if len(tracks) == 1 and not views:
        (track,) = tracks
        if container is only:
            return lambda made, tensors: hold(made[0], track)
        return lambda made, tensors: container((hold(made[0], track),))

    def results(made: Sequence[Storage], tensors: Sequence[Handle]) -> Any:
        found = list(map(hold, made, tracks))
        for result, relation in zip(found, views):  # noqa: B905 (there may be none)
            if relation is not None:
                relate(result, relation, tensors)
        return container(found)

    return results


# -- by NumPy ------------------------------------------------------------------------------------------------
class _Quiet(local):
    """What calls a function without NumPy's warnings of overflow and the like, in each thread."""

    def __init__(self) -> None:
        before, context = np.geterr(), copy_context()
        context.run(partial(np.seterr, all="ignore"))
        self.call: Callable[..., Any] = context.run  # a quarter of what `np.errstate` takes
        if np.geterr() != before:  # this NumPy has one state for all contexts
            np.seterr(**before)
            self.call = np.errstate(all="ignore")(lambda function, *args: function(*args))


_QUIET: Final = _Quiet()


def by_numpy(template: CallTemplate) -> Direct | None:
    """Return how NumPy computes a call with the bits of kernels; None where it does not."""
    exact = all(isinstance(n.op, Const) or is_exact(n.op, n.type) for n in template.constants)
    exact = exact and all(is_exact(row.op, row.type) for row in template.rows)
    if not exact or len(template.rows) > _MOST_ROWS or not is_small(template):
        return None
    known = _constants(template)
    rows = [(k, row) for k, row in enumerate(template.rows, len(template.operands) + len(template.constants))]
    rows = [(k, row) for k, row in rows if k not in known]
    if any(r.number in known for r in template.results):
        return None
    memory = [OutputMemory(row_major(r.node.aval)) for r in template.results]
    count = len(template.operands)
    compute = _of_one(rows[0][1], known, count) if len(rows) == len(template.results) == 1 else None
    types = [n.type for n in (*template.operands, *template.constants)] + [row.type for row in template.rows]
    compute = compute or _of_many(rows, known, types, count, [r.number for r in template.results])
    results = _results(template)

    def run(tensors: Sequence[Handle]) -> Any:
        storages = _ready(tensors)
        if storages is None:
            return None
        made = [m.take() for m in memory]
        _QUIET.call(compute, *map(_ARRAY, storages), *map(_ARRAY, made))
        return results(made, tensors)

    def run_one(tensors: Sequence[Handle]) -> Any:  # the common case, a tenth quicker
        storages = _ready(tensors)
        if storages is None:
            return None
        result = take()
        _QUIET.call(compute, *map(_ARRAY, storages), result.array)
        return hold(result, track)

    if len(memory) == 1 and template.container is only and not any(template.views):
        take, track = memory[0].take, template.results[0].track
        run = run_one
    return _until_often(template, run) if len(rows) > 1 and not any(template.views) else run


def _until_often(template: CallTemplate, run: Direct) -> Direct:
    """Return what computes a call by NumPy until it came often, and compiles a program of it then."""
    left = _OFTEN

    def counted(tensors: Sequence[Handle]) -> Any:
        nonlocal left
        left -= 1
        if not left:
            template.direct = _compiled(template) or run
        return run(tensors)

    return counted


def _compiled(template: CallTemplate) -> Direct | None:
    """Return how a program of its own computes a call; None where there can be none."""
    outputs = [r.node for r in template.results]
    work = program_cache.Work(list(template.operands), outputs, [], topological(outputs))
    try:
        program = program_cache.program_for(work, "call")
    except StratalError:
        return None
    return by_program(template, program, program_cache.choices(), range(len(template.operands)))


def _constants(template: CallTemplate) -> dict[int, Array]:
    """Return the values that no operand decides, by number."""
    known: dict[int, Any] = {
        k: n.op.value.array if isinstance(n.op, Const) else n.op.ref()
        for k, n in enumerate(template.constants, len(template.operands))
    }
    for k, row in enumerate(template.rows, len(template.operands) + len(template.constants)):
        if all(p in known for p in row.operands):
            with np.errstate(all="ignore"):
                known[k] = np.asarray(row.op.ref(*[known[p] for p in row.operands]))
    return known


def _ufunc(row: Row) -> Any:
    """Return the function of NumPy's that an op is, as it is."""
    op = row.op
    if not isinstance(op, Elementwise) or row.type.dtype.itemsize == 2:  # type: ignore[union-attr]
        return None
    plain = type(op).ref is Elementwise.ref and type(op).numpy is Elementwise.numpy
    return type(op).ufunc if plain and isinstance(type(op).ufunc, np.ufunc) else None


def _of_one(row: Row, known: dict[int, Array], count: int) -> Callable[..., Any] | None:
    """Return how one op is computed of `count` operands into the array after them, where that is plain."""
    places, ufunc = row.operands, _ufunc(row)
    in_order = places == tuple(range(count))
    if ufunc is None:
        return partial(_copy_of, row.op.ref) if in_order and count == 1 else None
    if in_order and ufunc not in (np.maximum, np.minimum):  # NumPy wants the word for `out` of these
        return ufunc  # type: ignore[no-any-return]
    return lambda *arrays: ufunc(*[known[p] if p in known else arrays[p] for p in places], out=arrays[-1])


def _copy_of(ref: Callable[..., Any], array: Array, made: Array) -> None:
    made[...] = ref(array)  # which may be a view for NumPy


def _of_many(
    rows: Sequence[tuple[int, Row]], known: dict[int, Array], types: Sequence[Any], count: int,
    numbers: Sequence[int],
) -> Callable[..., None]:  # fmt: skip
    """Return how ops are computed one by one: of `count` operands, into the arrays after them.

    Values stand in one list: the operands, what is known, then what each step makes.
    """
    functions = {k: _broadcasting(row, types) for k, row in rows}
    thin = _thin(rows, known, types, functions)
    at = {k: j for j, k in enumerate([*range(count), *known, *functions])}
    steps = [(thin.get(k) or functions[k] or row.op.ref, [at[p] for p in row.operands]) for k, row in rows]
    constants, results = list(known.values()), [at[k] for k in numbers]

    def compute(*arrays: Array) -> None:
        values: list[Any] = [*arrays[:count], *constants]
        value = values.__getitem__
        for function, operands in steps:
            values.append(function(*map(value, operands)))
        for made, k in zip(arrays[count:], results, strict=True):
            made[...] = values[k]

    return compute


def _broadcasting(row: Row, types: Sequence[Any]) -> Callable[..., Any] | None:
    """Return the function of NumPy's that computes an op and broadcasts its operands; None without one."""
    if isinstance(row.op, Select):
        return np.where
    ufunc = _ufunc(row)
    if ufunc is None or any(types[p].dtype.itemsize == 2 for p in row.operands):
        return None
    made = ufunc.resolve_dtypes((*[types[p].dtype.np for p in row.operands], *[None] * ufunc.nout))[-1]
    return ufunc if made == row.type.dtype.np else None  # type: ignore[union-attr]


def _thin(
    rows: Sequence[tuple[int, Row]], known: dict[int, Array], types: Sequence[Any],
    functions: dict[int, Callable[..., Any] | None],
) -> dict[int, Callable[..., Any]]:  # fmt: skip
    """Return broadcasts as views with axes of size 1, where all that reads them broadcasts by itself."""
    found: dict[int, Callable[..., Any]] = {}
    shapes = {k: types[k].shape for k in range(len(types))}
    for k, row in rows:
        op: Any = row.op
        if isinstance(op, Broadcast):
            sizes = dict(zip(op.axes, shapes[row.operands[0]], strict=True))
            shapes[k] = tuple([sizes.get(axis, 1) for axis in range(len(op.shape))])
            found[k] = methodcaller("reshape", shapes[k])
        elif functions[k] is not None:
            shapes[k] = np.broadcast_shapes(*[shapes[p] for p in row.operands])
        elif any(shapes[p] != types[p].shape for p in row.operands):
            return {}
    return found


# -- by a program --------------------------------------------------------------------------------------------
def by_program(template: CallTemplate, program: Any, choices: Any, inputs: Sequence[int]) -> Direct | None:
    """Return how a program computes a call, where signal handlers wait: its `inputs` are these operands, its
    outputs the results.
    """
    if not is_small(template):
        return None
    results, compute = _results(template), program_cache.runner_in_section(program)
    in_order = list(inputs) == list(range(len(template.operands)))

    def run(tensors: Sequence[Handle]) -> Any:
        storages = _ready(tensors)
        if storages is None or choices != program_cache.choices():
            return None
        given = storages if in_order else [storages[k] for k in inputs]
        try:
            made = program_cache.run(program, given) if program_cache.WATCHERS else compute(given)
        except StratalError:
            return None  # the long way says what is wrong
        return results(made, tensors)

    return run
