"""Replay in the steady state: calls that skip checks still notice who comes to hold the memory of a cell."""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from waiting import LIMIT_S, joined

import stratal as st
from stratal import nn, optim
from stratal.base.errors import IndexOutOfRangeError
from stratal.runtime.storage import INVALIDATED, layout_of
from stratal.tensor.capture.signature_match import NO_MATCH
from stratal.tensor.values.state import LOCK

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
    for keep in (lambda s: s * 1, lambda s: s.numpy(), lambda s: s.clone(), lambda s: s[np.arange(64)]):
        state, step = counter()
        kept = keep(state)
        step()
        step()
        np.testing.assert_array_equal(np.asarray(kept), np.full(64, STEPS))
        np.testing.assert_array_equal(np.asarray(state), np.full(64, STEPS + 2))


@pytest.mark.filterwarnings("error")
def test_a_view_kept_between_two_steps_shows_what_they_write() -> None:
    for keep in (lambda s: s.detach(), lambda s: s[:], lambda s: s.reshape(8, 8)):
        state, step = counter()
        kept = keep(state)
        for k in (1, 2):
            step()
            np.testing.assert_array_equal(np.asarray(kept).ravel(), np.full(64, STEPS + k))


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
    before = signal.getsignal(signal.SIGINT)
    _, step = counter()
    step()
    assert signal.getsignal(signal.SIGINT) is before


