"""Kernel text reads back, equal texts mean equal kernels, and the verifier names what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratal.base.dtypes import DType, bool_, float32, float64, int64, uint32, uint64
from stratal.base.errors import FormatError, VerifyError
from stratal.loops import index, math
from stratal.loops.expr import COMPARISONS, FUNCTIONS, Buffer, Expr, Var, call, cast, const, guard, lanes
from stratal.loops.parse import parse_kernel
from stratal.loops.philox import random_bits
from stratal.loops.stmt import Fail, For, If, Kernel, LoopKind, Prefetch, Seq, Stmt, Store
from stratal.loops.verify import verify_kernel

pytestmark = pytest.mark.quick

DTYPES = (float32, float64, int64, uint32, bool_)
ARITHMETIC = {
    "f": ("add", "sub", "mul", "div", "fma", "neg", "abs", "min", "max", "sqrt", "floor", "rint", "select"),
    "i": ("add", "sub", "mul", "neg", "min", "max", "idiv", "irem", "and", "or", "xor", "not", "shl", "shr"),
    "u": ("add", "sub", "mul", "mulhi", "min", "max", "and", "or", "xor", "not", "shl", "shr", "select"),
    "b": ("and", "or", "xor", "not", "select"),
}
SPECIAL = (0.0, -0.0, 1.5, -2.25e-30, 3e38, float("inf"), float("-inf"), float("nan"))


class Grower:
    """Draws random kernels over a fixed set of buffers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.reads = [Buffer(f"a{k}", d, (8, 6)) for k, d in enumerate(DTYPES)]
        self.writes = [Buffer(f"out{k}", d, (8, 6), (6 + k, 1)) for k, d in enumerate(DTYPES)]
        self.local = [
            Buffer("acc", float32, (6,), space="register"),
            Buffer("row", float64, (6,), space="scratch"),
        ]

    def pick(self, *options: object) -> object:
        return self.draw(st.sampled_from(options))

    def where(self, buffer: Buffer, scope: list[Var]) -> tuple[Expr, ...]:
        return tuple(index.mod(self.place(scope), n) for n in buffer.shape)

    def place(self, scope: list[Var]) -> Expr:
        form: Expr = const(self.draw(st.integers(0, 9)), int64)
        for v in scope:
            form = index.add(form, index.mul(v, self.draw(st.integers(-3, 5))))
        return form

    def leaf(self, dtype: DType, scope: list[Var]) -> Expr:
        choice = self.draw(st.integers(0, 3))
        if choice == 0:
            if dtype.is_float:
                return const(self.draw(st.sampled_from(SPECIAL)), dtype)
            return const(
                self.draw(st.integers(0 if dtype.kind in "ub" else -9, 1 if dtype.is_bool else 9)), dtype
            )
        if choice == 1 and dtype is int64 and scope:
            return self.draw(st.sampled_from(scope))
        buffer = next(b for b in self.reads if b.dtype is dtype)
        return buffer[self.where(buffer, scope)]

    def expression(self, dtype: DType, scope: list[Var], depth: int) -> Expr:
        if depth == 0:
            return self.leaf(dtype, scope)
        form = self.draw(st.integers(0, 9))
        if form == 0:
            other = self.draw(st.sampled_from(DTYPES))
            return cast(self.expression(other, scope, depth - 1), dtype)
        if form == 1:
            condition = self.expression(bool_, scope, depth - 1)
            return guard(condition, self.expression(dtype, scope, depth - 1), self.leaf(dtype, scope))
        if form == 2 and dtype is bool_:
            operand = self.draw(st.sampled_from((float32, int64)))
            sides = [self.expression(operand, scope, depth - 1) for _ in range(2)]
            return call(self.draw(st.sampled_from(sorted(COMPARISONS))), *sides)
        if form == 3 and dtype is float32:
            lane = Var("l", 4)
            return lanes("add", self.expression(dtype, [*scope, lane], depth - 1), lane)
        fn = self.draw(st.sampled_from(ARITHMETIC[dtype.kind]))
        shared = self.expression(dtype, scope, depth - 1)
        others = [
            shared if self.draw(st.booleans()) else self.leaf(dtype, scope)
            for _ in range(FUNCTIONS[fn][0] - 1)
        ]
        if fn == "select":
            return call(fn, self.expression(bool_, scope, depth - 1), shared, others[0])
        return call(fn, shared, *others)

    def statement(self, scope: list[Var], depth: int, vector: bool = False) -> Stmt:
        kind = self.draw(st.integers(0, 6)) if depth else 6
        if kind <= 1:
            loop: LoopKind = self.draw(
                st.sampled_from(("serial", "unroll") if vector else ("serial", "unroll", "vector"))
            )
            var = Var(self.draw(st.sampled_from("ijk")), self.draw(st.integers(1, 6)))
            return For(var, self.statement([*scope, var], depth - 1, vector or loop == "vector"), loop)
        if kind == 2:
            return Seq(
                [self.statement(scope, depth - 1, vector) for _ in range(self.draw(st.integers(0, 3)))]
            )
        if kind == 5:
            buffer = self.draw(st.sampled_from([*self.reads, *self.writes]))
            return Prefetch(buffer, self.where(buffer, scope), self.draw(st.sampled_from((0, 64))))
        condition = self.expression(bool_, scope, 2)
        if kind == 3:
            otherwise = self.statement(scope, depth - 1, vector) if self.draw(st.booleans()) else None
            return If(condition, self.statement(scope, depth - 1, vector), otherwise)
        if kind == 4:
            return Fail(condition, self.draw(st.integers(1, 9)))
        buffer = self.draw(st.sampled_from([*self.writes, *self.local]))
        return Store(buffer, self.where(buffer, scope), self.expression(buffer.dtype, scope, 3))

    def kernel(self) -> Kernel:
        chunk = Var("chunk", 4)
        body = self.statement([chunk], 4)
        return Kernel("random", self.reads, self.writes, For(chunk, body, "parallel"), self.local)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    return Grower(draw).kernel()


