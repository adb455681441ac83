"""The one way to write a form: equal texts mean equal values.

Every step below is an identity of sums over finite ranges of integers, none is a guess:

    sum over i < n of t                    ->  n * t                        where t does not mention i
    sum over i < n of [i >= a] t(i)        ->  sum over j < n - a of t(j + a)
    sum over i < n of [i == e] t(i)        ->  [0 <= e < n] t(e)
    sum over i < n of t(i // c, i % c)     ->  sum over j < n / c, k < c of t(j, k)      where c divides n
    [a] [b] t                              ->  0 where a and b exclude each other, [a] t where b follows
    [c] t + [not c] t                      ->  t

Bound indices are then named by the least text that any order of them gives. Two ways of writing one value
that have no common text are not found equal: the form is sound, not complete.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from stratal.discover.terms import (
    Access,
    Apply,
    Condition,
    Factor,
    Form,
    Position,
    Term,
    Unknown,
    indices_of,
    mentions,
    rewritten,
)
from stratal.loops.expr import Call, Const, Expr, Var, index_const, walk
from stratal.loops.index import add, bounds, floordiv, from_linear, linear, mul

MOST_ORDERS = 720  # of bound indices that look alike
Parts = Mapping[str, tuple[tuple[str, ...], str]]  # of a product's text: its conditions, and the rest


@lru_cache(maxsize=1 << 12)
def named(name: str, extent: int) -> Var:
    """Return the index of a canonical name: one object, so that expressions with it are one object, too."""
    return Var(name, extent)


# -- simplification ------------------------------------------------------------------------------------------
def simplified(form: Form) -> Form:
    """Return a form whose terms are as plain as the identities above make them."""
    return Form(tuple(t for term in form.terms if (t := _simplified(term)) is not None))


def _simplified(term: Term) -> Term | None:
    """Return a plainer term; None where it is 0."""
    while True:
        if not term.coefficient or any(v.extent == 0 for v in term.bound):
            return None
        conditions = _decided(term.where)
        if conditions is None:
            return None
        term = term._replace(where=conditions)
        changed = _without_idle(term) or _in_range(term) or _solved(term) or _split(term)
        if changed is None:
            return term
        term = changed


def _decided(conditions: Iterable[Condition]) -> frozenset[Condition] | None:
    """Return the conditions that are left to ask; None where they exclude each other."""
    left: set[Condition] = set()
    for condition in conditions:
        found = _normal(condition)
        if found is None:
            return None
        if isinstance(found, Condition):
            left.add(found)
    inequalities = [c for c in left if c.kind == "ge"]
    for a, b in itertools.permutations(inequalities, 2):
        if bounds(add(a.of, b.of))[1] < 0:
            return None
        if b in left and a in left and bounds(add(b.of, mul(a.of, -1)))[0] >= 0:
            left.discard(b)  # b follows from a
    return frozenset(left)


def _normal(condition: Condition) -> Condition | bool | None:
    """Return a condition in lowest terms; True where it always holds, None where it never does."""
    terms, constant = linear(condition.of)
    divisor = math.gcd(*terms.values()) if terms else 1
    low, high = bounds(condition.of)
    if condition.kind == "ge":
        if low >= 0:
            return True
        if high < 0:
            return None
        return Condition("ge", from_linear({a: c // divisor for a, c in terms.items()}, constant // divisor))
    if low > 0 or high < 0 or constant % divisor:
        return None
    if low == high == 0:
        return True
    reduced = from_linear({a: c // divisor for a, c in terms.items()}, constant // divisor)
    return Condition("eq", min(reduced, mul(reduced, -1), key=str))


def _without_idle(term: Term) -> Term | None:
    """Drop a bound index of one value, or one that nothing mentions."""
    for v in term.bound:
        rest = tuple(b for b in term.bound if b is not v)
        if v.extent == 1:
            return rewritten(term, {v: index_const(0)}, rest)
        if not any(mentions(p, v) for p in (*term.where, *term.factors)):
            return term._replace(coefficient=term.coefficient * v.extent, bound=rest)
    return None


def _in_range(term: Term) -> Term | None:
    """Let a bound index run only where conditions on it alone hold."""
    for condition in term.where:
        terms, constant = linear(condition.of)
        if condition.kind != "ge" or len(terms) != 1:
            continue
        ((v, c),) = terms.items()
        if not isinstance(v, Var) or v not in term.bound:
            continue
        low, high = 0, v.extent - 1
        if c > 0:
            low = max(low, -(constant // c))
        else:
            high = min(high, constant // -c)
        count = max(0, high - low + 1)
        fresh = Var(v.name, count)
        bound = tuple(fresh if b is v else b for b in term.bound)
        rest = term._replace(where=term.where - {condition})
        return rewritten(rest, {v: add(fresh, low)}, bound)
    return None


def _solved(term: Term) -> Term | None:
    """Put the value of a bound index that an equation gives in its place."""
    for condition in term.where:
        if condition.kind != "eq":
            continue
        terms, constant = linear(condition.of)
        for v, c in terms.items():
            others = {a: k for a, k in terms.items() if a is not v}
            if not isinstance(v, Var) or v not in term.bound or abs(c) != 1:
                continue
            if any(v in a.free for a in others):
                continue
            value = mul(from_linear(others, constant), -c)
            inside = Condition("ge", value), Condition("ge", add(mul(value, -1), v.extent - 1))
            rest = term._replace(where=(term.where - {condition}) | frozenset(inside))
            return rewritten(rest, {v: value}, tuple(b for b in term.bound if b is not v))
    return None


def _split(term: Term) -> Term | None:
    """Run over quotient and remainder of a bound index that is divided."""
    indices = [e for p in (*term.where, *term.factors) for e in indices_of(p)]
    for v in term.bound:
        for c in sorted(_divisors(indices, v)):
            if v.extent % c or c >= v.extent:
                continue
            quotient, remainder = Var(v.name, v.extent // c), Var(v.name, c)
            bound = tuple(x for b in term.bound for x in ((quotient, remainder) if b is v else (b,)))
            made = rewritten(term, {v: add(mul(quotient, c), remainder)}, bound)
            after = [e for p in (*made.where, *made.factors) for e in indices_of(p)]
            if _divisions(after) < _divisions(indices):
                return made
    return None


def _divisors(indices: Iterable[Expr], v: Var) -> set[int]:
    divided = (e for e in walk(indices) if isinstance(e, Call) and e.fn in ("floordiv", "mod"))
    return {int(e.args[1].value) for e in divided if v in e.free and isinstance(e.args[1], Const)}


def _divisions(indices: Iterable[Expr]) -> int:
    return sum(isinstance(e, Call) and e.fn in ("floordiv", "mod") for i in indices for e in walk([i]))


# -- one text ------------------------------------------------------------------------------------------------
def canonical(form: Form, depth: int = 0) -> dict[str, Fraction]:
    """Return the coefficient of every different product, by its text; equal forms give equal tables."""
    total: dict[str, Fraction] = {}
    where: dict[str, tuple[tuple[str, ...], str]] = {}
    for term in simplified(form).terms:
        conditions, rest = _least(term, depth)
        text = " ".join((*conditions, rest))
        where[text] = conditions, rest
        total[text] = total.get(text, Fraction(0)) + term.coefficient
    return _joined({t: c for t, c in total.items() if c}, where)


def text_of(form: Form, depth: int = 0) -> str:
    """Return the text that stands for a form, and for no form of another value."""
    rows = sorted(canonical(form, depth).items())
    return " + ".join(text if c == 1 else f"{c} {text}" for text, c in rows) or "0"


def _joined(total: dict[str, Fraction], where: Parts) -> dict[str, Fraction]:
    """Join [c] t + [not c] t to t, where both have the same coefficient."""
    while True:
        pair = _complementary(total, where)
        if pair is None:
            return total
        a, b, conditions = pair
        rest = where[a][1]
        text = " ".join((*conditions, rest))
        where = {**where, text: (conditions, rest)}
        coefficient = total[a] + total.get(text, Fraction(0))
        total = {t: c for t, c in total.items() if t not in (a, b, text)}
        if coefficient:
            total[text] = coefficient


def _complementary(total: Mapping[str, Fraction], where: Parts) -> tuple[str, str, tuple[str, ...]] | None:
    for a, b in itertools.combinations(sorted(total), 2):
        if total[a] != total[b] or where[a][1] != where[b][1]:
            continue
        common = tuple(c for c in where[a][0] if c in where[b][0])
        (left, right) = ([c for c in where[t][0] if c not in common] for t in (a, b))
        if len(left) == len(right) == 1 and left[0] == _complement(right[0]):
            return a, b, common
    return None


def _complement(text: str) -> str:
    """Return the text of the complement of a condition that has one: both stand in it, this one first."""
    first, mark, second = text[1:-1].partition(" not ")
    return f"[{second} not {first}]" if mark else ""


def _least(term: Term, depth: int) -> tuple[tuple[str, ...], str]:
    """Return the texts of a term's conditions and of the rest, the least of those in any order of indices."""
    alike = _classes(term, depth)
    if math.prod(math.factorial(len(c)) for c in alike) > MOST_ORDERS:
        raise Unknown("too many bound indices look alike")
    texts = []
    for orders in itertools.product(*(itertools.permutations(c) for c in alike)):
        order = [v for part in orders for v in part]
        new = {v: named(f"k{depth}_{n}", v.extent) for n, v in enumerate(order)}
        texts.append(_text(rewritten(term, new, tuple(new.values())), depth))
    return min(texts)


