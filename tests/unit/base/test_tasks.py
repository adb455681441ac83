"""Modes in tasks and threads: what one switches on or off holds for it alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import joined

import stratal as st
from stratal.tensor.values.state import MODE

DEFAULT = dict(MODE)  # what is in force where nothing was changed
MODES: dict[str, Callable[[], Any]] = {
    "no_grad": st.no_grad,
    "inference_mode": st.inference_mode,
    "set_grad_enabled": lambda: st.set_grad_enabled(False),
    "autocast": lambda: st.autocast("cpu", dtype=st.bfloat16),
    "eager": st.eager,
}


def in_force() -> dict[str, Any]:
    """Return the modes, read both ways."""
    found = dict(MODE.__dict__)
    assert found == {name: getattr(MODE, name) for name in DEFAULT}
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_does_not_leak_between_tasks_that_take_turns(mode: str) -> None:
    turns: list[tuple[str, bool]] = []

    async def inside() -> None:
        with MODES[mode]():
            for _ in range(3):
                turns.append(("inside", in_force() != DEFAULT))
                await asyncio.sleep(0)
        turns.append(("inside", in_force() == DEFAULT))

    async def beside() -> None:
        for _ in range(5):
            turns.append(("beside", in_force() == DEFAULT))
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(inside(), beside(), inside())

    asyncio.run(both())
    assert all(right for _, right in turns) and len(turns) == 13
    assert in_force() == DEFAULT


def test_gradients_of_one_task_do_not_depend_on_the_mode_of_another() -> None:
    async def train(steps: int) -> list[float]:
        w = st.ones(3).requires_grad_(True)
        found = []
        for _ in range(steps):
            loss = (w * w).sum()
            await asyncio.sleep(0)
            loss = loss * 2.0
            loss.backward()
            assert w.grad is not None
            found.append(float(w.grad.sum()))
            w.grad = None
        return found

    async def evaluate(steps: int) -> list[bool]:
        w = st.ones(3).requires_grad_(True)
        found = []
        for _ in range(steps):
            with st.no_grad():
                y = w * 2.0
                await asyncio.sleep(0)
                found.append((y + w).requires_grad)
        return found

    async def both() -> list[Any]:
        return await asyncio.gather(train(4), evaluate(5), train(4))

    first, evaluated, second = asyncio.run(both())
    assert first == second == [12.0] * 4 and evaluated == [False] * 5


def test_a_task_inherits_the_modes_of_where_it_was_made_and_a_thread_has_its_own() -> None:
    seen: dict[str, Any] = {}

    async def child() -> None:
        seen["child"] = MODE.grad
        MODE.grad = True

    async def parent() -> None:
        with st.no_grad():
            await asyncio.create_task(child())
            seen["parent"] = MODE.grad
            thread = threading.Thread(target=lambda: seen.update(thread=in_force()))
            thread.start()
            joined(thread)

    asyncio.run(parent())
    assert seen == {"child": False, "parent": False, "thread": DEFAULT}


def test_a_function_decorated_by_a_mode_runs_in_several_threads_at_once() -> None:
    inside, leave = threading.Event(), threading.Event()

    @st.autocast("cpu", dtype=st.bfloat16)
    def decorated(function: Callable[[], Any]) -> None:
        function()
        assert MODE.autocast is st.bfloat16

    def wait() -> None:
        inside.set()
        assert leave.wait(10)

    thread = threading.Thread(target=lambda: decorated(wait))

    def let_the_other_in() -> None:
        thread.start()
        assert inside.wait(10)

    with st.autocast("cpu", dtype=st.float16):
        before = in_force()
        decorated(let_the_other_in)  # leaves while the other is inside
        assert in_force() == before
    leave.set()
    joined(thread)
    assert in_force() == DEFAULT
