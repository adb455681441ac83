"""Files: written so that a crash or a full disk keeps the old one, read without trusting what is there."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from stratal.base.errors import FormatError, StratalError

Bytes = bytes | memoryview


class FileWriteError(StratalError, OSError):
    """A file that could not be written; what stood there before is untouched."""

    advice = "what stood there before is still there: make room or choose another place, then save again"


def write_atomically(path: str | os.PathLike[str], chunks: Iterable[Bytes]) -> None:
    """Write a file whole or not at all: to a temporary file beside it, synced, then renamed over it.

    Raises: FileWriteError, with the old file as it was.
    """
    target = Path(os.path.realpath(path))  # a link stays a link; the file it names is replaced
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        try:
            with open(draft, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
            sync_folder(target.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileWriteError(
            f"save: cannot write {target.name}",
            got=error.strerror or str(error),
            hint="what was there before, if anything, is untouched",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_whole(path: Path, limit: int | None = None, *, follow: bool = True) -> memoryview:
    """Return the bytes of a regular file, 64-byte aligned and writable.

    Raises: FormatError for what is no regular file, is larger than `limit`, cannot be read, or is a link
    where `follow` is False.
    """
    flags = os.O_RDONLY | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK  # never wait on a pipe
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise FormatError(f"load: cannot open {path.name}", got=error.strerror or str(error)) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise FormatError(f"load: {path.name} is not a regular file")
    with open(handle, "rb", buffering=0) as file:
        if limit is not None and status.st_size > limit:
            raise FormatError(
                f"load: {path.name} is too large", got=f"{status.st_size} bytes, at most {limit}"
            )
        return _read_aligned(file, status.st_size, path)


def _read_aligned(file: object, size: int, path: Path) -> memoryview:
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + size].data
    done = 0
    while done < size:
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise FormatError(f"load: {path.name} ended early", got=f"{done} of {size} bytes")
        done += count
    return view
