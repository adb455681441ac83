"""One rank of a launched job: runs the script, and ends the whole job when that fails.

`python -m stratal.cli.launched_rank SECONDS SCRIPT ...`, started by `stratal launch` through mpirun.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stratal.base.processes import die_with_parent
from stratal.cli.report import run_script
from stratal.distributed.world import is_initialized, preset, world


def main() -> int:
    """Return the script's exit status, where no other rank waits for this one."""
    die_with_parent()
    timeout, script, *arguments = sys.argv[1:]
    preset(float(timeout))
    try:
        status = run_script(Path(script), arguments)
    except KeyboardInterrupt:
        status = 130
    if status and is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        world().abort(status)  # ends this process, too
    return status


if __name__ == "__main__":
    sys.exit(main())
