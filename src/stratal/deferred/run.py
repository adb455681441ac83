"""One combination of fetches and fed tensors of a graph: what it needs, as a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratal.base.dims import Sym, atoms_of
from stratal.base.errors import AttributeValueError
from stratal.deferred.graph import Graph
from stratal.deferred.instantiate import asks_size, instantiate
from stratal.deferred.variable import Operation, Variable, merge_writes
from stratal.graph.graph import Graph as CompiledGraph
from stratal.graph.node import Input, Node, topological
from stratal.tensor.capture import Compiled
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_of, rebind
from stratal.tensor.values.handle import CONSTANT

Places = dict[str, tuple[int, int]]  # of open sizes: a fed tensor's number and one of its axes


class Run:
    """The ancestors of some fetches, and nothing else, as a program.

    `needed` lists the nodes, inputs before users; `cell_of` gives the tensor that holds a variable's value.
    """

    def __init__(
        self, graph: Graph, fetches: Sequence[Node | Operation], fed: list[Node],
        cell_of: Callable[[Variable], Tensor],
    ) -> None:  # fmt: skip
        self.fed = fed
        self.fed_types = [n.aval for n in fed]
        self.fetches = [f.result if isinstance(f, Operation) else f for f in fetches]
        self.writes: dict[Variable, Node] = {}
        for fetch in fetches:
            if isinstance(fetch, Operation):
                merge_writes(self.writes, fetch)
        self._cell_of = cell_of
        known = set(fed)
        roots = [*filter(None, self.fetches), *self.writes.values()]
        self.needed = topological(roots, stop=lambda n: n in known or asks_size(n))
        needed = set(self.needed) - known
        variables = {v._node: v for v in graph.variables}
        self.reads = {n: variables[n] for n in self.needed if n in variables and n in needed}
        self.outer = [c for c in graph.trace.cells.values() if c.placeholder in needed]
        answered = {*self.reads, *(c.placeholder for c in self.outer)}
        self.missing = [
            n for n in self.needed
            if n in needed
            and isinstance(n.op, Input)
            and n not in answered
            and node_values.finished(n) is None
        ]  # fmt: skip
        self.carried = [(c.tensor, c.node) for c in self.outer if c.written]  # states of random generators
        self.roots = [*roots, *(node for _, node in self.carried)]
        self.open_sizes = _open_sizes(self.needed)
        self._places: Places = {}
        self._compiled = Compiled(self._function(), name="session")

    # -- checks ----------------------------------------------------------------------------------------------
    def check(self, initialized: set[Variable], places: Places) -> None:
        """Raise what stands in the way of a run: missing feeds, variables without a value."""
        if self.missing or self.open_sizes - places.keys():
            nodes = [_shown(n) for n in self.missing] or sorted(self.open_sizes - places.keys())
            raise AttributeValueError(
                "run: a placeholder that the fetches need was not fed", got=", ".join(nodes),
                hint="session.run(fetches, feed_dict={x: array})",
            )  # fmt: skip
        for node, variable in self.reads.items():
            if variable not in initialized:
                raise AttributeValueError(
                    "run: a variable has no value yet", got=_shown(node),
                    hint="session.run(global_variables_initializer()) first",
                )  # fmt: skip

    # -- running ---------------------------------------------------------------------------------------------
    def __call__(self, fed: list[Tensor], places: Places) -> list[Tensor | None]:
        """Run, and return the value of each fetch, None for operations without one."""
        self._places = places
        if not self.roots:
            return [None] * len(self.fetches)
        found = iter(self._compiled(*fed))
        return [None if n is None else next(found) for n in self.fetches]

    def _function(self) -> Callable[..., Any]:
        """Return the function to be captured: a graph with the values of one run in place of its inputs."""

        def run(*fed: Tensor) -> list[Tensor]:
            known = dict(zip(self.fed, map(node_of, fed), strict=True))
            known |= {node: node_of(self._cell_of(v)) for node, v in self.reads.items()}
            known |= {c.placeholder: node_of(c.tensor) for c in self.outer}
            sizes = {name: fed[k].shape[axis] for name, (k, axis) in self._places.items()}
            made = instantiate(self.roots, known, sizes)
            results = [wrap(made[n]) for n in self.fetches if n is not None]
            for variable, node in self.writes.items():
                rebind(self._cell_of(variable), made[node], CONSTANT)
            for state, node in self.carried:
                rebind(state, made[node], CONSTANT)
            return results

        return run

    # -- looking at it ---------------------------------------------------------------------------------------
    @property
    def graph(self) -> CompiledGraph:
        """The graph of what was executed, before it was optimised."""
        return self._compiled.graph

    @property
    def program(self) -> Any:
        """The program that was executed."""
        return self._compiled.program

    @property
    def plan(self) -> Any:
        """The plan of the program: kernels, memory and cost."""
        return self._compiled.plan

    @property
    def captures(self) -> int:
        """How often this combination was compiled, for other dtypes and sizes."""
        return self._compiled.captures

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decisions behind the program."""
        return self._compiled.explain(*args, **kwargs)


def _open_sizes(nodes: Sequence[Node]) -> set[str]:
    """Return the names of open sizes that results depend on."""
    found: set[str] = set()
    for node in nodes:
        shape: Sequence[Any] = getattr(node.type, "shape", ())
        if asks_size(node):
            shape = [node.inputs[0].shape[node.op.attributes["axis"]]]
        for n in shape:
            if isinstance(n, Sym):
                found |= atoms_of(n)
    return found


def _shown(node: Node) -> str:
    label = getattr(node.op, "label", "")
    return f"{label}: {node.type}" + (f" from {node.where[0]}" if node.where else "")
