"""`stratal plan-serving models.toml`: how many workers a load needs under its SLAs, and why."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from stratal.cli.report import add_json_option, cell, console, seconds, table, whole, write_json
from stratal.serve.planning import regime
from stratal.serve.planning_file import ServingPlan, plan_serving, read_traffic, to_json
from stratal.serve.planning_packing import describe
from stratal.serve.planning_simulator import Traffic


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "the plan")
    parser.add_argument("file", metavar="FILE", type=Path, help="the models: see stratal.serve.planning_file")
    parser.add_argument("--rate", metavar="R", type=seconds, help="rows a second of all models together")
    parser.add_argument("--sla", metavar="MS", type=seconds, help="milliseconds, for models that say none")
    parser.add_argument(
        "--workers", metavar="N", type=whole(1), help="admit models in order as long as N workers are enough"
    )


def run(args: argparse.Namespace) -> int:
    traffic = read_traffic(args.file, args.rate, None if args.sla is None else args.sla / 1e3)
    plan = plan_serving(traffic, args.workers)
    write_json(args.json, to_json(traffic, plan))
    show(traffic, plan)
    return 1 if plan.packing.refused else 0


def show(traffic: list[Traffic], plan: ServingPlan) -> None:
    """Print a plan for people: the number first, then why."""
    out = console()
    total = sum(t.session.rate for t in traffic)
    noun = "worker" if plan.workers == 1 else "workers"
    out.print(Text(f"{plan.workers} {noun} for {total:g} rows/s", "bold"))
    rows = table("models", "model", "rate", "SLA", "regime", "strategy", right=(1, 2))
    for t in traffic:
        found = regime(t.session)
        rows.add_row(
            cell(t.session.name), f"{t.session.rate:g}/s", f"{t.session.sla * 1e3:g} ms",
            f"{found.rate} rate, {found.sla} SLA", found.strategy,
        )  # fmt: skip
    out.print(rows)
    for t in traffic:
        out.print(Text(f"  {t.session.name}: {regime(t.session).why}", "dim"), soft_wrap=True)
    for k, worker in enumerate(plan.packing.workers):
        out.print(Text(f"  worker {k}: {describe(worker)}"), soft_wrap=True)
    for refusal in plan.packing.refused:
        out.print(Text(f"  refused: {refusal.session.name}: {refusal.reason}", "yellow"), soft_wrap=True)
    if plan.added:
        out.print(f"  {plan.added} more than packing needs, for the clumps of the simulated arrivals")
    report = plan.report
    out.print(
        f"  simulated: {report.share_in_time:.2%} of {report.offered} rows in time, "
        f"{report.rows_per_batch:.1f} rows a batch"
    )
