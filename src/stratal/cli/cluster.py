"""`stratal doctor --cluster`: measure the links between ranks, and keep their model for later launches.

By itself it launches ranks of the same command; as one of them, whoever launched it, it measures.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from stratal.base import settings
from stratal.base.errors import AttributeValueError, CacheError, StratalError
from stratal.base.processes import die_with_parent
from stratal.cli.report import cell, seconds, table, whole, write_json
from stratal.distributed.errors import RankLostError
from stratal.distributed.launcher import environment, mpirun_command, run_ranks
from stratal.distributed.link_measurement import (
    Reduced,
    Timed,
    fit,
    measure_all_reduces,
    measure_combining,
    measure_own_calls,
    measure_rounds,
)
from stratal.distributed.link_records import new_record, records_file, write_file
from stratal.distributed.links import Link, choose, estimate_ns, thresholds
from stratal.distributed.world import SIZE_VARIABLES, World, preset, world

_TIMEOUT_S: Final = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--cluster",
        action="store_true",
        help="measure the links between ranks instead, and keep their model for later launches",
    )
    add(
        "-n",
        "--ranks",
        type=whole(1),
        metavar="N",
        help="with --cluster: how many ranks to start (one per core, 2 at least)",
    )
    add("--hosts", default="", metavar="A:2,B:2", help="with --cluster: hosts, and how many ranks each takes")
    add("--timeout", type=seconds, default=_TIMEOUT_S, metavar="S",
        help=f"with --cluster: seconds to wait for other ranks ({_TIMEOUT_S:g})")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if any(name in os.environ for name in SIZE_VARIABLES) or "PMIX_RANK" in os.environ:
        return _as_rank(args)
    ranks = args.ranks or max(2, len(os.sched_getaffinity(0)))
    if ranks == 1:
        raise AttributeValueError("doctor --cluster: one rank has no links", got="-n 1", hint="-n 2, or more")
    options = ["--timeout", str(args.timeout), *(["--json", str(args.json.absolute())] if args.json else [])]
    command = [sys.executable, "-m", "stratal", "doctor", "--cluster", *options]
    status = run_ranks(mpirun_command(ranks, command, args.hosts), environment(ranks, settings.threads.value))
    if status:
        raise RankLostError("doctor --cluster: not all ranks came to the end; no model was kept",
                            got=f"exit status {status}", hint="what ranks said before tells why")  # fmt: skip
    return 0


def _as_rank(args: argparse.Namespace) -> int:
    """Measure with the other ranks; an error of one ends them all."""
    die_with_parent()
    preset(args.timeout)
    joined: list[World] = []
    try:
        joined.append(world())
        if args.ranks not in (None, joined[0].size):
            raise AttributeValueError(
                "doctor --cluster: the launcher has started another number of ranks",
                got=f"-n {args.ranks}, and {joined[0].size} ranks", hint="leave -n out here",
            )  # fmt: skip
        return _measure(joined[0], args)
    except StratalError as error:
        alike = isinstance(error, AttributeValueError)  # all ranks are told the same
        if not (alike and joined and joined[0].rank):
            print(f"stratal: {error}", file=sys.stderr, flush=True)
        for one in joined:
            one.abort(1)
        return 1


def _measure(within: World, args: argparse.Namespace) -> int:
    rounds = measure_rounds(within)
    link = fit(rounds, measure_combining(within), measure_own_calls(within), within.size)
    reduced = measure_all_reduces(within)
    if within.rank:
        return 0
    kept = _keep(link, within)
    report = _report(within, link, rounds, reduced) | {"file": kept}
    write_json(args.json, report)
    _show(Console(highlight=False, width=160, force_terminal=False), report, within)  # mpirun's is none
    return 0 if kept else 1


def _keep(link: Link, within: World) -> str | None:
    """Store a model among the records of this machine; return the path, None where that is not possible."""
    path = records_file()
    if path is None:
        print("stratal: STRATAL_CACHE_DIR is off: the model is not kept", file=sys.stderr)
        return None
    try:
        write_file(path, new_record(link, within.size, within.hosts))
    except CacheError as error:
        print(f"stratal: {error}", file=sys.stderr)
        return None
    return str(path)


def _report(within: World, link: Link, rounds: Sequence[Timed], reduced: Sequence[Reduced]) -> dict[str, Any]:
    """Return what was measured, beside what the model says of it. Units: bytes, nanoseconds."""
    size, mpi = within.size, within.calls_mpi
    return {
        "ranks": size,
        "hosts": within.hosts,
        "link": link._asdict(),
        "in_force": within.link._asdict(),
        "rounds": [r._asdict() | {"predicted_ns": _predicted(r, link)} for r in rounds],
        "all_reduces": [
            r._asdict() | {"predicted_ns": estimate_ns("all_reduce", r.algorithm, r.nbytes, size, link),
                           "chosen": r.algorithm == choose("all_reduce", r.nbytes, size, link, mpi=mpi)}
            for r in reduced
        ],
        "thresholds": [
            {"from_bytes": n, "algorithm": name}
            for n, name in thresholds("all_reduce", size, link, mpi=mpi)
        ],
    }  # fmt: skip


def _predicted(timed: Timed, link: Link) -> float:
    return link.alpha_ns * (1 + link.message_share * (timed.messages - 1)) + link.beta_ns * (
        timed.nbytes * timed.messages
    )


def _show(out: Console, report: dict[str, Any], within: World) -> None:
    link = Link(**report["link"])
    rows = table(f"a round between {within.size} ranks on {_hosts(within.hosts)}",
                 "messages", "bytes each", "measured", "predicted", right=(0, 1, 2, 3))  # fmt: skip
    for r in report["rounds"]:
        rows.add_row(str(r["messages"]), f"{r['nbytes']:,}", _us(r["ns"]), _us(r["predicted_ns"]))
    out.print(rows)
    out.print(
        f"a round {_us(link.alpha_ns)}, {1 / link.beta_ns:.2f} GB/s, "
        f"a further message {link.message_share:.2f} of a round, sums {1 / link.gamma_ns:.1f} GB/s"
    )
    if within.calls_mpi:
        out.print(f"MPI's own all-reduce: a round {_us(link.mpi_alpha_ns)}, {1 / link.mpi_beta_ns:.2f} GB/s")
    out.print()
    rows = table("all-reduce", "bytes", "chosen", "measured", "predicted", "fastest here", right=(0, 2, 3))
    for nbytes in dict.fromkeys(r["nbytes"] for r in report["all_reduces"]):
        ways = [r for r in report["all_reduces"] if r["nbytes"] == nbytes]
        chosen, best = next(r for r in ways if r["chosen"]), min(ways, key=lambda r: r["ns"])
        fastest = f"{best['algorithm']}, {_us(best['ns'])}"
        times = _us(chosen["ns"]), _us(chosen["predicted_ns"])
        rows.add_row(f"{nbytes:,}", chosen["algorithm"], *times, fastest)
    out.print(rows)
    named = [f"{t['algorithm']} from {t['from_bytes']:,} bytes on" for t in report["thresholds"]]
    out.print(f"chosen: {', '.join(named)}")
    if report["file"]:
        out.print(cell(f"kept for later launches: {report['file']}"), soft_wrap=True)


def _us(ns: float) -> str:
    return f"{ns / 1e3:.1f} us"


def _hosts(count: int) -> str:
    return "one host" if count == 1 else f"{count} hosts"
