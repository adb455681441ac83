"""Draw a training program: its source text, a function of the library."""

from __future__ import annotations

import importlib.util
import random

from programs.pool import Program
from programs.training.draft import STEPS, Draft
from programs.training.habits import HABITS
from programs.training.layers import RANDOM, STATISTICS, WRAPPERS, Shape, network
from programs.training.losses import LOSSES
from programs.training.optimisers import BY_SIGN, OPTIMISERS, OURS, options

_HAS_TORCH = importlib.util.find_spec("torch") is not None
_SHAPES: tuple[Shape, ...] = (
    (3,), (5,), (7,), (12,), (2, 9), (3, 11), (1, 7, 7), (2, 8, 5), (3, 6, 6), (4, 5, "steps"), (5, 6, "steps"),
    (11, 4, "tokens"), (7, 6, "tokens"), (1, 4, 4, 4), (2, 3, 5, 4),
)  # fmt: skip
_HEAD = """import copy
import types
import numpy as np

def program(lib, compiled):
    nn, optim, F = lib.nn, lib.optim, lib.nn.functional
    chance = np.random.default_rng({seed})
    def data(*shape): return lib.tensor(chance.standard_normal(shape))
    def start(module):
        with lib.no_grad():
            for p in module.parameters(): p.copy_(data(*p.shape) * 0.4)"""
FORMS = ("function", "function", "trainer", "arguments")


def drawn(seed: int, k: int) -> Program:
    """Draw program `k`."""
    rng = random.Random(f"{seed}:{k}")
    shape = rng.choice(_SHAPES)
    draft = Draft(batch=rng.choice([2, 3, 4, 5, 6]), outputs=rng.choice([2, 3, 4, 5]))
    draft.layers, _, kinds = network(rng, shape, draft.outputs)
    names = rng.sample(list(HABITS), rng.choice([0, 1, 1, 2, 2, 3, 4, 6]))
    for name in sorted(names, key=list(HABITS).index):
        HABITS[name](draft, rng)
    norm = any(kind in STATISTICS for kind in kinds) or any("Multihead" in t or "Encoder" in t for t in draft.layers)
    optimiser = rng.choice([o for o in OPTIMISERS if not (norm and o in BY_SIGN)])
    loss = rng.choice(list(LOSSES))
    draft.torch = draft.torch and _HAS_TORCH and optimiser not in OURS and not any(kind in RANDOM for kind in kinds)
    form = rng.choice(FORMS if not draft.rebound else FORMS[:1])
    text = "\n".join(
        [_HEAD.format(seed=rng.randrange(1000)), *_indented(_body(draft, shape, optimiser, options(rng, optimiser), loss, form))]
    )
    oracles = ("torch",) if draft.torch and k % 3 else ("eager", "torch") if draft.torch else ("eager",)
    ways = (*oracles, "lazy", "compiled")
    label = [*kinds, loss, optimiser, *(n for n in HABITS if n in names), form]
    return Program(f"{seed}:{k} " + ", ".join(label), text, ways)


def _body(d: Draft, shape: Shape, optimiser: str, chosen: str, loss: str, form: str) -> list[str]:
    layers = ", ".join(d.layers)
    lines = [line for name, body in WRAPPERS.items() if f"{name}(" in layers for line in _wrapper(name, body)]
    lines += [f"net = nn.Sequential({layers}).double()", "start(net)"]
    made = f"opt = optim.{optimiser}({d.parameters}{chosen})"
    uses_opt = [line for line in d.lines["setup"] if "(opt" in line]  # schedules and the like
    lines += [*(line for line in d.lines["setup"] if line not in uses_opt), made, *uses_opt]
    lines += _step(d, loss, form)
    call = {"trainer": "trainer.step", "arguments": "step"}.get(form, "step")
    given = ["x", "t", *d.extra.values(), *(["net", "opt"] if form == "arguments" else [])]
    n = "x.shape[0]"
    target = LOSSES[loss][0].format(n=n, c=d.outputs)
    size = f"({d.batch}, {d.batch}, {d.batch + 1}, {d.batch + 3}, {d.batch}, {max(2, d.batch - 1)}, {d.batch + 1}, 2, {d.batch})[k]" if d.sizes else d.batch
    lines += [f"for k in range({STEPS}):", f"    x = {_batch(shape, size)}", f"    t = {target}"]
    lines += _indented([*d.lines["ahead"], f"loss = {call}({', '.join(given)})", *d.lines["behind"]])
    seen = {"loss": "loss", "net": "net", "opt": "opt", **d.seen}
    lines.append(f"    yield facts({', '.join(f'{k}={v}' for k, v in seen.items())})")
    return lines


def _step(d: Draft, loss: str, form: str) -> list[str]:
    signature = ["x", "t", *d.extra]
    terms = " + ".join([LOSSES[loss][1], *d.lines["penalties"]])
    body = [
        *d.lines["first"],
        *d.zero,
        f"y = {d.forward}",
        f"loss = {terms}",
        *(d.lines.get("backward") or ["loss.backward()"]),
        *d.lines["between"],
        *d.update,
        *d.lines["after"],
        f"return {', '.join(d.returns)}",
    ]
    if form == "trainer":
        body = ["self.calls += 1", *body]
        return ["class Trainer:", "    calls = 0", *_indented(["@compiled", f"def step(self, {', '.join(signature)}):", *_indented(body)]),
                "trainer = Trainer()"]  # fmt: skip
    if form == "arguments":
        signature += ["net", "opt"]
    return ["@compiled", f"def step({', '.join(signature)}):", *_indented(body)]


def _batch(shape: Shape, size: int | str) -> str:
    if shape[-1] == "tokens":
        return f"lib.tensor(chance.integers(0, {shape[0]}, ({size}, {shape[1]})))"
    return f"data({', '.join(str(n) for n in (size, *shape) if n != 'steps')})"


def _wrapper(name: str, body: list[str]) -> list[str]:
    return [f"class {name}(nn.Module):", "    def __init__(self, inner):", "        super().__init__()", "        self.inner = inner",
            *_indented(body)]  # fmt: skip


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
