"""Rules spoilt in one way each, mechanically, so that the prover has something to refuse.

    kind        for instance
    operator    add for sub, max for min, a sum for a maximum
    operands    sub(y, x) for sub(x, y)
    variables   the shift for the scale of a batch norm, one operand twice
    dropped     a negation, a transpose, the eps of a batch norm
    guard       strides, padding or dilation that need not agree
    off by one  a stride, a padding, an axis, the end of a slice, a number that is added
    turned      strides, padding or a permutation in the other order
    spec        a contraction that sums over another letter
    group       a rule of plain convolutions, said of convolutions in groups
    class       "to the bit" of what rounds otherwise
    dtype       to the bit, as integers have it, of short floats; a rule of floats, of integers

What is spoilt may still be true, or have no types. `judged` evaluates both sides, and says which it is.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from search_networks import in_dtype

from stratal.base.dtypes import float16, float64, int8, int32
from stratal.base.errors import DTypeError, StratalError
from stratal.discover.rules import (
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
    instances,
    variables,
)
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.literal import Literal as Scalar
from stratal.graph.node import Node
from stratal.graph.op import REGISTRY

Put = Callable[[Side], Side]  # one part of a side replaced by another
Sided = Callable[[Side], Iterator[Side]]
OTHER: Final = {
    "add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max", "neg": "exp", "exp": "neg",
    "sum": "reduce_max", "reduce_max": "sum", "rsqrt": "sqrt",
}  # fmt: skip


class Spoilt(NamedTuple):
    """A rule that was changed, and how."""

    kind: str
    rule: FoundRule


class Instance(NamedTuple):
    """Both sides of a rule at one assignment of sizes and attributes."""

    lhs: Node
    rhs: Node
    inputs: tuple[Node, ...]


# -- parts of sides ----------------------------------------------------------------------------------
def parts(side: Side) -> Iterator[tuple[Applied, Put]]:
    """Yield each op of a side, and what puts another part in its place."""
    if isinstance(side, str):
        return
    yield side, lambda new: new
    for k, argument in enumerate(side.arguments):
        for part, put in parts(argument):
            yield part, lambda new, k=k, put=put: _with(side, k, put(new))


def _with(side: Applied, k: int, argument: Side) -> Applied:
    arguments = (*side.arguments[:k], argument, *side.arguments[k + 1 :])
    return dataclasses.replace(side, arguments=arguments)


def _renamed(side: Side, names: dict[str, str]) -> Side:
    if isinstance(side, str):
        return names.get(side, side)
    return dataclasses.replace(side, arguments=tuple(_renamed(a, names) for a in side.arguments))


def _set(part: Applied, **values: Value) -> Applied:
    return dataclasses.replace(part, attributes={**part.attributes, **values})


def _fixed(side: Side, name: str, value: Value) -> Side:
    """Return a side whose free attribute of a name has a value."""
    if isinstance(side, str):
        return side
    given = {n: value if v == Free(name) else v for n, v in side.attributes.items()}
    for n, v in given.items():
        if isinstance(v, Like):
            given[n] = Like(_fixed(v.side, name, value))  # type: ignore[arg-type]
    return Applied(side.op, given, tuple(_fixed(a, name, value) for a in side.arguments))


# -- ways to spoil a side ----------------------------------------------------------------------------
def _operator(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        if part.op in OTHER:
            yield put(dataclasses.replace(part, op=OTHER[part.op]))


def _operands(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        if len(part.arguments) > 1 and not REGISTRY[part.op].commutative:
            yield put(dataclasses.replace(part, arguments=part.arguments[::-1]))


def _dropped(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        yield from (put(argument) for argument in part.arguments)


def _off_by_one(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        for name, value in part.attributes.items():
            if isinstance(value, Literal):
                yield from (put(_set(part, **{name: Literal(v)})) for v in _near(value.value))
            elif isinstance(value, Sizes):
                for k, text in enumerate(value.texts):
                    for near in (f"{text}+1", f"{text}-1"):
                        texts = (*value.texts[:k], near, *value.texts[k + 1 :])
                        yield put(_set(part, **{name: Sizes(texts)}))


def _near(value: Any) -> Iterator[Any]:
    """Yield a value with one of its numbers changed by one."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (value - 1, value + 1)
    elif isinstance(value, Scalar):
        yield Scalar(np.asarray(value.array + 1, value.array.dtype))
    elif isinstance(value, tuple):
        for k, inner in enumerate(value):
            yield from ((*value[:k], v, *value[k + 1 :]) for v in _near(inner))


