"""Public calls keep the graphs they build: a call of the same function with the same types and Python values
makes none of its ops again.

Its results are promises over a template (`promises`), recorded when the same call comes a second time. The
recording is a trace, as `compile` makes one: a call that reads or writes anything but its arguments, or asks
for a value, is not kept, and runs as it always did.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.dtypes import DType, as_dtype
from stratal.base.interrupts import InterruptsHeld
from stratal.base.session import SESSION
from stratal.base.source import unscoped, user_line
from stratal.graph.node import Node
from stratal.tensor.build import changes
from stratal.tensor.functions.random import generator_state
from stratal.tensor.lazy.companions import trivial
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.alive import enlist
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED, USED_UP, initialize
from stratal.tensor.values.handles import held_of, rebind
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.promises import Call, Promise, Template, template_of
from stratal.tensor.values.state import LOCK, MODE, tracing
from stratal.tensor.values.trace import Cell, Trace
from stratal.tensor.values.views import relate, relation_of

Key = tuple[Any, ...]
_CAPACITY: Final = 4096  # templates, each with its programs
_MOST_KEYS: Final = 1 << 14
_MOST_VARIANTS: Final = 64
_MOST_TENSORS: Final = 128  # operands of one call; `stack` and `concat` join more of them otherwise
_ACTS: Final = frozenset({"backward"})  # what they are called for is no result
_VALUES: Final = frozenset({bool, str, bytes, type(None), type, DType, type(Ellipsis)})

_TEMPLATES = SESSION.cache(dict[Key, Template]())
_VARYING = SESSION.cache(set[Key]())  # kinds of calls, without their numbers, that come with others
_VARIANTS = SESSION.cache(dict[Key, int]())  # how many sizes or indices came with calls of a kind
_SEEN = SESSION.cache(dict[Key, bool]())  # calls that came once (True), and those that cannot be kept (False)


@functools.cache
def kept(function: Any) -> Any:
    """Let a function keep the graphs of its calls; one that writes to its argument is left as it is."""
    if not inspect.isfunction(function) or function.__name__.endswith("_") or function.__name__ in _ACTS:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        mode = MODE.__dict__
        if mode["trace"] is not None or mode["eager"] is not None or mode["autocast"] is not None:
            return function(*args, **kwargs)
        tensors: list[Tensor] = []
        key = _key(function, args, kwargs, tensors)
        if key is None:
            return function(*args, **kwargs)
        template = _TEMPLATES.get(key)
        if template is None:
            template = _second(key, function, args, kwargs, tensors)
            if template is None:
                return function(*args, **kwargs)
        if template.layouts is not None and template.layouts != layouts_of(tensors):
            return function(*args, **kwargs)
        template.used = True
        if template.draws:  # its key and the one after it are one step of all threads
            with LOCK:
                return _promised(template, tensors)
        return _promised(template, tensors)

    return call


def _promised(template: Template, tensors: Sequence[Tensor]) -> Any:
    """Return the results of a template over some tensors."""
    operands = []
    stopped = CONSTANT
    for tensor in tensors:
        held, track = held_of(tensor)
        operands.append(held)
        if track == STOPPED:
            stopped = STOPPED
    state = generator_state() if template.draws else None
    if state is not None:
        operands.append(held_of(state)[0])
    call = Call(template, operands, user_line())
    results = promise(call, stopped)
    for made, relation in zip(results, template.views):  # noqa: B905 (there may be none)
        if relation is not None:
            relate(made, relation, tensors)
    if state is not None:
        rebind(state, Promise(call, len(results)), CONSTANT)
    return template.container(results)


def promise(call: Call, stopped: int) -> list[Tensor]:
    """Return tensors that hold the results of a call; `stopped` is what those that take no gradient are."""
    template = call.template
    results = []
    for k, (node, _, track) in enumerate(template.shown):
        type_ = node.aval
        track = track or (stopped if type_.dtype.is_inexact else CONSTANT)
        made = initialize(Tensor.__new__(Tensor), type_, Promise(call, k), track)
        enlist(made)
        results.append(made)
    HERE.backlog.note_result(results[0], len(template.rows), (template.rows[-1].op.name, call.line))
    return results


# -- which calls are alike -----------------------------------------------------------------------------------
def _key(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
) -> Key | None:
    """Return what calls with equal graphs have in common, None where it is not known; collect the tensors."""
    parts = _parts(args, tensors)
    if parts is None:
        return None
    named = _parts(kwargs.values(), tensors) if kwargs else ()
    if named is None or not 0 < len(tensors) < _MOST_TENSORS:
        return None
    key: Key = (function, MODE.grad, as_dtype(float), parts)
    if kwargs:
        key += (tuple(kwargs), named)
    if len(tensors) > 1:
        ids = [id(t) for t in tensors]
        if len(set(ids)) < len(ids):
            key += (tuple([ids.index(i) for i in ids]),)
    return key


def _parts(values: Iterable[Any], tensors: list[Tensor]) -> Key | None:
    parts: list[Any] = []
    for value in values:
        kind = value.__class__
        if kind is Tensor or issubclass(kind, Tensor):
            if value._trace is not None or value._track == USED_UP:
                return None
            tensors.append(value)
            parts.append(value.type)
            parts.append(value._track)
        elif kind in _VALUES:
            parts.append(kind)
            parts.append(value)
        elif kind is int:
            parts.append((kind, value))
        elif kind is float:
            parts.append((kind, value.hex()))  # 0.0 and -0.0 are equal
        elif kind is tuple or kind is list or kind is slice:
            inner = _parts((value.start, value.stop, value.step) if kind is slice else value, tensors)
            if inner is None:
                return None
            parts += (kind, inner)
        else:
            return None
    return tuple(parts)


def _bare(parts: Key) -> Key:
    """Return a key without the values of its numbers."""
    return tuple([_bare_part(part) if part.__class__ is tuple else part for part in parts])


def _bare_part(part: Key) -> Any:
    return part[0] if part and part[0] in (int, float) else _bare(part)


# -- recording -----------------------------------------------------------------------------------------------
def _second(
    key: Key,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
) -> Template | None:
    """Return the template of a call that came before; None for the first of its kind, and where there can be
    none.
    """
    before = _SEEN.get(key)
    if before is False:  # such a call pays for no more than this
        return None
    bare = _bare(key)
    if bare in _VARYING:
        return None
    if bare != key and _varies(key, bare, before is None):
        _let_vary(bare)
        return None
    if before is None:
        if len(_SEEN) >= _MOST_KEYS:
            _SEEN.clear()
        _SEEN[key] = True
        return None
    with LOCK:
        template = _recorded(function, args, kwargs, tensors)
        if template is None:
            _SEEN[key] = False
            return None
        _SEEN.pop(key, None)
        if len(_TEMPLATES) >= _CAPACITY:
            _make_room()
        _TEMPLATES[key] = template
    return template


def _varies(key: Key, bare: Key, new: bool) -> bool:
    """Return whether the numbers of a call change at its place in the code: as inputs they are compiled once.
    Sizes and indices are no inputs; of those it takes more than a few.
    """
    if not key[0].__module__.endswith((".shapes", ".indexing")):
        return changes(key, bare, depth=3)
    if new:
        if len(_VARIANTS) >= _MOST_KEYS:
            _VARIANTS.clear()
        _VARIANTS[bare] = _VARIANTS.get(bare, 0) + 1
    return _VARIANTS.get(bare, 0) > _MOST_VARIANTS


def _let_vary(bare: Key) -> None:
    """Keep no call of a kind any more."""
    with LOCK:
        if len(_VARYING) >= _MOST_KEYS:
            _VARYING.clear()
        _VARYING.add(bare)
        for key in [key for key in _TEMPLATES if _bare(key) == bare]:
            del _TEMPLATES[key]


def _make_room() -> None:
    """Drop the templates nobody used since the last time, and the oldest where all were."""
    found = list(_TEMPLATES)
    idle = [key for key in found if not _TEMPLATES[key].used] or found[: _CAPACITY // 4]
    for key in idle:
        del _TEMPLATES[key]
    for template in _TEMPLATES.values():
        template.used = False


class _Found(NamedTuple):
    results: list[Tensor]
    container: Callable[[list[Tensor]], Any]


def _recorded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> Template | None:
    """Return the graph of a call on placeholders; None where it is not all there is to the call."""
    if MODE.grad and {TRACKED, STOPPED} <= {t._track for t in tensors}:  # some need a stop of their own
        return None
    trace = Trace(getattr(function, "__name__", "call"))
    operands = [trace.enter(t).placeholder for t in tensors]
    state = generator_state()
    drawn = None if state is None or any(t is state for t in tensors) else trace.enter(state)
    with InterruptsHeld():
        try:
            with tracing(trace), unscoped():
                result = function(*args, **kwargs)
        except Exception:
            return None  # the call itself says what is wrong
        finally:
            trace.closed = True
    found = _results(result, trace)
    entered = {*map(id, tensors), id(state)}
    if found is None or not entered >= trace.cells.keys():
        return None
    if any(cell.written and cell is not drawn for cell in trace.cells.values()):
        return None
    if trace.grads or trace.grads_read or trace.tokens or trace.num_leaves or trace.differentiated:
        return None
    if trace.asks_values:
        return None
    own = {id(t) for t in found.results}
    if any((t := made()) is not None and id(t) not in own for made in trace.created):
        return None
    if not all(t._view is None or t._view.repeats for t in found.results):
        return None
    made = _template(operands, found, drawn if drawn is not None and drawn.written else None)
    if made is not None:
        views = [relation_of(t, tensors) for t in found.results]
        made.views = views if any(views) else []
        memories = [t._view.memory for t in found.results if t._view is not None]
        asks = trace.asks_layouts or any(id(memory) in trace.regrouped for memory in memories)
        made.layouts = layouts_of(tensors) if asks else None
    return made


def _results(result: Any, trace: Trace) -> _Found | None:
    """Return the tensors a call returned and what holds them; None for anything else."""
    kind: type[Any] = type(result)
    container: Callable[[list[Tensor]], Any] = _only
    parts = [result]
    if kind in (tuple, list):
        parts, container = list(result), kind
    elif hasattr(kind, "_fields") and isinstance(result, tuple):
        parts, container = list(result), kind._make
    fine = all(type(t) is Tensor and t._trace is trace and not (t._leaf or t._retains) for t in parts)
    return _Found(parts, container) if fine and parts else None


def _only(results: list[Tensor]) -> Tensor:
    return results[0]


def _template(operands: Sequence[Node], found: _Found, drawn: Cell | None) -> Template | None:
    """Return the template of some results, and of the state of the generator that was `drawn` from; None
    where they need other leaves, or no computing.
    """
    roots, tracks = [_node_in(t) for t in found.results], [t._track for t in found.results]
    if any(root in operands or trivial(root) for root in roots) or len(set(roots)) < len(roots):
        return None
    if drawn is None:
        return template_of(operands, roots, tracks, found.container)
    with_state = [*operands, drawn.placeholder]
    return template_of(with_state, [*roots, drawn.node], [*tracks, CONSTANT], found.container, draws=True)


def _node_in(tensor: Tensor) -> Node:
    assert tensor._node is not None
    return tensor._node
