"""Trees and graphs of many shapes: the same model run eagerly, example by example, and captured.

    python -m benchmarks.structures [--only tree-lstm,gcn,graphsage,gat] [--examples 32] [--rounds 5]

Trains on examples that all differ in shape. Prints milliseconds per example of later passes over them, and
after how many examples what captures took in the first pass is paid back. Exits with 1 where captured is
slower than eager.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import stratal as st
from stratal import models, nn, optim

WIDTH, CLASSES, VOCAB = 32, 5, 100
BATCH = 8  # trees of a step; graphs come one by one

Pass = Callable[[], list[float]]  # train on all examples and return the losses


class Runs(NamedTuple):
    """Two passes over the same examples, each with a model and an optimiser of its own."""

    eager: Pass
    captured: Pass
    captures: Callable[[], int]


def tree(rng: np.random.Generator, size: int) -> models.Tree:
    """Return a tree of a random shape, no node with more than three children."""
    token = int(rng.integers(0, VOCAB))
    if size == 1:
        return models.Tree(token)
    count = int(rng.integers(1, min(4, size)))
    sizes = 1 + rng.multinomial(size - 1 - count, np.ones(count) / count)
    return models.Tree(token, tuple(tree(rng, int(n)) for n in sizes))


def update(optimizer: Any, loss: Any) -> Any:
    """Take one step of training."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def over_trees(count: int) -> Runs:
    """Return passes of a tree-LSTM: by recursion over each tree, and by levels over the trees of a batch."""
    rng = np.random.default_rng(0)
    trees = [tree(rng, int(rng.integers(3, 40))) for _ in range(count)]
    labels = rng.integers(0, CLASSES, count)
    batches = [(trees[k : k + BATCH], labels[k : k + BATCH]) for k in range(0, count, BATCH)]

    def build() -> tuple[Any, Any]:
        st.manual_seed(0)
        model = models.TreeLSTM(VOCAB, WIDTH, WIDTH, CLASSES)
        return model, optim.SGD(model.parameters(), lr=0.1)

    model, optimizer = build()

    def eager() -> list[float]:
        losses = []
        for examples, y in batches:
            with st.eager():
                logits = st.stack([model(t) for t in examples])
                losses.append(float(update(optimizer, nn.functional.cross_entropy(logits, st.tensor(y)))))
        return losses

    other, other_optimizer = build()
    step = st.compile(
        lambda levels, y: update(other_optimizer, nn.functional.cross_entropy(other(levels), y))
    )

    def captured() -> list[float]:
        return [float(step(models.levels_of(examples), st.tensor(y))) for examples, y in batches]

    return Runs(eager, captured, lambda: step.captures)


def over_graphs(kind: type, count: int) -> Runs:
    """Return passes of a network over graphs of different sizes, each with one label."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(count):
        nodes = int(rng.integers(5, 60))
        edges = rng.integers(0, nodes, (2, int(rng.integers(nodes, 4 * nodes))))
        x = rng.standard_normal((nodes, WIDTH)).astype(np.float32)
        examples.append(tuple(map(st.tensor, (x, edges, rng.integers(0, CLASSES, 1)))))

    def build() -> Callable[..., Any]:
        st.manual_seed(0)
        model = kind(WIDTH, WIDTH, 2, CLASSES)
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, edges: Any, y: Any) -> Any:
            logits = model(x, edges).mean(0).reshape((1, CLASSES))
            return update(optimizer, nn.functional.cross_entropy(logits, y))

        return step

    plain, captured_step = build(), st.compile(build())

    def eager() -> list[float]:
        with st.eager():
            return [float(plain(*example)) for example in examples]

    return Runs(eager, lambda: [float(captured_step(*e)) for e in examples], lambda: captured_step.captures)


MODELS: dict[str, Callable[[int], Runs]] = {
    "tree-lstm": over_trees,
    "gcn": lambda count: over_graphs(models.GCN, count),
    "graphsage": lambda count: over_graphs(models.GraphSAGE, count),
    "gat": lambda count: over_graphs(models.GAT, count),
}


def measure(name: str, count: int, rounds: int) -> bool:
    """Print the times of a model; return whether captured runs are as fast."""
    runs = MODELS[name](count)

    def timed(run: Pass) -> tuple[float, list[float]]:
        begun = time.perf_counter()
        losses = run()
        return (time.perf_counter() - begun) / count * 1e3, losses

    times: dict[str, list[float]] = {"eager": [], "captured": []}
    for _ in range(1 + rounds):
        (eager, losses), (captured, others) = timed(runs.eager), timed(runs.captured)
        np.testing.assert_allclose(others, losses, 1e-3)
        times["eager"].append(eager)
        times["captured"].append(captured)
    (_, *eager_ms), (first, *captured_ms) = times["eager"], times["captured"]
    eager, captured = min(eager_ms), min(captured_ms)
    paid = count * (first - captured) / max(eager - captured, 1e-9)
    print(
        f"{name:10} {eager:8.2f} ms an example eagerly, {captured:8.3f} captured; "
        f"{runs.captures()} captures for {count} shapes, paid back after {paid:.0f} examples"
    )
    return captured <= eager


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structures", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    kept = [measure(name, arguments.examples, arguments.rounds) for name in names]
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
