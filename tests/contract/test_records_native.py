"""Every lowered record, compiled natively, equals its reference: the samples of a record are one program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from record_samples import NAMES, called, inputs, results, samples
from test_record_properties import POINTWISE, special_values
from tolerance import disagreement, same_zeros

from stratal.base import settings
from stratal.base.dtypes import ALL, DType
from stratal.base.errors import StratalError
from stratal.base.types import TensorType
from stratal.compiler import compile_graph, decided
from stratal.graph.graph import Graph
from stratal.graph.interpret import apply
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import REGISTRY, Op, Sample
from stratal.ops.families import Elementwise
from stratal.plan.host import current_target
from stratal.plan.stages import recording
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
    found = []
    for (sample, want), result in zip(wanted, got, strict=True):
        array = np.array(result.array)
        if fault := disagreement(sample.op, array, want) or same_zeros(sample.op, array, want):
            found.append(f"{called(sample)}: {fault}")
    return found


def faults_one_by_one(calls: Sequence[Sample], name: str) -> list[str]:
    """Do the same with a program per call, to name the calls that do not compile."""
    found = []
    for sample in calls:
        try:
            found += faults([sample], name)
        except StratalError as error:
            found.append(f"{called(sample)}: {type(error).__name__}: {error}")
    return found


@pytest.mark.sampled(39)
@pytest.mark.parametrize("name", LOWERED)
def test_native_code_equals_the_reference(name: str) -> None:
    calls = [s for s in samples(name) if not s.op.host_reason(*s.types)]
    try:
        broken = faults(calls, name)
    except StratalError:
        broken = faults_one_by_one(calls, name)
    if broken:
        pytest.fail(f"{name}: {len(broken)} of {len(calls)} samples\n" + "\n".join(broken[:8]), pytrace=False)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", LOWERED)
def test_every_sample_passes_the_verifiers(name: str) -> None:
    """All that happens before LLVM: what `STRATAL_VERIFY=1` checks of graphs, partitions and kernels."""
    nodes: list[Node] = []
    outputs: list[Node] = []
    for sample in samples(name):
        operands = [graph_input(f"x{len(nodes) + k}", t) for k, t in enumerate(sample.types)]
        nodes += operands
        outputs += items(make(sample.op, *operands))
    graph = Graph(nodes, outputs, name=name)
    with settings.verify(True), recording(graph) as record:
        decided(graph, current_target())
    assert record.last[0] == "commands"


def on_special_values(op: Op, dtype: DType) -> Sample:
    """Return a call of an element-wise op on every tuple of special values of a dtype."""
    value = np.array(special_values(dtype), np.float64 if dtype.is_float else dtype.np)
    with np.errstate(all="ignore"):
        grids = np.meshgrid(*[value.astype(dtype.np)] * (op.arity or 1), indexing="ij")
    columns = [np.ascontiguousarray(g.ravel()) for g in grids]
    return Sample(op, (TensorType(dtype, columns[0].shape),) * len(columns), draw=lambda _: columns)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", POINTWISE)
def test_native_code_equals_the_reference_on_every_pair_of_special_values(name: str) -> None:
    record = REGISTRY[name]
    assert issubclass(record, Elementwise)
    calls = [on_special_values(record(), d) for d in ALL if d.kind in record.kinds]
    broken = faults([s for s in calls if not s.op.host_reason(*s.types)], name)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_native_casts_of_special_values_equal_the_reference(dtype: DType) -> None:
    broken = faults(
        [on_special_values(REGISTRY["cast"](dtype=t), dtype) for t in ALL if not t.is_complex], "cast"
    )
    assert not broken, "\n".join(broken)
