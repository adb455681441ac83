"""A name of another library that is not here: an error that says what there is instead."""

from __future__ import annotations

import pytest

import stratal as st
from stratal import nn
from stratal.base.elsewhere import _BY_NAME


@pytest.mark.parametrize(
    ("read", "hint"),
    [
        (lambda: st.cuda, "only the CPU"),
        (lambda: st.autograd, "st.grad"),
        (lambda: st.ones(2).cuda, "only the CPU"),
        (lambda: st.ones(2).stride, "x.numpy"),
        (lambda: nn.Linear(2, 2).cuda, "only the CPU"),
        (lambda: nn.DataParallel, "all cores"),
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
