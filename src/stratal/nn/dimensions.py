"""Spatial axes: sizes for all or for each, and names for layers and functions of one, two and three."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Union

from stratal.base.errors import AttributeValueError

Sizes = Union[int, Sequence[int]]


def per_axis(what: str, value: Sizes, count: int, least: int | None = 1) -> tuple[int, ...]:
    """Return one size per axis.

    Raises: AttributeValueError for another count, for what is no int, or a size below `least`, where given.
    """
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(sizes) == 1 and count > 1:
        sizes = sizes * count
    whole = all(isinstance(s, int) and (least is None or s >= least) for s in sizes)
    if len(sizes) != count or not whole:
        bound = "" if least is None else f" of at least {least}"
        raise AttributeValueError(f"{what} must be an int{bound}, or {count} of them", got=str(value))
    return sizes


Layer = TypeVar("Layer")

# What texts say of so many spatial axes: {layout}, {sizes} and so on.
_WORDS: dict[int, dict[str, Any]] = {
    1: {"axes": "one spatial axis", "last": "the last axis", "sizes": "L", "results": "L'", "kernel": "K"},
    2: {
        "axes": "two spatial axes", "last": "the last two axes", "sizes": "H, W", "results": "H', W'",
        "kernel": "KH, KW",
    },
    3: {
        "axes": "three spatial axes", "last": "the last three axes", "sizes": "D, H, W",
        "results": "D', H', W'", "kernel": "KD, KH, KW",
    },
}  # fmt: skip


def layers(
    base: type[Layer], name: str, text: str, dims: Iterable[int] = (1, 2, 3), **fields: Any
) -> list[type[Layer]]:
    """Return subclasses of a layer whose `dims` says how many spatial axes it takes: `<name>1d` and so on.

    `fields` are further attributes of these classes.
    """
    shared = {"__module__": base.__module__, **fields}
    return [type(f"{name}{n}d", (base,), {"dims": n, "__doc__": _filled(text, n), **shared}) for n in dims]


def functions(function: Callable[..., Any], text: str, dims: Iterable[int] = (1, 2, 3)) -> list[Any]:
    """Return a function of `dims` and other arguments for each number of spatial axes."""
    return [_fixed(function, text, n) for n in dims]


def _fixed(function: Callable[..., Any], text: str, n: int) -> Callable[..., Any]:
    def fixed(*args: Any, **kwargs: Any) -> Any:
        return function(n, *args, **kwargs)

    whole = inspect.signature(function)
    fixed.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])  # type: ignore[attr-defined]
    fixed.__name__ = fixed.__qualname__ = f"{function.__name__}{n}d"
    fixed.__module__, fixed.__doc__ = function.__module__, _filled(text, n)
    return fixed


def _filled(text: str, n: int) -> str:
    return text.format(n=n, layout=f"[N, C, {_WORDS[n]['sizes']}]", **_WORDS[n])
