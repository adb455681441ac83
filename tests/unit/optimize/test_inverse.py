"""Inverses of index maps: what a reader shows of a value is stored where it goes, each element once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import stratal as st
from stratal.loops import index
from stratal.loops.expr import Const, Expr, Var
from stratal.loops.inverse import inverse
from stratal.loops.rebuild import substitute

X, Y, K = Var("x", 7), Var("y", 6), Var("k", 5)


def phases(v: Var, step: int, shift: int) -> tuple[Expr, Expr]:
    """Return the quotient and the remainder of a moved axis."""
    moved = index.add(v, shift)
    return index.floordiv(moved, step), index.mod(moved, step)


def joined(*digits: tuple[Expr, int]) -> Expr:
    """Return a number from its digits and their sizes, the highest first."""
    return index.flatten(tuple(d for d, _ in digits), tuple(n for _, n in digits))


XQ, XP = phases(X, 3, 1)
YQ, YP = phases(Y, 2, 0)
INVERTIBLE: dict[str, tuple[tuple[Expr, ...], tuple[int, ...], tuple[Var, ...]]] = {
    "permutation": ((K, X, Y), (5, 7, 6), (X, Y, K)),
    "slice": ((index.add(X, 2), K), (12, 5), (X, K)),
    "one axis from two": ((joined((X, 7), (K, 5)),), (35,), (X, K)),
    "two axes from one": ((index.floordiv(Y, 3), index.mod(Y, 3)), (2, 3), (Y,)),
    "phases before channels": ((joined((XP, 3), (K, 5)), XQ), (15, 3), (X, K)),
    "phases behind channels": ((joined((K, 5), (XP, 3)), XQ), (15, 3), (X, K)),
    "phases of two axes": ((joined((XP, 3), (YP, 2), (K, 5)), XQ, YQ), (30, 3, 3), (X, Y, K)),
}


def inverted(case: str) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """Return a position of the source, and the place in the axes of its reader."""
    indices, shape, axes = INVERTIBLE[case]
    there = tuple(Var(f"i{k}", n) for k, n in enumerate(shape))
    found = inverse(indices, axes, there)
    assert found is not None
    return there, found


@pytest.mark.parametrize("case", list(INVERTIBLE))
def test_every_element_of_the_reader_goes_where_it_is_read_from(case: str) -> None:
    indices, shape, axes = INVERTIBLE[case]
    there, found = inverted(case)
    for place in itertools.product(*(range(v.extent) for v in axes)):
        source = _at(indices, axes, place)
        assert all(0 <= i < n for i, n in zip(source, shape, strict=True))
        assert _at(found, there, source) == place


@pytest.mark.parametrize("case", list(INVERTIBLE))
def test_what_nobody_reads_goes_nowhere(case: str) -> None:
    indices, shape, axes = INVERTIBLE[case]
    there, found = inverted(case)
    read = {_at(indices, axes, place) for place in itertools.product(*(range(v.extent) for v in axes))}
    for source in itertools.product(*map(range, shape)):
        place = _at(found, there, source)
        exists = all(0 <= i < v.extent for i, v in zip(place, axes, strict=True))
        assert exists == (source in read)


NOT_INVERTIBLE: dict[str, tuple[tuple[Expr, ...], tuple[int, ...], tuple[Var, ...]]] = {
    "an axis that is not read": ((X,), (7,), (X, K)),
    "every second element": ((index.mul(X, 2),), (14,), (X,)),
    "a diagonal": ((X, X), (7, 7), (X,)),
    "a diagonal beside the middle": ((X, index.add(X, 1)), (7, 8), (X,)),
    "one of several rows": ((index.as_expr(1), X), (3, 7), (X,)),
    "an axis and its quotient": ((index.floordiv(Y, 3), Y), (2, 6), (Y,)),
    "windows that overlap": ((index.add(X, K),), (11,), (X, K)),
    "a remainder without its quotient": ((index.mod(Y, 3),), (3,), (Y,)),
    "a flip": ((index.sub(6, X), K), (7, 5), (X, K)),
    "a flip beside an axis": ((joined((index.sub(6, X), 7), (K, 5)),), (35,), (X, K)),
    "a remainder in an axis that is longer": ((index.floordiv(Y, 3), index.mod(Y, 3)), (2, 4), (Y,)),
}


@pytest.mark.parametrize("case", list(NOT_INVERTIBLE))
def test_what_shows_elements_twice_or_not_all_or_backwards_has_no_inverse(case: str) -> None:
    indices, shape, axes = NOT_INVERTIBLE[case]
    assert inverse(indices, axes, tuple(Var(f"i{k}", n) for k, n in enumerate(shape))) is None


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_product_that_is_flipped_compiles(axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, dtype=np.float32) for shape in ((6, 4), (4, 5)))
    made = st.compile(lambda x, y: st.tanh(st.flip(x @ y, axes)))(st.tensor(x), st.tensor(y))
    np.testing.assert_allclose(made.numpy(), np.tanh(np.flip(x @ y, axes)), rtol=1e-5, atol=1e-6)


def _at(indices: tuple[Expr, ...], axes: tuple[Var, ...], place: tuple[int, ...]) -> tuple[int, ...]:
    values = {v: index.as_expr(i) for v, i in zip(axes, place, strict=True)}
    found = substitute(indices, values)
    assert all(isinstance(e, Const) for e in found)
    return tuple(int(e.value) for e in found if isinstance(e, Const))
