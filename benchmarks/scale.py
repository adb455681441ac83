"""How the cost of making a program grows with its size: a chain of element-wise ops with its gradient.

    python -m benchmarks.scale [--sizes 300,3000,27500] [--chain 20000] [--json FILE]

Compiles and runs a chain and its gradient, with the memory that took; then prints CPU microseconds per node
of the simplified graph for capture, gradient, simplification and planning of others. Exits with 1 where the
cost per node more than doubles from the smallest size to the largest, or the chain takes more than 20 s or
1 GB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

GROWTH_BAR = 2.0
SECONDS_BAR, MEGABYTES_BAR = 20.0, 1000


def chain(x: Any, length: int) -> Any:
    """Return the sum of `length` ops, each applied to the result of the last."""
    import stratal as st

    v = x
    for k in range(length):
        v = st.sin(v) if k % 3 == 0 else v * x if k % 3 == 1 else st.tanh(v)
    return v.sum()


def costs(length: int) -> dict[str, float]:
    """Return CPU seconds of each stage for a chain of `length` ops, and the number of nodes."""
    import stratal as st
    from stratal import compiler
    from stratal.autodiff.vjp import vjp
    from stratal.graph.graph import Graph
    from stratal.graph.node import constant
    from stratal.optimize.prologue import apart
    from stratal.plan.host import current_target
    from stratal.tensor.values.backlog import HERE
    from stratal.tensor.values.binding import node_of

    gc.collect()
    HERE.backlog.flush_some = lambda tensor, origin: None  # one graph, however long
    x = st.tensor(np.full((64, 64), 0.5, np.float32))
    start, seconds = time.process_time(), {}

    def lap(stage: str) -> None:
        nonlocal start
        now = time.process_time()
        seconds[stage], start = now - start, now

    y = chain(x, length)
    lap("capture")
    (gradient,) = vjp([node_of(y)], [constant(np.float32(1))], [node_of(x)])
    assert gradient is not None
    lap("gradient")
    target = current_target()
    graph = compiler.prepare(Graph([node_of(x)], [node_of(y), gradient]), target)
    lap("simplify")
    draft = compiler.lower(apart(graph, compiler.Lowerings()), target)
    compiler.share_memory(draft)
    compiler.plan_arena(draft.values, draft.commands, outputs=draft.outputs)
    lap("plan")
    return seconds | {"nodes": len(graph.nodes)}


def whole(length: int) -> dict[str, float]:
    """Compile and run a chain and its gradient; return seconds and the process's peak memory in MB."""
    import stratal as st

    os.environ["STRATAL_CACHE_DIR"] = "off"
    x = st.tensor(np.full((64, 64), 0.5, np.float32))
    begun = time.perf_counter()
    value, gradient = st.compile(st.value_and_grad(lambda x: chain(x, length)))(x)
    finite = np.isfinite(float(value)) and bool(np.isfinite(np.asarray(gradient)).all())
    seconds = time.perf_counter() - begun
    assert finite
    return {"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--sizes", default="300,3000,27500", help="lengths of the chains that are planned")
    parser.add_argument(
        "--chain", type=int, default=20_000, help="length of the chain that is compiled and run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    arguments = parser.parse_args()
    found = whole(arguments.chain)
    figures = f"{found['seconds']:.1f} s, {found['peak_mb']:.0f} MB"
    print(f"a chain of {arguments.chain} ops and its gradient: {figures}")
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        row = costs(size)
        per_node = {k: v / row["nodes"] * 1e6 for k, v in row.items() if k != "nodes"}
        rows.append(row | {"us_per_node": sum(per_node.values())})
        stages = "  ".join(f"{k} {v:.1f}" for k, v in per_node.items())
        print(f"{row['nodes']:7} nodes  {sum(per_node.values()):6.1f} us a node   {stages}", flush=True)
    growth = rows[-1]["us_per_node"] / rows[0]["us_per_node"]
    print(f"growth {growth:.2f} (bar {GROWTH_BAR})")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"chain": found, "growth": growth, "rows": rows}, indent=1) + "\n"
        )
    ok = growth < GROWTH_BAR and found["seconds"] <= SECONDS_BAR and found["peak_mb"] <= MEGABYTES_BAR
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
