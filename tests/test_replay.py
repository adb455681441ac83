"""Replay in the steady state: calls that skip checks still notice who comes to hold the memory of a cell."""

from __future__ import annotations

from typing import Any

import numpy as np

import stratal as st
from stratal import nn, optim

STEPS = 3  # until nothing changes from call to call


def counter() -> tuple[Any, Any]:
    """Return a state and a compiled step that adds one to it."""
    state = st.tensor(np.zeros(64, np.float32))

    @st.compile
    def step() -> Any:
        state.add_(1.0)
        return state.sum()

    for _ in range(STEPS):
        step()
    return state, step


def test_a_value_kept_between_two_steps_stays_what_it_was() -> None:
    for keep in (
        lambda s: s.detach(),
        lambda s: s * 1,
        lambda s: s[:],
        lambda s: s.numpy(),
        lambda s: s.clone(),
    ):
        state, step = counter()
        kept = keep(state)
        step()
        step()
        np.testing.assert_array_equal(np.asarray(kept), np.full(64, STEPS))
        np.testing.assert_array_equal(np.asarray(state), np.full(64, STEPS + 2))


def test_lazy_work_on_a_state_sees_the_value_it_was_written_for() -> None:
    state, step = counter()
    doubled = state * 2  # not computed yet
    step()
    np.testing.assert_array_equal(np.asarray(doubled), np.full(64, 2 * STEPS))
    assert float(step()) == 64 * (STEPS + 2)


def test_a_state_that_is_given_other_memory_is_written_there() -> None:
    state, step = counter()
    with st.no_grad():
        state.copy_(st.tensor(np.full(64, 10, np.float32)))
    assert float(step()) == 64 * 11
    assert float(step()) == 64 * 12


def test_gradients_are_written_into_their_own_memory_only_while_nobody_else_holds_it() -> None:
    layer = nn.Linear(3, 2)
    opt = optim.SGD(layer.parameters(), lr=0.0)
    x = st.tensor(np.ones((4, 3), np.float32))

    @st.compile
    def step(scale: Any) -> Any:
        loss = (layer(x) * scale).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    one, two = (st.tensor(np.float32(v)) for v in (1, 2))
    for _ in range(STEPS):
        step(one)
    weight = layer.weight
    same = weight.grad
    shared = weight.grad.detach()
    step(two)
    np.testing.assert_array_equal(np.asarray(shared), np.full((2, 3), 4))
    np.testing.assert_array_equal(np.asarray(same), np.full((2, 3), 4))
    np.testing.assert_array_equal(np.asarray(weight.grad), np.full((2, 3), 8))
    other = st.tensor(np.full((2, 3), 7, np.float32))
    twin = other.detach()
    step(two)
    step(two)
    weight.grad = other  # its memory came to be shared before the last steps
    del other
    step(one)
    np.testing.assert_array_equal(np.asarray(twin), np.full((2, 3), 7))
    np.testing.assert_array_equal(np.asarray(weight.grad), np.full((2, 3), 4))


def test_ctrl_c_between_steps_leaves_the_handler_of_the_program_in_place() -> None:
    import signal

    before = signal.getsignal(signal.SIGINT)
    _, step = counter()
    step()
    assert signal.getsignal(signal.SIGINT) is before