def _classes(term: Term, depth: int) -> list[list[Var]]:
    """Return bound indices in an order that their names do not decide, those that look alike together."""
    looks: dict[tuple[int, str], list[Var]] = {}
    for v in term.bound:
        new = {b: named("@" if b is v else "_", b.extent) for b in term.bound}
        conditions, rest = _text(rewritten(term, new, ()), depth)
        looks.setdefault((v.extent, " ".join((*conditions, rest))), []).append(v)
    return [looks[k] for k in sorted(looks)]


def _text(term: Term, depth: int) -> tuple[tuple[str, ...], str]:
    conditions = tuple(sorted(_condition_text(c) for c in term.where))
    over = ", ".join(f"{v.name}<{v.extent}" for v in term.bound)
    factors = sorted(_factor_text(f, depth + 1) for f in term.factors)
    return conditions, (f"sum[{over}] " if over else "") + (" * ".join(factors) or "1")


def _condition_text(condition: Condition) -> str:
    if condition.complement is None:
        return f"[{condition.of} == 0]"
    return f"[{condition.of} not {condition.complement.of}]"


def _factor_text(made: Factor, depth: int) -> str:
    if isinstance(made, Access):
        return f"{made.source}[{', '.join(str(_straight(i)) for i in made.at)}]"
    if isinstance(made, Position):
        return f"index({_straight(made.of)})"
    if isinstance(made, Apply):
        return f"{made.function}({'; '.join(text_of(a, depth) for a in made.arguments)})"
    body = Term(Fraction(1), made.bound, frozenset(), (Apply("", (made.body,)),))
    return f"{made.combiner}{_least_reduce(body, depth)}"


def _straight(index: Expr) -> Expr:
    """Return an index without remainders, x % m as x - m * (x // m): those of nested reshapes then cancel."""
    terms, constant = linear(index)
    total: Expr = index_const(constant)
    for atom, c in terms.items():
        part = atom
        if isinstance(atom, Call) and atom.fn in ("mod", "floordiv") and isinstance(atom.args[1], Const):
            inner, divisor = _straight(atom.args[0]), int(atom.args[1].value)
            part = floordiv(inner, divisor)
            if atom.fn == "mod":
                part = add(inner, mul(part, -divisor))
        total = add(total, mul(part, c))
    return total


def _least_reduce(body: Term, depth: int) -> str:
    """Return the text of what a reduction combines, its indices named as those of a sum are.

    An index that nothing mentions stays: a product over n equal values is no such value.
    """
    return _least(body, depth)[1]


def order_free(forms: Sequence[Form]) -> tuple[Form, ...]:
    """Return forms in the order of their texts."""
    return tuple(sorted(forms, key=text_of))
