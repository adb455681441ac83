"""From a graph of records to a form: each record's tensor expression, put into the next one.

`Reader(ring=True)` reads over the real numbers: sums, products, differences and quotients by constants are
those of a ring, a conversion between floats changes nothing, and an integer is taken modulo 2^bits, where
identities of rings hold as they stand. `Reader(ring=False)` reads to the bit: arithmetic of floats is a
function of which only equal arguments give equal values (sums and products of two commute), and an
accumulation of floats is not read at all, for its order is the schedule's. Every other function is such a
function in both.

What is assumed of a record: `lower` says what it computes (contract tests compare it with `ref`). A body made
of ring functions alone is read over the reals as it is written; one with any other function than those in
`PLAIN`, such as the polynomial of an exponential, is one function of what it reads, named by its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from typing import Final

from stratal.base.dtypes import DType, bool_, int64
from stratal.base.errors import StratalError
from stratal.discover.canonical import named, order_free, simplified, text_of
from stratal.discover.terms import (
    Access,
    Apply,
    Condition,
    Form,
    Position,
    Reduce,
    Unknown,
    by_pieces,
    constant_of,
    factor,
    mentions,
    number,
    plus,
    replaced,
    scaled,
    summed,
    times,
    where,
    zero_at,
)
from stratal.graph.node import Const as ConstOp
from stratal.graph.node import Input, Node, topological
from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Load, Var, index_const, loads, walk
from stratal.loops.index import add, sub

RING: Final = frozenset(("add", "sub", "mul", "neg", "fma", "div"))
PLAIN: Final = RING | frozenset(
    ("cast", "max", "min", "abs", "sqrt", "select", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not")
)
"""Functions that are read one by one; a body with any other is read as one function of its loads."""
COMMUTE: Final = frozenset(("add", "mul"))  # of floats, to the bit
EXTREMES: Final = frozenset(("max", "min"))
IDEMPOTENT: Final = frozenset(("max", "min", "any", "all"))
IN_ANY_ORDER: Final = IDEMPOTENT | {"prod"}


class Reader:
    """Reads nodes as forms of their inputs, each node once.

    `names` are those of the inputs. Sizes are those of the graph; no element is looked at, so the work does
    not depend on them.
    """

    def __init__(self, names: dict[Node, str], *, ring: bool = True) -> None:
        self._names = names
        self._ring = ring
        self._read: dict[Node, tuple[tuple[Var, ...], Form]] = {}

    def element(self, node: Node) -> Form:
        """Return the element of a node at the indices `i0`, `i1`, ... Raises: Unknown."""
        shape = node.aval.ints
        if 0 in shape:
            raise Unknown("a tensor of no elements")
        for below in topological([node]):
            if below not in self._read:
                self._read[below] = self._generic(below)
        axes = [named(f"i{k}", n) for k, n in enumerate(shape)]
        return simplified(self._at(node, zero_at(shape, axes)))

    def _at(self, node: Node, indices: Sequence[Expr]) -> Form:
        axes, form = self._read[node]
        return replaced(form, dict(zip(axes, indices, strict=True)))

    def _generic(self, node: Node) -> tuple[tuple[Var, ...], Form]:
        """Return a node's element at indices of its own."""
        try:
            shape = node.aval.ints
        except StratalError as error:
            raise Unknown(f"{node.op.name}: several results, or a symbolic size") from error
        if node in self._names:
            axes = tuple(Var(f"a{k}", n) for k, n in enumerate(shape))
            return axes, factor(Access(self._names[node], zero_at(shape, axes)))
        if isinstance(node.op, ConstOp):
            axes = tuple(Var(f"a{k}", n) for k, n in enumerate(shape))
            return axes, self._stored(node.op)
        if isinstance(node.op, Input):
            raise Unknown(f"an input that no side lists: {node.op.label}")
        compute = compute_of(node)
        body = _Body(self, node, dict(zip(compute.args, node.inputs, strict=True)))
        return compute.axes, simplified(body.result(compute))

    def _stored(self, op: ConstOp) -> Form:
        array = op.value.array
        if array.size != 1:
            raise Unknown("a constant tensor")
        return self.constant(array.reshape(()).item(), op.value.type.dtype)

    def constant(self, value: object, dtype: DType) -> Form:
        """Return an immediate."""
        if self.is_ring(dtype) and isinstance(value, (int, float)) and isfinite(value):
            return number(Fraction(value))
        return factor(Apply(f"{value!r}:{dtype}", ()))

    def is_ring(self, dtype: DType) -> bool:
        """Return whether sums and products of a dtype are read as those of a ring."""
        return dtype.is_integer or (self._ring and dtype.is_float)


