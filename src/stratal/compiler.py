"""Graph to Program: the whole pipeline on one page."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.runtime.storage import Storage


class InterpretedProgram:
    """Stand-in until the native pipeline lands in this file: runs the reference interpreter."""

    def __init__(self, graph: Graph) -> None:
        self.graph = verify(graph)

    def run(self, inputs: Sequence[Storage]) -> list[Storage]:
        """Run once: return fresh storage for the outputs, write the new states where the state inputs stand."""
        outputs, states = interpret(self.graph, [s.array for s in inputs])
        position = {node: k for k, node in enumerate(self.graph.inputs)}
        for (state, _), value in zip(self.graph.updates, states, strict=True):
            inputs[position[state]].array[...] = value
        return [Storage.copy_of(a, n.aval) for a, n in zip(outputs, self.graph.outputs, strict=True)]


def compile_graph(graph: Graph) -> InterpretedProgram:
    """Return a Program: `program.run(inputs)` with one Storage per graph input."""
    return InterpretedProgram(graph)
