"""What is known of a node's value: its finished storage, that it waits for another node, or that it is gone.

Tables are keyed by node identity and forget a node when it dies. The storage of a leaf thus lives as long as
any unfinished value still needs it.
"""

from __future__ import annotations

import weakref
from typing import Any

from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.base.weak import note
from stratal.graph.node import Node, graph_input
from stratal.runtime.storage import Storage


class _Known(weakref.ref[Node]):
    """A weak reference to a node together with what is known of it."""

    __slots__ = ("fact",)
    fact: Any


_STORAGE: dict[int, _Known] = {}
_PENDING: dict[int, _Known] = {}
_GONE: dict[int, _Known] = {}
_HOLDERS: dict[int, list[int]] = {}  # nodes that each storage was made the value of, by id; some may be dead


def _living(storage: int) -> list[int]:
    return [n for n in _HOLDERS.get(storage, ()) if (k := _STORAGE.get(n)) and id(k.fact) == storage]


def finish(node: Node, storage: Storage) -> None:
    """Record the storage that holds a node's value."""
    storage.disturb()
    note(_STORAGE, node, _Known).fact = storage
    holders = _HOLDERS[id(storage)] = _living(id(storage))
    if id(node) not in holders:
        holders.append(id(node))
    _PENDING.pop(id(node), None)
    if len(_HOLDERS) > 2 * len(_STORAGE) + 1024:
        for key in [k for k in _HOLDERS if not _living(k)]:
            del _HOLDERS[key]


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
    note(_PENDING, node, _Known).fact = value
    return node


def pending(node: Node) -> Node | None:
    """Return the node whose value an input waits for."""
    known = _PENDING.get(id(node))
    return None if known is None else known.fact


def placeholder(label: str, type_: TensorType, owner: str, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return an input that has no value while a function is being captured; `owner` names the function."""
    node = graph_input(label, type_, where)
    note(_GONE, node, _Known).fact = f"trace {owner}"
    return node


def give_away(node: Node, why: str) -> None:
    """Record that the storage of a leaf now holds another value."""
    note(_GONE, node, _Known).fact = why
    _STORAGE.pop(id(node), None)


def uses(storage: Storage) -> int:
    """Return how many live nodes have this storage as their value."""
    return len(_living(id(storage)))


def gone(node: Node) -> str | None:
    """Return why a leaf has no value: given away, or a placeholder of a trace."""
    known = _GONE.get(id(node))
    return None if known is None else known.fact
