"""Signatures: what of a call's arguments decides which capture fits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import as_dtype
from stratal.base.errors import DTypeError
from stratal.base.types import TensorType
from stratal.tensor.capture import refusals
from stratal.tensor.capture.plain import plain, same
from stratal.tensor.capture.recording import Given
from stratal.tensor.lazy import program_cache
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.handle import CONSUMED, TRACKED
from stratal.tensor.values.state import MODE

Signature = tuple[Any, ...]  # structure, what else is known of containers, modes, a part for each leaf
_HISTORIES = (TRACKED, CONSUMED)
_HASHED = frozenset({bool, int, str, bytes, type(None)})
_LEAVES = (Tensor, np.ndarray, bool, int, float, str)


def signature_of(given: Given, varying: Any) -> Signature:
    """Return what decides which capture fits; arrays among the leaves become tensors.

    `varying` are the positions of floats that are inputs of the program.
    """
    leaves, structure = given.leaves, given.structure
    parts: list[Any] = []
    first: dict[int, int] = {}
    for k, x in enumerate(leaves):
        if isinstance(x, np.ndarray) and _of_numbers(x.dtype):
            x = leaves[k] = tensor(x)
        if isinstance(x, Tensor):
            parts.append((x.type, x._leaf, x._track in _HISTORIES and x._track, first.setdefault(id(x), k)))
        elif type(x) is float and k in varying:
            parts.append(float)
        elif type(x) in _HASHED:
            parts.append((type(x), x))
        else:
            parts.append((type(x), ByValue(x) if plain(x) else ByIdentity(x)))
    layout = None if _is_flat(structure) and not given.kwargs else _layout((given.args, given.kwargs))
    modes = (MODE.grad, MODE.autocast, as_dtype(float), program_cache.choices(), MODE.part)
    return (structure, (bool(given.kwargs), layout), modes, tuple(parts))


@functools.cache
def _of_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a dtype can be tensors; others, of objects or records, are objects."""
    try:
        as_dtype(dtype)
    except DTypeError:
        return False
    return True


class ByIdentity:
    """An object in a signature: it is itself, and alive as long as the signature is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __repr__(self) -> str:
        return f"a {type(self.value).__name__}"


class ByValue(ByIdentity):
    """Plain data in a signature: zeros differ by their sign."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((type(self.value), str(self.value)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and same(self.value, other.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _is_flat(structure: tree.Structure) -> bool:
    return all(child.kind is None for child in structure.children)


def _layout(given: Any) -> Any:
    """Return the order of dicts in the arguments, and which containers are one and the same."""
    first: dict[int, int] = {}
    found: list[Any] = []
    stack = [given]
    while stack:
        value = stack.pop()
        opened = None if value is None else tree.opened(value)
        if opened is not None:
            keys = tuple(value) if type(value) is dict else None
            found.append((first.setdefault(id(value), len(first)), keys))
            stack += opened[2]
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _flat(count: int) -> tree.Structure:
    return tree.flatten((0,) * count)[1]


def take_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tree.Structure]:
    """Take arguments apart; in one step where they are tensors, arrays and numbers only."""
    if not kwargs:
        for x in args:  # a loop: a generator would take longer than what it yields
            if not isinstance(x, _LEAVES):
                break
        else:
            return list(args), _flat(len(args))
    try:
        return tree.flatten((args, kwargs) if kwargs else args)
    except RecursionError:
        if not tree.holds_itself((args, kwargs)):
            raise
        raise refusals.HOLDS_ITSELF() from None


def sized_types(key: Any) -> dict[int, TensorType]:
    """Return the types of arguments whose sizes may be symbols: data, which takes no gradient."""
    return {
        k: part[0]
        for k, part in enumerate(key[3])
        if isinstance(part, tuple) and isinstance(part[0], TensorType) and part[0].ndim and not any(part[1:3])
    }


def with_types(key: Any, types: dict[int, TensorType]) -> Any:
    """Return a signature with other types of some arguments."""
    if not types:
        return key
    parts = tuple((types[k], *part[1:]) if k in types else part for k, part in enumerate(key[3]))
    return (*key[:3], parts)


def without_sizes(part: Any) -> Any:
    """Return what stays of an argument's part of a signature when sizes do not count."""
    if not isinstance(part, tuple) or not isinstance(part[0], TensorType) or any(part[1:3]):
        return part
    return (part[0].dtype, part[0].ndim, *part[1:])


def changed_part(old: Any, new: Any) -> str:
    """Return how an argument's part of a signature differs from another one."""
    was, now = shown_part(old), shown_part(new)
    if was != now:
        return f"changed from {was} to {now}"
    changes = ("now takes a gradient", "no longer takes a gradient"), ("carries another history",) * 2
    if not isinstance(old[0], TensorType) or not isinstance(new[0], TensorType):
        return f"is another {now}"
    for k, (gained, lost) in enumerate(changes, start=1):
        if old[k] != new[k]:
            return gained if new[k] else lost
    return "is now, or no longer, one tensor with another argument"


def shown_part(part: Any) -> str:
    if isinstance(part, tuple) and part and isinstance(part[0], TensorType):
        return str(part[0])
    return repr(part[1]) if isinstance(part, tuple) else "float"


def was_float(part: Any) -> bool:
    return part is float or (isinstance(part, tuple) and part[0] is float)
