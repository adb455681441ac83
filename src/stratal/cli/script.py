"""Running the user's script inside a command, as `python FILE.py` would."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from stratal.base.errors import FormatError


def run_script(script: Path, arguments: list[str]) -> int:
    """Run a script as `python FILE.py` would; return its exit status. Its error is printed, not raised.

    Raises: FormatError when the file cannot be read; KeyboardInterrupt.
    """
    if not script.is_file():
        raise FormatError("there is no such script", got=str(script), hint="give the path of a Python file")
    before: list[Any] = [sys.argv, sys.path]
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *sys.path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        _print_trace(error, str(script))
        return 1  # what ran before it may tell why
    finally:
        sys.argv, sys.path = before
    return 0


def _print_trace(error: Exception, script: str) -> None:
    """Print a script's error as Python would have, without the frames that led into the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace or error.__traceback__))
