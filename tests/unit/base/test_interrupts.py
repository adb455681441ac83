"""Signals at any moment of lazy and compiled work: each is raised; no update is lost, halved or doubled."""

from __future__ import annotations

import random
import signal
import threading
import time

import numpy as np
import pytest
import signal_points
from signal_points import Alarm, SignalAt

import stratal as st
from stratal import nn, optim

pytestmark = [
    pytest.mark.skipif(
        not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
        reason="needs timers, in the main thread",
    ),
    pytest.mark.usefixtures("no_callbacks_of_the_collector"),
]


class Storm:
    """Runs a piece of work again and again while a signal comes at random moments of it."""

    def __init__(self, number, raised):
        self.number, self.raised = number, raised
        self.fired = self.caught = 0
        self.rng = random.Random(5)

    def _fire(self, number, frame):
        self.fired += 1
        raise self.raised

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self._on_alarm)
        self.before_number = signal.signal(self.number, self._fire) if self.number != signal.SIGALRM else None
        return self

    def _on_alarm(self, number, frame):
        if self.number == signal.SIGALRM:
            self._fire(number, frame)
        else:
            signal.raise_signal(self.number)

    def __exit__(self, *exc):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        if self.before_number is not None:
            signal.signal(self.number, self.before_number)

    def during(self, work, longest_s):
        """Run `work`; return whether it came to its end."""
        try:
            signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-5, longest_s))
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
            return True
        except self.raised as error:
            while error is not None:  # one may come while another is on its way
                self.caught += isinstance(error, self.raised)
                error = error.__context__
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


each_storm = pytest.mark.parametrize("number, raised", signal_points.KINDS, ids=["SIGINT", "SIGALRM"])


def seconds_of(work):
    times = []
    for _ in range(6):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def storm_over(work, check, number, raised, count):
    """Interrupt work `count` times; `check` says after each whether the state is one it may be in."""
    longest_s = 1.2 * seconds_of(work) + 2e-5
    with Storm(number, raised) as storm:
        tries = 0
        while storm.fired < count and tries < 100 * count:
            tries += 1
            finished = storm.during(work, longest_s)
            check(finished)
    assert storm.fired >= count
    assert storm.caught == storm.fired


def in_place_update_storm(number, raised, count):
    """Each cell counts its updates; an interrupted one happened wholly or not at all."""
    a, b = st.zeros(3), nn.Parameter(np.zeros(3, np.float32))
    low = [0.0, 0.0]

    def work():
        with st.no_grad():
            a.add_(1.0)
            b.add_(1.0)
        b.tolist(), a.tolist()

    work(), work()
    low = [a.tolist()[0], b.tolist()[0]]

    def check(finished):
        for k, cell in enumerate((a, b)):
            now = cell.detach().tolist()
            assert now[0] == now[1] == now[2]
            assert now[0] - low[k] in ((1.0,) if finished else (0.0, 1.0))
            low[k] = now[0]
        assert st.is_grad_enabled()

    low = [x + 6 for x in low]
    storm_over(work, check, number, raised, count)


def training_storm(number, raised, count, compiled):
    """The state of an optimizer and its parameters is that of some number of whole steps."""
    net = nn.Linear(3, 2)
    opt = optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    x = st.tensor(np.ones((4, 3), np.float32))

    def work():
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()

    step = st.compile(work) if compiled else work
    for _ in range(3):
        step()
    cells = [*net.parameters(), *(s["momentum_buffer"] for s in map(opt.state.get, net.parameters()))]

    def state():
        return [c.detach().numpy().copy() for c in cells]

    def follow(before):
        """The gradient is the same at every step."""
        weight, bias, weight_m, bias_m = before
        weight_m, bias_m = 0.5 * weight_m + 4.0, 0.5 * bias_m + 4.0
        return [weight - 0.5 * weight_m, bias - 0.5 * bias_m, weight_m, bias_m]

    def same(a, b):
        return all(np.allclose(x, y, rtol=1e-5, atol=1e-5) for x, y in zip(a, b, strict=True))

    known = [state()]

    def check(finished):
        now = state()
        after = follow(known[0])
        assert same(now, after) or (not finished and same(now, known[0]))
        assert st.is_grad_enabled()
        assert [c.requires_grad for c in cells] == [True, True, False, False]
        if now[0].max() < -1e4:  # far from where float32 counts well
            for cell in cells:
                cell.data = st.zeros(cell.shape)
        known[0] = state()

    for _ in range(6):  # as the measurement of the time does
        known[0] = follow(known[0])
    storm_over(step, check, number, raised, count)


def plain_call_storm(number, raised, count):
    """Values of plain calls are right, whatever was interrupted before."""
    x = st.tensor(np.arange(4.0, dtype=np.float32))

    def work():
        y = st.softmax(x * 2.0, dim=0)
        assert abs(float(y.sum()) - 1.0) < 1e-5
        assert st.topk(x, 2).values.tolist() == [3.0, 2.0]

    storm_over(work, lambda finished: None, number, raised, count)


