"""Arguments of another kind than a function takes: looked for when a call fails, others pay nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

from stratal.base.errors import DTypeError, ShapeError, StratalError
from stratal.tensor.tensor import Tensor


class Kind(NamedTuple):
    """What an annotation asks for, in words and as types."""

    words: str
    types: tuple[type, ...]


KINDS = {
    "Tensor": Kind("a tensor", (Tensor,)),
    "float": Kind("a number", (Real,)),
    "int": Kind("an int", (int,)),
    "str": Kind("a string", (str,)),
    "bool": Kind("a bool", (bool, int)),
    "Sizes": Kind("an int, or one per axis", (int, list, tuple)),
    "Sequence[int]": Kind("a sequence of ints", (list, tuple)),
    "None": Kind("None", (type(None),)),
}


def explained(function: Any) -> Any:
    """Let a function say which of its arguments is of another kind than it takes, where it fails for that."""
    if not inspect.isfunction(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except StratalError:
            raise
        except (TypeError, AttributeError, ValueError, IndexError, OverflowError, MemoryError) as error:
            misfit = _misfit(function, args, kwargs)
            if misfit is None and (isinstance(error, MemoryError) or "array is too big" in str(error)):
                rule = f"{function.__name__}: the sizes asked for do not fit into memory"
                misfit = ShapeError(rule, got=str(error))
            if misfit is None:
                raise
            raise misfit from error

    return call


def _misfit(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> StratalError | None:
    """Return an error about the first argument that does not fit its annotation, None where all do."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too many or too few: Python's own words are clear
        return None
    for name, value in given.items():
        kinds = [KINDS.get(part) for part in str(signature.parameters[name].annotation).split(" | ")]
        known = [kind for kind in kinds if kind is not None]
        if len(known) == len(kinds) and not any(isinstance(value, kind.types) for kind in known):
            words = " or ".join(kind.words for kind in known)
            return DTypeError(f"{function.__name__}: {name!r} is {words}", got=_shown(value))
    return None


def _shown(value: Any) -> str:
    text = str(value.type) if isinstance(value, Tensor) else repr(value)
    return f"{type(value).__name__} {text[:60]}"
