"""Files of records that were measured on this machine: JSON under a digest, to which processes add.

    file    := {"format": .., "version": .., "digest": .., "records": [record ..]}
    record  := the fields of a dataclass

Adding is a read, a merge by the `place` of records and a whole replacement, under the file's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from stratal.base import settings
from stratal.base.errors import CacheError, FormatError
from stratal.base.files import (
    DRAFTS,
    followed,
    held_alone,
    make_folder,
    open_plain,
    refused_by_system,
    remove_drafts,
    replace_whole,
)


class Placed(Protocol):
    """A dataclass whose `place` says what it is the record of: a later one replaces it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def place(self) -> Any: ...


R = TypeVar("R", bound=Placed)
_START: Final = 64  # bytes, in which a file of records says its format


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[R]):
    """One kind of such files."""

    name: str  # as errors say it: "tuning records"
    format: str
    version: int
    most_bytes: int
    parse: Callable[[object], R]  # of JSON; raises FormatError

    def read(self, path: Path) -> list[R]:
        """Return the records of a file; an empty one, which is about to be written, has none.

        Raises: FormatError where it is not as it was written; OSError where it cannot be read.
        """
        file, status = open_plain(path, follow=True)
        with file:
            if status.st_size > self.most_bytes:
                raise FormatError(f"{self.name}: the file is too large", got=f"{status.st_size} bytes")
            text = file.read(status.st_size)
        if not text:
            return []
        try:
            value = json.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self.name}: not JSON", got=str(error)[:200]) from None
        if not isinstance(value, dict) or value.get("format") != self.format:
            raise FormatError(f"{self.name}: not such a file", got=str(value)[:100])
        if value.get("version") != self.version:
            raise FormatError(f"{self.name}: another version", got=repr(value.get("version"))[:100])
        rows = value.get("records")
        if not isinstance(rows, list) or value.get("digest") != digest_of(rows):
            raise FormatError(f"{self.name}: altered since they were written", got="the digest does not fit")
        return [self.parse(row) for row in rows]

    def check(self, path: Path) -> None:
        """Raise CacheError for a file that is there and holds something else: it is nobody's to replace."""
        try:
            file, _ = open_plain(path, follow=True)
        except OSError:
            return  # there is none, or writing it says why not
        with file:
            start = file.read(_START)
        if start.strip() and not (start.startswith(b"{") and self.format.encode() in start):
            raise CacheError(
                f"{self.name}: the file holds something else, and is left as it is", got=str(path),
                hint="name one that is not there yet",
            )  # fmt: skip

    def add(self, path: Path, records: Iterable[R], wait_s: float) -> int:
        """Add records to a file, in place of earlier ones of the same; return how many it then holds.

        A file that cannot be read is replaced (`check` says whether it is one of these); of several
        processes that add records at once, each adds its own, and waits `wait_s` seconds for another.
        Raises: CacheError.
        """
        try:
            target = followed(path)
            make_folder(target.parent, 0o700)
            with held_alone(target, wait_s):
                kept: dict[Any, R] = {}
                with contextlib.suppress(FormatError):
                    kept = {r.place: r for r in self.read(target)}
                kept |= {r.place: r for r in records}
                rows = [json.loads(json.dumps(dataclasses.asdict(r))) for _, r in sorted(kept.items())]
                value = {
                    "format": self.format, "version": self.version, "digest": digest_of(rows), "records": rows
                }  # fmt: skip
                _replace(target, json.dumps(value, indent=1) + "\n")
                return len(rows)
        except OSError as error:
            if not refused_by_system(error):
                raise
            reason = error.strerror or str(error)
            raise CacheError(f"{self.name}: the file cannot be written", got=f"{path}: {reason}") from None


def digest_of(rows: object) -> str:
    """Return the digest that stands in a file of some rows."""
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16).hexdigest()


def _replace(target: Path, text: str) -> None:
    drafts = target.parent
    if drafts == settings.cache_dir.value:
        drafts /= DRAFTS
        make_folder(drafts, 0o700)
    remove_drafts(drafts)
    replace_whole(target, [text.encode()], folder=drafts, mode=0o600)
