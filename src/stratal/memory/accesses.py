"""What the tasks of a graph access, in arrays: a planner asks thousands of schedules for their profile.

    Flat         lists of numbers, one for each task, end to end; `of` gives those of a schedule
    instances    schedule -> when each instance of a value begins and ends
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from stratal.base.errors import VerifyError

Numbers = npt.NDArray[np.int64]


class Flat:
    """Lists of numbers, one for each task, end to end."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.values: Final = np.array([v for numbers in lists for v in numbers], np.int64)
        self._counts: Final = np.array([len(numbers) for numbers in lists], np.int64)
        self._starts: Final = np.cumsum(self._counts) - self._counts

    def of(self, schedule: Numbers) -> tuple[Numbers, Numbers]:
        """Return, for a schedule, the position of each number and where in `values` it stands."""
        counts = self._counts[schedule]
        positions = np.repeat(np.arange(len(schedule)), counts)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, self._starts[schedule][positions] + within


class Instances(NamedTuple):
    """The instances of values in a schedule: of which value, made where, needed up to where.

    `over` are the instances that tasks may write over, one for each `pair`, at the positions `pair_at`.
    """

    values: Numbers
    first: Numbers
    last: Numbers
    over: Numbers
    pair_at: Numbers
    pair: Numbers


class Accesses:
    """What tasks read, write, write over and replace. Values without bytes are left out.

    `pairs(task)` are values (read, written) that may share memory, `states(task)` those it replaces.
    """

    def __init__(
        self, reads: Sequence[Sequence[int]], writes: Sequence[Sequence[int]],
        pairs: Sequence[Sequence[tuple[int, int]]], states: Sequence[Sequence[int]],
        nbytes: Mapping[int, int], outputs: frozenset[int],
    ) -> None:  # fmt: skip
        made = {w for found in writes for w in found if nbytes.get(w)}
        numbers = {s: k for k, s in enumerate(sorted({s for found in states for s in found}))}
        equal = [[p for p in found if nbytes.get(p[0]) == nbytes.get(p[1], 0) > 0] for found in pairs]
        self.reads: Final = Flat([[r for r in found if r in made] for found in reads])
        self.writes: Final = Flat([[w for w in found if w in made] for found in writes])
        self.over: Final = Flat([[r for r, _ in found] for found in equal])
        self.instead: Final = Flat([[w for _, w in found] for found in equal])
        self._states: Final = list(numbers)
        self._state_reads: Final = Flat([[numbers[r] for r in found if r in numbers] for found in reads])
        self._replaced: Final = Flat([[numbers[s] for s in found] for found in states])
        self.nbytes: Final = np.zeros(1 + max(made, default=0), np.int64)
        for v in made:
            self.nbytes[v] = nbytes[v]
        self._outputs: Final = np.array(sorted(outputs & made), np.int64)

    def instances(self, schedule: Sequence[int]) -> Instances:
        """Return when each instance lives. Raises: VerifyError where a task reads what is not there."""
        order = np.array(schedule, np.int64)
        count = len(order)
        first, made = self.writes.of(order)
        values = self.writes.values[made]
        width = count + 2
        keys = values * width + first  # sorted by value, then by position
        by_key = np.argsort(keys)
        keys = keys[by_key]

        def latest(of: Numbers, before: Numbers) -> Numbers:
            """Return the latest instances of values before positions."""
            if not len(of):
                return of
            if not len(keys):
                _refuse(schedule[int(before[0])], int(of[0]))
            at = np.searchsorted(keys, of * width + before) - 1
            found = by_key[np.maximum(at, 0)]
            absent = np.nonzero((at < 0) | (values[found] != of))[0]
            if len(absent):
                _refuse(schedule[int(before[absent[0]])], int(of[absent[0]]))
            return found

        read_at, read = self.reads.of(order)
        last = first.copy()
        np.maximum.at(last, latest(self.reads.values[read], read_at), read_at)
        outputs = self._outputs[np.isin(self._outputs, values)]
        last[latest(outputs, np.full(len(outputs), count))] = count
        self._check_states(order)
        pair_at, pair = self.over.of(order)
        return Instances(values, first, last, latest(self.over.values[pair], pair_at), pair_at, pair)

    def _check_states(self, order: Numbers) -> None:
        """Raise VerifyError where a task reads the old value of a state that was replaced."""
        end = np.full(len(self._states), len(order), np.int64)
        position, replaced = self._replaced.of(order)
        np.minimum.at(end, self._replaced.values[replaced], position)
        position, read = self._state_reads.of(order)
        late = np.nonzero(position > end[self._state_reads.values[read]])[0]
        if len(late):
            state = self._states[int(self._state_reads.values[read[late[0]]])]
            _refuse(int(order[position[late[0]]]), state)

    def shared(self, lives: Instances) -> tuple[Numbers, Numbers]:
        """Return where tasks write over what they read last, and how many bytes they save there."""
        ends = np.nonzero(lives.last[lives.over] == lives.pair_at)[0]
        at, pair = lives.pair_at[ends], lives.pair[ends]
        over, instead = (at * len(self.nbytes) + found.values[pair] for found in (self.over, self.instead))
        taken: set[int] = set()  # numbers of (position, value): each shares its memory once
        chosen = []
        for k, (read, written) in enumerate(zip(over.tolist(), instead.tolist(), strict=True)):
            if read not in taken and written not in taken:
                taken.add(read)
                taken.add(written)
                chosen.append(k)
        return at[chosen], self.nbytes[self.over.values[pair[chosen]]]


def _refuse(task: int, value: int) -> NoReturn:
    raise VerifyError("schedule: a task reads what is not there", got=f"task {task}, %{value}")
