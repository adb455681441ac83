"""Graphs: inputs, outputs and state updates over nodes; the unit that passes take and return."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, final

from stratal.base.errors import VerifyError
from stratal.base.types import TensorType
from stratal.graph.literal import Literal, show
from stratal.graph.node import Const, Input, Item, Node, is_frozen, label_of, rebuild, topological
from stratal.graph.op import Op


@final
class Graph:
    """An immutable program. `updates` pairs a state input with the value it holds after the run.

    Equal when structurally equal: labels, provenance and input uids do not count.
    """

    __slots__ = ("__weakref__", "_digest", "_nodes", "inputs", "name", "outputs", "updates")

    def __init__(
        self,
        inputs: Iterable[Node],
        outputs: Iterable[Node],
        updates: Iterable[tuple[Node, Node]] = (),
        name: str = "graph",
    ) -> None:
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = tuple(outputs)
        self.updates: Final = tuple(updates)
        self.name: Final = name
        self._nodes: tuple[Node, ...] | None = None
        self._digest: str | None = None

    @property
    def roots(self) -> tuple[Node, ...]:
        """Every value the graph must compute: outputs, then new states."""
        return self.outputs + tuple(value for _, value in self.updates)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node reachable from the roots, inputs before users.

        Unused graph inputs are not among them.
        """
        if self._nodes is None:
            self._nodes = tuple(topological(self.roots))
        return self._nodes

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(i.aval for i in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(o.aval for o in self.outputs)

    @property
    def digest(self) -> str:
        """A hash of the structure: independent of labels, source lines, process and `PYTHONHASHSEED`."""
        if self._digest is None:
            sha = hashlib.sha256()
            number: dict[Node, int] = {}
            op_of, type_of = lru_cache(None)(op_text), lru_cache(None)(str)  # a graph has many that are equal
            for k, node in enumerate(self.inputs):
                number[node] = k
                sha.update(f"input {node.type}{' frozen' if is_frozen(node) else ''}\n".encode())
            for node in self.nodes:
                if node in number:
                    continue
                if isinstance(node.op, Input):
                    raise VerifyError(f"graph {self.name}: input {node.op.label!r} is used but not listed")
                operands = ",".join(str(number[i]) for i in node.inputs)
                number[node] = len(number)
                sha.update(f"{op_of(node.op)}({operands}){type_of(node.type)}\n".encode())
            sha.update(f"return {[number[o] for o in self.outputs]}\n".encode())
            sha.update(f"update {[(number[s], number[v]) for s, v in self.updates]}".encode())
            self._digest = sha.hexdigest()[:32]
        return self._digest

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return graph_to_text(self)

    def __repr__(self) -> str:
        ends = f"{len(self.inputs)} inputs, {len(self.outputs)} outputs"
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {ends}>"


def graph_to_text(graph: Graph, *, lines: bool = True, indent: str = "", limit: int | None = None) -> str:
    """Print a graph.

    `lines` adds source lines as comments; `limit` cuts long constants (the text then no longer parses).
    """
    number: dict[Node, int] = {}
    head = []
    for node in graph.inputs:
        number[node] = len(number)
        label = label_of(node)
        frozen = " frozen" if is_frozen(node) else ""
        head.append(f"%{number[node]}: {node.type}{frozen}" + (f" = {show(label)}" if label else ""))
    rows = []
    for node in graph.nodes:
        if node in number:
            continue
        number[node] = len(number)
        operands = ", ".join(f"%{number[i]}" for i in node.inputs)
        attributes = " ".join(
            f"{k}={_show(v, indent + '    ', limit)}" for k, v in node.op.attributes.items()
        )
        row = f"%{number[node]} = {node.op.name}({operands}) {attributes}".rstrip() + f" : {node.type}"
        if lines and node.where:
            row = f"{row:<72}  # {', '.join(map(str, node.where[:2]))}"
        rows.append(row)
    rows.append("return " + ", ".join(f"%{number[o]}" for o in graph.outputs))
    rows += [f"update %{number[s]} <- %{number[v]}" for s, v in graph.updates]
    body = "\n".join(f"{indent}  {row}" for row in rows)
    return f"graph {show(graph.name)}({', '.join(head)}) {{\n{body}\n{indent}}}"


def _show(value: Any, indent: str, limit: int | None) -> str:
    if isinstance(value, Graph):
        return graph_to_text(value, lines=False, indent=indent, limit=limit)
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return "(" + ", ".join(_show(v, indent, limit) for v in value) + ",)"
    text = show(value)
    if limit is not None and isinstance(value, Literal) and len(text) > limit:
        return f"{text[:limit]}...}}"
    return text


def op_text(op: Op) -> str:
    """Return an op with its attributes as text, the same in every process; constants by their digest."""
    return f"{op.name}[{','.join(f'{k}={_digest_of(v)}' for k, v in op.attributes.items())}]"


def _digest_of(value: object) -> str:
    if isinstance(value, Graph):
        return value.digest
    if isinstance(value, Literal):
        return f"{value.type}:{hashlib.sha256(value.array.tobytes()).hexdigest()}"
    return show(value)


def substitute(roots: Iterable[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """Return the roots rebuilt with some nodes replaced; sharing is kept, provenance too."""
    wanted = list(roots)
    if all(old is node for old, node in replacements.items()):
        return wanted
    new: dict[Node, Node] = dict(replacements)
    for node in topological(wanted, stop=replacements.__contains__):
        if node not in new:
            new[node] = rebuild(node, [new[i] for i in node.inputs])
    return [new[r] for r in wanted]


def inline(graph: Graph, arguments: Iterable[Node]) -> list[Node]:
    """Return the graph's outputs with its inputs replaced by `arguments`."""
    return substitute(graph.outputs, dict(zip(graph.inputs, arguments, strict=True)))


def verify(graph: Graph) -> Graph:
    """Check every rule of the IR and return the graph.

    Raises: VerifyError naming the node and its source line.
    """
    known = set(graph.inputs)
    for node in graph.inputs:
        if not isinstance(node.op, Input):
            raise VerifyError(
                f"graph {graph.name}: an input must be an input node", got=repr(node), where=node.where
            )
    if len(known) != len(graph.inputs):
        raise VerifyError(f"graph {graph.name}: the same input is listed twice")
    for node in graph.nodes:
        if isinstance(node.op, Input) and node not in known:
            raise VerifyError(
                f"graph {graph.name}: closed over an input it does not list",
                got=node.op.label,
                where=node.where,
            )
        for child in node.inputs:
            if child not in known:
                raise VerifyError(
                    f"graph {graph.name}: {node!r} before its operand {child!r}", where=node.where
                )
        known.add(node)
        if isinstance(node.op, (Input, Const, Item)):
            continue
        inferred = node.op.infer(*[i.aval for i in node.inputs])
        if inferred != node.type:
            raise VerifyError(
                f"graph {graph.name}: {node.op.name} has the wrong type",
                got=f"{node.type}, its rule gives {inferred}",
                where=node.where,
            )
        for value in node.op.attributes.values():
            for region in value if isinstance(value, tuple) else (value,):
                if isinstance(region, Graph):
                    verify(region)
    for state, value in graph.updates:
        if state not in graph.inputs or state.type != value.type:
            raise VerifyError(f"graph {graph.name}: an update must give a listed input its own type",
                              got=f"{state.type} <- {value.type}", where=value.where)  # fmt: skip
    return graph
