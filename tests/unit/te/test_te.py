"""Tensor expressions: the lectures' two lines, three schedules of one product, ops nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest
from accelerator import BLOCKS, LOCAL, TILED, declare_accelerator

import stratal as st
from stratal import te
from stratal import te as tvm
from stratal.base.errors import FormatError, NotDifferentiableError, ScheduleError, StratalError


def product(m: int, n: int, p: int, dtype: str = "float32") -> te.LoopSchedule:
    """Return the plain loops of C = transpose(A) B."""
    A, B = te.placeholder((p, m), dtype), te.placeholder((p, n), dtype)
    k = te.reduce_axis(p)
    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k))
    return te.schedule(C)


@pytest.fixture(scope="module")
def accelerator() -> None:
    declare_accelerator()


def operands(m: int, n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of small whole numbers: every product and sum of them is exact."""
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (p, m)).astype(np.float32), rng.integers(-4, 5, (p, n)).astype(np.float32)


# -- D1 --------------------------------------------------------------------------------------------------
@pytest.mark.quick
@pytest.mark.row("D1")
def test_the_two_lines_of_the_lectures_are_accepted_as_they_stand_and_equal_numpy() -> None:
    m, n, p = 5, 7, 6
    A, B, k = tvm.placeholder((p, m)), tvm.placeholder((p, n)), tvm.reduce_axis(p)
    C = tvm.compute((m, n),
        lambda y, x: tvm.sum(A[k, y] * B[k, x], axis=k))  # fmt: skip
    a, b = operands(m, n, p)
    assert np.array_equal(te.build(te.schedule(C))(a, b), a.T @ b)
    assert np.array_equal(te.interpret(te.schedule(C), a, b), a.T @ b)


@pytest.mark.row("D1")
def test_the_short_form_without_a_lambda_means_the_same() -> None:
    m, n, p = 3, 4, 5
    A, B, k = te.placeholder((p, m)), te.placeholder((p, n)), te.reduce_axis(p)
    y, x = te.axes(m, n, names=("y", "x"))
    C = te.compute((m, n), te.sum(A[k, y] * B[k, x]))
    assert str(te.schedule(C)) == str(product(m, n, p))


