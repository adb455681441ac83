"""Agreement with PyTorch, its weights loaded: outputs, losses, gradients, float32 error, 20 steps.

The small variants run by default; `python -m benchmarks.agreement` and the tests marked slow do the full
size.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import workloads  # noqa: E402
from benchmarks import agreement, models  # noqa: E402

from stratal.base import settings  # noqa: E402

MODELS = [
    *(pytest.param(workloads.SMALL[name], id=name) for name in ("mlp", "lenet", "resnet18", "gpt")),
    *(
        pytest.param(workloads.FULL[name], id=f"full-{name}", marks=pytest.mark.slow)
        for name in ("mlp", "lenet", "resnet18", "gpt")
    ),
]


@pytest.mark.torch
@pytest.mark.sampled(4)
@pytest.mark.parametrize("workload", MODELS)
def test_outputs_losses_gradients_and_twenty_steps_agree(
    workload: models.Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(agreement.WORKLOADS, "under test", workload)
    with settings.winograd(False):  # as the command does: it rounds products of sums
        row = agreement.compare("under test")
    assert row["float64"] <= 1e-9, row
    assert row["float32"] <= 1e-4, row
    assert row["our_error"] <= 3 * row["torch_error"], row
    assert row["losses"] <= 1e-3, row