@pytest.mark.sampled(4)
@settings(max_examples=200)
@given(kernels())
def test_the_text_of_a_kernel_parses_back_to_a_kernel_of_the_same_text(kernel: Kernel) -> None:
    text = str(kernel)
    again = parse_kernel(text)
    assert str(again) == text
    assert [str(b) for b in again.parameters] == [str(b) for b in kernel.parameters]
    verify_kernel(kernel)
    verify_kernel(again)


def test_the_text_of_expressions_that_share_is_linear_in_their_size() -> None:
    i = Var("i", 4)
    x = Buffer("x", float64, (4,))[i]
    assert len(str(random_bits(const(5, uint64), i, uint64))) < 4000
    assert len(str(math.pow(x, x))) < 6000
    doubled: Expr = x
    for _ in range(2000):
        doubled = call("mul", doubled, doubled)
    assert len(str(doubled)) < 100_000


def test_loops_of_one_name_inside_each_other_print_under_two_names() -> None:
    outer, inner = Var("i", 2), Var("i", 3)
    out = Buffer("out", int64, (2, 3))

    def nest(value: Expr) -> str:
        return str(Kernel("k", [], [out], For(outer, For(inner, Store(out, (outer, inner), value)))))

    assert "for i_1 in 3:" in nest(outer)
    assert nest(outer) != nest(inner)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("    out[i] = (1.0:f32 + )", "nothing is called"),
        ("    out[i] = y[i]", "nothing is called 'y'"),
        ("    z[i] = 1.0:f32", "no buffer is called 'z'"),
        ("    out[i] = 1.0:f32 2", "too much"),
        ("    out[i] = cast.f99(i)", "not a dtype"),
        ("    out[i] = $", "unexpected"),
        ("    out[i] = sinus(i)", "no scalar function is called 'sinus'"),
        ("    out[i] = (i + 1.0:f32)", "different dtypes"),
        ("    out[i] =", "ends too early"),
        ("      out[i] = 1.0:f32", "block is empty"),
    ],
)
def test_damaged_text_is_refused_with_the_line(line: str, says: str) -> None:
    text = f"kernel k:\n  out out: f32[4]\n  for i in 4:\n{line}\n"
    with pytest.raises(FormatError, match=says):
        parse_kernel(text)


