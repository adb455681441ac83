"""How others hold temporaries, as yardsticks for the plan: one allocation per value, or a dynamic pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratal.base.artifact import Command, Value
from stratal.memory.alias import Candidates, InPlace, choose_aliases
from stratal.memory.liveness import analyse, roots, rows
from stratal.memory.plan import arena_blocks


@dataclass(frozen=True, slots=True)
class PoolTrace:
    """What a dynamic pool did: allocations from the system in each step, bytes held in the end."""

    allocations: tuple[int, ...]
    held_bytes: int


def aliased(
    values: Sequence[Value], commands: tuple[Command, ...], candidates: Candidates, **options: Iterable[int]
) -> list[InPlace]:
    """Choose aliases of values that have none yet."""
    return choose_aliases(values, analyse(commands, rows(values)), candidates, **options)


def naive_bytes(values: Sequence[Value], commands: tuple[Command, ...], outputs: Iterable[int] = ()) -> int:
    """Return the bytes of an executor that gives every value its own memory: linear in the ops."""
    live = analyse(commands, roots(values))
    return sum(block.nbytes for block in arena_blocks(values, live, outputs))


def dynamic_pool(
    values: Sequence[Value], commands: tuple[Command, ...], *, outputs: Iterable[int] = (), steps: int = 2
) -> PoolTrace:
    """Run some steps on a pool with a free list per size: a dead value's memory serves the next of its size.

    Outputs are returned to the pool when the next step begins.
    """
    live = analyse(commands, roots(values))
    blocks = arena_blocks(values, live, outputs)
    dying: dict[int, list[int]] = {}
    for block in blocks:
        dying.setdefault(block.life.last, []).append(block.nbytes)
    free: Counter[int] = Counter()
    held, allocations = 0, []
    for _ in range(steps):
        fresh = now = 0
        for block in blocks:  # in order of their first moment
            for past in range(now, block.life.first):
                free.update(dying.get(past, ()))
            now = block.life.first
            if free[block.nbytes]:
                free[block.nbytes] -= 1
            else:
                fresh += 1
                held += block.nbytes
        for rest in range(now, live.num_moments + 1):
            free.update(dying.get(rest, ()))
        allocations.append(fresh)
    return PoolTrace(tuple(allocations), held)
