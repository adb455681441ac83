"""`stratal tune --graph`: rewrites timed beside what was written; verdicts decide, losers stay out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stratal.base import settings, tuning
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.cli import main
from stratal.compiler import Program, compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.plan.host import runnable_target
from stratal.runtime.storage import Storage
from stratal.search.found import AS_WRITTEN, REWRITTEN
from stratal.tune.measure import Measurer, Timing
from stratal.tune.rewrites import RewriteVerdict, compare_rewrites, rewrites_of
from stratal.tune.session import known_records, toolchain


def chain() -> Graph:
    """Return (A B) C, which takes a tenth of the work as A (B C)."""
    b = Builder()
    x, y, z = (graph_input("x", TensorType(float32, s)) for s in ((96, 8), (8, 96), (96, 8)))
    first = b.contract(x, y, spec="mk,kn->mn")
    return Graph([x, y, z], [b.tanh(b.contract(first, z, spec="mk,kn->mn"))])


def programs() -> list[Program]:
    return [compile_graph(chain())]


def contracts(program: Program) -> list[str]:
    return [str(d) for d in program.log.of("search") if d.choice == REWRITTEN]


def verdict_of(seconds: float, written: float) -> RewriteVerdict:
    rewrite = rewrites_of(programs(), 10.0)[0]
    return RewriteVerdict(rewrite, Timing((written,) * 9, (seconds,) * 9))


def test_a_rewrite_that_was_measured_to_lose_is_logged_with_both_times_and_not_taken_again(
    tmp_path: Path,
) -> None:
    lost = verdict_of(seconds=3e-6, written=2e-6)
    assert not lost.won
    path = tmp_path / "records.json"
    tuning.write_file(path, [lost.record(runnable_target(), toolchain())])
    with settings.math("real"):
        assert contracts(compile_graph(chain()))  # by its price
        with settings.tuning(str(path)):
            program = compile_graph(chain())
    assert not contracts(program)
    (decision,) = (d for d in program.log.of("search") if d.basis == "measured")
    assert decision.choice == AS_WRITTEN and decision.seconds == 2e-6
    assert [a.seconds for a in decision.alternatives] == [3e-6] and "measured to be slower" in decision.why
    text = program.explain("rewrites")
    assert "rejected: contract" in text and "as written 2 us, rewritten 3 us, measured" in text
    assert "it was measured to be slower" in text and "(real arithmetic): contract(" in text
    assert lost.rewrite.piece.key not in {
        r.piece.key for r in rewrites_of(programs(), 10.0, known_records(path, "time"))
    }


def test_a_rewrite_that_won_is_taken_by_its_record(tmp_path: Path) -> None:
    won = verdict_of(seconds=1e-6, written=2e-6)
    assert won.won
    path = tmp_path / "records.json"
    tuning.write_file(path, [won.record(runnable_target(), toolchain())])
    with settings.math("real"), settings.tuning(str(path)):
        program = compile_graph(chain())
    assert contracts(program) and "measured" in contracts(program)[0]
    assert "as written 2 us, rewritten 1 us, measured" in program.explain("rewrites")
    arrays = [np.random.default_rng(0).standard_normal(i.shape).astype(np.float32) for i in chain().inputs]
    given = [Storage.copy_of(a, i.aval) for a, i in zip(arrays, program.graph.inputs, strict=True)]
    got = program.run(given)[0].array
    np.testing.assert_allclose(got, np.tanh(arrays[0] @ arrays[1] @ arrays[2]), rtol=1e-4, atol=1e-5)


def test_rewrites_are_timed_beside_what_was_written_with_the_same_numbers() -> None:
    with Measurer(runnable_target(), limit_seconds=60.0) as measurer:
        (verdict, *_) = compare_rewrites(rewrites_of(programs(), 10.0)[:1], measurer)
    assert verdict.dropped == "" and verdict.timing is not None
    record = verdict.record(runnable_target(), toolchain())
    assert {record.algorithm, record.default} == {REWRITTEN, AS_WRITTEN}


def test_what_frozen_weights_decide_is_not_timed() -> None:
    b = Builder()
    x = graph_input("x", TensorType(float32, (64, 32)))
    w, v = (graph_input("w", TensorType(float32, (32, 48)), frozen=True) for _ in range(2))
    first, second = (b.contract(x, y, spec="mk,kn->mn") for y in (w, v))
    graph = Graph([x, w, v], [b.add(first, second)])
    found = rewrites_of([compile_graph(graph)], 10.0)
    with Measurer(runnable_target(), limit_seconds=60.0) as measurer:
        (verdict,) = compare_rewrites(found[:1], measurer)
    assert verdict.dropped == ""


@pytest.mark.slow
def test_the_command_searches_graphs_and_keeps_verdicts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import stratal as st\n"
        "f = st.compile(lambda x, y, z: (x @ y) @ z)\n"
        "print(f(st.ones(96, 8), st.ones(8, 96), st.ones(96, 8)).numpy().sum())\n"
    )
    rows, path = tmp_path / "rows.json", tmp_path / "records.json"
    words = ["tune", "--graph", "--db", str(path), "--kernels", "1", "--trials", "1", "--model", "none"]
    assert main([*words, "--seconds", "20", "--json", str(rows), str(script)]) == 0
    found = [r for r in json.loads(rows.read_text()) if "rewrite" in r]
    assert found and all("rewritten_seconds" in r or r["dropped"] for r in found)
    assert {r.algorithm for r in tuning.read_file(path)} & {REWRITTEN, AS_WRITTEN}
