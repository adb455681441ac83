"""Runs programs between guard pages in this process; prints a line before each, so that a crash has a name.

python tests/support/guard_worker.py graphs START STOP        random graphs, unfused and fused
python tests/support/guard_worker.py records NAME...          the samples of op records
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from differential import reference
from graphs import disagreements, random_graph
from guarded_run import GuardedRun
from record_samples import called, inputs, samples

from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input, items, make

Case = tuple[str, Graph, Sequence[Any]]


def graph_cases(start: int, stop: int) -> Iterator[Case]:
    for seed in range(start, stop):
        yield (f"seed {seed}", *random_graph(seed))


def record_cases(names: Sequence[str]) -> Iterator[Case]:
    for name in names:
        for sample in samples(name):
            if not sample.op.host_reason(*sample.types):
                operands = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
                yield (
                    called(sample),
                    Graph(operands, items(make(sample.op, *operands)), name=name),
                    inputs(sample),
                )


def check(case: Case, compare: bool) -> None:
    name, graph, arrays = case
    want = reference(graph, arrays) if compare else None
    for fused in (False, True):
        executable = compile_graph(graph, fused=fused).executable
        for flush in ("end", "start"):
            print(f"{name}, {'fused' if fused else 'unfused'}, flush at the {flush}", flush=True)
            got = GuardedRun(executable, flush).run(arrays)  # type: ignore[arg-type]
            if want is not None and (bad := disagreements(graph, arrays, got, want)):
                print(f"fault: results {bad}", flush=True)


def main(kind: str, *rest: str) -> None:
    faulthandler.enable()
    cases = graph_cases(*map(int, rest)) if kind == "graphs" else record_cases(rest)
    for case in cases:
        with np.errstate(all="ignore"):
            check(case, compare=kind == "graphs")
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
