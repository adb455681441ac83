"""Files that other processes read and write at the same time: plain files opened safely, drafts, and locks.

A draft is a temporary file beside what it will replace. Its writer holds its lock (`flock`) until it is
closed, and the system frees the lock of whoever dies: a draft without a holder is abandoned, whatever its
age. Where a file system has no locks, age decides.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

DRAFT: Final = ".stratal-draft"
DRAFTS: Final = "drafts"  # the folder for them in the cache directory, swept when a process first looks there
ABANDONED_S: Final = 3600.0  # where there are no locks, a file this old belongs to a process that died
POLL_S: Final = 0.002  # between two tries to take a lock
REMOVAL_S: Final = 10.0  # that a process may take to remove one file
_PLAIN: Final = (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
)  # never wait on a pipe, never take a terminal
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EBADF)
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def ignoring_os_errors() -> Iterator[None]:
    """Ignore what the system refuses, but not an exception of a signal handler, such as TimeoutError."""
    try:
        yield
    except OSError as error:
        if not refused_by_system(error):
            raise


def refused_by_system(error: OSError) -> bool:
    """Return whether an error is the system's: what Python code raises by itself has no number."""
    return error.errno is not None


def open_plain(path: str | os.PathLike[str], *, follow: bool = False) -> tuple[FileIO, os.stat_result]:
    """Open a regular file for reading, unbuffered; return what the system says of it, too.

    Raises: OSError, also for anything but a regular file.
    """
    flags = _PLAIN | (0 if follow else _NOFOLLOW)
    try:
        file = FileIO(path, "rb", opener=lambda name, mode: os.open(name, mode | flags))
    except IsADirectoryError:
        raise _not_plain() from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise _not_plain()
    return file, status


def _not_plain() -> OSError:
    return OSError(errno.EINVAL, "not a regular file")


def lock(file: FileIO | int) -> bool | None:
    """Take the lock of an open file; return whether that worked, None where there are no locks.

    It lasts until the file is closed, also in processes forked meanwhile: nobody waits for it without limit.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextmanager
def folder_locked(folder: Path) -> Iterator[bool]:
    """Take the lock of a folder for a block; yield whether that worked, or there are no locks.

    It leaves no file, and is free when the process ends, however that is. Raises: OSError.
    """
    if sys.platform == "win32":
        yield True
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lock(handle) is not False
    finally:
        os.close(handle)


def create_locked(path: Path, mode: int = 0o666) -> FileIO:
    """Create a file, unbuffered, locked until it is closed.

    Raises: OSError, also where there is one; TimeoutError where another process holds its lock too long.
    """
    deadline = time.monotonic() + REMOVAL_S
    while True:
        file = FileIO(path, "xb", opener=lambda name, how: os.open(name, how | _PLAIN, mode))
        while lock(file) is False:  # somebody removes it as abandoned
            if time.monotonic() > deadline:
                file.close()
                raise _held()
            time.sleep(POLL_S)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def new_draft(folder: Path, name: str = "", mode: int = 0o666) -> FileIO:
    """Create a draft, which `remove_drafts` leaves alone until it is closed. Its path is `draft.name`."""
    return create_locked(folder / f".{name[:40]}.{secrets.token_hex(6)}{DRAFT}", mode)


def write_all(file: FileIO, chunks: Iterable[bytes | memoryview]) -> None:
    """Write chunks to an unbuffered file. Raises: OSError."""
    for chunk in chunks:
        left = memoryview(chunk).cast("B")
        while left:
            left = left[file.write(left) :]


def replace_whole(
    target: Path, chunks: Iterable[bytes | memoryview], *, folder: Path | None = None, mode: int = 0o666,
    like: os.stat_result | None = None, sync: bool = True
) -> None:
    """Write a draft, beside `target` or in a folder of drafts, and rename it over whatever has that name.

    It gets `mode` less the umask as its permissions, or those of another file. Raises: OSError.
    """
    draft = new_draft(folder or target.parent, target.name, mode)
    try:
        if like is not None and sys.platform != "win32":
            os.fchmod(draft.fileno(), stat.S_IMODE(like.st_mode))
        write_all(draft, chunks)
        if sync:
            os.fsync(draft.fileno())
        os.replace(draft.name, target)
    except BaseException:
        if exists(Path(draft.name)):
            with ignoring_os_errors():
                os.unlink(draft.name)
        raise
    finally:
        draft.close()


def remove_drafts(folder: Path) -> None:
    """Remove the drafts in a folder that writers left who died."""
    with ignoring_os_errors(), os.scandir(folder) as listing:
        for item in listing:
            if item.name.endswith(DRAFT):
                remove_abandoned(Path(item.path))


def remove_abandoned(path: Path) -> None:
    """Remove a file unless its writer holds its lock."""
    with ignoring_os_errors(), abandoned(path) as is_abandoned:
        if is_abandoned:
            os.unlink(path)


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Say for a block whether a file has no living writer; in the block it gets none. Raises: OSError."""
    with FileIO(path, "rb+", opener=lambda name, how: os.open(name, how | _PLAIN | _NOFOLLOW)) as file:
        free = lock(file)
        if free is None:
            free = os.fstat(file.fileno()).st_mtime < time.time() - ABANDONED_S
        yield free


@contextmanager
def held_alone(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of the file that stands at a path, made empty where there is none, for a block.

    Who replaces the file in the block replaces its lock; those who waited then wait for the new one. Without
    locks the block is not alone. Raises: OSError; TimeoutError where another holds it too long.
    """
    deadline = time.monotonic() + seconds
    flags = os.O_CREAT | _PLAIN | _NOFOLLOW
    while True:
        with FileIO(path, "rb+", opener=lambda name, how: os.open(name, how | flags, 0o600)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _not_plain()
            if lock(file) is not False and _stands_at(path, file):
                yield
                return
        if time.monotonic() > deadline:
            raise _held()
        time.sleep(POLL_S)


def _held() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "another process holds its lock")


def _stands_at(path: Path, file: FileIO) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def followed(path: Path) -> Path:
    """Return the path a path that may be a link leads to. Raises: OSError.

    As `os.path.realpath` for the last part, which takes exceptions of signal handlers for the system's.
    """
    for _ in range(40):
        try:
            path = path.parent / os.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing yet
                return path
            raise
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it where there is none. Raises: OSError."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise
    except FileNotFoundError:
        if path == path.parent or exists(path.parent):
            raise
        make_folder(path.parent, mode)
        make_folder(path, mode)


def exists(path: Path) -> bool:
    """Return whether something, be it a link, has this path. Raises: OSError where that is not known."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make what was created and renamed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
