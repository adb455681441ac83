"""The step cache: backward passes and optimizer steps seen before are one call each, of a cached template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from stratal.base.lru import LRU
from stratal.base.session import SESSION
from stratal.base.source import unscoped, user_line
from stratal.graph.graph import substitute
from stratal.graph.node import Input, Node, graph_input
from stratal.tensor.calls.call_cache import deferred_results
from stratal.tensor.lazy.run_cache import CallGraph
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.binding import lazy_value_of, rebind
from stratal.tensor.values.deferred import CallTemplate, Deferred, DeferredLeaf, PendingCall, template_of
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED
from stratal.tensor.values.live import LEAVES, LIVE, earlier_nodes
from stratal.tensor.values.state import LOCK, MODE, tracing
from stratal.tensor.values.trace import Trace

_CAPACITY: Final = 128
_NEVER: Final = object()  # there is no template
_TEMPLATES: Final = SESSION.cache(LRU[Any, Any](_CAPACITY))


def _cache(key: Any, made: Any) -> None:
    """Put what is known of some calls at the end of the table, which forgets those used long ago."""
    with LOCK:
        _TEMPLATES.keep(key, made)


# -- gradients -----------------------------------------------------------------------------------------------
class CachedBackward:
    """The backward pass of an output that waits: the calls it is made of, the leaves that take gradients."""

    def __init__(self, output: Tensor, root: Deferred, calls: CallGraph, takers: dict[Tensor, int]) -> None:
        self._leaves = list(calls.leaves)
        self.takers = takers
        self.key = (
            "backward", tuple(calls.rows), calls.numbers[root.call], root.index, tuple(takers.values()),
            calls.lines(), user_line(),
        )  # fmt: skip

    def gradients(self) -> list[tuple[Tensor, Tensor]] | None:
        """Return the leaves with their gradients, where such a pass was remembered."""
        found = _TEMPLATES.get(self.key)
        if found is None:
            return None
        _cache(self.key, found)
        made, places = found
        takers = list(self.takers)
        results = deferred_results(PendingCall(made, self._leaves, user_line()))
        return [(takers[k], result) for k, result in zip(places, results, strict=True)]

    def remember(self, targets: Sequence[Tensor], found: Sequence[Node | None]) -> None:
        """Remember the gradients of some leaves."""
        if len(targets) != len(self.takers) or any(t not in self.takers for t in targets):
            return
        order = {t: k for k, t in enumerate(self.takers)}
        pairs = [(order[t], node) for t, node in zip(targets, found, strict=True) if node is not None]
        inputs = {leaf: graph_input("", leaf.aval) for leaf in self._leaves}
        roots = substitute([node for _, node in pairs], inputs)
        made = template_of([*inputs.values()], roots, [STOPPED] * len(roots), list, lines=True)
        if made is not None and pairs:
            _cache(self.key, (made, [k for k, _ in pairs]))


def backward_of(output: Tensor) -> CachedBackward | None:
    """Return the backward pass of an output that is deferred; None where the calls do not say what takes a
    gradient.
    """
    root = output._ir
    if root.__class__ is not Deferred or output.numel() != 1:
        return None
    assert isinstance(root, Deferred)
    calls = CallGraph([root])
    if any(node.op.__class__ is not Input for node in calls.leaves):  # it has a history of its own
        return None
    takers: dict[Tensor, int] = {}
    for handle in list(LEAVES.values()):
        leaf = handle()
        if leaf is None or not leaf._leaf or leaf._trace is not None:
            continue
        if any(node in calls.leaves for node in earlier_nodes(leaf)):
            return None
        ir = leaf._ir  # which this thread does not change: the leaf may be another's
        node = ir.known if isinstance(ir, DeferredLeaf) else ir
        number = calls.leaves.get(node)  # type: ignore[arg-type]
        if number is not None:
            takers[cast(Tensor, leaf)] = number
    for handle in list(LIVE.values()):
        tensor = handle()
        if tensor is not None and tensor._retains:
            return None
    return CachedBackward(output, root, calls, takers)


# -- steps of optimizers -------------------------------------------------------------------------------------
class CachedUpdate:
    """The template of a function that writes cells: which of the given tensors it reads, which it writes."""

    def __init__(self, made: CallTemplate, reads: list[int], writes: list[int]) -> None:
        self._made, self._reads, self._writes = made, reads, writes

    def apply(self, cells: Sequence[Tensor]) -> None:
        """Give the cells that are written their new values."""
        operands = [lazy_value_of(cells[k])[0] for k in self._reads]
        call = PendingCall(self._made, operands, user_line())
        for index, k in enumerate(self._writes):
            cell = cells[k]
            rebind(cell, Deferred(call, index), STOPPED if cell.type.dtype.is_inexact else CONSTANT)


def cached_update(function: Callable[[], None], about: Any, cells: Iterable[Tensor]) -> None:
    """Call a function that changes no more than some cells, and depends on no more than these and on `about`;
    a call like one before builds no op.
    """
    mode = MODE.__dict__
    given = list(cells)
    if about is None or any(mode[name] is not None for name in ("trace", "eager", "autocast")):
        function()
        return
    ids = list(map(id, given))
    if len(set(ids)) < len(ids) or any(t._track == TRACKED and not t._leaf for t in given):
        function()
        return
    key = "update", about, tuple([(t.type, t._leaf) for t in given])
    found = _TEMPLATES.get(key)
    if found is None:
        _cache(key, False)  # calls that came once pay for no more
    elif found is False:
        with LOCK:
            found = _trace_update(function, given) or _NEVER
        _cache(key, found)
    if isinstance(found, CachedUpdate):
        _cache(key, found)
        found.apply(given)
    else:
        function()


def _trace_update(function: Callable[[], None], given: Sequence[Tensor]) -> CachedUpdate | None:
    """Return what a function does to cells; None where that is not all it does."""
    trace = Trace("update")
    number = {id(t): k for k, t in enumerate(given)}
    try:
        with tracing(trace), unscoped():
            function()
    except Exception:
        return None  # the call itself says what is wrong
    finally:
        trace.closed = True
    cells = list(trace.cells.values())
    if any(id(cell.tensor) not in number for cell in cells) or trace.recapture or trace.tokens:
        return None
    if trace.grads or trace.num_leaves or trace.differentiated:
        return None
    written = [cell for cell in cells if cell.written]
    roots = [cell.node.inputs[0] if cell.leaf else cell.node for cell in written]  # a leaf stops gradients
    made = template_of([cell.placeholder for cell in cells], roots, [STOPPED] * len(roots), list)
    if made is None or not written:
        return None
    return CachedUpdate(made, [number[id(c.tensor)] for c in cells], [number[id(c.tensor)] for c in written])
