"""The object cache: private, checked, bounded, and never in the way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import joined

from stratal.base.files import DRAFTS, new_draft
from stratal.runtime import cache as cache_module
from stratal.runtime.cache import CacheWarning, ObjectCache

LIMIT = 1 << 20
Damage = Callable[[bytes], bytes]
Patch = pytest.MonkeyPatch


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cache", LIMIT)


def entry_of(cache: ObjectCache, key: str) -> Path:
    return cache._path(key)


def test_what_was_put_is_found_again_also_by_another_process(cache: ObjectCache, tmp_path: Path) -> None:
    assert cache.get("a") is None
    assert cache.put("a", b"code")
    assert cache.get("a") == b"code"
    assert ObjectCache(tmp_path / "cache", LIMIT).get_many(["a", "b"]) == {"a": b"code"}
    assert (cache.counts.hits, cache.counts.misses, cache.counts.writes) == (1, 1, 1)


def test_the_directory_is_private(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("a", b"code")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_of(cache, "a").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + b"more",
        lambda data: b"another1" + data[8:],
    ],
    ids=["shorter", "header cut", "empty", "bit flipped", "longer", "another format"],
)
def test_a_damaged_entry_is_never_loaded_and_is_removed(cache: ObjectCache, damage: Damage) -> None:
    cache.put("a", b"code" * 100)
    path = entry_of(cache, "a")
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("a") is None
    assert cache.counts.refused == 1
    assert not path.exists()
    cache.put("a", b"again")
    assert cache.get("a") == b"again"


def test_an_entry_moved_under_another_key_is_refused(cache: ObjectCache) -> None:
    cache.put("a", b"code")
    os.rename(entry_of(cache, "a"), entry_of(cache, "b"))
    assert cache.get("b") is None


def test_an_entry_that_is_a_link_is_refused(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("a", b"code")
    elsewhere = tmp_path / "elsewhere"
    os.rename(entry_of(cache, "a"), elsewhere)
    os.symlink(elsewhere, entry_of(cache, "a"))
    assert cache.get("a") is None


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


def make_long(path: Path) -> None:
    """Make an entry that is consistent with itself and longer than the whole cache may be."""
    path.write_bytes(cache_module._HEADER.pack(cache_module.MAGIC, bytes(32), 40 << 30))
    os.truncate(path, (40 << 30) + cache_module._HEADER.size)


ODD = {
    "a pipe": make_fifo,
    "a folder": Path.mkdir,
    "a folder with something in it": lambda path: (path / "x").mkdir(parents=True),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a sparse file": make_sparse,
    "a long entry": make_long,
}


@pytest.mark.parametrize("odd", ODD)
def test_an_entry_that_is_no_plain_file_is_one_miss(cache: ObjectCache, odd: str) -> None:
    cache.put("a", b"code")
    path = entry_of(cache, "a")
    path.unlink()
    ODD[odd](path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("a") is None
        stored = cache.put("a", b"again")
        assert cache.get("a") == (b"again" if stored else None)
        assert stored or odd == "a folder with something in it"
        assert cache.put("b", b"other") and cache.get("b") == b"other"
    assert cache.state().usable


@pytest.mark.parametrize("odd", ODD)
def test_anything_may_stand_where_drafts_are_written(tmp_path: Path, odd: str) -> None:
    (tmp_path / "cache").mkdir(0o700)
    ODD[odd](tmp_path / "cache" / DRAFTS)
    cache = ObjectCache(tmp_path / "cache", LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.put("a", b"code") and cache.get("a") == b"code"


def foreign(monkeypatch: Patch, function: str) -> None:
    """Let a stat function say that somebody else owns what it looks at."""
    real = getattr(os, function)

    def answer(*args: Any, **kwargs: Any) -> os.stat_result:
        fields = list(real(*args, **kwargs))
        fields[4] = os.geteuid() + 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, function, answer)


def test_an_entry_of_somebody_else_is_refused(cache: ObjectCache, monkeypatch: Patch) -> None:
    cache.put("a", b"code")
    foreign(monkeypatch, "fstat")
    assert cache.get("a") is None


def assert_works_without(cache: ObjectCache, match: str) -> None:
    with pytest.warns(CacheWarning, match=match) as caught:
        assert cache.put("a", b"code") is False
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, not again
        assert cache.put("b", b"code") is False
        assert cache.get("a") is None
    state = cache.state()
    assert not state.usable and state.reason


def test_a_directory_of_somebody_else_is_not_used(cache: ObjectCache, monkeypatch: Patch) -> None:
    foreign(monkeypatch, "lstat")
    assert_works_without(cache, "belongs to another user")


def refuse(monkeypatch: Patch, module: Any, function: str, code: int) -> None:
    def answer(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, function, answer)


def test_a_directory_that_cannot_be_made_is_done_without(cache: ObjectCache, monkeypatch: Patch) -> None:
    refuse(monkeypatch, os, "mkdir", errno.EROFS)
    assert_works_without(cache, "Read-only file system")


def test_a_read_only_directory_still_gives_what_it_has(cache: ObjectCache, monkeypatch: Patch) -> None:
    cache.put("old", b"code")
    refuse(monkeypatch, cache_module, "replace_whole", errno.EROFS)
    assert_works_without(cache, "Read-only file system")
    assert cache.get("old") == b"code"


def test_a_directory_without_access_is_done_without(cache: ObjectCache, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert_works_without(cache, "cannot be read")


def test_a_full_disk_leaves_no_half_entry(cache: ObjectCache, monkeypatch: Patch, tmp_path: Path) -> None:
    cache.put("old", b"code")
    refuse(monkeypatch, os, "replace", errno.ENOSPC)
    assert_works_without(cache, "No space left")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [entry_of(cache, "old")]


def test_a_file_or_a_link_in_place_of_the_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        assert_works_without(ObjectCache(tmp_path / name, LIMIT), "not a directory")


def test_a_directory_others_could_write_to_is_emptied_before_use(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("a", b"code")
    (tmp_path / "cache").chmod(0o777)
    again = ObjectCache(tmp_path / "cache", LIMIT)
    assert again.get("a") is None
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_the_entries_unused_longest_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache", 10_000)
    for k in range(9):
        cache.put(f"k{k}", bytes(1000))
        os.utime(entry_of(cache, f"k{k}"), (1000 + k, 1000 + k))
    assert cache.get("k0") is not None  # used just now
    cache.put("new", bytes(1000))
    assert cache.get("k0") is not None and cache.get("new") is not None
    assert cache.get("k1") is None
    assert cache.state().bytes <= 10_000
    assert cache.counts.evictions >= 1


def test_files_that_dead_writers_left_are_cleaned_up(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("a", b"code")
    drafts = tmp_path / "cache" / DRAFTS
    dead, living = new_draft(drafts), new_draft(drafts)
    dead.close()
    old, new = (tmp_path / "cache" / f"{name}.writing" for name in ("old", "new"))  # of an earlier version
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    ObjectCache(tmp_path / "cache", LIMIT).state()
    assert not old.exists() and new.exists()
    assert list(drafts.iterdir()) == [Path(str(living.name))]


def test_no_directory_means_no_cache_and_no_warning() -> None:
    cache = ObjectCache(None, LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.put("a", b"code") is False and cache.get("a") is None
    assert cache.state().reason == "switched off"


def hammer(directory: str, seed: int) -> None:
    cache = ObjectCache(Path(directory), 40_000)
    for k in range(150):
        key = f"k{(k * 7 + seed) % 30}"
        found = cache.get(key)
        assert found is None or found == key.encode() * 500
        cache.put(key, key.encode() * 500)
    assert cache.counts.refused == 0


def test_processes_and_threads_share_a_directory_safely(tmp_path: Path) -> None:
    directory = str(tmp_path / "cache")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=hammer, args=(directory, k)) for k in range(2)]
    threads = [threading.Thread(target=hammer, args=(directory, 10 + k)) for k in range(2)]
    for worker in (*processes, *threads):
        worker.start()
    joined(*processes, *threads)
    assert [p.exitcode for p in processes] == [0, 0]
    assert ObjectCache(Path(directory), 40_000).state().bytes <= 45_000
