"""Every lowered record, compiled natively, equals its reference: the samples of a record are one program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from record_samples import NAMES, called, inputs, results, samples
from tolerance import disagreement

from stratal.base.errors import StratalError
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.interpret import apply
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import REGISTRY, Sample
from stratal.runtime.storage import Storage

LOWERED = [name for name in NAMES if not REGISTRY[name].not_lowered]


def faults(calls: Sequence[Sample], name: str) -> list[str]:
    """Compile and run calls as one program; return one line per result that differs from the reference."""
    nodes: list[Node] = []
    outputs: list[Node] = []
    stored: list[Storage] = []
    wanted = []
    for sample in calls:
        operands = [graph_input(f"x{len(nodes) + k}", t) for k, t in enumerate(sample.types)]
        values = inputs(sample)
        nodes += operands
        stored += [Storage.copy_of(a, o.aval) for a, o in zip(values, operands, strict=True)]
        outputs += items(make(sample.op, *operands))
        wanted += [(sample, np.asarray(r)) for r in results(apply(sample.op, *values))]
    got = compile_graph(Graph(nodes, outputs, name=name)).run(stored)
    compared = [(s, disagreement(s.op, np.array(g.array), w)) for (s, w), g in zip(wanted, got, strict=True)]
    return [f"{called(sample)}: {fault}" for sample, fault in compared if fault]


def faults_one_by_one(calls: Sequence[Sample], name: str) -> list[str]:
    """Do the same with a program per call, to name the calls that do not compile."""
    found = []
    for sample in calls:
        try:
            found += faults([sample], name)
        except StratalError as error:
            found.append(f"{called(sample)}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("name", LOWERED)
def test_native_code_equals_the_reference(name: str) -> None:
    calls = [s for s in samples(name) if not s.op.host_reason(*s.types)]
    try:
        broken = faults(calls, name)
    except StratalError:
        broken = faults_one_by_one(calls, name)
    if broken:
        pytest.fail(f"{name}: {len(broken)} of {len(calls)} samples\n" + "\n".join(broken[:8]), pytrace=False)
