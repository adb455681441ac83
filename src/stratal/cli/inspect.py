"""`stratal inspect FILE`: what an artefact holds, read and verified as the server reads it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.text import Text

from stratal.base.errors import FormatError
from stratal.base.log import duration
from stratal.cli.report import add_json_option, console, table, whole, write_json
from stratal.formats.artifact import FrozenModel
from stratal.formats.saved import load
from stratal.memory.render import format_bytes
from stratal.plan.record import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "all of it")
    parser.add_argument("file", metavar="FILE", type=Path, help="an artefact: what FrozenModel.save wrote")
    parser.add_argument(
        "--graph", metavar="ROWS", type=whole(1), help="print the graph for a batch size, too"
    )


def run(args: argparse.Namespace) -> int:
    model = load(args.file)
    if not isinstance(model, FrozenModel) or model.origin is None:
        raise FormatError(
            "inspect: not an artefact", got=f"{args.file.name}, a {type(model).__name__}",
            hint="st.freeze(net, example).save(path) writes one",
        )  # fmt: skip
    report = describe(model)
    write_json(args.json, report)
    show(model, report)
    if args.graph is not None:
        console().print(Text(str(model.graph(args.graph))), soft_wrap=True)
    return 0


def describe(model: FrozenModel) -> dict[str, Any]:
    """Return what is printed of an artefact."""
    assert model.origin is not None
    plans = {size: Plan(value) for size, value in model.origin.plans.items()}
    return {
        "name": model.name,
        "signature": model.signature.to_json(),
        "content": model.origin.content,
        "stratal": model.origin.stratal,
        "toolchain": model.origin.toolchain,
        "weight_bytes": model.weight_bytes,
        "batch_sizes": [
            {
                "size": size,
                "nodes": len(model.graph(size).nodes),
                "plan": plan.hash,
                "kernels": len(plan.kernels),
                "planned_peak_bytes": plan.planned_peak_bytes,
                "estimated_seconds": plan.estimated_seconds,
            }
            for size, plan in plans.items()
        ],
    }


def show(model: FrozenModel, report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    out.print(Text(f"{model.name}: {model.signature}", "bold"))
    out.print(f"  weights {format_bytes(report['weight_bytes'])}, content {report['content']}")
    out.print(f"  written by stratal {report['stratal']}, toolchain {report['toolchain']}")
    title = "batch sizes, with the plan each had where it was saved"
    rows = table(title, "rows", "nodes", "kernels", "memory", "est.", "plan", right=(0, 1, 2, 3, 4))
    for row in report["batch_sizes"]:
        rows.add_row(
            str(row["size"]), str(row["nodes"]), str(row["kernels"]),
            format_bytes(row["planned_peak_bytes"]), duration(row["estimated_seconds"]), row["plan"][:12],
        )  # fmt: skip
    out.print(rows)