# -- calls that look at nothing again: what must end that ----------------------------------------------------
def trained(steps: int = STEPS) -> tuple[Any, Any, Any]:
    """Return a layer, its optimizer and a compiled training step that has settled."""
    st.manual_seed(0)
    layer = nn.Linear(3, 2)
    opt = optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)

    @st.compile
    def step(x: Any) -> Any:
        loss = (layer(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for _ in range(steps):
        step(BATCH)
    return layer, opt, step


BATCH = st.tensor(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))


def steady(step: Any) -> bool:
    """Whether the next call may take what the last one found."""
    found = step._last.pinned_replay
    return found is not None and found.token is INVALIDATED[0]


def weights(layer: Any) -> list[Any]:
    return [np.array(p.numpy()) for p in layer.parameters()]


def test_a_training_step_settles_and_stays_settled() -> None:
    _, opt, step = trained()
    for k in range(STEPS):
        float(step(BATCH))
        st.tensor(np.ones(3)).sum().item()  # work of others
        opt.param_groups[0]["lr"] = 0.1 * (k + 1)
        assert steady(step)


def _loads_other_weights(layer: Any, opt: Any) -> None:
    layer.load_state_dict({k: np.full(v.shape, 0.25, np.float32) for k, v in layer.state_dict().items()})


def _rebinds_a_parameter(layer: Any, opt: Any) -> None:
    layer.weight.data = st.tensor(np.full((2, 3), 0.5, np.float32))


def _works_on_a_parameter_in_place(layer: Any, opt: Any) -> None:
    with st.no_grad():
        layer.bias.add_(1.0)


def _loads_an_optimizer(layer: Any, opt: Any) -> None:
    state = opt.state_dict()
    for entries in state["state"].values():
        entries["momentum_buffer"] = np.ones(entries["momentum_buffer"].shape, np.float32)
    opt.load_state_dict(state)


def _changes_a_gradient(layer: Any, opt: Any) -> None:
    layer.weight.grad.zero_()
    layer.bias.grad = None


def _gives_one_memory_to_two_parameters(layer: Any, opt: Any) -> None:
    kept = layer.weight.detach()
    layer.weight.data = kept


def _does_nothing(layer: Any, opt: Any) -> None:
    pass


CHANGES = (
    _loads_other_weights, _rebinds_a_parameter, _works_on_a_parameter_in_place, _loads_an_optimizer,
    _changes_a_gradient, _gives_one_memory_to_two_parameters, _does_nothing,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_steps_after_a_change_from_outside_are_those_of_a_step_that_never_settled(change: Any) -> None:
    results = []
    for settles in (True, False):
        layer, opt, step = trained()
        change(layer, opt)
        for _ in range(STEPS):
            if not settles:
                step._last.pinned_replay = None
            step(BATCH)
        results.append([*weights(layer), *(np.array(p.grad.numpy()) for p in layer.parameters())])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_gradient_that_was_taken_is_not_written_again() -> None:
    layer, _, step = trained()
    taken = layer.weight.grad
    before = np.array(taken.numpy())
    layer.weight.grad = None
    step(BATCH * 2)
    step(BATCH * 3)
    np.testing.assert_array_equal(taken.numpy(), before)
    assert layer.weight.grad is not taken


def test_an_exported_parameter_keeps_its_values_and_the_step_goes_on() -> None:
    layer, _, step = trained()
    seen = layer.weight.numpy()
    before = seen.copy()
    step(BATCH)
    step(BATCH)
    np.testing.assert_array_equal(seen, before)
    assert not np.array_equal(layer.weight.numpy(), before)


def test_two_steps_on_one_model_take_turns() -> None:
    """Two captures of one function write the same states; two models of one structure share a program."""
    layer, _, step = trained()
    twin, _, twin_step = trained()
    small = BATCH[:2]
    for _ in range(STEPS):
        step(BATCH)
        step(small)
        twin_step(BATCH)
        twin_step(small)
    assert steady(step)
    assert steady(twin_step)
    for one, other in zip(weights(layer), weights(twin), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_argument_that_shares_memory_with_a_state_is_written_with_it() -> None:
    state = st.tensor(np.ones(8, np.float32))

    @st.compile
    def step(x: Any) -> Any:
        state.add_(1.0)
        return (x * state).sum()

    for _ in range(STEPS):
        step(st.tensor(np.ones(8, np.float32)))
    old = float(state[0])
    assert float(step(state.clone())) == 8 * old * (old + 1)
    assert float(step(state.detach())) == 8 * (old + 2) * (old + 2)


def test_an_argument_with_another_layout_is_brought_into_the_one_expected() -> None:
    state = st.tensor(np.zeros(1, np.float32))

    @st.compile
    def step(x: Any) -> Any:
        state.add_(1.0)
        return x[0] * state

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(STEPS):
        step(st.tensor(array))
    other = st.tensor(array)
    held = other._value("test")
    held.move_to(layout_of(held.type, (4, 8)))
    np.testing.assert_array_equal(step(other).numpy(), array[0] * (STEPS + 1))


def test_an_index_out_of_range_in_a_settled_step_updates_nothing() -> None:
    table = nn.Embedding(5, 2)
    opt = optim.SGD(table.parameters(), lr=0.1)

    @st.compile
    def step(rows: Any) -> Any:
        loss = table(rows).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    good, bad = st.tensor(np.array([1, 2])), st.tensor(np.array([1, 7]))
    for _ in range(STEPS):
        step(good)
    assert steady(step)
    before = np.array(table.weight.numpy())
    with pytest.raises(IndexOutOfRangeError):
        step(bad)
    np.testing.assert_array_equal(table.weight.numpy(), before)
    step(good)
    assert not np.array_equal(table.weight.numpy(), before)


def test_the_rate_of_a_group_is_written_where_it_stands_unless_somebody_looks_at_it() -> None:
    group = optim.SGD([st.tensor(np.ones(2), requires_grad=True)], lr=0.5).param_groups[0]
    cell = group.scalar("lr")
    doubled, seen = cell * 2, cell.numpy()
    group["lr"] = 0.25
    assert float(doubled) == 1.0
    assert float(seen) == 0.5
    place = cell._value("test")
    group["lr"] = 0.125
    assert cell._value("test") is place
    assert float(cell) == 0.125


def test_training_and_evaluating_in_turns_sees_every_update_and_every_rate() -> None:
    layer, opt, step = trained()
    evaluate = st.compile(lambda x: layer(x))
    found, expected = [], []
    for k in range(2 * STEPS):
        opt.param_groups[0]["lr"] = 0.1 * (k + 1)
        for _ in range(k % 3):
            step(BATCH)
        with st.inference_mode():
            found.append(np.array(evaluate(BATCH).numpy()))
        weight, bias = (np.array(p.detach().tolist(), np.float32) for p in layer.parameters())
        expected.append(np.array(BATCH.tolist(), np.float32) @ weight.T + bias)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# -- calls whose arguments are like the last ones need no key ------------------------------------------------
def test_arguments_like_the_last_ones_take_the_same_capture() -> None:
    times = [2.0]

    @st.compile
    def f(x: Any, y: Any) -> Any:
        return x * times[0] - y

    def tensors(*shape: int) -> list[Any]:
        return [st.tensor(rng.standard_normal(shape).astype(np.float32)) for _ in range(2)]

    rng = np.random.default_rng(0)
    for shape in ((3, 4), (3, 4), (5,), (3, 4), (3, 4)):
        a, b = tensors(*shape)
        assert np.array_equal(f(a, b).numpy(), 2 * a.numpy() - b.numpy())
    assert f.captures == 2
    assert f._match is not None and f._match.run([a, b]) is not NO_MATCH
    assert np.array_equal(f(a, a).numpy(), a.numpy())  # one tensor twice is another capture
    assert np.array_equal(f(a, b).numpy(), 2 * a.numpy() - b.numpy())
    assert np.array_equal(f(a.numpy(), b).numpy(), 2 * a.numpy() - b.numpy())
    assert np.array_equal(f(a, 1.0).numpy(), 2 * a.numpy() - 1)
    times[0] = 3.0
    assert np.array_equal(f(a, b).numpy(), np.float32(3) * a.numpy() - b.numpy())


def test_like_arguments_that_wait_or_take_gradients_are_looked_at() -> None:
    f = st.compile(lambda x, y: x @ y)
    a, b = (st.tensor(np.eye(4, dtype=np.float32) * k) for k in (2, 3))
    for _ in range(3):
        f(a, b)
    waiting = a + 1  # has no value yet
    assert np.array_equal(f(waiting, b).numpy(), 3 * (a.numpy() + 1))
    a.requires_grad = True
    made = f(a, b)
    made.sum().backward()
    assert np.array_equal(a.grad.numpy(), np.full((4, 4), 3, np.float32))
    with st.no_grad():
        assert f(a, b).requires_grad is False


def test_what_a_caller_keeps_is_never_written_again() -> None:
    f = st.compile(lambda x, y: x + y)
    rng = np.random.default_rng(0)
    kept, want = [], []
    for k in range(20):
        a, b = (st.tensor(rng.standard_normal(6).astype(np.float32)) for _ in range(2))
        made = f(a, b)
        want.append(a.numpy() + b.numpy())
        kept.append((made, made.numpy, made.numpy(), made.numpy()[2:], made.clone())[k % 5])
        del made
    for k, (found, sum_) in enumerate(zip(kept, want, strict=True)):
        found = found() if callable(found) else found if isinstance(found, np.ndarray) else found.numpy()
        assert np.array_equal(found, sum_[2:] if k % 5 == 3 else sum_)


def test_memory_that_is_used_again_starts_afresh() -> None:
    """A result that was held, stamped and looked at goes back; the next one there is none of that."""
    f = st.compile(lambda x: x + 1)
    x = st.tensor(np.zeros(8, np.float32))

    def used() -> int:
        made = f(x)
        twice = st.compile(lambda: made * 2)
        twice(), twice()
        made.numpy()
        return id(made._storage)

    first = used()
    gc.collect()  # of the function, which holds the result
    found = [f(x)._storage for _ in range(3)]
    assert first in map(id, found)
    assert all((s.stamp, s.pinned, s.exported) == (None, False, False) for s in found)


def test_like_arguments_the_program_does_not_read_are_looked_at_too() -> None:
    f = st.compile(lambda x, y, z: x - z)
    x, y, z = (st.tensor(np.full(4, k, np.float32)) for k in (5, 6, 2))
    for _ in range(3):
        assert np.array_equal(f(x, y, z).numpy(), np.full(4, 3))
    assert f._match is not None and f._match.run([x, y, z]) is not NO_MATCH
    assert np.array_equal(f(z, y, x).numpy(), np.full(4, -3))
    f(x, st.tensor(np.zeros(2)), z)
    assert f.captures == 2


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda items, table: items.append(1), 12.0),
        (lambda items, table: items.pop(), 10.0),
        (lambda items, table: items.__setitem__(0, 4), 14.0),
        (lambda items, table: table.pop("none"), 111.0),
        (lambda items, table: table.__setitem__("none", 7), 111.0),
        (lambda items, table: table.__setitem__("other", None), 211.0),
    ],
)
def test_python_values_that_changed_are_seen_by_calls_with_like_arguments(change: Any, answer: float) -> None:
    items, table = [1], {"none": None}

    @st.compile
    def f(x: Any) -> Any:
        missing = 100.0 if table.get("none", 0) is not None else 0.0
        return x + float(sum(items)) + missing + 200.0 * (len(table) - 1 if len(table) > 1 else 0)

    x = st.tensor(np.float32(10))
    for _ in range(3):
        assert float(f(x)) == 11
    change(items, table)
    assert float(f(x)) == answer


