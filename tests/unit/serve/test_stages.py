"""Models of stages: the numbers of the whole model, each stage in batches of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import FEATURES, network, rows

import stratal as st
from stratal import nn
from stratal.base.errors import FormatError, ShapeError
from stratal.serve.planning import LatencyTable, split_batch
from stratal.serve.stages import Cuts, StagedModel, freeze_stages, load_stages

SIZES = (1, 2, 4, 8)
GROWS = LatencyTable(SIZES, (1.0, 1.9, 3.7, 8.0))
FLAT = LatencyTable(SIZES, (2.0, 2.0, 2.1, 2.2))


def parts(seed: int = 1) -> list[Any]:
    whole = list(network(seed))
    return [nn.Sequential(*whole[:2]), whole[2]]


@pytest.fixture(scope="module")
def staged() -> StagedModel:
    return freeze_stages(parts(), rows(4), batch_sizes=(1, 4), name="staged")


@pytest.mark.quick
def test_cuts_take_the_least_time_and_more_rows_than_any_batch_go_at_the_best_rate() -> None:
    for table in (GROWS, FLAT, LatencyTable(SIZES, (1.0, 1.1, 1.2, 9.0))):
        cuts = Cuts.of(table)
        for count in range(1, 9):
            seconds, sizes = split_batch(table, count)
            assert tuple(cuts.sizes(count)) == sizes
            assert sum(map(table.at, cuts.sizes(count))) == pytest.approx(seconds)
    assert cuts.sizes(13) == [4, 4, 4, 1]  # the batch of 8 outgrew something
    assert cuts.sizes(0) == []


@pytest.mark.row("H10")
def test_each_stage_runs_batches_of_its_own_and_gives_the_numbers_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = freeze_stages(parts(), rows(4), batch_sizes=SIZES).stages
    model, ran = StagedModel("planned", stages, [GROWS, FLAT]), []

    def noted(stage: Any, run: Any) -> Any:
        def run_size(size: int, arrays: Sequence[Any]) -> Any:
            ran.append((stages.index(stage), size))
            return run(size, arrays)

        return run_size

    for stage in stages:
        monkeypatch.setattr(stage, "run_size", noted(stage, stage.run_size))
    for count, wanted in {
        7: [(0, 4), (0, 2), (0, 1), (1, 8)],
        3: [(0, 2), (0, 1), (1, 4)],
        9: [(0, 4), (0, 4), (0, 1), (1, 8), (1, 1)],
    }.items():
        ran.clear()
        (y,) = model.run([rows(count)])
        assert ran == wanted
        np.testing.assert_allclose(y, network()(st.tensor(rows(count))), rtol=1e-5, atol=1e-6)
    assert model.batch_sizes == (1, 2, 3, 4, 6, 8)


def test_stages_that_do_not_fit_are_refused(staged: StagedModel) -> None:
    first, second = staged.stages
    with pytest.raises(ShapeError, match="does not take what"):
        StagedModel("odd", [second, first], [GROWS, FLAT])
    fixed = st.freeze(network(), rows(2), batch_sizes=None)
    with pytest.raises(ShapeError, match="no batch axis"):
        StagedModel("odd", [fixed], [GROWS])
    with pytest.raises(ShapeError, match="at least one"):
        freeze_stages([], rows(1))


def test_a_folder_of_stages_is_loaded_whole_or_refused(staged: StagedModel, tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    staged.save(folder)
    loaded = load_stages(folder)
    assert loaded.origin is not None and loaded.origin == staged.origin and len(loaded.origin.content) == 64
    assert loaded.weight_bytes == staged.weight_bytes
    np.testing.assert_allclose(loaded.run([rows(4)])[0], staged.run([rows(4)])[0], rtol=1e-5)
    with pytest.raises(FormatError, match="a new folder"):
        staged.save(folder)
    head = json.loads((folder / "stages.json").read_text())
    for change, said in [
        ({"format": "other"}, "another format"), ({"stages": []}, "content hashes"), ({"more": 1}, "keys"),
        ({"stages": "ab"}, "content hashes"), ({"stages": [1, 2]}, "content hashes"),
        ({"stages": head["stages"][::-1]}, "not the one that was saved"), ({"name": 3}, "content hashes"),
        ({"stages": [*head["stages"], "c"]}, "stage-3"),
    ]:  # fmt: skip
        (folder / "stages.json").write_text(json.dumps(head | change))
        with pytest.raises(FormatError, match=said):
            load_stages(folder)
    for text in ("{", " " * (1 << 17)):
        (folder / "stages.json").write_text(text)
        with pytest.raises(FormatError):
            load_stages(folder)


class Dense(nn.Module):
    """Large weights: a batch takes hardly more time than a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 4096), nn.ReLU(), nn.Linear(4096, 4096))

    def forward(self, input: Any) -> Any:
        return self.layers(input)


class Growing(nn.Module):
    """Much work for each row, which batches do not make less."""

    def forward(self, input: Any) -> Any:
        wide = (input.unsqueeze(-1) + st.arange(60_000, dtype=st.float32) / 60_000).tanh()
        return wide.mean(-1)


@pytest.mark.slow
@pytest.mark.row("H10")
def test_split_batching_beats_whole_batches_on_this_machine() -> None:
    """Six rows: the whole model is filled up to eight or runs twice, stages each do what suits them."""
    st.manual_seed(0)
    parts = [Growing(), Dense()]
    split = freeze_stages(parts, rows(8), batch_sizes=SIZES)
    whole = st.freeze(nn.Sequential(*parts), rows(8), batch_sizes=SIZES)
    x = rows(6)
    ways = {
        "split": lambda: split.run([x]),
        "filled up": lambda: whole.run([x]),
        "twice": lambda: [whole.run([x[:4]]), whole.run([x[4:]])],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(30):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    median = {name: float(np.median(seconds[3:])) for name, seconds in times.items()}
    print(median, [cut.table for cut in split.cuts])
    np.testing.assert_allclose(ways["split"]()[0], ways["filled up"]()[0], rtol=1e-3, atol=1e-5)
    assert median["split"] < min(median["filled up"], median["twice"])
