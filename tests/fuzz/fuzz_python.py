"""Programs that make Python interesting: `python tests/fuzz/fuzz_python.py --programs 5000 --seed 0`.

Each is a compiled function and its calls, with changes of Python values in between, compared with the same
program uncompiled. Half of the programs are cells of the tables in tests/fuzz/programs/python, in an order
that the seed draws; the others mix several. `--cells` runs every cell, `--only N` prints and runs one,
`--match TEXT` those whose names hold a text.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a script; under pytest conftest.py does this

from programs.command import Findings, add_options, repeat, run
from programs.pool import Pool, Program
from programs.python.assemble import cell_programs, mixed

EXPECTED = Path(__file__).parent / "fuzz_python_expected.txt"


def programs(count: int, seed: int) -> Iterator[tuple[str, Program]]:
    """Yield programs and the row of the report each counts for."""
    cells = list(cell_programs())
    random.Random(seed).shuffle(cells)
    for k in range(count):
        cell, k_of_kind = divmod(k, 2)
        if k_of_kind == 0 and cell < len(cells):
            yield cells[cell]
        else:
            yield "mixed", mixed(seed, k)


def sample() -> list[Program]:
    """Return the programs that the suite runs: a part of the cells, every report, some mixtures."""
    return [*(p for _, p in cell_programs(every=12)), *(mixed(0, k) for k in range(24))]


def note_expected(processes: int) -> None:
    """Write which programs of the sample fail."""
    failing = set()
    with Pool(processes) as pool:
        pool.judge_all(sample(), lambda p, verdict: failing.add(p.name) if verdict.fault else None)
    EXPECTED.write_text("".join(f"{p.name}\n" for p in sample() if p.name in failing))
    print(f"{len(failing)} of {len(sample())} programs fail")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", action="store_true", help="run every cell of the tables, no mixtures")
    parser.add_argument("--expected", action="store_true", help="note which programs of the suite fail today")
    parser.add_argument("--unaudited", action="store_true", help="guards alone notice what changes")
    add_options(parser, programs=5000)
    options = parser.parse_args(arguments)
    if options.expected:
        note_expected(options.processes)
        return 0
    drawn = list(cell_programs()) if options.cells else list(programs(options.programs, options.seed))
    drawn = [(group, p) for group, p in drawn if options.match in f"{group}: {p.name}"]
    if options.unaudited:
        drawn = [(group, replace(p, ways=("eager", "unaudited"))) for group, p in drawn]
    if options.only is not None:
        return repeat(drawn[options.only][1])
    return run(drawn, options, Findings())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
