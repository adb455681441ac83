"""Compiled functions called with many sizes: few programs, the results of code captured for each size."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.tensor.capture.recaptures import RecompileWarning

F = nn.functional


def calls(function, sizes, **options):
    """Return a compiled function after calls at some sizes, each compared with the function itself."""
    compiled = st.compile(function, **options)
    for shape in sizes:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        got, want = compiled(st.tensor(x)), function(st.tensor(x))
        assert got.shape == want.shape
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), 1e-5, 1e-6)
    return compiled


def normalised(x):
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


def test_the_second_size_of_an_axis_makes_it_symbolic():
    assert calls(normalised, [(n, 4) for n in (5, 9, 3, 16, 1, 12)]).captures == 2
    assert calls(normalised, [(n, 4) for n in (5, 9, 3, 16, 1, 12)], dynamic=True).captures == 1
    assert calls(normalised, [(n, 4) for n in (5, 9, 3)], dynamic=False).captures == 3


def test_capacities_grow_with_the_logarithm_of_sizes():
    assert calls(normalised, [(n, 2) for n in range(1, 200, 7)]).captures <= 7


def test_a_result_has_the_size_of_the_call():
    f = calls(lambda x: x[:, 1:] * 2, [(2, 5), (3, 7), (7, 3)])
    assert f.captures == 2
    assert f(st.ones(4, 9)).shape == (4, 8)


def test_what_a_function_asks_of_a_size_narrows_its_bounds():
    def by_size(x):
        return x * 2 if x.shape[0] < 8 else x.sum(0)

    f = calls(by_size, [(n, 3) for n in (5, 6, 7, 2, 12, 9, 14, 10)])
    assert f.captures <= 4


def test_a_size_python_needs_is_captured_each_time():
    def powers(x):
        return sum((x**k for k in range(x.shape[0])), st.zeros(()))

    f = calls(powers, [(n, 3) for n in (2, 3, 4, 3)])
    assert f.captures == 3


def test_axes_of_equal_sizes_share_a_symbol_until_they_differ():
    @st.compile
    def joined(x, y):
        return st.cat([x, y], 0).mean(0)

    for n, m in ((3, 3), (5, 5), (7, 7), (4, 6), (9, 2)):
        x, y = np.ones((n, 2), np.float32), np.zeros((m, 2), np.float32)
        np.testing.assert_allclose(np.asarray(joined(x, y)), n / (n + m), 1e-6)
    assert joined.captures <= 4


def test_arguments_changed_in_place_keep_their_meaning():
    @st.compile
    def grow(x):
        x += 1
        return x.sum()

    for n in (2, 3, 4):
        x = st.zeros(n)
        assert float(grow(x)) == n
        np.testing.assert_array_equal(np.asarray(x), np.ones(n))


def test_results_that_carry_gradients_keep_them():
    w = st.ones(3, requires_grad=True)

    @st.compile
    def predict(x):
        return (x * w).sum(1)

    for n in (2, 3, 4):
        w.grad = None
        predict(st.ones(n, 3)).sum().backward()
        np.testing.assert_array_equal(np.asarray(w.grad), np.full(3, n))


def test_nothing_is_as_good_a_size_as_any():
    f = st.compile(lambda x: x.sum(0))
    for n in (2, 3, 0, 4):
        np.testing.assert_array_equal(np.asarray(f(st.ones(n, 2))), np.full(2, n))


def test_an_error_of_the_function_is_its_own():
    @st.compile
    def fails(x):
        return x @ st.ones(4, 2)

    for n in (2, 3):
        with pytest.raises(st.StratalError, match="matmul"):
            fails(st.ones(n, 3))


def test_an_index_beyond_the_size_of_the_call_is_an_error():
    f = st.compile(lambda x, i: x[i])
    for n in (4, 5, 6):
        assert float(f(st.arange(n), st.tensor([n - 1]))) == n - 1
    with pytest.raises(IndexError):
        np.asarray(f(st.arange(5), st.tensor([5])))


class _Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 30)

    def forward(self, words):
        h = self.encoder(self.embed(words))
        return self.head(self.norm(h.transpose(1, 2)).transpose(1, 2))


def _losses(dynamic, steps, most=12):
    """Return the losses of a training loop over batches of up to `most` sequences of up to `most` words."""
    st.manual_seed(0)
    model = _Tagger()
    optimizer = optim.SGD(model.parameters(), 0.1)

    @st.compile(dynamic=dynamic)
    def step(words, tags):
        loss = F.cross_entropy(model(words).reshape(-1, 30), tags.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)
    found = []
    for _ in range(steps):
        words = rng.integers(0, 30, rng.integers((1, 2) if most > 12 else 2, most, 2))
        found.append(float(step(words, (words * 7 + 3) % 30)))
    return np.array(found), step, model


@pytest.mark.sampled(5)
@pytest.mark.row("A13")
def test_training_follows_the_losses_of_code_captured_for_each_size():
    got, step, ours = _losses(None, 8)
    want, each, theirs = _losses(False, 8)
    assert step.captures <= 4 < each.captures
    np.testing.assert_allclose(got, want, 1e-4)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(np.asarray(ours.state_dict()[name]), np.asarray(value), 1e-4, 1e-5)


def test_a_size_that_has_a_program_of_its_own_keeps_it():
    f = calls(normalised, [(64, 4), (10, 4), (64, 4), (10, 4)])
    assert f.captures == 2
    assert f(st.ones(64, 4)).shape == (64, 4) and not f.graph.inputs[0].op.label.startswith("arg0_0")


def test_an_argument_that_keeps_changing_is_named_in_a_warning():
    @st.compile
    def scaled(x, times):
        return x * times

    x = st.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(16):
            scaled(x, n)
    with pytest.warns(RecompileWarning, match=r"captured 17 times, since argument 'times' keeps") as caught:
        scaled(x, 16)
    assert len(str(caught[0].message).splitlines()) == 4 and "argument 'times' changed from 15 to 16" in str(
        caught[0].message
    )
    assert caught[0].filename == __file__
    assert scaled.captures == len(scaled.reasons) == 17


@pytest.mark.slow
def test_five_hundred_batches_of_forty_sizes_by_forty_lengths_take_at_most_twelve_programs():
    got, step, _ = _losses(None, 500, 41)
    want, each, _ = _losses(False, 40, 41)
    assert step.captures <= 12 < each.captures
    np.testing.assert_allclose(got[:40], want, 1e-4)
    assert np.mean(got[-20:]) < 0.5 * got[0]