def compute_of(node: Node) -> Compute:
    """Return the tensor expression of a node. Raises: Unknown where it has none."""
    types = [i.aval for i in node.inputs]
    reason = node.op.host_reason(*types)
    if reason or node.op.effects:
        raise Unknown(f"{node.op.name}: {reason or 'has effects'}")
    lowered = node.op.lower(*types)
    if not isinstance(lowered, Compute):
        raise Unknown(f"{node.op.name}: no tensor expression")
    if lowered.checks:
        raise Unknown(f"{node.op.name}: raises for some values")
    return lowered


class _Body:
    """Reads the terms of one tensor expression."""

    def __init__(self, reader: Reader, node: Node, operands: dict[Buffer, Node]) -> None:
        self.reader = reader
        self.node = node
        self.operands = operands

    def result(self, compute: Compute) -> Form:
        """Return the element at the axes of the expression."""
        terms = [self.term(t) for t in compute.terms]
        dtype = compute.terms[0].dtype
        if compute.combiner is None:
            return self._cast(terms[0], dtype, compute.dtype)
        name = compute.combiner.name
        if compute.combiner.num_states != 1 or name not in IN_ANY_ORDER | {"sum", "dot"}:
            raise Unknown(f"{self.node.op.name}: combines by {name}")
        if dtype.is_float and not self.reader.is_ring(dtype):
            raise Unknown(f"{self.node.op.name}: accumulates floats, in the schedule's order")
        if name in ("sum", "dot"):
            if not self.reader.is_ring(dtype):
                raise Unknown(f"{self.node.op.name}: adds up what is no number")
            product = terms[0] if name == "sum" else times(terms[0], terms[1])
            return self._cast(summed(product, compute.reduce), dtype, compute.dtype)
        return self._cast(_reduction(name, compute.reduce, terms[0]), dtype, compute.dtype)

    def term(self, expr: Expr) -> Form:
        """Read an expression as a whole: function by function, or as one function of its loads."""
        used = {e.fn for e in walk([expr]) if isinstance(e, Call) and not is_index(e)}
        return self.read(expr) if used <= PLAIN else self._opaque(expr)

    def read(self, expr: Expr) -> Form:
        """Read one function, its arguments first. Raises: Unknown."""
        if isinstance(expr, Const):
            return self.reader.constant(expr.value, expr.dtype)
        if isinstance(expr, Load):
            return self._load(expr)
        if is_index(expr):
            return factor(Position(expr))
        if isinstance(expr, Guard):
            return self._chosen(expr.condition, self.read(expr.value), self.read(expr.otherwise))
        if not isinstance(expr, Call):
            raise Unknown(f"{self.node.op.name}: reads {type(expr).__name__}")
        if expr.fn == "select" and not loads([expr.args[0]]):
            return self._chosen(expr.args[0], self.read(expr.args[1]), self.read(expr.args[2]))
        arguments = tuple(self.read(a) for a in expr.args)
        if expr.fn == "cast":
            return self._cast(arguments[0], expr.args[0].dtype, expr.dtype)
        if expr.fn in RING and self.reader.is_ring(expr.dtype):
            return _arithmetic(expr.fn, expr.dtype, arguments)
        return _function(expr.fn, expr.args[0].dtype, arguments, exact=not self.reader.is_ring(expr.dtype))

    def _load(self, load: Load) -> Form:
        if loads(load.indices):
            raise Unknown(f"{self.node.op.name}: data say where it reads")
        return self.reader._at(self.operands[load.buffer], load.indices)

    def _cast(self, form: Form, source: DType, target: DType) -> Form:
        if source is target:
            return form
        if source.is_float and target.is_float and self.reader.is_ring(source):
            return form
        return by_pieces(lambda a: factor(Apply(f"cast.{source}.{target}", a)), (form,))

    def _chosen(self, condition: Expr, value: Form, otherwise: Form) -> Form:
        holds = indicator(condition)
        fails = plus(number(1), scaled(holds, -1))
        if isinstance(condition, Call) and condition.fn in ("lt", "le", "gt", "ge"):
            (one,) = holds.terms[0].where
            if one.complement is not None:
                fails = where([one.complement], number(1))
        return plus(times(holds, value), times(fails, otherwise))

    def _opaque(self, expr: Expr) -> Form:
        """Read an expression as one function of what it loads, named by its text."""
        name, found = opaque(self.node, expr)
        return by_pieces(lambda a: factor(Apply(name, a)), tuple(self._load(e) for e in found))


