"""A program's kernels as a picture in DOT, the language of Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from stratal.plan.explain import Explained
from stratal.plan.record import Plan
from stratal.plan.text import JSON, nested, size

COLOURS = {
    "conv": "#f2d7b6", "contract": "#f2d7b6", "rows": "#cfe3c8", "columns": "#cfe3c8", "pack": "#e6e6e6",
    "host": "#f4c6c6",
}  # fmt: skip


def kernels_to_dot(program: Explained) -> str:
    """Return the commands of a program in DOT: a box per kernel, an arrow per value that passes on."""
    plan = program.plan
    head = [
        f"digraph {_quoted(plan.name)} {{",
        '  node [shape=box, style="filled,rounded", fillcolor="#eef2f7", color="#9999aa"];',
        '  node [fontname="Helvetica", fontsize=10];',
        '  edge [color="#777788", fontname="Helvetica", fontsize=8];',
    ]
    return "\n".join([*head, *(f"  {line}" for line in _kernels(plan)), "}"]) + "\n"


SHOWN: Final = ("kernel", "host", "copy", "copy-start")


def _quoted(text: str) -> str:
    """Return a DOT string: JSON's escapes are DOT's, `\\n` included."""
    return json.dumps(text, ensure_ascii=False)


def _kernels(plan: Plan) -> Iterator[str]:
    values = plan["values"]
    states = set(plan["states"])
    made: dict[int, str] = {}
    for k, row in enumerate(c for c, _ in nested(plan.commands) if c["do"] in SHOWN):
        me = f"c{k}"
        yield f"{me} [label={_quoted(_label(row))}, fillcolor={_quoted(_colour(row))}];"
        for id_ in dict.fromkeys(row["reads"]):
            source = made.get(id_)
            if source is None and values[id_]["home"] == "input":
                source = made[id_] = f"v{id_}"
                shape = "cylinder" if id_ in states else "ellipse"
                label = _quoted(f"{values[id_].get('label', '')}\n{values[id_]['type']}")
                yield f'{source} [label={label}, shape={shape}, fillcolor="#ffffff"];'
            if source is not None:
                yield f"{source} -> {me} [label={_quoted(values[id_]['type'])}];"
        for id_ in row["writes"]:
            made[id_] = me


def _label(row: JSON) -> str:
    lines = ", ".join(row.get("from", ())[:2])
    if row["do"] == "kernel":
        moved = size(row["read_bytes"] + row["written_bytes"])
        return f"{row['number']} {row['name']}\n{row['tactic']}, {moved}\n{lines}"
    if row["do"] == "host":
        return f"Python: {row['op']}\n{lines}"
    return f"copy\n{row['label']}"


def _colour(row: JSON) -> str:
    return COLOURS.get("host" if row["do"] == "host" else str(row.get("tactic", "")).split(" ")[0], "#eef2f7")
