"""Whole training programs: `python tests/fuzz/fuzz_programs.py --programs 10000 --seed 0`.

Each is drawn of a grammar (tests/fuzz/programs/training) and run eagerly, lazily, compiled and, where it
is installed and has all that is used, by PyTorch; losses, parameters, gradients, buffers and optimiser
states are compared after each of nine steps. `--only N` prints and runs one program, `--match TEXT` those
whose names hold a text.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a script; under pytest conftest.py does this

from programs.command import Findings, add_options, repeat, run
from programs.training.write import drawn


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, programs=10000)
    options = parser.parse_args(arguments)
    if options.only is not None:
        return repeat(drawn(options.seed, options.only))
    programs = (drawn(options.seed, k) for k in range(options.programs))
    return run(
        [(p.name.split(", ")[-1], p) for p in programs if options.match in p.name], options, Findings()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
