"""Agreement with PyTorch on the full-size workloads, its weights loaded: outputs, losses, gradients, 20
steps.

    python -m benchmarks.agreement [--only mlp,gpt] [--json FILE]

Differences are max|a-b| / max|b| per tensor, the worst one shown. `error` is the float32 result against
PyTorch's float64 one, for us and for PyTorch, over all gradients together. `torch itself` is
PyTorch's float32 against its own float64 by the measure of the float32 column: where a ReLU's input is zero
but for rounding, a gradient jumps, and no bar below this figure can be met but by luck. Exits with 1 where a
bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import WORKLOADS, Workload, copy_weights
from benchmarks.spine import SPINE

Array = np.ndarray[Any, Any]
BARS = {"float32": 1e-4, "float64": 1e-9}
ERROR_BAR = 3.0  # ours against PyTorch's
LOSS_BAR = 1e-3


def _twins(workload: Workload, dtype: str) -> tuple[Any, Any, Array, Array]:
    import torch

    from stratal import nn

    torch.manual_seed(0)
    theirs = workload.build(torch.nn).to(getattr(torch, dtype))
    ours = workload.build(nn).to(dtype=dtype)
    copy_weights(theirs, ours)
    x, y = workload.data(np.random.default_rng(0))
    return ours, theirs, x.astype(dtype) if x.dtype.kind == "f" else x, y


def _tensors(workload: Workload, dtype: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return our and PyTorch's logits, loss and gradients by name."""
    import torch

    import stratal as st
    from stratal import nn

    ours, theirs, x, y = _twins(workload, dtype)
    found: list[dict[str, Array]] = []
    for library, model, a, b in (
        (nn, ours, st.tensor(x), st.tensor(y)),
        (torch.nn, theirs, torch.from_numpy(x), torch.from_numpy(y)),
    ):
        logits = model(a)
        loss = library.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), b.reshape(-1))
        loss.backward()
        values = {"logits": logits.detach(), "loss": loss.detach()}
        values |= {name: p.grad for name, p in model.named_parameters()}
        found.append({name: np.asarray(value).copy() for name, value in values.items()})
    return found[0], found[1]


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
    """Return the largest relative difference of the losses of the first steps."""
    import torch

    import stratal as st
    from stratal import nn, optim

    ours, theirs, x, y = _twins(workload, "float32")
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
        worst = max(worst, abs(a - b) / max(abs(b), 1e-3))
    return worst


def compare(name: str) -> dict[str, Any]:
    """Return one row of figures and whether they meet the bars."""
    workload = WORKLOADS[name]
    row: dict[str, Any] = {"workload": name}
    exact: dict[str, Array] = {}
    for dtype in ("float64", "float32"):
        ours, theirs = _tensors(workload, dtype)
        row[dtype], row[f"{dtype}_worst"] = _worst(ours, theirs)
        exact = exact or theirs
        if dtype == "float32":
            row["our_error"], row["torch_error"] = _error(ours, exact), _error(theirs, exact)
            row["torch_itself"] = _worst(theirs, exact)[0]
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
    parser.add_argument("--only", default=",".join(SPINE), help="workloads, comma separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only.split(","):
        row = compare(name)
        rows.append(row)
        print(
            f"{name:9} f64 {row['float64']:.1e} ({row['float64_worst']})"
            f"   f32 {row['float32']:.1e} ({row['float32_worst']}; torch itself {row['torch_itself']:.1e})"
            f"   error ours {row['our_error']:.1e} torch {row['torch_error']:.1e}"
            f"   20 losses {row['losses']:.1e}   {'ok' if row['ok'] else 'MISSED'}",
            flush=True,
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()