def test_a_variable_that_is_gone_is_seen_by_calls_with_like_arguments() -> None:
    def made() -> tuple[Any, Any]:
        times = 2.0

        def forget() -> None:
            nonlocal times
            del times

        return st.compile(lambda x: x * times), forget

    f, forget = made()
    x = st.tensor(np.float32(10))
    for _ in range(3):
        assert float(f(x)) == 20
    forget()
    with pytest.raises(NameError):
        f(x)


class Stopped(BaseException):
    """What the handler of a signal raises."""


def _stop(number: int, frame: Any) -> None:
    raise Stopped


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_signal_at_any_moment_of_a_call_leaves_the_lock_to_other_threads() -> None:
    f = st.compile(lambda x, y: x + y)
    x, y = (st.tensor(np.ones(4, np.float32)) for _ in range(2))
    for _ in range(3):
        f(x, y)
    before = signal.signal(signal.SIGALRM, _stop)
    stopped, deadline = 0, time.monotonic() + LIMIT_S
    try:
        for k in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-7 * k)
                while time.monotonic() < deadline:
                    f(x, y)
            except Stopped:
                stopped += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    free: list[bool] = []

    def take() -> None:
        free.append(LOCK.acquire(timeout=5))
        LOCK.release()

    thread = threading.Thread(target=take)
    thread.start()
    joined(thread)
    assert (stopped, free) == (300, [True])
    assert np.array_equal(f(x, y).numpy(), np.full(4, 2))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_signal_while_a_call_waits_for_another_thread_is_what_is_raised() -> None:
    f = st.compile(lambda x: x + 1)
    x = st.tensor(np.ones(4, np.float32))
    for _ in range(3):
        f(x)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(LIMIT_S)
    before = signal.signal(signal.SIGALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stopped):
            f(x)
    finally:
        done.set()
        joined(thread)
        signal.signal(signal.SIGALRM, before)
    assert np.array_equal(f(x).numpy(), np.full(4, 2))