@pytest.mark.quick
def test_an_algorithm_prints_as_the_python_that_makes_it_and_reads_back() -> None:
    x, w = te.placeholder((6, 4), "float16"), te.placeholder((3, 4))
    u, d = te.reduce_axis(3, "u"), te.reduce_axis(4, "d")
    at = te.compute(
        (6,),
        lambda i: te.sum(
            te.where((i + u > 0) & (i + u < 7), x[i + u - 1, d].astype("float32"), 0.0) * w[u, d],
            axis=(u, d),
        ),
    )
    out = te.compute((6,), lambda j: te.maximum(te.exp(-at[5 - j]), 0.5))
    text = str(te.Algorithm(out))
    assert "lambda j: maximum(exp(-C[5 - j]), 0.5)" in text
    assert str(te.parse_algorithm(text)) == text
    namespace = {name: getattr(te, name) for name in te.__all__}
    exec(text, namespace)  # the text is Python
    assert str(te.Algorithm(namespace["D"])) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os", "a line is"),
        ('C = compute((3,), lambda i: __import__("os"))', "no function '__import__'"),
        ('A = placeholder((3,), "float32")\nC = compute((3,), lambda i: A[i].real)', "not a term"),
        ('A = placeholder((3,), "float99")', "dtype"),
        ('A = placeholder((3,), "float32")', "computes something"),
        ('A = placeholder((3,), "float32")\nC = compute((4,), lambda i: A[i])', "leaves its tensor"),
        ("C = compute((3,), lambda i, j: 1.0)", "one index per axis"),
        ("C = compute((3,), lambda i: sum(1.0))", "axis"),
        ("((((", "lines of Python"),
        ("C = reduce_axis()", "argument is missing"),
    ],
)
def test_text_that_is_no_algorithm_is_refused_and_never_run(text: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        te.parse_algorithm(text)


def test_mistakes_in_a_term_name_the_rule_the_line_and_the_remedy() -> None:
    a, b, k = te.placeholder((4, 3)), te.placeholder((4,), "float64"), te.reduce_axis(4)
    for wrong, says in (
        (lambda: te.compute((4,), lambda i: a[i + 1, 0]), "leaves its tensor"),
        (lambda: te.compute((4,), lambda i: a[i, 0] + b[i]), "differ in dtype"),
        (lambda: te.compute((3,), lambda i: a[k, i]), "neither the result's nor reduced"),
        (lambda: te.compute((3,), lambda i: te.sum(a[k, i]) + 1.0), "inside another term"),
        (lambda: te.compute((4,), lambda i: 1.0 if a[i, 0] > 0 else 2.0), "no truth value"),
        (lambda: te.compute((3,), lambda i: sum(a[k, i])), "cannot be iterated"),
        (lambda: te.compute((4,), lambda i: a[i]), "2 axes"),
        (lambda: te.compute((4,), lambda i: a[i, 0] & True), "does not take float32"),
        (lambda: te.compute((4,), lambda i: a[i % 0, 0]), "positive integer"),
        (lambda: te.sum(a[0, 0]), "reduce_axis"),
    ):
        with pytest.raises(StratalError, match=says) as caught:
            wrong()
        assert "where: test_te.py" in str(caught.value)
        assert caught.value.hint


# -- D2 --------------------------------------------------------------------------------------------------
@pytest.mark.row("D2", "D5")
def test_the_three_listings_come_from_one_algorithm_and_are_equal(accelerator: None) -> None:
    naive = product(24, 16, 24)
    tiled = naive.replay(TILED)
    blocks = tiled.replay(LOCAL).replay(BLOCKS)
    a, b = operands(24, 16, 24)
    for schedule in (naive, tiled, blocks):
        assert schedule.algorithm is naive.algorithm
        assert np.array_equal(te.build(schedule)(a, b), a.T @ b)
    small = product(8, 8, 16)
    a, b = operands(8, 8, 16)
    for steps in ("", TILED, TILED + LOCAL + BLOCKS):
        assert np.array_equal(te.interpret(small.replay(steps), a, b), a.T @ b)


@pytest.mark.row("D2")
def test_the_loops_are_those_of_the_listings(accelerator: None) -> None:
    naive = product(1024, 1024, 1024)
    assert naive.loops == (
        "for y in 1024:\n"
        "  for x in 1024:\n"
        "    C[y, x] = 0.0:f32\n"
        "    for k in 1024:\n"
        "      C[y, x] = fma(A[k, y], B[k, x], C[y, x])"
    )
    tiled = naive.replay(TILED)
    assert [f"{v.var.name} {v.var.extent}" for v in tiled.nest.loops.values()] == [
        "yo 128", "xo 128", "yi 8", "xi 8", "ko 128", "yi_1 8", "xi_1 8", "ki 8"
    ]  # fmt: skip
    blocks = tiled.replay(LOCAL).replay(BLOCKS)
    lines = [line.split(" in ")[0].strip() for line in blocks.loops.split("\n")]
    wanted = ["for yo", "for xo", "unroll fill_zero", "for ko", "unroll dma_copy2d", "unroll dma_copy2d_1",
              "unroll fused_gemm8x8_add", "unroll dma_copy2d_2"]  # fmt: skip
    assert [line for line in lines if line in wanted] == wanted
    assert {b.name: b.shape for b in blocks.nest.local} == {"AL": (8, 8), "BL": (8, 8), "CL": (8, 8)}


@pytest.mark.slow
@pytest.mark.row("D2")
def test_the_three_listings_run_natively_at_1024(accelerator: None) -> None:
    naive = product(1024, 1024, 1024)
    a, b = operands(1024, 1024, 1024)
    for steps in ("", TILED, TILED + LOCAL + BLOCKS):
        assert np.array_equal(te.build(naive.replay(steps))(a, b), a.T @ b)


# -- D7 --------------------------------------------------------------------------------------------------
def gated_blur(dtype: str) -> te.Algorithm:
    """Return a blurred, gated product: no record computes it."""
    x, w, g = te.placeholder((9, 4), dtype), te.placeholder((3, 4), dtype), te.placeholder((9,), dtype)
    u, d = te.reduce_axis(3, "u"), te.reduce_axis(4, "d")

    def blurred(i: object) -> object:
        at = i + u - 1
        return te.sum(te.where((at >= 0) & (at < 9), x[at, d], 0.0) * w[u, d], axis=(u, d))

    near = te.compute((9,), blurred)
    return te.compute((9,), lambda i: near[i] * te.sigmoid(g[8 - i]))


@pytest.mark.sampled(5)
@pytest.mark.row("D7")
def test_an_op_nobody_has_seen_compiles_without_a_library_entry_and_has_derivatives() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((9, 4), (3, 4), (9,))]
    padded = np.pad(arrays[0], ((1, 1), (0, 0)))
    summed = sum((padded[u : u + 9] * arrays[1][u]).sum(1) for u in range(3))
    expected = summed / (1 + np.exp(-arrays[2][::-1]))
    found = te.function(gated_blur("float32"))(*map(st.tensor, arrays))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    st.check_grad(te.function(gated_blur("float64")), [a.astype(np.float64) for a in arrays], order=2)


