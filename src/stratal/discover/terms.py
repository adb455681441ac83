"""Forms: sums of products of accesses, over bound indices, where conditions on indices hold.

    Form      := sum of Term ...
    Term      := coefficient * sum over bound of [where] * Factor * ...
    Factor    := Access(x, indices) | Position(index) | Apply(function, Form ...)
               | Reduce(combiner, bound, Form)
    Condition := index >= 0 | index == 0

`[where]` is 1 where all conditions hold, else 0. An input is read as a total function of integers: outside of
its tensor it may have any value, for there a condition makes the product 0. So every identity of forms used
here holds for all inputs. Indices are expressions of `loops.index`, in normal form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Union

from stratal.loops.expr import Expr, Var, index_const
from stratal.loops.index import add, as_expr, mul
from stratal.loops.rebuild import substitute


class Unknown(Exception):
    """A graph of which nothing can be said: never a proof, and never a refutation."""


class Condition(NamedTuple):
    """`of` >= 0 for the kind `ge`, `of` == 0 for the kind `eq`."""

    kind: str
    of: Expr

    @property
    def complement(self) -> Condition | None:
        """The condition that holds where this one does not, where there is such a one."""
        return Condition("ge", add(mul(self.of, -1), -1)) if self.kind == "ge" else None


class Access(NamedTuple):
    """An element of an input."""

    source: str
    at: tuple[Expr, ...]


class Position(NamedTuple):
    """An index as a number among the data."""

    of: Expr


class Apply(NamedTuple):
    """A function of which only this is known: equal arguments give equal values."""

    function: str
    arguments: tuple[Form, ...]


class Reduce(NamedTuple):
    """Values for all `bound` indices, combined in any order."""

    combiner: str
    bound: tuple[Var, ...]
    body: Form


Factor = Union[Access, Position, Apply, Reduce]


class Term(NamedTuple):
    """One product; its text, up to the coefficient, is `canonical.text_of`."""

    coefficient: Fraction
    bound: tuple[Var, ...] = ()
    where: frozenset[Condition] = frozenset()
    factors: tuple[Factor, ...] = ()


class Form(NamedTuple):
    """A sum of products; the empty one is 0."""

    terms: tuple[Term, ...]


MOST_TERMS = 256  # a form of more is given up: proofs are short, or none


def number(value: Fraction | int) -> Form:
    """Return a constant."""
    return Form((Term(Fraction(value)),)) if value else Form(())


def factor(made: Factor) -> Form:
    """Return one factor as a form."""
    return Form((Term(Fraction(1), factors=(made,)),))


def constant_of(form: Form) -> Fraction | None:
    """Return the number a form is, or None."""
    if not form.terms:
        return Fraction(0)
    (first, *rest) = form.terms
    return first.coefficient if not rest and first == Term(first.coefficient) else None


def plus(*forms: Form) -> Form:
    """Return a sum. Raises: Unknown where it is too long."""
    terms = tuple(t for f in forms for t in f.terms)
    if len(terms) > MOST_TERMS:
        raise Unknown(f"more than {MOST_TERMS} terms")
    return Form(terms)


def scaled(form: Form, by: Fraction | int) -> Form:
    """Return a form times a number."""
    return Form(tuple(t._replace(coefficient=t.coefficient * by) for t in form.terms) if by else ())


def times(a: Form, b: Form) -> Form:
    """Return a product, distributed; bound indices of one side are renamed apart from those of the other."""
    if len(a.terms) * len(b.terms) > MOST_TERMS:
        raise Unknown(f"more than {MOST_TERMS} terms")
    products = []
    for s in a.terms:
        for t in b.terms:
            u = renamed_apart(t) if set(s.bound) & set(t.bound) else t
            both = s.coefficient * u.coefficient
            products.append(Term(both, s.bound + u.bound, s.where | u.where, s.factors + u.factors))
    return Form(tuple(products))


def where(conditions: Iterable[Condition], form: Form) -> Form:
    """Return a form, 0 where a condition does not hold."""
    extra = frozenset(conditions)
    return Form(tuple(t._replace(where=t.where | extra) for t in form.terms))


def summed(form: Form, over: Sequence[Var]) -> Form:
    """Return the sum of a form over indices."""
    return Form(tuple(t._replace(bound=t.bound + tuple(over)) for t in form.terms))


# -- substitution --------------------------------------------------------------------------------------------
def replaced(form: Form, values: Mapping[Var, Expr]) -> Form:
    """Return a form with free indices replaced; bound ones become fresh, so that none is captured."""
    return Form(tuple(_replaced(t, values) for t in form.terms))


def renamed_apart(term: Term) -> Term:
    """Return a term with fresh bound indices."""
    return _replaced(term, {})


def _replaced(term: Term, values: Mapping[Var, Expr]) -> Term:
    fresh = {v: Var(v.name, v.extent) for v in term.bound}
    return rewritten(term, {**values, **fresh}, tuple(fresh.values()))


def rewritten(term: Term, values: Mapping[Var, Expr], bound: tuple[Var, ...]) -> Term:
    """Return a term with indices replaced, bound ones too, and the `bound` ones that it has then."""
    if not values:
        return term._replace(bound=bound)
    return Term(
        term.coefficient,
        bound,
        frozenset(Condition(c.kind, _at(c.of, values)) for c in term.where),
        tuple(_factor(f, values) for f in term.factors),
    )


def _at(index: Expr, values: Mapping[Var, Expr]) -> Expr:
    return substitute((index,), values)[0]


def _factor(made: Factor, values: Mapping[Var, Expr]) -> Factor:
    if isinstance(made, Access):
        return Access(made.source, tuple(substitute(made.at, values)))
    if isinstance(made, Position):
        return Position(_at(made.of, values))
    if isinstance(made, Apply):
        return Apply(made.function, tuple(replaced(a, values) for a in made.arguments))
    fresh = {v: Var(v.name, v.extent) for v in made.bound}
    return Reduce(made.combiner, tuple(fresh.values()), replaced(made.body, {**values, **fresh}))


def indices_of(made: Factor | Condition) -> Iterable[Expr]:
    """Yield every index expression in a factor or a condition."""
    if isinstance(made, Access):
        yield from made.at
    elif isinstance(made, (Position, Condition)):
        yield made.of
    else:
        for body in made.arguments if isinstance(made, Apply) else (made.body,):
            for term in body.terms:
                for part in (*term.where, *term.factors):
                    yield from indices_of(part)


def mentions(made: Factor | Condition, variable: Var) -> bool:
    """Return whether an index of a factor or a condition depends on a variable."""
    return any(variable in e.free for e in indices_of(made))


# -- functions of pieces -------------------------------------------------------------------------------------
MOST_CUTS = 6  # conditions that a function's arguments are split by


def by_pieces(
    build: Callable[[tuple[Form, ...]], Form], arguments: tuple[Form, ...], bound: Sequence[Var] = (),
    cuts: int = 0,
) -> Form:  # fmt: skip
    """Return a function of forms, its arguments free of conditions on indices other than `bound` ones.

    f([c] a + [not c] b) = [c] f(a) + [not c] f(b), whatever f is.
    """
    chosen = _outer_condition(arguments, bound)
    if chosen is None:
        return build(arguments)
    if cuts == MOST_CUTS:
        raise Unknown(f"a function of more than {MOST_CUTS} conditions")
    holds = by_pieces(build, tuple(_given(a, chosen, True) for a in arguments), bound, cuts + 1)
    fails = by_pieces(build, tuple(_given(a, chosen, False) for a in arguments), bound, cuts + 1)
    if chosen.complement is not None:
        return plus(where([chosen], holds), where([chosen.complement], fails))
    return plus(where([chosen], holds), fails, scaled(where([chosen], fails), -1))


def _outer_condition(arguments: Iterable[Form], bound: Sequence[Var]) -> Condition | None:
    found = [
        c
        for form in arguments
        for term in form.terms
        for c in term.where
        if c.of.free.isdisjoint(term.bound) and c.of.free.isdisjoint(bound)
    ]
    return min(found, key=lambda c: (c.kind, str(c.of)), default=None)


def _given(form: Form, known: Condition, holds: bool) -> Form:
    """Return a form where a condition is known to hold, or not to."""
    true, false = (known, known.complement) if holds else (known.complement, known)
    return Form(tuple(t._replace(where=t.where - {true}) for t in form.terms if false not in t.where))


def zero_at(shape: Sequence[int], axes: Sequence[Var]) -> tuple[Expr, ...]:
    """Return the indices of an element: 0 on axes of one element, which have no other."""
    return tuple(index_const(0) if n == 1 else as_expr(v) for n, v in zip(shape, axes, strict=True))
