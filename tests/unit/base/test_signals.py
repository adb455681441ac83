"""Handlers of signals change nothing: what one reads is right, what it raises arrives, and work goes on as if
it had not run. Works x handlers, at random times and at every moment at which the interpreter runs handlers.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signal_points import SignalAt, moments

import stratal as st
from stratal import nn, optim
from stratal.base.interrupts import DEFERRED, SIGNALS, UNINTERRUPTIBLE, interruptible, users_code
from stratal.tensor.values.state import LOCK, MODE

pytestmark = [
    pytest.mark.skipif(
        not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
        reason="needs timers, in the main thread",
    ),
    pytest.mark.usefixtures("no_callbacks_of_the_collector"),
]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
MOST_STEPS = 200  # of one trial
Facts = list[np.ndarray[Any, Any]]


# -- works: `step` once more, all of it or none; `facts` says how far it is ----------------------------------
class Training:
    """A lazy training that notes its losses."""

    def __init__(self, folder: Path) -> None:
        self.net = nn.Linear(3, 2)
        for k, p in enumerate(self.net.parameters()):
            p.data = st.full(p.shape, 0.1 * (k + 1))
        self.opt: Any = optim.SGD(self.net.parameters(), lr=0.001, momentum=0.5, dampening=0.25)
        self.x, self.losses = st.tensor(X), []
        self.step: Callable[[], Any] = self.once

    def once(self) -> None:
        self.opt.zero_grad()
        loss = (self.net(self.x) ** 2).sum()
        loss.backward()
        self.opt.step()

    def facts(self) -> Facts:
        return [np.array(p.tolist()) for p in self.net.parameters()] + [
            np.array(v.tolist()) for s in self.opt.state.values() for v in s.values()
        ]


class Adam(Training):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opt = optim.Adam(self.net.parameters(), lr=0.001)


class Eager(Training):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.step = self.eagerly

    def eagerly(self) -> None:
        with st.eager():
            self.once()


class Compiled(Training):
    """Steps that also write to a list and to a dict."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.last: dict[str, Any] = {"loss": None}
        self.step = st.compile(self.noting, audit=False)

    def noting(self) -> None:
        self.opt.zero_grad()
        loss = (self.net(self.x) ** 2).sum()
        loss.backward()
        self.opt.step()
        loss = loss.detach()
        self.losses.append(loss)
        self.last["loss"] = loss

    def facts(self) -> Facts:
        assert (self.losses or [None])[-1] is self.last["loss"]
        losses = [x.tolist() for x in self.losses[-3:]]
        return [*super().facts(), np.array(len(self.losses)), np.array(losses)]


class CompiledAdam(Compiled):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opt = optim.Adam(self.net.parameters(), lr=0.001)


class Captured(Compiled):
    """Each step is a capture."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.step = lambda: st.compile(self.noting)()


class WithoutGradients:
    """An update by hand, in two modes."""

    def __init__(self, folder: Path) -> None:
        self.cell = nn.Parameter(np.ones(3, np.float32))

    def step(self) -> None:
        with st.no_grad(), st.autocast(dtype=st.bfloat16):
            assert not st.is_grad_enabled()
            self.cell.mul_(1.01)

    def facts(self) -> Facts:
        return [np.array(self.cell.tolist())]


class Saving(Training):
    """Saves what a training made, and loads it; both files are whole at any time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.once()
        self.path = folder / "work.stratal"
        self.loaded: Any = None

    def step(self) -> None:  # type: ignore[override]
        st.save({"model": self.net.state_dict(), "optimizer": self.opt.state_dict()}, self.path)
        self.loaded = st.load(self.path)
        self.net.load_state_dict(self.loaded["model"])
        self.opt.load_state_dict(self.loaded["optimizer"])


WORKS: dict[str, Callable[[Path], Any]] = {
    "lazy": Training, "lazy Adam": Adam, "eager": Eager, "compiled": Compiled, "compiled Adam": CompiledAdam,
    "captured": Captured, "no_grad": WithoutGradients, "save and load": Saving,
}  # fmt: skip
SLOW = ("eager", "captured")  # a step takes as long as many of the others


MODES = ((True, None), (False, None), (False, st.bfloat16))  # gradients and autocast when handlers are called


