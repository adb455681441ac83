"""The arena of a program as rows: where each buffer lies, when it lives, and what it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from stratal.base.artifact import CopyDone, CopyStart, Launch, Value
from stratal.base.source import SourceLine
from stratal.memory.liveness import analyse
from stratal.memory.plan import ArenaPlan, Block
from stratal.plan.explain import Explained
from stratal.plan.memory_text import recomputations

LONG_LIFE: Final = 0.2  # of all moments: what lives longer was kept for later
_LOOP_LABELS: Final = frozenset(("next carry", "row", "new row", "row number", "predicate"))


def kernel_numbers(program: Explained) -> list[int | None]:
    """Return the number of the kernel that runs at each moment, as the plan counts; None for others."""
    numbers: list[int | None] = []
    count = 0
    for leaf in analyse(program.executable.commands).leaves:
        launched = leaf is not None and isinstance(leaf[1], Launch)
        count += launched
        numbers.append(count if launched else None)
    return numbers


def block_kinds(program: Explained, arena: ArenaPlan) -> Iterator[str]:
    """Yield what each block of the arena is there for."""
    by_id = {value.id: value for value in program.executable.values}
    again = {w for launch in recomputations(program.executable).values() for w in launch.writes}
    copied = {v for _, _, v, _ in file_copies(program)}
    for block in arena.blocks:
        members = [by_id[m] for m in block.members]
        if not copied.isdisjoint(block.members):
            yield "copied from or to a file"
        elif block.root in again:  # not what is recomputed in place of a value that was kept
            yield "recomputed"
        else:
            yield _kind(block, members, arena.num_moments)


def file_copies(program: Explained) -> list[tuple[int, int, int, bool]]:
    """Return the copies of states that wait in a file: first and last moment, the value in the arena, and
    whether it is read from the file.
    """
    by_id = {value.id: value for value in program.executable.values}
    begun: dict[tuple[int, int], int] = {}
    found = []
    for moment, leaf in enumerate(analyse(program.executable.commands).leaves):
        command = leaf[1] if leaf is not None else None
        if isinstance(command, CopyStart):
            begun[command.source, command.target] = moment
        elif isinstance(command, CopyDone):
            reads = by_id[command.source].home == "input"
            inside = command.target if reads else command.source
            found.append((begun[command.source, command.target], moment, inside, reads))
    return found


def _kind(block: Block, members: Sequence[Value], num_moments: int) -> str:
    labels = {m.label for m in members}
    if "packed" in labels:
        return "packed operand"
    if labels & _LOOP_LABELS:
        return "carried by a loop"
    if any(m.home == "output" for m in members):
        return "written as output"
    long = block.life.last - block.life.first + 1 > max(LONG_LIFE * num_moments, 3)
    return "kept for later" if long else "passed on"


def arena_map(
    program: Explained, arena: ArenaPlan, lines_of: Callable[[Iterable[SourceLine]], list[int]]
) -> dict[str, Any]:
    """Return the arena as JSON values; `lines_of` numbers source lines."""
    by_id = {value.id: value for value in program.executable.values}
    blocks = []
    for block, offset, kind in zip(arena.blocks, arena.offsets, block_kinds(program, arena), strict=True):
        value = by_id[block.root]
        blocks.append({
            "root": block.root, "members": list(block.members), "offset": offset, "bytes": block.nbytes,
            "first": block.life.first, "last": block.life.last, "kind": kind, "label": value.label,
            "type": str(value.type), "lines": lines_of(value.where),
        })  # fmt: skip
    loops = [[i.first, i.last] for i in analyse(program.executable.commands).loops]
    return {
        "bytes": arena.arena_bytes, "live_minimum": arena.live_minimum, "moments": arena.num_moments,
        "kernels": kernel_numbers(program), "loops": loops, "blocks": blocks,
        "copies": file_copies(program),
    }  # fmt: skip
