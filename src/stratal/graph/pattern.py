"""Patterns and rules: rewriting as data. Both sides of a rule are expressions over pattern variables.

    Pattern := Var(name) | Rest(name) | Full(value) | Scalar(name) | Apply(op, (Pattern ...), {attribute: Attr
    | value}) Rule    := name, lhs: Apply, rhs: Pattern | function(b, match) -> Node, when, examples

`P.mul(x, full(1))` reads as the expression it matches. A variable that occurs twice stands for one value. On
the right an attribute may be a function of the match. Operands of a commutative op match in either order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Union

import numpy as np

from stratal.base.errors import VerifyError
from stratal.base.source import SourceLine, merge
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Const, Input, Node
from stratal.graph.op import REGISTRY

Bindings = dict[str, Any]
Matcher = Callable[[Node, Bindings], bool]


class Pattern:
    """One side of a rule, or a part of it."""

    __slots__ = ()


@dataclass(frozen=True)
class Var(Pattern):
    """Any value; the same one wherever the name occurs."""

    name: str


@dataclass(frozen=True)
class Rest(Pattern):
    """All operands of an op that takes any number; must be its only argument."""

    name: str


@dataclass(frozen=True)
class Full(Pattern):
    """A constant, or a broadcast one, whose every element is `value`, to the bit (-0.0 is not 0.0)."""

    value: float | bool


@dataclass(frozen=True)
class Scalar(Pattern):
    """A constant, or a broadcast one, whose elements are all equal; bound to the scalar constant node."""

    name: str


@dataclass(frozen=True)
class Attr:
    """The value of an attribute."""

    name: str


@dataclass(frozen=True)
class Apply(Pattern):
    """An op on patterns. Attributes not named may have any value."""

    op: str
    args: tuple[Pattern, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class _Patterns:
    """`P.mul(x, y)` is the pattern of that op; `P["and"](x, y)` where its name is a word of Python.

    Text among the operands names an attribute that stands under its own name: `P.sum(x, "axes")` is
    `P.sum(x, axes=Attr("axes"))`.
    """

    def __getattr__(self, op: str) -> Callable[..., Apply]:
        def apply(*args: Pattern | str, **attributes: Any) -> Apply:
            patterns = tuple(a for a in args if not isinstance(a, str))
            return Apply(op, patterns, {a: Attr(a) for a in args if isinstance(a, str)} | attributes)

        return apply

    __getitem__ = __getattr__


P: Final = _Patterns()


class Match:
    """What the variables of a pattern stand for: `m.x`, `m.axes`; `m.root` is the node that matched."""

    __slots__ = ("root", "values")

    def __init__(self, root: Node, values: Bindings) -> None:
        self.root = root
        self.values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(f"the pattern has no variable {name!r}") from None

    @property
    def type(self) -> TensorType:
        return self.root.aval


Rhs = Union[Pattern, Callable[[Builder, Match], "Node | None"]]


def always(_: Match) -> bool:
    """Put no condition on a match."""
    return True


@dataclass(frozen=True)
class Rule:
    """Replace what `lhs` matches by `rhs`, where `when` holds.

    Both sides give the same bits for every input (which NaN a NaN is does not count). Each of `examples`
    binds the variables of `lhs`: types for values, plain values for attributes. A function as `rhs` may
    return None where, on a closer look, it does not apply.
    """

    name: str
    lhs: Apply
    rhs: Rhs
    when: Callable[[Match], bool] = always
    examples: Sequence[Mapping[str, Any]] = ()


# -- matching ------------------------------------------------------------------------------------------------
def uniform_scalar(node: Node) -> Node | None:
    """Return the scalar constant a node repeats everywhere, or None."""
    while node.op.repeats:
        node = node.inputs[0]
    return node if isinstance(node.op, Const) and node.op.value.type.ndim == 0 else None


def _compile(pattern: Pattern) -> Matcher:
    if isinstance(pattern, Var):
        return _variable(pattern.name)
    if isinstance(pattern, Full):
        return _full(pattern.value)
    if isinstance(pattern, Scalar):
        return _scalar(pattern.name)
    if isinstance(pattern, Apply):
        return _apply(pattern)
    raise VerifyError("pattern: not something to match", got=repr(pattern))


def _variable(name: str) -> Matcher:
    def match(node: Node, values: Bindings) -> bool:
        return values.setdefault(name, node) is node

    return match


def _full(value: float | bool) -> Matcher:
    bits: dict[Any, bytes] = {}

    def match(node: Node, values: Bindings) -> bool:
        scalar = uniform_scalar(node)
        if scalar is None or (scalar.dtype.is_bool != isinstance(value, bool)):
            return False
        array = scalar.op.value.array  # type: ignore[attr-defined]
        if array.dtype not in bits:
            bits[array.dtype] = _bits_of(value, array.dtype)
        return bool(array.tobytes() == bits[array.dtype])

    return match


def _bits_of(value: float | bool, dtype: np.dtype[Any]) -> bytes:
    with np.errstate(all="ignore"):
        cast = np.asarray(value).astype(dtype)
    exact = dtype.kind not in "iub" or (np.isfinite(value) and int(value) == value == int(cast))
    return cast.tobytes() if exact else b""


def _scalar(name: str) -> Matcher:
    def match(node: Node, values: Bindings) -> bool:
        scalar = uniform_scalar(node)
        return scalar is not None and values.setdefault(name, scalar) is scalar

    return match


def _apply(pattern: Apply) -> Matcher:
    op_name, attributes = pattern.op, tuple(pattern.attributes.items())
    if len(pattern.args) == 1 and isinstance(pattern.args[0], Rest):
        return _apply_rest(pattern.op, attributes, pattern.args[0].name)
    matchers, count = tuple(map(_compile, pattern.args)), len(pattern.args)

    def match(node: Node, values: Bindings) -> bool:
        if node.op.name != op_name or len(node.inputs) != count:
            return False
        if attributes and not _bind_attributes(node, attributes, values):
            return False
        for matcher, child in zip(matchers, node.inputs):  # noqa: B905, SIM110  hot: no generator, no checks
            if not matcher(child, values):
                return False
        return True

    return match


def _apply_rest(op_name: str, attributes: tuple[tuple[str, Any], ...], name: str) -> Matcher:
    def match(node: Node, values: Bindings) -> bool:
        if node.op.name != op_name or not _bind_attributes(node, attributes, values):
            return False
        return bool(values.setdefault(name, node.inputs) == node.inputs)

    return match


def _bind_attributes(node: Node, attributes: tuple[tuple[str, Any], ...], values: Bindings) -> bool:
    for name, wanted in attributes:
        got = getattr(node.op, name)
        if isinstance(wanted, Attr):
            if values.setdefault(wanted.name, got) != got:
                return False
        elif got != wanted:
            return False
    return True


def orders(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the pattern with the operands of commutative ops in every order that differs."""
    if not isinstance(pattern, Apply):
        yield pattern
        return
    for args in itertools.product(*(list(orders(a)) for a in pattern.args)):
        yield Apply(pattern.op, args, pattern.attributes)
        if REGISTRY[pattern.op].commutative and len(args) == 2 and args[0] != args[1]:
            yield Apply(pattern.op, args[::-1], pattern.attributes)


