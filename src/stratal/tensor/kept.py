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

from stratal.base.dtypes import DType
from stratal.base.source import unscoped, user_line
from stratal.graph.node import Input, Node
from stratal.tensor import programs
from stratal.tensor.alive import enlist
from stratal.tensor.build import changes
from stratal.tensor.companions import trivial
from stratal.tensor.handles import CONSTANT, STOPPED, TRACKED, blank, look
from stratal.tensor.promises import Call, Promise, Result, Row, Template
from stratal.tensor.state import LOCK, MODE, tracing
from stratal.tensor.tensor import Tensor
from stratal.tensor.trace import Trace

Key = tuple[Any, ...]
_CAPACITY: Final = 256  # templates, each with its programs
_MOST_KEYS: Final = 4096
_ACTS: Final = frozenset({"backward"})  # what they are called for is no result
_VALUES: Final = frozenset({bool, str, bytes, type(None), type, DType, type(Ellipsis)})

_TEMPLATES: dict[Key, Template] = {}
_VARYING: set[Key] = set()  # kinds of calls, without their numbers, that came with others at one place
_SEEN: dict[Key, bool] = {}  # calls that came once (True), and those that cannot be kept (False)


@functools.cache
def kept(function: Any) -> Any:
    """Let a function keep the graphs of its calls; one that writes to its argument is left as it is."""
    if not inspect.isfunction(function) or function.__name__.endswith("_") or function.__name__ in _ACTS:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if MODE.trace is not None or MODE.eager is not None or MODE.autocast is not None:
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
        template.used = True
        return _promised(template, tensors)

    return call


def _promised(template: Template, tensors: Sequence[Tensor]) -> Any:
    """Return the results of a template over some tensors."""
    operands = []
    stopped = CONSTANT
    for tensor in tensors:
        node, track = look(tensor)
        operands.append(node)
        if track == STOPPED:
            stopped = STOPPED
    call = Call(template, operands, user_line())
    results = []
    for k, (node, _, track) in enumerate(template.results):
        made = blank(Tensor.__new__(Tensor), node.type)  # type: ignore[arg-type]
        made._held = Promise(call, k)
        made._track = track or (stopped if made.type.dtype.is_inexact else CONSTANT)
        enlist(made)
        results.append(made)
    return template.container(results)


# -- which calls are alike -----------------------------------------------------------------------------------
def _key(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
) -> Key | None:
    """Return what calls with equal graphs have in common, None where it is not known; collect the tensors."""
    parts = _parts(args, tensors)
    if parts is None:
        return None
    named = _parts(kwargs.values(), tensors) if kwargs else ()
    if named is None or not tensors:
        return None
    key: Key = (function, MODE.grad, parts)
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
            if value._trace is not None:
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
    if bare != key and changes(key, bare):
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


def _let_vary(bare: Key) -> None:
    """Keep no call of a kind whose numbers change at one place: as inputs they are compiled once."""
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
    if {TRACKED, STOPPED} <= {t._track for t in tensors}:  # some operands need a stop of their own
        return None
    trace = Trace(getattr(function, "__name__", "call"))
    operands = [trace.enter(t).placeholder for t in tensors]
    known = len(trace.cells)
    try:
        with tracing(trace), unscoped():
            result = function(*args, **kwargs)
    except Exception:
        return None  # the call itself says what is wrong
    finally:
        trace.closed = True
    found = _results(result, trace)
    if found is None or len(trace.cells) > known or any(c.written for c in trace.cells.values()):
        return None
    if trace.grads or trace.grads_read or trace.tokens or trace.num_leaves or trace.differentiated:
        return None
    own = {id(t) for t in found.results}
    if any((t := made()) is not None and id(t) not in own for made in trace.created):
        return None
    return _template(operands, found)


def _results(result: Any, trace: Trace) -> _Found | None:
    """Return the tensors a call returned and what holds them; None for anything else."""
    if type(result) in (tuple, list):
        parts, container = list(result), type(result)
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        parts, container = list(result), type(result)._make
    else:
        parts, container = [result], _only
    fine = all(type(t) is Tensor and t._trace is trace and not (t._leaf or t._retains) for t in parts)
    return _Found(parts, container) if fine and parts else None


def _only(results: list[Tensor]) -> Tensor:
    return results[0]


def _template(operands: Sequence[Node], found: _Found) -> Template | None:
    """Return the template of some results; None where they need other leaves, or no computing."""
    roots = [_node_in(t) for t in found.results]
    order, leaves = programs.walk(roots, lambda node: isinstance(node.op, Input))
    if not set(leaves) <= set(operands) or any(node.op.effects for node in order):
        return None
    numbers = {node: k for k, node in reversed(list(enumerate(operands)))}
    inner = [node for node in order if node not in numbers]
    constants = [node for node in inner if not node.inputs]
    made = [node for node in inner if node.inputs]
    numbers |= {node: k for k, node in enumerate([*constants, *made], len(operands))}
    rows = [
        Row(n.op, tuple([numbers[i] for i in n.inputs]), n.type, n.where[0].scope if n.where else ())
        for n in made
    ]
    if any(numbers[root] < len(operands) or trivial(root) for root in roots) or len(set(roots)) < len(roots):
        return None
    results = [Result(n, numbers[n], t._track) for n, t in zip(roots, found.results, strict=True)]
    return Template(operands, constants, rows, results, found.container)


def _node_in(tensor: Tensor) -> Node:
    assert tensor._node is not None
    return tensor._node
