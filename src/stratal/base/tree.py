"""Trees: nested containers of values, taken apart into leaves and a structure, and put together again.

    Tree := leaf | None | (Tree, ...) | [Tree, ...] | namedtuple | {key: Tree} | registered class
    Structure := kind, keys, children                             immutable, hashable, compared by value

None has no leaves. The leaves of a dict come in the order of its sorted keys: equal dicts flatten alike.
`unflatten` gives the keys back in the order they were inserted in.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, final

from stratal.base.errors import StratalError

Key = str | int
Flatten = Callable[[Any], tuple[Sequence[Any], Hashable]]
Unflatten = Callable[[Hashable, Sequence[Any]], Any]


class TreeError(StratalError, ValueError):
    """Two trees of different structure where one structure is needed."""


class _Kind(NamedTuple):
    flatten: Flatten
    unflatten: Unflatten


@final
class Structure:
    """The shape of a tree without its leaves."""

    __slots__ = ("_hash", "children", "keys", "kind", "num_leaves", "order")

    def __init__(
        self,
        kind: type | None,
        keys: Hashable = (),
        children: tuple[Structure, ...] = (),
        order: tuple[Any, ...] = (),
    ) -> None:
        self.kind: Final = kind  # None marks a leaf
        self.keys: Final = keys
        self.children: Final = children
        self.order: Final = order  # dict keys as inserted; no part of what the structure is
        self.num_leaves: Final[int] = 1 if kind is None else sum(c.num_leaves for c in children)
        self._hash: Final = hash((kind, keys, children))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure)
            and self._hash == other._hash
            and self.kind is other.kind
            and self.keys == other.keys
            and self.children == other.children
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        if self.kind is type(None):
            return "None"
        parts = [str(c) for c in self.children]
        if self.kind is dict:
            assert isinstance(self.keys, tuple)
            return "{" + ", ".join(f"{k!r}: {p}" for k, p in zip(self.keys, parts, strict=True)) + "}"
        if self.kind is tuple:
            return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
        if self.kind is list:
            return "[" + ", ".join(parts) + "]"
        return f"{self.kind.__name__}({', '.join(parts)})"

    __repr__ = __str__


LEAF: Final = Structure(None)
_NONE: Final = Structure(type(None))
_KINDS: dict[type, _Kind] = {}


def register(cls: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Teach trees a container class: `flatten(x) -> (children, keys)`, `unflatten(keys, children) -> x`."""
    _KINDS[cls] = _Kind(flatten, unflatten)


def _open(tree: Any) -> tuple[type, Hashable, Sequence[Any], tuple[Any, ...]] | None:
    """Return (kind, keys, children, insertion order) of a container; None for a leaf."""
    kind = type(tree)
    if kind in _KINDS:
        children, keys = _KINDS[kind].flatten(tree)
        return kind, keys, children, ()
    if kind is dict:
        ordered = sorted(tree, key=lambda k: (type(k).__qualname__, k))  # however they were inserted
        return dict, tuple(ordered), [tree[k] for k in ordered], tuple(tree)
    if kind in (list, tuple):
        return kind, len(tree), tree, ()
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind, kind._fields, tree, ()
    return None


def opened(tree: Any) -> tuple[type, Any, Sequence[Any]] | None:
    """Return the kind, keys and children of a container, in the order of leaves; None for a leaf."""
    found = _open(tree)
    return None if found is None else found[:3]


def holds_itself(tree: Any) -> bool:
    """Return whether a container is found within itself, however deep."""
    around: set[int] = set()
    done: dict[int, Any] = {}
    stack = [(tree, False)]
    while stack:
        node, left = stack.pop()
        if left:
            around.remove(id(node))
            done[id(node)] = node
        elif id(node) in around:
            return True
        elif id(node) not in done and (found := opened(node)) is not None:
            around.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in found[2]]
    return False


def closed(like: Any, keys: Any, children: Sequence[Any]) -> Any:
    """Return a container like another one, with other children in the order of leaves."""
    return _closed(type(like), keys, children, like)


def _closed(kind: type, keys: Any, children: Sequence[Any], order: Any) -> Any:
    if kind in _KINDS:
        return _KINDS[kind].unflatten(keys, children)
    if kind is dict:
        values = dict(zip(keys, children, strict=True))
        return {k: values[k] for k in order}
    return kind(children) if kind in (list, tuple) else kind(*children)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree and its structure. Containers for which `is_leaf` holds are not opened."""
    leaves: list[Any] = []
    return leaves, _flatten_into(leaves, tree, is_leaf)


def _flatten_into(leaves: list[Any], node: Any, is_leaf: Callable[[Any], bool] | None) -> Structure:
    """Append the leaves of a tree and return its structure.

    No function inside `flatten`: one that calls itself keeps the leaves alive until the collector comes.
    """
    if is_leaf is not None and is_leaf(node):
        leaves.append(node)
        return LEAF
    if node is None:
        return _NONE
    opened = _open(node)
    if opened is None:
        leaves.append(node)
        return LEAF
    kind, keys, children, order = opened
    return Structure(kind, keys, tuple([_flatten_into(leaves, c, is_leaf) for c in children]), order)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the tree of a structure with other leaves. Raises: TreeError when their number differs."""
    given = list(leaves)
    if len(given) != structure.num_leaves:
        raise TreeError(
            f"tree: the structure has {structure.num_leaves} leaves", got=f"{len(given)} for {structure}"
        )
    return _build(structure, iter(given))


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = structure.kind
    if kind is None:
        return next(leaves)
    if kind is type(None):
        return None
    children = [_build(c, leaves) for c in structure.children]
    return _closed(kind, structure.keys, children, structure.order)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return the tree of `function(leaf, ...)` over trees of one structure. Raises: TreeError."""
    if len(rest) > 1 and type(tree) is tuple and set(builtins.map(type, rest)) == {tuple}:
        flat = _columns((tree, *rest))
        if flat is not None:
            return tuple([function(*column) for column in flat])
    leaves, structure = flatten(tree)
    columns = [leaves]
    for other in rest:
        more, found = flatten(other)
        if found != structure:
            raise TreeError("tree: map takes trees of one structure", got=f"{structure} and {found}")
        columns.append(more)
    return unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
    """Return the columns of tuples of leaves alone, all of one length; None for other trees."""
    if len(set(builtins.map(len, rows))) > 1:
        return None
    kinds = {kind: part for row in rows for kind, part in zip(builtins.map(type, row), row, strict=True)}
    if any(part is None or _open(part) is not None for part in kinds.values()):
        return None
    return list(zip(*rows, strict=True))


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree."""
    return flatten(tree)[0]


def paths(tree: Any) -> list[tuple[tuple[Key, ...], Any]]:
    """Return each leaf with the keys that lead to it: dict keys, field names, positions."""
    found: list[tuple[tuple[Key, ...], Any]] = []
    _paths_into(found, tree, ())
    return found


def _paths_into(found: list[tuple[tuple[Key, ...], Any]], node: Any, path: tuple[Key, ...]) -> None:
    opened = None if node is None else _open(node)
    if opened is None:
        if node is not None:
            found.append((path, node))
        return
    _, keys, children, _ = opened
    named = keys if isinstance(keys, tuple) and len(keys) == len(children) else range(len(children))
    for key, child in zip(named, children, strict=True):
        _paths_into(found, child, (*path, key))


def path_name(path: Iterable[Key]) -> str:
    """Return a path as text: `layers.0.weight`."""
    return ".".join(str(k) for k in path)
