"""Liveness: from when to when each value of a nested command list is needed.

Time counts leaf commands in program order; a loop, while or branch has a moment of its own at its head,
where it reads its trip count or predicate, and a loop one more at its tail. A value lives from its first
access to its last. Around a loop:

    accessed outside of it too, or read in an iteration before that wrote it   ->  all of the loop
    otherwise: each iteration makes it anew                                    ->  within the body

Two values may share memory where their intervals, ends included, are disjoint. Within a branch that is as
exact as a single line of time can be: arms follow each other, so what lives in one arm alone never meets
what lives in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
    Host,
    Launch,
    Loop,
    Once,
    Value,
    While,
    flat,
    own_reads,
    own_writes,
)  # fmt: skip
from stratal.base.errors import VerifyError

Path = tuple[int, ...]  # command, body, command, body, ...: where a command stands in the nested lists


class Interval(NamedTuple):
    """First and last moment of a life, both included."""

    first: int
    last: int

    def meets(self, other: Interval) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(slots=True)
class Liveness:
    """Intervals by value id, and the moments of the program.

    `leaves[t]` is the leaf command at moment t with its path (None at heads and tails); `loops` are the
    outermost loops.
    """

    intervals: dict[int, Interval]
    leaves: list[tuple[Path, Command] | None]
    loops: list[Interval]
    readers: dict[int, list[int]]
    writers: dict[int, list[int]]

    @property
    def num_moments(self) -> int:
        return len(self.leaves)


def roots(values: Iterable[Value]) -> dict[int, int]:
    """Return, for each value id, the id of the value whose memory it shares (itself without an alias)."""
    alias = {value.id: value.alias for value in values}
    found: dict[int, int] = {}
    for id_ in alias:
        chain = [id_]
        while chain[-1] not in found and (target := alias[chain[-1]]) is not None:
            chain.append(target)
        root = found.get(chain[-1], chain[-1])
        found.update(dict.fromkeys(chain, root))
    return found


def rows(values: Iterable[Value]) -> dict[int, int]:
    """Return, for each value that is a row of another, the value whose memory that is."""
    known = list(values)
    root_of = roots(known)
    return {value.id: root_of[value.id] for value in known if value.row is not None}


def analyse(commands: tuple[Command, ...], names: Mapping[int, int] | None = None) -> Liveness:
    """Return when each value lives.

    `names` maps value ids to the names to account them under, such as `roots`.
    """
    walk = _Walk(names or {}, commands)
    body = walk.run(commands, ())
    return Liveness(body.lives, walk.leaves, walk.loops, walk.readers, walk.writers)


def check_written(live: Liveness, values: Iterable[Value]) -> None:
    """Raise VerifyError where a command reads a value of the arena before any command wrote it."""
    for value in values:
        reads, writes = live.readers.get(value.id), live.writers.get(value.id)
        if value.home != "arena" or not value.nbytes or not reads:
            continue
        if not writes or writes[0] >= reads[0]:
            leaf = live.leaves[reads[0]]
            raise VerifyError(
                f"program: %{value.id} {value.label} is read before it is written",
                got=getattr(leaf[1], "label", "") if leaf else "",
                where=value.where,
            )


@dataclass(slots=True)
class _Body:
    """What a command list does: lives, accesses, what it reads before writing, what it surely writes."""

    lives: dict[int, Interval]
    accesses: Counter[int]
    exposed: set[int]
    defined: set[int]

    @classmethod
    def empty(cls) -> _Body:
        return cls({}, Counter(), set(), set())

    def touch(self, name: int, interval: Interval) -> None:
        seen = self.lives.get(name)
        if seen is not None:
            interval = Interval(min(seen.first, interval.first), max(seen.last, interval.last))
        self.lives[name] = interval

    def access(self, name: int, moment: int) -> None:
        """Note an access later than all before it."""
        seen = self.lives.get(name)
        self.lives[name] = Interval(moment if seen is None else seen.first, moment)
        self.accesses[name] += 1

    def read(self, name: int, moment: int) -> None:
        self.access(name, moment)
        if name not in self.defined:
            self.exposed.add(name)

    def write(self, name: int, moment: int) -> None:
        self.access(name, moment)
        self.defined.add(name)

    def follow(self, inner: _Body, *, surely: bool) -> None:
        """Continue with what an inner list does after this one; `surely` if it runs at least once."""
        for name, interval in inner.lives.items():
            self.touch(name, interval)
        self.accesses.update(inner.accesses)
        self.exposed |= inner.exposed - self.defined
        if surely:
            self.defined |= inner.defined


class _Walk:
    """One pass over the nested lists, innermost first."""

    def __init__(self, names: Mapping[int, int], commands: tuple[Command, ...]) -> None:
        self.names = names
        self.commands = commands
        self.leaves: list[tuple[Path, Command] | None] = []
        self.loops: list[Interval] = []
        self.depth = 0
        self.readers: dict[int, list[int]] = {}
        self.writers: dict[int, list[int]] = {}

    def name(self, id_: int) -> int:
        return self.names.get(id_, id_)

    @cached_property
    def totals(self) -> Counter[int]:
        """How often each value is accessed: a loop asks whether it is outside of it, too."""
        ids = (v for c in flat(self.commands) for v in (*own_reads(c), *own_writes(c)))
        return Counter(map(self.name, ids))

    def moment(self, leaf: tuple[Path, Command] | None) -> int:
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def access(self, body: _Body, reads: Iterable[int], writes: Iterable[int], moment: int) -> None:
        for id_ in map(self.name, reads):
            body.read(id_, moment)
            self.readers.setdefault(id_, []).append(moment)
        for id_ in map(self.name, writes):
            body.write(id_, moment)
            self.writers.setdefault(id_, []).append(moment)

    def run(self, commands: tuple[Command, ...], path: Path) -> _Body:
        body = _Body.empty()
        for k, command in enumerate(commands):
            here = (*path, k)
            if isinstance(command, (Launch, Copy, Host)):
                self.access(body, command.reads, command.writes, self.moment((here, command)))
            elif isinstance(command, Branch):
                self.branch(body, command, here)
            elif isinstance(command, Once):
                body.follow(self.run(command.body, (*here, 0)), surely=False)
            else:
                self.loop(body, command, here)
        return body

    def branch(self, body: _Body, command: Branch, path: Path) -> None:
        self.access(body, (command.predicate,), (), self.moment(None))
        then, otherwise = self.run(command.then, (*path, 0)), self.run(command.otherwise, (*path, 1))
        both = then.defined & otherwise.defined
        for arm in (then, otherwise):
            body.follow(arm, surely=False)
        body.defined |= both

    def loop(self, body: _Body, command: Loop | While, path: Path) -> None:
        head = self.moment(None)
        reads, writes = own_reads(command), own_writes(command)
        self.depth += 1
        if isinstance(command, Loop):
            self.access(body, reads, (), head)
            inner = _Body.empty()
            self.access(inner, (), writes, head)
            inner.follow(self.run(command.body, (*path, 0)), surely=True)
            surely = command.trips > 0 and command.trips_value is None
        else:
            inner = self.run(command.condition, (*path, 0))
            self.access(inner, reads, (), self.moment(None))
            inner.follow(self.run(command.body, (*path, 1)), surely=True)
            surely = False  # the condition runs, but what it defines is not told apart from the body's
        self.depth -= 1
        whole = Interval(head, self.moment(None))
        if not self.depth:
            self.loops.append(whole)
        for name in inner.lives:
            if name in inner.exposed or inner.accesses[name] < self.totals[name]:
                inner.lives[name] = whole
        body.follow(inner, surely=surely)
