"""Far memory: tensors in a file without a name, mapped, so that the system may keep their pages elsewhere.

    move(storages)      storages -> the same storages, their values in a file
    zeros(type)         -> a new storage in a file
    location(storage)   -> the file's descriptor and the offset of the bytes, for reads and writes

The file has no name in its directory (O_TMPFILE, or it is unlinked at once): whatever ends the process,
nothing is left. Its blocks are reserved when it is made, so that a full disk is an error then and not a
signal later. Small storages share a file, which lives as long as one of its arrays does. What a fork writes
there is its own: it maps the files anew for itself alone.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_char, c_int, c_long, c_size_t, c_void_p
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from stratal.base import settings
from stratal.base.errors import OffloadError
from stratal.base.types import TensorType
from stratal.memory.plan import round_up
from stratal.memory.render import format_bytes
from stratal.runtime.storage import Storage

SHARED_BYTES: Final = 1 << 24  # of a file in which storages follow one another; larger ones have their own
MOST_AT_ONCE: Final = 1 << 26  # bytes of one read or write: an interrupt waits for no more


class Location(NamedTuple):
    """Where the bytes of a storage lie: in the file behind a descriptor, from an offset on."""

    descriptor: int
    offset: int


@dataclass(slots=True)
class _FarFile:
    """A file, its mapping while somebody has an array of it, and the process that made it.

    The first `used` bytes are somebody's, or were.
    """

    mapping: weakref.ref[mmap.mmap]
    descriptor: int
    address: int
    nbytes: int
    directory: Path
    process: int
    used: int = 0


_FILES: Final[list[_FarFile]] = []  # those of the dead are closed when the next one is made


def move(storages: Sequence[Storage]) -> None:
    """Let storages lie in a file, but for those that NumPy sees and those that are in a file already.

    It is made in `settings.offload_dir`, else in the system's folder for temporary files.
    Raises: OffloadError where the file cannot be made or filled; then all stay where they were. Also where
    some lie in a file that a process made of which this one is a fork: the other one goes on writing there.
    """
    if any(_is_foreign(s) for s in storages):
        raise OffloadError(
            "offload: states in a file belong to the process that put them there", got="a fork of it",
            hint="train in one process, or start the other one anew (multiprocessing's spawn)",
        )  # fmt: skip
    chosen = [
        s for s in dict.fromkeys(storages) if s.type.nbytes and not s.exported and location(s) is None
    ]
    sizes = [round_up(s.nbytes) for s in chosen]
    if not chosen:
        return
    file, mapping, start = _room(sum(sizes))
    offsets = [start + end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    for storage, offset in zip(chosen, offsets, strict=True):
        write(Location(file.descriptor, offset), memory_at(storage.address, storage.nbytes))
    for storage, offset in zip(chosen, offsets, strict=True):
        type_, strides, _ = storage.layout
        storage.adopt(np.ndarray(type_.ints, type_.dtype.np, mapping, offset, strides))


def zeros(type_: TensorType) -> Storage:
    """Return a row-major storage of zeros in a file. Raises: OffloadError where the file cannot be made."""
    _, mapping, start = _room(round_up(type_.nbytes))
    return Storage(type_, np.ndarray(type_.ints, type_.dtype.np, mapping, start))


def location(storage: Storage) -> Location | None:
    """Return where a storage lies in a file; None where it lies elsewhere."""
    file = _file_of(storage)
    return None if file is None else Location(file.descriptor, storage.address - file.address)


def _file_of(storage: Storage) -> _FarFile | None:
    for file in _FILES:
        if file.address <= storage.address < file.address + file.nbytes and file.mapping() is not None:
            return file
    return None


def _is_foreign(storage: Storage) -> bool:
    file = _file_of(storage)
    return file is not None and file.process != os.getpid()


def memory_at(address: int, nbytes: int) -> memoryview:
    """Return the bytes at an address."""
    return memoryview((c_char * nbytes).from_address(address)).cast("B")


def read(source: Location, target: memoryview) -> None:
    """Fill memory from a file. Raises: OffloadError."""
    descriptor, offset = source
    done = 0
    while done < len(target):
        try:
            count = os.preadv(descriptor, [target[done : done + MOST_AT_ONCE]], offset + done)
        except OSError as error:
            raise _failed(error, "reading") from error
        if not count:
            raise OffloadError(
                "offload: the file ended before its values did", got=f"{done} of {len(target)} bytes"
            )
        done += count


def write(target: Location, source: memoryview) -> None:
    """Write memory to a file. Raises: OffloadError."""
    descriptor, offset = target
    done = 0
    while done < len(source):
        try:
            done += os.pwrite(descriptor, source[done : done + MOST_AT_ONCE], offset + done)
        except OSError as error:
            raise _failed(error, "writing") from error


def _room(nbytes: int) -> tuple[_FarFile, mmap.mmap, int]:
    """Return a file with so many bytes that are zero and nobody's, its mapping, and where they begin."""
    directory = settings.offload_dir.value or Path(tempfile.gettempdir())
    for file in reversed(_FILES):
        mapping = file.mapping()
        ours = file.directory == directory and file.process == os.getpid()
        if mapping is not None and ours and file.used + nbytes <= file.nbytes:
            break
    else:
        try:
            file, mapping = _made(directory, max(nbytes, SHARED_BYTES))
        except OffloadError:
            if nbytes >= SHARED_BYTES:
                raise
            file, mapping = _made(directory, nbytes)  # there may be room for these alone
    start = file.used
    file.used += nbytes
    return file, mapping, start


def _made(directory: Path, nbytes: int) -> tuple[_FarFile, mmap.mmap]:
    """Return a new file whose blocks are reserved, mapped, and close those nobody has an array of."""
    for file in [f for f in _FILES if f.mapping() is None]:
        _FILES.remove(file)
        os.close(file.descriptor)
    try:
        descriptor = _opened(directory)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            mapping = mmap.mmap(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _failed(error, f"reserving {format_bytes(nbytes)} in", directory) from error
    address = addressof(c_char.from_buffer(mapping))
    made = _FarFile(weakref.ref(mapping), descriptor, address, nbytes, directory, os.getpid())
    _FILES.append(made)
    return made, mapping


def _map_privately() -> None:
    """Let what this process, a fork, writes to mapped files stay in its own memory."""
    for file in _FILES:
        if file.mapping() is not None:
            _MMAP(file.address, file.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED,
                  file.descriptor, 0)  # fmt: skip


if hasattr(os, "register_at_fork"):
    _MAP_FIXED: Final = 0x10  # on Linux and macOS
    _MMAP: Final = CDLL(None).mmap
    _MMAP.restype = c_void_p
    _MMAP.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
    os.register_at_fork(after_in_child=_map_privately)


def _opened(directory: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    descriptor, name = tempfile.mkstemp(prefix="stratal-", dir=directory)
    os.unlink(name)
    return descriptor


def _failed(error: OSError, doing: str, directory: Path | None = None) -> OffloadError:
    folder = "the file" if directory is None else str(directory)
    return OffloadError(
        f"offload: {doing} {folder} failed", got=str(error.strerror),
        hint="STRATAL_OFFLOAD_DIR names a folder on a disk with room; off does without",
    )  # fmt: skip
