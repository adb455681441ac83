"""From a pair of graphs to a rule: sizes become symbols, attributes that may vary become free.

A generalisation is tried, not argued: the rule that would come of it is proved at other sizes, and at the
other values that the samples of the record have. Where one of these fails, the attribute stays as it was;
where sizes fail, there is no rule.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stratal.base.errors import StratalError
from stratal.discover.prove import prove
from stratal.discover.rules import (
    LETTERS,
    Applied,
    FoundRule,
    Free,
    Like,
    Literal,
    Side,
    Sizes,
    Value,
    applied,
    build,
    check,
    grown,
)
from stratal.graph.node import Node, topological
from stratal.graph.op import REGISTRY

MOST_VALUES = 6  # of a free attribute, that a rule is proved at


def generalised(
    lhs: Node, rhs: Node, inputs: Sequence[Node], given: str = "", fixed: Collection[int] = ()
) -> FoundRule | None:
    """Return the most general rule of a pair that is proved; None where it holds for its own sizes only.

    `fixed` sizes stay numbers.
    """
    names = {x: f"x{k}" for k, x in enumerate(_used(lhs, inputs))}
    if set(_used(rhs, inputs)) - set(names):
        return None
    letters = iter(LETTERS)
    symbols: dict[int, str] = {}
    for x in names:
        for n in x.aval.ints:
            if n > 1 and n not in symbols and n not in fixed:
                symbols[n] = next(letters)
    shapes = {v: tuple(symbols.get(n, str(n)) for n in x.aval.ints) for x, v in names.items()}
    expressions = _expressions(symbols)
    for n in sorted({n for side in (lhs, rhs) for n in _sizes_of(side, names)}):
        if n > 1 and n not in expressions and n not in fixed:
            expressions[n] = symbols[n] = next(letters)
    sizes = {s: n for n, s in symbols.items()}
    rule = FoundRule(
        shapes, _side(lhs, names, expressions), _side(rhs, names, expressions), sizes, False, "", given=given,
        dtype=next(iter(names)).dtype,
    )  # fmt: skip
    first = check(rule)
    if not first.proved:
        return None
    rule = dataclasses.replace(rule, certificate=first.certificate)
    for name, value in _candidates(rule):
        rule = _freed(rule, name, value) or rule
    last = check(rule)
    return dataclasses.replace(rule, exact=last.exact) if last.proved else None


def _used(node: Node, inputs: Sequence[Node]) -> list[Node]:
    """Return the inputs a graph uses, in the order it is read."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        here = stack.pop()
        if here in inputs:
            found[here] = None
        stack += reversed(here.inputs)
    return list(found)


def _sizes_of(node: Node, names: Mapping[Node, str]) -> list[int]:
    """Return the numbers in attributes that hold sizes."""
    ops = [n.op for n in topological([node], stop=names.__contains__) if n not in names]
    return [n for op in ops for field in op.dim_attributes for n in getattr(op, field)]


def _expressions(symbols: Mapping[int, str]) -> dict[int, str]:
    """Return how numbers read as sizes: as a symbol, as a sum, product or window of two, else as they are."""
    found = dict(symbols)
    pairs = list(itertools.combinations_with_replacement(sorted(symbols), 2))
    for a, b in pairs:
        found.setdefault(a + b, f"{symbols[a]}+{symbols[b]}")
    for a, b in pairs:
        found.setdefault(a * b, f"{symbols[a]}*{symbols[b]}")
    for a, b in pairs:  # windows of b that fit a
        if b > a:
            found.setdefault(b - a + 1, f"{symbols[b]}-{symbols[a]}+1")
    return found


def _side(
    node: Node, names: Mapping[Node, str], expressions: Mapping[int, str], like: Applied | None = None
) -> Side:
    """Return a node as a side; `like` is a side of its shape, where sizes alone do not decide that."""
    if node in names:
        return names[node]
    attributes: dict[str, Value] = {}
    for name, value in node.op.attributes.items():
        if like is not None and name == "shape":
            attributes[name] = Like(like)
        elif name in node.op.dim_attributes:
            attributes[name] = Sizes(tuple(expressions.get(n, str(n)) for n in value))
        else:
            attributes[name] = Literal(value)
    windows = next((found for x in node.inputs if (found := _windows(x, names)) is not None), None)
    shaped: Applied | None = None
    if node.op.pointwise and windows is not None:
        made = _side(windows, names, expressions)
        assert isinstance(made, Applied)
        shaped = made
    sides = (
        _side(x, names, expressions, shaped if x.op.name == "broadcast" else None) for x in node.inputs
    )
    return Applied(node.op.name, attributes, tuple(sides))


def _windows(node: Node, names: Mapping[Node, str]) -> Node | None:
    """Return the convolution whose windows give a value its shape, where it is one or is made of one by
    element.
    """
    while node not in names and node.op.pointwise:
        made = [x for x in node.inputs if x not in names and x.op.name != "broadcast"]
        if not made:
            return None
        node = made[0]
    return node if node not in names and node.op.name == "conv" else None


# -- attributes ----------------------------------------------------------------------------------------------
def _candidates(rule: FoundRule) -> list[tuple[str, Any]]:
    """Return names and values of attributes that stand on both sides, in ops of one kind."""
    left, right = (
        {(a.op, n, repr(v)): (n, v) for a in applied(s) for n, v in a.attributes.items()}
        for s in (rule.lhs, rule.rhs)
    )
    return [(n, v.value) for k, (n, v) in left.items() if k in right and isinstance(v, Literal)]


def _freed(rule: FoundRule, name: str, value: Any) -> FoundRule | None:
    """Return a rule with one attribute free where that is proved at other values, too."""
    others = [v for v in _other_values(rule, name) if v != value]
    free = dataclasses.replace(
        rule, lhs=_replaced(rule.lhs, name, value), rhs=_replaced(rule.rhs, name, value),
        attributes={**rule.attributes, name: (value,)},
    )  # fmt: skip
    sizes = grown(rule.sizes)[2]
    fixed = {n: v[0] for n, v in rule.attributes.items()}
    proved = [value]
    for other in others:
        try:
            lhs, rhs, inputs = build(free, sizes, {**fixed, name: other})
        except StratalError:
            continue  # the ops do not take it
        if not prove(lhs, rhs, inputs).proved:
            return None
        proved.append(other)
    if len(proved) < 3:
        return None
    return dataclasses.replace(free, attributes={**rule.attributes, name: tuple(proved[:MOST_VALUES])})


def _replaced(side: Side, name: str, value: Any) -> Side:
    if isinstance(side, str):
        return side
    attributes = {
        n: Free(name) if n == name and v == Literal(value) else v for n, v in side.attributes.items()
    }
    for n, v in attributes.items():
        if isinstance(v, Like):
            like = _replaced(v.side, name, value)
            assert isinstance(like, Applied)
            attributes[n] = Like(like)
    return Applied(side.op, attributes, tuple(_replaced(a, name, value) for a in side.arguments))


def _other_values(rule: FoundRule, name: str) -> list[Any]:
    """Return the values that samples give an attribute."""
    found: list[Any] = []
    for a in applied(rule.lhs):
        if name in a.attributes:
            found += [s.op.attributes[name] for s in REGISTRY[a.op].samples()]
    return list(dict.fromkeys(found))
