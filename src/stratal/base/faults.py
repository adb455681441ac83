"""Which errors are the compiler's own: whoever falls back must not swallow what the user is to see."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from stratal.base.errors import CompilerError, StratalError, VerifyError
from stratal.base.files import ignoring_os_errors

LONGEST: Final = 500  # characters of an error
_FOLDERS: Final = "stratal-failure-"  # for what reproduces faults
_MOST_FOLDERS: Final = 8
_KNOWN: Final = frozenset(sys.stdlib_module_names) | {"stratal", "numpy", "ml_dtypes", "llvmlite"}


def is_fault(error: BaseException) -> bool:
    """Return whether an error met in the compiler is the compiler's own.

    What whoever raises in other threads has nothing to do with it; nor has what the process was short of:
    memory, or room on the stack, which the caller had used up. Handlers of signals do not run meanwhile.
    """
    if isinstance(error, StratalError):
        return isinstance(error, (VerifyError, CompilerError))
    known = type(error).__module__.partition(".")[0] in _KNOWN
    user = isinstance(error, (MemoryError, RecursionError)) or not isinstance(error, Exception)
    return known and not user


def innermost(error: BaseException) -> str:
    """Return the function of the package that an error came from."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        name = trace.tb_frame.f_code.co_name if module.startswith("stratal.") else name
        trace = trace.tb_next
    return name


def brief(error: BaseException) -> str:
    """Return an error in one line."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, StratalError):
        text = f"{error.rule}: {error.got}" if error.got else error.rule
    return " ".join(text.split())[:LONGEST]


def failure_folder() -> Path:
    """Return a new folder for what reproduces a fault; the newest few before it stay. Raises: OSError."""
    made = Path(tempfile.mkdtemp(prefix=_FOLDERS))
    with ignoring_os_errors():
        found = [p for p in made.parent.glob(f"{_FOLDERS}*") if p.is_dir() and not p.is_symlink()]
        times = {
            p: p.stat().st_mtime_ns for p in found if p != made and p.stat().st_uid == made.stat().st_uid
        }
        for old in sorted(times, key=times.__getitem__)[: 1 - _MOST_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)
    return made