# -- handlers -----------------------------------------------------------------------------------------------
class Trial:
    """A work, what it is after each of its steps if nothing disturbs it, and a handler that comes then."""

    def __init__(self, name: str, handler: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.work = WORKS[name](folder)
        self.known = undisturbed(name, folder)
        for grad, dtype in MODES:  # a tracing function would refuse to capture it
            with st.set_grad_enabled(grad), st.autocast(enabled=dtype is not None, dtype=dtype):
                DOUBLED(st.ones(2))
        self.done = self.fired = 0
        self.raised: list[BaseException] = []
        self.wrong: list[str] = []
        kind = RAISED.get(handler)
        self.act = partial(self.raises, kind) if kind else getattr(self, handler, None)
        self.handler = signal.default_int_handler if handler == "Ctrl-C" else self.on_signal

    def on_signal(self, number: int, frame: Any) -> None:
        self.fired += 1
        self.act()

    def reads(self) -> None:
        found = self.work.facts()
        if not any(same(found, self.facts_after(k)) for k in (self.done, self.done + 1)):
            self.wrong.append(f"read after {self.done} steps: {found}")

    def saves(self) -> None:
        path, model = self.folder / "handler.stratal", getattr(self.work, "net", None)
        cells = dict(model.state_dict()) if model is not None else {"cell": self.work.cell.detach()}
        st.save({"cells": cells}, path)
        for name, value in st.load(path)["cells"].items():
            if not same([value.numpy()], [np.array(cells[name].tolist())]):
                self.wrong.append(f"saved {name}")

    def computes(self) -> None:
        with st.enable_grad():
            weight = nn.Parameter(np.full(3, 2.0, np.float32))
            (weight * weight * 3.0).sum().backward()
            optim.SGD([weight], lr=0.5).step()
        found = DOUBLED(st.ones(2)).tolist(), weight.tolist()
        if found != ([2.0, 2.0], [-4.0] * 3):
            self.wrong.append(f"computed {found}")

    def raises(self, kind: type[BaseException]) -> None:
        self.raised.append(kind())
        raise self.raised[-1]

    def came(self, before: int) -> bool:
        """Disarm the timer; return whether it has fired. Its signal may go to another thread, and be known
        here a moment later: that is waited for, and what the handler raises is raised here.
        """
        if signal.setitimer(signal.ITIMER_REAL, 0)[0]:
            return False
        until = time.monotonic() + 1.0
        while self.fired == before and time.monotonic() < until:
            time.sleep(1e-4)
        return True

    # -- one step, and checking it ---------------------------------------------------------------------------
    def facts_after(self, steps: int) -> Facts:
        while len(self.known) <= steps:
            reference = REFERENCES[self.name]
            reference.step()
            self.known.append(reference.facts())
        return self.known[steps]

    def step(self, begin: Callable[[], Any], end: Callable[[], bool], where: Callable[[], str] = str) -> None:
        """Take a step while a signal may come; `end` returns whether it did, by then."""
        caught: BaseException | None = None
        self.facts_after(self.done + 1)  # a handler that reads compares with them, and may not capture
        try:
            begin()
            self.work.step()
            came = end()
        except (KeyboardInterrupt, TimeoutError, ValueError) as error:
            came, caught = True, error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self.handler is signal.default_int_handler:
            self.fired += came
            assert came == isinstance(caught, KeyboardInterrupt), where()
        else:
            assert caught is (self.raised.pop() if self.raised else None), where()
        assert not self.wrong, (self.wrong[0], where())
        found = self.work.facts()
        if caught is None or not same(found, self.facts_after(self.done)):  # it happened before that
            self.done += 1
        assert same(found, self.facts_after(self.done)), where()
        assert MODE.__dict__ == AT_REST, where()
        assert (SIGNALS.depth, SIGNALS.open, SIGNALS.pending) == (0, 0, {}), where()


@st.compile
def DOUBLED(x: Any) -> Any:
    return x * 2.0


RAISED = {"KeyboardInterrupt": KeyboardInterrupt, "TimeoutError": TimeoutError, "ValueError": ValueError}
HANDLERS = ("reads", "saves", "computes", "Ctrl-C", *RAISED)
AT_REST = dict(MODE.__dict__)
REFERENCES: dict[str, Any] = {}
KNOWN: dict[str, list[Facts]] = {}


def undisturbed(name: str, folder: Path) -> list[Facts]:
    """Return what a work is after each step that was taken undisturbed, by now."""
    if name not in KNOWN:
        REFERENCES[name] = WORKS[name](folder)
        KNOWN[name] = [REFERENCES[name].facts()]
    return KNOWN[name]


def same(a: Facts, b: Facts) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Any], Any]]:
    """Set what SIGALRM calls."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def table(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for each work and handler."""
    test = pytest.mark.parametrize("handler", HANDLERS)(test)
    return pytest.mark.parametrize("work", WORKS)(test)


