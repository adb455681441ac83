"""Laziness: what runs when, what a flush computes together, what in-place updates leave alone, what compiles
again.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import DonatedBufferError, NotDifferentiableError
from stratal.tensor.lazy import flushing, program_cache


def compiled_during(work) -> int:
    before = program_cache.COMPILED[0]
    work()
    return program_cache.COMPILED[0] - before


def is_finished(x: st.Tensor) -> bool:
    return x._storage is not None


def small_model():
    st.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    rng = np.random.default_rng(0)
    x = st.tensor(rng.standard_normal((16, 4)).astype(np.float32))
    y = st.tensor(rng.integers(0, 3, 16))
    return net, x, y


def test_building_ops_runs_nothing():
    x = st.tensor([1.0, 2.0])
    y = (x * 2.0).sum()
    assert not is_finished(y)
    assert y.item() == 6.0
    assert is_finished(y)


@pytest.mark.row("A3")
def test_only_the_ancestors_of_what_is_asked_run():
    calls = []

    def count(array):
        calls.append(1)
        return array

    x = st.tensor([1.0, 2.0])
    asked = st.host_call(count, x, x, pure=True) + 1.0
    unasked = st.host_call(count, x, x * 3.0, pure=True)
    assert asked.tolist() == [2.0, 3.0]
    assert len(calls) == 1
    assert not is_finished(unasked)


def test_a_flush_computes_live_tensors_that_share_its_work():
    x = st.tensor([1.0, 2.0])
    shared = x.exp()
    first, second, other = shared.sum(), shared.max(), x.sin()
    assert first.item() == pytest.approx(np.exp([1, 2]).sum())
    assert is_finished(second)
    assert is_finished(shared)
    assert not is_finished(other)


def test_dropped_tensors_are_not_computed():
    calls = []
    x = st.tensor([1.0])
    y = st.host_call(lambda a: calls.append(1) or a, x, x, pure=True)
    del y
    flushing.flush_all()
    assert not calls


def test_a_tensor_keeps_its_value_when_another_is_changed_in_place():
    x = st.tensor([1.0, 2.0])
    y = x * 10.0
    x += 1.0
    x.numpy()
    assert y.tolist() == [10.0, 20.0]
    assert x.tolist() == [2.0, 3.0]


@pytest.mark.row("A2")
def test_an_exported_view_keeps_its_value_when_the_cell_is_written():
    x = st.tensor([1.0, 2.0])
    view = np.asarray(x)
    x += 1.0
    assert x.tolist() == [2.0, 3.0]
    assert view.tolist() == [1.0, 2.0]
    again = np.asarray(x)
    del view
    x += 1.0
    assert x.tolist() == [3.0, 4.0]
    assert again.tolist() == [2.0, 3.0]


def test_a_cell_nobody_looks_at_is_written_where_it_stands():
    x = st.tensor([1.0, 2.0])
    before = x._storage
    x += 1.0
    x.tolist()
    assert x._storage is before
    alias = x.detach()
    x += 1.0
    x.tolist()
    assert x._storage is not before
    assert alias.tolist() == [3.0, 4.0]


def test_a_copy_is_changed_without_the_others_and_a_view_with_all_of_them():
    for make in (st.tensor, lambda x: x.clone(), lambda x: st.asarray(x, copy=True)):
        x = st.tensor([1.0, 2.0])
        a = make(x)
        b = make(a)
        a += 1.0
        assert a.tolist() == [2.0, 3.0]
        b *= 10.0
        assert b.tolist() == [10.0, 20.0]
        x -= 1.0
        assert (x.tolist(), a.tolist(), b.tolist()) == ([0.0, 1.0], [2.0, 3.0], [10.0, 20.0])
    for make in (lambda x: x.detach(), lambda x: x[:], lambda x: st.reshape(x, 2)):
        x = st.tensor([1.0, 2.0])
        a = make(x)
        b = make(a)
        a += 1.0
        assert x.tolist() == a.tolist() == b.tolist() == [2.0, 3.0]
        x -= 1.0
        assert x.tolist() == a.tolist() == b.tolist() == [1.0, 2.0]
    key = st.random.default_generator().next_key()
    before = key.item()
    st.rand(2).numpy()
    assert key.item() == before
    key += 1
    st.rand(2).numpy()
    assert key.item() == before + 1


def test_aliases_of_a_parameter_hold_the_documented_values_after_a_step():
    net, x, y = small_model()
    opt = optim.SGD(net.parameters(), lr=0.5)
    weight = net[0].weight
    old = weight.tolist()
    view, detached, copied = np.asarray(weight), weight.detach(), weight.clone()
    output = net(x)
    expected_output = (np.tanh(np.asarray(x) @ view.T + np.asarray(net[0].bias))).astype(np.float32)
    expected_output = expected_output @ np.asarray(net[2].weight).T + np.asarray(net[2].bias)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    opt.step()
    gradient = weight.grad.tolist()
    assert weight.tolist() != old
    np.testing.assert_allclose(
        weight.tolist(), np.array(old) - 0.5 * np.array(gradient), rtol=1e-4, atol=1e-6
    )
    assert view.tolist() == old
    assert detached.tolist() == weight.tolist()
    assert copied.tolist() == old
    np.testing.assert_allclose(np.asarray(output), expected_output, rtol=1e-4, atol=1e-5)
    held = weight.grad
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
    assert held.tolist() == gradient
    assert weight.grad.tolist() != gradient


def test_a_step_leaves_no_history_behind():
    net, x, y = small_model()
    opt = optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(net(x), y)
        losses.append(loss)
        opt.zero_grad()
        loss.backward()
        opt.step()
    assert all(loss._node is None for loss in losses)
    with pytest.raises(NotDifferentiableError, match="used up"):
        losses[0].backward()
    assert losses[0].item() > losses[2].item()


def test_a_value_that_was_overwritten_is_an_error_not_a_wrong_number():
    p = st.ones(20_000).requires_grad_()
    loss = (p * p).sum()
    loss.item()
    with st.no_grad():
        p -= 0.5
    p.numpy()
    with pytest.raises((DonatedBufferError, NotDifferentiableError)):
        loss.backward()
        p.grad.numpy()


def test_printing_between_forward_and_backward_changes_nothing():
    def run(look: bool):
        p = st.tensor([1.0, 2.0, 3.0], requires_grad=True)
        hidden = (p * 2.0).tanh()
        loss = (hidden * hidden).sum()
        if look:
            repr(hidden)
            repr(loss)
        loss.backward()
        if look:
            repr(p.grad)
        return p.grad.tolist()

    assert run(True) == run(False)


def test_fresh_parameters_are_made_before_the_step_that_uses_them():
    net, x, y = small_model()
    opt = optim.Adam(net.parameters(), lr=0.01)
    counts = []
    for _ in range(4):
        before = program_cache.COMPILED[0]
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        counts.append(program_cache.COMPILED[0] - before)
    assert counts[0] <= 1
    assert counts[1:] == [0, 0, 0]


def test_a_number_that_changes_at_one_place_becomes_an_input():
    x = st.tensor(np.full(20_000, 2.0, np.float32))

    def scaled(rate):
        return (x * rate).tolist()

    assert compiled_during(lambda: scaled(0.1)) == 1
    assert compiled_during(lambda: scaled(0.1)) == 0
    assert compiled_during(lambda: scaled(0.2)) == 1
    assert compiled_during(lambda: [scaled(r) for r in (0.3, 0.4, 0.5)]) == 0
    np.testing.assert_allclose(scaled(0.7), 1.4, rtol=1e-6)


def test_training_in_lazy_style_compiles_at_most_three_programs():
    net, x, y = small_model()
    net.append(nn.Dropout(0.1))
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 200)
    before = program_cache.COMPILED[0]
    for k in range(60):
        net.train()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if k % 2:
            opt.step()
            opt.zero_grad()
            schedule.step()
        else:
            flushing.end_step()
            loss.item()
        net.eval()
        with st.no_grad():
            net(x).argmax(1).numpy()
    assert program_cache.COMPILED[0] - before <= 6


def test_the_random_state_moves_on_with_every_run():
    st.manual_seed(7)
    counts = [compiled_during(lambda: st.rand(4).tolist()) for _ in range(4)]
    assert counts[1:] == [0, 0, 0]
    st.manual_seed(7)
    a, b = st.rand(4).tolist(), st.rand(4).tolist()
    st.manual_seed(7)
    assert st.rand(4).tolist() == a
    assert st.rand(4).tolist() == b
    assert a != b


def test_storage_is_freed_when_nobody_holds_the_tensor():
    x = st.tensor(np.zeros(1 << 15, np.float32))  # memory of small ones is used again
    reference = weakref.ref(x._storage)
    y = x.exp()
    del x
    gc.collect()
    assert reference() is not None
    y.numpy()
    gc.collect()
    assert reference() is None


def test_many_updates_without_a_look_do_not_recurse():
    p = st.tensor([0.0], requires_grad=True)
    for _ in range(300):
        loss = ((p - 1.0) ** 2).sum()
        (g,) = st.gradients(loss, [p])
        with st.no_grad():
            p -= 0.1 * g
    assert p.item() == pytest.approx(1.0)


@pytest.mark.sampled(4)
def test_a_chain_of_twenty_thousand_ops_builds_without_recursion():
    x = st.tensor([1.0], requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 0.0
    assert not is_finished(y)
    y.sum().backward()
    assert x.grad is not None


def test_effects_happen_exactly_once():
    calls = []
    x = st.tensor([1.0])
    y = st.host_call(lambda a: calls.append(float(a[0])) or a, x, x * 2.0)
    assert calls == [2.0]
    (y + 1.0).numpy()
    (y + 2.0).numpy()
    st.host_call(lambda a: calls.append("seen"), None, y)
    assert calls == [2.0, "seen"]


def test_an_interrupt_during_a_run_loses_no_update(monkeypatch):
    import signal

    p = st.tensor([0.0])
    run = program_cache.run

    def interrupted(program, inputs):
        found = run(program, inputs)
        signal.raise_signal(signal.SIGINT)
        return found

    p.exp_()
    monkeypatch.setattr(program_cache, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        p.numpy()
    monkeypatch.undo()
    assert p.tolist() == [1.0]


def test_an_error_names_this_line_where_equal_work_ran_before():
    x = st.tensor(np.arange(5.0))
    assert (st.take(x, st.tensor([1, 2])) + 1.0).numpy().tolist() == [2.0, 3.0]
    wrong = st.take(x, st.tensor([1, 9])) + 1.0
    with pytest.raises(IndexError) as caught:
        wrong.numpy()
    line = test_an_error_names_this_line_where_equal_work_ran_before.__code__.co_firstlineno + 3
    assert [where.line for where in caught.value.where] == [line]


def test_what_has_no_elements_is_computed_by_nobody():
    x = st.tensor(np.ones((0, 3)))
    above = st.triu(st.expand_dims(x, -1) > st.expand_dims(x, -2), 1)
    assert st.sum(above, axis=(-2, -1)).numpy().tolist() == []


def test_a_sum_of_nothing_is_zero():
    x, y = np.zeros((2, 2, 0), np.uint8), np.zeros((2, 0, 1), np.uint8)
    assert st.tensordot(x, y).numpy().tolist() == [[0], [0]]
    assert (st.sum(st.ones((3, 0)), axis=1) + 1.0).numpy().tolist() == [1.0, 1.0, 1.0]


def test_parameters_written_twice_beside_a_counter_they_read_are_computed_in_order():
    """The counter must not be written before the second value, which waits for the first, has read it."""
    a, b, n = nn.Parameter(np.ones(3, np.float32)), nn.Parameter(np.zeros(3, np.float32)), st.tensor(0)
    with st.no_grad():
        a.copy_(st.tensor(np.full(3, 2, np.float32)))
        b.copy_(b + a / (n.astype(b.dtype) + 1))
        b.copy_(st.where(n == 0, a + b, a))
        n.copy_(n + 1)
        flushing.end_step()
    np.testing.assert_array_equal(np.asarray(b), np.full(3, 4))
    np.testing.assert_array_equal(np.asarray(a), np.full(3, 2))
    assert int(n) == 1


def test_a_tensor_that_is_detached_again_and_again_is_remembered_once() -> None:
    x = st.ones((3,))
    others = [x.detach() for _ in range(100)]
    handles = list(x._storage.handles.values())
    assert len(handles) == 101 and sum(h() is x for h in handles) == 1
    del others
    x.detach()
    assert list(x._storage.handles) == [id(x)]  # the dead are gone
