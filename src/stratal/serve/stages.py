"""Split batching (lectures, 001): the stages of one model, each of which cuts a batch as suits it.

    stages.json                       format, version, name, and the content hash of every stage
    stage-1.stratal, stage-2.stratal  artefacts; the outputs of each are the inputs of the next

A stage whose time grows with the rows loses by a batch that is filled up; one that reads large weights takes
a full batch in the time of one row. One batch size for both wastes time in one of them: each has a plan of
its own, from its own latency table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError, ShapeError
from stratal.formats.artifact import FrozenModel, Origin, filled
from stratal.formats.container import SINGLE_FILE
from stratal.formats.files import read_whole, write_atomically
from stratal.formats.freeze import SIZES, freeze
from stratal.formats.safetensors import parse_json
from stratal.formats.saved import load
from stratal.formats.signature import Signature
from stratal.formats.training_sample import Sample
from stratal.serve.measuring import measured_tables
from stratal.serve.planning import LatencyTable, least_times

Array = np.ndarray[Any, Any]
HEAD: Final = "stages.json"
FORMAT: Final = "stratal-stages"
VERSION: Final = 1
MOST_STAGES: Final = 16
MOST_HEAD_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Cuts:
    """Which batches of a stage take a number of rows in the least time."""

    table: LatencyTable
    next_size: tuple[int, ...]  # of the batch to run first, for 0, 1, .. rows left, up to the largest size
    best: int  # the size with the best rate, for more rows than that

    @classmethod
    def of(cls, table: LatencyTable) -> Cuts:
        """Return the cuts by a latency table."""
        next_size = tuple(size for _, size in least_times(table, table.sizes[-1]))
        return cls(table, next_size, max(table.sizes, key=table.rate))

    def sizes(self, rows: int) -> list[int]:
        """Return the batch sizes for some rows, largest first; the last batch may be filled up."""
        sizes = []
        while rows > 0:
            sizes.append(self.next_size[rows] if rows < len(self.next_size) else self.best)
            rows -= sizes[-1]
        return sorted(sizes, reverse=True)


class StagedModel:
    """Frozen models in a row, to be served as one: what `FrozenModel` offers a server, with a plan per stage.

    `tables` has the latency table of each stage. Raises: ShapeError where a stage does not take what the one
    before it returns, or has no batch axis.
    """

    def __init__(self, name: str, stages: Sequence[FrozenModel], tables: Sequence[LatencyTable]) -> None:
        self.name = name
        self.stages = tuple(stages)
        self.cuts = tuple(map(Cuts.of, tables))
        _check(self.stages)
        self.signature = Signature(stages[0].signature.inputs, stages[-1].signature.outputs, batched=True)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of rows whose latency is worth knowing: the stages' sizes, and one between each two."""
        sizes = sorted({size for cut in self.cuts for size in cut.table.sizes})
        return tuple(sorted({*sizes, *((a + b) // 2 for a, b in pairwise(sizes))}))

    @property
    def weight_bytes(self) -> int:
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def training(self) -> Sample:
        return self.stages[0].training

    @property
    def origin(self) -> Origin | None:
        """Where it comes from, once every stage was saved; the content hash is that of all stages' hashes."""
        origins = [stage.origin for stage in self.stages if stage.origin is not None]
        if len(origins) < len(self.stages):
            return None
        return Origin(content_of([o.content for o in origins]), origins[0].stratal, origins[0].toolchain, {})

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for arrays that `signature.checked` let through."""
        found = list(arrays)
        for stage, cut in zip(self.stages, self.cuts, strict=True):
            found = _in_batches(stage, cut.sizes(len(found[0])), found)
        return found

    def run_size(self, size: int, arrays: Sequence[Array]) -> list[Array]:
        """Run `size` rows; any number of rows will do."""
        return self.run(arrays)

    def save(self, folder: str | Path) -> None:
        """Write the stages to a new folder. Raises: FormatError where there is something, FileWriteError."""
        folder = Path(folder)
        if folder.exists() or folder.suffix == SINGLE_FILE:
            raise FormatError("stages: are saved to a new folder", got=folder.name)
        folder.mkdir(parents=True)
        for k, stage in enumerate(self.stages):
            stage.save(folder / _file(k))
        contents = [stage.origin.content for stage in self.stages if stage.origin is not None]
        head = {"format": FORMAT, "version": VERSION, "name": self.name, "stages": contents}
        write_atomically(folder / HEAD, [(json.dumps(head, indent=1) + "\n").encode()])


def freeze_stages(
    parts: Sequence[Callable[..., Any]],
    sample: Any,
    *,
    batch_sizes: Sequence[int] = SIZES,
    name: str = "staged",
) -> StagedModel:
    """Freeze modules that follow each other, and measure the latency table of each, for a plan of its own.

    `sample` is an input of the first (or a tuple), as for `st.freeze`. Raises: what `st.freeze` does, and
    ShapeError for no parts.
    """
    stages: list[FrozenModel] = []
    for part in parts:
        stage = freeze(part, sample, batch_sizes=batch_sizes, name=f"{name}-{len(stages) + 1}")
        given = sample if isinstance(sample, tuple) else (sample,)
        sample = stage(*(np.asarray(x) for x in given))
        stages.append(stage)
    if not stages:
        raise ShapeError("stages: at least one module", got="none")
    return StagedModel(name, stages, [measured_tables(stage).typical for stage in stages])


def is_staged(path: Path) -> bool:
    """Return whether a folder holds the stages of a model."""
    return (path / HEAD).is_file()


def load_stages(path: Path) -> StagedModel:
    """Return the stages in a folder, measured on this machine. Raises: FormatError for what is not whole."""
    name, contents = _head(path)
    stages = []
    for k, content in enumerate(contents):
        stage = load(path / _file(k))
        if not isinstance(stage, FrozenModel) or stage.origin is None or stage.origin.content != content:
            raise FormatError("stages: a stage is not the one that was saved with the others", got=_file(k))
        stages.append(stage)
    return StagedModel(name, stages, [measured_tables(stage).typical for stage in stages])


def content_of(contents: Sequence[str]) -> str:
    """Return the hash that names a model of stages."""
    return sha256("\n".join(contents).encode()).hexdigest()


def _head(path: Path) -> tuple[str, list[str]]:
    head = parse_json(bytes(read_whole(path / HEAD, MOST_HEAD_BYTES)), HEAD)
    if not isinstance(head, dict) or set(head) != {"format", "version", "name", "stages"}:
        raise FormatError(f"{HEAD}: not the keys of stages", got=repr(head)[:80])
    if head["format"] != FORMAT or head["version"] != VERSION:
        raise FormatError(
            "stages: of another format or version", got=f"{head['format']} {head['version']}"[:80]
        )
    name, contents = head["name"], head["stages"]
    texts = isinstance(contents, list) and all(isinstance(text, str) for text in [name, *contents])
    if not texts or not 0 < len(contents) <= MOST_STAGES or len(name) > 200:
        raise FormatError(f"{HEAD}: a name, and 1 to {MOST_STAGES} content hashes", got=repr(head)[:80])
    return name, contents


def _file(k: int) -> str:
    return f"stage-{k + 1}{SINGLE_FILE}"


def _check(stages: Sequence[FrozenModel]) -> None:
    for stage in stages:
        if not stage.signature.batched:
            raise ShapeError(f"stages: {stage.name} has no batch axis", got=str(stage.signature))
    for before, after in pairwise(stages):
        given = [(s.dtype, s.shape) for s in before.signature.outputs]
        if given != [(s.dtype, s.shape) for s in after.signature.inputs]:
            raise ShapeError(
                f"stages: {after.name} does not take what {before.name} returns",
                got=f"{before.signature} and {after.signature}",
            )


def _in_batches(stage: FrozenModel, sizes: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
    """Run rows in batches of some sizes; the last one is filled up."""
    pieces, at = [], 0
    for size in sizes:
        rows = [a[at : at + size] for a in arrays]
        pieces.append([y[: len(rows[0])] for y in stage.run_size(size, filled(rows, size))])
        at += size
    return pieces[0] if len(pieces) == 1 else [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
