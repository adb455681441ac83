"""What notebooks show of tensors, modules and plans: tables of escaped text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn


def test_a_tensor_of_two_axes_is_a_table_cut_short() -> None:
    shown = st.tensor(np.arange(400, dtype=np.float32).reshape(20, 20))._repr_html_()
    assert "f32[20,20]" in shown
    assert shown.count("<tr>") == 13 and "<td" in shown and "⋮" in shown and "…" in shown


@pytest.mark.parametrize("shape", [(), (2, 2, 2), (0, 3)])
def test_other_tensors_show_what_they_print(shape: tuple[int, ...]) -> None:
    x = st.tensor(np.zeros(shape, np.float32))
    assert x._repr_html_() == f"<pre>{x!r}</pre>"


def test_of_many_axes_the_first_matrix_is_a_table() -> None:
    shown = st.tensor(np.arange(240.0).reshape(2, 2, 6, 10))._repr_html_()
    assert "f64[2,2,6,10], its part [0, 0]" in shown and shown.count("<tr>") == 6
    assert ">59<" in shown and ">60<" not in shown


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "complex64"])
def test_elements_of_every_kind_are_shown(dtype: str) -> None:
    assert "<td" in st.ones((2, 3), dtype=getattr(st, dtype))._repr_html_()


def test_a_tensor_that_takes_gradients_says_so() -> None:
    assert "requires_grad=True" in st.ones(3, requires_grad=True)._repr_html_()


def test_a_traced_tensor_shows_its_type_and_computes_nothing() -> None:
    shown = []

    @st.compile
    def f(x: Any) -> Any:
        shown.append((x + 1)._repr_html_())
        return x + 1

    f(st.ones(3, 3))
    assert "&lt;traced f32[3,3]" in shown[0]


def test_a_module_is_a_tree_of_its_parts() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(100, 100), nn.ReLU())

        def extra_repr(self) -> str:
            return "<b>bold</b>"

    shown = Odd()._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;bold" in shown
    assert "10,100 parameters" in shown and "in_features=100" in shown
    assert shown.count("<details") == 2


def test_a_compiled_function_shows_the_plan_used_last() -> None:
    f = st.compile(lambda x: (x @ x).sum())
    assert f._repr_html_() == "<pre>&lt;compiled &lt;lambda&gt;: 0 captures&gt;</pre>"
    f(st.ones(8, 8))
    assert "1 capture&gt;" in f._repr_html_() and f.plan.hash[:8] in f._repr_html_()


def test_a_plan_is_a_table_of_its_commands() -> None:
    f = st.compile(lambda x: (x.exp() / x.exp().sum()).max())
    f(st.ones(64, 64)).item()
    shown = f.plan._repr_html_()
    assert f.plan.hash[:8] in shown
    assert shown.count("<tr>") == 1 + len(f.plan.kernels)
    assert "&lt;lambda&gt;" in shown and "<lambda>" not in shown
