"""An algorithm: the tensors that results are computed from, each with a name; its text is Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stratal.base.errors import AttributeValueError
from stratal.loops.expr import unlike
from stratal.loops.te.tensor import Computed, Placeholder, Tensor
from stratal.loops.te.term import Axis, Number, term_to_text


class Algorithm:
    """Tensors computed from placeholders: what is computed, with no word on how. Each tensor has a name.

    Names that are not given are letters in the order of making: A, B, C, ...
    """

    def __init__(self, *results: Computed) -> None:
        if not results or not all(isinstance(r, Computed) for r in results):
            raise AttributeValueError("te: an algorithm is made of computed tensors", got=repr(results))
        self.results: Final = tuple(dict.fromkeys(results))
        self.tensors: Final = _ordered(self.results)
        self.names: Final = _named(self.tensors)

    @property
    def placeholders(self) -> list[Placeholder]:
        return [t for t in self.tensors if isinstance(t, Placeholder)]

    @property
    def stages(self) -> list[Computed]:
        """Computed tensors, each after those it reads."""
        return [t for t in self.tensors if isinstance(t, Computed)]

    def __str__(self) -> str:
        return algorithm_to_text(self)

    __repr__ = __str__


def _ordered(results: Iterable[Computed]) -> list[Tensor]:
    """Return all tensors the results need, in the order of their making: what is read was made before."""
    found: set[Tensor] = set()
    stack: list[Tensor] = list(results)
    while stack:
        t = stack.pop()
        if t not in found:
            found.add(t)
            stack += t.reads if isinstance(t, Computed) else ()
    return sorted(found, key=lambda t: t.serial)


def _named(tensors: Sequence[Tensor]) -> dict[Tensor, str]:
    taken = [t.name for t in tensors if t.name]
    if len(set(taken)) != len(taken):
        twice = next(n for n in taken if taken.count(n) > 1)
        raise AttributeValueError("te: two tensors of an algorithm have one name", got=twice)
    letters = (a + (str(k) if k else "") for k in itertools.count() for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    free = (n for n in letters if n not in taken)
    return {t: t.name or next(free) for t in tensors}


def algorithm_to_text(algorithm: Algorithm) -> str:
    """Print an algorithm: a line per tensor, and one per reduce axis before the tensor that uses it."""
    names: dict[Any, str] = dict(algorithm.names)
    lines = []
    for t in algorithm.tensors:
        name = algorithm.names[t]
        if not isinstance(t, Computed):
            lines.append(f'{name} = placeholder({_shape(t)}, "{t.dtype.name}")')
            continue
        axes = axis_names(t, set(names.values()))
        names.update(axes)
        for a in t.reduced:
            label = "" if names[a] == "k" else f', "{names[a]}"'
            lines.append(f"{names[a]} = reduce_axis({a.extent}{label})")
        dtype = (
            f', dtype="{t.dtype.name}"' if t.dtype is not t.body.dtype or isinstance(t.body, Number) else ""
        )
        own = ", ".join(names[a] for a in t.axes)
        body = term_to_text(t.body, names)
        lines.append(f"{name} = compute({_shape(t)}, lambda{' ' if own else ''}{own}: {body}{dtype})")
    return "\n".join(lines)


def axis_names(t: Computed, taken: set[str]) -> dict[Axis, str]:
    """Return a name for every axis of a tensor, unlike each other and what is taken."""
    found: dict[Axis, str] = {}
    for a in (*t.axes, *t.reduced):
        found[a] = unlike(a.name, taken | set(found.values()))
    return found


def _shape(t: Tensor) -> str:
    return repr(tuple(t.shape))
