"""LAPACK's own functions, in the OpenBLAS NumPy's wheels bring along, called for each matrix of a stack.

NumPy computes in float64 whatever the operands are, and lacks functions; here float32 takes its own time, and
a stack is shared out among the threads of the pool (`base.foreign`). Which build it is, is tried out: a small
system is solved before anything else is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.foreign import ARGUMENTS, Argument, for_each, prepared, workers
from stratal.base.interrupts import block
from stratal.base.vendor import vendor
from stratal.graph.op import Array

_NAMES: Final = ("scipy_{}_64_", "{}_64_")  # the 64 says that integers have as many bits
_LETTERS: Final = {"f": "s", "d": "d", "F": "c", "D": "z"}  # of dtypes, as NumPy and LAPACK name them
_THREADED: Final = 64  # rows from which OpenBLAS takes threads of its own
_PLAIN: Final = np.frombuffer(bytes(range(256)), np.uint8)  # every letter, at an address of its own
_AT: Final = _PLAIN.ctypes.data


class Work(NamedTuple):
    """Memory for intermediate results, one for each thread: so many elements, or as many as LAPACK asks for.

    What follows in a call is then `LENGTH`.
    """

    dtype: str
    elements: int | None = None


class _Length(NamedTuple):
    """How many elements the work before it has."""


LENGTH: Final = _Length()
Given = bytes | int | Array | Work | _Length


class _Library(NamedTuple):
    handle: ctypes.CDLL
    pattern: str


def _opened() -> _Library | None:
    """Return NumPy's own instance of its library, threads and all, if its functions are as expected."""
    found = vendor()
    if found is None:
        return None
    try:
        handle = ctypes.CDLL(str(found.path))
    except OSError:
        return None
    for pattern in _NAMES:
        solve = getattr(handle, pattern.format("dgesv"), None)
        if solve is not None and _solves(prepared(solve)):
            return _Library(handle, pattern)
    return None


def _solves(solve: Any) -> bool:
    """Return whether a function is LAPACK's dgesv with integers of 64 bits: [[0, 2], [4, 0]] X = [2, 4]."""
    a, x = np.array([0.0, 4.0, 2.0, 0.0]), np.array([2.0, 4.0])
    pivots, sizes = np.full(2, -1), np.array([2, 1, -1])
    at = sizes.ctypes.data
    words = (at, at + 8, a.ctypes.data, at, pivots.ctypes.data, x.ctypes.data, at, at + 16)
    solve(*words, *[0] * (ARGUMENTS - len(words)))
    return x.tolist() == [1.0, 1.0] and pivots.tolist() == [2, 2] and sizes[2] == 0


@lru_cache(maxsize=1)
def library() -> _Library | None:
    """Return the library, None where there is none: NumPy's functions then do its work (`by_numpy`)."""
    return _opened()


def call(name: str, a: Array, count: int, *given: Given) -> Array:
    """Call a routine `count` times, of the precision of `a`; return what it says of each, 0 for success.

    Bytes are a letter for all, ints a number for all. Arrays hold what belongs to each matrix, one after the
    other; they are written to. The last argument of the routine, `info`, is added.
    """
    told = np.zeros(count, np.int64)
    if not count:
        return told
    plan = _plan(name, a.dtype.char, *(None if isinstance(g, np.ndarray) else g for g in given))
    arrays = [g for g in given if isinstance(g, np.ndarray)]
    if count == 1:
        work = np.empty(plan.work_bytes, np.uint8)
        words = plan.words.copy()
        for place, array in zip(plan.arrays, (*arrays, told), strict=True):
            words[place] = _address(array)
        start = _address(work)
        for place, offset in plan.works:
            words[place] = start + offset
        plan.function(*words)
        return told
    work = np.empty(workers() * plan.work_bytes, np.uint8)
    arguments: list[Argument] = [(word, 0, 0) for word in plan.words]
    for place, array in zip(plan.arrays, (*arrays, told), strict=True):
        arguments[place] = _address(array), array.nbytes // count, 0
    for place, offset in plan.works:
        arguments[place] = _address(work) + offset, 0, plan.work_bytes
    if max(a.shape[-2:]) < _THREADED:
        for_each(plan.function, count, arguments)
    else:
        with _one_thread_each():
            for_each(plan.function, count, arguments)
    return told


def _address(a: Array) -> int:
    return int(a.__array_interface__["data"][0])


class _Plan(NamedTuple):
    """A call, its words without the addresses of arrays and of work: their places, and where work begins."""

    function: Any
    words: list[int]
    arrays: list[int]
    works: list[tuple[int, int]]
    work_bytes: int
    numbers: Array  # keeps them where the words say


@lru_cache(maxsize=1024)
def _plan(name: str, letter: str, *given: Given | None) -> _Plan:
    """Return a plan, after a question to LAPACK for what work it wants."""
    plan = _planned(name, letter, given)
    if any(isinstance(g, Work) and g.elements is None for g in given):
        words, memory, count = plan.words.copy(), np.zeros(16, np.complex128), np.zeros(1, np.int64)
        for place in plan.arrays:
            words[place] = _address(count)
        for k, (place, _) in enumerate(plan.works):
            words[place] = _address(memory[k:])
        plan.function(*words)
        works = [g for g in given if isinstance(g, Work)]
        asked = iter([_length(memory[k:], work) for k, work in enumerate(works)])
        given = tuple(Work(g.dtype, next(asked)) if isinstance(g, Work) else g for g in given)
        plan = _planned(name, letter, given)
    return plan


def _length(told: Array, work: Work) -> int:
    """Return how much work is wanted: what LAPACK told as a number of the matrix's kind may be rounded."""
    if work.elements is not None:
        return work.elements
    number = told.view(work.dtype)[0]
    length = int(number.real)
    return max(1, length if number.dtype.kind == "i" else length + (length >> 20))


def _planned(name: str, letter: str, given: tuple[Given | None, ...]) -> _Plan:
    """Return a plan; work of unknown size has no elements, and is asked for by a length of -1."""
    found = library()
    assert found is not None
    function = prepared(getattr(found.handle, found.pattern.format(_LETTERS[letter] + name)))
    numbers = np.zeros(len(given), np.int64)
    words, arrays, works, work_bytes = [0] * len(given), [], [], 0
    for place, g in enumerate(given):
        if g is None:
            arrays.append(place)
        elif isinstance(g, bytes):
            words[place] = _AT + g[0]
        elif isinstance(g, Work):
            works.append((place, work_bytes))
            elements = -1 if g.elements is None else g.elements
            work_bytes += -(-max(1, elements) * np.dtype(g.dtype).itemsize // 64) * 64
        else:
            numbers[place] = elements if isinstance(g, _Length) else g
            words[place] = _address(numbers[place:])
    arrays.append(len(words))
    lengths = [1] * sum(isinstance(g, bytes) for g in given)  # Fortran's, of letters
    words += [0, *lengths]
    words += [0] * (ARGUMENTS - len(words))
    return _Plan(function, words, arrays, works, work_bytes, numbers)


@block
def _one_thread_each() -> Generator[None]:
    """Keep OpenBLAS to the threads that call it."""
    found = library()
    assert found is not None
    name = found.pattern.removesuffix("_64_").format("openblas_{}_num_threads64_")
    before = getattr(found.handle, name.format("get"))()
    change = getattr(found.handle, name.format("set"))
    try:
        change(1)
        yield
    finally:
        change(before)