@each_storm
def test_updates_by_hand_happen_once_or_not_at_all(number, raised):
    in_place_update_storm(number, raised, 100)


@each_storm
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
def test_a_step_happens_wholly_or_not_at_all(number, raised, compiled):
    training_storm(number, raised, 100, compiled)


@each_storm
def test_plain_calls_survive(number, raised):
    plain_call_storm(number, raised, 100)


@pytest.mark.slow
@each_storm
def test_a_thousand_signals_of_each_kind(number, raised):
    in_place_update_storm(number, raised, 1000)
    training_storm(number, raised, 1000, False)
    training_storm(number, raised, 1000, True)
    plain_call_storm(number, raised, 1000)


def test_what_a_handler_raises_while_compiling_is_not_taken_for_an_error_of_the_compiler(monkeypatch):
    from stratal.tensor.lazy import program_cache

    compile_graph = program_cache.compile_graph

    def slowly(graph, **options):
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        time.sleep(0.01)
        try:
            return compile_graph(graph, **options)
        except Exception as error:
            raise AssertionError("the compiler saw it") from error

    monkeypatch.setattr(program_cache, "compile_graph", slowly)
    with Storm(signal.SIGALRM, Alarm) as storm:
        y = st.tensor([0.0, 0.0, 0.0]).exp() * 1.25 + 7.5
        with pytest.raises(Alarm):
            y.tolist()
        assert storm.fired == 1
    monkeypatch.undo()
    assert y.tolist() == [8.75, 8.75, 8.75]


def test_two_signals_held_at_once_are_both_delivered():
    from stratal.base.interrupts import DEFERRED

    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), DEFERRED:
            with DEFERRED:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGALRM)
            assert seen == []
        assert seen == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


# -- every moment, one after the other -----------------------------------------------------------------------
OPTIMIZERS = {
    "SGD": lambda ps: optim.SGD(ps, lr=0.5, momentum=0.5, dampening=0.25),
    "Adam": lambda ps: optim.Adam(ps, lr=0.1),
}
each_optimizer = pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Training:
    """A small training, and what it is after each of its steps."""

    def __init__(self, made, compiled):
        self.net = nn.Linear(3, 2)
        for k, p in enumerate(self.net.parameters()):
            p.data = st.full(p.shape, 0.1 * (k + 1))
        self.opt = made(self.net.parameters())
        self.x = st.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        self.step = st.compile(self._step) if compiled else self._step

    def _step(self):
        self.opt.zero_grad()
        (self.net(self.x) ** 2).sum().backward()
        self.opt.step()

    def facts(self):
        """Return the parameters and the state, which can always be read."""
        state = self.opt.state_dict()["state"]
        found = [p.detach() for p in self.net.parameters()]
        return [np.array(x.numpy()) for x in found + [v for s in state.values() for v in s.values()]]


def same(a, b):
    close = (np.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=False))
    return len(a) == len(b) and all(close)


@pytest.mark.sampled(20)
@each_storm
@each_optimizer
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("at_most", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_lazy_step_is_all_or_nothing_at_every_moment(made, number, raised, steps, at_most):
    """Also the first, which makes state: where it did not happen, the next one is the first."""
    training = Training(made, False)
    known = [training.facts()]
    for _ in range(steps + 2):
        training.step()
        known.append(training.facts())

    def started():
        training = Training(made, False)
        for _ in range(steps):
            training.step()
        return training

    with signal_points.alarms_raise():
        for moment in signal_points.moments(started().step, at_most):
            training, at = started(), SignalAt(moment, number)
            assert at.during(training.step) or not at.fired, f"swallowed at {at.where}"
            done = steps + same(training.facts(), known[steps + 1])
            assert same(training.facts(), known[done]), at.where
            training.step()
            assert same(training.facts(), known[done + 1]), at.where


@pytest.mark.sampled(7)
@each_storm
@each_optimizer
@pytest.mark.parametrize("at_most", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_all_can_be_read_after_a_signal_at_any_moment_of_a_compiled_step(made, number, raised, at_most):
    """Also what was built on the old values, and waits."""
    training = Training(made, True)
    for _ in range(3):
        training.step()

    def waiting():
        copies = [(p * 3.0).detach() for p in training.net.parameters()]
        return training.opt.state_dict(), copies, training.net(training.x).sum()

    def step():
        kept.append(waiting())
        training.step()

    kept = []
    with signal_points.alarms_raise():
        for moment in signal_points.moments(step, at_most):
            before, at = training.facts(), SignalAt(moment, number)
            kept[:] = [waiting()]
            assert at.during(training.step) or not at.fired, f"swallowed at {at.where}"
            states, copies, loss = kept[0]
            for copy, old in zip(copies, before, strict=False):
                assert np.allclose(copy.numpy(), 3.0 * old), at.where
            found = [x.numpy() for s in states["state"].values() for x in s.values()]
            assert same(found, before[2:]), at.where
            assert np.isfinite(loss.item())
            training.facts()
