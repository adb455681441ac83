"""Learning-rate schedules: PyTorch's values to the bit, and no recompilation."""

import math

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.optim import lr_scheduler

SCHEDULES = {
    "step": lambda s, o: s.StepLR(o, 3, gamma=0.5),
    "multi step": lambda s, o: s.MultiStepLR(o, [2, 5, 5, 9]),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.9),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, total_iters=4),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, T_max=7, eta_min=0.001),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.8, total_iters=6),
    "lambda": lambda s, o: s.LambdaLR(o, lambda epoch: 0.95**epoch),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 10), s.ExponentialLR(o, 0.5)], [4, 12]
    ),
}


def _rates(scheduler_of, library_optim, library_scheduler, parameters, steps=25):
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (0.1, 0.03), strict=True)]
    optimizer = library_optim.SGD(groups, lr=0.2)
    scheduler = scheduler_of(library_scheduler, optimizer)
    seen = [[g["lr"] for g in optimizer.param_groups]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        seen.append([g["lr"] for g in optimizer.param_groups])
        assert scheduler.get_last_lr() == seen[-1]
    return seen


def _ours():
    return [nn.Parameter(np.ones(2, np.float32)), nn.Parameter(np.ones(3, np.float32))]


@pytest.mark.torch
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_pytorchs_values_to_the_bit(name):
    torch = pytest.importorskip("torch")
    theirs = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    expected = _rates(SCHEDULES[name], torch.optim, torch.optim.lr_scheduler, theirs)
    assert _rates(SCHEDULES[name], optim, lr_scheduler, _ours()) == expected


@pytest.mark.torch
@pytest.mark.parametrize(
    "options", [{}, {"mode": "max", "threshold_mode": "abs"}, {"cooldown": 2, "min_lr": 0.02}]
)
def test_reduce_on_plateau_agrees_with_pytorch(options):
    torch = pytest.importorskip("torch")
    metrics = np.round(np.random.default_rng(0).random(40), 1)

    def run(library_optim, schedulers, parameters):
        optimizer = library_optim.SGD(parameters, lr=0.1)
        scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, **options)
        seen = []
        for value in metrics:
            scheduler.step(float(value))
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    theirs = run(torch.optim, torch.optim.lr_scheduler, [torch.nn.Parameter(torch.ones(2))])
    assert run(optim, lr_scheduler, _ours()) == theirs


def test_warm_up_then_cosine_has_the_stated_corners():
    optimizer = optim.SGD(_ours(), lr=0.1)
    scheduler = lr_scheduler.WarmupCosineLR(optimizer, warmup_steps=4, total_steps=14, min_lr=0.01)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(20):
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:5] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert rates[9] == pytest.approx(0.01 + 0.09 * (1 + math.cos(math.pi / 2)) / 2)
    assert rates[14:] == pytest.approx([0.01] * 7)


def test_a_schedule_resumes_from_its_state_dict():
    def build():
        optimizer = optim.SGD(_ours(), lr=0.1)
        return optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 10)

    optimizer, scheduler = build()
    for _ in range(4):
        scheduler.step()
    resumed_optimizer, resumed = build()
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    for _ in range(4):
        scheduler.step()
        resumed.step()
    assert resumed.get_last_lr() == scheduler.get_last_lr()


def test_an_impossible_schedule_is_refused():
    optimizer = optim.SGD(_ours(), lr=0.1)
    with pytest.raises(StratalError, match="start_factor"):
        lr_scheduler.LinearLR(optimizer, start_factor=0.0)
    with pytest.raises(StratalError, match="milestone"):
        lr_scheduler.SequentialLR(optimizer, [lr_scheduler.ExponentialLR(optimizer, 0.9)], [3])


def test_a_cosine_schedule_compiles_the_step_once_and_is_obeyed():
    weight = nn.Parameter(np.zeros(3, np.float32))
    optimizer = optim.SGD([weight], lr=0.1)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 50)

    @st.compile
    def step():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    expected = np.zeros(3, np.float32)
    for _ in range(40):
        expected -= np.float32(optimizer.param_groups[0]["lr"])
        step()
        scheduler.step()
    np.testing.assert_array_equal(weight.numpy(), expected)
    assert step.captures == 1