def is_index(expr: Expr) -> bool:
    """Return whether an expression is arithmetic of indices: it depends on them and on no data."""
    return expr.dtype is int64 and bool(expr.free) and not loads([expr])


def opaque(node: Node, expr: Expr) -> tuple[str, list[Load]]:
    """Return the name of an expression as a function of its loads, and these. Raises: Unknown."""
    found = loads([expr])
    text = _text_with_holes(expr, {e: f"#{k}" for k, e in enumerate(found)})
    return f"{node.op.name}.{hashlib.sha256(text.encode()).hexdigest()[:24]}", found


def _text_with_holes(expr: Expr, holes: dict[Load, str]) -> str:
    """Return the text of an expression, its loads numbered; an index outside of a load is not hidden.

    Raises: Unknown where there is one.
    """
    texts: dict[Expr, str] = {}
    numbers: dict[str, int] = {}

    def inside(e: Expr) -> Sequence[Expr]:
        return () if isinstance(e, Load) else e.parts

    for e in walk([expr], inside):
        if isinstance(e, Load):
            text = holes[e]
        elif isinstance(e, Const):
            text = f"{e.value!r}:{e.dtype}"
        elif isinstance(e, Call):
            text = f"{e.fn}.{e.dtype}({','.join(texts[a] for a in e.args)})"
        else:
            raise Unknown(f"a function with {type(e).__name__}")
        texts[e] = f"%{numbers.setdefault(text, len(numbers))}"  # numbered: a shared part is written once
    return ";".join(numbers)


def _arithmetic(fn: str, dtype: DType, arguments: tuple[Form, ...]) -> Form:
    """Return a function of a ring."""
    first = arguments[0]
    if fn == "neg":
        return scaled(first, -1)
    second = arguments[1]
    if fn == "add":
        return plus(first, second)
    if fn == "sub":
        return plus(first, scaled(second, -1))
    if fn == "mul":
        return times(first, second)
    if fn == "fma":
        return plus(times(first, second), arguments[2])
    divisor = constant_of(simplified(second))
    if divisor is not None and divisor and dtype.is_float:
        return scaled(first, 1 / divisor)
    return times(first, by_pieces(lambda a: factor(Apply(f"inverse.{dtype}", a)), (second,)))


def _function(fn: str, dtype: DType, arguments: tuple[Form, ...], *, exact: bool) -> Form:
    """Return a function of which little is known: that max and min of numbers take them in any order."""
    name = f"{fn}.{dtype}"

    def build(a: tuple[Form, ...]) -> Form:
        if fn in EXTREMES and not exact:
            return _extreme(name, a)
        if exact and fn == "sub":  # x - y is x + (-y), rounded once
            return _function("add", dtype, (a[0], _function("neg", dtype, a[1:], exact=True)), exact=True)
        if exact and fn == "neg" and (inner := _negated(name, a[0])) is not None:
            return inner
        return factor(Apply(name, order_free(a) if exact and fn in COMMUTE else a))

    return by_pieces(build, arguments)


