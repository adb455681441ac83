"""The differential check: interpreter = unfused = fused, and to the bit where sums are ordered alike.

What frozen inputs decide, computed once, must be right in the runs that follow.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import disagreements, random_graph

from stratal.base.artifact import Launch, flat
from stratal.compiler import Program, compile_graph, prepare
from stratal.graph.graph import Graph, substitute
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.runtime.storage import Storage

Array = np.ndarray[Any, Any]


def reference(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return outputs, then new states, of the interpreter."""
    outputs, states = interpret(graph, inputs)
    return [np.asarray(a) for a in outputs + states]


def native(program: Program, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return outputs, then new states, of a compiled graph. Only states may change among the inputs."""
    given = [Storage.copy_of(a, node.aval) for a, node in zip(inputs, graph.inputs, strict=True)]
    results = [np.array(s.array) for s in program.run(given)]
    place = {node: k for k, node in enumerate(graph.inputs)}
    written = {place[s] for s, _ in graph.updates}
    for k, (storage, array) in enumerate(zip(given, inputs, strict=True)):
        if k not in written and storage.array.tobytes() != np.ascontiguousarray(array).tobytes():
            raise AssertionError(f"input {k} was overwritten")
    return results + [np.array(given[place[s]].array) for s, _ in graph.updates]


def with_held_inputs(graph: Graph) -> Graph:
    """Return a graph of which every second input that is no state is held."""
    states = {state for state, _ in graph.updates}
    given = [node for node in graph.inputs if node not in states][::2]
    fresh = {node: graph_input(f"held{k}", node.aval, frozen=True) for k, node in enumerate(given)}
    roots = substitute(graph.roots, fresh)
    split = len(graph.outputs)
    updates = zip((state for state, _ in graph.updates), roots[split:], strict=True)
    return Graph([fresh.get(n, n) for n in graph.inputs], roots[:split], updates, graph.name)


def held_faults(graph: Graph, inputs: Sequence[Array], want: Sequence[Array]) -> list[str]:
    """Return what is wrong in two runs on the same held inputs."""
    graph = with_held_inputs(graph)
    program = compile_graph(graph)
    states = [graph.inputs.index(state) for state, _ in graph.updates]
    given = [Storage.copy_of(a, node.aval) for a, node in zip(inputs, graph.inputs, strict=True)]
    runs = []
    for _ in range(2):
        for k in states:
            given[k] = Storage.copy_of(inputs[k], graph.inputs[k].aval)
        results = [np.array(s.array) for s in program.run(given)]
        runs.append(results + [np.array(given[k].array) for k in states])
    faults = [
        f"held: run {k} is wrong" for k, got in enumerate(runs) if disagreements(graph, inputs, got, want)
    ]
    return faults if all(map(same_bits, *runs)) else [*faults, "held: a second run gives other bits"]


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays are equal to the bit; every NaN counts as one."""
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    nan = np.isnan(a) & np.isnan(b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.all(nan | (np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits))))


def check_graph(graph: Graph, inputs: Sequence[Array]) -> list[str]:
    """Compile and run a graph unfused and fused; return what is wrong, empty where nothing is."""
    want = reference(graph, inputs)
    programs: dict[str, Program] = {}
    got: dict[str, list[Array]] = {}
    faults: list[str] = []
    for name in ("unfused", "fused"):
        try:
            program = programs[name] = compile_graph(graph, fused=name == "fused")
            got[name] = native(program, graph, inputs)
            again = native(program, graph, inputs)
        except Exception as error:  # every failure is a finding
            lines = traceback.extract_tb(error.__traceback__)
            faults.append(f"{name}: {type(error).__name__} {lines[-1].name}: {str(error)[:300]}")
            continue
        if not all(map(same_bits, got[name], again)):
            faults.append(f"{name}: a second run gives other bits")
        for k in disagreements(graph, inputs, got[name], want)[:4]:
            faults.append(f"{name}: result {k} is {_brief(got[name][k])} instead of {_brief(want[k])}")
    try:
        faults += held_faults(graph, inputs, want)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        faults.append(f"held: {type(error).__name__} {lines[-1].name}: {str(error)[:300]}")
    if len(got) == 2:
        apart = ordered_otherwise(graph, programs["unfused"], programs["fused"])
        faults += [
            f"bits: result {k} is {_brief(a)} unfused and {_brief(b)} fused"
            for k, (a, b) in enumerate(zip(got["unfused"], got["fused"], strict=True))
            if k not in apart and not same_bits(a, b)
        ]
    return faults


# -- the reduction plan --------------------------------------------------------------------------------------
def reduction_plan(program: Program) -> dict[Node, tuple[str, ...]]:
    """Return, for each node that runs in a kernel with a reduction, what the schedule says of its order."""
    plan = {}
    for command in flat(program.draft.commands):
        group = program.draft.group_of(command)
        if isinstance(command, Launch) and group is not None:
            found = tuple(filter(None, map(_order, program.draft.kernels[command.kernel].steps)))
            plan.update(dict.fromkeys(group.members, found))
    return plan


def _order(step: str) -> str:
    if step.startswith("lanes("):
        return step.split(",")[0]
    return step if step.startswith(("reduction in the order", "reduced axis")) else ""


def ordered_otherwise(graph: Graph, a: Program, b: Program) -> set[int]:
    """Return which results depend on a float reduction that the two programs add up in another order."""
    first, second = reduction_plan(a), reduction_plan(b)
    apart = {n for n, order in first.items() if adds_floats(n) and second.get(n, order) != order}
    prepared = prepare(graph, a.made.target)
    inside = not apart <= set(prepared.nodes)  # in a region: whatever depends on any region may differ
    reached: set[Node] = set()
    for node in prepared.nodes:
        region = inside and any(isinstance(v, Graph) for v in node.op.attributes.values())
        if node in apart or region or any(i in reached for i in node.inputs):
            reached.add(node)
    return {k for k, root in enumerate(prepared.roots) if root in reached}


def adds_floats(node: Node) -> bool:
    return node.op.name in ("sum", "prod", "contract", "conv", "window_reduce") and node.dtype.is_float


def check_seed(seed: int) -> list[str]:
    graph, inputs = random_graph(seed)
    return check_graph(graph, inputs)


def _brief(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)} {np.array2string(array.ravel()[:6], threshold=6, precision=6)}"
