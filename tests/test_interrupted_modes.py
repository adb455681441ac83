"""Ctrl-C while a mode is put in force, or back: what was in force outside still is, at every line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import stratal as st
from stratal.tensor.values.state import MODE


class InterruptAt:
    """Raises KeyboardInterrupt before the given line that the setter of a mode's field runs."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.local if frame.f_code.co_name == "put" else None

    def local(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.local


def without_gradients() -> None:
    with st.no_grad():
        pass


def with_gradients_inside() -> None:
    with st.no_grad(), st.enable_grad():
        pass


def in_16_bits() -> None:
    with st.autocast(dtype=st.bfloat16):
        pass


def eagerly() -> None:
    with st.eager():
        pass


def step() -> None:
    weight = st.tensor([1.0]).requires_grad_()
    weight.sum().backward()
    st.optim.SGD([weight], lr=1.0).step()


def captured() -> None:
    st.compile(lambda x: x * 2)(st.ones(2))


def read() -> None:
    (st.ones(2) * 2).tolist()


@pytest.mark.parametrize(
    "work", [without_gradients, with_gradients_inside, in_16_bits, eagerly, step, captured, read]
)
def test_the_mode_of_outside_outlives_an_interrupt(work: Callable[[], None]) -> None:
    work()
    before = dict(MODE.__dict__)
    interrupted, line = True, 0
    while interrupted and line < 200:
        line += 1
        interrupted = False
        sys.settrace(InterruptAt(line))
        try:
            work()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        assert dict(MODE.__dict__) == before
    assert line > 2
