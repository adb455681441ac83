"""Kernels that a loop alone needs, moved back into it: the same results, less memory while it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import stratal as st
from stratal.base.artifact import Launch, Loop, own_reads
from stratal.base.types import TensorType
from stratal.compiler import compile_graph, lower, planning, rewritten
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input, items, make
from stratal.ops.control.scan import INDEX, Scan
from stratal.plan.loop_invariants import sunk
from stratal.runtime.storage import Storage

F32 = st.float32


def layers_of_a_loop(count: int = 3, turns: int = 32) -> Graph:
    """A loop whose turns multiply a carry by weights, each of which is packed once before it."""
    b, weights = Builder(), [graph_input(f"w{k}", TensorType(F32, (256, 256))) for k in range(count)]
    x = graph_input("x", TensorType(F32, (64, 256)))
    carry, index = graph_input("carry", x.aval), graph_input("turn", INDEX)
    inner = [graph_input(w.op.label, w.aval) for w in weights]  # type: ignore[attr-defined]
    h = carry
    for w in inner:
        h = b.tanh(b.contract(h, w, spec="mk,nk->mn"))
    scan = make(Scan(Graph([carry, *inner, index], [h]), turns, 1, 0), x, *weights)
    return Graph([x, *weights], [items(scan)[0]], name="loop")


def test_packed_weights_move_to_the_turn_before_their_reader() -> None:
    with planning() as (target, _, _):
        draft = lower(rewritten(layers_of_a_loop(), target).parts, target)
    (loop,) = [c for c in draft.commands if isinstance(c, Loop)]
    outside = [c for c in draft.commands if isinstance(c, Launch)]
    assert outside, "weights are packed before the loop"
    made = sunk(draft)
    assert made is not None
    (inner,) = [c for c in made.commands if isinstance(c, Loop)]
    assert not [c for c in made.commands if isinstance(c, Launch)]
    assert len(inner.body) == len(loop.body) + len(outside)
    for launch in outside:
        at = inner.body.index(launch)
        assert set(launch.writes) & set(own_reads(inner.body[at + 1]))
    assert sunk(replace(made)) is None


def test_a_budget_repeats_them_with_the_same_bits() -> None:
    graph = layers_of_a_loop()
    rng = np.random.default_rng(0)
    operands = [rng.normal(size=i.aval.ints).astype(np.float32) * 0.1 for i in graph.inputs]
    whole = compile_graph(graph)
    with st.base.settings.memory(whole.plan.planned_peak_bytes - 400_000):  # two packed weights
        small = compile_graph(graph)
    assert small.plan.planned_peak_bytes <= whole.plan.planned_peak_bytes - 400_000
    found = [p.run([Storage.copy_of(a, i.aval) for a, i in zip(operands, graph.inputs, strict=True)])[0]
             for p in (whole, small)]  # fmt: skip
    assert found[0].array.tobytes() == found[1].array.tobytes()
