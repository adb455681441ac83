"""A compiled call happens wholly or not at all: no signal stops it halfway, nor the end of the stack."""

from __future__ import annotations

import inspect
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratal as st
from stratal.base import settings


def descend(depth: int, call: Callable[[], Any]) -> Any:
    """Call a function so many frames further down."""
    return call() if depth <= 0 else descend(depth - 1, call)


def with_room(frames: int, call: Callable[[], Any]) -> bool:
    """Call a function with room for so many frames; return whether that was enough."""
    try:
        descend(sys.getrecursionlimit() - len(inspect.stack(0)) - frames, call)
    except RecursionError:
        return False
    return True


class Work:
    """Steps that write a tensor, and Python's state or none; each says how often it has happened."""

    def __init__(self, kind: str) -> None:
        self.weight, self.x, self.log = st.zeros(3), st.ones(3), list[int]()
        weight, log = self.weight, self.log
        table = self.table = {"seen": st.zeros(3)}

        def logged(x: st.Tensor) -> st.Tensor:
            weight.add_(1)
            log.append(1)
            return x * 2

        def stored(x: st.Tensor) -> dict[str, st.Tensor]:
            weight.add_(1)
            table["seen"] = weight * 1
            return {"y": x * 2}

        def plain(x: st.Tensor) -> st.Tensor:
            weight.add_(1)
            return x * 2

        self.kind = kind
        self.step = st.compile({"logged": logged, "stored": stored, "plain": plain}[kind])

    def run(self) -> None:
        self.step(self.x)

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.run()

    @property
    def happened(self) -> tuple[float, float]:
        """How often by the tensor, and how often by Python's state."""
        writes = self.weight.tolist()[0]
        seen = {"logged": len(self.log), "stored": self.table["seen"].tolist()[0], "plain": writes}[self.kind]
        return writes, seen


each_kind = pytest.mark.parametrize("kind", ["logged", "stored", "plain"])


@pytest.mark.sampled(4)
@each_kind
def test_at_the_end_of_the_stack_a_call_happens_wholly_or_not_at_all(kind: str) -> None:
    work = Work(kind)
    returned = 6
    for _ in range(returned):
        work.run()
    for room in range(120, 0, -1):
        returned += with_room(room, work.run)
    assert work.happened == (returned, returned)
    assert returned < 126


@pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="needs timers, in the main thread",
)
@each_kind
def test_a_signal_stops_no_call_halfway(kind: str) -> None:
    work = Work(kind)
    rng = random.Random(1)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(120):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-3))
                work.run_for(seconds=5)  # a call: 3.13.0 leaves `with` blocks from the end of loops in them
            writes, seen = work.happened
            assert writes == seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_was_compiled_near_the_end_of_the_stack_is_as_good_as_elsewhere(tmp_path: Path) -> None:
    failed = 0
    with settings.cache_dir(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        for room in range(10, 90, 6):
            step, x = st.compile(lambda x: (x * 2 + st.exp(x)).sum()), st.zeros(room)
            failed += not with_room(room, lambda step=step, x=x: step(x))
            assert step(x).item() == room
            assert "fallbacks" not in step.plan.to_json()
    assert failed > 2


ACTS = {
    "computed": lambda w, x: w.tolist() and None,
    "written": lambda w, x: w.add_(1),
    "written by index": lambda w, x: w.__setitem__(slice(None), w + 1),
    "written through a view": lambda w, x: w.view(-1).add_(1),
    "a compiled call": lambda w, x: st.compile(lambda: w.add_(1))(),
    "an audited call": lambda w, x: x.step(),
}  # fmt: skip


class Audited:
    """A compiled function, replayed before, each call of which is audited from now on."""

    def __init__(self, w: st.Tensor) -> None:
        self.step = st.compile(lambda: w.add_(1))
        for _ in range(2):
            self.step()


@pytest.mark.sampled(64)
@pytest.mark.parametrize("second", ACTS)
@pytest.mark.parametrize("first", ACTS)
def test_at_the_end_of_the_stack_what_waits_stays_waiting(first: str, second: str) -> None:
    sizes = iter(range(2, 200))  # each compiles anew, which takes more room
    stopped = 0
    for room in range(62, 4, -1):
        w = st.zeros(next(sizes))
        audited = Audited(w)
        with settings.verify(True):
            w.add_(1)  # waits
            count = 3
            for name, frames in ((first, room), (second, room - 5)):
                before = w.shape
                happened = with_room(frames, lambda name=name, w=w, a=audited: ACTS[name](w, a))
                count += happened and name != "computed"
                stopped += not happened
                assert w.shape == before
        assert w.tolist() == [count] * len(w)
    assert stopped > 4
