"""What the prover proves, and that it refuses every planted wrong rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.dtypes import bfloat16, float32, int32
from stratal.base.errors import VerifyError
from stratal.base.types import TensorType
from stratal.discover.prove import Proof, prove
from stratal.graph.builder import Builder
from stratal.graph.node import Node, graph_input

B = Builder()
Sides = tuple[Node, Node]


def tensor(*shape: int, dtype: Any = float32) -> Node:
    return graph_input("x", TensorType(dtype, shape))


A, A2, M, M2, M6, N = tensor(3, 4), tensor(3, 4), tensor(4, 5), tensor(4, 5), tensor(4, 6), tensor(5, 7)
S, ROW, COLUMN, SQUARE, SQUARE2 = tensor(), tensor(4), tensor(3), tensor(4, 4), tensor(4, 4)
X, W, W2, W1, CHANNEL, BIAS = (
    tensor(2, 3, 6, 6), tensor(4, 3, 3, 3), tensor(4, 3, 3, 3), tensor(4, 3, 1, 1), tensor(4), tensor(4)
)  # fmt: skip
INPUTS = (A, A2, M, M2, M6, N, S, ROW, COLUMN, SQUARE, SQUARE2, X, W, W2, W1, CHANNEL, BIAS)


def proof_of(lhs: Node, rhs: Node) -> Proof:
    return prove(lhs, rhs, INPUTS)


def mm(x: Node, y: Node, spec: str = "mk,kn->mn") -> Node:
    return B.contract(x, y, spec=spec)


def turned(x: Node, perm: tuple[int, ...] = (1, 0)) -> Node:
    return B.permute(x, perm=perm)


def joined(axis: int, *xs: Node) -> Node:
    return B.concatenate(*xs, axis=axis)


def cut(x: Node, *ranges: tuple[int, ...]) -> Node:
    start, stop, step = ([r[k] if k < len(r) else 1 for r in ranges] for k in range(3))
    return B.slice(x, start=tuple(start), stop=tuple(stop), step=tuple(step))


def conv(x: Node, w: Node, s: int = 1, p: int = 1, d: int = 1, base: int = 1, groups: int = 1) -> Node:
    apart = {"strides": (s, s), "lhs_dilation": (base, base), "rhs_dilation": (d, d)}
    return B.conv(x, w, padding=((p, p),) * 2, groups=groups, **apart)


def along(v: Node, like: Node, axis: int) -> Node:
    return B.broadcast(v, shape=like.shape, axes=(axis,))


def padded(x: Node, low: tuple[int, ...], high: tuple[int, ...], value: float = 0.0) -> Node:
    between = (0,) * len(low)
    return B.pad(x, B.const(value, x.dtype), low=low, high=high, interior=between)


def full(like: Node, value: float) -> Node:
    return B.like(like, value)


def total(x: Node, *axes: int) -> Node:
    return B.sum(x, axes=axes)


def batch_norm(scale_of: Callable[[Node, Node], Node]) -> Sides:
    """Return a convolution, scaled and shifted per channel, and one whose filters are scaled."""
    y = conv(X, W)
    plain = B.add(B.mul(y, along(CHANNEL, y, 1)), along(BIAS, y, 1))
    return plain, B.add(conv(X, scale_of(W, CHANNEL)), along(BIAS, y, 1))


ENLARGED = padded(W1, (0, 0, 1, 1), (0, 0, 1, 1))
RIGHT: dict[str, Callable[[], Sides]] = {
    "(A B) C = A (B C)": lambda: (mm(mm(A, M), N), mm(A, mm(M, N))),
    "A B + A C = A (B + C)": lambda: (B.add(mm(A, M), mm(A, M2)), mm(A, B.add(M, M2))),
    "A C + B C = (A + B) C": lambda: (B.add(mm(A, M), mm(A2, M)), mm(B.add(A, A2), M)),
    "transposes of a product": lambda: (turned(mm(A, M)), mm(turned(M), turned(A))),
    "a transposed operand is another spec": lambda: (mm(turned(M), A, "mk,nk->mn"), turned(mm(A, M))),
    "products of one input are one product": lambda: (
        joined(1, mm(A, M), mm(A, M6)), mm(A, joined(1, M, M6))),
    "a part of one product": lambda: (mm(A, M6), cut(mm(A, joined(1, M, M6)), (0, 3), (5, 11))),
    "a sum over blocks": lambda: (
        mm(joined(1, A, A2), joined(0, M, M2)), B.add(mm(A, M), mm(A2, M2))),
    "scaling goes into a product": lambda: (
        B.mul(mm(A, M), full(mm(A, M), 0.5)), mm(B.mul(A, full(A, 0.5)), M)),
    "a scale per row goes into a product": lambda: (
        B.mul(mm(A, M), along(COLUMN, mm(A, M), 0)), mm(B.mul(A, along(COLUMN, A, 0)), M)),
    "a square": lambda: (
        B.mul(B.add(A, A2), B.sub(A, A2)), B.sub(B.mul(A, A), B.mul(A2, A2))),
    "a sum of broadcast values": lambda: (total(along(ROW, A, 1), 0), B.mul(ROW, full(ROW, 3.0))),
    "a sum of a product's rows": lambda: (total(mm(A, M), 0), mm(total(A, 0), M, "k,kn->n")),
    "a mean of rows": lambda: (
        B.div(total(A, 1), full(COLUMN, 4.0)), mm(A, full(ROW, 0.25), "mk,k->m")),
    "sums over one axis after another": lambda: (total(total(A, 0), 0), total(A, 0, 1)),
    "a sum of a reshape": lambda: (total(B.reshape(A, shape=(12,)), 0), total(A, 0, 1)),
    "extremes over one axis after another": lambda: (
        B.reduce_max(B.reduce_max(A, axes=(0,)), axes=(0,)), B.reduce_max(A, axes=(0, 1))),
    "max takes any order": lambda: (B.max(A, B.max(A2, A)), B.max(A2, A)),
    "sum of convolutions": lambda: (B.add(conv(X, W), conv(X, W2)), conv(X, B.add(W, W2))),
    "sum of strided convolutions": lambda: (
        B.add(conv(X, W, s=2), conv(X, W2, s=2)), conv(X, B.add(W, W2), s=2)),
    "sum of dilated convolutions": lambda: (
        B.add(conv(X, W, d=2, p=2), conv(X, W2, d=2, p=2)), conv(X, B.add(W, W2), d=2, p=2)),
    "convolutions of one input are one": lambda: (
        joined(1, conv(X, W), conv(X, W2)), conv(X, joined(0, W, W2))),
    "convolution, then batch norm": lambda: batch_norm(lambda w, s: B.mul(w, along(s, w, 0))),
    "1x1 is 3x3 with padded filters": lambda: (conv(X, W1, p=0), conv(X, ENLARGED)),
    "strided 1x1 is 3x3 with padded filters": lambda: (conv(X, W1, s=2, p=0), conv(X, ENLARGED, s=2)),
    "a bottleneck's sum": lambda: (B.add(conv(X, W), conv(X, W1, p=0)), conv(X, B.add(W, ENLARGED))),
    "1x1 is a contraction": lambda: (
        conv(X, W1, p=0), B.contract(X, B.reshape(W1, shape=(4, 3)), spec="ncyx,oc->noyx")),
    "padding goes into a convolution": lambda: (
        conv(padded(X, (0, 0, 1, 1), (0, 0, 1, 1)), W, p=0), conv(X, W)),
    "a scaled input": lambda: (conv(B.mul(X, full(X, 2.0)), W), conv(X, B.mul(W, full(W, 2.0)))),
}
EXACT: dict[str, Callable[[], Sides]] = {
    "transposes that cancel": lambda: (turned(turned(A)), A),
    "transposes that join": lambda: (turned(turned(X, (0, 2, 3, 1)), (0, 3, 1, 2)), X),
    "exp of a transpose": lambda: (B.exp(turned(A)), turned(B.exp(A))),
    "tanh of joined parts": lambda: (B.tanh(joined(1, M, M6)), joined(1, B.tanh(M), B.tanh(M6))),
    "parts joined again": lambda: (joined(0, cut(A, (0, 1), (0, 4)), cut(A, (1, 3), (0, 4))), A),
    "a slice of a slice": lambda: (cut(cut(A, (1, 3), (0, 4, 2)), (1, 2), (1, 2)), cut(A, (2, 3), (2, 3))),
    "addition commutes": lambda: (B.add(B.add(A, A2), A), B.add(A, B.add(A2, A))),
    "a reshape of a reshape": lambda: (
        B.reshape(B.reshape(A, shape=(2, 6)), shape=(12,)), B.reshape(A, shape=(12,))),
    "a product with a broadcast": lambda: (
        turned(B.mul(A, along(ROW, A, 1))), B.mul(turned(A), along(ROW, turned(A), 0))),
    "flips that cancel": lambda: (B.flip(B.flip(A, axes=(0, 1)), axes=(0,)), B.flip(A, axes=(1,))),
    "relu of joined parts": lambda: (
        B.max(joined(0, A, A2), full(joined(0, A, A2), 0.0)),
        joined(0, B.max(A, full(A, 0.0)), B.max(A2, full(A2, 0.0)))),
    "a part of padding": lambda: (cut(padded(A, (1, 0), (1, 2)), (1, 4), (0, 4)), A),
}  # fmt: skip


@pytest.mark.row("C2")
@pytest.mark.row("C3")
@pytest.mark.row("C4")
@pytest.mark.quick
@pytest.mark.parametrize("name", RIGHT)
def test_an_identity_of_real_numbers_is_proved_and_not_called_exact(name: str) -> None:
    found = proof_of(*RIGHT[name]())
    assert found.proved and not found.exact, found.reason
    assert found.certificate


@pytest.mark.parametrize("name", EXACT)
def test_a_move_of_elements_is_proved_to_the_bit(name: str) -> None:
    found = proof_of(*EXACT[name]())
    assert found.proved and found.exact, found.reason


WRONG: dict[str, Callable[[], Sides]] = {
    # axes and permutations
    "one transpose too few": lambda: (turned(SQUARE), SQUARE),
    "a permutation taken for its inverse": lambda: (
        turned(turned(tensor_cube(), (1, 2, 0)), (1, 2, 0)), tensor_cube()),
    "a product not turned around": lambda: (turned(mm(SQUARE, SQUARE2)), mm(turned(SQUARE), turned(SQUARE2))),
    "a product commutes": lambda: (mm(SQUARE, SQUARE2), mm(SQUARE2, SQUARE)),
    "the wrong operand transposed": lambda: (mm(SQUARE, SQUARE2, "mk,nk->mn"), mm(turned(SQUARE), SQUARE2)),
    "the wrong letters": lambda: (mm(SQUARE, SQUARE2, "mk,kn->mn"), mm(SQUARE, SQUARE2, "mk,nk->mn")),
    "the wrong side of associativity": lambda: (
        mm(mm(SQUARE, SQUARE2), SQUARE), mm(SQUARE, mm(SQUARE, SQUARE2))),
    "the sum of the wrong axis": lambda: (total(SQUARE, 0), total(SQUARE, 1)),
    "the extreme of the wrong axis": lambda: (
        B.reduce_max(SQUARE, axes=(0,)), B.reduce_max(SQUARE, axes=(1,))),
    "a broadcast along the wrong axis": lambda: (
        B.mul(SQUARE, along(ROW, SQUARE, 0)), B.mul(SQUARE, along(ROW, SQUARE, 1))),
    "a flip of the wrong axis": lambda: (B.flip(A, axes=(0,)), B.flip(A, axes=(1,))),
    "a flip forgotten": lambda: (B.flip(B.flip(A, axes=(0, 1)), axes=(0,)), A),
    "parts joined in the wrong order": lambda: (joined(0, A, A2), joined(0, A2, A)),
    "a reshape taken for a transpose": lambda: (B.reshape(A, shape=(4, 3)), turned(A)),
    "a reshape through a transpose": lambda: (
        B.reshape(turned(A), shape=(12,)), B.reshape(A, shape=(12,))),
    "axes split in the wrong order": lambda: (
        B.reshape(turned(B.reshape(A, shape=(3, 2, 2)), (0, 2, 1)), shape=(3, 4)), A),
    # slices and padding, off by one
    "a slice that begins one late": lambda: (cut(A, (0, 2), (0, 3)), cut(A, (0, 2), (1, 4))),
    "a slice of rows one late": lambda: (cut(A, (0, 2), (0, 4)), cut(A, (1, 3), (0, 4))),
    "the same part twice": lambda: (joined(0, cut(A, (0, 1), (0, 4)), cut(A, (0, 2), (0, 4))), A),
    "slices added wrongly": lambda: (cut(cut(A, (1, 3), (0, 4)), (1, 2), (0, 4)), cut(A, (1, 2), (0, 4))),
    "steps not multiplied": lambda: (
        cut(cut(tensor_line(), (0, 12, 2)), (0, 6, 2)), cut(tensor_line(), (0, 9, 3))),
    "a step forgotten in a start": lambda: (
        cut(cut(tensor_line(), (0, 12, 2)), (1, 4)), cut(tensor_line(), (1, 7, 2))),
    "a part of the wrong product": lambda: (mm(A, M), cut(mm(A, joined(1, M, M2)), (0, 3), (5, 10))),
    "a part one column late": lambda: (mm(A, M), cut(mm(A, joined(1, M, M2)), (0, 3), (1, 6))),
    "padding on the wrong side": lambda: (padded(A, (1, 0), (0, 0)), padded(A, (0, 0), (1, 0))),
    "padding cut one late": lambda: (cut(padded(A, (1, 0), (1, 0)), (0, 3), (0, 4)), A),
    "padding with another value": lambda: (padded(A, (1, 0), (0, 0), 1.0), padded(A, (1, 0), (0, 0))),
    "padding taken into exp": lambda: (B.exp(padded(A, (1, 0), (0, 0))), padded(B.exp(A), (1, 0), (0, 0))),
    "a sum of padding by one": lambda: (total(padded(A, (1, 0), (0, 0), 1.0), 0), total(A, 0)),
    "a maximum of padding by zero": lambda: (
        B.reduce_max(padded(A, (1, 0), (0, 0)), axes=(0,)), B.reduce_max(A, axes=(0,))),
    # arithmetic
    "a difference commutes": lambda: (B.sub(A, A2), B.sub(A2, A)),
    "a difference associates": lambda: (B.sub(B.sub(A, A2), A), B.sub(A, B.sub(A2, A))),
    "a quotient commutes": lambda: (B.div(A, A2), B.div(A2, A)),
    "a square of a sum": lambda: (
        B.mul(B.add(A, A2), B.add(A, A2)), B.add(B.mul(A, A), B.mul(A2, A2))),
    "exp of a sum is a sum": lambda: (B.exp(B.add(A, A2)), B.add(B.exp(A), B.exp(A2))),
    "a maximum is additive": lambda: (B.max(A, A2), B.add(A, A2)),
    "a maximum scales by any number": lambda: (
        B.max(B.neg(A), B.neg(A2)), B.neg(B.max(A, A2))),
    "a sum of products is a product of sums": lambda: (
        total(B.mul(A, A2), 0), B.mul(total(A, 0), total(A2, 0))),
    "a square of a sum over an axis": lambda: (
        B.mul(total(A, 0), total(A, 0)), total(B.mul(A, A), 0)),
    "a mean by the wrong size": lambda: (
        B.div(total(A, 1), full(COLUMN, 3.0)), mm(A, full(ROW, 0.25), "mk,k->m")),
    "a broadcast counted once": lambda: (total(along(ROW, A, 1), 0), ROW),
    "a broadcast counted by the wrong size": lambda: (total(along(ROW, A, 1), 0), B.mul(ROW, full(ROW, 4.0))),
    "a scale of one operand for both": lambda: (
        B.mul(mm(A, M), full(mm(A, M), 0.5)), mm(B.mul(A, full(A, 0.5)), B.mul(M, full(M, 0.5)))),
    "a constant that is almost the same": lambda: (
        B.mul(A, full(A, 0.1)), B.div(A, full(A, 10.0))),
    "blocks crossed": lambda: (
        mm(joined(1, A, A2), joined(0, M, M2)), B.add(mm(A, M2), mm(A2, M))),
    # convolutions
    "strides that differ": lambda: (
        B.add(conv(X, W, s=2), cut(conv(X, W2), (0, 2), (0, 4), (0, 3), (0, 3))), conv(X, B.add(W, W2), s=2)),
    "dilations that differ": lambda: (B.add(conv(X, W, d=2, p=2), conv(X, W2)), conv(X, B.add(W, W2))),
    "dilations that differ, the other way": lambda: (
        B.add(conv(X, W, d=2, p=2), conv(X, W2)), conv(X, B.add(W, W2), d=2, p=2)),
    "padding that differs": lambda: (
        B.add(conv(X, W, p=0), cut(conv(X, W2), (0, 2), (0, 4), (0, 4), (0, 4))), conv(X, B.add(W, W2), p=0)),
    "padding cut from the wrong corner": lambda: (
        conv(X, W, p=0), cut(conv(X, W), (0, 2), (0, 4), (2, 6), (1, 5))),
    "1x1 padded to one side": lambda: (
        conv(X, W1, p=0), conv(X, padded(W1, (0, 0, 2, 1), (0, 0, 0, 1)))),
    "1x1 padded with ones": lambda: (
        conv(X, W1, p=0), conv(X, padded(W1, (0, 0, 1, 1), (0, 0, 1, 1), 1.0))),
    "filters scaled by the wrong axis": lambda: (
        B.mul(conv(X, SQUARES), along(CUBE_SCALE, conv(X, SQUARES), 1)),
        conv(X, B.mul(SQUARES, along(CUBE_SCALE, SQUARES, 1)))),
    "a bias scaled too": lambda: (
        B.mul(B.add(conv(X, W), along(BIAS, conv(X, W), 1)), along(CHANNEL, conv(X, W), 1)),
        B.add(conv(X, B.mul(W, along(CHANNEL, W, 0))), along(BIAS, conv(X, W), 1))),
    "filters joined in the wrong order": lambda: (
        joined(1, conv(X, W), conv(X, W2)), conv(X, joined(0, W2, W))),
    "flipped filters": lambda: (conv(X, W), conv(X, B.flip(W, axes=(2, 3)))),
    "filters transposed in space": lambda: (conv(X, W), conv(X, turned(W, (0, 1, 3, 2)))),
    "groups for one": lambda: (
        conv(FOUR, GROUPED, groups=2), conv(FOUR, joined(1, GROUPED, GROUPED))),
}  # fmt: skip
_MORE: dict[str, Node] = {}


def tensor_cube() -> Node:
    return _MORE.setdefault("cube", tensor(3, 3, 3))


def tensor_line() -> Node:
    return _MORE.setdefault("line", tensor(12))


SQUARES, CUBE_SCALE, FOUR, GROUPED = tensor(3, 3, 3, 3), tensor(3), tensor(2, 4, 6, 6), tensor(4, 2, 3, 3)
tensor_cube(), tensor_line()
INPUTS = (*INPUTS, SQUARES, CUBE_SCALE, FOUR, GROUPED, *_MORE.values())


@pytest.mark.row("C10")
@pytest.mark.parametrize("name", WRONG)
def test_a_planted_wrong_rule_is_refused(name: str) -> None:
    lhs, rhs = WRONG[name]()
    assert lhs.type == rhs.type, "a wrong rule should be wrong in values, not in types"
    found = proof_of(lhs, rhs)
    assert not found.proved and found.reason.startswith("the forms differ")


def test_fifty_wrong_rules_are_planted() -> None:
    assert len(WRONG) >= 50


def test_types_that_differ_are_refused() -> None:
    assert prove(turned(A), A, INPUTS).reason.startswith("types differ")


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(VerifyError, match="different names"):
        prove(A, A2, (A, A2), ("x", "x"))


def test_an_input_that_is_not_listed_is_unknown() -> None:
    assert prove(A, A2, (A,)).reason.startswith("unknown")


def test_integers_are_a_ring_and_proofs_hold_to_the_bit() -> None:
    x, y, z = (tensor(n, m, dtype=int32) for n, m in ((3, 4), (4, 5), (5, 2)))
    found = prove(mm(mm(x, y), z), mm(x, mm(y, z)), (x, y, z))
    assert found.proved and found.exact


def test_a_rounding_between_two_ops_is_no_identity_to_the_bit() -> None:
    x, y = tensor(3, dtype=bfloat16), tensor(3, dtype=bfloat16)
    found = prove(B.neg(B.neg(B.add(x, y))), B.add(x, y), (x, y))
    assert found.proved and not found.exact


def test_a_proof_does_not_look_at_elements() -> None:
    big = [tensor(*shape) for shape in ((1 << 20, 1 << 19), (1 << 19, 1 << 18), (1 << 18, 3))]
    x, y, z = big
    assert prove(mm(mm(x, y), z), mm(x, mm(y, z)), big).proved
    assert math.prod(x.shape) > 1 << 38
