"""Compiled functions whose tensors come to share memory, or to be one, between calls: drawn programs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import stratal as st
from stratal import nn, optim

NAMES = ("a", "b", "c")


class Attributes:
    """Tensors in attributes."""

    def __init__(self) -> None:
        for name in NAMES:
            self.put(name, st.ones(3))

    def get(self, name: str) -> Any:
        return getattr(self, name)

    def put(self, name: str, value: Any) -> None:
        setattr(self, name, value)


class Items(Attributes):
    """Tensors in a dict."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        super().__init__()

    def get(self, name: str) -> Any:
        return self.items[name]

    def put(self, name: str, value: Any) -> None:
        self.items[name] = value


class Buffers(nn.Module, Attributes):
    """Tensors in buffers of a module."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        for name in NAMES:
            self.register_buffer(name, st.ones(3))


class Cells(Attributes):
    """Tensors in variables of a closure."""

    def __init__(self) -> None:
        a = b = c = st.ones(3)

        def get(name: str) -> Any:
            return a if name == "a" else b if name == "b" else c

        def put(name: str, value: Any) -> None:
            nonlocal a, b, c
            if name == "a":
                a = value
            elif name == "b":
                b = value
            else:
                c = value

        self.get, self.put = get, put  # type: ignore[method-assign]
        super().__init__()


HOLDERS = {"attributes": Attributes, "items": Items, "buffers": Buffers, "variables": Cells}
Step = Callable[[Any, Any], Any]
LINKS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t, "detach": lambda t: t.detach(), "view": lambda t: t.view(3),
    "flip": lambda t: t.flip(0), "slice": lambda t: t[:], "copy": lambda t: t.clone(),
    "turned": lambda t: t.reshape(3, 1).T.reshape(3),
}  # fmt: skip


def step_of(draw: random.Random) -> Step:
    """Return something that a function does with tensors of a holder and an argument."""
    one, other = draw.choice(NAMES), draw.choice(NAMES)
    link, number = draw.choice([*LINKS.values()]), draw.choice((0.5, 2.0, 3.0))
    kinds: list[Step] = [
        lambda h, x: h.get(one).add_(number),
        lambda h, x: h.get(one).mul_(x),
        lambda h, x: h.get(one)[1:].add_(1),
        lambda h, x: x.add_(h.get(one)),
        lambda h, x: h.put(one, h.get(other) * number),
        lambda h, x: h.put(one, st.full((3,), number)),
        lambda h, x: h.put(one, link(h.get(other))),
        lambda h, x: h.put(one, link(x)),
        lambda h, x: h.get(one) + h.get(other),
    ]
    return draw.choice(kinds)


def between_of(draw: random.Random) -> Step:
    """Return something that happens between calls."""
    one, other, link = draw.choice(NAMES), draw.choice(NAMES), draw.choice([*LINKS.values()])
    kinds: list[Step] = [
        lambda h, x: None,
        lambda h, x: h.put(one, link(h.get(other))),
        lambda h, x: h.put(one, st.full((3,), 2.0)),
        lambda h, x: h.put(one, link(x)),
        lambda h, x: h.get(one).add_(1),
    ]
    return draw.choice(kinds)


def ran(seed: int, kind: str, compiled: bool) -> list[Any]:
    draw = random.Random(seed)
    steps = [step_of(draw) for _ in range(draw.randint(2, 4))]
    shown = [draw.choice(NAMES) for _ in range(2)]
    passed = draw.choice((*NAMES, None, None))
    holder = HOLDERS[kind]()
    held = holder.get("a") * 2

    def function(x: Any) -> Any:
        for step in steps:
            step(holder, x)
        return holder.get(shown[0]) * 1, holder.get(shown[1])

    run = st.compile(function, audit=False) if compiled else function
    found = []
    for k in range(9):
        between = between_of(draw) if k % 2 else between_of(random.Random(0))
        x = st.full((3,), 1.0 + k) if passed is None or k % 3 else holder.get(passed)
        between(holder, x if k % 4 else held)
        results = run(x)
        found.append([t.tolist() for t in (*results, x, held, *map(holder.get, NAMES))])
        found.append([results[1] is holder.get(name) for name in NAMES])
    return found


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("seed", range(40))
def test_tensors_that_come_to_share_memory(kind: str, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ran(seed, kind, True) == ran(seed, kind, False)


# -- gradients -----------------------------------------------------------------------------------------------
def loss_of(a: Any, b: Any, x: Any) -> Any:
    return (a * x + b * b * 0.5).sum()


def swap(a: Any, b: Any) -> None:
    a.grad, b.grad = b.grad, a.grad


def assign(a: Any, b: Any) -> None:
    b.grad = a.grad


def learned(a: Any, b: Any, x: Any, opt: Any) -> Any:
    loss_of(a, b, x).backward()
    opt.step()
    return a.sum()


INSIDE: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "read": lambda a, b, x, opt: [a.grad, b.grad],
    "backward": lambda a, b, x, opt: (loss_of(a, b, x).backward(), a.grad)[1],
    "step": learned,
    "zeros": lambda a, b, x, opt: (learned(a, b, x, opt), opt.zero_grad(set_to_none=False))[0],
    "none": lambda a, b, x, opt: (opt.zero_grad(), loss_of(a, b, x).backward(), opt.step(), a.grad)[3],
    "swap": lambda a, b, x, opt: (loss_of(a, b, x).backward(), swap(a, b), a.grad.sum())[2],
    "assign": lambda a, b, x, opt: (loss_of(a, b, x).backward(), assign(a, b), b.grad.mul_(2.0), a.grad)[3],
    "scale": lambda a, b, x, opt: (a.grad.mul_(x), b.grad)[1] if a.grad is not None else None,
    "take": lambda a, b, x, opt: (old := a.grad, opt.zero_grad(), old)[2],
    "clip": lambda a, b, x, opt: (learned(a, b, x, opt), nn.utils.clip_grad_norm_([a, b], 1.0))[1],
}  # fmt: skip


def flat(a: Any, b: Any, row: int) -> None:
    whole = st.zeros(2, 3)
    a.grad, b.grad = whole[row], whole[1 - row]


BETWEEN: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda a, b: None,
    "none": lambda a, b: setattr(a, "grad", None),
    "other": lambda a, b: setattr(a, "grad", st.full((3,), 2.0)),
    "shared": lambda a, b: (setattr(a, "grad", st.ones(3)), setattr(b, "grad", a.grad)),
    "swap": swap,
    "views": lambda a, b: flat(a, b, 0),
    "other views": lambda a, b: flat(a, b, 1),
    "overlap": lambda a, b: (setattr(a, "grad", st.ones(3)), setattr(b, "grad", a.grad.flip(0).detach()[:])),
    "scaled": lambda a, b: a.grad.mul_(0.5) if a.grad is not None else None,
}


@pytest.mark.sampled(13)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("seed", range(12))
def test_gradients_that_are_exchanged_between_calls(inside: str, seed: int) -> None:
    def ran(compiled: bool) -> list[Any]:
        draw = random.Random(seed)
        a, b = (nn.Parameter(st.tensor([float(k), 2.0, 3.0])) for k in (1, 4))
        opt = optim.SGD([a, b], lr=0.1, momentum=draw.choice((0.0, 0.9)))
        act = INSIDE[inside]
        run = (lambda f: st.compile(f, audit=False) if compiled else f)(lambda x: act(a, b, x, opt))
        found = []
        for k in range(9):
            BETWEEN[draw.choice([*BETWEEN])](a, b)
            result = run(st.full((3,), 1.0 + k % 3))
            results = result if isinstance(result, (list, tuple)) else [result]
            shown = [*results, a, b, a.grad, b.grad]
            found.append([None if t is None else t.detach().tolist() for t in shown])
            found.append([t is g for t in results for g in (a.grad, b.grad) if t is not None])
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _close(ran(True), ran(False))


def _close(x: Any, y: Any) -> bool:
    if isinstance(x, list):
        return len(x) == len(y) and all(map(_close, x, y))
    return x == y or (isinstance(x, float) and x == pytest.approx(y, rel=1e-5, abs=1e-7))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_audits_find_no_difference_in_gradients_that_are_read(set_to_none: bool) -> None:
    net = nn.Linear(2, 1, bias=False)
    grads = st.compile(lambda: [p.grad for p in net.parameters()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(8):
            net(st.full((1, 2), float(k))).sum().backward()
            assert grads()[0].tolist() == [[float(k), float(k)]]
            net.zero_grad(set_to_none=set_to_none)


def test_audits_find_no_difference_in_results_that_are_views_of_several_tensors() -> None:
    g = st.ones(2, 3)
    h = g[...]
    both = st.compile(lambda x: [x.T, g[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(6):
            assert both(st.zeros(2, 3) if k % 2 else h)[1].tolist() == [1.0] * 3
