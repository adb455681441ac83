"""Files that must not change while they are read: each read says so, where one did.

Text is read through descriptors, not through a map: where a mapped file becomes shorter, the process that
touches the missing part gets SIGBUS and dies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from typing import NamedTuple

from stratal.base.errors import FormatError
from stratal.base.files import open_plain
from stratal.data.sources.opening import opening


class ChangedSourceError(FormatError):
    """A file that is another one than when it was opened."""

    advice = "write a new file under another name, and open that; or read again from the start"


class UnchangedFile(NamedTuple):
    """A file as it stood when it was opened. Its reads raise: MissingSourceError, FormatError where it cannot
    be read, ChangedSourceError where it was written, cut short or replaced since.
    """

    what: str  # the source, for messages
    path: str
    absolute: str  # the process may change its folder
    size: int  # bytes
    state: tuple[int, ...]  # by which a change shows

    def check(self, status: os.stat_result | None = None) -> None:
        """Check that the file is what it was, by its path, or by what the system says of it."""
        if status is None:
            with opening(self.path, self.what, OSError):
                status = os.stat(self.absolute)
        if _state(status) != self.state:
            got = "other content" if status.st_size == self.size else f"{status.st_size:,} bytes"
            raise ChangedSourceError(
                f"{self.what}: {self.path} stays as it is while it is read",
                got=f"{got}, {self.size:,} bytes when it was opened",
            )

    def read(self, spans: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes between places."""
        with opening(self.path, self.what, OSError):
            file, _ = open_plain(self.absolute, follow=True)
            with file:
                found = [_read(file, start, stop) for start, stop in spans]
                status = os.fstat(file.fileno())
        self.check(status)  # after reading: what was read before a change is as it was
        return found

    def between(self, start: int, stop: int) -> bytes:
        """Return the bytes between two places."""
        return self.read([(start, stop)])[0]


def unchanged_file(what: str, path: str) -> UnchangedFile:
    """Return a file as it stands now. Raises: MissingSourceError, FormatError for what is no regular file."""
    with opening(path, what, OSError):
        file, status = open_plain(path, follow=True)
        file.close()
    return UnchangedFile(what, path, os.path.abspath(path), status.st_size, _state(status))


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(file: FileIO, start: int, stop: int) -> bytes:
    file.seek(start)
    found = file.read(stop - start)
    while len(found) < stop - start and (more := file.read(stop - start - len(found))):
        found += more  # one call of the system gives 2 GiB at most
    return found
