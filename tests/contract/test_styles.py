"""The three ways of running a model agree: captured, lazy and eager, each with its own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import workloads

import stratal as st
from stratal import nn

MODELS = [
    pytest.param(workloads.SMALL[name], id=name, marks=[pytest.mark.slow] if name == "resnet18" else [])
    for name in ("mlp", "lenet", "resnet18", "gpt")
]


def values(workload: Any, style: str) -> dict[str, np.ndarray]:
    """Return the outputs, the loss and the gradients of a model in float64."""
    st.manual_seed(0)
    model = workload.build(nn).double()
    rng = np.random.default_rng(0)
    x, y = (st.tensor(a.astype("float64") if a.dtype == np.float32 else a) for a in workload.data(rng))

    def loss_and_outputs(x: Any, y: Any) -> Any:
        outputs = model(x)
        loss = workload.loss(nn, model, x, y)
        loss.backward()
        return loss, outputs

    if style == "eager":
        with st.eager():
            loss, outputs = loss_and_outputs(x, y)
    else:
        loss, outputs = (st.compile(loss_and_outputs) if style == "captured" else loss_and_outputs)(x, y)
    found = {f"gradient of {name}": p.grad.numpy() for name, p in model.named_parameters()}
    return found | {"outputs": outputs.numpy(), "loss": loss.numpy()}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workload", MODELS)
def test_captured_lazy_and_eager_models_agree(workload: Any) -> None:
    expected = values(workload, "eager")
    for style in ("captured", "lazy"):
        for name, found in values(workload, style).items():
            scale = float(np.abs(expected[name]).max()) or 1.0
            error = np.abs(found - expected[name]).max(initial=0.0)
            assert error <= 1e-10 * scale, f"{style}: {name}"
