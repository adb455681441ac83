"""Which values of a draft share memory, and which copies this makes empty."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.artifact import Branch, Command, Copy, Launch, Loop, Once, Value, While
from stratal.base.fallback import skippable, unchanged
from stratal.memory.alias import choose_aliases
from stratal.memory.liveness import Liveness, analyse, check_written, rows
from stratal.schedule.draft import Draft


def share_memory(draft: Draft) -> None:
    """Decide in-place values; drop the copies this makes empty.

    Raises: VerifyError where the order of commands is wrong.
    """
    live = analyse(draft.commands, rows(draft.values))
    check_written(live, draft.values)
    choose_in_place(draft, draft.values, live)
    draft.commands = without_empty_copies(draft.commands, draft.values)


def choose_in_place(draft: Draft, values: Sequence[Value], live: Liveness) -> list[tuple[int, int]]:
    """Set the aliases of values; return the pairs (source, target) of copies that become empty."""
    leaves = [leaf for leaf in live.leaves if leaf is not None]
    candidates = {path: c.in_place_values for path, c in leaves if isinstance(c, Launch)}
    states = [draft.inputs[k] for k in draft.states]
    chosen = choose_aliases(values, live, candidates, states=states, outputs=draft.outputs,
                            compact=draft.compact)  # fmt: skip
    return [(c.write, c.over) for c in chosen if c.kind == "copy"]


@skippable(unchanged)
def without_empty_copies(commands: Sequence[Command], values: Sequence[Value]) -> tuple[Command, ...]:
    """Return commands without copies between values that share their memory."""

    def root(id_: int) -> int:
        value = values[id_]
        return id_ if value.alias is None or value.row is not None else root(value.alias)

    remaining: list[Command] = []
    for c in commands:
        if type(c) is Copy and root(c.source) == root(c.target):
            continue
        if isinstance(c, Loop):
            c = Loop(
                without_empty_copies(c.body, values), c.trips, c.counter, c.trips_value, c.reverse, c.label
            )
        elif isinstance(c, While):
            body = without_empty_copies(c.body, values)
            c = While(without_empty_copies(c.condition, values), c.predicate, body, c.label)
        elif isinstance(c, Branch):
            arms = (without_empty_copies(c.then, values), without_empty_copies(c.otherwise, values))
            c = Branch(c.predicate, *arms, c.label)
        elif isinstance(c, Once):
            c = Once(without_empty_copies(c.body, values))
        remaining.append(c)
    return tuple(remaining)
