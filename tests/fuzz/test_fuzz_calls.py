"""Odd calls of public names end in a result or a four-line error; fuzz_calls.py is the long form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fuzz_calls import fuzz

import stratal as st
from stratal import nn, optim


@pytest.mark.sampled(8)
def test_odd_calls_give_a_result_or_a_four_line_error() -> None:
    assert fuzz(500, seed=11) == {}


def test_a_call_python_cannot_make_sense_of_is_shown_as_it_was_written() -> None:
    with pytest.raises(st.StratalError, match="concat: does not take these arguments") as found:
        st.concat(st.ones(4).shape[0], {1, 2})
    lines = str(found.value).splitlines()
    assert "4, {1, 2}" in lines[1] and "test_fuzz_calls.py" in lines[2] and "Python says" in lines[3]
    assert isinstance(found.value, TypeError) and found.value.__cause__ is not None


def test_methods_and_layers_explain_like_functions() -> None:
    for call in (lambda: st.ones(4).chunk("a"), lambda: nn.Linear("a", 2), lambda: nn.Linear(2, 2)(3.0)):
        with pytest.raises(st.StratalError) as found:
            call()
        assert [line.split(":")[0].strip() for line in str(found.value).splitlines()[1:]] == [
            "got",
            "where",
            "hint",
        ]


def test_an_error_in_a_function_of_the_users_stays_theirs() -> None:
    def distance(x: st.Tensor, y: st.Tensor) -> st.Tensor:
        raise KeyError("mine")

    x = st.ones(2, 3)
    with pytest.raises(KeyError, match="mine") as found:
        nn.functional.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)
    assert not isinstance(found.value, st.StratalError)


def test_a_call_that_does_not_bind_is_pythons_to_refuse() -> None:
    with pytest.raises(TypeError, match="missing") as found:
        st.where()
    assert not isinstance(found.value, st.StratalError)


class Own(nn.Module):
    def forward(self, x: st.Tensor) -> st.Tensor:
        return x + self.nothing


def test_a_module_of_the_users_raises_what_it_raises() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        Own()(st.ones(2))


@pytest.mark.parametrize("make", [
    lambda: st.broadcast_to(st.ones(1), (1 << 40,)), lambda: st.zeros((1 << 20, 1 << 20)),
        lambda: st.arange(1 << 41),
    lambda: st.ones(3).expand(1 << 40, 3), lambda: st.rand(1 << 40), lambda: st.eye(1 << 21),
    lambda: nn.functional.adaptive_max_pool1d(st.ones(2, 8, 4), 1 << 40),
], ids=["broadcast", "zeros", "arange", "expand", "rand", "eye", "windows"])  # fmt: skip
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
def test_absurd_sizes_are_refused_before_anything_is_allocated(make, eager) -> None:
    with pytest.raises(st.StratalError):
        if eager:
            with st.eager():
                make()
        else:
            np.asarray(make())


def test_every_key_that_does_not_fit_is_named_at_once() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(st.StratalError, match=r"weight.*bias.*other"):
        layer.load_state_dict({"weight": {1, 2}, "other": st.ones(1)})
    opt = optim.SGD([nn.Parameter(st.ones(2)), nn.Parameter(st.ones(3))], lr=0.1, momentum=0.9)
    state = opt.state_dict()
    state["state"] = {k: {"momentum_buffer": st.ones(7)} for k in range(2)}
    with pytest.raises(st.StratalError, match=r"parameter 0: \[7\] for \[2\].*parameter 1: \[7\] for \[3\]"):
        opt.load_state_dict(state)


def test_a_handle_of_a_waiting_leaf_has_its_value_whichever_is_computed_first() -> None:
    leaf = nn.Parameter(st.tensor(np.ones((2, 2))).astype("float32"))
    handle = leaf.detach()
    assert (
        np.asarray(handle.detach()).sum() == np.asarray(leaf.detach()).sum() == np.asarray(handle).sum() == 4
    )


def test_a_diagonal_is_of_the_first_two_axes_and_in_linalg_of_the_last() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(st.diagonal(st.tensor(x), 1), np.diagonal(x, 1))
    assert np.array_equal(st.tensor(x).diagonal(), np.diagonal(x))
    assert np.array_equal(st.linalg.diagonal(st.tensor(x)), np.linalg.diagonal(x))
    assert np.array_equal(st.trace(st.tensor(x)), np.trace(x))
    assert np.array_equal(st.linalg.trace(st.tensor(x)), np.linalg.trace(x))


@pytest.mark.parametrize("n", [5, 9, 1 << 63])
def test_more_differences_than_elements_leave_nothing(n: int) -> None:
    x = np.arange(6.0)
    assert np.array_equal(st.diff(st.tensor(x), n=n), np.diff(x, n=min(n, 9)))


@pytest.mark.parametrize("rows", [1, 700])
@pytest.mark.parametrize("axis", [0, 1])
def test_operands_joined_far_apart_are_read_where_they_are(rows: int, axis: int) -> None:
    """Most lanes of a join are masked for all operands but one: their addresses lie far outside."""
    x, y = (np.random.default_rng(k).standard_normal((rows, 333)).astype(np.float32) for k in range(2))
    parts = [x, y, x[:, :333] * 2]
    joined = st.concat([st.tensor(p) for p in parts], axis=axis)
    assert np.array_equal(joined, np.concatenate(parts, axis=axis))
    flat = st.concat([st.tensor(p) for p in parts], axis=None)
    assert np.array_equal(flat, np.concatenate(parts, axis=None))


@pytest.mark.parametrize("again", [False, True])
def test_pairs_are_the_combinations_in_order(again: bool) -> None:
    choose = itertools.combinations_with_replacement if again else itertools.combinations
    x = np.arange(7.0)
    assert np.array_equal(st.combinations(st.tensor(x), 2, again), list(choose(x, 2)))


def test_numbers_and_scalars_where_arrays_belong_mean_what_they_mean_elsewhere() -> None:
    assert st.atleast_2d([1, 2]).shape == (1, 2) and st.atleast_3d((0, 1)).shape == (1, 2, 1)
    assert [t.shape for t in st.atleast_1d([st.tensor(1.0), st.ones(3)])] == [(1,), (3,)]
    assert st.index_select(st.ones(4, 3), 0, st.tensor(2)).shape == (1, 3)
    with pytest.raises(st.StratalError, match="both x and y"):
        st.where(st.ones(2) > 0, st.ones(2), None)
