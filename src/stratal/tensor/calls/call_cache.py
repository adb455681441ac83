"""The call cache: a public call with the key of an earlier one builds none of its ops again.

The key is the function, the modes, the types and Python values of its arguments. Its results are deferred
values over a template (`values/deferred`), traced when the same call comes a second time, as `compile`
does. A call that reads or writes anything but its arguments, or reads a value, is not cached. Floats that
change from call to call at one source line are operands of a template; slices at changing indices are copied
at once.
"""

from __future__ import annotations

import functools
import inspect
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.dtypes import DType, as_dtype
from stratal.base.interrupts import SIGNALS, deferring, takes_functions
from stratal.base.session import SESSION
from stratal.base.source import unscoped, user_line
from stratal.graph.node import Node
from stratal.tensor.build import changes
from stratal.tensor.calls.direct import are_ready, by_numpy, by_program
from stratal.tensor.calls.moves import MOVES
from stratal.tensor.functions.random import generator_state
from stratal.tensor.lazy.work_set import is_constant
from stratal.tensor.scalars import FromFloat, RuntimeScalar
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import node_values
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.binding import lazy_value_of, rebind
from stratal.tensor.values.deferred import CallTemplate, Deferred, PendingCall, template_of
from stratal.tensor.values.handle import CONSTANT, CONSUMED, STOPPED, TRACKED, initialize
from stratal.tensor.values.live import register_live
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.state import LOCK, MODE, Part, tracing
from stratal.tensor.values.trace import Cell, Trace
from stratal.tensor.values.views import relate, relation_of

Key = tuple[Any, ...]
_CAPACITY: Final = 4096  # templates, each with its programs
_MOST_KEYS: Final = 1 << 14
_MOST_VARIANTS: Final = 64
_MOST_TENSORS: Final = 128  # operands of one call; `stack` and `concat` join more of them otherwise
_ACTS: Final = frozenset({"backward"})  # what they are called for is no result
_JOINS: Final = frozenset({"concat", "stack"})
_VALUES: Final = frozenset({bool, str, bytes, type(None), type, DType, type(Ellipsis)})
_NESTED: Final = frozenset({tuple, list})

_TEMPLATES = SESSION.cache(dict[Key, CallTemplate]())
_NUMBERED = SESSION.cache(dict[Key, CallTemplate | None]())  # of kinds of calls, with floats as operands
_VARIANTS = SESSION.cache(dict[Key, int]())  # how many numbers came with calls of a kind
_SEEN = SESSION.cache(dict[Key, bool]())  # keys that came once (True), that cannot be cached (False)


@functools.cache
def cached_call(function: Any) -> Any:
    """Decorate a public function so that its calls are cached; one that writes to its argument is not."""
    if not inspect.isfunction(function):
        return function
    if function.__name__.endswith("_") or function.__name__ in _ACTS:
        return deferring(function)
    creates = function.__module__.endswith(".creation") or function.__name__ == "tensor"
    if creates or function.__annotations__.get("return") in ("bool", "int"):  # no graph to cache
        return deferring(function)

    shaping, defers = _takes_indices(function), not takes_functions(function)
    least = 0 if function.__module__.endswith(".random") else 1  # tensors; draws stand on a generator's state
    moved = MOVES.get(function.__name__) if shaping else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        in_main = defers and get_ident() == SIGNALS.thread
        if in_main:  # as `with DEFERRED`, at a third of its cost
            SIGNALS.depth += 1
        try:
            mode = MODE.__dict__
            if mode["trace"] is not None or mode["eager"] is not None or mode["autocast"] is not None:
                return function(*args, **kwargs)
            at_once = HERE.at_once is not False and mode["step"] is None
            if moved is not None and at_once and not kwargs:
                found = moved(*args)
                if found is not None:
                    return found
            tensors: list[Tensor] = []
            key = _key(function, mode["grad"], mode["part"], args, kwargs, tensors)
            if key is None or len(tensors) < least:
                return _call_uncached(function, args, kwargs, False)
            if shaping and not any(t._track == TRACKED for t in tensors):
                HERE.backlog.note_sizes((function, user_line()), [t.type.shape for t in tensors])
            template = _TEMPLATES.get(key)
            if template is None:
                template = _template_for(key, function, args, kwargs, tensors)
                if template is None:
                    return _call_uncached(function, args, kwargs, at_once and are_ready(tensors))
            if template.layouts is not None and template.layouts != layouts_of(tensors):
                return _call_uncached(function, args, kwargs, at_once and are_ready(tensors))
            template.used = True
            direct = template.direct
            if direct is None and template.program is not None:
                direct, template.program = by_program(template, *template.program), None
                template.direct = direct
            if direct is not None and at_once and defers:
                found = direct(tensors)
                if found is not None:
                    return found
            floats = list(_floats((args, kwargs))) if template.numbers else ()
            if template.draws:  # its key and the one after it are one step of all threads
                with LOCK:
                    return _deferred_call(template, tensors, floats)
            return _deferred_call(template, tensors, floats)
        finally:
            if in_main:
                SIGNALS.depth -= 1
                if SIGNALS.pending and SIGNALS.depth == SIGNALS.open:
                    SIGNALS.deliver()

    call.defers = True  # type: ignore[attr-defined]
    return call