def _negated(name: str, form: Form) -> Form | None:
    """Return what a form is the negation of, if it is one: the sign is a bit that turns over."""
    inner = form.terms[0].factors[0] if len(form.terms) == 1 and form.terms[0].factors else None
    if isinstance(inner, Apply) and inner.function == name and form == factor(inner):
        return inner.arguments[0]
    return None


def _extreme(name: str, arguments: tuple[Form, ...]) -> Form:
    """Return the extreme of some values: of extremes, that of all they are taken of; of one, itself."""
    flat: dict[str, Form] = {}
    for a in map(simplified, arguments):
        inner = a.terms[0].factors[0] if len(a.terms) == 1 and len(a.terms[0].factors) == 1 else None
        same = isinstance(inner, Apply) and inner.function == name and a == factor(inner)
        for part in inner.arguments if same and isinstance(inner, Apply) else (a,):
            flat[text_of(part)] = part
    values = tuple(flat[k] for k in sorted(flat))
    return values[0] if len(values) == 1 else factor(Apply(name, values))


def _reduction(name: str, over: Sequence[Var], body: Form) -> Form:
    """Return the combination of a form over indices; over none, or over one value each, the form itself."""
    single = {v: index_const(0) for v in over if v.extent == 1}
    body = simplified(replaced(body, single))
    asked = tuple(v for v in over if v.extent != 1)
    if not asked:
        return body

    def build(a: tuple[Form, ...]) -> Form:
        (form,) = map(simplified, a)
        bound = asked
        if name in IDEMPOTENT:
            parts = [p for t in form.terms for p in (*t.where, *t.factors)]
            bound = tuple(v for v in asked if not v.extent or any(mentions(p, v) for p in parts))
        if not bound:
            return form
        inner = form.terms[0].factors[0] if len(form.terms) == 1 and form.terms[0].factors else None
        if isinstance(inner, Reduce) and inner.combiner == name and form == factor(inner):
            return factor(Reduce(name, bound + inner.bound, inner.body))
        return factor(Reduce(name, bound, form))

    return by_pieces(build, (body,), asked)


# -- conditions ----------------------------------------------------------------------------------------------
def indicator(condition: Expr) -> Form:
    """Return 1 where a condition on indices holds, else 0. Raises: Unknown for one on data."""
    if isinstance(condition, Const):
        return number(int(bool(condition.value)))
    if not isinstance(condition, Call) or loads([condition]):
        raise Unknown("a condition that data decide")
    a, b = condition.args[0], condition.args[-1]
    if condition.fn == "and" and condition.dtype is bool_:
        return times(indicator(a), indicator(b))
    if condition.fn == "or" and condition.dtype is bool_:
        either = plus(indicator(a), indicator(b))
        return plus(either, scaled(times(indicator(a), indicator(b)), -1))
    if condition.fn == "not":
        return plus(number(1), scaled(indicator(a), -1))
    if a.dtype is not int64:
        raise Unknown(f"a condition by {condition.fn} of {a.dtype}")
    if condition.fn == "ne":
        return plus(number(1), scaled(where([Condition("eq", sub(a, b))], number(1)), -1))
    made = {
        "lt": lambda: Condition("ge", add(sub(b, a), -1)),
        "le": lambda: Condition("ge", sub(b, a)),
        "gt": lambda: Condition("ge", add(sub(a, b), -1)),
        "ge": lambda: Condition("ge", sub(a, b)),
        "eq": lambda: Condition("eq", sub(a, b)),
    }.get(condition.fn)
    if made is None:
        raise Unknown(f"a condition by {condition.fn}")
    return where([made()], number(1))
