"""Plans that were saved: what the explorer shows of them without the program.

Two files hold plans: `json.dumps(step.plan.to_json())`, one plan, and `stratal explain SCRIPT --json FILE`, a
list of programs with graph, loops and decisions. Both are read as data, checked, and never run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from stratal.base.errors import FormatError, StratalError
from stratal.base.files import open_plain
from stratal.base.log import DecisionLog
from stratal.explorer.graphs import captured_graph
from stratal.explorer.source_table import SourceTable
from stratal.explorer.subject import decision_row, packed, plan_fields
from stratal.graph.text import parse_graph
from stratal.plan.record import Plan

JSON = dict[str, Any]
MOST_BYTES: Final = 256 << 20
HINT: Final = "json.dumps(step.plan.to_json()), or what `stratal explain SCRIPT --json FILE` wrote"


def read_plans(path: Path) -> list[JSON]:
    """Return the programs of a file, as the explorer shows them. Raises: FormatError, FileNotFoundError."""
    rows = _document(path)
    if not rows:
        raise FormatError("view: there is no program in this file", got=path.name, hint=HINT)
    try:
        return [_program(row) for row in rows]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, StratalError):
            raise
        raise FormatError("view: not a saved plan", got=f"{path.name}: {error!r}"[:200], hint=HINT) from None


def _document(path: Path) -> list[Any]:
    file, status = open_plain(path, follow=True)
    with file:
        if status.st_size > MOST_BYTES:
            raise FormatError("view: a saved plan takes at most 256 MB", got=f"{status.st_size} bytes")
        text = file.readall()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("view: not a JSON file", got=f"{path.name}: {error}"[:200], hint=HINT) from None
    return found if isinstance(found, list) else [found]


def _program(row: Any) -> JSON:
    if not isinstance(row, dict):
        raise FormatError("view: a program is an object", got=type(row).__name__, hint=HINT)
    program = row if "plan" in row and "graphs" not in row else {}  # else a plan alone, or a page's data
    plan = Plan.from_json(row.get("plan", row))
    sources = SourceTable()
    made = plan_fields(plan)
    if "graph" in program:
        made["graphs"] = {"captured": captured_graph(parse_graph(program["graph"]), sources)}
    if "loops" in program:
        made["code"] = {
            symbol: {"tactic": "", "steps": [], "loops": packed(str(text))}
            for symbol, text in program["loops"].items()
        }
    if "decisions" in program:
        made["decisions"] = [decision_row(d, sources) for d in DecisionLog.from_json(program["decisions"])]
    return made | {"source": sources.to_json(texts=False)}
