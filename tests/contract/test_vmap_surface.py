"""vmap over every public function that takes matrices: rows at once equal rows one by one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import tree
from stratal.base.errors import CaptureError
from stratal.tensor.api.functions import FUNCTIONS

ROWS = 3


def _public(space: Any) -> dict[str, Callable[..., Any]]:
    return {n: f for n in dir(space) if not n.startswith("_") and inspect.isfunction(f := getattr(space, n))}


SPACES: dict[str, dict[str, Callable[..., Any]]] = {
    "st": FUNCTIONS,
    "special": _public(st.special),
    "linalg": _public(st.linalg),
    "fft": _public(st.fft),
    "functional": _public(st.nn.functional),
}


def _matrices() -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Return arguments: one or two stacks of matrices, between 0 and 1 or well conditioned."""
    rng = np.random.default_rng(0)
    inside = rng.uniform(0.2, 0.9, (ROWS, 4, 4))
    steep = inside + np.swapaxes(inside, 1, 2) + 4 * np.eye(4)
    return [(steep,), (inside,), (steep, steep[::-1].copy()), (inside, inside[::-1].copy())]


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(t.detach()) for t in tree.leaves(result)]


def _fault(function: Callable[..., Any], args: tuple[np.ndarray[Any, Any], ...]) -> str | None:
    """Return how rows differ; None where they do not, "" where the function does not take the arguments."""
    try:
        rows = [_arrays(function(*(st.tensor(a[k]) for a in args))) for k in range(ROWS)]
    except Exception:  # not a function of matrices, or a shape that depends on values
        return ""
    try:
        found = _arrays(st.vmap(function)(*map(st.tensor, args)))
    except CaptureError as error:  # the size of a result is data, or rows would draw numbers
        return "" if "data" in str(error) or "random numbers" in str(error) else str(error)
    for got, want in zip(found, zip(*rows, strict=True), strict=True):
        if len({w.shape for w in want}) != 1 or not np.allclose(
            got, np.stack(want), 1e-6, 1e-9, equal_nan=True
        ):
            return f"{got} instead of {want}"
    return None


@pytest.mark.sampled(8)
@pytest.mark.parametrize("space", SPACES)
def test_rows_at_once_equal_rows_one_by_one(space: str) -> None:
    broken, checked = [], 0
    with st.eager():
        for name, function in SPACES[space].items():
            for args in _matrices():
                fault = _fault(function, args)
                checked += fault != ""
                if fault:
                    broken.append(f"{name} of {len(args)}: {fault}")
    assert not broken, "\n".join(broken[:8])
    assert checked > 10, "the functions were found and take the arguments"