ROW, COLUMN, LANE = Var("i", 4), Var("j", 4), Var("l", 3)
X, OUT = Buffer("x", float32, (4,)), Buffer("out", float32, (4,))
WRONG: dict[str, tuple[Stmt, str]] = {
    "unbound": (For(ROW, Store(OUT, (ROW,), X[COLUMN])), "outside its loop"),
    "rebound": (For(ROW, For(ROW, Store(OUT, (ROW,), X[ROW]))), "a loop around it"),
    "dtype": (For(ROW, Store(OUT, (ROW,), const(1, float64))), "another dtype"),
    "to an input": (For(ROW, Store(X, (ROW,), X[ROW])), "not written or local"),
    "undeclared": (For(ROW, Store(OUT, (ROW,), Buffer("y", float32, (4,))[ROW])), "undeclared buffer"),
    "rank": (For(ROW, Store(OUT, (ROW, ROW), X[ROW])), "2 indices"),
    "store range": (For(ROW, Store(OUT, (index.add(ROW, 1),), X[ROW])), "leaves the buffer"),
    "load range": (For(ROW, Store(OUT, (ROW,), X[index.sub(ROW, 1)])), "leaves the buffer"),
    "index dtype": (For(ROW, Store(OUT, (const(1, uint32),), X[ROW])), "not an int64"),
    "condition": (For(ROW, If(X[ROW], Store(OUT, (ROW,), X[ROW]))), "not a bool"),
    "code": (For(ROW, Fail(call("lt", ROW, ROW))), "not a int64"),
    "fetch rank": (For(ROW, Prefetch(X, (ROW, ROW))), "2 indices"),
    "fetch back": (For(ROW, Prefetch(X, (ROW,), -1)), "looks back"),
    "fetch range": (For(ROW, Prefetch(X, (index.add(ROW, 1),))), "leaves the buffer"),
    "fetch undeclared": (For(ROW, Prefetch(Buffer("y", float32, (4,)), (ROW,))), "no parameter"),
    "vectors": (
        For(ROW, For(COLUMN, Store(OUT, (ROW,), X[COLUMN]), "vector"), "vector"),
        "inside a vector loop",
    ),
    "parallel": (For(ROW, For(COLUMN, Store(OUT, (ROW,), X[COLUMN]), "parallel"), "unroll"), "parallel loop"),
    "lanes": (For(ROW, Store(OUT, (ROW,), lanes("add", X[LANE], LANE))), "power of two"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_the_verifier_refuses_and_shows_the_kernel(name: str) -> None:
    body, says = WRONG[name]
    with pytest.raises(VerifyError) as caught:
        verify_kernel(Kernel("wrong", [X], [OUT], body))
    assert says in str(caught.value)
    assert "kernel wrong:" in str(caught.value)


def test_a_guard_or_a_condition_protects_an_index_that_leaves_the_buffer() -> None:
    before = index.sub(ROW, 1)
    guarded = guard(index.less(0, ROW), X[before], const(0, float32))
    verify_kernel(Kernel("right", [X], [OUT], For(ROW, Store(OUT, (ROW,), guarded))))
    verify_kernel(
        Kernel("right", [X], [OUT], For(ROW, If(index.less(0, ROW), Store(OUT, (ROW,), X[before]))))
    )


@pytest.mark.parametrize(
    "buffers",
    [[X, X], [Buffer("a b", float32, (4,))], [Buffer("r", float32, (4,), space="register")]],
    ids=["twice", "name", "space"],
)
def test_the_verifier_refuses_wrong_declarations(buffers: list[Buffer]) -> None:
    with pytest.raises(VerifyError):
        verify_kernel(Kernel("wrong", buffers, [OUT], For(ROW, Store(OUT, (ROW,), const(0, float32)))))
