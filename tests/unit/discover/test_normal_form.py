"""The normal form of a graph has the value that NumPy gives it, element by element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from random_expressions import extended

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.dtypes import float32, int64
from stratal.base.types import TensorType
from stratal.discover.canonical import canonical, named, simplified, text_of
from stratal.discover.normal_form import Reader
from stratal.discover.terms import Access, Apply, Form, Position, Reduce, Term, Unknown
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.loops.expr import Call, Const, Expr, Var

B = Builder()
OUTSIDE = 1 << 40  # what an element outside of its tensor is taken to be: a condition must make it 0
SCALARS: Mapping[str, Callable[..., Any]] = {
    "max.i64": max, "min.i64": min, "abs.i64": abs, "cast.i64.bool": lambda a: int(a != 0)
}  # fmt: skip


def index(e: Expr, at: Mapping[Var, int]) -> int:
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return at[e]
    assert isinstance(e, Call)
    a, b = (index(x, at) for x in e.args)
    if e.fn in ("floordiv", "mod"):
        return a // b if e.fn == "floordiv" else a % b
    return {"add": a + b, "mul": a * b}[e.fn]


def evaluated(form: Form, at: Mapping[Var, int], arrays: Mapping[str, np.ndarray]) -> Fraction:
    return sum((term_value(t, at, arrays) for t in form.terms), Fraction(0))


def term_value(term: Term, at: Mapping[Var, int], arrays: Mapping[str, np.ndarray]) -> Fraction:
    total = Fraction(0)
    for values in itertools.product(*(range(v.extent) for v in term.bound)):
        here = {**at, **dict(zip(term.bound, values, strict=True))}
        holds = all(
            index(c.of, here) >= 0 if c.kind == "ge" else index(c.of, here) == 0 for c in term.where
        )
        if holds:
            total += math.prod((factor_value(f, here, arrays) for f in term.factors), start=Fraction(1))
    return term.coefficient * total


def factor_value(made: Any, at: Mapping[Var, int], arrays: Mapping[str, np.ndarray]) -> Fraction:
    if isinstance(made, Position):
        return Fraction(index(made.of, at))
    if isinstance(made, Access):
        array, where = arrays[made.source], tuple(index(i, at) for i in made.at)
        inside = all(0 <= i < n for i, n in zip(where, array.shape, strict=True))
        return Fraction(int(array[where])) if inside else Fraction(OUTSIDE)
    if isinstance(made, Apply):
        return Fraction(SCALARS[made.function](*(evaluated(a, at, arrays) for a in made.arguments)))
    assert isinstance(made, Reduce)
    spans = itertools.product(*(range(v.extent) for v in made.bound))
    values = [evaluated(made.body, {**at, **dict(zip(made.bound, s, strict=True))}, arrays) for s in spans]
    return Fraction({"max": max, "min": min, "prod": math.prod}[made.combiner](values))


def agrees(node: Node, inputs: Sequence[Node], seed: int = 0) -> None:
    """Compare every element of a node with the interpreter's."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, i.shape) for i in inputs]
    form = Reader({x: f"x{k}" for k, x in enumerate(inputs)}).element(node)
    ((expected,), _) = interpret(Graph(inputs, (node,)), arrays)
    known = {f"x{k}": a for k, a in enumerate(arrays)}
    for where in np.ndindex(*node.shape):
        at = {named(f"i{k}", n): i for k, (n, i) in enumerate(zip(node.shape, where, strict=True))}
        assert evaluated(form, at, known) == int(expected[where]), (where, text_of(form))
        assert evaluated(simplified(form), at, known) == int(expected[where])


def ints(*shape: int) -> Node:
    return graph_input("x", TensorType(int64, shape))


# -- random graphs -------------------------------------------------------------------------------------------
@given(some.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_normal_form_of_a_random_graph_has_its_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [ints(*shape) for shape in ((2, 3), (3, 2), (2, 3), (3,))]
    values = list(inputs)
    for _ in range(4):
        made = extended(lambda n: int(rng.integers(max(n, 1))), values)
        if made is not None and 0 < math.prod(made.shape) <= 64 and made.aval.ndim <= 3:
            values.append(made)
    try:
        agrees(values[-1], inputs, seed)
    except Unknown as unknown:
        assert str(unknown)


@given(some.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_text_of_a_form_does_not_depend_on_the_names_of_its_bound_indices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [ints(3, 3), ints(3, 3)]
    values = list(inputs)
    for _ in range(5):
        made = extended(lambda n: int(rng.integers(max(n, 1))), values)
        if made is not None and 0 < math.prod(made.shape) <= 64:
            values.append(made)
    try:
        form = Reader({x: f"x{k}" for k, x in enumerate(inputs)}).element(values[-1])
    except Unknown:
        return
    shuffled = []
    for term in form.terms:
        order = list(term.bound)
        rng.shuffle(order)  # type: ignore[arg-type]
        shuffled.append(term._replace(bound=tuple(order), factors=term.factors[::-1]))
    assert canonical(Form(tuple(shuffled[::-1]))) == canonical(form)


# -- what is not read ----------------------------------------------------------------------------------------
def test_an_op_that_is_no_tensor_expression_is_unknown() -> None:
    x = ints(2, 3)
    with pytest.raises(Unknown, match="no tensor expression"):
        Reader({x: "x"}).element(B.cumsum(x, axis=0, reverse=False))


def test_a_tensor_without_elements_is_unknown() -> None:
    x = ints(0, 3)
    with pytest.raises(Unknown, match="no elements"):
        Reader({x: "x"}).element(B.neg(x))


def test_a_place_that_data_decide_is_unknown() -> None:
    x, i = ints(5), ints(2)
    with pytest.raises(Unknown, match="raises for some values"):
        Reader({x: "x", i: "i"}).element(B.gather(x, i, axis=0))


def test_a_function_that_is_no_ring_function_is_one_symbol_of_its_argument() -> None:
    x = graph_input("x", TensorType(float32, (2, 3)))
    form = Reader({x: "x"}).element(B.exp(B.add(x, x)))
    (term,) = form.terms
    assert text_of(form).startswith("exp.") and text_of(form).endswith("(2 x[i0, i1])")
    assert isinstance(term.factors[0], Apply)


def test_a_sum_of_floats_is_not_read_to_the_bit() -> None:
    x = graph_input("x", TensorType(float32, (2, 3)))
    with pytest.raises(Unknown, match="order"):
        Reader({x: "x"}, ring=False).element(B.sum(x, axes=(0,)))