def _call_uncached(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], at_once: bool
) -> Any:
    """Return what a function gives; the calls inside are computed at once only if this one may be."""
    if HERE.at_once is not None:
        return function(*args, **kwargs)
    try:
        HERE.at_once = at_once
        return function(*args, **kwargs)
    finally:
        HERE.at_once = None


def _deferred_call(template: CallTemplate, tensors: Sequence[Tensor], floats: Sequence[float]) -> Any:
    """Return the results of a template over some tensors and floats."""
    operands: list[Any] = [lazy_value_of(tensor)[0] for tensor in tensors]
    for number in template.numbers:
        operands.append(node_values.leaf(number.storage(floats)))
    state = generator_state() if template.draws else None
    if state is not None:
        operands.append(lazy_value_of(state)[0])
    call = PendingCall(template, operands, user_line())
    results = deferred_results(call)
    for made, relation in zip(results, template.views):  # noqa: B905 (there may be none)
        if relation is not None:
            relate(made, relation, tensors)
    if state is not None:
        rebind(state, Deferred(call, len(results)), CONSTANT)
    return template.container(results)


def deferred_results(call: PendingCall) -> list[Tensor]:
    """Return tensors that hold the results of a call."""
    results = []
    for k, (node, _, track) in enumerate(call.template.shown):
        made = initialize(Tensor.__new__(Tensor), node.aval, Deferred(call, k), track)
        register_live(made)
        results.append(made)
    template = call.template
    HERE.backlog.note_result(results[0], len(template.rows), (template.rows[-1].op.name, call.line))
    return results


# -- which calls are alike -----------------------------------------------------------------------------------
def _key(
    function: Callable[..., Any], grad: bool, part: Part | None, args: tuple[Any, ...],
    kwargs: dict[str, Any], tensors: list[Tensor],
) -> Key | None:  # fmt: skip
    """Return what calls with equal graphs have in common, None where it is not known; collect the tensors."""
    parts: list[Any] = [function, grad, part, as_dtype(float)]
    if not _collect(args, parts, tensors):
        return None
    if kwargs:
        parts.append(tuple(kwargs))
        if not _collect(kwargs.values(), parts, tensors):
            return None
    count = len(tensors)
    if count >= _MOST_TENSORS:
        return None
    if count > 1 and (tensors[0] is tensors[1] or count > 2):
        ids = list(map(id, tensors))
        if len(set(ids)) < count:
            if function.__name__ in _JOINS:  # each pattern would be another graph
                return None
            parts.append(tuple([ids.index(i) for i in ids]))
    return tuple(parts)


def _collect(given: Iterable[Any], parts: list[Any], tensors: list[Tensor]) -> bool:
    """Add what a key says of some arguments to its parts; return whether that is known of all."""
    for value in given:
        kind = value.__class__
        if kind is Tensor or issubclass(kind, Tensor):
            if value._trace is not None or value._track == CONSUMED:
                return False
            tensors.append(value)
            type_ = value.type
            parts += (type_.shape, type_.dtype, value._track)  # types hash and compare in Python
        elif kind in _VALUES:
            parts += (kind, value)
        elif kind is int:
            parts.append((kind, value))
        elif kind is float:
            parts.append((kind, value.hex()))  # 0.0 and -0.0 are equal
        elif kind is tuple or kind is list or kind is slice:
            inner: list[Any] = []
            sequence = (value.start, value.stop, value.step) if kind is slice else value
            if not _collect(sequence, inner, tensors):
                return False
            parts += (kind, tuple(inner))
        else:
            return False
    return True


def _floats(given: Iterable[Any]) -> Iterator[float]:
    """Yield the floats of arguments, in the order of `_parts`."""
    for value in given:
        kind = value.__class__
        if kind is float:
            yield value
        elif kind in _NESTED:
            yield from _floats(value)
        elif kind is dict:
            yield from _floats(value.values())


def _with_floats(given: Any, floats: Iterator[Any]) -> Any:
    """Return arguments with other things in place of their floats."""
    kind = given.__class__
    if kind is float:
        return next(floats)
    if kind in _NESTED:
        return kind([_with_floats(value, floats) for value in given])
    if kind is dict:
        return {name: _with_floats(value, floats) for name, value in given.items()}
    return given


