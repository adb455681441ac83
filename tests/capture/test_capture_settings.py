"""Settings that shape code are part of what decides which capture a call replays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.errors import CaptureError, SettingError


@pytest.mark.quick
@pytest.mark.parametrize(
    "given", [{"threads": 1}, {"target": "haswell"}, {"tuning": "off"}, {"objective": "memory"}]
)
def test_a_setting_that_shapes_code_needs_a_capture_of_its_own_and_one_alone(given: dict[str, Any]) -> None:
    function = st.compile(lambda x: (x * 2.0).sum())
    x = st.ones(4, 3)
    with settings.using(threads=2, target="host", tuning="auto", objective="time"):
        for _ in range(3):  # the third is found by its signature match
            function(x)
        before = function.program
        with settings.using(**given):
            for _ in range(3):
                assert float(function(x)) == 24.0
            assert function.captures == 2 and function.program is not before
            ((name, value),) = given.items()
            assert function.reasons[-1] == f"{name} is {value}"
        for _ in range(3):
            function(x)
        assert function.captures == 2 and function.program is before


def test_a_compiled_convolution_is_exact_where_the_block_says_so() -> None:
    st.manual_seed(0)
    layer, x = nn.Conv2d(16, 16, 3, padding=1), st.randn(2, 16, 20, 20)
    function = st.compile(layer)
    fast = [function(x).numpy() for _ in range(3)][-1]
    with settings.winograd(False):
        exact = [function(x).numpy() for _ in range(3)][-1]
        assert np.array_equal(exact, st.compile(layer)(x).numpy())
    assert not np.array_equal(fast, exact) and np.allclose(fast, exact, atol=1e-4)
    assert np.array_equal(function(x).numpy(), fast)


@pytest.fixture
def threads_put_back() -> Iterator[None]:
    yield
    settings.read(os.environ)


@pytest.mark.quick
@pytest.mark.usefixtures("threads_put_back")
def test_the_number_of_threads_is_set_for_the_process() -> None:
    st.set_num_threads(1)
    assert st.get_num_threads() == settings.threads.value == 1 and settings.threads.origin == "process"
    with settings.threads(2):
        st.set_num_threads(3)
        assert st.get_num_threads() == 2
    assert st.get_num_threads() == 3
    for odd in (0, -1, 2.5, "many", None):
        with pytest.raises(SettingError, match="whole number"):
            st.set_num_threads(odd)  # type: ignore[arg-type]
    assert st.get_num_threads() == 3

    def inside(x: st.Tensor) -> st.Tensor:
        st.set_num_threads(1)
        return x + 1

    with pytest.raises(CaptureError, match="set_num_threads"):
        st.compile(inside)(st.ones(2))
