"""The object cache on disk: bytes under keys, shared by processes, never trusted further than checked.

    directory   0700, owned by this user, not a link; else it is not used
    entry       `MAGIC, blake2b of (key, payload), length, payload`, in a file named by the digest of the key
    write       to a draft (`base.files`), then renamed: a reader sees all of an entry or none of it
    size        when the sum passes the limit, the entries unused longest go, down to nine tenths of it

An entry that is truncated, altered, of another key or of another owner, or no plain file, counts as missing
and is removed; the caller makes it again. A directory that cannot be used (full, read-only, not ours) costs
one warning and no results; what a directory that cannot be written holds is still read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratal.base import settings
from stratal.base.errors import CacheError
from stratal.base.files import (
    ABANDONED_S,
    DRAFTS,
    exists,
    ignoring_os_errors,
    make_folder,
    open_plain,
    refused_by_system,
    remove_drafts,
    replace_whole,
)

MAGIC: Final = b"stratal1"
DIGEST_BYTES: Final = 32
_HEADER: Final = struct.Struct(f"<{len(MAGIC)}s{DIGEST_BYTES}sQ")
SUFFIX: Final = ".entry"
TEMPORARY: Final = ".writing"  # what earlier versions wrote to
KEEP_AFTER_EVICTION: Final = 0.9


class CacheWarning(UserWarning):
    """The cache cannot be used; everything works, only not as fast the next time."""


@dataclass(slots=True)
class CacheState:
    """What `stratal doctor` shows."""

    directory: str | None
    usable: bool
    reason: str
    entries: int
    bytes: int
    limit: int


@dataclass(slots=True)
class CacheCounts:
    """What this process saw: found, not found, found but refused, written, evicted."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    writes: int = 0
    evictions: int = 0


class ObjectCache:
    """Bytes by key in one directory (None: no cache). Safe for threads and processes."""

    def __init__(self, directory: Path | None, limit_bytes: int) -> None:
        self.directory: Final = directory
        self.limit_bytes: Final = limit_bytes
        self.counts: Final = CacheCounts()
        self._lock = threading.RLock()  # re-entrant: a signal's handler may store, too
        self._failure: CacheError | None = None  # why nothing is read or written any more
        self._read_only: CacheError | None = None  # why nothing is written any more
        self._opened = False
        self._bytes: int | None = None  # as counted when last looked, plus what was written since

    def get(self, key: str) -> bytes | None:
        """Return the payload stored under a key, or None. A bad entry is removed."""
        if not self._usable():
            return None
        path = self._path(key)
        try:
            payload = _read_entry(path, key, self.limit_bytes)
        except FileNotFoundError:
            payload = None
        except OSError as error:
            if not isinstance(error, CacheError) and not refused_by_system(error):
                raise
            self.counts.refused += 1
            _remove(path)
            payload = None
        if payload is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
            with ignoring_os_errors():
                os.utime(path)  # the time of last use, for eviction
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Store a payload under a key; return whether that worked."""
        if not self._usable() or self._read_only is not None or self.directory is None:
            return False
        header = _HEADER.pack(MAGIC, _digest(key, payload), len(payload))
        try:
            _write_atomically(self.directory, self._path(key), header + payload)
        except OSError as error:
            if isinstance(error, IsADirectoryError):
                return False  # only this entry cannot be
            if not refused_by_system(error):
                raise
            self._read_only = self._complain("cannot be written", error)
            return False
        self.counts.writes += 1
        self._grown(len(header) + len(payload))
        return True

    def drop(self, key: str) -> None:
        """Remove what is stored under a key, if anything is."""
        if self._usable():
            _remove(self._path(key))

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return key -> payload for those keys that are stored."""
        found = ((key, self.get(key)) for key in keys)
        return {key: payload for key, payload in found if payload is not None}

    def state(self) -> CacheState:
        """Return what there is, for people."""
        usable = self._usable(warn=False)
        entries = self._entries() if usable else []
        failure = self._failure or self._read_only
        return CacheState(
            directory=None if self.directory is None else str(self.directory),
            usable=usable and failure is None,
            reason=failure.got if failure else ("" if usable else "switched off"),
            entries=len(entries),
            bytes=sum(size for _, _, size in entries),
            limit=self.limit_bytes,
        )

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        name = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
        return self.directory / (name + SUFFIX)

    def _usable(self, *, warn: bool = True) -> bool:
        """Whether the directory may be used; it is looked at once, at the first call."""
        if self.directory is None or self._failure is not None:
            return False
        if not self._opened:
            try:
                _open_directory(self.directory)
            except OSError as error:
                if not isinstance(error, CacheError) and not refused_by_system(error):
                    raise
                self._failure = self._complain("cannot be used", error, warn=warn)
                return False
            self._opened = True
        return True

    def _complain(self, what: str, error: OSError, *, warn: bool = True) -> CacheError:
        """Return what is wrong as an error, and warn of it: all goes on without, so once is enough."""
        reason = error.got if isinstance(error, CacheError) else (error.strerror or str(error))
        failure = CacheError(
            f"cache: the directory {what}",
            got=f"{self.directory}: {reason}",
            hint="set STRATAL_CACHE_DIR to a directory of your own, or to off",
        )
        if warn:
            warnings.warn(CacheWarning(str(failure)), stacklevel=4)
        return failure

    def _grown(self, nbytes: int) -> None:
        with self._lock:
            if self._bytes is None:
                self._bytes = sum(size for _, _, size in self._entries())
            else:
                self._bytes += nbytes
            if self._bytes > self.limit_bytes:
                self._evict()

    def _entries(self) -> list[tuple[Path, float, int]]:
        """Return (path, time of last use, bytes) of every entry; clean up what dead writers left."""
        assert self.directory is not None
        found = []
        with ignoring_os_errors(), os.scandir(self.directory) as listing:
            for item in listing:
                with ignoring_os_errors():
                    status = item.stat(follow_symlinks=False)
                    if item.name.endswith(SUFFIX):
                        found.append((Path(item.path), status.st_mtime, status.st_size))
                    elif item.name.endswith(TEMPORARY) and status.st_mtime < time.time() - ABANDONED_S:
                        os.unlink(item.path)
        return found

    def _evict(self) -> None:
        """Remove the entries unused longest until nine tenths of the limit are left.

        Call with the lock held.
        """
        entries = sorted(self._entries(), key=lambda entry: (entry[1], entry[0].name))
        total = sum(size for _, _, size in entries)
        for path, _, size in entries:
            if total <= self.limit_bytes * KEEP_AFTER_EVICTION:
                break
            with ignoring_os_errors():  # another process was quicker
                path.unlink()
                self.counts.evictions += 1
            total -= size
        self._bytes = total


