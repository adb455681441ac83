"""Random programs of in-place updates, reads, histories and gradients: laziness shows in timing alone.

A program runs on cells of Stratal and, op by op, on a model of what they mean: NumPy values, each made by a
function of earlier ones that PyTorch can differentiate. Gradients through a value that was overwritten since
may be refused, as PyTorch does; they may not be wrong.
"""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from interpreted import interpreted

import stratal as st
from stratal.base.errors import (
    CompilerError,
    DonatedBufferError,
    IndexOutOfRangeError,
    NotDifferentiableError,
)
from stratal.tensor.lazy import execution, program_cache

SIZE = 3
REFUSED = (DonatedBufferError, NotDifferentiableError)


# -- what failed ---------------------------------------------------------------------------------------------
def test_old_and_new_values_of_a_cell_are_read_together():
    w = st.ones(2).requires_grad_(True)
    loss = (w**2).sum()
    loss.backward()
    with st.no_grad():
        w.add_(w.grad, alpha=-0.1)
    after = (w**2).sum()
    np.testing.assert_allclose(st.stack([loss.detach(), after]).detach().numpy(), [2.0, 1.28], rtol=1e-6)


def test_an_average_follows_a_weight_before_and_after_an_update_by_hand():
    w, e = st.ones(2).requires_grad_(True), st.zeros(2)
    expected_w, expected_e = np.ones(2), np.zeros(2)
    for _ in range(4):
        (w**2).sum().backward()
        with st.no_grad():
            e.lerp_(w, 0.3)
            w.add_(w.grad, alpha=-0.1)
            e.lerp_(w, 0.3)
        w.grad = None
        expected_e += 0.3 * (expected_w - expected_e)
        expected_w = 0.8 * expected_w
        expected_e += 0.3 * (expected_w - expected_e)
    np.testing.assert_allclose(e.numpy(), expected_e, rtol=1e-5)
    np.testing.assert_allclose(w.detach().numpy(), expected_w, rtol=1e-5)


def test_a_value_between_two_updates_is_there_although_nobody_holds_that_cell_any_more():
    w = st.ones(2).requires_grad_(True)
    with st.no_grad():
        w.mul_(3.0)
    between = w * 2.0
    with st.no_grad():
        w.copy_(st.zeros(2))
    assert w.tolist() == [0.0, 0.0]
    assert between.tolist() == [6.0, 6.0]


def test_a_cell_whose_old_value_is_read_by_what_failed_is_written_elsewhere():
    x = st.arange(4.0)
    wrong = st.take(x, st.tensor([9]))
    with pytest.raises(IndexError):
        wrong.numpy()
    x += 1.0
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(IndexError):  # as the first time
        wrong.numpy()


def test_a_gradient_reaches_a_leaf_that_was_changed_in_place_before_backward():
    w = st.ones(2).requires_grad_(True)

    def loss_and_gradient():
        loss = (w * 2.0).sum()
        with st.no_grad():
            w.add_(1.0)
        (loss + (w * 3.0).sum()).backward()
        found = w.grad
        w.grad = None
        return found

    assert loss_and_gradient().tolist() == [5.0, 5.0]
    assert st.compile(loss_and_gradient)().tolist() == [5.0, 5.0]
    assert w.tolist() == [3.0, 3.0]


def test_a_gradient_counts_a_leaf_once_whose_update_failed():
    w = st.ones(2).requires_grad_(True)
    (w * 2.0).sum().item()
    with st.no_grad():
        w.copy_(st.take(w, st.tensor([0, 9])))
    with pytest.raises(IndexError):
        w.tolist()
    (w * 2.0).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_copying_under_no_grad_leaves_no_history():
    w = st.ones(2).requires_grad_(True)
    y = st.zeros(2)
    with st.no_grad():
        y.copy_(w)
    assert not y.requires_grad


