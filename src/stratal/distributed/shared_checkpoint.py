"""One checkpoint of all ranks: each writes its pieces, rank 0 what is whole, and the index when all are done.

    rank 0   make room -> what is whole, its pieces ->           -> index, renamed into place
    others             -> their pieces              -> their rows of the index ->
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import StratalError
from stratal.distributed.collectives import all_gather, barrier
from stratal.distributed.reducer import reducer_of
from stratal.distributed.sharded_parameters import ShardedParameters, full_parameters
from stratal.distributed.world import world
from stratal.distributed.zero import ShardedReducer
from stratal.formats.container import make_room, members_written, remove_unnamed
from stratal.formats.document import NAME, document_files
from stratal.formats.files import FileWriteError, replace_file
from stratal.formats.manifest import MANIFEST, Rows, manifest_of, row_of
from stratal.nn.module import Module
from stratal.optim.optimizer import Optimizer
from stratal.tensor.tensor import Tensor

SHARD_BYTES: Final = 4 << 30


class Ranks:
    """The ranks of this job, for a `CheckpointManager` in which each of them writes what it owns.

    >>> import stratal as st
    >>> manager = st.train.CheckpointManager("run", ranks=st.distributed.Ranks())
    """

    @property
    def rank(self) -> int:
        """The number of this process."""
        return world().rank

    def barrier(self) -> None:
        """Return once every rank has come here."""
        barrier()

    def state_in_pieces(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return state dicts by name, of what is sharded this rank's pieces."""
        return state_in_pieces(parts)

    def load_whole(self, parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Give parts their whole state; what is sharded stays so."""
        load_whole(parts, state)

    def save(self, nest: Any, folder: Path, shard_bytes: int | None) -> None:
        """Write one checkpoint from all ranks. Raises: FileWriteError on all where one cannot write."""
        save_together(folder, nest, shard_bytes or SHARD_BYTES)


def state_in_pieces(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dicts of parts by name, of what is sharded over ranks this rank's pieces.

    Nothing is gathered. Every rank calls it.
    """
    reducers = {name: reducer_of(part) for name, part in parts.items() if isinstance(part, Optimizer)}
    released = {
        p: shard
        for reducer in reducers.values() if isinstance(reducer, ShardedParameters)
        for shard in reducer.all_shards()
        for p in shard.params
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, part in parts.items():
        reducer = reducers.get(name)
        if isinstance(reducer, ShardedReducer):
            found[name] = reducer.state_in_pieces(part, name)
        elif isinstance(part, Module) and released:
            state = part.state_dict(keep_vars=True)
            found[name] = {
                key: shard.in_pieces(value, shard.own, f"{name}.{key}")
                if isinstance(value, Tensor) and (shard := released.get(value)) is not None
                else value
                for key, value in state.items()
            }
        else:
            found[name] = part.state_dict()
    return found


def load_whole(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Give parts their whole state; parameters that are sharded stay so. Every rank calls it."""
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    first = [name for name, part in parts.items() if isinstance(part, Module)]
    with ExitStack() as whole:
        for optimizer in optimizers:
            whole.enter_context(full_parameters(optimizer))
        for name in first:
            parts[name].load_state_dict(state[name])
    for name, part in parts.items():
        if name not in first:
            part.load_state_dict(state[name])


def save_together(folder: Path, nest: Any, shard_bytes: int = SHARD_BYTES) -> None:
    """Write one checkpoint from all ranks, complete or not at all: a folder that all of them see.

    `nest` has the same leaves on every rank; what is whole is rank 0's. Raises: FileWriteError on every rank
    where one cannot write; what stood there before then stays.
    """
    rank = world().rank
    files = document_files(NAME, nest, shard_bytes, rank)
    chunks = {name: list(parts) for name, parts in files.items()}
    rows = {name: row_of(name, parts, secrets.token_hex(8)) for name, parts in chunks.items()}
    members = {rows[name]["file"]: parts for name, parts in chunks.items()}
    with ExitStack() as written:
        _on_all(lambda: None if rank else make_room(folder))
        _on_all(lambda: written.enter_context(members_written(folder, members)))
        index = manifest_of(_of_all(rows))
        _on_all(lambda: None if rank else replace_file(folder / MANIFEST, [index]))
    if rank == 0:
        remove_unnamed(folder)


def _on_all(work: Callable[[], object]) -> None:
    """Call a function on every rank. Raises: on every rank where one cannot; its own error there."""
    error: StratalError | None = None
    try:
        work()
    except StratalError as refused:
        error = refused
    failed = np.flatnonzero(all_gather(np.array([error is not None], np.int64)))
    if error is not None:
        raise error
    if len(failed):
        raise FileWriteError(
            "save: another rank cannot write its part", got=f"rank {', '.join(map(str, failed.tolist()))}",
            hint="its own error says why",
        )  # fmt: skip


def _of_all(rows: Rows) -> Rows:
    """Return the rows of all ranks."""
    text = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    lengths = all_gather(np.array([len(text)], np.int64))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(text)] = text
    found: Rows = {}
    for length, row in zip(lengths.tolist(), np.split(all_gather(padded), len(lengths)), strict=True):
        found |= json.loads(row[:length].tobytes())
    return found
