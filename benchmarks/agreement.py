"""Agreement with PyTorch on the full-size workloads, its weights loaded: outputs, losses, gradients, 20
steps.

    python -m benchmarks.agreement [--only mlp,gpt] [--json FILE]

Differences are max|a-b| / max|b| per tensor, the worst one shown. `error` is the float32 result against
PyTorch's float64 one, for us and for PyTorch, over all gradients together. Losses differ by
|a-b| / max(|b|, 1).

Where a ReLU's input is zero but for rounding, a gradient jumps: with 32 images ResNet-18 has 16 million such
inputs, and PyTorch's float32 gradients differ by 5e-2 between its own memory formats. Gradients are therefore
compared on the first draw on which PyTorch agrees with itself, the batch halved after `SEEDS` draws; the row
says which draw that is, and how far we and PyTorch are from PyTorch on the whole batch. Exits with 1 where a
bar is missed.

Convolutions are direct sums here, as PyTorch's are: Winograd's algorithm has a larger error, whose bound
`tests/unit/optimize/test_winograd.py` tests. `--winograd` allows it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.models import WORKLOADS, Workload, copy_weights
from stratal.base import settings

Array = np.ndarray[Any, Any]
COMPARED = ("mlp", "lenet", "gpt", "resnet18")
BARS = {"float32": 1e-4, "float64": 1e-9}
ERROR_BAR = 3.0  # ours against PyTorch's
LOSS_BAR = 1e-3
SEEDS = 4  # draws of one batch size before it is halved


class Draw(NamedTuple):
    """Inputs and labels: the first `size` of the batch drawn with `seed`."""

    x: Array
    y: Array
    seed: int
    size: int


def _their_model(workload: Workload, dtype: str) -> Any:
    import torch

    torch.manual_seed(0)
    return workload.build(torch.nn).to(getattr(torch, dtype))


def _twins(workload: Workload, dtype: str) -> tuple[Any, Any]:
    from stratal import nn

    theirs = _their_model(workload, dtype)
    ours = workload.build(nn).to(dtype=dtype)
    copy_weights(theirs, ours)
    return ours, theirs


def _cast(x: Array, dtype: str) -> Array:
    return x.astype(dtype) if x.dtype.kind == "f" else x


def _values(library: Any, model: Any, x: Any, y: Any) -> dict[str, Array]:
    """Return logits, loss and gradients by name."""
    logits = model(x)
    loss = library.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
    loss.backward()
    values = {"logits": logits.detach(), "loss": loss.detach()}
    values |= {name: p.grad for name, p in model.named_parameters()}
    return {name: np.asarray(value).copy() for name, value in values.items()}


def _ours(workload: Workload, dtype: str, draw: Draw) -> dict[str, Array]:
    import stratal as st
    from stratal import nn

    return _values(nn, _twins(workload, dtype)[0], st.tensor(_cast(draw.x, dtype)), st.tensor(draw.y))


def _theirs(workload: Workload, dtype: str, draw: Draw, *, channels_last: bool = False) -> dict[str, Array]:
    import torch

    model, x = _their_model(workload, dtype), torch.from_numpy(_cast(draw.x, dtype))
    if channels_last and x.ndim == 4:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    return _values(torch.nn, model, x, torch.from_numpy(draw.y))


def _draws(workload: Workload) -> Iterator[Draw]:
    size = len(workload.data(np.random.default_rng(0))[0])
    while size:
        for seed in range(SEEDS):
            x, y = workload.data(np.random.default_rng(seed))
            yield Draw(x[:size], y[:size], seed, size)
        size //= 2


def _well_posed(workload: Workload) -> tuple[Draw, dict[str, Array]]:
    """Return the first draw on which PyTorch's float32 agrees, in both memory formats, with its float64; and
    the values of this.
    """
    for draw in _draws(workload):
        exact = _theirs(workload, "float64", draw)
        formats = (_theirs(workload, "float32", draw, channels_last=last) for last in (False, True))
        if all(_worst(values, exact)[0] <= BARS["float32"] / 2 for values in formats):
            return draw, exact
    raise AssertionError("PyTorch agrees with itself on no draw")


def _worst(ours: dict[str, Array], theirs: dict[str, Array]) -> tuple[float, str]:
    """Return the largest relative difference and whose it is.

    A gradient that is zero but for rounding is measured on a thousandth of the largest gradient's scale.
    """
    floor = 1e-3 * max(float(np.abs(b).max()) for b in theirs.values())
    worst = [
        (float(np.abs(ours[n] - b).max()) / max(float(np.abs(b).max()), floor), n) for n, b in theirs.items()
    ]
    return max(worst)


def _error(values: dict[str, Array], exact: dict[str, Array]) -> float:
    """Return the root of the mean squared error, each tensor on the scale of its largest element."""
    terms = [np.mean(((values[n] - e) / max(float(np.abs(e).max()), 1e-30)) ** 2) for n, e in exact.items()]
    return float(np.sqrt(np.mean(terms)))


def _losses(workload: Workload, steps: int = 20) -> float:
    """Return the largest difference of the losses of the first steps on the whole batch."""
    import torch

    import stratal as st
    from stratal import nn, optim

    ours, theirs = _twins(workload, "float32")
    x, y = workload.data(np.random.default_rng(0))
    our_optimizer = workload.optimizer(optim, ours.parameters())
    their_optimizer = workload.optimizer(torch.optim, theirs.parameters())

    def step(library: Any, model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss = workload.loss(library, model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = st.compile(lambda x, y: step(nn, ours, our_optimizer, x, y))
    data, torch_data = (st.tensor(x), st.tensor(y)), (torch.from_numpy(x), torch.from_numpy(y))
    worst = 0.0
    for _ in range(steps):
        a = float(compiled(*data).item())
        b = float(step(torch.nn, theirs, their_optimizer, *torch_data).item())
        worst = max(worst, abs(a - b) / max(abs(b), 1.0))
    return worst


def compare(name: str) -> dict[str, Any]:
    """Return one row of figures and whether they meet the bars."""
    workload = WORKLOADS[name]
    row: dict[str, Any] = {"workload": name}
    draw, exact = _well_posed(workload)
    row["seed"], row["batch"] = draw.seed, draw.size
    row["float64"], row["float64_worst"] = _worst(_ours(workload, "float64", draw), exact)
    ours, theirs = _ours(workload, "float32", draw), _theirs(workload, "float32", draw)
    row["float32"], row["float32_worst"] = _worst(ours, theirs)
    row["our_error"], row["torch_error"] = _error(ours, exact), _error(theirs, exact)
    whole = next(_draws(workload))
    if whole.size != draw.size:
        theirs = _theirs(workload, "float32", whole)
        row["whole_batch"] = _worst(_ours(workload, "float32", whole), theirs)[0]
        row["torch_formats"] = _worst(_theirs(workload, "float32", whole, channels_last=True), theirs)[0]
    row["losses"] = _losses(workload)
    row["ok"] = (
        all(row[dtype] <= bar for dtype, bar in BARS.items())
        and row["our_error"] <= ERROR_BAR * row["torch_error"]
        and row["losses"] <= LOSS_BAR
    )
    return row


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement")
    parser.add_argument("--only", default=",".join(COMPARED), help="workloads, comma separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--winograd", action="store_true", help="let convolutions use Winograd's algorithm")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only.split(","):
        with settings.winograd(arguments.winograd):
            row = compare(name)
        rows.append(row)
        print(
            f"{name:9} f64 {row['float64']:.1e} ({row['float64_worst']})"
            f"   f32 {row['float32']:.1e} ({row['float32_worst']})"
            f"   error ours {row['our_error']:.1e} torch {row['torch_error']:.1e}"
            f"   20 losses {row['losses']:.1e}   {'ok' if row['ok'] else 'MISSED'}"
            f"   on {row['batch']} examples, seed {row['seed']}",
            *(
                [f"  whole batch {row['whole_batch']:.1e}; torch channels-last {row['torch_formats']:.1e}"]
                if "whole_batch" in row
                else []
            ),
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()
