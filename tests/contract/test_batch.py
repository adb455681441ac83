"""The batch of every record, generated from its samples: a new axis in front equals a loop over the rows."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from record_samples import NAMES, Array, called, inputs, samples
from tolerance import disagreement

import stratal as st
from stratal.base.dims import Sym
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.batching import batch_graph
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.graph.node import graph_input, items, make
from stratal.graph.op import REGISTRY, Op, Sample, record
from stratal.ops.families import Linear, Movement
from stratal.tensor.build import apply

RECORDS = [n for n in NAMES if n not in ("input", "const", "item") and REGISTRY[n].arity != 0]
ROWS = 3
MOST_PER_RECORD = 60


def rows_of(sample: Sample) -> list[list[Array]]:
    """Return the operands of a sample for each row, drawn apart where the sample draws."""
    if sample.draw is not None:
        seed = zlib.crc32(called(sample).encode())
        drawn = (sample.draw(np.random.default_rng(seed + k)) for k in range(ROWS))
        return [[np.asarray(a) for a in arrays] for arrays in drawn]
    first = inputs(sample)
    return [[np.roll(a.ravel(), k).reshape(a.shape) for a in first] for k in range(ROWS)]


def which(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield which operands have the axis: all, each alone, all but one."""
    yield (True,) * count
    if count > 1:
        for k in range(count):
            yield tuple(j == k for j in range(count))
        for k in range(count if count > 2 else 0):
            yield tuple(j != k for j in range(count))


def small(name: str) -> list[Sample]:
    """Return some samples of a record, of all kinds, the smaller ones."""
    found = [s for s in samples(name) if sum(int(np.prod(t.ints)) for t in s.types) < 700]
    step = max(1, -(-len(found) // MOST_PER_RECORD))
    return found[::step]


def differs(op: Op, got: Array, want: Array) -> str | None:
    of_lapack = type(op).__module__.startswith("stratal.ops.linalg")  # stacks go another way through it
    ulp = 16.0 if of_lapack else 4.0
    return f"is {got.dtype}{got.shape}" if got.shape != want.shape else disagreement(op, got, want, ulp)


def fault(sample: Sample, mapped: Sequence[bool]) -> str | None:
    """Compare the batch with the rows one by one."""
    nodes = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
    graph = Graph(nodes, items(make(sample.op, *nodes)), name=sample.op.name)
    rows = rows_of(sample)
    rows = [[row[k] if has else rows[0][k] for k, has in enumerate(mapped)] for row in rows]
    batched = verify(batch_graph(graph, ROWS, mapped, [True] * len(graph.outputs)))
    stacked = [np.stack([row[k] for row in rows]) if has else rows[0][k] for k, has in enumerate(mapped)]
    found = interpret(batched, stacked)[0]
    for k, got in enumerate(found):
        want = np.stack([interpret(graph, row)[0][k] for row in rows])
        if complaint := differs(sample.op, got, want):
            return complaint
    return None


@pytest.mark.parametrize("name", RECORDS)
def test_a_batch_of_calls_equals_the_calls_one_by_one(name: str) -> None:
    broken = []
    for sample in small(name):
        for mapped in itertools.islice(which(len(sample.types)), 9):
            try:
                complaint = fault(sample, mapped)
            except Exception as error:
                complaint = f"{type(error).__name__}: {error}"
            if complaint:
                broken.append(f"{called(sample)} over {mapped}: {complaint}")
    assert not broken, "\n".join([f"{name}: {len(broken)}", *broken[:6]])


@pytest.mark.parametrize("name", RECORDS)
def test_the_number_of_rows_may_be_a_symbol(name: str) -> None:
    rows = Sym.named("rows", 2)
    for sample in small(name)[:8]:
        for mapped in itertools.islice(which(len(sample.types)), 4):
            nodes = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
            graph = Graph(nodes, items(make(sample.op, *nodes)))
            batched = batch_graph(graph, rows, mapped, [True] * len(graph.outputs))
            for after, before in zip(batched.outputs, graph.outputs, strict=True):
                assert after.aval == before.aval.with_shape((rows, *before.shape)), (
                    f"{called(sample)} over {mapped}"
                )


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_says_why_it_has_no_batch_rule_has_none(name: str) -> None:
    record = REGISTRY[name]
    assert not record.not_batched or record.batch is Op.batch, name


def test_an_op_without_a_rule_runs_row_by_row() -> None:
    (sample,) = itertools.islice(samples("host_call"), 1)
    nodes = [graph_input("x", t) for t in sample.types]
    batched = batch_graph(Graph(nodes, items(make(sample.op, *nodes))), ROWS, [True] * len(nodes))
    assert [n.op.name for n in batched.nodes if n.op.name == "scan"] == ["scan"]


def test_no_rows_give_no_rows() -> None:
    for name in ("add", "contract", "scan", "host_call", "expression", "sort"):
        sample = next(iter(samples(name)))
        nodes = [graph_input("x", t) for t in sample.types]
        graph = Graph(nodes, items(make(sample.op, *nodes)))
        batched = verify(batch_graph(graph, 0, [True] * len(nodes)))
        given = [np.zeros((0, *t.ints), t.dtype.np) for t in sample.types]
        for got, out in zip(interpret(batched, given)[0], graph.outputs, strict=True):
            assert got.shape == (0, *out.shape)


def test_a_record_that_says_nothing_of_rows_runs_row_by_row() -> None:
    """What a record means by its first axis is another one where rows lie in front: no rule is inherited."""
    assert Linear.batch is Movement.batch is Op.batch
    try:

        @record
        class TurnFirst(Movement):
            """Reverse the first axis."""

            name = "turn_first"
            arity = 1
            not_lowered = "a test's"

            def infer(self, *types: TensorType) -> TensorType:
                return types[0]

            def ref(self, *arrays: Array) -> Array:
                return np.ascontiguousarray(arrays[0][::-1])

        sample = Sample(TurnFirst(), (TensorType(float32, (3, 2)),))
        assert fault(sample, (True,)) is None
        x = st.arange(18.0).reshape(3, 3, 2)
        turned = st.vmap(lambda row: apply(TurnFirst(), row))(x)
        np.testing.assert_array_equal(turned.numpy(), x.flip(1).numpy())
    finally:
        REGISTRY.pop("turn_first", None)
