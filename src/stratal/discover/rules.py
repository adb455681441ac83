"""Rules as data: two sides over variables, sizes as symbols, and what their proof was.

    Side  := variable | Applied(op, attributes, Side ...)
    Value := Literal(value) | Sizes(symbol, sum or product of symbols ...) | Free(name)

An attribute that is `Free` may have any value, the same one wherever its name stands: that strides agree is
no guard beside a rule, it is how the rule is written. A rule was proved at three assignments of sizes and at
several values of its attributes, with forms that differ in numbers alone: that is evidence for all sizes, no
more. So `matching.apply` proves every match at its own sizes and returns nothing that it did not prove.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Union

from stratal.base.dtypes import DType, float32
from stratal.base.errors import StratalError
from stratal.base.types import TensorType
from stratal.discover.prove import Proof, prove
from stratal.graph.literal import show
from stratal.graph.node import Node, graph_input, make
from stratal.graph.op import REGISTRY, Op

LETTERS: Final = "mnkpqrstuvwabcdefgh"


class Literal(NamedTuple):
    """An attribute that has one value."""

    value: Any


class Sizes(NamedTuple):
    """An attribute made of sizes: per axis a symbol, a number, or a sum or product of such."""

    texts: tuple[str, ...]


class Free(NamedTuple):
    """An attribute that may have any value."""

    name: str


class Like(NamedTuple):
    """The shape of a side, such as the windows of a convolution, which strides and padding decide."""

    side: Applied


Value = Union[Literal, Sizes, Free, Like]


@dataclass(frozen=True)
class Applied:
    """An op on sides."""

    op: str
    attributes: Mapping[str, Value]
    arguments: tuple[Side, ...]

    def __str__(self) -> str:
        given = [f"{k}={_value_text(v)}" for k, v in self.attributes.items()]
        return f"{self.op}({', '.join([*map(str, self.arguments), *given])})"


Side = Union[str, Applied]


def _value_text(value: Value) -> str:
    if isinstance(value, Literal):
        return str(show(value.value))
    if isinstance(value, Like):
        return f"like {value.side.op}"
    return f"({', '.join(value.texts)})" if isinstance(value, Sizes) else f"${value.name}"


@dataclass(frozen=True)
class FoundRule:
    """A rule: `lhs` = `rhs` for inputs of the shapes in `inputs`, to the bit where `exact`.

    `sizes` are the first it was proved at, `attributes` the values its free attributes had in proofs.
    `certificate` is the normal form at `sizes`. `given` names where the sides come from if not enumerated.
    """

    inputs: Mapping[str, tuple[str, ...]]
    lhs: Side
    rhs: Side
    sizes: Mapping[str, int]
    exact: bool
    certificate: str
    attributes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dtype: DType = float32
    given: str = ""

    @property
    def name(self) -> str:
        """The ops of both sides, and a digest that tells rules with the same ones apart."""
        text = f"{self.lhs} = {self.rhs} {sorted(self.inputs.items())}"
        ops = "-to-".join("-".join(ops_of(s)) or "operand" for s in (self.lhs, self.rhs))
        return f"{ops}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"

    def reads(self, forward: bool) -> bool:
        """Return whether a match of one side binds all that the other one reads."""
        return self._reads[not forward]

    @cached_property
    def _reads(self) -> tuple[bool, bool]:
        left, right = set(variables(self.lhs)), set(variables(self.rhs))
        return right <= left, left <= right

    @cached_property
    def pointwise(self) -> bool:
        """Whether it may be tried on operands of any one shape: all have the same, and no op says more."""
        ops = [a for s in (self.lhs, self.rhs) for a in applied(s)]
        return len(set(self.inputs.values())) == 1 and not any(a.attributes for a in ops)

    def __str__(self) -> str:
        return f"{self.lhs}  =  {self.rhs}"


def applied(side: Side) -> list[Applied]:
    """Return a side's ops, operands first."""
    return [] if isinstance(side, str) else [*(a for s in side.arguments for a in applied(s)), side]


def ops_of(side: Side) -> list[str]:
    """Return the names of a side's ops, operands first."""
    return [a.op for a in applied(side)]


def variables(side: Side) -> list[str]:
    """Return a side's variables in the order they are met."""
    if isinstance(side, str):
        return [side]
    return list(dict.fromkeys(v for a in side.arguments for v in variables(a)))


