"""What is known of a node's value: its finished storage, that it waits for another node, or that it is gone.

Tables are keyed by node identity and forget a node when it dies. The storage of a leaf thus lives as long as
any unfinished value still needs it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final

from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.base.weak import Note, note
from stratal.graph.node import Node, graph_input
from stratal.runtime.storage import Storage

# Held while a value gets the node it goes by, so that threads find the same one: briefly, and never while
# anything runs.
NAMING: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=NAMING._at_fork_reinit)  # type: ignore[attr-defined]

_STORAGE: dict[int, Note[Node]] = {}  # with the handle it is the value of, if it was that of one
_PENDING: dict[int, Note[Node]] = {}
_GONE: dict[int, Note[Node]] = {}


def _living(storage: Storage) -> list[int]:
    """Return the nodes that have a storage as their value, by id."""
    nodes = list(storage.nodes or ())
    return [n for n in nodes if (known := _STORAGE.get(n)) is not None and known.fact[0] is storage]


def finish(node: Node, storage: Storage, holder: object = None) -> None:
    """Record the storage that holds a node's value, and which handle has both."""
    storage.invalidate()
    if storage.nodes is None:
        with NAMING:
            storage.nodes = storage.nodes or {}
    note(storage.nodes, node)  # first: whoever may write to a storage must know of all who read it
    note(_STORAGE, node, (storage, None if holder is None else weakref.ref(holder)))
    _PENDING.pop(id(node), None)


def finished(node: Node) -> Storage | None:
    """Return the storage of a node whose value has been computed."""
    known = _STORAGE.get(id(node))
    return None if known is None else known.fact[0]


def holder(node: Node) -> Any:
    """Return the handle that a finished node and its storage came from, while it lives."""
    known = _STORAGE.get(id(node))
    found = None if known is None else known.fact[1]
    return None if found is None else found()


def leaf(storage: Storage, label: str = "", holder: object = None) -> Node:
    """Return a new input node that stands for what a finished storage holds now."""
    if storage.exported:
        storage = storage.copied()
    node = graph_input(label, storage.type)
    finish(node, storage, holder)
    return node


def pending_leaf(value: Node, label: str = "") -> Node:
    """Return a new input node that will hold the value of another node: derivatives end at it."""
    node = graph_input(label, value.aval, value.where)
    note(_PENDING, node, value)
    return node


def pending(node: Node) -> Node | None:
    """Return the node whose value an input waits for."""
    known = _PENDING.get(id(node))
    return None if known is None else known.fact


def placeholder(label: str, type_: TensorType, owner: str, where: tuple[SourceLine, ...] = ()) -> Node:
    """Return an input that has no value while a function is being captured; `owner` names the function."""
    node = graph_input(label, type_, where)
    note(_GONE, node, f"trace {owner}")
    return node


def mark_overwritten(node: Node, why: str) -> None:
    """Record that the storage of a leaf now holds another value."""
    note(_GONE, node, why)
    _STORAGE.pop(id(node), None)


def nodes_of(storage: Storage) -> list[Node]:
    """Return the live nodes that have this storage as their value."""
    known = [_STORAGE.get(n) for n in _living(storage)]
    return [node for entry in known if entry is not None and (node := entry()) is not None]


def uses(storage: Storage) -> int:
    """Return how many live nodes have this storage as their value."""
    return 0 if storage.nodes is None else len(_living(storage))


def why_missing(node: Node) -> str | None:
    """Return why a leaf has no value: given away, or a placeholder of a trace."""
    known = _GONE.get(id(node))
    return None if known is None else known.fact
