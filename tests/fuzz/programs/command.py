"""What both fuzzers share at the command line: options, the run, shrinking, the report."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from programs.execute import Verdict, judge
from programs.pool import Pool, Program
from programs.shrink import shrunk

ORDER = ("right", "refused", "wrong", "raises", "crash", "hang", "invalid")
_SCRIPT = """# {name}
# {way}: {verdict}: {detail}
# `python FILE` runs it compiled, `python FILE WAY` eager, lazy, torch, unaudited: the output must not differ.
import sys
WAY = sys.argv[1] if len(sys.argv) > 1 else "compiled"
import stratal
lib = stratal if WAY != "torch" else __import__("torch")
compiled = {{"compiled": stratal.compile, "unaudited": stratal.compile(audit=False)}}.get(WAY, lambda f: f)
def look(*values, **known): return (*values, known)

{text}

if __name__ == "__main__":
    import contextlib
    with stratal.eager() if WAY == "eager" else contextlib.nullcontext():
        for seen in program(lib, compiled) if "program" in globals() else calls():
            print(seen)
"""


@dataclass
class Findings:
    """Verdicts by row of the report, and the first program of each kind of fault."""

    rows: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    faults: list[tuple[str, Program, Verdict]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    done: int = 0

    def note(self, group: str, program: Program, verdict: Verdict) -> None:
        self.done += 1
        self.rows[group][verdict.verdict] += 1
        if verdict.verdict == "refused":
            self.refused[verdict.cause] += 1
        if verdict.fault:
            self.faults.append((group, program, verdict))

    def table(self) -> str:
        """Return the matrix: rows of the report, columns verdicts."""
        total: Counter[str] = Counter()
        for counts in self.rows.values():
            total.update(counts)
        columns = [v for v in ORDER if total[v]]
        width = max(map(len, [*self.rows, "all"]))
        lines = [f"{'':{width}}" + "".join(f"{c:>9}" for c in columns)]
        for name, counts in [*sorted(self.rows.items()), ("all", total)]:
            lines.append(f"{name:{width}}" + "".join(f"{counts[c] or '.':>9}" for c in columns))
        return "\n".join(lines)

    def causes(self) -> dict[tuple[str, str, str], list[tuple[Program, Verdict]]]:
        """Return faults by verdict, way and cause."""
        found = defaultdict(list)
        for _, program, verdict in self.faults:
            found[verdict.key].append((program, verdict))
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def add_options(parser: argparse.ArgumentParser, programs: int) -> None:
    parser.add_argument("--programs", type=int, default=programs)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after that")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=60.0, help="for one program")
    parser.add_argument("--only", type=int, metavar="N", help="print program N and run it here")
    parser.add_argument("--match", default="", metavar="TEXT", help="run only programs whose names hold it")
    parser.add_argument(
        "--shrink", type=int, default=3, metavar="N", help="make N programs of each cause small"
    )
    parser.add_argument("--findings", type=Path, help="a folder for the small programs")
    parser.add_argument("--list", action="store_true", help="print a line for every program")
    parser.add_argument("--plant", default="", help="a fault of programs/faults.py to run with, or budgets")


def run(drawn: Sequence[tuple[str, Program]], options: argparse.Namespace, findings: Findings) -> int:
    """Judge programs, print a report; return 1 where there are faults, or nothing was judged."""
    started = time.perf_counter()
    groups = {id(program): group for group, program in drawn}
    in_time = (p for _, p in drawn if time.perf_counter() < started + options.seconds)

    def note(program: Program, verdict: Verdict) -> None:
        findings.note(groups[id(program)], program, verdict)
        if options.list or (verdict.fault and sum(v.key == verdict.key for *_, v in findings.faults) == 1):
            print(f"{verdict.verdict:8} {program.name}: {verdict.way}: {verdict.detail}", flush=True)
        elif findings.done % 200 == 0:
            print(f"{findings.done} of {len(drawn)}, {len(findings.faults)} faults", flush=True)

    with Pool(options.processes, options.limit_seconds, options.plant) as pool:
        pool.judge_all(in_time, note)
        seconds = time.perf_counter() - started
        for k, (cause, cases) in enumerate(findings.causes().items()):
            print(f"\n{' '.join(cause)}: {len(cases)} programs")
            for j, (program, verdict) in enumerate(sorted(cases, key=lambda case: len(case[0].text))):
                if j < options.shrink and verdict.verdict != "invalid":
                    show(f"{k:03}-{j}", *small(program, verdict, pool), options.findings)
                elif j < 40:
                    print(f"    {program.name}: {verdict.detail}")
    print(f"\n{findings.table()}\n{findings.done} programs in {seconds:.0f} s, {len(findings.faults)} faults")
    print("refused:", *(f"{n} {cause}" for cause, n in findings.refused.most_common()), sep="\n    ")
    return 0 if findings.done and not findings.faults else 1


def small(program: Program, verdict: Verdict, pool: Pool) -> tuple[Program, Verdict]:
    """Return a program made small, and its verdict."""
    text, found = shrunk(program.text, verdict, lambda text: pool.alone.judge(replace(program, text=text)))
    return replace(program, text=text), found


def show(number: str, program: Program, verdict: Verdict, folder: Path | None) -> None:
    print(f"\n--- {number}: {program.name}\n--- {verdict.way}: {verdict.detail}\n{program.text}", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", f"{number} {verdict.verdict} {verdict.way} {program.name}")[:80].strip("-")
        (folder / f"{name}.py").write_text(
            _SCRIPT.format(text=program.text, name=program.name, **vars(verdict))
        )


def repeat(program: Program) -> int:
    """Run one program here."""
    print(f"# {program.name}\n{program.text}\n", flush=True)
    verdict = judge(program.text, program.ways, lambda way: print(f"# {way}", flush=True))
    print(verdict)
    return int(verdict.fault)
