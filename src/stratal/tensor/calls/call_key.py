"""The key of a call: what calls with equal graphs have in common, and their floats, which may vary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from stratal.base.dtypes import DType, as_dtype
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.handle import CONSUMED
from stratal.tensor.values.state import Part

Key = tuple[Any, ...]
_MOST_TENSORS: Final = 128  # operands of one call; `stack` and `concat` join more of them otherwise
_JOINS: Final = frozenset({"concat", "stack"})
_VALUES: Final = frozenset({bool, str, bytes, type(None), type, DType, type(Ellipsis)})
_NESTED: Final = frozenset({tuple, list})


def key_of(
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


def floats_in(given: Iterable[Any]) -> Iterator[float]:
    """Yield the floats of arguments, in the order of `_parts`."""
    for value in given:
        kind = value.__class__
        if kind is float:
            yield value
        elif kind in _NESTED:
            yield from floats_in(value)
        elif kind is dict:
            yield from floats_in(value.values())


def with_floats(given: Any, floats: Iterator[Any]) -> Any:
    """Return arguments with other things in place of their floats."""
    kind = given.__class__
    if kind is float:
        return next(floats)
    if kind in _NESTED:
        return kind([with_floats(value, floats) for value in given])
    if kind is dict:
        return {name: with_floats(value, floats) for name, value in given.items()}
    return given


def without_numbers(parts: Key, kinds: tuple[type, ...] = (int, float)) -> Key:
    """Return a key without the values of its numbers, those of some kinds."""
    return tuple([_bare_part(part, kinds) if part.__class__ is tuple else part for part in parts])


def _bare_part(part: Key, kinds: tuple[type, ...]) -> Any:
    return part[0] if part and part[0] in kinds else without_numbers(part, kinds)
