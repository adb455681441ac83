"""Copies and pickles of compiled functions and of what holds them: functions of their own."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import stratal as st
from stratal import nn


class Holding(nn.Module):
    """Holds its compiled method, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.fast = st.compile(self.forward, dynamic=False, audit=False)

    def forward(self, x: st.Tensor) -> st.Tensor:
        return self.inner(x)


class Decorated(nn.Module):
    """Has a method that is compiled in its class."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    @st.compile
    def fast(self, x: st.Tensor) -> st.Tensor:
        return self.inner(x)


@st.compile
def found_by_name(x: st.Tensor) -> st.Tensor:
    return x + 1


def plain(x: st.Tensor) -> st.Tensor:
    return x + 1


def pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))  # noqa: S301


OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    # how it is made, what is called, and the weights it reads
    "module that holds one": (Holding, lambda n: n.fast, lambda n: n.inner),
    "method": (lambda: Holding().fast, lambda f: f, lambda f: f._function.__self__.inner),
    "module with a decorated method": (Decorated, lambda n: n.fast, lambda n: n.inner),
    "decorated method": (lambda: Decorated().fast, lambda f: f, lambda f: f._function.__self__.inner),
    "compiled module": (lambda: st.compile(nn.Linear(2, 2)), lambda c: c, lambda c: c),
    "module in a compiled one": (lambda: st.compile(Holding()), lambda c: c, lambda c: c.inner),
}


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_a_copy_computes_with_its_own_weights(kind: str, copied: Callable[[Any], Any], called: bool) -> None:
    make, function_of, weights_of = OBJECTS[kind]
    first, x = make(), st.ones(1, 2)
    if called:
        function_of(first)(x)
    second = copied(first)
    assert type(second) is type(first)
    assert function_of(second).captures == 0
    before = function_of(first)(x).tolist()
    assert function_of(second)(x).tolist() == before
    with st.no_grad():
        weights_of(second).weight.zero_()
        weights_of(second).bias.zero_()
    assert function_of(second)(x).tolist() == [[0.0, 0.0]]
    assert function_of(first)(x).tolist() == before


def test_a_copy_keeps_how_it_is_to_be_captured() -> None:
    made = copy.deepcopy(Holding()).fast
    assert (made._dynamic, made._audit, made._name) == (False, False, "forward")


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_shallow_copy_shares_the_weights(kind: str) -> None:
    make, function_of, _ = OBJECTS[kind]
    first, x = make(), st.ones(1, 2)
    expected = function_of(first)(x).tolist()
    assert function_of(copy.copy(first))(x).tolist() == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_function_found_by_its_name_is_itself_as_other_functions_are(copied: Callable[[Any], Any]) -> None:
    assert copied(found_by_name) is found_by_name
    for function in (plain, functools.partial(plain)):
        assert copied(st.compile(function))(st.ones(1)).tolist() == [2.0]


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(st.compile(lambda x: x * 2))
