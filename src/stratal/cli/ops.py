"""`stratal ops`: the primitives, read off their records."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any, Final

import stratal.ops
from stratal.cli.report import add_json_option, cell, console, named, table, write_json
from stratal.graph.op import REGISTRY, Op

PACKAGE: Final = Path(stratal.ops.__file__).parent.parent


def primitives() -> list[type[Op]]:
    """Return the records by file and name; the graph's own marks (input, const, item) are not among them."""
    ops = [cls for cls in REGISTRY.values() if cls.__module__.startswith("stratal.ops.")]
    return sorted(ops, key=lambda cls: (cls.__module__, cls.name))


def describe(cls: type[Op]) -> dict[str, Any]:
    """Return what is printed of one record."""
    no_gradient = cls.not_differentiable or ("" if cls.vjp is not Op.vjp else "no derivative rule yet")
    no_code = cls.not_lowered or ("" if cls.lower is not Op.lower else "no lowering yet: runs its reference")
    by_rows = cls.not_batched or ("" if cls.batch is not Op.batch else "no batch rule yet")
    return {
        "name": cls.name,
        "file": Path(inspect.getfile(cls)).relative_to(PACKAGE.parent).as_posix(),
        "summary": (inspect.getdoc(cls) or "").split("\n")[0],
        "differentiable": not no_gradient,
        "not_differentiable": no_gradient,
        "batched": not by_rows,
        "not_batched": by_rows,
        "lowered": not no_code,
        "not_lowered": no_code,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "the list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only ops whose name contains NAME")


def run(args: argparse.Namespace) -> int:
    rows = [describe(cls) for cls in primitives()]
    asked = named([row["name"] for row in rows], args.names, "op")
    rows = [row for row in rows if row["name"] in asked]
    write_json(args.json, rows)
    out = console()
    shown = table("", "op", "what it computes", "gradient", "vmap", "native code", "file")
    for row in rows:
        shown.add_row(
            row["name"],
            cell(row["summary"]),
            cell("yes") if row["differentiable"] else cell(f"no: {row['not_differentiable']}", "dim"),
            cell("yes") if row["batched"] else cell(f"by rows: {row['not_batched']}", "dim"),
            cell("yes") if row["lowered"] else cell(f"no: {row['not_lowered']}", "yellow"),
            cell(row["file"].removeprefix("stratal/ops/"), "dim"),
        )
    out.print(shown)
    lowered = sum(row["lowered"] for row in rows)
    differentiable = sum(row["differentiable"] for row in rows)
    batched = sum(row["batched"] for row in rows)
    out.print(
        f"\n{len(rows)} primitive{'s' * (len(rows) != 1)}, {differentiable} differentiable, "
        f"{batched} with a rule for vmap (the others run row by row), {lowered} compiled to native code; "
        "the others run their NumPy reference, and the plan says so."
    )
    return 0
