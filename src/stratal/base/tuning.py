"""Tuning records: what was measured of one kernel on one machine, and the file that carries such verdicts.

    file    := {"format": "stratal-tuning", "version": 1, "digest": .., "records": [record ..]}
    record  := the fields of `Record`

A record names a way to compute a group of operations; it can only choose among ways the compiler knows. It
counts where kernel, target, toolchain and objective are its own, so a file may hold records of many machines.
A file that cannot be read, or that holds nothing for this machine, costs a warning and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, get_type_hints

from stratal.base import settings
from stratal.base.errors import FormatError
from stratal.base.log import decide
from stratal.base.record_files import RecordFile
from stratal.base.session import SESSION
from stratal.base.source import during
from stratal.base.vendor import vendor

FORMAT: Final = "stratal-tuning"
VERSION: Final = 1
FILE_NAME: Final = "tuning.json"
MOST_BYTES: Final = 64 << 20  # of a file of records; one takes 600
WAIT_S: Final = 30.0  # for other processes that add records
FUSED: Final = "fused"
UNFUSED: Final = "unfused"
LIBRARY: Final = "library"  # calls of `base.vendor`
Parameters = tuple[tuple[str, int], ...]


class TuningWarning(UserWarning):
    """A file of tuning records that is not used; results are right, only not tuned."""


@dataclass(frozen=True, slots=True)
class Record:
    """The verdict on one kernel: the way to compute it, measured beside the way taken without records.

    Times are medians in seconds; `workspace_bytes` is memory the way needs beside operands and results.
    """

    kernel: str  # digest of the group of operations, with shapes, strides and dtypes
    target: str  # digest
    toolchain: str  # digest of LLVM's version and of the sources that schedule and generate code
    objective: str
    algorithm: str
    parameters: Parameters
    seconds: float
    workspace_bytes: int
    default: str  # the other way, in words
    default_seconds: float
    default_workspace_bytes: int
    trials: int
    threads: int
    when: str  # UTC, ISO 8601
    about: str  # the operation and its type

    def __str__(self) -> str:
        return f"{self.algorithm}({', '.join(f'{k}={v}' for k, v in self.parameters)})"

    @property
    def stands(self) -> bool:
        """Whether what the way needs besides the compiler is there: the very library it was measured with."""
        if self.algorithm != LIBRARY:
            return True
        library = vendor()
        return library is not None and dict(self.parameters).get("version") == library.version

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What the verdict is about: a later one replaces it."""
        return self.kernel, self.target, self.toolchain, self.objective


_TYPES: Final = get_type_hints(Record)


class Records:
    """The records that count for one compilation, by kernel; `ignored` says why a file does not."""

    def __init__(self, records: Iterable[Record] = (), ignored: str = "") -> None:
        self._of: Final = {r.kernel: r for r in records}
        self.ignored: Final = ignored

    def __len__(self) -> int:
        return len(self._of)

    def find(self, kernel: str) -> Record | None:
        """Return the verdict on a kernel."""
        return self._of.get(kernel)

    @cached_property
    def unfused(self) -> dict[str, Record]:
        """The verdicts that fused kernels are slower than their parts, by kernel."""
        return {kernel: r for kernel, r in self._of.items() if r.algorithm == UNFUSED}

    @cached_property
    def digest(self) -> str:
        """A hash of what the records choose, empty without any: equal digests give equal plans."""
        if not self._of:
            return ""
        rows = sorted((r.kernel, r.algorithm, r.parameters) for r in self._of.values())
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=12).hexdigest()

    def report(self) -> None:
        """Tell the running compilation's decision log which records it goes by."""
        if self.ignored:
            decide("tuning", "records", "ignored", self.ignored)
        elif self._of:
            decide("tuning", "records", f"{len(self._of)} of this machine", f"digest {self.digest}")


UNTUNED: Final = Records()
_IN_FORCE: ContextVar[Records] = ContextVar("stratal_tuning_records", default=UNTUNED)


def using(records: Records) -> AbstractContextManager[Records]:
    """Put records in force for the compilations of a block."""
    return during(_IN_FORCE, records)