def _digest(key: str, payload: bytes) -> bytes:
    name = key.encode()
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"stratal-cache")
    digest.update(struct.pack("<Q", len(name)) + name)
    digest.update(payload)
    return digest.digest()


def _read_entry(path: Path, key: str, limit: int) -> bytes:
    """Return the payload of an entry file.

    Raises: FileNotFoundError; OSError for anything not as it was written, before what is too long is read.
    """
    file, status = open_plain(path)
    with file:
        if _foreign(status):
            raise CacheError("cache: an entry of somebody else", got=str(path))
        header, length = file.read(_HEADER.size), status.st_size - _HEADER.size
        if len(header) < _HEADER.size or length > limit:
            raise CacheError("cache: a truncated entry, or one that is too long", got=str(path))
        magic, digest, expected = _HEADER.unpack(header)
        payload = file.read(length) if magic == MAGIC and expected == length else None
    if payload is None or digest != _digest(key, payload):
        raise CacheError("cache: a corrupt entry", got=str(path))
    return payload


def _remove(path: Path) -> None:
    with ignoring_os_errors():
        try:
            path.unlink()
        except IsADirectoryError:
            path.rmdir()


def _write_atomically(directory: Path, path: Path, data: bytes) -> None:
    drafts = directory / DRAFTS
    make_folder(drafts, 0o700)
    replace_whole(path, [data], folder=drafts, mode=0o600, sync=False)


def _foreign(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and status.st_uid != os.geteuid()


def _open_directory(directory: Path) -> None:
    """Make the directory, or check one that exists.

    Raises: OSError, or CacheError for one that cannot be trusted.
    """
    make_folder(directory.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError("cache: not a directory", got="it is a link or a file, not a directory")
    if _foreign(status):
        raise CacheError("cache: a directory of somebody else", got="it belongs to another user")
    if status.st_mode & 0o077:
        os.chmod(directory, 0o700)  # ours but open to others: close it and drop what is there
        for item in list(os.scandir(directory)):
            if item.name.endswith(SUFFIX):
                os.unlink(item.path)
    if not os.access(directory, os.R_OK | os.X_OK):
        raise CacheError("cache: no access", got="it cannot be read")
    drafts = directory / DRAFTS
    if exists(drafts) and not stat.S_ISDIR(os.lstat(drafts).st_mode):
        _remove(drafts)
    remove_drafts(drafts)


_shared: dict[tuple[Path | None, int], ObjectCache] = {}


def object_cache() -> ObjectCache:
    """Return the cache the settings name."""
    key = (settings.cache_dir.value, settings.cache_limit.value)
    if key not in _shared:
        _shared[key] = ObjectCache(*key)
    return _shared[key]


def _after_fork() -> None:
    for cache in _shared.values():
        cache._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
