"""The differential check of one random graph: interpreter = unfused = fused, and to the bit where nothing is added up."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
from graphs import disagreements, random_graph

from stratal.compiler import Program, compile_graph
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import topological
from stratal.runtime.storage import Storage

Array = np.ndarray[Any, Any]


def reference(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return outputs, then new states, of the interpreter."""
    outputs, states = interpret(graph, inputs)
    return [np.asarray(a) for a in outputs + states]


def native(program: Program, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return outputs, then new states, of a compiled graph; inputs that are no states must stay as they are."""
    given = [Storage.copy_of(a, node.aval) for a, node in zip(inputs, graph.inputs, strict=True)]
    results = [np.array(s.array) for s in program.run(given)]
    place = {node: k for k, node in enumerate(graph.inputs)}
    written = {place[s] for s, _ in graph.updates}
    for k, (storage, array) in enumerate(zip(given, inputs, strict=True)):
        if k not in written and storage.array.tobytes() != np.ascontiguousarray(array).tobytes():
            raise AssertionError(f"input {k} was overwritten")
    return results + [np.array(given[place[s]].array) for s, _ in graph.updates]


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays are equal to the bit; every NaN counts as one."""
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    nan = np.isnan(a) & np.isnan(b)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return bool(np.all(nan | (np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned))))


def check_graph(graph: Graph, inputs: Sequence[Array]) -> list[str]:
    """Compile and run a graph unfused and fused; return what is wrong, empty where nothing is."""
    want = reference(graph, inputs)
    got: dict[str, list[Array]] = {}
    faults: list[str] = []
    for name in ("unfused", "fused"):
        try:
            program = compile_graph(graph, fused=name == "fused")
            got[name] = native(program, graph, inputs)
            if any(not same_bits(a, b) for a, b in zip(got[name], native(program, graph, inputs), strict=True)):
                faults.append(f"{name}: a second run gives other bits")
        except Exception as error:  # every failure is a finding
            lines = traceback.extract_tb(error.__traceback__)
            faults.append(f"{name}: {type(error).__name__} {lines[-1].name}: {str(error)[:300]}")
            continue
        bad = disagreements(graph, inputs, got[name], want)
        for k in bad[:4]:
            faults.append(f"{name}: result {k} is {_brief(got[name][k])} instead of {_brief(want[k])}")
    if len(got) == 2:
        faults += [
            f"fused and unfused differ in bits: result {k}, {_brief(a)} and {_brief(b)}"
            for k, (root, a, b) in enumerate(zip(graph.roots, got["fused"], got["unfused"], strict=True))
            if not adds_up(root) and not same_bits(a, b)
        ]
    return faults


def adds_up(root: Any) -> bool:
    """Return whether a result depends on a sum of floats, whose order its schedule chooses."""
    for node in topological([root]):
        if node.op.name in ("sum", "prod", "contract", "conv", "window_reduce") and node.dtype.is_float:
            return True
        if any(adds_up(r) for g in node.op.attributes.values() if isinstance(g, Graph) for r in g.roots):
            return True
    return False


def check_seed(seed: int) -> list[str]:
    graph, inputs = random_graph(seed)
    return check_graph(graph, inputs)


def _brief(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)} {np.array2string(array.ravel()[:6], threshold=6, precision=6)}"
