"""Signals while a mode is put in force, or back: what was in force outside still is, at every moment."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import signal_points
from signal_points import SignalAt

import stratal as st
from stratal import deferred, nn
from stratal.base import fallback, settings, source
from stratal.inspect.recorder import Recorder
from stratal.tensor.lazy import program_cache
from stratal.tensor.values.state import MODE

pytestmark = pytest.mark.usefixtures("no_callbacks_of_the_collector")
X = st.tensor(np.ones((2, 3), np.float32))


def without_gradients() -> None:
    with st.no_grad():
        pass


def with_gradients_inside() -> None:
    with st.no_grad(), st.enable_grad():
        pass


def for_inference() -> None:
    with st.inference_mode():
        raise_and_catch()


def raise_and_catch() -> None:
    try:
        with st.no_grad():
            raise ValueError
    except ValueError:
        pass


@st.no_grad()
def decorated() -> None:
    assert not st.is_grad_enabled()


def in_16_bits() -> None:
    with st.autocast(dtype=st.bfloat16):
        nn.functional.mse_loss(X, X)


def eagerly() -> None:
    with st.eager():
        st.ones(2)


def under_settings() -> None:
    with settings.using(threads=1, winograd=False):
        pass


def watched() -> None:
    with Recorder():
        pass


def step() -> None:
    weight = st.tensor([1.0]).requires_grad_()
    weight.sum().backward()
    st.optim.SGD([weight], lr=1.0, momentum=0.5, dampening=0.5).step()


def captured() -> None:
    @st.compile
    def scaled(x: Any) -> Any:
        with st.no_grad():
            return x * 2

    scaled(X)


def branches() -> None:
    st.cond(X.sum() > 0, lambda x: x * 2, lambda x: x * 3, X)


def mapped() -> None:
    st.vmap(lambda x: x * 2)(X)


def read() -> None:
    (st.ones(2) * 2).tolist()


def called_functionally() -> None:
    layer = nn.Linear(3, 2)
    st.func.functional_call(layer, dict(layer.named_parameters()), (X,))


def deferred_graph() -> None:
    with deferred.Graph() as graph:
        doubled = deferred.placeholder("float32", (2,)) * 2
    with deferred.Session(graph):
        assert doubled.graph is graph


WORKS = [
    without_gradients, with_gradients_inside, for_inference, decorated, in_16_bits, eagerly, under_settings,
    watched, step, captured, branches, mapped, read, called_functionally, deferred_graph,
]  # fmt: skip


def in_force() -> list[Any]:
    """Return all that a `with` block may change, but for what one outside of it does."""
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)]
    context = [s.value for s in settings.SETTINGS.values()]
    context += [source._SCOPE.get(), fallback._CURRENT.get(), deferred.get_default_session()]
    process = [gc.isenabled(), sys.stdout, warnings._showwarnmsg]  # type: ignore[attr-defined]
    return [dict(MODE.__dict__), handlers, context, process, list(program_cache.WATCHERS)]


@pytest.mark.parametrize("number, raised", signal_points.KINDS, ids=["SIGINT", "SIGALRM"])
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("at_most", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_is_in_force_outside_outlives_a_signal(
    work: Callable[[], None], number: int, raised: type[BaseException], at_most: int
) -> None:
    work()
    with signal_points.alarms_raise():
        before = in_force()
        for moment in signal_points.moments(work, at_most):
            at = SignalAt(moment, number)
            assert at.during(work) or not at.fired, f"swallowed at {at.where}"
            assert in_force() == before, at.where
    assert len(signal_points.moments(work, at_most)) > 5


def test_modes_are_entered_by_stacks_and_by_hand_as_well() -> None:
    with ExitStack() as stack:
        assert isinstance(stack.enter_context(st.no_grad()), st.no_grad)
        assert not st.is_grad_enabled()
    assert st.is_grad_enabled()
    mode = st.no_grad()
    mode.__enter__(), mode.__enter__()
    mode.__exit__(None, None, None)
    assert not st.is_grad_enabled()
    mode.__exit__(None, None, None)
    assert st.is_grad_enabled()
