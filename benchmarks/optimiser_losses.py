"""Linear layers followed by cross-entropy over many classes: blocks of rows beside stored logits.

Loss and gradients of activations, weights and bias; the planned peak is set beside the logits' own bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.optimiser_rows import Row, medians, row

SIZES: Final = ((4096, 512, 50257),)
SMOKE: Final = ((512, 16, 300),)
GATE: Final = 1.0
AGREE: Final = 2e-5  # of the largest element


def losses(rounds: int, threads: int, torch: Any, *, smoke: bool) -> Iterator[Row]:
    """Yield rows of each size: time over stored logits and over PyTorch's eager mode, and the peak."""
    from stratal.base import settings

    with settings.threads(threads):
        for size in SMOKE if smoke else SIZES:
            yield from _size(size, 1 if smoke else rounds, torch, None if smoke else GATE)


def _size(size: tuple[int, int, int], rounds: int, torch: Any, gate: float | None) -> Iterator[Row]:
    import stratal as st
    from stratal.base import settings

    rows, width, classes = size
    logits_bytes = rows * classes * 4
    rng = np.random.default_rng(0)
    shapes = (rows, width), (classes, width), (classes,)
    arrays = [rng.standard_normal(shape, dtype=np.float32) / 4 for shape in shapes]
    labels = rng.integers(0, classes, rows)
    operands = [st.tensor(a) for a in arrays]

    def loss(x: Any, w: Any, b: Any) -> Any:
        return st.nn.functional.cross_entropy(x @ w.T + b, labels)

    steps = {name: st.compile(st.value_and_grad(loss, (0, 1, 2))) for name in ("blocks", "stored")}
    least = {"blocks": min(16 << 20, logits_bytes // 4), "stored": None}

    def step(name: str) -> Any:
        with settings.online(least[name]):  # what is in force at a call decides which program it runs
            value, gradients = steps[name](*operands)
            return value.item(), gradients

    runs: dict[str, Callable[[], Any]] = {name: partial(step, name) for name in steps}
    got, want = ([g.numpy() for g in step(name)[1]] for name in steps)
    _compare(got, want)
    if torch is not None:
        given = [torch.tensor(a, requires_grad=True) for a in arrays]
        target = torch.tensor(labels)

        def eager() -> Any:
            x, w, b = given
            return torch.autograd.grad(torch.nn.functional.cross_entropy(x @ w.T + b, target), given)

        _compare(got, [w.numpy() for w in eager()])
        runs["torch"] = eager
    seconds = medians(runs, rounds)
    workload = f"linear, cross-entropy {'x'.join(map(str, size))}"
    for against, most in (("stored", gate), ("torch", None)):
        if against in seconds:
            yield row(workload, against, seconds["blocks"] / seconds[against], most,
                      seconds=seconds["blocks"], other_seconds=seconds[against])  # fmt: skip
    peaks = {n: s.plan.planned_peak_bytes for n, s in steps.items()}
    yield row(workload, "bytes of logits", peaks["blocks"] / logits_bytes, gate,
              peak_bytes=peaks["blocks"], stored_peak_bytes=peaks["stored"])  # fmt: skip


def _compare(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        far = float(np.abs(g - w).max() / np.abs(w).max())
        if not far <= AGREE:
            raise SystemExit(f"cross-entropy: gradients differ by {far:.2g}")