# -- sizes ---------------------------------------------------------------------------------------------------
def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """Return a sum or difference of products of symbols and numbers."""
    total = 0
    for part in text.replace("-", "+-").split("+"):
        product = math.prod(int(f) if f.isdigit() else sizes[f] for f in part.lstrip("-").split("*"))
        total += -product if part.startswith("-") else product
    return total


def grown(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return three assignments of sizes, each in the order of the first: n, n^2 and n^(5/2)."""
    return [{s: math.isqrt(n**power) for s, n in sizes.items()} for power in (2, 4, 5)]


# -- building ------------------------------------------------------------------------------------------------
def build(
    rule: FoundRule, sizes: Mapping[str, int], attributes: Mapping[str, Any], dtype: DType | None = None
) -> tuple[Node, Node, tuple[Node, ...]]:
    """Return both sides of a rule and its inputs at some sizes. Raises: StratalError where it has no such."""
    types = {
        x: TensorType(dtype or rule.dtype, (size_of(n, sizes) for n in shape))
        for x, shape in rule.inputs.items()
    }
    inputs = {x: graph_input(x, t) for x, t in types.items()}
    sides = [built(s, inputs, sizes, attributes) for s in (rule.lhs, rule.rhs)]
    return sides[0], sides[1], tuple(inputs.values())


def built(
    side: Side, inputs: Mapping[str, Node], sizes: Mapping[str, int], attributes: Mapping[str, Any]
) -> Node:
    if isinstance(side, str):
        return inputs[side]
    given = {
        k: built(v.side, inputs, sizes, attributes).shape if isinstance(v, Like)
        else value_of(v, sizes, attributes)
        for k, v in side.attributes.items()
    }  # fmt: skip
    made: Callable[..., Op] = REGISTRY[side.op]
    return make(made(**given), *(built(a, inputs, sizes, attributes) for a in side.arguments))


def value_of(value: Literal | Sizes | Free, sizes: Mapping[str, int], attributes: Mapping[str, Any]) -> Any:
    if isinstance(value, Literal):
        return value.value
    if isinstance(value, Sizes):
        return tuple(size_of(t, sizes) for t in value.texts)
    return attributes[value.name]


# -- proofs --------------------------------------------------------------------------------------------------
def instances(rule: FoundRule) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Yield the sizes and attributes a rule is proved at: all sizes, and all values of its attributes."""
    usual = {n: values[0] for n, values in rule.attributes.items()}
    for sizes in grown(rule.sizes):
        yield sizes, usual
    for n, values in rule.attributes.items():
        for v in values[1:]:
            yield grown(rule.sizes)[2], {**usual, n: v}


def check(rule: FoundRule) -> Proof:
    """Prove a rule at all of its instances; the forms must be alike, and the first the certificate."""
    try:
        return _check(rule)
    except KeyError as error:
        return Proof(False, reason=f"no such graph: nothing says what {error} is"[:200])
    except (ValueError, TypeError, IndexError, RecursionError) as error:  # a file may hold anything
        return Proof(False, reason=f"no such graph: {type(error).__name__}: {error}"[:200])


def _check(rule: FoundRule) -> Proof:
    first: Proof | None = None
    for k, (sizes, chosen) in enumerate(instances(rule)):
        try:
            lhs, rhs, inputs = build(rule, sizes, chosen)
        except StratalError as error:
            return Proof(False, reason=f"no such graph at {sizes}: {error.summary}")
        found = prove(lhs, rhs, inputs, list(rule.inputs))
        if not found.proved:
            return Proof(False, reason=f"at {sizes}, {chosen}: {found.reason}")
        if first is None:
            first = found
        elif k < 3 and skeleton(found.certificate) != skeleton(first.certificate):
            return Proof(False, reason="the forms of other sizes are not alike")
        first = Proof(True, first.exact and found.exact, first.certificate)
    if first is None or (rule.certificate and first.certificate != rule.certificate):
        return Proof(False, reason="the certificate is of another form")
    if rule.exact and not first.exact:
        return Proof(False, reason="not to the bit")
    return first


def skeleton(certificate: str) -> str:
    """Return a form without its numbers, its terms and factors sorted."""
    digits = "".join("#" if c.isdigit() else c for c in certificate)
    while "##" in digits:
        digits = digits.replace("##", "#")
    return " ".join(sorted(digits.replace("#", "").split()))
