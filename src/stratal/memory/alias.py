"""In place: which values take over the memory of another, decided before code generation.

    launch   a kernel says which of its writes may overwrite which of its reads; the write takes over the
             memory of the read where the read has no other reader and dies there; in a compact program it is
             enough that it dies there, though lines that two processors have read take longer to write
    copy     a value made only to be copied onto another is made there at once where nobody looks at the
             target in between, and the copy disappears: so a state's new value is written where the state
             stands, a loop's next carry where the carry stands

Inputs and constants are never taken over, except an input that is a state by the value copied onto it. What
may fail comes before the first write to a state: a value is not made in a state while an index check or a
host call is still ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratal.base.artifact import Command, Copy, Host, Launch, Value
from stratal.base.fallback import skippable
from stratal.base.log import decide
from stratal.memory.liveness import Interval, Liveness, Path, rows

Candidates = Mapping[Path, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class InPlace:
    """One decision: `write` was given the memory of `over` by the launch or the copy at `path`."""

    write: int
    over: int
    path: Path
    kind: str  # "launch" or "copy"


def no_aliases(values: Sequence[Value], *_: object, **__: object) -> list[InPlace]:
    """Give every value that is no row of another memory of its own."""
    for value in values:
        value.alias = value.alias if value.row is not None else None
    return []


@skippable(no_aliases)
def choose_aliases(
    values: Sequence[Value], live: Liveness, candidates: Candidates, *,
    states: Iterable[int] = (), outputs: Iterable[int] = (), compact: bool = False
) -> list[InPlace]:
    """Set `alias` on values that may share memory in place; return what was decided.

    `live` accounts a row of another value under that one. `candidates` maps the path of a launch to its
    (read, write) pairs a kernel may run in place. `states` are the ids of input values that the program
    writes (by a copy), `outputs` those read after the last command.
    """
    chooser = _Chooser(values, live, set(states), set(outputs), compact)
    for moment, leaf in enumerate(chooser.live.leaves):
        if leaf is not None and type(leaf[1]) is Copy:
            chooser.consider_copy(moment, leaf[0], leaf[1], candidates)
    for moment, leaf in enumerate(chooser.live.leaves):
        if leaf is not None and isinstance(leaf[1], Launch):
            for read, write in candidates.get(leaf[0], ()):
                chooser.consider_launch(moment, leaf[0], leaf[1], read, write)
    return chooser.decided


class _Chooser:
    def __init__(
        self, values: Sequence[Value], live: Liveness, states: set[int], outputs: set[int], compact: bool
    ) -> None:
        self.values = {value.id: value for value in values}
        self.rows = rows(values)  # accounted under what they are rows of, and never given other memory
        self.live = live
        self.states = states
        self.outputs = outputs
        self.compact = compact
        self.decided: list[InPlace] = []
        self.group: dict[int, int] = {}  # value -> the value whose memory it was given
        self.latest: dict[int, int] = {}  # owner of shared memory -> who there lives longest
        self.sources: dict[int, list[Interval]] = {}  # copies' target -> lives of sources made in it
        risks = (t for t, leaf in enumerate(self.live.leaves) if leaf is not None and _may_stop(leaf[1]))
        self.last_risk = max(risks, default=-1)

    def owner(self, id_: int) -> int:
        while id_ in self.group:
            id_ = self.group[id_]
        return id_

    def life(self, id_: int) -> Interval:
        return self.live.intervals[id_]

    def consider_copy(self, moment: int, path: Path, copy: Copy, candidates: Candidates) -> None:
        """Make `source` where `target` lies if it is made once, for this copy, while that one rests."""
        source, target = copy.source, copy.target
        if source == target or source in self.rows or target in self.rows:
            return
        refused = self._copy_refused(moment, path, copy, candidates)
        if refused:
            decide("in place", self._named(target), f"{self._named(source)} is copied there", refused,
                   where=self.values[source].where)  # fmt: skip
            return
        self.sources.setdefault(target, []).append(self.life(source))
        self._join(source, target)
        self.decided.append(InPlace(source, target, path, "copy"))
        decide("in place", self._named(target), f"{self._named(source)} is made there",
               "nobody looks at the old value in between", where=self.values[source].where)  # fmt: skip

    def _copy_refused(self, moment: int, path: Path, copy: Copy, candidates: Candidates) -> str:
        """Say why a copy must stay; '' if its source may be made in its target."""
        source, target = copy.source, copy.target
        made = self.live.writers.get(source, [])
        home = self.values[target].home
        if not self._equal(source, target):
            return "the two differ in size"
        if not self._own(source):
            return "the value has its place already"
        if source in self.outputs or target in self.group:
            return "one of them is also needed elsewhere"
        if home == "const" or (home == "input" and target not in self.states):
            return "inputs and constants are never written"
        life = self.life(source)
        leaves = [leaf for leaf in map(self.live.leaves.__getitem__, made) if leaf is not None]
        if not leaves or len(leaves) < len(made) or any(leaf[0][:-1] != path[:-1] for leaf in leaves):
            return "it is not made beside the copy"
        if life != Interval(made[0], moment):
            return "it is still read after the copy"
        at_once = len(made) == 1 and (target, source) in candidates.get(leaves[0][0], ())
        in_place = at_once and _once(leaves[0][1], target)
        if not self._unseen(target, made[0], moment, in_place):
            return "the old value is read while the new one is made, or after"
        if any(other.meets(life) for other in self.sources.get(target, ())):
            return "another value is made there at that time"
        if home == "input" and self._outermost(made[0]) <= self.last_risk:
            return "an index check or a host call that may fail comes later"
        return ""

    def _named(self, id_: int) -> str:
        return self.values[id_].label or f"%{id_}"

    def _unseen(self, target: int, made: int, copied: int, read_in_place: bool) -> bool:
        """Whether nobody accesses the target between the making of its next value and the copy."""
        writes = [t for t in self.live.writers.get(target, []) if made <= t < copied]
        reads = [t for t in self.live.readers.get(target, []) if made <= t <= copied]
        return not writes and (not reads or (read_in_place and reads == [made]))

    def consider_launch(self, moment: int, path: Path, launch: Launch, read: int, write: int) -> None:
        """Let `write` take over the memory of `read` if this launch ends its life, as its only reader."""
        owner = self.owner(read)
        if read in self.rows or write in self.rows:
            return
        if read == write or not self._equal(read, write) or not _once(launch, read) or read in self.outputs:
            return
        if self.values[read].home != "arena" or self.values[owner].home != "arena" or write in self.group:
            return
        if self.life(read).last != moment or not (self.compact or self.live.readers.get(read) == [moment]):
            return
        if self.life(write).first != moment or write in self.latest or self.latest.get(owner, read) != read:
            return
        if self.values[write].home == "arena":
            self._join(write, owner)
        elif self.values[write].home == "output":
            self._join(owner, write)
        else:
            return
        self.decided.append(InPlace(write, read, path, "launch"))
        decide("in place", self._named(read), f"{self._named(write)} takes over its memory",
               "the kernel is its last reader", where=launch.where)  # fmt: skip

    def _own(self, id_: int) -> bool:
        """Whether a value still lies in arena memory of its own that it shares with nobody."""
        return self.values[id_].home == "arena" and id_ not in self.group and id_ not in self.latest

    def _equal(self, a: int, b: int) -> bool:
        return self.values[a].nbytes == self.values[b].nbytes > 0

    def _outermost(self, moment: int) -> int:
        """Return the start of the outermost loop around a moment: its later moments precede it, too."""
        around = (loop.first for loop in self.live.loops if loop.first <= moment <= loop.last)
        return min(around, default=moment)

    def _join(self, value: int, host: int) -> None:
        """Let a value, and what lies in its memory, lie in the memory of another."""
        rivals = (self.latest.pop(value, value), self.latest.get(host, host))  # a tie goes to the newcomer
        self.latest[host] = max(rivals, key=lambda id_: self.life(id_).last)
        self.group[value] = host
        self.values[value].alias = host


def _once(command: Command, id_: int) -> bool:
    return isinstance(command, Launch) and command.reads.count(id_) == 1


def _may_stop(command: Command) -> bool:
    """Whether a run may end at this command: an index check, or Python."""
    return isinstance(command, Host) or (isinstance(command, Launch) and bool(command.may_fail))
