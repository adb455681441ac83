"""`python -m benchmarks names`: every public name, found by walking the packages, and what is owed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.surface.coverage import covering
from benchmarks.surface.entries import FAMILIES, entries
from benchmarks.surface.facts import Facts, facts_of
from stratal.cli.report import cell, console, named, table, write_json


def manifest(names: Sequence[str] = ()) -> list[Facts]:
    """Return what is known of every entry; of those whose name contains one of `names`, if there are any."""
    every = list(entries())
    asked = set(named([e.path for e in every], names, "public name"))
    return [facts_of(e, covering(e)[:3]) for e in every if e.path in asked]


def counts(rows: Sequence[Facts]) -> list[dict[str, Any]]:
    """Return per family how many names there are, how many are owed, and which no test calls."""
    made: list[dict[str, Any]] = []
    for name, family in FAMILIES.items():
        own = [row for row in rows if row.family == name]
        made.append({
            "family": name, "names": len(own), "owed": family.owed, "met": len(own) >= family.owed,
            "aliases": sum(len(row.aliases) for row in own), "host": sum(bool(row.host) for row in own),
            "untested": [row.name for row in own if not row.tests],
        })  # fmt: skip
    return made


def show(names: Sequence[str], json: Path | None) -> int:
    """Print the manifest and write it to a file; return 0 if every family has what it owes."""
    rows = manifest(names)
    families = counts(rows)
    write_json(json, {"families": families, "names": [row.to_json() for row in rows]})
    out = console()
    shown = table("", "name", "kind", "gradient", "native code", "test")
    for row in rows:
        native = f"no: {row.host}" if row.host else "yes" if row.records else ""
        shown.add_row(
            cell(", ".join((row.name, *row.aliases))),
            row.kind,
            cell(row.differentiable, "" if row.differentiable == "yes" else "dim"),
            cell(native, "yellow" if row.host else ""),
            cell(row.tests[0] if row.tests else "", "dim"),
        )
    out.print(shown)
    if names:
        return 0
    columns = ("family", "names", "owed", "aliases", "on the host", "untested")
    summary = table("", *columns, right=(1, 2, 3, 4, 5))
    for family in families:
        counted = (family["names"], family["owed"] or "", family["aliases"], family["host"])
        style = "" if family["met"] else "red"
        summary.add_row(cell(family["family"], style), *map(str, counted), str(len(family["untested"])))
    out.print(summary)
    return 0 if all(family["met"] for family in families) else 1
