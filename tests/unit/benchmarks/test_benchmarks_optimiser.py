"""The optimiser's benchmark: what the search slows down is dropped, logged, and not taken again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import optimiser_slower
from benchmarks.optimiser_slower import Recorded, Recorder, Turns, drop, random_network, sources, turns
from search_networks import B, product, tensor

import stratal as st
from stratal import nn
from stratal.base import settings, tuning
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.runtime.storage import Storage
from stratal.search.found import AS_WRITTEN, REWRITTEN
from stratal.tensor.lazy import program_cache


def chain() -> Recorded:
    """Return (A B) C, which takes a tenth of the work as A (B C)."""
    x, y, z = (tensor(*shape) for shape in ((96, 8), (8, 96), (96, 8)))
    rng = np.random.default_rng(0)
    given = [Storage.copy_of(rng.standard_normal(i.shape).astype(np.float32), i.aval) for i in (x, y, z)]
    return Recorded("chain", Graph([x, y, z], [B.tanh(product(product(x, y), z))]), given)


@pytest.mark.row("C7")
def test_rewrites_that_slow_a_program_down_are_dropped_logged_and_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(recorded: Recorded, rounds: int) -> Turns:
        found = turns(recorded, 1)
        rewritten = bool(optimiser_slower.rewrites_of(found.program))
        return found._replace(exact=2e-6, real=3e-6, ratio=1.5) if rewritten else found

    monkeypatch.setattr(optimiser_slower, "turns", slow)
    monkeypatch.setattr(optimiser_slower, "drop", lambda found, path, whole: drop(found, path, whole=True))
    path = tmp_path / "records.json"
    tuning.write_file(path, [])
    with settings.tuning(str(path)):
        row = optimiser_slower._row(chain(), 1, path)
        with settings.math("real"):
            program = compile_graph(chain().graph)
    assert row["dropped"] and "2.0 us as written, 3.0 us rewritten" in row["dropped"][0]
    assert (row["first_ratio"], row["ratio"], row["rewrites"], row["met"]) == (1.5, 1.0, 0, True)
    assert {r.algorithm for r in tuning.read_file(path)} == {AS_WRITTEN}
    assert not [d for d in program.log.of("search") if d.choice == REWRITTEN]
    text = program.explain("rewrites")
    assert "it was measured to be slower" in text and "as written 2 us, rewritten 3 us, measured" in text


def test_what_the_optimiser_is_measured_on_is_networks_steps_examples_and_random_programs() -> None:
    names = sources(smoke=False)
    assert sum(name.startswith("random ") for name in names) == 100
    assert sum(name.startswith("examples/") for name in names) >= 8
    assert sum(name.endswith(", training") for name in names) >= 6 and "resnet50" in names
    recorder = Recorder("random 2")
    with program_cache.watched(recorder):
        names["random 2"]()
    (recorded,) = recorder.found.values()
    found = turns(recorded, 1)
    assert found.ratio > 0 and len(recorded.inputs) == len(recorded.graph.inputs)


def test_random_networks_of_every_kind_of_block_run() -> None:
    kinds: set[str] = set()
    for seed in range(100):
        rng = np.random.default_rng(seed)
        model = random_network(nn, rng, 3).eval()
        if not kinds.issuperset(model.kinds):
            kinds.update(model.kinds)
            assert model(st.ones(1, 3, 7, 7)).numel() > 0
    assert kinds == {"norm", "sum", "branches", "plain"}
