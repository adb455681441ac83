"""Optimisers with options; each row draws the text behind the parameters."""

from __future__ import annotations

import random
import re

_DECAY = ("", "", ", weight_decay=0.1")
_UP = ("", "", "", ", maximize=True")

OPTIMISERS: dict[str, list[tuple[str, ...]]] = {
    "SGD": [(", lr=0.05",), ("", ", momentum=0.9", ", momentum=0.9, nesterov=True", ", momentum=0.8, dampening=0.3"), _DECAY, _UP],
    "Adam": [(", lr=0.02",), ("", ", betas=(0.7, 0.9)", ", eps=1e-3"), ("", ", amsgrad=True"), _DECAY, _UP],
    "AdamW": [(", lr=0.02",), ("", ", betas=(0.7, 0.9)"), ("", ", amsgrad=True"), (*_DECAY, ", weight_decay=0"), _UP],
    "NAdam": [(", lr=0.02",), ("", ", momentum_decay=0.01"), ("", ", decoupled_weight_decay=True"), _DECAY, _UP],
    "RAdam": [(", lr=0.02",), ("", ", betas=(0.5, 0.6)"), ("", ", decoupled_weight_decay=True"), _DECAY, _UP],
    "Adamax": [(", lr=0.02",), ("", ", betas=(0.7, 0.9)"), _DECAY, _UP],
    "Adagrad": [(", lr=0.05, eps=1e-6",), ("", ", lr_decay=0.1"), ("", ", initial_accumulator_value=0.5"), _DECAY, _UP],
    "Adadelta": [("", ", lr=0.5"), ("", ", rho=0.5"), _DECAY, _UP],
    "RMSprop": [(", lr=0.01",), ("", ", alpha=0.7"), ("", ", momentum=0.5"), ("", ", centered=True"), _DECAY, _UP],
    "Rprop": [(", lr=0.01",), ("", ", etas=(0.4, 1.3)"), ("", ", step_sizes=(1e-3, 0.05)"), _UP],
    "ASGD": [(", lr=0.05",), ("", ", lambd=0.01"), ("", ", t0=3.0"), ("", ", alpha=0.5"), _DECAY, _UP],
    "Adafactor": [(", lr=0.05, eps=(1e-6, 1e-3)",), _DECAY, _UP],
    "Lion": [(", lr=0.01",), _DECAY],
    "LAMB": [(", lr=0.01",), _DECAY],
    "LARS": [(", lr=0.05",), ("", ", momentum=0.9"), _DECAY],
}  # fmt: skip
OURS = ("Lion", "LAMB", "LARS")  # PyTorch has none
BY_SIGN = ("Rprop", "Lion")  # where a gradient is 0 but for rounding, its sign is anything
SCHEDULES = (
    "StepLR(opt, 2, 0.5)", "MultiStepLR(opt, [2, 5])", "ExponentialLR(opt, 0.8)", "LambdaLR(opt, lambda k: 1 / (1 + k))",
    "CosineAnnealingLR(opt, 5)", "LinearLR(opt, total_iters=4)", "ConstantLR(opt, total_iters=3)", "PolynomialLR(opt, 6, 2.0)",
    "CosineAnnealingWarmRestarts(opt, 3)", "MultiplicativeLR(opt, lambda k: 0.9)", "CyclicLR(opt, 0.01, 0.1, 2, cycle_momentum=False)",
    "OneCycleLR(opt, 0.1, total_steps=40, cycle_momentum=False)",
    "SequentialLR(opt, [optim.lr_scheduler.ConstantLR(opt, 0.5, 2), optim.lr_scheduler.ExponentialLR(opt, 0.7)], [3])",
    "ChainedScheduler([optim.lr_scheduler.ConstantLR(opt, 0.5, 2), optim.lr_scheduler.ExponentialLR(opt, 0.7)])",
)  # fmt: skip


def options(rng: random.Random, name: str) -> str:
    """Draw options of an optimiser, as text behind its parameters. Upwards it goes in small steps: where values grow
    without end, so do roundings.
    """
    text = "".join(rng.choice(choices) for choices in OPTIMISERS[name])
    return re.sub(r" lr=([\d.]+)", lambda m: f" lr={float(m[1]) / 20}", text) if "maximize" in text else text
