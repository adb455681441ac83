"""The index algebra against Python's own arithmetic, at every point of random quasi-affine forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratal.base.dtypes import float32, int64
from stratal.base.errors import VerifyError
from stratal.loops import index
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, index_const, walk
from stratal.loops.rebuild import substitute, with_children

Point = Mapping[Expr, int]
Form = tuple[Expr, Callable[[Point], int]]

EXTENTS = (1, 2, 3, 4, 6, 8)
GATHERED = (-1000, -7, -1, 0, 1, 5, 13, 9999)  # values of a loaded index, about which nothing is known
PYTHON: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}


def value(expr: Expr, at: Point) -> int:
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, (Var, Load)):
        return at[expr]
    assert isinstance(expr, Call)
    return PYTHON[expr.fn](*(value(a, at) for a in expr.args))


@st.composite
def atoms(draw: st.DrawFn) -> list[Expr]:
    found: list[Expr] = [Var(f"v{k}", draw(st.sampled_from(EXTENTS))) for k in range(draw(st.integers(1, 3)))]
    if draw(st.integers(0, 6)) == 0:
        found.append(Buffer("gathered", int64, (4,))[0])
    return found


def points(over: list[Expr]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(a.extent) if isinstance(a, Var) else GATHERED for a in over))


def grown(draw: st.DrawFn, over: list[Expr], depth: int) -> Form:
    kind = (
        draw(st.sampled_from(("leaf", "add", "add", "sub", "mul", "floordiv", "mod", "mod")))
        if depth
        else "leaf"
    )
    if kind == "leaf":
        if draw(st.integers(0, 4)) == 0:
            c = draw(st.integers(-20, 20))
            return index_const(c), lambda at: c
        atom = draw(st.sampled_from(over))
        return atom, lambda at: at[atom]
    a, of_a = grown(draw, over, depth - 1)
    if kind in ("add", "sub"):
        b, of_b = grown(draw, over, depth - 1)
        if kind == "add":
            return index.add(a, b), lambda at: of_a(at) + of_b(at)
        return index.sub(a, b), lambda at: of_a(at) - of_b(at)
    if kind == "mul":
        c = draw(st.sampled_from((-3, -1, 0, 2, 3, 4, 6, 8, 12)))
        return index.mul(a, c), lambda at: of_a(at) * c
    c = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24)))
    if kind == "floordiv":
        return index.floordiv(a, c), lambda at: of_a(at) // c
    return index.mod(a, c), lambda at: of_a(at) % c


@st.composite
def forms(draw: st.DrawFn) -> tuple[list[Expr], Form]:
    over = draw(atoms())
    return over, grown(draw, over, draw(st.integers(1, 5)))


@settings(max_examples=600)
@given(forms())
def test_a_form_equals_pythons_arithmetic_at_every_point_and_stays_within_its_bounds(
    drawn: tuple[list[Expr], Form],
) -> None:
    over, (form, python) = drawn
    low, high = index.bounds(form)
    for at in points(over):
        point = dict(zip(over, at, strict=True))
        want = python(point)
        assert value(form, point) == want, f"{form} at {at}"
        assert low <= want <= high, f"bounds of {form} at {at}"


@settings(max_examples=300)
@given(forms())
def test_normalising_a_normal_form_changes_nothing(drawn: tuple[list[Expr], Form]) -> None:
    _, (form, _) = drawn
    again: dict[Expr, Expr] = {}
    for e in walk([form]):
        again[e] = with_children(e, tuple(again[c] for c in e.parts))
    assert again[form] is form


@settings(max_examples=200)
@given(forms(), st.integers(-8, 20), st.integers(0, 40))
def test_a_range_condition_is_decided_only_as_python_decides_it(
    drawn: tuple[list[Expr], Form], low: int, size: int
) -> None:
    over, (form, python) = drawn
    condition = index.within(form, low, low + size)
    if isinstance(condition, Const):
        for at in points(over):
            inside = low <= python(dict(zip(over, at, strict=True))) < low + size
            assert inside == condition.value


def factorisations() -> st.SearchStrategy[tuple[int, tuple[int, ...]]]:
    """Draw a size and a shape of that size, size-1 axes included."""
    shapes = st.lists(st.sampled_from((1, 2, 3, 4, 5, 6)), min_size=1, max_size=4).map(tuple)
    return shapes.map(lambda s: (math.prod(s), s))


@settings(max_examples=200)
@given(factorisations(), st.data())
def test_a_chain_of_reshapes_back_to_the_first_shape_is_the_identity(
    drawn: tuple[int, tuple[int, ...]], data: st.DataObject
) -> None:
    size, shape = drawn
    axes = tuple(Var(f"i{k}", n) if n > 1 else index_const(0) for k, n in enumerate(shape))
    here, now = axes, shape
    for _ in range(data.draw(st.integers(1, 3))):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        first = data.draw(st.sampled_from(divisors))
        second = data.draw(st.sampled_from([d for d in divisors if (size // first) % d == 0]))
        new = (first, second, size // first // second)
        here, now = index.unflatten(index.flatten(here, now), new), new
    assert index.unflatten(index.flatten(here, now), shape) == axes


def test_division_and_remainder_by_a_number_that_is_not_positive_are_refused() -> None:
    i = Var("i", 4)
    for wrong in (0, -2):
        with pytest.raises(VerifyError, match="not positive"):
            index.floordiv(i, wrong)
        with pytest.raises(VerifyError, match="not positive"):
            index.mod(i, wrong)


def test_the_stride_of_an_index_is_known_only_where_it_is_affine() -> None:
    i, j = Var("i", 6), Var("j", 4)
    affine = index.add(index.mul(i, 4), j)
    assert index.stride_of(affine, i) == 4
    assert index.stride_of(affine, j) == 1
    assert index.stride_of(index.mod(index.add(i, j), 3), i) is None
    assert index.stride_of(index.floordiv(affine, 4), j) == 0


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.integers(2, 16),
    st.lists(st.sampled_from([0, 1, 3, 7, 40]), min_size=4, max_size=4),
)
def test_the_place_of_an_access_through_a_split_loop_is_right_at_every_point(
    shape: list[int], factor: int, odd: list[int]
) -> None:
    """In memory order the axes meet again as one step; in any order they are right."""
    extent = math.prod(shape)
    outer, inner = Var("outer", -(-extent // factor)), Var("inner", factor)
    indices = index.unflatten(index.add(index.mul(outer, factor), inner), tuple(shape))
    dense, other = Buffer("x", float32, shape), Buffer("y", float32, shape, odd[: len(shape)])
    for buffer in (dense, other):
        place = index.place(buffer, indices)
        for o, i in itertools.product(range(outer.extent), range(factor)):
            at = {outer: o, inner: i}
            expected = sum(value(e, at) * s for e, s in zip(indices, buffer.strides, strict=True))
            assert value(place, at) == expected
    assert index.stride_of(index.place(dense, indices), inner) == 1


def test_the_place_of_an_access_through_a_loop_split_into_odd_chunks_needs_no_division() -> None:
    flat, vector = Var("i", 1_000_000), Var("io", 62_500)
    chunk, step, lane = Var("ioo", 16), Var("ioi", 3907), Var("ii", 16)
    at = index.unflatten(flat, (2, 8, 62_500))
    at = substitute(at, {flat: index.add(index.mul(vector, 16), lane)})
    at = substitute(at, {vector: index.add(index.mul(chunk, 3907), step)})
    place = index.place(Buffer("x", float32, (2, 8, 62_500)), tuple(at))
    assert [index.stride_of(place, v) for v in (chunk, step, lane)] == [62_512, 16, 1]


def test_factors_and_constants_wrap_around_as_int64_does() -> None:
    """Squared again and again, they would double their digits each time."""
    i, form = Var("i", 4), index_const(3)
    for _ in range(6):
        form = index.rebuild("mul", (form, form))
    assert form == index_const((3**64 + (1 << 63)) % (1 << 64) - (1 << 63))
    assert index.mul(index.mul(i, 1 << 40), 1 << 40) == index_const(0)
