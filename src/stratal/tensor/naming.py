"""Two vocabularies for one function: the array API's `axis, keepdims` and PyTorch's `dim, keepdim, input`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError

F = TypeVar("F", bound=Callable[..., Any])

_WORDS = (
    ("dim", "axis"),
    ("dim", "axes"),
    ("dims", "axis"),
    ("keepdim", "keepdims"),
    ("size", "shape"),
    ("input", "x"),
    ("other", "y"),
    ("tensors", "arrays"),
    ("in_dims", "in_axes"),
    ("out_dims", "out_axes"),
)


def two_names(function: F) -> F:
    """Let a function take PyTorch's keyword names for the array API's."""
    code = function.__code__
    own = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    words = {theirs: ours for theirs, ours in _WORDS if ours in own and theirs not in own}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for theirs in kwargs.keys() & words.keys():
                ours = words[theirs]
                if ours in kwargs:
                    raise AttributeValueError(
                        f"{function.__name__}: {theirs!r} and {ours!r} are the same argument"
                    )
                kwargs[ours] = kwargs.pop(theirs)
        return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]
