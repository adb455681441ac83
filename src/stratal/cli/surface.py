"""`stratal ops --surface`: every public name, found by walking the packages, and what is owed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from stratal.cli.report import cell, console, named, table, write_json
from stratal.inspect.surface.coverage import TESTS, covering
from stratal.inspect.surface.entries import FAMILIES, entries
from stratal.inspect.surface.facts import Facts, facts_of


def manifest(names: Sequence[str] = ()) -> list[Facts]:
    """Return what is known of every entry; of those whose name contains one of `names`, if there are any."""
    every = list(entries())
    asked = set(named([e.path for e in every], names, "public name"))
    found = [e for e in every if e.path in asked]
    here = TESTS.is_dir()
    return [facts_of(e, covering(e)[:3] if here else ()) for e in found]


def counts(rows: Sequence[Facts]) -> list[dict[str, object]]:
    """Return per family how many names there are, how many are owed, and which no test calls: None where the
    tests are not at hand, as in an installed package.
    """
    made: list[dict[str, object]] = []
    for name, family in FAMILIES.items():
        own = [row for row in rows if row.family == name]
        untested = [row.name for row in own if not row.tests] if TESTS.is_dir() else None
        made.append({
            "family": name, "names": len(own), "owed": family.owed, "met": len(own) >= family.owed,
            "aliases": sum(len(row.aliases) for row in own), "host": sum(bool(row.host) for row in own),
            "untested": untested,
        })  # fmt: skip
    return made


def run(args: argparse.Namespace) -> int:
    """Print the manifest; return 0 if every family has what it owes."""
    rows = manifest(args.names)
    families = counts(rows)
    write_json(args.json, {"families": families, "names": [row.to_json() for row in rows]})
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
    if args.names:
        return 0
    columns = ("family", "names", "owed", "aliases", "on the host", "untested")
    summary = table("", *columns, right=(1, 2, 3, 4, 5))
    for family in families:
        untested = family["untested"]
        missing = len(untested) if isinstance(untested, list) else "no tests here"
        counted = (family["names"], family["owed"] or "", family["aliases"], family["host"], missing)
        style = "" if family["met"] else "red"
        summary.add_row(cell(str(family["family"]), style), *map(str, counted))
    out.print(summary)
    return 0 if all(family["met"] for family in families) else 1
