"""One rank of a launched job: runs the script, and ends the whole job when that fails.

`python -m stratal.cli.launched_rank SECONDS SCRIPT ...`, started by `stratal launch` through mpirun; of an
elastic job with `--report ADDRESS` before it, at which the launcher is told what becomes of the rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stratal.base.processes import die_with_parent
from stratal.cli.report import run_script
from stratal.distributed.supervised import Supervised
from stratal.distributed.world import at_join, is_initialized, leave, preset, world


def main() -> int:
    """Return the script's exit status, where no other rank waits for this one."""
    die_with_parent()
    arguments = sys.argv[1:]
    report = None
    if arguments[0] == "--report":
        report = Supervised(arguments[1], int(os.environ["OMPI_COMM_WORLD_RANK"]))
        arguments = arguments[2:]
        at_join(lambda _: report.say("joined"))
    timeout, script, *rest = arguments
    preset(float(timeout), report is not None)
    try:
        status = run_script(Path(script), rest)
    except KeyboardInterrupt:
        status = 130
    sys.stdout.flush()
    sys.stderr.flush()
    if report is not None and status:
        report.fail(status, is_initialized() and world().lost)
    elif report is not None:
        leave()
        report.say("done")
    if status and is_initialized():
        world().abort(status)  # ends this process, too
    return status


if __name__ == "__main__":
    sys.exit(main())
