"""Programs of lazy work on the reference interpreter: what a run reads and overwrites, not compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from stratal.base.session import SESSION
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache


class Interpreted:
    """Stands where a compiled program does; states are written where they stand, after all that may fail."""

    loaded = None

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, inputs: list[Storage]) -> list[Storage]:
        outputs, states = interpret(self.graph, [s.array.copy() for s in inputs])
        made = [Storage.copy_of(a, n.aval) for a, n in zip(outputs, self.graph.outputs, strict=True)]
        at = {node: k for k, node in enumerate(self.graph.inputs)}
        for (state, _), new in zip(self.graph.updates, states, strict=True):
            inputs[at[state]].array[...] = new
        return made


@contextmanager
def interpreted() -> Iterator[None]:
    """Let programs that are made in this block run on the interpreter."""
    SESSION.reset()
    try:
        with mock.patch.object(program_cache, "compiled", Interpreted):
            yield
    finally:
        SESSION.reset()
