"""What people who know other libraries try: an error says what there is instead."""

from __future__ import annotations

import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.elsewhere import _BY_NAME
from stratal.base.errors import StratalError


@pytest.mark.parametrize(
    ("read", "hint"),
    [
        (lambda: st.accelerator, "only the CPU"),
        (lambda: st.autograd, "st.grad"),
        (lambda: st.ones(2).stride, "x.numpy"),
        (lambda: nn.DataParallel, "all cores"),
        (lambda: nn.Linear(2, 2).summary(), "print"),
        (lambda: nn.Sequential().fit, "a loop over batches"),
    ],
)
def test_a_name_of_another_library_says_what_is_here(read, hint):
    with pytest.raises(AttributeError, match=f"(?s)has no attribute.*hint:.*{hint}"):
        read()


def test_other_names_are_plain_errors_that_python_finds_a_neighbour_for():
    with pytest.raises(AttributeError) as caught:
        st.ones(2).reshpae(1, 2)
    assert str(caught.value) == "Tensor has no attribute 'reshpae'"
    assert caught.value.name == "reshpae" and isinstance(caught.value.obj, st.Tensor)
    assert not hasattr(st.ones(2), "foo") and not hasattr(st, "foo") and not hasattr(nn, "foo")


def test_what_is_said_to_be_elsewhere_is_not_here():
    assert [n for n in _BY_NAME if hasattr(st, n)] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optim.Adam(nn.Linear(2, 2)), "net.parameters()"),
        (lambda: st.grad(lambda x: float(x) ** 2)(st.tensor(3.0)), "end the derivative"),
        (lambda: st.grad(lambda x: x * 2)(st.ones(3)), "st.vjp"),
        (lambda: st.value_and_grad(lambda x: x.sum(), has_aux=True)(st.ones(3)), "return a pair"),
        (lambda: st.vjp(lambda x: x, st.ones(3), has_aux=True), "return a pair"),
    ],
)
def test_what_newcomers_try_is_refused_with_the_way_to_do_it(call, words):
    with pytest.raises(StratalError) as caught:
        call()
    assert words in str(caught.value)
