"""What a graph gives for random inputs, exactly: in the field of integers modulo a prime.

Sums, products and quotients are those of the field, where two polynomials that differ agree for few of 2^31
draws. Extremes and comparisons take residues in a random order. Every other function is a random function of
residues, drawn by its name: what it is called with decides what it gives, and nothing else, as in
`normal_form`. So what the prover can prove has one fingerprint, and what differs in one element of two draws
needs no proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType
from stratal.discover.normal_form import PLAIN, RING, compute_of, is_index, opaque
from stratal.discover.terms import Unknown
from stratal.graph.node import Const as ConstOp
from stratal.graph.node import Input, Node
from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Load, Var, loads, walk
from stratal.loops.interpret import grid

PRIME: Final = (1 << 31) - 1
MOST_VALUES: Final = 1 << 21  # products of one tensor that are made at once
Array = np.ndarray[Any, Any]


def draws(types: Sequence[Any], seed: int) -> list[Array]:
    """Return a tensor of random residues per type; of bools for a bool one."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2 if t.dtype.is_bool else PRIME, t.ints, dtype=np.int64) for t in types]


def residue(value: object) -> int | None:
    """Return a number in the field; None for what is no finite number."""
    if not isinstance(value, (int, float)) or not isfinite(value):
        return None
    exact = Fraction(value)
    if exact.denominator % PRIME == 0:
        return None
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def evaluate(node: Node, operands: Sequence[Array]) -> Array:
    """Return a node's value from those of its operands. Raises: Unknown where it has no tensor expression."""
    if isinstance(node.op, ConstOp):
        found = [_constant(v, node.op.value.type.dtype) for v in node.op.value.array.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(node.aval.ints)
    if isinstance(node.op, Input):
        raise Unknown("an input that has no value")
    compute = compute_of(node)
    size = int(np.prod([v.extent for v in (*compute.axes, *compute.reduce)], dtype=np.float64))
    if size > MOST_VALUES:
        raise Unknown("too many products for a fingerprint")
    return _Values(node, compute, dict(zip(compute.args, operands, strict=True))).result()


def digest(values: Sequence[Array]) -> bytes:
    """Return the fingerprint of the values that several draws gave."""
    sha = hashlib.sha256()
    for v in values:
        sha.update(repr(v.shape).encode())
        sha.update(np.ascontiguousarray(v).tobytes())
    return sha.digest()


def _constant(value: object, dtype: DType) -> int:
    if dtype.is_bool:
        return int(bool(value))
    found = residue(value)
    return int(drawn(f"{value!r}:{dtype}", ())) if found is None else found


def drawn(name: str, arguments: Sequence[Array]) -> Array:
    """Return the random function called `name` of residues, element by element."""
    mixed: Array = np.asarray(int(hashlib.sha256(name.encode()).hexdigest()[:16], 16), np.uint64)
    with np.errstate(over="ignore"):
        for a in arguments:
            mixed = (mixed ^ a.astype(np.uint64)) * np.uint64(0xD6E8FEB86659FD93)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xCA5A826395121157)
            mixed = mixed ^ (mixed >> np.uint64(29))
    return np.asarray((mixed % np.uint64(PRIME)).astype(np.int64))


def inverse(x: Array) -> Array:
    """Return 1 / x in the field; of 0, which has none, a random residue."""
    result, power, exponent = np.ones_like(x), x % PRIME, PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * power % PRIME
        power = power * power % PRIME
        exponent >>= 1
    return np.where(x % PRIME == 0, drawn("inverse of 0", ()), result)


_SCALE: Final = 1_237_489_337
_SHIFT: Final = 871_120_439


def rank(x: Array) -> Array:
    """Return how residues are ordered: as random ones are, so that 0 is no lowest number."""
    return (x * _SCALE + _SHIFT) % PRIME


def unranked(x: Array) -> Array:
    """Return the residues that have these ranks."""
    return (x - _SHIFT) % PRIME * pow(_SCALE, -1, PRIME) % PRIME


_ORDER: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_INDEX: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.remainder
}  # fmt: skip
_REDUCE: Final[dict[str, Callable[..., Array]]] = {
    "max": np.max, "min": np.min
}  # fmt: skip


