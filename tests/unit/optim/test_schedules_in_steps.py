"""Schedules that are stepped inside a compiled function move as they do in the function itself."""

import copy
import json

import numpy as np
import pytest
from optimizer_programs import SCHEDULES

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError

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


WRITES = {
    "a rate": lambda s, o: o.param_groups[0].__setitem__("lr", 0.01),
    "a rate times a number": lambda s, o: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 0.5),
    "every rate": lambda s, o: [g.update(lr=0.02) for g in o.param_groups],
    "the epoch": lambda s, o: setattr(s, "last_epoch", 0),
    "base rates": lambda s, o: setattr(s, "base_lrs", [0.03]),
    "one base rate": lambda s, o: rates_of(s).__setitem__(0, 0.03),
    "its own state": lambda s, o: s.load_state_dict(s.state_dict()),
    "an earlier state": lambda s, o: s.load_state_dict({**s.state_dict(), "last_epoch": 0}),
    "a state of the optimizer": lambda s, o: o.load_state_dict(o.state_dict()),
    "an attribute": lambda s, o: setattr(s, "note", s.last_epoch),
    "another step": lambda s, o: s.step(),
}


def rates_of(schedule):
    return schedule.base_lrs if hasattr(schedule, "base_lrs") else schedule._schedulers[0].base_lrs


@pytest.mark.sampled(12)
@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize("order", ["written, stepped", "stepped, written", "stepped, written, stepped"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", ["StepLR", "ExponentialLR", "LambdaLR", "CosineAnnealingLR", "SequentialLR"])
@pytest.mark.parametrize("write", WRITES)
def test_what_the_function_writes_beside_a_step_is_written_or_refused(write, name, kind, order, audit):
    def train(compiled):
        p = nn.Parameter(np.linspace(0.5, 1.5, 4))
        optimizer = getattr(optim, kind)([p], lr=0.1)
        schedule = {**SCHEDULES, **MORE}[name](optim.lr_scheduler, optimizer)
        calls = {"stepped": schedule.step, "written": lambda: WRITES[write](schedule, optimizer)}

        def step(x):
            optimizer.zero_grad()
            ((p * x) ** 2).sum().backward()
            optimizer.step()
            for call in order.split(", "):
                calls[call]()

        run = st.compile(step, audit=audit) if compiled else step
        seen = []
        for k in range(6):
            run(st.tensor(np.full(4, 1.0 + k / 8)))
            rate = optimizer.param_groups[0]["lr"]
            seen.append((rate, schedule.last_epoch, *p.tolist(), *rates_of(schedule)))
        return seen, repr(schedule.state_dict())

    try:
        got = train(True)
    except CaptureError:
        return
    wanted = train(False)
    for a, b in zip(got[0], wanted[0], strict=True):
        assert a == pytest.approx(b, rel=1e-12)
    assert got[1] == wanted[1]


@pytest.mark.parametrize("how", ["saved", "copied", "json"])
@pytest.mark.parametrize("name", [*SCHEDULES, *MORE])
def test_a_schedule_goes_on_from_its_state(name, how, tmp_path):
    def make():
        p = nn.Parameter(np.linspace(0.5, 1.5, 4))
        optimizer = optim.SGD([p], lr=0.1, momentum=0.5)
        return optimizer, {**SCHEDULES, **MORE}[name](optim.lr_scheduler, optimizer)

    def rates(optimizer, schedule, steps):
        found = []
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            group = optimizer.param_groups[0]
            found.append((group["lr"], group["momentum"], *schedule.get_last_lr()))
        return found

    optimizer, schedule = make()
    rates(optimizer, schedule, 3)
    state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    if how == "saved":
        st.save(state, tmp_path / "state.stratal")
        state = st.load(tmp_path / "state.stratal")
    else:
        state = copy.deepcopy(state) if how == "copied" else json.loads(json.dumps(state))
    wanted = rates(optimizer, schedule, 6)
    optimizer, schedule = make()
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    assert rates(optimizer, schedule, 6) == wanted
