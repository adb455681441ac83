"""The memory plan for people and for files: a map of offsets over time, a list of blocks, a JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stratal.base.artifact import Value
from stratal.memory.plan import ArenaPlan, Block

NAMES: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def format_bytes(nbytes: int) -> str:
    """Return a size in the largest decimal unit that leaves a whole part: `3.10 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} B"


def render(plan: ArenaPlan, values: Sequence[Value], *, width: int = 96, height: int = 24) -> str:
    """Return a text map: time runs right, offsets run down, each mark is a block alive there; then the list
    of blocks.

    Blocks are named in order of their first moment; names repeat after 62. A cell shows the block that
    covers its middle, so blocks smaller than a cell can be hidden: the list has them all.
    """
    by_id = {value.id: value for value in values}
    head = (
        f"arena {format_bytes(plan.arena_bytes)} (live minimum {format_bytes(plan.live_minimum)}), "
        f"{len(plan.blocks)} blocks, {plan.num_moments} moments"
    )
    if not plan.blocks or not plan.arena_bytes:
        return head
    columns = min(width, plan.num_moments)
    rows = min(height, plan.arena_bytes // 64)
    grid = [[" "] * columns for _ in range(rows)]
    for k, (block, offset) in enumerate(zip(plan.blocks, plan.offsets, strict=True)):
        for row in _cells(offset, offset + block.nbytes, plan.arena_bytes, rows):
            for column in _cells(block.life.first, block.life.last + 1, plan.num_moments, columns):
                grid[row][column] = NAMES[k % len(NAMES)]
    edge = "  +" + "-" * columns + "+"
    lines = [head, edge, *(f"  |{''.join(row)}|" for row in grid), edge]
    return "\n".join([*lines, *(_line(plan, k, by_id) for k in range(len(plan.blocks)))])


def _cells(start: int, end: int, whole: int, count: int) -> range:
    """Return the cells, of `count` that divide `whole`, whose middle lies in [start, end)."""
    first = -(-(2 * start * count - whole) // (2 * whole))
    last = -(-(2 * end * count - whole) // (2 * whole))
    return range(max(first, 0), min(last, count))


def _line(plan: ArenaPlan, k: int, by_id: Mapping[int, Value]) -> str:
    block, value = plan.blocks[k], by_id[plan.blocks[k].root]
    members = " ".join(f"%{m}" for m in block.members)
    where = f"  {', '.join(dict.fromkeys(map(str, value.where)))}" if value.where else ""
    life = f"{block.life.first}-{block.life.last}"
    return (
        f"  {NAMES[k % len(NAMES)]}  {plan.offsets[k]:>10} +{block.nbytes:<10} {life:>11}  "
        f"{value.type}  {value.label or members}{where}"
    )


def to_json(plan: ArenaPlan, values: Sequence[Value]) -> dict[str, object]:
    """Return the plan as JSON values."""
    by_id = {value.id: value for value in values}

    def entry(block: Block, offset: int) -> dict[str, object]:
        value = by_id[block.root]
        return {
            "root": block.root,
            "members": list(block.members),
            "offset": offset,
            "bytes": block.nbytes,
            "first": block.life.first,
            "last": block.life.last,
            "type": str(value.type),
            "label": value.label,
            "where": [str(line) for line in value.where],
        }

    return {
        "arena_bytes": plan.arena_bytes,
        "live_minimum": plan.live_minimum,
        "moments": plan.num_moments,
        "blocks": [entry(b, o) for b, o in zip(plan.blocks, plan.offsets, strict=True)],
    }
