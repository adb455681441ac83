"""Small trainings whose bits are compared between processes.

    python tests/support/training.py MODEL --steps N [--save-at K --file F] [--resume F] [--style lazy]

prints the plan hashes of the step and a digest of every parameter, buffer and optimizer state.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.models import gpt, mlp

import stratal as st
from stratal import nn, optim
from stratal.tensor.functions import random

BATCHES = 5
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
        nn.Conv2d(6, 10, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(40, 20), nn.BatchNorm1d(20),
        nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 10),
    )  # fmt: skip


def _images(rng: np.random.Generator) -> Batch:
    return rng.standard_normal((24, 1, 12, 12), dtype=np.float32), rng.integers(0, 10, 24)


def _vectors(rng: np.random.Generator) -> Batch:
    return rng.standard_normal((48, 200), dtype=np.float32), rng.integers(0, 10, 48)


def _tokens(rng: np.random.Generator) -> Batch:
    text = rng.integers(0, 40, (4, 25))
    return text[:, :-1].copy(), text[:, 1:].copy()


Built = tuple[Any, Any, Callable[[np.random.Generator], Batch]]
MODELS: dict[str, Callable[[], Built]] = {
    "mlp": lambda: (net := mlp(nn, (200, 96, 64, 10)), optim.Adam(net.parameters(), lr=3e-3), _vectors),
    "cnn": lambda: (net := cnn(), optim.SGD(net.parameters(), lr=0.03, momentum=0.9), _images),
    "gpt": lambda: (
        net := gpt(nn, layers=2, d=48, heads=3, context=24, vocab=40),
        optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1),
        _tokens,
    ),
}


class Training:
    """A model, its optimizer, its data and the step that trains it."""

    def __init__(self, name: str, *, compiled: bool = True) -> None:
        st.manual_seed(5)
        self.net, self.optimizer, draw = MODELS[name]()
        rng = np.random.default_rng(11)
        self.batches = [tuple(st.tensor(a) for a in draw(rng)) for _ in range(BATCHES)]
        self.step = st.compile(self._step) if compiled else self._step
        self.count = 0

    def _step(self, x: Any, y: Any) -> Any:
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, steps: int) -> Any:
        """Train on; return the last loss."""
        loss = None
        for _ in range(steps):
            loss = self.step(*self.batches[self.count % BATCHES])
            self.count += 1
        return loss

    def save(self, path: str) -> None:
        rng = [int(v) for v in np.asarray(random.get_rng_state())]
        st.save(self.net, path, optimizer=self.optimizer, options={"step": self.count, "rng": rng})

    def resume(self, path: str) -> None:
        saved = st.load(path)
        self.net.load_state_dict(saved.state_dict())
        self.optimizer.load_state_dict(saved.optimizer)
        random.set_rng_state(np.array(saved.options["rng"], np.uint64))
        self.count = saved.options["step"]

    def digest(self) -> str:
        """Return a hash of all that training changed."""
        found = hashlib.sha256()
        values = dict(self.net.state_dict())
        for k, entries in self.optimizer.state_dict()["state"].items():
            values |= {f"{k}.{name}": value for name, value in entries.items()}
        for name in sorted(values):
            found.update(name.encode() + np.ascontiguousarray(np.asarray(values[name])).tobytes())
        return found.hexdigest()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-at", type=int)
    parser.add_argument("--file")
    parser.add_argument("--resume")
    parser.add_argument("--style", choices=("compiled", "lazy"), default="compiled")
    options = parser.parse_args(arguments)
    training = Training(options.model, compiled=options.style == "compiled")
    if options.resume:
        training.resume(options.resume)
    if options.save_at:
        training.run(options.save_at)
        training.save(options.file)
    loss = training.run(options.steps - training.count)
    if options.style == "compiled":
        print("plan", training.step.plan.hash)
    print("loss", float(loss))
    print("digest", training.digest())


if __name__ == "__main__":
    main(sys.argv[1:])