@pytest.mark.row("D7")
def test_a_written_op_fuses_with_its_neighbours_into_one_kernel() -> None:
    a = te.placeholder((16, 32))
    swirl = te.function(te.compute((32, 16), lambda i, j: te.tanh(a[j, i]) * a[15 - j, i]))
    step = st.compile(lambda t: (swirl(t) + 1.0) * 2.0)
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    expected = ((np.tanh(x) * x[::-1]).T + 1) * 2
    np.testing.assert_allclose(step(st.tensor(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert "1 kernel," in str(step.plan)


def test_what_has_no_derived_derivative_says_so() -> None:
    a, k = te.placeholder((4, 3)), te.reduce_axis(3)
    largest = te.function(te.compute((4,), lambda i: te.max(a[i, k], axis=k)))
    x = st.randn(4, 3)
    assert largest(x).shape == (4,)
    with pytest.raises(NotDifferentiableError, match=r"te\.max"):
        st.grad(lambda t: largest(t).sum())(x)


# -- schedules as text -----------------------------------------------------------------------------------
def test_a_schedule_prints_and_reads_back_to_the_same_text_and_loops(accelerator: None) -> None:
    schedule = product(16, 16, 16).replay(TILED + LOCAL + BLOCKS)
    again = te.parse(str(schedule))
    assert str(again) == str(schedule)
    assert again.loops == schedule.loops
    assert again == schedule


def test_chained_steps_leave_the_schedules_before_them_alone() -> None:
    plain = product(4, 4, 4)
    before = str(plain), plain.loops
    plain.split("y", 2).unroll("yi")
    with pytest.raises(ScheduleError):
        plain.vectorize("k")
    assert (str(plain), plain.loops) == before


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("splat(y, 2)", "a step is"),
        ("split(y)", "takes"),
        ("split(q, 2)", "no loop 'q'"),
        ("split(y, 2) -> a, b", "other names"),
        ("cache_read(Z, y)", "no tensor 'Z'"),
        ("split(y, two)", "whole number"),
    ],
)
def test_a_line_that_is_no_step_is_refused(step: str, says: str) -> None:
    with pytest.raises(StratalError, match=says):
        product(4, 4, 4).replay(step)


def test_loops_that_no_code_can_be_made_of_are_refused_with_the_reason() -> None:
    schedule = product(4, 4, 4).cache_write("C", "y", "register")
    a, b = operands(4, 4, 4)
    assert np.array_equal(te.interpret(schedule, a, b), a.T @ b)
    with pytest.raises(ScheduleError, match="not unrolled") as caught:
        te.build(schedule)
    assert "unroll" in caught.value.hint


def test_arrays_of_other_types_than_the_placeholders_are_refused() -> None:
    run = te.build(product(4, 4, 4))
    a, b = operands(4, 4, 4)
    for wrong, says in (((a,), "one array per"), ((a, b[:2]), "shape"), ((a, b.astype(np.float64)), "dtype")):
        with pytest.raises(StratalError, match=says):
            run(*wrong)


def test_tensors_of_other_shapes_than_their_placeholders_are_refused() -> None:
    a = te.placeholder((4, 3), "float32", name="a")
    double = te.function(te.compute((4, 3), lambda i, j: a[i, j] + a[i, j]))
    with pytest.raises(StratalError, match="another shape"):
        double(st.ones(4, 5))
