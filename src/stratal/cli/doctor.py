"""`stratal doctor`: what this machine has, what is in force and whether the kernel cache is sound; with
`--cluster` what the links between ranks cost.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from stratal.base import settings
from stratal.base.errors import AttributeValueError
from stratal.base.target import Target, memory_bytes
from stratal.base.vendor import vendor
from stratal.base.version import VERSION
from stratal.cli import cluster
from stratal.cli.report import add_json_option, cell, console, table, write_json
from stratal.inspect.machine import cpu_name
from stratal.memory.render import format_bytes
from stratal.ops.linalg.library import library
from stratal.plan.host import current_target
from stratal.runtime.cache import CacheState, object_cache

_NUMPY: Final = "NumPy's functions, for its OpenBLAS is not there or has other integers"


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "all of it")
    parser.add_argument("--no-measure", action="store_true", help="skip the measurements (a few seconds)")
    cluster.configure(parser)


def run(args: argparse.Namespace) -> int:
    if args.cluster:
        return cluster.run(args)
    if args.ranks or args.hosts:
        raise AttributeValueError("doctor: -n and --hosts go with --cluster", got="no --cluster")
    target, cache = current_target(), object_cache().state()
    report: dict[str, Any] = {
        "versions": versions(),
        "machine": machine(),
        "target": {**target.to_json(), "digest": target.digest},
        "settings": settings_in_force(),
        "cache": dataclasses.asdict(cache),
        "lapack": _NUMPY if library() is None else str(vendor()),
    }
    if not args.no_measure:
        from stratal.cli.ceilings import measure  # when asked for: it allocates much memory

        report["ceilings"] = [ceiling._asdict() for ceiling in measure()]
    write_json(args.json, report)
    show(console(), report, target, cache)
    return 0 if cache.usable or cache.directory is None else 1


def versions() -> dict[str, str]:
    """Return the versions of Stratal and of what it stands on; PyTorch where it is there to compare with."""
    found = {"stratal": VERSION, "python": platform.python_version()}
    for name in ("numpy", "llvmlite", "ml_dtypes", "rich", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """Return what the operating system says of the machine."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": cpu_name(),
        "cores": os.cpu_count() or 1,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "interpreter": sys.executable,
    }


def settings_in_force() -> list[dict[str, Any]]:
    """Return every setting with its value and who set it."""
    return [
        {
            "name": setting.name,
            "variable": setting.variable,
            "value": str(setting.value) if isinstance(setting.value, Path) else setting.value,
            "origin": setting.origin,
            "takes": setting.takes,
            "doc": setting.doc,
        }
        for setting in settings.SETTINGS.values()
    ]


def show(out: Console, report: dict[str, Any], target: Target, cache: CacheState) -> None:
    """Print the report."""
    found, box = report["versions"], report["machine"]
    out.print(", ".join(f"{name} {version}" for name, version in found.items()))
    out.print(
        f"{box['processor']}, {box['usable_cores']} of {box['cores']} cores usable, "
        f"{format_bytes(box['memory_bytes'])} memory, {box['system']}"
    )
    out.print(
        f"target {target.name}: {target.cpu}, {target.vector_bits}-bit vectors, "
        f"{target.num_vector_registers} registers, L1d {target.l1d_bytes >> 10} KiB, "
        f"L2 {target.l2_bytes >> 10} KiB, L3 {target.l3_bytes >> 20} MiB, digest {target.digest}"
    )
    out.print(f"factorisations by {report['lapack']}")
    out.print()
    _show_ceilings(out, report.get("ceilings", []), target)
    rows = table("settings", "environment variable", "value", "from", "what it does")
    for row in report["settings"]:
        value = "off" if row["value"] is None else str(row["value"])
        rows.add_row(row["variable"], cell(value), row["origin"], cell(row["doc"], "dim"))
    out.print(rows)
    out.print()
    _show_cache(out, cache)


def _show_ceilings(out: Console, ceilings: list[dict[str, Any]], target: Target) -> None:
    if not ceilings:
        return
    rows = table("measured here, now", "what", "threads", "rate", "nominal", "how", right=(1, 2, 3))
    for c in ceilings:
        rows.add_row(
            c["name"],
            str(c["threads"] or "-"),
            f"{c['rate'] / 1e9:.1f} G{c['unit']}/s",
            f"{_nominal(c, target):.1f}",
            cell(c["how"], "dim"),
        )
    out.print(rows)
    out.print()


def _nominal(ceiling: dict[str, Any], target: Target) -> float:
    """Return what the target's description says of a measured rate, in units of 1e9."""
    threads = ceiling["threads"] or settings.threads.value
    if ceiling["unit"] == "B":
        return target.bandwidth(1e12, threads) / 1e9
    return target.peak_flops(threads) / 1e9


def _show_cache(out: Console, cache: CacheState) -> None:
    if cache.directory is None:
        out.print("kernel cache: off")
    elif not cache.usable:
        out.print(f"kernel cache: [red]{cache.reason}[/red]; kernels are compiled every time", soft_wrap=True)
    else:
        held = f"{cache.entries} entries, {format_bytes(cache.bytes)} of {format_bytes(cache.limit)}"
        out.print(f"kernel cache: {cache.directory}, {held}", soft_wrap=True)
