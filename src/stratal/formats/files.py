"""Files: written so that a crash or a full disk keeps the old one, read without trusting what is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO, FileIO
from pathlib import Path

import numpy as np

from stratal.base.errors import FormatError, StratalError
from stratal.base.files import (
    exists,
    followed,
    open_plain,
    refused_by_system,
    remove_drafts,
    replace_whole,
    sync_folder,
    write_all,
)

Bytes = bytes | memoryview
UNTOUCHED = "what was there before, if anything, is untouched"


class FileWriteError(StratalError, OSError):
    """A file that could not be written, or not be made to survive a power cut; the message says which."""

    advice = "what stood there before is still there: make room or choose another place, then save again"


class FileReadError(FormatError, OSError):
    """A file that cannot be opened."""

    advice = "look at the path and at who may read it"


class MissingFileError(FileReadError, FileNotFoundError):
    """A file that is not there."""

    advice = "look at the path; st.save(value, path) writes one"


@contextmanager
def writing(name: str, rule: str = "save: cannot write {}", hint: str = UNTOUCHED) -> Iterator[None]:
    """Turn what the system refuses in a block into a FileWriteError about the file `name`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StratalError) or not refused_by_system(error):
            raise
        got = error.strerror or str(error)
        folder = os.path.dirname(os.path.abspath(error.filename)) if isinstance(error.filename, str) else ""
        if folder and not os.path.isdir(folder):
            got, hint = f"there is no folder {folder}", f"os.makedirs({folder!r}) makes it"
        raise FileWriteError(rule.format(name), got=got, hint=hint) from error


def destination(path: str | os.PathLike[str]) -> Path:
    """Return a path to write to, which has a name. Raises: FileWriteError."""
    target, text = Path(path), os.fspath(path)
    if target.name in ("", "..") or "\0" in text or not text.strip():
        rule = "save: a path ends in the name of a file or folder"
        raise FileWriteError(rule, got=repr(text), hint=UNTOUCHED)
    return target


def write_atomically(path: str | os.PathLike[str], chunks: Iterable[Bytes]) -> None:
    """Write a file whole or not at all: to a draft beside it, synced, then renamed over it.

    A link stays a link, and the file it names is replaced. What is read as it is written (a pipe, a terminal,
    /dev/null) is written as it stands; directories, disks and sockets are refused.

    Raises: FileWriteError, with the old file as it was; or with the new one in place, where only the folder
    cannot be synced, and then it says so.
    """
    target = destination(path)
    with writing(target.name):
        target = followed(target)
        status = os.lstat(target) if exists(target) else None
    if status is None or stat.S_ISREG(status.st_mode):
        replace_file(target, chunks, status)
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode):
        hint = "it is no regular file: what was written before is on its way"
        with writing(target.name, hint=hint), FileIO(target, "wb") as file:
            write_all(file, chunks)
    else:
        got = "a folder" if stat.S_ISDIR(status.st_mode) else stat.filemode(status.st_mode)
        hint = f"move what has the name {target} away, or save under another"
        raise FileWriteError(f"save: {target.name} is not a file", got=got, hint=hint)


def replace_file(target: Path, chunks: Iterable[Bytes], old: os.stat_result | None = None) -> None:
    """Write a draft beside `target`, rename it over whatever has that name, and sync the folder.

    It gets the permissions of the `old` file. Raises: FileWriteError, see `write_atomically`.
    """
    with writing(target.name):
        remove_drafts(target.parent)
        replace_whole(target, chunks, like=old)
    hint = "the new version is in place, whole; a power cut may still bring back the old one"
    with writing(target.name, "save: {} is written, but its folder cannot be synced", hint):
        sync_folder(target.parent)


def write_synced(file: FileIO, chunks: Iterable[Bytes]) -> None:
    """Write chunks to an unbuffered file and wait until the disk has them. Raises: OSError."""
    write_all(file, chunks)
    os.fsync(file.fileno())


def open_file(path: Path, limit: int | None = None, *, follow: bool = True) -> tuple[FileIO, int]:
    """Open a regular file; return it with its size.

    Raises: FormatError for what is no regular file, is larger than `limit`, cannot be opened, or is a link
    where `follow` is False; MissingFileError where there is none.
    """
    try:
        file, status = open_plain(path, follow=follow)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not refused_by_system(error):
            raise
        raise cannot_open(path, error) from None
    if limit is not None and status.st_size > limit:
        file.close()
        raise FormatError(f"load: {path.name} is too large", got=f"{status.st_size} bytes, at most {limit}")
    return file, status.st_size


def cannot_open(path: Path, error: Exception) -> FormatError:
    """Return the error for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"load: there is no {path.name}", got=str(path))
    got = getattr(error, "strerror", None) or str(error)
    return FileReadError(f"load: cannot open {path.name}", got=got)


def read_whole(path: Path, limit: int | None = None, *, follow: bool = True) -> memoryview:
    """Return the bytes of a regular file, 64-byte aligned and writable. Raises: FormatError."""
    file, size = open_file(path, limit, follow=follow)
    with file:
        return read_aligned(file, size, path)


def read_aligned(file: FileIO | BytesIO, size: int, path: Path) -> memoryview:
    """Return the next bytes of an open file, 64-byte aligned and writable. Raises: FormatError."""
    try:
        raw = np.empty(size + 64, np.uint8)
    except (MemoryError, ValueError):
        raise FormatError(f"load: {path.name} does not fit into memory", got=f"{size} bytes") from None
    start = -raw.ctypes.data % 64
    view = raw[start : start + size].data
    done = 0
    while done < size:
        try:
            count = file.readinto(view[done:])
        except OSError as error:
            if not refused_by_system(error):
                raise
            raise FormatError(f"load: cannot read {path.name}", got=error.strerror or str(error)) from None
        if not count:
            raise FormatError(f"load: {path.name} ended early", got=f"{done} of {size} bytes")
        done += count
    return view