def test_a_copy_changed_in_place_spares_what_it_was_copied_from():
    x = st.zeros(3)
    copy = x.clone()
    x.requires_grad_()
    copy.add_(1.0)
    assert copy.tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_a_gradient_that_cannot_be_followed_any_more_is_refused_not_left_out():
    w = st.ones(2).requires_grad_(True)
    y = (w * w).tanh()
    with st.no_grad():
        w.add_(1.0)
    w.tolist()
    total = (y + w).sum()
    assert total.item() == pytest.approx(2 * np.tanh(1) + 4)
    with pytest.raises(NotDifferentiableError, match="used up"):
        total.backward()


# -- random programs -----------------------------------------------------------------------------------------
KINDS = [
    "op", "op", "op", "update", "update", "update", "read", "read",
    "detach", "backward", "grad", "data", "export", "drop", "flush",
]  # fmt: skip
COUNTS = some.integers(0, 99)
STEPS = some.lists(
    some.tuples(
        some.sampled_from(KINDS),
        COUNTS,
        COUNTS,
        COUNTS,
    ),
    min_size=4,
    max_size=24,
)
OPS = (
    lambda a, b: a * b,
    lambda a, b: a + b,
    lambda a, b: (a - b).sin(),
    lambda a, b: (a * b).sum() + b,
    lambda a, b: a.tanh() * 0.5 + b[0],
)
NEW = (
    ("add_", lambda a, b: a + b * -0.5, lambda a, b: a.add_(b, alpha=-0.5)),
    ("mul_", lambda a, b: a * b, lambda a, b: a.mul_(b)),
    ("lerp_", lambda a, b: a + 0.3 * (b - a), lambda a, b: a.lerp_(b, 0.3)),
    ("copy_", lambda a, b: a * 0 + b, lambda a, b: a.copy_(b)),
    ("+=", lambda a, b: a + b, lambda a, b: a.__iadd__(b)),
    ("x[i] =", None, lambda a, b: a.__setitem__(1, b[0])),
)


class Both:
    """A program on Stratal's tensors beside its meaning: pairs of a tensor and what PyTorch makes of it."""

    def __init__(self, torch):
        self.torch = torch
        rng = np.random.default_rng(3)
        self.pairs = []
        for k in range(4):
            data = rng.uniform(-1, 1, SIZE)
            twin = torch.tensor(data, dtype=torch.float64)
            self.pairs.append(self.pair(st.tensor(data), twin, leaf=k < 2))
        self.exports = []

    def pair(self, tensor, twin, leaf):
        """Return a tensor, its value now, whether it is a leaf, and all values it had."""
        if leaf:
            tensor.requires_grad_(True)
            twin = twin.detach().requires_grad_(True)
        return [tensor, twin, leaf, [twin]]

    def step(self, kind, i, j, k):
        pairs = self.pairs
        a, b = pairs[i % len(pairs)], pairs[j % len(pairs)]
        if kind == "op":
            op = OPS[k % len(OPS)]
            pairs.append(self.pair(op(a[0], b[0]), op(a[1], b[1]), leaf=False))
        elif kind == "detach":
            pairs.append(self.pair(a[0].detach().clone(), a[1].detach().clone(), leaf=False))
        elif kind == "update":
            self.update(a, b, *NEW[k % len(NEW)][1:])
        elif kind == "data":
            self.new_value(a, b[1].detach())
            a[0].data = b[0].detach().clone()
        elif kind == "read":
            self.compare(a)
        elif kind == "export":
            self.exports.append((a[0].detach().clone().numpy(), a[1].detach().numpy().copy()))
        elif kind == "flush":
            st.tensor(0.0).item()
            self.compare(pairs[-1])
        elif kind == "drop" and len(pairs) > 5:
            pairs.pop(4)
        elif kind in ("backward", "grad"):
            self.differentiate(a, kind)

    def update(self, a, b, meaning, work):
        with self.torch.no_grad():
            if meaning is None:
                new = a[1].detach().clone()
                new[1] = b[1][0]
            else:
                new = meaning(a[1], b[1])
        self.new_value(a, new)
        with st.no_grad():
            work(a[0], b[0])

    def new_value(self, a, value):
        """The twin becomes another value: whatever was computed from the old one keeps that."""
        a[1] = value.detach().clone().requires_grad_(a[2])
        a[3].append(a[1])

    def differentiate(self, a, kind):
        if not a[1].requires_grad:
            return
        leaves = [p for p in self.pairs if p[2]]
        expected = [self.derivative(a[1].sum(), p[3]) for p in leaves]
        try:
            loss = a[0].sum()
            if kind == "grad":
                found = st.gradients(loss, [p[0] for p in leaves], allow_unused=True)
            else:
                for p in leaves:
                    p[0].grad = None
                loss.backward()
                found = [p[0].grad for p in leaves]
            found = [None if g is None else g.numpy().copy() for g in found]
        except REFUSED:
            return
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.zeros(SIZE) if mine is None else mine, its, rtol=1e-9, atol=1e-12)

    def derivative(self, root, versions):
        """A leaf that was changed in place is one variable, whatever values it had."""
        found = self.torch.autograd.grad(root, versions, retain_graph=True, allow_unused=True)
        return sum((g.numpy() for g in found if g is not None), np.zeros(SIZE))

    def compare(self, pair):
        its = pair[1].detach().numpy()
        np.testing.assert_allclose(pair[0].detach().numpy(), its, rtol=1e-9, atol=1e-12)

    def fall_back(self):
        """A value that could not be had is asked for again; a cell may hold what it held before instead."""
        for pair in self.pairs:
            now = pair[0].detach().numpy()
            before = [v for v in pair[3] if np.allclose(v.detach().numpy(), now, rtol=1e-9, atol=1e-12)]
            assert before, (now, pair[3])
            pair[1] = before[-1]

    def finish(self):
        for pair in reversed(self.pairs):
            self.compare(pair)
        for mine, its in self.exports:
            np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-12)


