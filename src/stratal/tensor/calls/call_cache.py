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
from collections.abc import Callable, Sequence
from typing import Any, Final

from stratal.base.interrupts import SIGNALS, deferring, takes_functions
from stratal.base.session import SESSION
from stratal.base.source import user_line
from stratal.tensor.build import changes
from stratal.tensor.calls.call_key import Key, floats_in, key_of, without_numbers
from stratal.tensor.calls.call_trace import TracedCall, trace_call, trace_with_floats
from stratal.tensor.calls.direct import are_ready, by_program
from stratal.tensor.calls.moves import MOVES
from stratal.tensor.functions.random import generator_state
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import node_values
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.binding import lazy_value_of, rebind
from stratal.tensor.values.deferred import CallTemplate, Deferred, PendingCall
from stratal.tensor.values.handle import CONSTANT, TRACKED, initialize
from stratal.tensor.values.live import register_live
from stratal.tensor.values.memory import layouts_of
from stratal.tensor.values.state import LOCK, MODE
from stratal.tensor.values.views import relate

_CAPACITY: Final = 4096  # templates, each with its programs
_MOST_KEYS: Final = 1 << 14
_MOST_VARIANTS: Final = 64
_ACTS: Final = frozenset({"backward"})  # what they are called for is no result

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
            if (
                mode["trace"] is not None or mode["eager"] is not None or mode["autocast"] is not None
                or mode["divisors"] is not None
            ):  # fmt: skip
                return function(*args, **kwargs)
            at_once = HERE.at_once is not False and mode["step"] is None
            if moved is not None and at_once and not kwargs:
                found = moved(*args)
                if found is not None:
                    return found
            tensors: list[Tensor] = []
            key = key_of(function, mode["grad"], mode["part"], args, kwargs, tensors)
            if key is None or len(tensors) < least:
                return _call_uncached(function, args, kwargs, False)
            if shaping and not any(t._track == TRACKED for t in tensors):
                HERE.backlog.note_sizes((function, user_line()), [t.type.shape for t in tensors])
            template = _TEMPLATES.get(key)
            if template is None:
                template = _template_for(key, TracedCall(function, args, kwargs, tensors))
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
            floats = list(floats_in((args, kwargs))) if template.numbers else ()
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


def _template_for(key: Key, call: TracedCall) -> Any:
    """Return the template of a call that came before; None for the first of its kind, and where there can be
    none.
    """
    before = _SEEN.get(key)
    if before is False:  # such a call pays for no more than this
        return None
    bare = without_numbers(key)
    if bare != key and not _takes_indices(call.function):
        if changes(key, bare, depth=2):
            return _numbered(key, bare, call)
    elif bare != key and before is None:
        _note_variant(bare)
    elif bare != key and _VARIANTS.get(bare, 0) > _MOST_VARIANTS:
        _stop_caching(bare)
        return None
    if before is None:
        _note_seen(key)
        return None
    return _traced(key, call)


def _traced(key: Key, call: TracedCall) -> CallTemplate | None:
    """Trace a call and cache its template."""
    with LOCK:
        template = trace_call(call)
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


def _numbered(key: Key, bare: Key, call: TracedCall) -> CallTemplate | None:
    """Return the template of a call whose numbers change at its place in the code: as inputs they are
    compiled once. Where Python looks at a float, some of its values are cached, each with its own template.
    """
    kind = without_numbers(key, (float,))
    if kind not in _NUMBERED:
        with LOCK:
            if len(_NUMBERED) >= _CAPACITY:
                _NUMBERED.clear()
            _NUMBERED[kind] = trace_with_floats(call)
    template = _NUMBERED.get(kind)
    if template is not None or not call.floats():
        return template
    if key not in _SEEN:
        _note_variant(bare)
        _note_seen(key)
        return None
    return _traced(key, call) if _VARIANTS.get(bare, 0) <= _MOST_VARIANTS else None


def _stop_caching(bare: Key) -> None:
    """Cache no call of a kind any more."""
    with LOCK:
        for key in [key for key in _TEMPLATES if without_numbers(key) == bare]:
            del _TEMPLATES[key]


def _evict() -> None:
    """Evict the templates that were not used since the last eviction; the oldest where all were."""
    found = list(_TEMPLATES)
    idle = [key for key in found if not _TEMPLATES[key].used] or found[: _CAPACITY // 4]
    for key in idle:
        del _TEMPLATES[key]
    for template in _TEMPLATES.values():
        template.used = False
