"""Arrays of NumPy's from outside: what compiled functions compute of them, and write into them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from capture_ways import WAYS

import stratal as st
from stratal.base.errors import CaptureError

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """A guard notices, not an audit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _standardized(a: Array) -> Array:
    made: Array = ((a - a.mean()) / (a.std() + 1e-3)).astype(np.float32)
    return made


def _sorted(a: Array) -> Array:
    made = a * 2
    made[0], made[1:] = 4, made[1:] + a[0]
    made.sort()
    return made


def _tiled(a: Array) -> Array:
    return np.tile(a, 200)


COMPUTED: dict[str, Callable[[Array], Any]] = {
    "operator": lambda a: a * 2, "negative": lambda a: -a, "compared": lambda a: a > 2, "ufunc": np.exp,
    "function": lambda a: np.stack([a, np.flip(a)]), "method": lambda a: a.astype(np.float32),
    "standardized": _standardized, "sorted": _sorted, "tiled": _tiled, "sum": np.sum, "norm": np.linalg.norm,
    "chosen": lambda a: a[[2, 0]], "view": lambda a: a[::-1], "view of computed": lambda a: (a + 1)[1:],
    "itself": np.asarray, "same dtype": lambda a: a.astype(float, copy=False),
    "out": lambda a: np.multiply(a, 3, out=np.zeros(3)), "branch": lambda a: a if a.sum() > 9 else a * 2,
}  # fmt: skip


def _computes(compute: Callable[[Array], Any], way: Callable[..., Any]) -> list[Any]:
    a, found = np.arange(3.0), []

    @way
    def f(x: st.Tensor) -> Any:
        made = compute(a)
        return x * made, x + st.tensor(made), made

    for call in range(13):
        y, z, made = f(st.ones(1))
        found += [np.asarray(y).tolist(), np.asarray(z).tolist(), made.tolist()]
        if made is not a and not np.shares_memory(made, a) and made.ndim:
            made[...] = 0
        if call % 3 == 1:
            a[call % 2] += 1
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [k for k in COMPUTED if k != "view"])
def test_what_numpy_computes_of_arrays_from_outside_follows_them(kind: str, way: str) -> None:
    assert _computes(COMPUTED[kind], WAYS[way]) == _computes(COMPUTED[kind], lambda f: f)


def test_a_new_view_of_an_array_is_read_at_each_call_and_not_returned() -> None:
    a = np.arange(3.0)
    f = st.compile(lambda x: x * a[1:])
    for call in range(6):
        assert f(st.ones(1)).tolist() == a[1:].tolist()
        a[1] += call
    with pytest.raises(CaptureError, match="view of an array"):
        st.compile(lambda x: a[1:])(st.ones(1))


def _assigns(x: Any, a: Array, view: Array) -> Any:
    y = x * a
    a[0] = 5
    return y, x * a


def _assigns_through_a_view(x: Any, a: Array, view: Array) -> Any:
    y = x * view
    view[:] = 7
    return y, x * a[2:], x * a[:2]


def _adds(x: Any, a: Array, view: Array) -> Any:
    a[:] += 1
    np.add(a, 1, out=a)
    return x * a, x * view, x * a.sum()


def _reverses(x: Any, a: Array, view: Array) -> Any:
    a[::-1] = a
    view.sort()
    return x * a, x * a.reshape(2, 2).T[1]


WRITING = {f.__name__.strip("_"): f for f in (_assigns, _assigns_through_a_view, _adds, _reverses)}


def _writes(write: Callable[..., Any], way: Callable[..., Any]) -> list[Any]:
    a, found = np.arange(4.0), []
    view = a[1:3]
    f = way(lambda x: write(x, a, view))
    for call in range(11):
        found += [[np.asarray(y).tolist() for y in f(st.ones(1))], a.tolist()]
        if call % 3:
            a[call % 4] += 3
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRITING)
def test_arrays_that_are_written_and_read_again_hold_what_was_written(kind: str, way: str) -> None:
    assert _writes(WRITING[kind], WAYS[way]) == _writes(WRITING[kind], lambda f: f)


@pytest.mark.parametrize("kind", WRITING)
def test_a_refused_call_leaves_arrays_and_their_views_as_they_were(kind: str) -> None:
    a = np.arange(4.0)
    f = st.compile(lambda x: (WRITING[kind](x, a, a[1:3]), random.random()))
    with pytest.raises(CaptureError):
        f(st.ones(1))
    assert a.tolist() == [0, 1, 2, 3]