def _turned(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        for name, value in part.attributes.items():
            if isinstance(value, Literal) and isinstance(value.value, tuple) and name != "spec":
                yield from (put(_set(part, **{name: Literal(v)})) for v in _reversed(value.value))
            elif isinstance(value, Sizes):
                yield put(_set(part, **{name: Sizes(value.texts[::-1])}))


def _reversed(value: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    inner = tuple(v[::-1] if isinstance(v, tuple) else v for v in value)
    yield from (v for v in (value[::-1], inner) if v != value)


def _spec(side: Side) -> Iterator[Side]:
    for part, put in parts(side):
        value = part.attributes.get("spec")
        if not isinstance(value, Literal):
            continue
        terms = value.value.replace("->", ",").split(",")
        for k, term in enumerate(terms):
            for i, j in itertools.combinations(range(len(term)), 2):
                letters = list(term)
                letters[i], letters[j] = letters[j], letters[i]
                *operands, out = [*terms[:k], "".join(letters), *terms[k + 1 :]]
                yield put(_set(part, spec=Literal(f"{','.join(operands)}->{out}")))


SIDED: Final[dict[str, Sided]] = {
    "operator": _operator, "operands": _operands, "dropped": _dropped, "off by one": _off_by_one,
    "turned": _turned, "spec": _spec,
}  # fmt: skip


# -- ways to spoil a rule ----------------------------------------------------------------------------
def _on_sides(rule: FoundRule) -> Iterator[Spoilt]:
    for kind, spoil in SIDED.items():
        for base in (rule, _square(rule)):
            for name in ("lhs", "rhs"):
                for made in spoil(getattr(base, name)):
                    yield Spoilt(kind, dataclasses.replace(base, **{name: made}))


def _square(rule: FoundRule) -> FoundRule:
    """Return a rule with all sizes one symbol, so that a wrong axis has a type, where sides are plain."""
    (first, *_) = rule.sizes or ("m",)

    def one(text: str) -> str:
        return re.sub("[a-z]", first, text)

    def squared(side: Side) -> Side:
        if isinstance(side, str):
            return side
        given = {
            n: Sizes(tuple(map(one, v.texts))) if isinstance(v, Sizes) else v
            for n, v in side.attributes.items()
        }
        return Applied(side.op, given, tuple(map(squared, side.arguments)))

    inputs = {x: tuple(map(one, shape)) for x, shape in rule.inputs.items()}
    sizes = {first: 3} if any(s == "conv" for s in map(_op, applied(rule.lhs))) else {first: 4}
    return dataclasses.replace(rule, inputs=inputs, lhs=squared(rule.lhs), rhs=squared(rule.rhs), sizes=sizes)


def _op(part: Applied) -> str:
    return part.op


def _variables(rule: FoundRule) -> Iterator[Spoilt]:
    for x, y in itertools.permutations(variables(rule.rhs), 2):
        if rule.inputs[x] == rule.inputs[y]:
            for names in ({x: y}, {x: y, y: x}):
                yield Spoilt("variables", dataclasses.replace(rule, rhs=_renamed(rule.rhs, names)))


def _guards(rule: FoundRule) -> Iterator[Spoilt]:
    """Yield rules with an attribute that need not agree: one op has another of its values."""
    for name, values in rule.attributes.items():
        if name != "spec":
            yield from _guard(rule, name, values)


def _first(rule: FoundRule) -> dict[str, tuple[Any, ...]]:
    return {n: v[:1] for n, v in rule.attributes.items()}


def _guard(rule: FoundRule, name: str, values: Sequence[Any]) -> Iterator[Spoilt]:
    for side in ("lhs", "rhs"):
        for part, put in parts(getattr(rule, side)):
            if part.attributes.get(name) == Free(name):
                own = dataclasses.replace(rule, **{side: put(_set(part, **{name: Free("own")}))})
                for pair in itertools.permutations(values, 2):
                    free = {**_first(rule), name: pair[:1], "own": pair}
                    yield Spoilt("guard", dataclasses.replace(own, attributes=free))
    for value in values:
        left, right = (_fixed(s, name, Literal(value)) for s in (rule.lhs, rule.rhs))
        free = {n: v for n, v in _first(rule).items() if n != name}
        base = dataclasses.replace(rule, lhs=left, rhs=right, attributes=free)
        others = [v for v in values if v != value]
        for kind, chosen in (("guard", others), ("turned", list(_reversed(value)))):
            for side in ("lhs", "rhs"):
                for part, put in parts(getattr(base, side)):
                    if part.attributes.get(name) == Literal(value):
                        for other in chosen:
                            made = put(_set(part, **{name: Literal(other)}))
                            yield Spoilt(kind, dataclasses.replace(base, **{side: made}))


def _windows(rule: FoundRule) -> Iterator[Spoilt]:
    """Yield sums of convolutions that differ and have one shape: padding makes up for dilation, or windows
    end early.
    """
    if not {"strides", "padding", "rhs_dilation"} <= set(rule.attributes):
        return
    images, filters = (
        [a.arguments[k] for s in (rule.lhs, rule.rhs) for a in applied(s) if a.op == "conv"] for k in (0, 1)
    )
    small = {x: (*n[:2], "3", "3") if x in filters else n for x, n in rule.inputs.items()}
    early = {x: (*n[:2], "r+3", "s+3") if x in images else n for x, n in rule.inputs.items()}
    ways = (
        (small, {"strides": (1, 1), "padding": ((1, 1),) * 2, "rhs_dilation": (1, 1)},
         {"padding": ((2, 2),) * 2, "rhs_dilation": (2, 2)}),
        (early, {"strides": (2, 3), "padding": ((0, 0),) * 2, "rhs_dilation": (1, 1)}, {"strides": (3, 2)}),
    )  # fmt: skip
    for inputs, usual, other in ways:
        left, right = rule.lhs, rule.rhs
        for name, value in {**usual, "lhs_dilation": (1, 1)}.items():
            left, right = (_fixed(s, name, Literal(value)) for s in (left, right))
        base = dataclasses.replace(rule, inputs=inputs, lhs=left, rhs=right, attributes={})
        for side in ("lhs", "rhs"):
            for part, put in parts(getattr(base, side)):
                if part.op == "conv":
                    made = put(_set(part, **{n: Literal(v) for n, v in other.items()}))
                    kind = "guard" if "padding" in other else "turned"
                    yield Spoilt(kind, dataclasses.replace(base, **{side: made}))


def _groups(rule: FoundRule) -> Iterator[Spoilt]:
    """Yield a rule said of convolutions in two groups, on all of its ops."""
    plain = [a for s in (rule.lhs, rule.rhs) for a in applied(s) if a.op == "conv"]
    if not plain or any(a.attributes.get("groups") != Literal(1) for a in plain):
        return
    images = [a.arguments[0] for a in plain]
    numbers = {rule.inputs[a.arguments[1]][0] for a in plain if isinstance(a.arguments[1], str)}
    doubled = {n: f"2*{n}" for n in numbers if n.isalpha()}
    inputs = {}
    for x, shape in rule.inputs.items():
        texts = [doubled.get(n, n) for n in shape]
        inputs[x] = (texts[0], f"2*{shape[1]}", *texts[2:]) if x in images else tuple(texts)

    def grouped(side: Side) -> Side:
        if isinstance(side, str):
            return side
        given: dict[str, Value] = {}
        for n, v in side.attributes.items():
            given[n] = Literal(2) if n == "groups" else v
            if isinstance(v, Sizes):
                given[n] = Sizes(tuple(doubled.get(t, t) for t in v.texts))
            elif isinstance(v, Like):
                given[n] = Like(grouped(v.side))  # type: ignore[arg-type]
        return Applied(side.op, given, tuple(map(grouped, side.arguments)))

    yield Spoilt(
        "group", dataclasses.replace(rule, inputs=inputs, lhs=grouped(rule.lhs), rhs=grouped(rule.rhs))
    )


def _classes(rule: FoundRule) -> Iterator[Spoilt]:
    if not rule.exact:
        yield Spoilt("class", dataclasses.replace(rule, exact=True))


def _dtypes(rule: FoundRule) -> Iterator[Spoilt]:
    """Yield a rule said of integers; and of short floats to the bit, as it holds of integers, which wrap."""
    for dtype in (int8, int32):
        yield Spoilt("dtype", dataclasses.replace(rule, dtype=dtype))
    yield Spoilt("dtype", dataclasses.replace(rule, dtype=float16, exact=True))


def spoilt(rules: Sequence[FoundRule]) -> Iterator[Spoilt]:
    """Yield every rule in every way in which it can be spoilt, without certificates, each once."""
    seen = set()
    for rule in rules:
        for spoil in (_on_sides, _variables, _guards, _windows, _groups, _classes, _dtypes):
            for made in spoil(rule):
                bare = dataclasses.replace(made.rule, certificate="", given="")
                key = repr(bare)
                if key not in seen:
                    seen.add(key)
                    yield Spoilt(made.kind, bare)


# -- what is true ------------------------------------------------------------------------------------
TRUE, WRONG, NO_TYPES = "true", "wrong", "no types"


SMALL: Final = (2, 3, 4, 5, 6, 7, 8)
IMAGE: Final = (17, 19)  # for what is 23 or more: dilated windows fit


def small(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes in the same order that are soon evaluated."""
    values = sorted(set(sizes.values()))
    made: dict[int, int] = {}
    for few, row in ((SMALL, [v for v in values if v < 23]), (IMAGE, [v for v in values if v >= 23])):
        made.update(zip(row, few, strict=False))
    return {s: made.get(n, n) for s, n in sizes.items()}


def built_instances(rule: FoundRule, sizes: Mapping[str, int]) -> Iterator[Instance]:
    """Yield both sides at some sizes and all values of attributes, where both have one type."""
    for chosen in {repr(chosen): chosen for _, chosen in instances(rule)}.values():
        try:
            lhs, rhs, inputs = build(rule, sizes, chosen)
        except (StratalError, KeyError, ValueError, TypeError, OverflowError):
            continue
        if lhs.type == rhs.type:
            yield Instance(lhs, rhs, inputs)


def judged(rule: FoundRule) -> tuple[str, Instance | None]:
    """Return whether both sides agree by evaluation, in float64 where they are floats, and where they do not.

    What claims to hold to the bit is evaluated in its own dtype.
    """
    for sizes in (small(rule.sizes), rule.sizes):
        found = False
        for instance in built_instances(rule, sizes):
            found = True
            if not _agree(instance, rule.exact):
                return WRONG, instance
        if found:
            return TRUE, None
    return NO_TYPES, None


def _agree(instance: Instance, exact: bool) -> bool:
    lhs, rhs, inputs = instance
    graph = Graph(inputs, (lhs, rhs))
    rng = np.random.default_rng(len(graph.nodes))
    is_float = all(x.dtype.is_float for x in inputs)
    if not is_float:
        whole = [rng.integers(-128, 128, x.shape).astype(x.dtype.np) for x in inputs]
        (left, right), _ = interpret(graph, whole)
        return bool(np.array_equal(left, right))
    arrays = [np.abs(rng.standard_normal(x.shape)) + 0.1 for x in inputs]
    if exact:
        given = [a.astype(x.dtype.np) for a, x in zip(arrays, inputs, strict=True)]
        (left, right), _ = interpret(graph, given)
        return bool(np.array_equal(left, right, equal_nan=True))
    try:
        (left, right), _ = interpret(in_dtype(graph, float64), arrays)
        within = 1e-9
    except DTypeError:  # an attribute asks for float32
        (left, right), _ = interpret(graph, [a.astype(np.float32) for a in arrays])
        within = 1e-4
    return bool(np.allclose(left, right, rtol=within, atol=within * float(np.abs(left).max(initial=1e-30))))
