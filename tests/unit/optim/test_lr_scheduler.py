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
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, [lambda t: 0.9, lambda t: 1 - t / 100]),
    "polynomial": lambda s, o: s.PolynomialLR(o, total_iters=9, power=2.0),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 4, eta_min=0.001),
    "longer restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, [0.1, 0.2], 4, 3, cycle_momentum=False),
    "cyclic halves": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2"),
    "cyclic gamma": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "cyclic function": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, scale_fn=lambda c: 1 / c),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=26),
    "one cycle linear": lambda s, o: s.OneCycleLR(
        o, [0.5, 0.1], epochs=2, steps_per_epoch=13, anneal_strategy="linear", three_phase=True
    ),
    "chain": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
    "sequence of restarts": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 3), s.CosineAnnealingWarmRestarts(o, 4)], [3]
    ),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 10), s.ExponentialLR(o, 0.5)], [4, 12]
    ),
}


def _rates(scheduler_of, library_optim, library_scheduler, parameters, steps=25):
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, (0.1, 0.03), strict=True)]
    optimizer = library_optim.SGD(groups, lr=0.2, momentum=0.5)
    scheduler = scheduler_of(library_scheduler, optimizer)
    seen = [[(g["lr"], g["momentum"]) for g in optimizer.param_groups]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        seen.append([(g["lr"], g["momentum"]) for g in optimizer.param_groups])
        assert scheduler.get_last_lr() == [lr for lr, _ in seen[-1]]
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


@pytest.mark.torch
@pytest.mark.parametrize(
    "options", [{}, {"anneal_strategy": "linear", "anneal_epochs": 4}, {"anneal_epochs": 0}]
)
def test_the_schedule_of_weight_averaging_has_pytorchs_values(options):
    torch = pytest.importorskip("torch")
    from torch.optim.swa_utils import SWALR

    theirs = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    expected = _rates(lambda _, o: SWALR(o, [0.05, 0.07], **options), torch.optim, None, theirs)
    got = _rates(lambda _, o: optim.swa_utils.SWALR(o, [0.05, 0.07], **options), optim, None, _ours())
    assert got == expected


@pytest.mark.torch
def test_warm_restarts_jump_to_fractions_of_epochs():
    torch = pytest.importorskip("torch")

    def run(library_optim, schedulers, parameters):
        optimizer = library_optim.SGD(parameters, lr=0.1)
        scheduler = schedulers.CosineAnnealingWarmRestarts(optimizer, 3, T_mult=2)
        seen = []
        for epoch in (0.5, 2.5, 3.25, 20.0, 1.0):
            scheduler.step(epoch)
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    theirs = run(torch.optim, torch.optim.lr_scheduler, [torch.nn.Parameter(torch.ones(2))])
    assert run(optim, lr_scheduler, _ours()) == pytest.approx(theirs, rel=1e-15)


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"cyclic function"}))
def test_every_schedule_resumes_from_its_state_dict(name):
    def build():
        groups = [{"params": [p], "lr": lr} for p, lr in zip(_ours(), (0.1, 0.03), strict=True)]
        optimizer = optim.SGD(groups, lr=0.2, momentum=0.5)
        return optimizer, SCHEDULES[name](lr_scheduler, optimizer)

    (optimizer, scheduler), (other_optimizer, other) = build(), build()
    for _ in range(5):
        scheduler.step()
    other_optimizer.load_state_dict(optimizer.state_dict())
    other.load_state_dict(scheduler.state_dict())
    for _ in range(15):
        scheduler.step()
        other.step()
        assert other.get_last_lr() == scheduler.get_last_lr()


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
    with pytest.raises(StratalError, match="needs no metric"):
        lr_scheduler.ChainedScheduler([lr_scheduler.ReduceLROnPlateau(optimizer)], optimizer)
    with pytest.raises(StratalError, match="total_steps"):
        lr_scheduler.OneCycleLR(optimizer, 0.1)
    with pytest.raises(StratalError, match="neither momentum nor betas"):
        lr_scheduler.OneCycleLR(optim.Adagrad(_ours()), 0.1, 10)
    with pytest.raises(StratalError, match="one value per group"):
        lr_scheduler.CyclicLR(optimizer, [0.1, 0.2], 0.3)
    with pytest.raises(StratalError, match="T_0"):
        lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 0)
    cycle = lr_scheduler.OneCycleLR(optim.SGD(_ours(), lr=0.1), 0.1, 2, cycle_momentum=False)
    cycle.step()
    cycle.step()
    with pytest.raises(StratalError, match="more steps"):
        cycle.step()


@pytest.mark.parametrize(
    "make", [lambda p: optim.SGD(p, momentum=0.5), optim.AdamW], ids=["momentum", "betas"]
)
def test_a_cycle_of_rates_and_momenta_recompiles_at_most_once(make):
    weight = nn.Parameter(np.zeros(3, np.float32))
    optimizer = make([weight])
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    @st.compile
    def step():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    for _ in range(19):
        step()
        scheduler.step()
    assert step.captures <= 2


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
