"""A write in place gives a tensor and its views their values, all of them or none: no interrupt, at whatever
line, leaves some of them behind, nor does the end of the stack.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from test_undivided_calls import with_room

import stratal as st

VALUES = str(Path(st.__file__).parent / "tensor" / "values")
X = np.linspace(0.1, 0.6, 16, dtype=np.float32).reshape(4, 4)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[1:3],
    "steps": lambda x: x[::2, 1:],
    "row": lambda x: x[1],
    "alias": lambda x: x[...],
    "detached": lambda x: x.detach() if isinstance(x, st.Tensor) else x,
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(2, 8),
    "view of a view": lambda x: x[1:].T[1:3],
    "diagonal": lambda x: x.diagonal(),
}
ARGUMENTS = [(), (0.5,), (0.2, 0.7), (np.float32(0.5), 0.25)]
OTHERS = {"requires_grad_", "resize_", "set_", "retain_grad_", "normal_", "uniform_", "share_memory_"}


def set_to_one(x: Any) -> None:
    x[...] = 1


def methods() -> dict[str, Callable[[Any], Any]]:
    """Return every method that writes in place, with arguments that it takes."""
    found: dict[str, Callable[[Any], Any]] = {"x[...] = 1": set_to_one}
    for name in dir(st.Tensor):
        plain = name.endswith("_") and not name.startswith("_")
        if not (plain or name.startswith("__i")) or name in OTHERS:
            continue
        for args in (*ARGUMENTS, (st.tensor(X[1] + 1),)):
            x = st.tensor(X)
            try:
                getattr(st.tensor(X)[1:3], name)(*args)
                getattr(x, name)(*args)
                if x.shape == (4, 4) and np.isfinite(x.numpy()).all() and not np.array_equal(x.numpy(), X):
                    found[name] = lambda x, name=name, args=args: getattr(x, name)(*args)
                    break
            except Exception:  # other arguments than these
                continue
    return found


METHODS = methods()


class InterruptAt:
    """Sends a KeyboardInterrupt before the given line that runs where values are given."""

    def __init__(self, line: int) -> None:
        self.line, self.seen = line, 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.local if frame.f_code.co_filename.startswith(VALUES) else None

    def local(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.line:
                signal.raise_signal(signal.SIGINT)  # where handlers are held back, it takes effect later
        return self.local


def interrupted(write: Callable[[Any], Any], tensor: Any, line: int) -> int:
    """Write to a tensor until a line, and return the number of lines that ran."""
    tracer = InterruptAt(line)
    before = sys.gettrace()
    st.manual_seed(0)
    sys.settrace(tracer)
    try:
        write(tensor)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return tracer.seen


def check(x: Any, v: Any, view: str, whole: list[np.ndarray]) -> None:
    """Compare a tensor with its view, and with what it may be."""
    got = x.numpy().copy()
    np.testing.assert_array_equal(v.numpy(), VIEWS[view](got))
    assert any(np.array_equal(got, w) for w in whole)


def pair(view: str) -> tuple[Any, Any]:
    x = st.tensor(X)
    return x, VIEWS[view](x)


KINDS = [(m, "slice") for m in METHODS] + [(m, v) for m in ("add_", "x[...] = 1", "copy_") for v in VIEWS]


def test_there_are_methods() -> None:
    assert len(METHODS) > 40


@pytest.mark.sampled(12)
@pytest.mark.parametrize("method, view", sorted(set(KINDS) & {(m, v) for m in METHODS for v in VIEWS}))
@pytest.mark.parametrize("through", ["the view", "the tensor"])
def test_an_interrupt_leaves_a_tensor_and_its_view_equal(method: str, view: str, through: str) -> None:
    write, rng = METHODS[method], random.Random(method + view)
    k = through == "the view"
    pair_ = pair(view)
    lines = interrupted(write, pair_[k], 1 << 30)
    check(*pair_, view, [pair_[0].numpy().copy()])
    whole = [X, pair_[0].numpy().copy()]
    most = 60 if (method, view) == ("add_", "slice") else 8
    for line in rng.sample(range(1, lines + 1), min(most, lines)):
        pair_ = pair(view)
        interrupted(write, pair_[k], line)
        check(*pair_, view, whole)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("view", VIEWS)
def test_a_write_at_the_end_of_the_stack_happens_wholly_or_not_at_all(view: str) -> None:
    whole, fitting = pair(view), 0
    whole[1].add_(1)
    for room in range(60, 0, -1):
        x, v = pair(view)
        fitting += with_room(room, lambda v=v: v.add_(1))
        check(x, v, view, [X, whole[0].numpy()])
    assert 0 < fitting < 60


@pytest.mark.parametrize("view", VIEWS)
def test_a_failed_write_in_eager_mode_changes_nothing(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, v = pair(view)
    _ = x.numpy(), v.numpy()
    from stratal.tensor.lazy import flushing

    calls = []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise ValueError("of the interpreter")
        return interpret(*args)

    interpret = flushing.interpret
    value = v + 1
    _ = value.numpy()
    value = value * 1
    monkeypatch.setattr(flushing, "interpret", failing)
    with pytest.raises(ValueError, match="of the interpreter"), st.eager():
        v.copy_(value)
    check(x, v, view, [X])


@pytest.mark.sampled(7)
@pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="needs timers, in the main thread",
)
@pytest.mark.usefixtures("no_callbacks_of_the_collector")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("through", [0, 1])
def test_a_signal_leaves_a_tensor_and_its_view_equal(through: int, compiled: bool) -> None:
    rng = random.Random(3)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def write(x: Any) -> None:
        x.add_(1)

    step = st.compile(write) if compiled else write

    def work(tensor: Any) -> None:
        for _ in range(10_000):
            step(tensor)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(150):
            x = st.zeros(6)
            v = x[1:3]
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.random() ** 2 * 4e-3 + 1e-5)
                work((x, v)[through])
            np.testing.assert_array_equal(v.numpy(), x.numpy()[1:3])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
