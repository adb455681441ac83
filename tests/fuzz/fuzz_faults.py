"""Whether the fuzz finds planted faults: `python tests/fuzz/fuzz_faults.py --programs 200 --seed 0`.

Programs that are right, or refused, without a fault run again with each fault of tests/programs/faults.py
planted, until one is not. Every fourth is a training program. `--fault NAME ..` plants those only.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a script; under pytest conftest.py does this

from fuzz_python import programs
from programs.execute import WAYS, Verdict
from programs.faults import FAULTS, Gone
from programs.pool import Pool, Program
from programs.training.write import drawn


def mixture(count: int, seed: int) -> list[Program]:
    """Draw programs of both fuzzers; PyTorch is left out, whom no planted fault concerns."""
    python = (program for _, program in programs(count, seed))
    training = (replace(drawn(seed, k), ways=WAYS) for k in range(count))
    return [next(training if k % 4 == 3 else python) for k in range(count)]


def sound(given: list[Program], processes: int) -> list[Program]:
    """Return the programs that are right or refused as things are, in their order."""
    kept: set[str] = set()
    with Pool(processes) as pool:
        pool.judge_all(given, lambda p, verdict: None if verdict.fault else kept.add(p.text))
    return [p for p in given if p.text in kept]


def finds(fault: str, given: list[Program], processes: int) -> tuple[int, Program | None, Verdict | None]:
    """Return how many programs ran until one found a fault, and that one."""
    found: list[tuple[Program, Verdict]] = []
    count = 0

    def note(program: Program, verdict: Verdict) -> bool:
        nonlocal count
        count += 1
        if verdict.fault:
            found.append((program, verdict))
        return verdict.fault

    with Pool(processes, plant=fault) as pool:
        pool.judge_all(given, note)
    return (count, *found[0]) if found else (count, None, None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fault", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    options = parser.parse_args(arguments)
    found = sound(mixture(options.programs, options.seed), options.processes)
    print(f"{len(found)} of {options.programs} programs are sound without a fault", flush=True)
    missed = 0
    for name in options.fault:
        try:
            FAULTS[name].found()
        except Gone as gone:
            print(f"gone     {gone}", flush=True)
            missed += 1
            continue
        count, program, verdict = finds(name, found, options.processes)
        missed += program is None
        what = f"{program.name}: {verdict.detail}"[:200] if program and verdict else ""
        print(f"{'found' if program else 'MISSED':8} {name}, after {count}: {what}", flush=True)
    print(f"{len(options.fault) - missed} of {len(options.fault)} faults found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
