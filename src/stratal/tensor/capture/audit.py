"""Audits: now and then a replay is preceded by capturing anew, and what was captured then is compared.

Guards compare what a function is known to read. An audit finds what they miss, on the machine where it
happens: the call gets the right result, a warning names the difference, and the new capture takes over.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.source import user_line
from stratal.graph.graph import Graph
from stratal.graph.node import Input, Node
from stratal.tensor.capture import replay
from stratal.tensor.capture.containers import contents_of
from stratal.tensor.capture.plain import same
from stratal.tensor.capture.results import Argument, Copied, Made, Output, PriorTensor, Value
from stratal.tensor.scalars import Formula, FromFloat, FromNumber
from stratal.tensor.tensor import Tensor

_FIRST = 17  # calls 2, 3, 5, 9 and 17 are audited whatever it costs
_SHARE = 0.02  # of the time since the last audit that one may take after that


class AuditWarning(UserWarning):
    """A capture that did not fit any more, which no guard noticed."""


class Schedule:
    """Which calls of a function are audited."""

    def __init__(self) -> None:
        self.calls = 0  # the first is the capture
        self.next = 2  # the call to be considered
        self.audits = 0
        self._cost_s = self._ended_s = 0.0

    def due(self) -> bool:
        """Return whether this call, which was to be considered, is audited."""
        self.next = 2 * self.calls - 1
        if self.calls <= _FIRST or self._cost_s <= _SHARE * (time.perf_counter() - self._ended_s):
            return True
        self.next = self.calls + max(1, self.calls // 8)  # soon: the time it may take is still being saved up
        return False

    def done(self, seconds: float) -> None:
        """Note what an audit took."""
        self.audits += 1
        self._cost_s, self._ended_s = seconds, time.perf_counter()


def difference(old: replay.Entry, new: replay.Entry) -> str | None:
    """Return what differs between two captures of one call, or None."""
    if old.graph.digest != new.graph.digest:
        return _graphs(old.graph, new.graph)
    if len(old.reads) != len(new.reads):
        return "the number of inputs"
    for k, (a, b) in enumerate(zip(old.reads, new.reads, strict=True)):
        if not _equal_reads(a, b):
            return f"where input {old.graph.inputs[k].op!s} is read"
    if old.written != new.written or old.tracks != new.tracks or old.lazily is not new.lazily:
        return "which tensors are written"
    if not _each(_equal_reads, _owners(old), _owners(new)):
        return "which tensors get gradients"
    if len(old.prelude) != len(new.prelude):
        return "which schedules are stepped"
    memo: dict[int, int] = {}
    if not _equal(old.result, new.result, memo):
        return "what the function returns"
    return None if _equal(old.effects, new.effects, memo) else "what the function writes of Python's state"


def _owners(entry: replay.Entry) -> list[Any]:
    pairs = *entry.grads, *entry.grad_links, *entry.grad_shares, *entry.grads_before
    return [x for pair in pairs for x in pair]


def _each(equal: Callable[..., bool], a: Sequence[Any], b: Sequence[Any], *more: Any) -> bool:
    """Return whether two sequences have equal items, one by one."""
    return len(a) == len(b) and all(equal(x, y, *more) for x, y in zip(a, b, strict=True))


def _equal_reads(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, replay.Frozen):
        x, y = a.storage_, b.storage_
        return bool(x.type == y.type and np.array_equal(x.array, y.array, equal_nan=False))
    if isinstance(a, replay.FromHandle):
        return a.handle is b.handle
    if isinstance(a, FromNumber):
        return a.dtype is b.dtype and _equal_reads(a.read, b.read)
    if isinstance(a, Formula):
        return a.op is b.op and _each(_equal_reads, a.parts, b.parts)
    if isinstance(a, (replay.FromLocation, FromFloat)) and a.location is not None and b.location is not None:
        return a.location.holder is b.location.holder and bool(a.location.key == b.location.key)
    if isinstance(a, replay.FromArray):
        locations = [(r.array.ctypes.data, r.array.strides, r.type) for r in (a, b)]
        return locations[0] == locations[1]  # a slice is another object in each run
    if isinstance(a, replay.FromGrad):
        return _equal_reads(a.owner, b.owner)
    if isinstance(a, replay.FromPart):
        return bool(a.position == b.position)
    return bool(a == b) or same(a, b)


def _equal(a: Any, b: Any, memo: dict[int, int]) -> bool:
    """Return whether templates, or effects, of two captures are alike; objects from outside are the same."""
    if id(a) in memo:
        return memo[id(a)] == id(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, Value):
        return _equal_values(a.value, b.value)
    if isinstance(a, Output):
        same_output = (a.number, a.track) == (b.number, b.track)
        return same_output and (a.shown is b.shown or _equal(a.shown, b.shown, memo))
    if isinstance(a, Argument):
        return bool(a.path == b.path)
    if isinstance(a, PriorTensor):
        if a.gradient is not None and b.gradient is not None:
            return _equal_reads(a.gradient, b.gradient)
        return _equal_values(a.location, b.location) if a.location and b.location else a.tensor is b.tensor
    if isinstance(a, (Copied, Made, list, dict)):  # which one it is counts
        memo[id(a)] = id(b)
    if isinstance(a, Copied):
        return _equal_values(a.array, b.array)
    if isinstance(a, Made):
        parts = [(x.parts, x.contents, x.fields) for x in (a, b)]
        return _equal_classes(a.kind, b.kind) and _each(_equal, *parts, memo)
    if isinstance(a, (tuple, list)):  # an effect, a list of calls in one
        return _each(_equal, a, b, memo)
    if isinstance(a, dict):
        return list(a) == list(b) and _each(_equal, [*a.values()], [*b.values()], memo)
    return _equal_values(a, b)


def _equal_values(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if hasattr(a, "holder") and hasattr(a, "key"):  # a place
        return a.holder is b.holder and _equal_values(a.key, b.key)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return same(contents_of(a), contents_of(b))
    try:
        return type(a) is type(b) and (bool(a == b) or repr(a) == repr(b) or not _comparable(a))
    except Exception:
        return True  # objects made anew by each run cannot be told apart


def _equal_classes(a: type, b: type) -> bool:
    """Return whether classes are one, or made alike by two runs."""
    if a is b or (a.__module__, a.__qualname__) != (b.__module__, b.__qualname__):
        return a is b
    return list(vars(a)) == list(vars(b)) and a.__bases__ == b.__bases__


def _comparable(value: Any) -> bool:
    return any("__eq__" in vars(k) for k in type(value).__mro__[:-1])


def _graphs(old: Graph, new: Graph) -> str:
    """Return the first op in which two graphs differ, with its line."""
    for a, b, was, now in zip(_rows(old), _rows(new), old.nodes, new.nodes, strict=False):
        if a != b:
            where = _first_use(now, new).where or was.where
            line = f" at {where[0]}" if where else ""
            return f"{_shown(was)} is now {_shown(now)}{line}"
    return f"{len(old.nodes)} ops are now {len(new.nodes)}"


def _rows(graph: Graph) -> list[tuple[str, list[int]]]:
    """Return the op of each node and the numbers of its operands."""
    number = {node: k for k, node in enumerate(graph.nodes)}
    ops = [f"input {n.type}" if isinstance(n.op, Input) else str(n.op) for n in graph.nodes]
    return [(op, [number[i] for i in n.inputs]) for op, n in zip(ops, graph.nodes, strict=True)]


def _first_use(node: Node, graph: Graph) -> Node:
    """Return the first node that combines a node with inputs: constants are shared, and have many lines."""
    made_of, varying = {node}, set(graph.inputs)
    for user in graph.nodes:
        if not varying.isdisjoint(user.inputs):
            if not made_of.isdisjoint(user.inputs):
                return user
            varying.add(user)
        elif not made_of.isdisjoint(user.inputs):
            made_of.add(user)
    return node


def _shown(node: Node) -> str:
    text = f"{node.op.name} {node.type}" if isinstance(node.op, Input) else f"{node.op}"
    return text if len(text) <= 60 else text[:57] + "..."


def warn(name: str, what: str) -> None:
    """Warn of a capture that no guard told to be out of date."""
    warnings.warn(
        f"{name}: a value that no guard watches has changed since it was captured: {what}\n"
        f"  where: {user_line()}\n"
        f"  hint:  it is captured anew; pass what changes as an argument",
        AuditWarning,
        stacklevel=4,
    )
