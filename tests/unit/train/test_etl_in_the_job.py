"""A training job reads Parquet, CSV and SQL itself, resumes with the same bits, and says where time goes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import LOSS, bits, small

from stratal import optim
from stratal.data import CSV, Parquet, Pipeline, SQLTable
from stratal.train import CheckpointManager, Trainer

ROWS = 48
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(ROWS, 6)).round(3)
KINDS = (NUMBERS[:, 0] > 0).astype(int)
NAMES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A third of the rows in each of three files."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    first, second, third = np.array_split(np.arange(ROWS), 3)
    columns = {name: NUMBERS[first, k] for k, name in enumerate(NAMES)} | {"kind": KINDS[first]}
    parquet.write_table(arrow.table(columns), tmp_path / "first.parquet", row_group_size=7)
    lines = [",".join([*map(str, NUMBERS[k]), str(KINDS[k])]) for k in second]
    (tmp_path / "second.csv").write_text("\n".join([",".join([*NAMES, "kind"]), *lines, ""]))
    with sqlite3.connect(tmp_path / "third.sqlite") as base:
        base.execute(f"CREATE TABLE rows (id INTEGER PRIMARY KEY, {', '.join(NAMES)}, kind INTEGER)")
        values = [(int(k), *map(float, NUMBERS[k]), int(KINDS[k])) for k in third]
        base.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * 8)})", values)
    base.close()
    return tmp_path


def pipelines(folder: Path) -> tuple[Pipeline, list[Pipeline]]:
    """Return a pipeline of all rows, and those of each file."""
    sources = [
        Parquet(folder / "first.parquet"), CSV(folder / "second.csv"),
        SQLTable(lambda: sqlite3.connect(folder / "third.sqlite"), "rows", key="id"),
    ]  # fmt: skip
    parts = [Pipeline(source, timed=True).map(sample) for source in sources]
    return Pipeline.mix(parts, seed=0).shuffle(window=16, seed=1).batch(8).prefetch(2), parts


def sample(row: dict[str, Any]) -> tuple[Any, int]:
    return np.array([row[name] for name in NAMES], np.float32), int(row["kind"])


class Stops:
    """Ends a run after so many updates, as a kill does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.steps == self.after:
            raise KeyboardInterrupt


@pytest.mark.row("F21", "N14")
def test_a_job_on_three_kinds_of_files_resumes_in_an_epoch_and_shows_what_stages_take(folder: Path) -> None:
    def trained(after: int, **options: Any) -> tuple[Trainer, list[Pipeline]]:
        net, (data, parts) = small(), pipelines(folder)
        sgd = optim.SGD(net.parameters(), lr=0.1)
        trainer = Trainer(net, loss=LOSS, optimizer=sgd, callbacks=[Stops(after)])
        trainer.fit(data, epochs=3, **options)
        return trainer, parts

    whole, parts = trained(99)
    assert whole.history["loss"][-1] < whole.history["loss"][0] and whole.steps == 18
    seen = np.concatenate([np.asarray(x) for x, _ in pipelines(folder)[0]])
    assert sorted(map(tuple, seen)) == sorted(map(tuple, NUMBERS.astype(np.float32)))
    options = {"checkpoints": CheckpointManager(folder / "run", every=1), "resume": True}
    with pytest.raises(KeyboardInterrupt):
        trained(8, **options)
    resumed, _ = trained(99, **options)
    assert bits(resumed.net) == bits(whole.net) and resumed.history["loss"] == whole.history["loss"]
    for part, kind in zip(parts, ("Parquet", "CSV", "SQLTable"), strict=True):
        assert f"read {kind}" in str(part.times) and "map sample" in str(part.times)