@table
@pytest.mark.parametrize("count", [20, pytest.param(2500, marks=pytest.mark.slow)])
def test_a_handler_at_a_random_time_changes_nothing(
    work: str, handler: str, count: int, tmp_path_factory: Any, on_alarm: Any
) -> None:
    count = count // 4 if work in SLOW else count
    trial = Trial(work, handler, tmp_path_factory.mktemp("signals"))
    on_alarm(trial.handler)
    rng = random.Random(f"{work} {handler}")
    longest_s = 1e-3
    tries = 0
    while trial.fired < count and tries < 50 * count:
        if trial.done >= MOST_STEPS:
            on_alarm((trial := again(trial, handler)).handler)
        tries += 1
        before, begun = trial.fired, time.perf_counter()
        delay_s = rng.uniform(2e-6, longest_s)
        trial.step(
            lambda: signal.setitimer(signal.ITIMER_REAL, delay_s),  # noqa: B023
            lambda: trial.came(before),  # noqa: B023
        )
        if trial.fired == before:  # the timer was longer than the step
            longest_s = max(min(longest_s, 1.5 * (time.perf_counter() - begun)) * 0.9, 2e-5)
        else:
            longest_s = min(1.05 * longest_s, 0.1)
    assert trial.fired >= count


def again(trial: Trial, handler: str) -> Trial:
    made = Trial(trial.name, handler, trial.folder)
    made.fired = trial.fired
    return made


@pytest.mark.sampled(15)
@table
@pytest.mark.parametrize("at_most", [6, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_handler_at_any_moment_changes_nothing(
    work: str, handler: str, at_most: int, tmp_path_factory: Any, on_alarm: Any
) -> None:
    """All moments of a step at which the interpreter runs handlers, or some that are spread over them."""
    at_most = at_most // 2 if work in SLOW else at_most
    trial = Trial(work, handler, tmp_path_factory.mktemp("signals"))
    for _ in range(3):
        trial.step(lambda: None, lambda: False)
    found = moments(trial.work.step, at_most)
    trial.done += 1
    on_alarm(trial.handler)
    fired = 0
    for moment in found:
        if trial.done >= MOST_STEPS:
            on_alarm((trial := again(trial, handler)).handler)
        at = SignalAt(moment, signal.SIGALRM)
        before = sys.gettrace()
        try:
            trial.step(
                lambda: sys.settrace(at._trace),  # noqa: B023
                lambda: (sys.settrace(before), at.fired)[1],  # noqa: B023
                lambda: at.where,  # noqa: B023
            )
        finally:
            sys.settrace(before)
        fired += at.fired
    assert 2 * fired >= len(found) > 1


# -- the mechanism -------------------------------------------------------------------------------------------
def test_getsignal_and_signal_give_the_handlers_that_were_set(on_alarm: Any) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def handler(number: int, frame: Any) -> None: ...

    before = signal.signal(signal.SIGALRM, handler)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.signal(signal.SIGALRM, signal.SIG_IGN) is handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    signal.signal(signal.SIGALRM, before)


def test_handlers_wait_for_the_end_of_the_outermost_section(on_alarm: Any) -> None:
    seen = []
    on_alarm(lambda number, frame: seen.append(number))
    with DEFERRED:
        with DEFERRED:
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGALRM)
        assert seen == []
    assert len(seen) == 1


def test_ctrl_c_alone_interrupts_what_takes_long(on_alarm: Any) -> None:
    seen: list[int] = []
    on_alarm(lambda number, frame: seen.append(1))
    reached = []
    with pytest.raises(KeyboardInterrupt), DEFERRED, interruptible():
        signal.raise_signal(signal.SIGALRM)
        assert not seen
        signal.raise_signal(signal.SIGINT)
        reached.append("after")
    assert seen and not reached


def test_nothing_interrupts_what_is_uninterruptible(on_alarm: Any) -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), UNINTERRUPTIBLE:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
        reached.append("after")
    assert reached