class Rules:
    """A set of rules, compiled and indexed by the op at the root."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = [r.name for r in rules]
        if len(set(names)) != len(names):
            repeated = sorted({n for n in names if names.count(n) > 1})
            raise VerifyError("rules: two rules share a name", got=", ".join(repeated))
        self.rules: Final = tuple(rules)
        self._by_root: dict[str, list[tuple[Rule, Pattern, Matcher]]] = {}
        for rule in rules:
            variants = {repr(p): p for p in orders(rule.lhs)}
            for pattern in variants.values():
                self._by_root.setdefault(rule.lhs.op, []).append((rule, pattern, _compile(pattern)))

    def apply(self, builder: Builder, node: Node) -> tuple[Rule, Node] | None:
        """Return the first rule that changes the node, and what it gives, with the lines of all matched."""
        for rule, pattern, matcher in self._by_root.get(node.op.name, ()):
            values: Bindings = {}
            if not matcher(node, values):
                continue
            match = Match(node, values)
            if not rule.when(match):
                continue
            where = merge(*_lines(pattern, node))
            found = build(rule.rhs, builder.at(where), match)
            if found is None or found is node:
                continue
            if found.type != node.type:
                raise VerifyError(
                    f"rule {rule.name}: changes the type",
                    got=f"{node.type} to {found.type}",
                    where=node.where,
                )
            if not isinstance(found.op, (Input, Const)):
                found.where = merge(found.where, where)
            return rule, found
        return None


def _lines(pattern: Pattern, node: Node) -> Iterator[tuple[SourceLine, ...]]:
    """Yield the source lines of the nodes an expression stands on, variables aside."""
    if isinstance(pattern, Apply):
        yield node.where
        for part, child in zip(pattern.args, node.inputs):  # noqa: B905  a Rest stands for any number
            yield from _lines(part, child)


# -- building ------------------------------------------------------------------------------------------------
def build(rhs: Rhs, builder: Builder, match: Match) -> Node | None:
    """Return the right side of a rule for a match."""
    return _expression(rhs, builder, match) if isinstance(rhs, Pattern) else rhs(builder, match)


def _expression(pattern: Pattern, builder: Builder, match: Match) -> Node:
    if isinstance(pattern, (Var, Scalar)):
        node: Node = match.values[pattern.name]
        return node
    if isinstance(pattern, Full):
        return builder.full(match.type, pattern.value)
    if not isinstance(pattern, Apply):
        raise VerifyError("pattern: not something to build", got=repr(pattern))
    args: list[Node] = []
    for arg in pattern.args:
        args += match.values[arg.name] if isinstance(arg, Rest) else [_expression(arg, builder, match)]
    attributes = {k: _attribute(v, match) for k, v in pattern.attributes.items()}
    return builder.op(pattern.op, *args, **attributes)


def _attribute(value: Any, match: Match) -> Any:
    if isinstance(value, Attr):
        return match.values[value.name]
    return value(match) if callable(value) and not isinstance(value, type) else value
