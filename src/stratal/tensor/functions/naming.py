"""Two vocabularies for one function: the array API's `axis, keepdims` and PyTorch's `dim, keepdim, input`.

Functions are written in the first; those that users call take both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError

F = TypeVar("F", bound=Callable[..., Any])
Words = dict[str, str]

_WORDS = (
    ("dim", "axis"),
    ("dim", "axes"),
    ("dims", "axis"),
    ("dims", "axes"),
    ("keepdim", "keepdims"),
    ("size", "shape"),
    ("input", "x"),
    ("other", "y"),
    ("tensors", "arrays"),
    ("in_dims", "in_axes"),
    ("out_dims", "out_axes"),
)


def words_of(function: Callable[..., Any]) -> Words:
    """Return PyTorch's keyword names for the array API's that a function has; none if it takes any name."""
    code = inspect.unwrap(function).__code__
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return {}
    own = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return {theirs: ours for theirs, ours in _WORDS if ours in own and theirs not in own}


def in_words(name: str, words: Words, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments under the function's own names. Raises: AttributeValueError."""
    if kwargs.keys().isdisjoint(words):
        return kwargs
    found = {}
    for word, value in kwargs.items():
        ours = words.get(word, word)
        if ours is not word and ours in kwargs:
            raise AttributeValueError(f"{name}: {word!r} and {ours!r} are the same argument")
        found[ours] = value
    return found


def named(function: F, name: str, doc: str) -> F:
    """Give a function made by another the name it is offered under, and its docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
