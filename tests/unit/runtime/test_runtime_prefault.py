"""Memory touched while a program is still compiled: the arena lies there, and nobody writes it later."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import stratal as st
from stratal.runtime import prefault
from stratal.runtime.prefault import ArenaPrefault


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory of a few pages be worth a thread."""
    monkeypatch.setattr(prefault, "LEAST_BYTES", 4 * mmap.PAGESIZE)
    monkeypatch.setattr(prefault, "PART_BYTES", mmap.PAGESIZE)


def starts(memory: np.ndarray) -> np.ndarray:
    return memory[:: mmap.PAGESIZE]


def test_the_arena_lies_in_what_was_touched_and_is_left_alone_then(small_counts: None) -> None:
    with ArenaPrefault() as memory:
        memory.expect(64 * mmap.PAGESIZE)
        touched = memory._memory
        assert touched is not None
        arena = memory.new("arena", 70 * mmap.PAGESIZE)  # larger than foreseen
        starts(arena)[:] = 7
        other = memory.new("scratch", 100)
    assert arena.nbytes == 70 * mmap.PAGESIZE and np.shares_memory(arena, touched)
    assert other.nbytes == 100 and not np.shares_memory(other, touched)
    assert (starts(arena) == 7).all() and memory._thread is None


def test_every_page_of_what_is_foreseen_is_touched(small_counts: None) -> None:
    with ArenaPrefault() as memory:
        given = np.full(10 * mmap.PAGESIZE, 9, np.uint8)
        memory._touch(given)
        assert not starts(given).any()
        memory._wanted, given[:] = False, 9
        memory._touch(given)
        assert given.all()


def test_an_arena_that_does_not_fit_gets_other_memory(small_counts: None) -> None:
    with ArenaPrefault() as memory:
        memory.expect(64 * mmap.PAGESIZE)
        touched = memory._memory
        arena = memory.new("arena", 128 * mmap.PAGESIZE)
        assert touched is not None and arena.nbytes == 128 * mmap.PAGESIZE
        assert not np.shares_memory(arena, touched)


def test_little_memory_is_not_worth_a_thread() -> None:
    with ArenaPrefault() as memory:
        memory.expect(1 << 20)
        assert memory._thread is None and memory.new("arena", 1 << 20).nbytes == 1 << 20


def test_a_compilation_that_fails_leaves_no_thread(small_counts: None) -> None:
    with pytest.raises(RuntimeError), ArenaPrefault() as memory:
        memory.expect(1 << 24)
        raise RuntimeError
    assert memory._thread is None


def test_a_program_in_such_memory_computes_the_same(small_counts: None) -> None:
    x = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    whole = st.compile(lambda t: st.cumsum(st.cumsum(t, axis=0), axis=1))
    found = whole(st.tensor(x)).numpy()
    np.testing.assert_allclose(found, x.cumsum(0).cumsum(1), rtol=1e-3, atol=1e-3)
