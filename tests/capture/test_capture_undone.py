"""Captures that are undone, or begin again, leave Python's state as it was."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.tensor.capture.accesses import Accesses


def test_ctrl_c_while_a_capture_is_undone_comes_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [{"n": 0.0} for _ in range(50)]
    restore, stopped = Accesses.restore, []

    def interrupted(self: Accesses) -> None:
        if not stopped:
            stopped.append(signal.raise_signal(signal.SIGINT))
        restore(self)

    monkeypatch.setattr(Accesses, "restore", interrupted)

    @st.compile
    def step(x: Any) -> Any:
        for count in counts:
            count["n"] += 1.0
        return x.sum()

    done = 0.0
    with pytest.raises(KeyboardInterrupt):
        done += step(st.ones(3)).item() == 3
    assert {count["n"] for count in counts} in ({0.0}, {1.0}) and stopped
    before = counts[0]["n"]
    step(st.ones(3))
    assert {count["n"] for count in counts} == {before + 1}


@pytest.mark.parametrize("clip", [False, True])
def test_a_scaler_is_as_it_was_where_a_capture_begins_again(clip: bool) -> None:
    def losses(compiled: bool) -> list[float]:
        st.manual_seed(0)
        net = nn.Linear(6, 3)
        opt = optim.SGD(net.parameters(), lr=0.1)
        scaler = st.amp.GradScaler(init_scale=4.0, growth_interval=3)
        schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 10)

        def step(x: Any, y: Any) -> Any:
            with st.autocast(dtype=st.float16):
                loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
            return loss, opt.param_groups[0]["lr"]

        run, found = st.compile(step) if compiled else step, []
        for k in range(5):
            rng = np.random.default_rng(k)
            x = st.tensor(rng.standard_normal((6, 6)).astype(np.float32))
            loss, rate = run(x, st.tensor(rng.integers(0, 3, 6)))
            found += [loss.item(), rate]
            schedule.step()
        return [*found, scaler.get_scale()]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-3)