def run(steps):
    both = Both(pytest.importorskip("torch"))
    with np.errstate(all="ignore"):
        for step in steps:
            both.step(*step)
        both.finish()


@pytest.mark.torch
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_programs_of_in_place_updates_mean_what_they_say(steps):
    with interpreted():
        run(steps)


@pytest.mark.torch
@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_compiled_programs_of_in_place_updates_mean_what_they_say(steps):
    run(steps)


class Failing:
    """Lets every so-many-th call of a function fail, while armed."""

    def __init__(self, function, error, every):
        self.function, self.error, self.every = function, error, every
        self.armed = False
        self.calls = self.failures = 0

    def __call__(self, *args, **kwargs):
        self.calls += self.armed
        if self.armed and self.calls % self.every == 0:
            self.failures += 1
            raise self.error
        return self.function(*args, **kwargs)


@pytest.mark.torch
@pytest.mark.parametrize(
    "owner, name, error",
    [
        (program_cache, "run", IndexOutOfRangeError("take: an index is out of range")),
        (program_cache, "run", ValueError("a host call of the user's")),
        (program_cache, "program_for", CompilerError("schedule: a fault of Stratal")),
        (execution.Storage, "copy_of", MemoryError()),
    ],
    ids=["run", "host call", "compile", "memory"],
)
def test_after_an_error_all_goes_on_as_if_what_failed_had_never_been(owner, name, error):
    torch = pytest.importorskip("torch")
    failing = Failing(getattr(owner, name), error, every=3)
    with mock.patch.object(owner, name, failing):
        for seed in range(60):
            rng = random.Random(seed)
            both = Both(torch)
            with interpreted():
                for _ in range(rng.randrange(4, 30)):
                    step = rng.choice(KINDS), *(rng.randrange(100) for _ in range(3))
                    failing.armed = step[0] != "data"
                    try:
                        both.step(*step)
                    except type(error) as caught:
                        assert caught is error
                        failing.armed = False
                        both.fall_back()
                    failing.armed = False
                both.finish()
    error.__traceback__ = None  # the table of cases outlives the tensors of these frames
    assert failing.failures >= 40
