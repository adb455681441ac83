"""Threads that share nothing, or only read what they share, compute what each would alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from waiting import joined

import stratal as st
from stratal import nn

THREADS = 4
SHARED = st.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
LAZY = SHARED * 3


def together(work: Callable[[int, int], None], turns: int) -> list[BaseException]:
    """Run `work(thread, turn)` in threads that take turns as often as can be, and return what they raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for turn in range(turns):
                work(number, turn)
        except BaseException as error:
            raised.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
        for thread in threads:
            thread.start()
        joined(*threads)
    finally:
        sys.setswitchinterval(before)
    return raised


class Arithmetic:
    def __call__(self, k: int, turn: int) -> None:
        assert (st.ones(3) * (k % 7) + turn % 3).sum().item() == 3 * (k % 7 + turn % 3)


class Writes:
    def __call__(self, k: int, turn: int) -> None:
        z = st.zeros(4)
        z[1:3] = turn % 5
        assert z.sum().item() == 2 * (turn % 5)


class ViewsOfCopies:
    def __call__(self, k: int, turn: int) -> None:
        x = SHARED * 1
        y = x[1:4]
        y += 1
        assert x.sum().item() == 18


class Reads:
    """What waits for its value when threads begin to read it."""

    def __call__(self, k: int, turn: int) -> None:
        apart = LAZY.detach()
        assert (LAZY * k + apart).sum().item() == 45 * k + 45
        assert SHARED.detach().numpy().sum() == 15


class GradientsOfShared:
    """Each thread differentiates its own loss with respect to a parameter that all read."""

    def __init__(self) -> None:
        self.weight = (SHARED * 2).requires_grad_()

    def __call__(self, k: int, turn: int) -> None:
        loss = (self.weight * self.weight * k).sum()
        (gradient,) = st.gradients(loss, [self.weight])
        assert gradient.tolist() == [4 * k * x for x in (1, 2, 3, 4, 5)]


class Training:
    """Own parameters; each step is seen once."""

    def __init__(self) -> None:
        self.weights = [st.tensor([0.0]).requires_grad_() for _ in range(THREADS)]
        self.optimizers = [st.optim.SGD([w], lr=1.0) for w in self.weights]

    def __call__(self, k: int, turn: int) -> None:
        self.optimizers[k].zero_grad()
        (-self.weights[k].sum()).backward()
        self.optimizers[k].step()
        if turn % 3 == 0:
            assert self.weights[k].item() == turn + 1


class Compiled:
    """Own parameters, one compiled step."""

    def __init__(self) -> None:
        self.weights = [st.tensor([0.0]) for _ in range(THREADS)]
        self.steps = [st.compile(self._step(w)) for w in self.weights]

    @staticmethod
    def _step(weight: st.Tensor) -> Callable[[], st.Tensor]:
        def step() -> st.Tensor:
            weight.add_(1)
            return weight * 2

        return step

    def __call__(self, k: int, turn: int) -> None:
        assert self.steps[k]().item() == 2 * (turn + 1)
        assert (self.weights[k] * 3).item() == 3 * (turn + 1)


class Draws:
    """The default generator gives no two threads one number."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, ...]] = []

    def __call__(self, k: int, turn: int) -> None:
        self.drawn.append(tuple(st.rand(4).tolist()))


class HandedOver:
    """A thread makes values, another goes on with them and writes to them, while the first makes more."""

    def __init__(self) -> None:
        self.made: dict[int, list[st.Tensor]] = {k: [] for k in range(THREADS)}

    def __call__(self, k: int, turn: int) -> None:
        self.made[(k + 1) % THREADS].append(SHARED * (k + 1))
        while self.made[k]:
            taken = self.made[k].pop()
            taken += 1
            assert taken.sum().item() == 15 * ((k - 1) % THREADS + 1) + 5


class SizesSeen:
    """Calls that came with other sizes before: one program with room for the largest serves them all."""

    def __init__(self) -> None:
        for size in range(2, 10):
            for _ in range(4):
                assert (SHARED[0] * st.ones(size)).mean().item() == 1

    def __call__(self, k: int, turn: int) -> None:
        size = 3 + k
        assert (st.arange(size) * 1.0 + k).mean().item() == (size - 1) / 2 + k


NET = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3)).eval()
PROGRAMS: list[Callable[[st.Tensor], st.Tensor]] = [
    NET,
    st.compile(lambda x: NET(x).softmax(-1)),
    st.compile(lambda x: (x * 2 + 1).cumsum(0)),
    lambda x: (x - x.mean(0)) / (x.std(0) + 1),
    lambda x: st.concatenate([x @ x.mT, x @ x.mT * 2]).var(0),
    lambda x: st.where(x > 0, x, -x).prod(0),
    lambda x: x @ x.mT,
    lambda x: x[1:][x[1:, 0] > 0].sum(0),
    lambda x: st.topk(x, 2, dim=0)[0],
    lambda x: st.grad(lambda t: (NET(t) ** 2).sum())(x),
]


class SharedPrograms:
    """Models, compiled functions and plain calls that all threads call, each with sizes of its own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = [rng.standard_normal((n, 6)).astype(np.float32) for n in (2, 3, 5, 9, 16, 17)]
        for _ in range(3):
            self.wanted = [[f(st.tensor(a)).numpy() for a in self.rows] for f in PROGRAMS]

    def __call__(self, k: int, turn: int) -> None:
        which, at = turn // 8 % len(PROGRAMS), (turn + k) % len(self.rows)  # mostly the same in all threads
        got = PROGRAMS[which](st.tensor(self.rows[at])).numpy()
        np.testing.assert_allclose(got, self.wanted[which][at], rtol=1e-4, atol=1e-5)


FAMILY = [
    Arithmetic, Writes, ViewsOfCopies, Reads, GradientsOfShared, Training, Compiled, Draws, HandedOver,
    SizesSeen, SharedPrograms,
]  # fmt: skip


def _check(kind: type, turns: int) -> None:
    work = kind()
    raised = together(work, turns)
    assert not raised, raised[0]
    if isinstance(work, Draws):
        assert len(set(work.drawn)) == len(work.drawn)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", FAMILY)
def test_threads_compute_what_each_would_alone(kind: type) -> None:
    _check(kind, 100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILY)
def test_threads_compute_what_each_would_alone_for_long(kind: type) -> None:
    _check(kind, 2000)
