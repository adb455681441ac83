"""Random training programs around an optimizer, written once for Stratal and PyTorch.

A program is drawn from a seed: an optimizer with options, groups, a schedule or none, and what happens at
each step. `run` gives what the parameters, the state dict and the rates are after every step. It is run
compiled, lazily, eagerly and by PyTorch; `python tests/support/optimizer_programs.py 0 200` runs those seeds.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np

STEPS = 9
SHAPES = {"a": (3, 2), "b": (4,), "c": (2, 3), "tied": (3,), "frozen": (2,), "unused": (3,), "late": (2, 2)}

_COMMON = {"maximize": [False, False, True], "foreach": [None, None, True, False]}
_BETAS = {"betas": [(0.9, 0.999), (0.8, 0.95)], "eps": [1e-8, 1e-3]}
_DECAY = {"weight_decay": [0.0, 0.05]}
_DECOUPLED = {"decoupled_weight_decay": [False, True]}
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "SGD": {
        "momentum": [0.0, 0.9], "dampening": [0.0, 0.3], "nesterov": [False, True], **_DECAY, **_COMMON,
    },
    "Adam": {"amsgrad": [False, True], **_BETAS, **_DECAY, **_COMMON, **_DECOUPLED},
    "AdamW": {"amsgrad": [False, True], **_BETAS, **_DECAY, **_COMMON},
    "NAdam": {"momentum_decay": [0.004, 0.05], **_BETAS, **_DECAY, **_COMMON, **_DECOUPLED},
    "RAdam": {**_BETAS, **_DECAY, **_COMMON, **_DECOUPLED},
    "Adamax": {**_BETAS, **_DECAY, **_COMMON},
    "Adagrad": {"lr_decay": [0.0, 0.1], "initial_accumulator_value": [0.0, 0.3], **_DECAY, **_COMMON},
    "RMSprop": {
        "alpha": [0.99, 0.8], "momentum": [0.0, 0.8], "centered": [False, True], "eps": [1e-8, 1e-3],
        **_DECAY, **_COMMON,
    },
    "Adadelta": {"rho": [0.9, 0.5], **_DECAY, **_COMMON},
    "ASGD": {"lambd": [1e-4, 0.1], "alpha": [0.75, 0.5], "t0": [1e6, 2.0], **_DECAY, **_COMMON},
    "Rprop": {"etas": [(0.5, 1.2), (0.3, 1.5)], "step_sizes": [(1e-6, 50.0), (1e-2, 0.1)], **_COMMON},
    "Adafactor": {"beta2_decay": [-0.8, -0.5], "d": [1.0, 2.0], **_DECAY, "maximize": [False, True]},
    "Lion": {"betas": [(0.9, 0.99)], **_DECAY},
    "LARS": {"momentum": [0.0, 0.9], "nesterov": [False, True], **_DECAY},
    "LAMB": {"betas": [(0.9, 0.99)], **_DECAY},
}  # fmt: skip
OURS = ("Lion", "LARS", "LAMB")

SCHEDULES = {
    "StepLR": lambda s, o: s.StepLR(o, 2, gamma=0.5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 5),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, total_iters=4),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=30, cycle_momentum=False),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [1, 4]),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.5, 2), s.CosineAnnealingWarmRestarts(o, 3)], [3]
    ),
    "WarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 12, power=2.0),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
    "LambdaLR": lambda s, o: s.LambdaLR(o, _warm),
}
_EVENTS = (
    "reload", "deepcopy", "pickle", "add group", "freeze", "unfreeze", "lr", "decay", "eps", "betas", "look",
    "reset",
)  # fmt: skip


def _warm(epoch: int) -> float:
    return min(1.0, (epoch + 1) / 4)


@dataclasses.dataclass
class Program:
    """What a program does; `events` lists for each step what happens before it."""

    optimizer: str
    options: dict[str, Any]
    groups: list[list[str]]
    rates: list[float]
    schedule: str | None
    schedule_first: bool  # the schedule moves once before the first step
    double: bool  # after the optimizer is made, before its first step
    unit: str  # what is compiled: the "whole" step, the "update" alone, or "two" updates a call
    closure: bool
    scaler: bool
    clip: bool
    set_to_none: list[bool]
    active: list[list[str]]
    overflow: list[bool]
    events: list[list[str]]


def draw(seed: int, optimizer: str | None = None) -> Program:
    """Return the program of a seed."""
    r = random.Random(seed)
    name = optimizer or r.choice(list(OPTIONS))
    options = {k: r.choice(v) for k, v in OPTIONS[name].items()}
    if options.get("nesterov") and (not options["momentum"] or options.get("dampening")):
        options["nesterov"] = False
    names = [n for n in SHAPES if n != "late"]
    r.shuffle(names)
    cut = r.randint(1, len(names) - 1)
    groups = r.choice([[names], [names[:cut], names[cut:]]])
    others = [["b"], ["c"], ["b", "c"], ["tied"]]
    turns = [r.choice([[], ["a"]]) + r.choice(others) for _ in range(r.choice((2, 3)))]
    always = ["a", "b", "c", "tied"]
    kind = r.choice(["always", "turns", "later", "random"])
    active = [
        {"always": always, "turns": turns[k % len(turns)], "later": always if k > 3 else ["a", "tied"],
         "random": r.sample(always, r.randint(1, 4))}[kind]
        for k in range(STEPS)
    ]  # fmt: skip
    unit = r.choice(["whole", "whole", "update", "two"])
    double = r.random() < 0.3 and name != "Adagrad"  # PyTorch keeps the float32 state it was made with
    scaler = r.random() < 0.2
    events = [[e for e in _EVENTS if r.random() < 0.06] for _ in range(STEPS)]
    return Program(
        optimizer=name, options=options, groups=groups, rates=[r.choice([0.01, 0.05]) for _ in groups],
        schedule=r.choice([None, *SCHEDULES]), schedule_first=r.random() < 0.3,
        double=double, unit=unit, closure=unit == "whole" and r.random() < 0.2 and not scaler,
        scaler=scaler, clip=r.random() < 0.3, set_to_none=[r.random() < 0.8 for _ in range(STEPS)],
        active=active, overflow=[scaler and r.random() < 0.3 for _ in range(STEPS)], events=events,
    )  # fmt: skip


class Run:
    """A program under way in one library and mode."""

    def __init__(self, program: Program, lib: Any, mode: str) -> None:
        self.program, self.lib, self.mode = program, lib, mode
        rng = np.random.default_rng(3)
        self.net = lib.nn.Module()
        for name, shape in SHAPES.items():
            p = lib.nn.Parameter(lib.tensor(rng.uniform(0.5, 1.5, shape).astype(np.float32)))
            setattr(self.net, name, p)
        self.net.frozen.requires_grad_(False)
        self.dtype = np.float32
        self.added = False
        self.optimizer = self.make_optimizer()
        self.scaler = lib.amp.GradScaler("cpu", init_scale=8.0, enabled=program.scaler)
        self.schedule = self.make_schedule(self.optimizer)
        if program.double:
            self.net.double()
            self.dtype = np.float64
        self.build()

    def make_optimizer(self) -> Any:
        groups = [
            {"params": [getattr(self.net, n) for n in names], "lr": lr}
            for names, lr in zip(self.program.groups, self.program.rates, strict=True)
        ]
        made = getattr(self.lib.optim, self.program.optimizer)(groups, lr=0.02, **self.program.options)
        if self.added:
            made.add_param_group({"params": [self.net.late], "lr": 0.03})
        return made

    def make_schedule(self, optimizer: Any) -> Any:
        if self.program.schedule is None:
            return None
        return SCHEDULES[self.program.schedule](self.lib.optim.lr_scheduler, optimizer)

    def build(self) -> None:
        """Make the functions of a step, and compile what the program compiles."""
        net, optimizer, scaler, program = self.net, self.optimizer, self.scaler, self.program
        clip_ = self.lib.nn.utils.clip_grad_norm_

        def loss_of(active: str, x: Any) -> Any:
            parts = []
            for name in active.split():
                p = getattr(net, name)
                parts.append(((p * x[: p.shape[0]].reshape(-1, *[1] * (p.ndim - 1)) - 2.0) ** 2).sum())
                if name == "tied":
                    parts.append((p * x[:3]).sum())
            return sum(parts)

        def backward(active: str, x: Any, set_to_none: bool) -> Any:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = loss_of(active, x)
            scaler.scale(loss).backward()
            return loss

        def update() -> None:
            if program.clip:
                scaler.unscale_(optimizer)
                clip_([p for g in optimizer.param_groups for p in g["params"]], 1.5)
            scaler.step(optimizer)
            scaler.update()

        def whole(active: str, x: Any, set_to_none: bool) -> Any:
            if program.closure:
                return optimizer.step(lambda: backward(active, x, set_to_none))
            loss = backward(active, x, set_to_none)
            update()
            return loss

        def two(active: str, x: Any, set_to_none: bool) -> Any:
            whole(active.split()[-1], x, set_to_none)
            return whole(active, x, set_to_none)

        if self.mode == "compiled":
            import stratal as st

            whole, two, update = st.compile(whole), st.compile(two), st.compile(update)
        self.whole, self.two, self.backward, self.update = whole, two, backward, update

    def step(self, k: int) -> None:
        """Take step k."""
        program = self.program
        for event in program.events[k]:
            self.happen(event)
        x = np.random.default_rng(100 + k).uniform(0.5, 1.5, 6).astype(self.dtype)
        x = self.lib.tensor(x * np.inf if program.overflow[k] else x)
        active = " ".join(n for n in program.active[k] if getattr(self.net, n).requires_grad)
        if self.added:
            active += " late"
        if active.strip():
            with self.lib.eager() if self.mode == "eager" else nullcontext():
                if program.unit == "update":
                    self.backward(active.strip(), x, program.set_to_none[k])
                    self.update()
                else:
                    (self.two if program.unit == "two" else self.whole)(
                        active.strip(), x, program.set_to_none[k]
                    )
        if self.schedule is not None:
            self.schedule.step()

    def happen(self, event: str) -> None:
        """Let one thing happen between steps."""
        groups = self.optimizer.param_groups
        if event == "reload":
            saved, schedule = self.optimizer.state_dict(), self.schedule and self.schedule.state_dict()
            self.optimizer = self.make_optimizer()
            self.schedule = self.make_schedule(self.optimizer)
            if self.schedule is not None:
                self.schedule.load_state_dict(schedule)
            self.optimizer.load_state_dict(saved)
        elif event in ("deepcopy", "pickle"):
            self.optimizer.zero_grad()
            parts = self.net, self.optimizer, self.schedule
            copied = copy.deepcopy(parts) if event == "deepcopy" else _unpickled(parts)
            self.net, self.optimizer, self.schedule = copied
        elif event == "add group" and not self.added and self.schedule is None:
            self.optimizer.add_param_group({"params": [self.net.late], "lr": 0.03})
            self.added = True
        elif event in ("freeze", "unfreeze"):
            self.net.b.requires_grad_(event == "unfreeze")
            if event == "freeze":
                self.net.b.grad = None
        elif event == "lr":
            groups[-1]["lr"] *= 0.5
        elif event == "decay" and "weight_decay" in groups[0]:
            groups[0]["weight_decay"] = 0.02 if groups[0]["weight_decay"] != 0.02 else 0.0
        elif event == "eps" and isinstance(groups[0].get("eps"), float):
            groups[0]["eps"] = 1e-4
        elif event == "betas" and "betas" in groups[0]:
            groups[-1]["betas"] = (0.7, 0.9)
        elif event == "look":
            for state in self.optimizer.state.values():
                for value in state.values():
                    float(value.sum())
        elif event == "reset":
            self.optimizer.state.pop(self.net.a, None)
            if self.program.optimizer == "Adagrad":
                self.optimizer = self.make_optimizer()
                self.schedule = self.make_schedule(self.optimizer)
        self.build()

    def seen(self) -> dict[str, Any]:
        """Return what can be seen of parameters, state and rates."""
        saved = self.optimizer.state_dict()
        numbers = [n for names in self.program.groups for n in names] + ["late"]
        return {
            "params": {n: _array(getattr(self.net, n)) for n in SHAPES},
            "state": {
                numbers[k]: {n: _array(v) for n, v in entries.items() if v is not None}
                for k, entries in sorted(saved["state"].items())
            },
            "rates": [(g["lr"], g.get("weight_decay"), g.get("betas")) for g in saved["param_groups"]],
        }


def _unpickled(parts: Any) -> Any:
    return pickle.loads(pickle.dumps(parts))  # noqa: S301 (our own)


def _array(value: Any) -> np.ndarray:
    return np.array(value.detach().numpy())


def run(program: Program, mode: str) -> list[dict[str, Any]]:
    """Return what is seen after each step, by "torch", or by Stratal "compiled", "lazy" or "eager"."""
    if mode == "torch":
        import torch as lib
    else:
        import stratal as lib
    lib.manual_seed(0)
    going = Run(program, lib, mode)
    if program.schedule_first and going.schedule is not None:
        going.schedule.step()
    seen = [going.seen()]
    for k in range(STEPS):
        going.step(k)
        seen.append(going.seen())
    return seen


_SCALARS = ("eta", "mu", "mu_product")  # PyTorch keeps them in float32, we in the parameter's float64


def difference(program: Program, mine: list[Any], other: list[Any], torch: bool) -> str | None:
    """Return the first difference between two runs of a program; None where there is none."""
    for k, (a, b) in enumerate(zip(mine, other, strict=True)):
        at = f"after step {k}"
        if a["rates"] != b["rates"]:
            return f"{at}: rates {a['rates']} != {b['rates']}"
        if program.scaler and torch:  # a buffer of zeros is what no buffer is
            for side, twin in ((a, b), (b, a)):
                for n, entries in twin["state"].items():
                    if set(entries) == {"momentum_buffer"} and n not in side["state"]:
                        side["state"][n] = {"momentum_buffer": np.zeros_like(entries["momentum_buffer"])}
        if set(a["state"]) != set(b["state"]):
            return f"{at}: state of {sorted(a['state'])} != {sorted(b['state'])}"
        pairs = [(f"{n}", a["params"][n], b["params"][n]) for n in SHAPES]
        for n in a["state"]:
            if set(a["state"][n]) != set(b["state"][n]):
                return f"{at}: state of {n}: {sorted(a['state'][n])} != {sorted(b['state'][n])}"
            pairs += [(f"{n}.{e}", v, b["state"][n][e]) for e, v in a["state"][n].items()]
        for n, v, w in pairs:
            exempt = torch and n.split(".")[-1] in _SCALARS
            if v.dtype != w.dtype and not exempt:
                return f"{at}: {n} is {v.dtype} != {w.dtype}"
            tolerance = (
                3e-5 if v.dtype == np.float32 or (torch and program.optimizer in ("NAdam", "ASGD")) else 1e-9
            )
            size = float(np.abs(w).max(initial=1e-3)) if np.isfinite(w).all() else 1.0
            if n.endswith(".step"):
                tolerance = 0.0
            if not np.allclose(v, w, rtol=tolerance, atol=tolerance * size, equal_nan=True):
                return f"{at}: {n} {v.ravel()[:4]} != {w.ravel()[:4]}"
    return None


def check(seed: int, modes: tuple[str, ...] = ("compiled", "lazy", "eager", "torch"), **given: Any) -> None:
    """Run the program of a seed in all modes; AssertionError where two differ."""
    program = draw(seed, **given)
    if program.optimizer in OURS:
        modes = tuple(m for m in modes if m != "torch")
    reference = run(program, modes[-1])
    for mode in modes[:-1]:
        found = difference(program, run(program, mode), copy.deepcopy(reference), modes[-1] == "torch")
        assert found is None, f"seed {seed}, {mode} against {modes[-1]}: {found}\n{program}"


if __name__ == "__main__":
    first, last = (int(a) for a in sys.argv[1:3])
    wrong = 0
    for seed in range(first, last):
        try:
            check(seed, **({"optimizer": sys.argv[3]} if len(sys.argv) > 3 else {}))
        except Exception as error:
            wrong += 1
            print(f"{seed}: {type(error).__name__}: {error}".replace("\n", "\n    "), flush=True)
    print(f"{wrong} of {last - first} programs differ")