def in_force() -> Records:
    """Return the records the running compilation goes by."""
    return _IN_FORCE.get()


# -- files ---------------------------------------------------------------------------------------------------
def records_file() -> Path | None:
    """Return the file the settings name: their own, or one in the cache directory; None for none."""
    given, directory = settings.tuning.value, settings.cache_dir.value
    if given == "auto":
        return None if directory is None else directory / FILE_NAME
    return None if given == "off" else Path(given)


def check_file(path: Path) -> None:
    """Raise CacheError for a file that is there and holds something other than records."""
    _FILE.check(path)


def read_file(path: Path) -> list[Record]:
    """Return the records of a file. Raises: FormatError, OSError, as `RecordFile.read`."""
    return _FILE.read(path)


def write_file(path: Path, records: Iterable[Record]) -> int:
    """Add records to a file, in place of earlier verdicts on the same; return how many it then holds.

    Raises: CacheError, as `RecordFile.add`.
    """
    return _FILE.add(path, records, WAIT_S)


def _record(row: object) -> Record:
    if not isinstance(row, dict) or set(row) != set(_TYPES):
        raise FormatError("tuning records: a record lacks a field, or has one too many", got=str(row)[:100])
    for name, type_ in _TYPES.items():
        if type_ in (int, str, float) and not isinstance(
            row[name], (int, float) if type_ is float else type_
        ):
            raise FormatError(f"tuning records: {name} is not of its type", got=repr(row[name])[:100])
    try:
        parameters = tuple((str(k), int(v)) for k, v in row["parameters"])
    except (TypeError, ValueError):
        raise FormatError("tuning records: parameters are pairs", got=str(row["parameters"])[:100]) from None
    return Record(**{**row, "parameters": parameters})


_FILE: Final = RecordFile("tuning records", FORMAT, VERSION, MOST_BYTES, _record)


# -- what counts here ----------------------------------------------------------------------------------------
_READ: Final = SESSION.cache(dict[Path, tuple[object, list[Record], str]]())  # state, content, fault
_WARNED: Final = SESSION.cache(set[tuple[Path, str]]())


def records_for(target: str, toolchain: Callable[[], str]) -> Records:
    """Return the records of the settings' file that count for a target, this toolchain and the objective.

    `toolchain` is called only where there are records. Warns once of a file that is of no use.
    """
    path = records_file()
    if path is None:
        return UNTUNED
    rows, fault = _read(path)
    objective = settings.objective.value
    mine = [r for r in rows if r.target == target and r.objective == objective and r.stands]
    if rows and not any(r.target == target for r in rows):
        fault = "all of its records were taken on other machines: `stratal tune` measures on this one"
    elif mine:
        made = toolchain()
        current = [r for r in mine if r.toolchain == made]
        if not current:
            fault = "its records were taken with another compiler: `stratal tune` measures again"
        mine = current
    if fault:
        _warn(path, fault)
        return Records(ignored=f"{path.name}: {fault}")
    return Records(mine)


def _read(path: Path) -> tuple[list[Record], str]:
    """Return the records of a file and what is wrong with it, read anew when it has changed."""
    try:
        status = path.stat()
    except OSError as error:
        if settings.tuning.value == "auto":
            return [], ""  # nothing was tuned yet
        absent = isinstance(error, FileNotFoundError)
        return [], "there is no such file" if absent else f"it cannot be read ({error.strerror})"
    state = status.st_mtime_ns, status.st_size, status.st_ino
    known = _READ.get(path)
    if known is None or known[0] != state:
        rows, fault = [], ""
        try:
            rows = read_file(path)
        except FormatError as error:
            fault = f"it cannot be used ({error.rule}: {error.got})"
        except OSError as error:
            fault = f"it cannot be read ({error.strerror})"
        known = _READ[path] = (state, rows, fault)
    return known[1], known[2]


def _warn(path: Path, fault: str) -> None:
    if (path, fault) not in _WARNED:
        _WARNED.add((path, fault))
        warnings.warn(TuningWarning(f"tuning records {path} are ignored: {fault}"), stacklevel=2)