def _without_numbers(parts: Key, kinds: tuple[type, ...] = (int, float)) -> Key:
    """Return a key without the values of its numbers, those of some kinds."""
    return tuple([_bare_part(part, kinds) if part.__class__ is tuple else part for part in parts])


def _bare_part(part: Key, kinds: tuple[type, ...]) -> Any:
    return part[0] if part and part[0] in kinds else _without_numbers(part, kinds)


# -- recording -----------------------------------------------------------------------------------------------
def _template_for(
    key: Key,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
) -> Any:
    """Return the template of a call that came before; None for the first of its kind, and where there can be
    none.
    """
    before = _SEEN.get(key)
    if before is False:  # such a call pays for no more than this
        return None
    bare = _without_numbers(key)
    if bare != key and not _takes_indices(function):
        if changes(key, bare, depth=2):
            return _numbered(key, bare, function, args, kwargs, tensors)
    elif bare != key and before is None:
        _note_variant(bare)
    elif bare != key and _VARIANTS.get(bare, 0) > _MOST_VARIANTS:
        _stop_caching(bare)
        return None
    if before is None:
        _note_seen(key)
        return None
    return _traced(key, function, args, kwargs, tensors)


def _traced(
    key: Key,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
) -> CallTemplate | None:
    """Trace a call and cache its template."""
    with LOCK:
        template = _trace_call(function, args, kwargs, tensors)
        if template is None:
            _SEEN[key] = False
            return None
        _SEEN.pop(key, None)
        if len(_TEMPLATES) >= _CAPACITY:
            _evict()
        _TEMPLATES[key] = template
    return template


def _takes_indices(function: Callable[..., Any]) -> bool:
    """Return whether the numbers a function is given are sizes or indices: those are inputs of no program."""
    return function.__module__.endswith((".shapes", ".indexing"))


def _note_seen(key: Key) -> None:
    if len(_SEEN) >= _MOST_KEYS:
        _SEEN.clear()
    _SEEN[key] = True


def _note_variant(bare: Key) -> None:
    if len(_VARIANTS) >= _MOST_KEYS:
        _VARIANTS.clear()
    _VARIANTS[bare] = _VARIANTS.get(bare, 0) + 1


def _numbered(
    key: Key,
    bare: Key,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
) -> CallTemplate | None:
    """Return the template of a call whose numbers change at its place in the code: as inputs they are
    compiled once. Where Python looks at a float, some of its values are cached, each with its own template.
    """
    kind = _without_numbers(key, (float,))
    if kind not in _NUMBERED:
        with LOCK:
            if len(_NUMBERED) >= _CAPACITY:
                _NUMBERED.clear()
            _NUMBERED[kind] = _trace_with_floats(function, args, kwargs, tensors)
    template = _NUMBERED.get(kind)
    if template is not None or next(_floats((args, kwargs)), None) is None:
        return template
    if key not in _SEEN:
        _note_variant(bare)
        _note_seen(key)
        return None
    return _traced(key, function, args, kwargs, tensors) if _VARIANTS.get(bare, 0) <= _MOST_VARIANTS else None


def _trace_with_floats(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
) -> CallTemplate | None:
    """Return a template that has the floats of a call as operands, if it gives what the call gives."""
    floats = list(_floats((args, kwargs)))
    plain = _trace_call(function, args, kwargs, tensors) if floats else None
    if plain is None:
        return None
    found = _trace_call(function, args, kwargs, tensors, floats)
    return found if found is not None and found.gives_like(plain) else None


def _stop_caching(bare: Key) -> None:
    """Cache no call of a kind any more."""
    with LOCK:
        for key in [key for key in _TEMPLATES if _without_numbers(key) == bare]:
            del _TEMPLATES[key]


def _evict() -> None:
    """Evict the templates that were not used since the last eviction; the oldest where all were."""
    found = list(_TEMPLATES)
    idle = [key for key in found if not _TEMPLATES[key].used] or found[: _CAPACITY // 4]
    for key in idle:
        del _TEMPLATES[key]
    for template in _TEMPLATES.values():
        template.used = False


class _Found(NamedTuple):
    results: list[Tensor]
    container: Callable[[list[Tensor]], Any]


def _trace_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    floats: Sequence[float] = (),
) -> CallTemplate | None:
    """Return the graph of a call on placeholders, also of its `floats`; None where it is not all there is to
    the call.
    """
    trace = Trace(getattr(function, "__name__", "call"))
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
                args, kwargs = _with_floats((args, kwargs), varying)
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
