"""What is known of a node's value: its finished storage, that it waits for another node, or that it is gone.

Tables are keyed by node identity and forget a node when it dies. The storage of a leaf thus lives as long as
any unfinished value still needs it.
"""

from __future__ import annotations

import weakref
from typing import Any

from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.node import Node, graph_input
from stratal.runtime.storage import Storage


class _Known(weakref.ref[Node]):
    """A weak reference to a node together with what is known of it."""

    __slots__ = ("fact", "key")
    fact: Any
    key: int


_STORAGE: dict[int, _Known] = {}
_PENDING: dict[int, _Known] = {}
_GONE: dict[int, _Known] = {}
_USES: dict[int, int] = {}  # how many live nodes each storage is the value of, by id of the storage


def _forget_storage(known: _Known) -> None:
    if _STORAGE.get(known.key) is known:
        _drop(known.key)


def _drop(key: int) -> None:
    known = _STORAGE.pop(key, None)
    if known is not None:
        storage = id(known.fact)
        _USES[storage] -= 1
        if not _USES[storage]:
            del _USES[storage]


def _forget_pending(known: _Known) -> None:
    _PENDING.pop(known.key, None)


def _forget_gone(known: _Known) -> None:
    _GONE.pop(known.key, None)


def finish(node: Node, storage: Storage) -> None:
    """Record the storage that holds a node's value."""
    known = _Known(node, _forget_storage)
    known.fact, known.key = storage, id(node)
    _drop(id(node))
    _STORAGE[id(node)] = known
    _USES[id(storage)] = _USES.get(id(storage), 0) + 1
    _PENDING.pop(id(node), None)


def finished(node: Node) -> Storage | None:
    """Return the storage of a node whose value has been computed."""
    known = _STORAGE.get(id(node))
    return None if known is None else known.fact


def leaf(storage: Storage, label: str = "") -> Node:
    """Return a new input node that stands for a finished storage."""
    node = graph_input(label, storage.type)
    finish(node, storage)
    return node


def pending_leaf(value: Node, label: str = "") -> Node:
    """Return a new input node that will hold the value of another node: derivatives end at it."""
    node = graph_input(label, value.aval, value.where)
    known = _Known(node, _forget_pending)
    known.fact, known.key = value, id(node)
    _PENDING[id(node)] = known
    return node


def pending(node: Node) -> Node | None:
    """Return the node whose value an input waits for."""
    known = _PENDING.get(id(node))
    return None if known is None else known.fact


def placeholder(label: str, type_: TensorType, owner: str, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return an input that has no value while a function is being captured; `owner` names the function."""
    node = graph_input(label, type_, where)
    known = _Known(node, _forget_gone)
    known.fact, known.key = f"trace {owner}", id(node)
    _GONE[id(node)] = known
    return node


def give_away(node: Node, why: str) -> None:
    """Record that the storage of a leaf now holds another value."""
    known = _Known(node, _forget_gone)
    known.fact, known.key = why, id(node)
    _GONE[id(node)] = known
    _drop(id(node))


def uses(storage: Storage) -> int:
    """Return how many live nodes have this storage as their value."""
    return _USES.get(id(storage), 0)


def gone(node: Node) -> str | None:
    """Return why a leaf has no value: given away, or a placeholder of a trace."""
    known = _GONE.get(id(node))
    return None if known is None else known.fact
