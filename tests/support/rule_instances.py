"""Rules of rewriting by themselves: the left side of one built for an example, and some as a rewrite step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stratal.base.dtypes import bool_
from stratal.base.errors import VerifyError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, graph_input
from stratal.graph.op import REGISTRY
from stratal.graph.pattern import Apply, Attr, Full, Pattern, Rest, Rule, Rules, Scalar, Var
from stratal.optimize.rewrite import Step


def as_step(rules: Sequence[Rule]) -> Step:
    """Return the rewrite step of some rules alone."""
    compiled, builder = Rules(rules), Builder()

    def step(node: Node) -> tuple[str, Node] | None:
        found = compiled.apply(builder, node)
        return None if found is None else (found[0].name, found[1])

    return step


class Instance:
    """Builds the left side of a rule for one example."""

    def __init__(self, example: Mapping[str, Any]) -> None:
        self.example = example
        self.builder = Builder()
        self.nodes: dict[str, Any] = {}
        self.inputs: list[Node] = []
        for name, value in example.items():
            types = value if isinstance(value, tuple) else (value,)
            if types and isinstance(types[0], TensorType):
                made = [graph_input(name, t) for t in types]
                self.inputs += made
                self.nodes[name] = made if types is value else made[0]

    def build(self, lhs: Apply) -> tuple[list[Node], Node]:
        return self.inputs, self.expression(lhs, None)

    def expression(self, pattern: Pattern, like: TensorType | None) -> Node:
        if isinstance(pattern, Var):
            node: Node = self.nodes[pattern.name]
            return node
        if isinstance(pattern, (Full, Scalar)):
            return self.constant(pattern, like)
        assert isinstance(pattern, Apply)
        if isinstance(pattern.args[0] if pattern.args else None, Rest):
            args = list(self.nodes[pattern.args[0].name])  # type: ignore[attr-defined]
        else:
            args = self.operands(pattern.args)
        given = pattern.attributes.items()
        attributes = {k: self.example[v.name] if isinstance(v, Attr) else v for k, v in given}
        fields = {f.name for f in dataclasses.fields(REGISTRY[pattern.op])}  # type: ignore[arg-type]
        attributes |= {k: self.example[k] for k in fields - attributes.keys() if k in self.example}
        return self.builder.op(pattern.op, *args, **attributes)

    def operands(self, patterns: Sequence[Pattern]) -> list[Node]:
        """Build operands; a constant takes its type from the first operand that has one."""
        values = {k: p for k, p in enumerate(patterns) if not isinstance(p, (Full, Scalar))}
        made = {k: self.expression(p, None) for k, p in values.items()}
        like = next((made[k].aval for k in sorted(made)), None)
        return [made[k] if k in made else self.constant(p, like) for k, p in enumerate(patterns)]

    def constant(self, pattern: Pattern, like: TensorType | None) -> Node:
        value = pattern.value if isinstance(pattern, Full) else self.example[getattr(pattern, "name", "")]
        if like is None:
            raise VerifyError("pattern: an example cannot tell the type of a constant", got=repr(pattern))
        return self.builder.full(like.with_dtype(bool_) if isinstance(value, bool) else like, value)
