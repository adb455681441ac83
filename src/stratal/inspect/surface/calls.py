"""The call of an entry: from its family's table, or by its signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.inspect.surface.draws import Call, Draws
from stratal.inspect.surface.entries import Entry
from stratal.inspect.surface.functions import FFT, LINALG, MATH, RANDOM, SPECIAL, by_signature
from stratal.inspect.surface.layers import FUNCTIONAL, LAYERS

TABLES: dict[str, dict[str, Callable[[Draws], Call]]] = {
    "math": MATH,
    "special": SPECIAL,
    "linalg": LINALG,
    "fft": FFT,
    "random": RANDOM,
    "functional": FUNCTIONAL,
}


def call_of(entry: Entry, draws: Draws) -> Call | None:
    """Return a call that works, with arrays of about `draws.n` elements; None if none is known."""
    if entry.family not in TABLES:
        return None
    table = TABLES[entry.family]
    for name in (entry.name, *entry.aliases):
        if name in table:
            return table[name](draws)
    return by_signature(entry.name, entry.value, draws)


def made_and_called(entry: Entry, draws: Draws) -> tuple[Any, Call] | None:
    """Return a layer and a call of it that works; None if none is known."""
    layer = LAYERS.get(entry.name)
    return None if layer is None else (layer.made.of(entry.value), layer.called(draws))
