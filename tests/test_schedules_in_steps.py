"""Schedules that are stepped inside a compiled function move as they do in the function itself."""

import numpy as np
import pytest
from optimizer_programs import SCHEDULES

import stratal as st
from stratal import nn, optim

STEPS = 8
MORE = {
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda epoch: 0.9),
    "cyclic momentum": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, base_momentum=0.5, max_momentum=0.8),
    "one cycle, momentum": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=20),
    "WarmupCosineLR": lambda s, o: s.WarmupCosineLR(o, 2, 9),
    "SWALR": lambda s, o: optim.swa_utils.SWALR(o, 0.001, anneal_epochs=4),
}


def _train(name, compiled, every):
    p = nn.Parameter(np.linspace(0.5, 1.5, 4))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.5)
    schedule = {**SCHEDULES, **MORE}[name](optim.lr_scheduler, optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = ((p * x) ** 2).sum()
        loss.backward()
        optimizer.step()
        for _ in range(every):
            schedule.step()
        return loss

    run = st.compile(step) if compiled else step
    seen = []
    for k in range(STEPS):
        loss = float(run(st.tensor(np.full(4, 1.0 + k / 8))))
        group = optimizer.param_groups[0]
        seen.append((loss, group["lr"], group["momentum"], *schedule.get_last_lr()))
    return seen, schedule.state_dict(), p.numpy(), getattr(run, "captures", 0)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", [n for n in (*SCHEDULES, *MORE) if n != "ChainedScheduler"])
def test_a_schedule_inside_a_compiled_step_moves_at_every_call(name, every):
    seen, state, weights, captures = _train(name, True, every)
    wanted, wanted_state, wanted_weights, _ = _train(name, False, every)
    for got, want in zip(seen, wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-12)
    assert repr(state) == repr(wanted_state)
    np.testing.assert_allclose(weights, wanted_weights, rtol=1e-12)
    assert captures <= 3


def test_schedules_of_schedules_inside_a_compiled_step_move_at_every_call():
    assert _train("ChainedScheduler", True, 1)[0] == _train("ChainedScheduler", False, 1)[0]


def test_a_compiled_step_may_skip_the_schedule_by_a_flag():
    def train(compiled):
        p = nn.Parameter(np.ones(2))
        optimizer = optim.SGD([p], lr=0.1)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(last):
            optimizer.zero_grad()
            (p**2).sum().backward()
            optimizer.step()
            if last:
                schedule.step()

        run = st.compile(step) if compiled else step
        rates = []
        for k in range(8):
            run(k % 2 == 1)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    assert train(True) == train(False)


def test_a_plateau_schedule_inside_a_compiled_function_sees_every_metric():
    def train(compiled):
        optimizer = optim.SGD([nn.Parameter(np.ones(2))], lr=0.1)
        schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        run = st.compile(schedule.step) if compiled else schedule.step
        for metric in (1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5):
            run(metric)
        return optimizer.param_groups[0]["lr"], schedule.num_bad_epochs

    assert train(True) == train(False)
