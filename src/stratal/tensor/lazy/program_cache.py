"""The program cache: pending work -> structural key -> compiled program."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from stratal.base import settings
from stratal.base.errors import CallOrderError
from stratal.base.interrupts import block
from stratal.base.lru import LRU
from stratal.base.session import SESSION
from stratal.base.weak import WeakTable
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node, graph_input, topological
from stratal.ops.control.custom import Watched
from stratal.runtime.storage import Storage
from stratal.runtime.workspace import Workspace
from stratal.tensor.lazy import symbolic_sizes
from stratal.tensor.values import node_values

Key = tuple[Any, ...]
Program = Any  # what compile_graph returns
_CAPACITY = 256

choices = settings.together(*settings.SHAPING)

_PROGRAMS = SESSION.cache(LRU[tuple[Key, object], Program](_CAPACITY))  # of lazy work, those used last
_LIVING = SESSION.cache(WeakTable[Program]())  # by digest and settings, while in use
_RECENT = SESSION.cache(deque[Program](maxlen=32))  # compiled last: alive without other references
COMPILED = [0]  # how many programs this process has compiled
WATCHERS: list[Watcher] = []  # of those who watch programs run, the last one runs them


class Work(NamedTuple):
    """One run: leaves in, outputs out, and the leaves that are overwritten with new values."""

    leaves: list[Node]
    outputs: list[Node]
    updates: list[tuple[Node, Node]]
    order: list[Node]  # every node of the run, leaves included

    def key(self) -> Key:
        """Return the structure, equal for equal work on other leaves."""
        number: dict[Node, int] = {}
        rows: list[Any] = []
        for node in self.leaves:
            number[node] = len(number)
            rows.append(node.type)
        for node in self.order:
            if node not in number:
                number[node] = len(number)
                op = node.op.bare() if isinstance(node.op, Watched) else node.op
                rows.append((op, *[number[i] for i in node.inputs]))
        rows.append(tuple([number[o] for o in self.outputs]))
        rows.append(tuple([(number[s], number[v]) for s, v in self.updates]))
        return tuple(rows)

    def graph(self, name: str, labels: Sequence[str] = (), frozen: Container[Node] = ()) -> Graph:
        """Return a graph of its own: no node of it keeps a leaf's storage alive.

        `frozen` are leaves that seldom change from run to run.
        """
        fresh: dict[Node, Node] = {}
        for k, node in enumerate(self.leaves):
            own = node.op if isinstance(node.op, Input) else None
            label = (labels[k] if k < len(labels) else own.label if own else "") or f"x{k}"
            same = own is not None and (own.label, own.frozen) == (label, node in frozen)
            if same and node_values.finished(node) is None:  # a placeholder may stay what it is
                fresh[node] = node
            else:
                fresh[node] = graph_input(label, node.aval, node.where, frozen=node in frozen)
        roots = [*self.outputs, *(v for _, v in self.updates)]
        made = substitute(roots, fresh)
        states = [fresh[s] for s, _ in self.updates]
        split = len(self.outputs)
        updates = zip(states, made[split:], strict=True)
        return Graph([fresh[n] for n in self.leaves], made[:split], updates, name)


def walk(roots: Iterable[Node], is_leaf: Callable[[Node], bool]) -> tuple[list[Node], list[Node]]:
    """Return every node the roots need, inputs before users, and those of them that are leaves.

    The order depends on the roots and their structure alone, so that equal work gets an equal key.
    """
    leaves: list[Node] = []

    def stop(node: Node) -> bool:
        found = is_leaf(node)
        if found:
            leaves.append(node)
        return found

    return topological(roots, stop), leaves


def program_for(work: Work, name: str) -> Program:
    """Return the program for some work, compiled at most once per structure."""
    key = (work.key(), choices())
    found = _PROGRAMS.get(key)
    if found is None:
        graph = work.graph(name)
        found = symbolic_sizes.program_for(graph, compiled) or compiled(graph)
    return _PROGRAMS.keep(key, found)  # rows hold types, ops and numbers, never nodes


def refuse_at_exit() -> None:
    """Raise the error for work while Python ends: it imports nothing any more, and forgets what it knew."""
    if sys.is_finalizing():
        raise CallOrderError(
            "flush: Python is shutting down, and computes no value any more",
            hint="ask for it earlier: at the end of the program, or in a function given to atexit.register",
        )


def compiled(graph: Graph, workspace: Workspace | None = None) -> Program:
    """Return the program of a graph, compiled at most once per digest and settings that shape code.

    One that is compiled now computes in the `workspace`.
    """
    refuse_at_exit()
    key = f"{graph.digest} {choices()}"
    found = _LIVING.get(key)
    if found is None:
        started_ns = time.perf_counter_ns()
        found = _LIVING.add(key, compile_graph(graph, workspace=workspace))
        _RECENT.append(found)
        COMPILED[0] += 1
        for watcher in WATCHERS:
            watcher.compiled(found, started_ns)
    return found


def remembered() -> list[Program]:
    """Return the programs this process has compiled and still holds."""
    return _LIVING.values()


def run(program: Program, inputs: list[Storage]) -> list[Storage]:
    """Run a program once."""
    if isinstance(program, symbolic_sizes.SizedProgram):
        return program.run(inputs, partial(run, program.inner))
    made: list[Storage] = WATCHERS[-1].run(program, inputs) if WATCHERS else program.run(inputs)
    return made


def runner_in_section(program: Program) -> Callable[[list[Storage]], list[Storage]]:
    """Return what runs a program once inside a critical section, without watchers."""
    if not isinstance(program, symbolic_sizes.SizedProgram):
        found: Callable[[list[Storage]], list[Storage]] = program.run_in_section
        return found
    return partial(program.run, inner=program.inner.run_in_section)


class Watcher(Protocol):
    """An observer that is notified of compilations, and runs programs in its own way."""

    def compiled(self, program: Program, started_ns: int) -> None: ...
    def run(self, program: Program, inputs: list[Storage]) -> list[Storage]: ...


@block
def watched(watcher: Watcher) -> Generator[None]:
    """Let a watcher run every program of this process, in place of those that watch already."""
    try:
        WATCHERS.append(watcher)
        yield
    finally:
        WATCHERS.remove(watcher)
