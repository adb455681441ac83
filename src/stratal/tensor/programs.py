"""From nodes to programs: number the nodes a set of values needs, and find or compile the program for that
structure.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from stratal.base import settings
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node, graph_input
from stratal.runtime.storage import Storage
from stratal.tensor import values

Key = tuple[Any, ...]
Program = Any  # what compile_graph returns
_CAPACITY = 256
_SHAPING = (settings.target, settings.threads, settings.winograd, settings.tuning, settings.objective)

_PROGRAMS: OrderedDict[tuple[Key, object], Program] = OrderedDict()  # of lazy work, those used last
_LIVING: WeakValueDictionary[str, Program] = WeakValueDictionary()  # by digest and settings, while held
_RECENT: deque[Program] = deque(maxlen=32)  # compiled last: kept although nobody may hold them
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
                op = node.op.bare() if node.op.name == "watched" else node.op  # type: ignore[attr-defined]
                rows.append((op, *[number[i] for i in node.inputs]))
        rows.append(tuple([number[o] for o in self.outputs]))
        rows.append(tuple([(number[s], number[v]) for s, v in self.updates]))
        return tuple(rows)

    def graph(self, name: str, labels: Sequence[str] = (), held: Container[Node] = ()) -> Graph:
        """Return a graph of its own: no node of it keeps a leaf's storage alive.

        `held` are leaves that seldom change from run to run.
        """
        fresh: dict[Node, Node] = {}
        for k, node in enumerate(self.leaves):
            own = node.op if isinstance(node.op, Input) else None
            label = (labels[k] if k < len(labels) else own.label if own else "") or f"x{k}"
            bare = own is not None and values.finished(node) is None  # a placeholder may stay what it is
            if bare and (own.label, own.held) == (label, node in held):
                fresh[node] = node
            else:
                fresh[node] = graph_input(label, node.aval, node.where, held=node in held)
        roots = [*self.outputs, *(v for _, v in self.updates)]
        made = substitute(roots, fresh)
        states = [fresh[s] for s, _ in self.updates]
        split = len(self.outputs)
        updates = zip(states, made[split:], strict=True)
        return Graph([fresh[n] for n in self.leaves], made[:split], updates, name)


def walk(roots: Iterable[Node], is_leaf: Callable[[Node], bool]) -> tuple[list[Node], list[Node]]:
    """Return every node the roots need, inputs before users, and those of them that are leaves; iterative,
    any depth.

    The order depends on the roots and their structure alone, so that equal work gets an equal key.
    """
    order: list[Node] = []
    leaves: list[Node] = []
    done: dict[Node, bool] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        state = done.get(node)
        if state is None:
            if is_leaf(node):
                leaves.append(node)
                done[node] = True
                order.append(node)
                stack.pop()
            else:
                done[node] = False
                stack += [i for i in node.inputs[::-1] if i not in done]
        else:
            stack.pop()
            if not state:
                done[node] = True
                order.append(node)
    return order, leaves


def program_for(work: Work, name: str) -> Program:
    """Return the program for some work, compiled at most once per structure."""
    key = (work.key(), choices())
    found = _PROGRAMS.get(key)
    if found is not None:
        _PROGRAMS.move_to_end(key)
        return found
    program = compiled(work.graph(name))
    _PROGRAMS[key] = program  # rows hold types, ops and numbers, never nodes
    if len(_PROGRAMS) > _CAPACITY:
        _PROGRAMS.popitem(last=False)
    return program


def compiled(graph: Graph) -> Program:
    """Return the program of a graph, compiled at most once per digest and settings that shape code."""
    key = f"{graph.digest} {choices()}"
    found = _LIVING.get(key)
    if found is None:
        started_ns = time.perf_counter_ns()
        found = _LIVING[key] = compile_graph(graph)
        _RECENT.append(found)
        COMPILED[0] += 1
        for watcher in WATCHERS:
            watcher.compiled(found, started_ns)
    return found


def choices() -> tuple[object, ...]:
    """Return the settings that shape code: programs made under others are others."""
    return tuple([setting.value for setting in _SHAPING])


def remembered() -> list[Program]:
    """Return the programs this process has compiled and still holds."""
    return list(_LIVING.values())


def run(program: Program, inputs: list[Storage]) -> list[Storage]:
    """Run a program once."""
    made: list[Storage] = WATCHERS[-1].run(program, inputs) if WATCHERS else program.run(inputs)
    return made


class Watcher(Protocol):
    """Somebody who sees what is compiled, and runs programs in their own way."""

    def compiled(self, program: Program, started_ns: int) -> None: ...
    def run(self, program: Program, inputs: list[Storage]) -> list[Storage]: ...


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let a watcher run every program of this process, in place of those that watch already."""
    WATCHERS.append(watcher)
    try:
        yield
    finally:
        WATCHERS.remove(watcher)
