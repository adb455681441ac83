"""A plan in print: one line per command, aligned, stable, made to be compared line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from stratal.base.log import duration, short_count
from stratal.base.markup import folded, table, titled
from stratal.memory.render import format_bytes

JSON = Mapping[str, Any]
HEAD: Final = ("#", "kernel", "anchor and tactic", "from", "flops", "bytes", "est.", "share", "bound")
RIGHT: Final = frozenset(("#", "flops", "bytes", "est.", "share"))
NAME_WIDTH: Final = 44
MOST_INPUTS: Final = 6
MOST_ROWS: Final = 200  # in a notebook
BODIES: Final = ("condition", "body", "then", "otherwise")

COPIES: Final = {"copy": "copy to", "copy-start": "begin to copy", "copy-done": "wait for the copy of"}


def nested(commands: Sequence[JSON], depth: int = 0) -> Iterator[tuple[JSON, int]]:
    """Yield every command and how deep in loops and branches it stands."""
    for command in commands:
        yield command, depth
        for key in BODIES:
            yield from nested(command.get(key, ()), depth + 1)


def plan_to_text(plan: JSON, hash_: str, *, lasting: bool = False) -> str:
    """Print a plan. `lasting` leaves out what differs from run to run: the compile time and the cache."""
    rows = list(_rows(plan, plan["commands"], 0, estimated_seconds(plan["commands"])))
    lines = [_title(plan, hash_), *_memory(plan, lasting), *_table(rows)]
    return "\n".join(line.rstrip() for line in lines)


def plan_to_html(plan: JSON, hash_: str) -> str:
    """Return a plan for notebooks: title, memory, a table of commands that a click opens."""
    rows = _rows(plan, plan["commands"], 0, estimated_seconds(plan["commands"]))
    cells = [row for row in rows if not isinstance(row, str)]
    left = (k for k, name in enumerate(HEAD) if name not in RIGHT)
    more = f"; the first {MOST_ROWS}" if len(cells) > MOST_ROWS else ""
    shown = folded(f"{plural(len(cells), 'command')}{more}", table(HEAD, cells[:MOST_ROWS], left=left))
    memory = "".join(f"<div>{escape(line.strip())}</div>" for line in _memory(plan, False))
    return titled(_title(plan, hash_), memory + shown)


def signature(plan: JSON) -> str:
    """Return `name(x: f32[2], ..) -> f32[]`; states are not part of it."""
    values, states = plan["values"], set(plan["states"])
    given = [_argument(values[i]) for i in plan["inputs"] if i not in states]
    more = [f"{len(given) - MOST_INPUTS} more"] if len(given) > MOST_INPUTS else []
    types = [values[o]["type"] for o in plan["outputs"]]
    result = types[0] if len(types) == 1 else f"({', '.join(types)})"
    return f"{plan['name']}({', '.join(given[:MOST_INPUTS] + more)}) -> {result}"


def _argument(value: JSON) -> str:
    label = value.get("label", "")
    return f"{label}: {value['type']}" if label else str(value["type"])


def _title(plan: JSON, hash_: str) -> str:
    kernels = sum(c["do"] == "kernel" for c, _ in nested(plan["commands"]))
    host = plan["calls"]["host"]
    parts = [plural(kernels, "kernel"), "1 native call"]
    if host:
        parts.append(f"{plural(host, 'host call')} inside it")
    parts += [f"plan {hash_[:8]}", plural(plan["threads"], "thread"), plan["target"]]
    return f"{signature(plan)}   {', '.join(parts)}"


def _memory(plan: JSON, lasting: bool) -> list[str]:
    memory = plan["memory"]
    named = [
        f"arena {size(memory['arena_bytes'])} (live minimum {size(memory['live_minimum_bytes'])})",
        f"state {size(memory['state_bytes'])}" + _in_place(plan),
        *(
            f"{k} {size(memory[f'{k}_bytes'])}"
            for k in ("input", "output", "scratch", "constant", "persistent")
            if memory.get(f"{k}_bytes")
        ),
        f"in all {size(memory['planned_peak_bytes'])}",
    ]
    lines = ["  " + "   ".join(named)]
    made = plan["compile"]
    if not lasting:
        cached = f"{made['cached']} of {plural(made['kernels'], 'kernel')} from cache"
        took = f"compiled in {duration(made['seconds'])} ({cached})"
        lines.append(f"  {took}   estimated {duration(estimated_seconds(plan['commands']) or 0.0)} a run")
    if plan["calls"]["host"]:
        lines.append(
            "  host calls run Python: one call, memory and equal bits are promised for the rest alone"
        )
    if plan["overrides"]:
        lines.append("  overridden by hand: " + ", ".join(plan["overrides"]))
    for row in plan.get("fallbacks", ()):
        where = f"  [{', '.join(row['from'])}]" if row.get("from") else ""
        lines.append(f"  {row['stage']} failed: {row['outcome']}{where}: {row['error']}")
    return lines


def _in_place(plan: JSON) -> str:
    """Say how states are written: where they stand, or by a copy."""
    if not plan["states"]:
        return ""
    copied = {c["writes"][0] for c, _ in nested(plan["commands"]) if c["do"] == "copy"} & set(plan["states"])
    if not copied:
        return ", updated in place"
    return f", {len(plan['states']) - len(copied)} of {len(plan['states'])} updated in place"


def _rows(plan: JSON, commands: Sequence[JSON], depth: int, total: float) -> Iterable[tuple[str, ...] | str]:
    inner = depth + 1
    pad = "  " * depth
    for c in commands:
        if c["do"] in ("kernel", "host", *COPIES):
            yield _row(plan, c, pad, total)
        elif c["do"] == "loop":
            yield pad + _loop(c)
            yield from _rows(plan, c["body"], inner, total)
        elif c["do"] == "once":
            again = f", and again after one of {plural(len(c['frozen']), 'frozen input')} has changed"
            yield f"{pad}once" + (again if c["frozen"] else "")
            yield from _rows(plan, c["body"], inner, total)
        elif c["do"] == "while":
            yield f"{pad}while %{c['predicate']}, found by"
            yield from _rows(plan, c["condition"], inner, total)
            yield f"{pad}do"
            yield from _rows(plan, c["body"], inner, total)
        else:
            yield f"{pad}if %{c['predicate']}"
            yield from _rows(plan, c["then"], inner, total)
            yield f"{pad}else"
            yield from _rows(plan, c["otherwise"], inner, total)


def _loop(loop: JSON) -> str:
    limit = f"at most {loop['trips']}" if "trips_value" in loop else str(loop["trips"])
    way = " backwards" if loop.get("reverse") else ""
    return f"{loop['label'] or 'loop'}{way}, {limit} times"


def _row(plan: JSON, c: JSON, pad: str, total: float) -> tuple[str, ...]:
    if c["do"] == "kernel":
        number, name, tactic = str(c["number"]), c["name"], c["tactic"]
    elif c["do"] == "host":
        number, name, tactic = "py", c["op"], f"host: {c.get('why') or 'as asked'}"
    else:
        target = plan["values"][c["writes"][0]].get("label", "")
        number, tactic = "", c["label"]
        name = f"{COPIES[c['do']]} {target or '%' + str(c['writes'][0])}"
    lines = c.get("from", [])
    bound = c["bound"] if c["bound"] in ("latency", "host", "file") else f"{c['bound']} {c['of_bound']:.0%}"
    return (
        number, pad + shorten(name, NAME_WIDTH), shorten(tactic, NAME_WIDTH),
        lines[0] + (f" +{len(lines) - 1}" if len(lines) > 1 else "") if lines else "",
        count(c["flops"]), size(c["read_bytes"] + c["written_bytes"]),
        duration(c["seconds"]) + (f" x{c['times']}" if c["times"] > 1 else ""),
        f"{c['seconds'] * c['times'] / total:.0%}" if total else "", bound,
    )  # fmt: skip


def _table(rows: Sequence[tuple[str, ...] | str]) -> list[str]:
    cells = [HEAD, *(r for r in rows if not isinstance(r, str))]
    widths = [max(len(row[k]) for row in cells) for k in range(len(HEAD))]
    lines = []
    for row in (HEAD, *rows):
        if isinstance(row, str):
            lines.append(" " * (widths[0] + 4) + row)
        else:
            aligned = (
                c.rjust(w) if HEAD[k] in RIGHT else c.ljust(w)
                for k, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  " + "  ".join(aligned))
    return lines


def estimated_seconds(commands: Sequence[JSON]) -> float:
    """Return the estimated time of a run; loops of unknown length count one trip."""
    return float(sum(c["seconds"] * c["times"] for c, _ in nested(commands) if "seconds" in c))


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def size(nbytes: float) -> str:
    return format_bytes(int(nbytes))


def count(n: float) -> str:
    """Return a number of operations: `7.50 MF`."""
    return short_count(n, "F") if n else "-"


def shorten(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where something is missing."""
    return text if len(text) <= width else text[: width - 2] + ".."