class _Values:
    """Evaluates one tensor expression on all of its indices at once."""

    def __init__(self, node: Node, compute: Compute, arrays: dict[Buffer, Array]) -> None:
        self.node = node
        self.compute = compute
        self.arrays = arrays
        axes = (*compute.axes, *compute.reduce)
        self.full = tuple(v.extent for v in axes)
        self.known: dict[Expr, Array] = dict(grid(axes))

    def result(self) -> Array:
        compute = self.compute
        terms = [np.broadcast_to(self.term(t), self.full) for t in compute.terms]
        if compute.combiner is None:
            return self._cast(terms[0], compute.terms[0].dtype, compute.dtype).copy()
        flat = [t.reshape((*compute.shape, -1)) for t in terms]
        name = compute.combiner.name
        if name == "dot":
            found = (flat[0] * flat[1] % PRIME).sum(axis=-1) % PRIME
        elif name == "sum":
            found = flat[0].sum(axis=-1) % PRIME
        elif name == "prod":
            found = np.ones(compute.shape, np.int64)
            for k in range(flat[0].shape[-1]):
                found = found * flat[0][..., k] % PRIME
        elif name in ("any", "all"):
            found = flat[0].any(axis=-1) if name == "any" else flat[0].all(axis=-1)
            found = found.astype(np.int64)
        elif name in _REDUCE and flat[0].shape[-1]:
            found = unranked(_REDUCE[name](rank(flat[0]), axis=-1))
        else:
            raise Unknown(f"{self.node.op.name}: combines by {name}")
        return self._cast(np.asarray(found), compute.terms[0].dtype, compute.dtype)

    def term(self, expr: Expr) -> Array:
        used = {e.fn for e in walk([expr]) if isinstance(e, Call) and not is_index(e)}
        if used <= PLAIN:
            return self.value(expr)
        name, found = opaque(self.node, expr)
        return drawn(name, [self.value(e) for e in found])

    def value(self, expr: Expr) -> Array:
        if expr not in self.known:
            self.known[expr] = self._value(expr)
        return self.known[expr]

    def _value(self, expr: Expr) -> Array:
        if isinstance(expr, Const):
            return np.asarray(_constant(expr.value, expr.dtype), np.int64)
        if isinstance(expr, Load):
            return self._load(expr)
        if isinstance(expr, Guard):
            holds = self.condition(expr.condition)
            return np.where(holds, self.value(expr.value), self.value(expr.otherwise))
        if is_index(expr):
            return self.index(expr) % PRIME
        if not isinstance(expr, Call):
            raise Unknown(f"{self.node.op.name}: reads {type(expr).__name__}")
        if expr.fn == "select" and not loads([expr.args[0]]):
            return np.where(self.condition(expr.args[0]), self.value(expr.args[1]), self.value(expr.args[2]))
        return self._call(expr, [self.value(a) for a in expr.args])

    def _call(self, expr: Call, a: list[Array]) -> Array:
        fn, dtype = expr.fn, expr.args[0].dtype
        if fn == "cast":
            return self._cast(a[0], dtype, expr.dtype)
        if fn in RING and not expr.dtype.is_bool:
            return _field(fn, a)
        if fn in ("max", "min"):
            first = _ORDER["ge" if fn == "max" else "le"](rank(a[0]), rank(a[1]))
            return np.where(first, a[0], a[1])
        if fn in _ORDER:
            return _ORDER[fn](rank(a[0]), rank(a[1])).astype(np.int64)
        if fn == "select":
            return np.where(a[0] != 0, a[1], a[2])
        if dtype.is_bool and fn in ("and", "or", "not"):
            return 1 - a[0] if fn == "not" else np.minimum(*a) if fn == "and" else np.maximum(*a)
        return drawn(f"{fn}.{dtype}", a)

    def _cast(self, x: Array, source: DType, target: DType) -> Array:
        if source is target or (source.is_float and target.is_float):
            return x
        if target.is_bool:
            return np.asarray(x != 0, np.int64)
        return drawn(f"cast.{source}.{target}", [x])

    def _load(self, load: Load) -> Array:
        array = self.arrays[load.buffer]
        if loads(load.indices):
            raise Unknown(f"{self.node.op.name}: data say where it reads")
        at = [np.clip(self.index(i), 0, n - 1) for i, n in zip(load.indices, array.shape, strict=True)]
        return np.asarray(array[tuple(at)] if at else array)

    def index(self, expr: Expr) -> Array:
        """Return the values of an index."""
        if isinstance(expr, Const):
            return np.asarray(expr.value, np.int64)
        if isinstance(expr, Var):
            return self.known[expr]
        if not isinstance(expr, Call) or expr.fn not in _INDEX:
            raise Unknown(f"{self.node.op.name}: an index by {expr}")
        return np.asarray(_INDEX[expr.fn](*(self.index(a) for a in expr.args)))

    def condition(self, expr: Expr) -> Array:
        """Return where a condition on indices holds. Raises: Unknown for one on data."""
        if isinstance(expr, Const):
            return np.asarray(bool(expr.value))
        if not isinstance(expr, Call) or loads([expr]):
            raise Unknown("a condition that data decide")
        if expr.fn in ("and", "or", "not"):
            parts = [self.condition(a) for a in expr.args]
            return np.asarray({"and": np.logical_and, "or": np.logical_or}[expr.fn](*parts)
                              if expr.fn != "not" else ~parts[0])  # fmt: skip
        if expr.fn not in _ORDER:
            raise Unknown(f"a condition by {expr.fn}")
        return np.asarray(_ORDER[expr.fn](*(self.index(a) for a in expr.args)))


def _field(fn: str, a: Sequence[Array]) -> Array:
    if fn == "neg":
        return -a[0] % PRIME
    if fn == "add":
        return (a[0] + a[1]) % PRIME
    if fn == "sub":
        return (a[0] - a[1]) % PRIME
    if fn == "fma":
        return (a[0] * a[1] % PRIME + a[2]) % PRIME
    return a[0] * (inverse(a[1]) if fn == "div" else a[1]) % PRIME
