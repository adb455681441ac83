"""Command lists in print, and rewriting the kernels they launch.

%3: f32[64,10] arena +128 "add"                          values, where they live
k_1f2e..(%0, %1) -> %3  x8   # conv+add, train.py:12     a launch of 8 chunks
loop 12 times, counting %7:                              what it holds is indented
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from stratal.base.artifact import (
    Command,
    Copy,
    CopyDone,
    CopyStart,
    Host,
    Launch,
    Loop,
    Once,
    Value,
    While,
    bodies,
)
from stratal.base.source import SourceLine


def program_to_text(values: Sequence[Value], commands: Sequence[Command]) -> str:
    """Print values, then commands."""
    return "\n".join([*map(value_to_text, values), "", *commands_to_text(commands)]) + "\n"


def value_to_text(value: Value) -> str:
    """Print one value with its home and whose memory it shares."""
    planned = value.home in ("arena", "persistent")
    place = f"{value.home} +{value.offset}" if planned and value.offset >= 0 else value.home
    if not planned:
        place += f" {value.index}"
    shared = f" in %{value.alias}" if value.alias is not None else ""
    label = f' "{value.label}"' if value.label else ""
    return (
        f"%{value.id}: {value.type} strides{list(value.strides)} {place}{shared}{label}{_lines(value.where)}"
    )


def commands_to_text(commands: Sequence[Command], indent: str = "") -> Iterator[str]:
    """Yield one line per command; what loops and branches hold is indented."""
    inner = indent + "  "
    for c in commands:
        if isinstance(c, Launch):
            note = f"  x{c.chunks}{_note(c.label, c.where)}"
            yield f"{indent}{c.kernel}({_ids(c.reads)}) -> {_ids(c.writes)}{note}"
        elif isinstance(c, Copy):
            yield f"{indent}{copy_name(c)} %{c.source} -> %{c.target}{_note(c.label, ())}"
        elif isinstance(c, Host):
            yield f"{indent}host {c.call}({_ids(c.reads)}) -> {_ids(c.writes)}{_note(c.label, c.where)}"
        elif isinstance(c, Loop):
            limit = f", at most %{c.trips_value}" if c.trips_value is not None else ""
            way = " backwards" if c.reverse else ""
            yield f"{indent}loop {c.trips} times{limit}, counting %{c.counter}{way}:"
            yield from commands_to_text(c.body, inner)
        elif isinstance(c, Once):
            yield f"{indent}once, and again after a frozen input has changed:"
            yield from commands_to_text(c.body, inner)
        elif isinstance(c, While):
            yield f"{indent}while:"
            yield from commands_to_text(c.condition, inner)
            yield f"{indent}holds %{c.predicate}:"
            yield from commands_to_text(c.body, inner)
        else:
            yield f"{indent}if %{c.predicate}:"
            yield from commands_to_text(c.then, inner)
            yield f"{indent}else:"
            yield from commands_to_text(c.otherwise, inner)


def copy_name(copy: Copy) -> str:
    """Return what plans call a command that copies."""
    if isinstance(copy, CopyDone):
        return "copy-done"
    return "copy-start" if isinstance(copy, CopyStart) else "copy"


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(f"%{i}" for i in ids)


def _lines(where: Sequence[SourceLine]) -> str:
    return f"  # {', '.join(map(str, where[:2]))}" if where else ""


def _note(label: str, where: Sequence[SourceLine]) -> str:
    parts = [label, *dict.fromkeys(map(str, where[:3]))]
    return f"  # {', '.join(p for p in parts if p)}" if any(parts) else ""


def relaunch(
    commands: Sequence[Command], changed: Mapping[str, tuple[str, int, int]]
) -> tuple[Command, ...]:
    """Return commands with launches of some kernels replaced, which share no memory in place.

    `changed` gives the new symbol, number of chunks and scratch bytes by old symbol.
    """
    kept: list[Command] = []
    for c in commands:
        if isinstance(c, Launch) and c.kernel in changed:
            symbol, chunks, scratch = changed[c.kernel]
            c = dataclasses.replace(c, kernel=symbol, chunks=chunks, scratch_bytes=scratch, in_place=())
        elif held := bodies(c):
            c = dataclasses.replace(c, **{n: relaunch(body, changed) for n, body in held.items()})  # type: ignore[arg-type]
        kept.append(c)
    return tuple(kept)
