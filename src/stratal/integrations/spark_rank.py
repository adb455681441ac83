"""One rank of a Spark job: `python -m stratal.integrations.spark_rank FOLDER`, started by mpirun."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

import numpy as np

from stratal.base.processes import die_with_parent
from stratal.distributed.world import is_initialized, preset, world
from stratal.integrations.spark import Call, Files, pickled


def main() -> int:
    """Call the function, and write what it returned, or raised; an error of one rank ends them all."""
    die_with_parent()
    files, rank = Files(Path(sys.argv[1])), int(os.environ["OMPI_COMM_WORLD_RANK"])
    try:
        call: Call = pickle.loads(files.call.read_bytes())  # noqa: S301  of a folder of this user's own
        preset(call.timeout)
        given = list(call.args)
        if call.with_data:
            with np.load(files.columns(rank)) as columns:
                given.insert(0, dict(columns))
        said = pickled(call.train(*given, **call.kwargs))
    except Exception:  # whatever the function raises: the driver hears of it
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        _write(files.error(rank), text.encode())
        if is_initialized():
            world().abort(1)  # the others would wait for this rank
        return 1
    _write(files.result(rank), said)
    return 0


def _write(path: Path, said: bytes) -> None:
    """Write a file that is there whole, or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(said)
    part.rename(path)


if __name__ == "__main__":
    sys.exit(main())
