"""Budgets and offload of every network there is, tiny: planned is observed, and every bit stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_models import NETWORKS

import stratal as st
from stratal import models, nn, optim
from stratal.base import settings
from stratal.cli.plans import observed_peak_bytes
from stratal.plan import offload

QUICK = {"GPT2Model", "LeNet"}
NAMES = sorted(n for n, tiny in NETWORKS.items() if tiny.called is not None)


def tensors_of(found: Any) -> Iterator[Any]:
    """Yield the floating tensors of a network's result."""
    if isinstance(found, st.Tensor):
        if found.dtype in (st.float32, st.float64):
            yield found
    elif isinstance(found, dict):
        yield from tensors_of(list(found.values()))
    elif isinstance(found, (tuple, list)):
        for part in found:
            yield from tensors_of(part)
    elif hasattr(found, "__dict__"):
        yield from tensors_of(vars(found))


class Training:
    """A tiny network with Adam, its compiled step, and operands that are the same in each step."""

    def __init__(self, name: str, memory: int | None = None, in_parts: bool = False) -> None:
        st.manual_seed(5)
        tiny = NETWORKS[name]
        self.net = getattr(models, name)(*tiny.made.args, **tiny.made.kwargs)
        assert tiny.called is not None
        self.operands = tiny.called()
        self.opt = optim.Adam(self.net.parameters(), lr=1e-3)
        self.compiled = st.compile(self.step, memory=memory, micro_batches=in_parts)

    def step(self, *operands: Any) -> Any:
        loss = sum(t.square().mean() for t in tensors_of(self.net(*operands)))
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        return loss

    def run(self, steps: int = 3) -> list[bytes]:
        """Return the bytes of losses, parameters and buffers after some steps."""
        losses = [self.compiled(*self.operands).numpy().tobytes() for _ in range(steps)]
        return losses + [v.numpy().tobytes() for v in self.net.state_dict().values()]

    def least(self) -> int:
        """Return the least budget in bytes."""
        self.compiled(*self.operands)  # the optimizer has state from the first step on
        with pytest.raises(st.DoesNotFit) as refused:
            st.fits(self.step, *self.operands, memory=1)
        return refused.value.least_bytes


def trainable(name: str) -> Training:
    try:
        training = Training(name)
        training.compiled(*training.operands)
    except (st.StratalError, TypeError) as error:
        pytest.skip(f"not trained like this: {error}"[:200])
    if not isinstance(training.net, nn.Module):
        pytest.skip("no network")
    return training


@pytest.mark.row("E8")
@pytest.mark.row("E12")
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_budgets_of_a_network_are_exact_and_change_no_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = trainable(name)
    peak, wanted = free.compiled.plan.planned_peak_bytes, Training(name).run()
    monkeypatch.setattr(offload, "LEAST_BYTES", 64)  # all of them are small
    for folder in (None, tmp_path):
        with settings.offload_dir(folder):
            least = Training(name).least()
            assert least <= peak
            for third in range(3):
                budget = least + (peak - least) * third // 3
                small = Training(name, budget)
                assert small.run() == wanted
                assert small.compiled.plan.planned_peak_bytes <= budget
                assert observed_peak_bytes(small.compiled.program) == small.compiled.plan.planned_peak_bytes
            with settings.verify(True):  # guard pages, and what is dead is overwritten
                assert Training(name, least).run() == wanted
    assert not list(tmp_path.iterdir())
    small = Training(name, budget := free.least() + (peak - free.least()) // 3, in_parts=True)
    for found, bits in zip(small.run(), wanted, strict=True):
        if len(bits) % 4 == 0:
            a, b = (np.frombuffer(x, np.float32) for x in (found, bits))
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=5e-4)
    assert observed_peak_bytes(small.compiled.program) == small.compiled.plan.planned_peak_bytes <= budget


def test_most_networks_are_trained_within_budgets() -> None:
    assert len(NAMES) > 25
    assert np.all([hasattr(models, n) for n in NAMES])
