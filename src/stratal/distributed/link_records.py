"""Measured models of links, and the file that keeps them beside the other records of this machine.

    file    := {"format": "stratal-links", "version": 1, "digest": .., "records": [record ..]}
    record  := the fields of `LinkRecord`

A record counts for jobs on this kind of machine, over as many hosts, by the same transport of MPI; of several
the one with the nearest number of ranks does. A file that cannot be read costs a warning, and the defaults
of `Link` are in force.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratal.base import settings
from stratal.base.errors import FormatError
from stratal.base.record_files import RecordFile
from stratal.distributed.links import Link
from stratal.plan.host import host_target

FORMAT: Final = "stratal-links"
VERSION: Final = 2
FILE_NAME: Final = "links.json"
MOST_BYTES: Final = 1 << 20
_WAIT_S: Final = 30.0  # for other processes that add records


class LinkWarning(UserWarning):
    """A file of models of links that is not used; collectives are right, only chosen by the defaults."""


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """The model of links that was measured in one job."""

    machine: str  # of rank 0
    transport: str  # MPI's, as far as the launcher chose it
    hosts: int
    ranks: int
    alpha_ns: float
    beta_ns: float
    message_share: float
    gamma_ns: float
    mpi_alpha_ns: float
    mpi_beta_ns: float
    when: str  # UTC, ISO 8601

    @property
    def place(self) -> tuple[str, str, int, int]:
        """What the model is of: a later one replaces it."""
        return self.machine, self.transport, self.hosts, self.ranks

    @property
    def link(self) -> Link:
        return Link(**{name: getattr(self, name) for name in Link._fields})


def new_record(link: Link, ranks: int, hosts: int) -> LinkRecord:
    """Return the record of a model that was measured here, now."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return LinkRecord(_machine(), _transport(), hosts, ranks, *link, when=when)


def _machine() -> str:
    return f"{host_target().digest}, {os.cpu_count()} cores"


def _transport() -> str:
    """Return what Open MPI was told to send bytes by, as `stratal launch` does on one host."""
    return os.environ.get("OMPI_MCA_btl", "")  # noqa: SIM112


# -- files ---------------------------------------------------------------------------------------------------
def records_file() -> Path | None:
    """Return where models are kept; None where the cache directory is switched off."""
    directory = settings.cache_dir.value
    return None if directory is None else directory / FILE_NAME


def read_file(path: Path) -> list[LinkRecord]:
    """Return the records of a file. Raises: FormatError, OSError, as `RecordFile.read`."""
    return _FILE.read(path)


def write_file(path: Path, record: LinkRecord) -> None:
    """Add a record to a file, in place of an earlier one of the same. Raises: CacheError."""
    _FILE.add(path, [record], _WAIT_S)


def _record(row: object) -> LinkRecord:
    """Return a record from JSON. Raises: FormatError, also for costs that are no costs."""
    names = [field.name for field in dataclasses.fields(LinkRecord)]
    if not isinstance(row, dict) or sorted(row) != sorted(names):
        raise FormatError("models of links: a record lacks a field, or has one too many", got=str(row)[:100])
    for name, kind in (("machine", str), ("transport", str), ("when", str), ("hosts", int), ("ranks", int)):
        if type(row[name]) is not kind:
            raise FormatError(f"models of links: {name} is not of its type", got=repr(row[name])[:100])
    for name in Link._fields:
        least = 0.0 if name in ("message_share", "gamma_ns") else 1e-9
        if type(row[name]) not in (int, float) or not least <= row[name] < math.inf:
            raise FormatError(f"models of links: {name} is no cost", got=repr(row[name])[:100])
    return LinkRecord(**row)


_FILE: Final = RecordFile("models of links", FORMAT, VERSION, MOST_BYTES, _record)


# -- what counts here ----------------------------------------------------------------------------------------
def link_for(ranks: int, hosts: int) -> Link:
    """Return the measured model of a job like this one, or the defaults; warns of a file of no use."""
    path = records_file()
    if path is None:
        return Link()
    try:
        found = nearest(read_file(path), ranks, hosts)
    except FileNotFoundError:
        return Link()  # nothing was measured yet
    except (FormatError, OSError) as error:
        why = f"{error.rule}: {error.got}" if isinstance(error, FormatError) else error.strerror
        warnings.warn(
            LinkWarning(
                f"the measured links in {path} are ignored, the defaults are in force ({why}); "
                "`stratal doctor --cluster` measures again"
            ),
            stacklevel=2,
        )
        return Link()
    return Link() if found is None else found.link


def nearest(records: Iterable[LinkRecord], ranks: int, hosts: int) -> LinkRecord | None:
    """Return the record that counts for a job of this machine, None where there is none."""
    here = _machine(), _transport(), hosts
    alike = [r for r in records if r.place[:3] == here]
    return min(alike, key=lambda r: (abs(r.ranks - ranks), r.ranks), default=None)
