"""The trace of a call: its graph on placeholders as a template, where that is all there is to the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stratal.base.source import unscoped
from stratal.graph.node import Node
from stratal.tensor.calls.call_key import floats_in, with_floats
from stratal.tensor.calls.direct import by_numpy
from stratal.tensor.functions.random import generator_state
from stratal.tensor.lazy.work_set import is_constant
from stratal.tensor.scalars import FromFloat, RuntimeScalar
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.deferred import CallTemplate, only, template_of
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.state import MODE, tracing
from stratal.tensor.values.trace import Cell, Trace
from stratal.tensor.values.views import relation_of


class TracedCall(NamedTuple):
    """A call of a public function, with the tensors among its arguments in the order of its key."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[Tensor]

    def floats(self) -> list[float]:
        return list(floats_in((self.args, self.kwargs)))


class _Found(NamedTuple):
    results: list[Tensor]
    container: Callable[[list[Tensor]], Any]


def trace_call(call: TracedCall, floats: Sequence[float] = ()) -> CallTemplate | None:
    """Return the graph of a call on placeholders, also of its `floats`; None where it is not all there is to
    the call.
    """
    tensors, args, kwargs = call.tensors, call.args, call.kwargs
    trace = Trace(getattr(call.function, "__name__", "call"))
    cells = [trace.enter(t) for t in tensors]
    operands: list[Node] = [cell.placeholder for cell in cells]
    if MODE.grad and any(t._track == TRACKED for t in tensors):
        for cell in cells:
            if cell.tensor._track == STOPPED:  # gradients must not follow the history of what it stands for
                cell.track = STOPPED
    state = generator_state()
    drawn = None if state is None or any(t is state for t in tensors) else trace.enter(state)
    try:
        with tracing(trace), unscoped():
            if floats:
                varying = (RuntimeScalar(trace, x, FromFloat(k, None, "")) for k, x in enumerate(floats))
                args, kwargs = with_floats((args, kwargs), varying)
            result = call.function(*args, **kwargs)
    except Exception:
        return None  # the call itself says what is wrong
    finally:
        trace.closed = True
    found = _results(result, trace)
    if found is None or not {*map(id, tensors), id(state)} >= trace.cells.keys():
        return None
    if not _is_pure(trace, drawn, found.results):
        return None
    operands += [node for node, _ in trace.numbers.values()]
    stopped = STOPPED if any(t._track == STOPPED for t in tensors) else CONSTANT
    made = _template(operands, found, drawn if drawn is not None and drawn.written else None, stopped)
    if made is not None:
        views = [relation_of(t, tensors) for t in found.results]
        made.views = views if any(views) else []
        memories = [t._view.memory for t in found.results if t._view is not None]
        asks = trace.asks_layouts or any(id(memory) in trace.regrouped for memory in memories)
        made.layouts = layouts_of(tensors) if asks else None
        made.numbers = [number for _, number in trace.numbers.values()]
        made.direct = by_numpy(made)
    return made


def trace_with_floats(call: TracedCall) -> CallTemplate | None:
    """Return a template that has the floats of a call as operands, if it gives what the call gives."""
    floats = call.floats()
    plain = trace_call(call) if floats else None
    found = None if plain is None else trace_call(call, floats)
    return found if plain is not None and found is not None and found.gives_like(plain) else None


def _is_pure(trace: Trace, drawn: Cell | None, results: Sequence[Tensor]) -> bool:
    """Return whether a call wrote nothing but the generator's state, read no value, and leaves nothing behind
    but its results.
    """
    if any(cell.written and cell is not drawn for cell in trace.cells.values()):
        return False
    if trace.grads or trace.grads_read or trace.tokens or trace.num_leaves or trace.differentiated:
        return False
    own = set(map(id, results))
    left = any((t := made()) is not None and id(t) not in own for made in trace.created)
    return not (trace.asks_values or left) and all(t._view is None or t._view.repeats for t in results)


def _results(result: Any, trace: Trace) -> _Found | None:
    """Return the tensors a call returned and what holds them; None for anything else."""
    kind: type[Any] = type(result)
    container: Callable[[list[Tensor]], Any] = only
    parts = [result]
    if kind in (tuple, list):
        parts, container = list(result), kind
    elif hasattr(kind, "_fields") and isinstance(result, tuple):
        parts, container = list(result), kind._make
    fine = all(type(t) is Tensor and t._trace is trace and not (t._leaf or t._retains) for t in parts)
    return _Found(parts, container) if fine and parts else None


def _template(
    operands: Sequence[Node], found: _Found, drawn: Cell | None, stopped: int
) -> CallTemplate | None:
    """Return the template of some results, and of the state of the generator that was `drawn` from; None
    where they need other leaves, or no computing.
    """
    roots = [_node_in(t) for t in found.results]
    tracks = [t._track or (stopped if t.type.dtype.is_inexact else CONSTANT) for t in found.results]
    if any(root in operands or is_constant(root) for root in roots) or len(set(roots)) < len(roots):
        return None
    if drawn is None:
        return template_of(operands, roots, tracks, found.container)
    with_state = [*operands, drawn.placeholder]
    return template_of(with_state, [*roots, drawn.node], [*tracks, CONSTANT], found.container, draws=True)


def _node_in(tensor: Tensor) -> Node:
    assert tensor._node is not None
    return tensor._node
