"""Writes through views at the edges: what history they leave, stretched views, views of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, DTypeError, NotDifferentiableError

WRITES: dict[str, Callable[[st.Tensor], Any]] = {
    "element": lambda t: t.__setitem__(0, 0.0),
    "mask": lambda t: t.__setitem__(t > 1, 0.0),
    "zero_": lambda t: t.zero_(),
    "clamp_": lambda t: t.clamp_(max=1.0),
    "mul_": lambda t: t.mul_(2.0),
    "a view": lambda t: t[1:].add_(1.0),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("looked", [False, True])
def test_a_write_without_gradients_leaves_a_used_up_history_used_up(name: str, looked: bool) -> None:
    w = st.ones(3, requires_grad=True)
    h = w * 2
    optimizer = st.optim.SGD([w], lr=0.1)
    w.grad = st.ones(3)
    optimizer.step()
    w.grad = None
    if looked:
        h.tolist()
    with st.no_grad():
        WRITES[name](h)
    b = st.ones(3, requires_grad=True)
    assert h.requires_grad
    with pytest.raises(NotDifferentiableError, match="used up"):
        ((h * 3).sum() + b.sum()).backward()


def test_a_part_of_a_stretched_view_is_not_written_to() -> None:
    base = st.zeros(3)
    for stretched in (base.expand(2, 3), st.zeros(3).expand(2, 3), (base + 1).expand(2, 3)):
        before = stretched.tolist()
        part = stretched[1]
        with pytest.raises(AttributeValueError, match="stretched"):
            part += 1
        with pytest.raises(AttributeValueError, match="stretched"):
            stretched[1] += 1
        assert stretched.tolist() == before
    one = st.zeros(1, 3)
    same = one.expand(1, 3)[0]
    same += 1
    assert one.tolist() == [[1.0, 1.0, 1.0]]


def test_numpy_sees_what_members_of_a_memory_show_a_stretched_one_too() -> None:
    x = st.arange(4) + 1
    stretched, rest = x[:1].expand(3), x[2:]
    del x
    assert rest.numpy().tolist() == [3, 4]
    assert stretched.tolist() == [1, 1, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_view_of_nothing_stays_one_when_its_base_is_written(compiled: bool) -> None:
    a = st.arange(5.0) * 1
    strided = a[::3]
    empty = strided[2:]
    a += 1
    assert empty.tolist() == []
    assert strided.tolist() == [1.0, 4.0]
    function = st.compile(lambda x: x[::3][2:] * 2) if compiled else (lambda x: x[::3][2:] * 2)
    assert function(a).tolist() == []


def test_integers_are_written_in_place_as_integers_whatever_their_width() -> None:
    x = st.tensor([250, 7], dtype=st.uint8)
    x += st.tensor([3, -8])
    assert x.tolist() == [253, 255]
    assert x.dtype is st.uint8
    with pytest.raises(DTypeError):
        x += st.tensor([0.5, 0.5])


def test_numbers_have_an_axis_to_name() -> None:
    z = st.tensor(3.0)
    for function in (st.sum, st.mean, st.amax, st.prod, st.logsumexp, st.flip):
        for axis in (0, -1):
            assert np.shape(function(z, axis)) == ()
        with pytest.raises(st.StratalError):
            function(z, 1)
    assert st.cumsum(z, 0).shape == ()
    assert st.cumsum(z).shape == (1,)


def test_products_of_sums_are_of_the_dtype_of_the_sum() -> None:
    small = st.tensor([100], dtype=st.int8)
    assert st.add(st.tensor([1.5]), st.tensor([200], dtype=st.uint8), alpha=2).tolist() == [401.5]
    assert st.addcmul(st.tensor([0.0]), small, small).tolist() == [10000.0]
    assert st.add(st.ones(1, dtype=st.bfloat16), 0.5, alpha=2).dtype is st.bfloat16
    assert st.add(st.ones(1, dtype=st.int8), 3, alpha=2).dtype is st.int8
    found = st.nan_to_num(st.tensor([np.nan, np.inf, -np.inf]), nan=np.inf, posinf=1.0)
    assert found.tolist()[:2] == [np.inf, 1.0]


def test_empty_vectors_join_arrays_of_more_axes() -> None:
    assert st.cat([st.tensor([]), st.ones(2, 2)]).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert st.cat([st.ones(2, 2), st.tensor([]), st.zeros(2, 1)], 1).shape == (2, 3)
    assert st.cat([st.tensor([]), st.ones(2, 2, dtype=st.int32)]).dtype is st.float32
    with pytest.raises(st.StratalError):
        st.cat([st.ones(0, 3), st.ones(2, 2)])


def test_bools_stay_bools_and_powers_of_them_are_integers() -> None:
    a, b = st.tensor([True, False]), st.tensor([True, True])
    for function in (st.fmax, st.fmin, st.heaviside, st.outer):
        assert function(a, b).dtype is st.bool
    assert st.outer(a, b).tolist() == [[True, True], [False, False]]
    assert (a**2).dtype is st.int64
    assert (a**1).tolist() == [1, 0]
    assert st.fmax(a, st.tensor([2, 3])).dtype is st.int64
