"""Collectives that programs begin and wait for, without copies of what they send.

    start   sends from the program's memory, which holds its operand until the wait: that reads it, too
    wait    gives an array that the program copies into its own memory; then a later start writes there

Memory that is fresh costs a page fault per 4 KB, more than messages between ranks of one host do.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import CompilerError
from stratal.distributed import algorithms
from stratal.distributed.algorithms import Array, Combine, Rounds, parts
from stratal.distributed.collectives import all_reduce_algorithm, divide_for_mean, reduction, said
from stratal.distributed.links import choose
from stratal.distributed.world import World
from stratal.engine import Operation


class _Owner:
    """Memory as NumPy takes it: the arrays that show it, and nothing else, hold its owner."""

    __slots__ = ("__weakref__", "_memory")

    def __init__(self, memory: Array) -> None:
        self._memory = memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__


class Spares:
    """Memory of results, taken again once no array shows it any more."""

    def __init__(self) -> None:
        self._taken: dict[int, list[tuple[Array, weakref.ref[_Owner]]]] = {}  # by bytes

    def take(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Return an array of undefined elements."""
        nbytes = count * dtype.itemsize
        entries = self._taken.setdefault(nbytes, [])
        free = next((i for i, (_, owner) in enumerate(entries) if owner() is None), None)
        if free is None:
            if not self._any_in_use():  # another program begins: what the one before it needed is given up
                self._taken = {nbytes: (entries := [])}
            memory = np.empty(nbytes, np.uint8)
        else:
            memory, _ = entries.pop(free)
        owner = _Owner(memory)
        entries.append((memory, weakref.ref(owner)))
        return np.asarray(owner).view(dtype)

    def _any_in_use(self) -> bool:
        return any(owner() is not None for entries in self._taken.values() for _, owner in entries)


class Begun(NamedTuple):
    """A collective of a program that is under way."""

    operation: Operation | None
    source: Array
    result: Array


class ProgramCollectives:
    """Begins the collectives of programs over the ranks of a world."""

    def __init__(self, within: World) -> None:
        self._world: Final = within
        self._spares: Final = Spares()

    def all_reduce(self, array: Array, op: str, algorithm: str, program: str) -> Begun:
        combine, within = reduction(op, "all_reduce"), self._world
        chosen = all_reduce_algorithm(within, array, combine, algorithm)
        source, result = self._pair(array, array.size)
        rounds = _all_reduce(chosen, source, result, within, combine, op)
        begun = self._begin(rounds, source, result, said("all_reduce", array, f" {op} by {chosen}"), program)
        return begun._replace(result=result.reshape(array.shape))

    def reduce_scatter(self, vector: Array, op: str, algorithm: str, program: str) -> Begun:
        combine, within = reduction(op, "reduce_scatter"), self._world
        chosen = choose("reduce_scatter", vector.nbytes, within.size, within.link, algorithm)
        source, result = self._pair(vector, len(vector) // within.size)
        rounds = _reduce_scatter(chosen, source, result, within, combine, op)
        return self._begin(
            rounds, source, result, said("reduce_scatter", vector, f" {op} by {chosen}"), program
        )

    def all_gather(self, vector: Array, algorithm: str, program: str) -> Begun:
        within = self._world
        source, result = self._pair(vector, vector.size * within.size)
        chosen = choose("all_gather", result.nbytes, within.size, within.link, algorithm)
        rounds = _all_gather(chosen, source, result, within)
        return self._begin(rounds, source, result, said("all_gather", vector, f" by {chosen}"), program)

    def finish(self, begun: Begun, array: Array) -> Array:
        """Return the result of a collective of this array, once it is there.

        Raises: CompilerError where the program has moved the array; what `MpiTransport.run` raises.
        """
        self._world.wait(begun.operation)
        if array.flags.c_contiguous and array.ctypes.data != begun.source.ctypes.data:
            raise CompilerError(
                "collective: a program moved what was being sent", got="another address at the wait"
            )
        return begun.result

    def _pair(self, array: Array, count: int) -> tuple[Array, Array]:
        """Return what is sent, as a vector, and memory for a result of so many elements."""
        source = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return source.reshape(-1), self._spares.take(count, array.dtype)

    def _begin(self, rounds: Rounds, source: Array, result: Array, what: str, program: str) -> Begun:
        what += f" in program {program}" if program else ""
        return Begun(self._world.start(lambda: rounds, what), source, result)


def _all_reduce(
    algorithm: str, source: Array, result: Array, within: World, combine: Combine, op: str
) -> Iterator[Any]:
    rank, size = within.rank, within.size
    if algorithm == "all_to_all":
        own = parts(result, size)[rank]
        yield from algorithms.all_to_all_reduce_into(source, own, rank, size, combine)
        divide_for_mean(own, op, size)
        yield from algorithms.all_to_all_all_gather(result, rank, size)
        return
    np.copyto(result, source)
    yield from algorithms.all_reduce_by(algorithm)(result, rank, size, combine)
    divide_for_mean(result, op, size)


def _reduce_scatter(
    algorithm: str, source: Array, result: Array, within: World, combine: Combine, op: str
) -> Iterator[Any]:
    rank, size = within.rank, within.size
    if algorithm == "all_to_all":
        yield from algorithms.all_to_all_reduce_into(source, result, rank, size, combine)
    else:
        buffer = source.copy()
        yield from algorithms.REDUCE_SCATTER[algorithm](buffer, rank, size, combine)
        np.copyto(result, parts(buffer, size)[rank])
    divide_for_mean(result, op, size)


def _all_gather(algorithm: str, source: Array, result: Array, within: World) -> Iterator[Any]:
    np.copyto(parts(result, within.size)[within.rank], source)
    yield from algorithms.ALL_GATHER[algorithm](result, within.rank, within.size)