def test_handlers_run_in_functions_of_the_users(on_alarm: Any) -> None:
    seen: list[int] = []
    on_alarm(lambda number, frame: seen.append(SIGNALS.depth))
    with DEFERRED:
        signal.raise_signal(signal.SIGALRM)
        with users_code():
            assert seen == [0]
            signal.raise_signal(signal.SIGALRM)
            assert seen == [0, 0]
        signal.raise_signal(signal.SIGALRM)
        assert len(seen) == 2
    assert len(seen) == 3


def test_a_handler_computes_outside_of_the_trace_that_is_being_made(on_alarm: Any) -> None:
    seen = []
    on_alarm(lambda number, frame: seen.append((st.ones(2) * 3).tolist()))

    def function(x: Any) -> Any:
        y = x * 2
        signal.raise_signal(signal.SIGALRM)
        return y + 1

    assert st.vmap(function)(st.ones(2)).tolist() == [3.0, 3.0]
    assert st.grad(function)(st.tensor(1.0)).item() == 2.0
    assert seen == [[3.0, 3.0]] * 2


def test_a_handler_waits_for_the_end_of_a_capture(on_alarm: Any) -> None:
    total, during, seen = st.zeros(2), [], []
    on_alarm(lambda number, frame: seen.append((total.tolist(), len(during))))

    def function(x: Any) -> Any:
        for _ in range(100):  # Python's time
            x = x * 1.0
        total.add_(x)
        during.append(x)
        return x * 2

    signal.setitimer(signal.ITIMER_REAL, 0.005)
    compiled = st.compile(function, audit=False)
    compiled(st.ones(2))
    assert seen == [([1.0, 1.0], 1)]


def test_ctrl_c_ends_a_function_that_is_captured_and_never_returns(on_alarm: Any) -> None:
    total = st.zeros(2)
    on_alarm(signal.default_int_handler)

    def function(x: Any) -> Any:
        total.add_(x)
        while total is not None:
            x = x * 1.0

    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        st.compile(function)(st.ones(2))
    assert total.tolist() == [0.0, 0.0]
    assert (SIGNALS.depth, SIGNALS.open) == (0, 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("returns", [False, True])
def test_a_capture_that_does_not_end_gives_way_to_handlers(on_alarm: Any, returns: bool) -> None:
    """A handler that raises ends it; after one that returns, it begins again."""
    total, seen = st.zeros(2), []
    wait = [True]

    def handler(number: int, frame: Any) -> None:
        seen.append((total.tolist(), list(noted)))
        wait[0] = False
        if not returns:
            raise TimeoutError

    on_alarm(handler)
    noted: list[int] = []

    @partial(st.compile, audit=False)
    def function(x: Any) -> Any:
        total.add_(x)
        noted.append(1)
        while wait[0]:
            pass
        return x * 2

    signal.setitimer(signal.ITIMER_REAL, 0.01)
    if returns:
        assert function(st.ones(2)).tolist() == [2.0, 2.0]
    else:
        with pytest.raises(TimeoutError):
            function(st.ones(2))
    assert seen == [([0.0, 0.0], [])]
    assert (total.tolist(), noted) == (([1.0, 1.0], [1]) if returns else ([0.0, 0.0], []))
    assert (SIGNALS.depth, SIGNALS.open, SIGNALS.pending) == (0, 0, {})


def test_handlers_run_while_the_main_thread_waits_for_another(on_alarm: Any) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            held.set()
            done.wait(10)

    on_alarm(lambda number, frame: done.set())
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        assert st.zeros(2).cosh().tolist() == [1.0, 1.0]
        assert done.is_set()
    finally:
        done.set()
        thread.join(10)


def test_ctrl_c_ends_the_wait_for_another_thread_in_a_section(on_alarm: Any) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            held.set()
            done.wait(10)

    on_alarm(signal.default_int_handler)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt), DEFERRED, LOCK:
            pass
        assert not done.is_set()
    finally:
        done.set()
        thread.join(10)
    assert (SIGNALS.depth, SIGNALS.open) == (0, 0)


def test_handlers_of_before_an_import_in_another_thread_are_deferred() -> None:
    code = """
import signal, threading, time
def handler(number, frame): print("called", flush=True)
signal.signal(signal.SIGALRM, handler)
def load():
    global interrupts
    from stratal.base import interrupts
thread = threading.Thread(target=load); thread.start(); thread.join()
with interrupts.DEFERRED:
    signal.raise_signal(signal.SIGALRM)
    print("inside", flush=True)
assert signal.getsignal(signal.SIGALRM) is handler
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout == "inside\ncalled\n", found.stderr
