"""Transposed convolutions as plain ones with more filters: results, and that no zeros are put in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.cases import Case, result_shape
from benchmarks.reference import fault

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.optimize.phases import split_phases
from stratal.schedule.tactics import convolutions


def _random_case(number: int, rng: np.random.Generator) -> Case:
    """Draw until a transposed convolution has a result; windows smaller and larger than the strides."""
    while True:
        axes, groups = int(rng.integers(1, 3)), int(rng.integers(1, 4))
        window, strides = ([int(k) for k in rng.integers(1, most, axes)] for most in (6, 5))
        dilation = [int(d) for d in rng.choice([1, 1, 1, 2], axes)]
        reach = [d * (k - 1) for k, d in zip(window, dilation, strict=True)]
        padding = [int(rng.integers(0, r + 1)) for r in reach]
        extra = [int(rng.integers(0, max(pair))) for pair in zip(strides, dilation, strict=True)]
        geometry = {"strides": tuple(strides), "padding": tuple(padding), "dilation": tuple(dilation),
                    "groups": groups, "output_padding": tuple(extra)}  # fmt: skip
        shapes = (2, 2 * groups, *map(int, rng.integers(1, 7, axes))), (2 * groups, 3, *window)
        case = Case(number, "transposed", str(rng.choice(["float64", "int32"])), shapes, geometry=geometry)
        if min(result_shape(case)) > 0:
            return case


def _program(case: Case) -> Any:
    g = dict(case.geometry)
    g["stride"] = g.pop("strides")
    function = getattr(nn.functional, f"conv_transpose{len(g['stride'])}d")
    return st.compile(lambda x, w: function(x, w, **g))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_transposed_convolutions_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(8):
        case = _random_case(number, rng)
        result = _program(case)(*map(st.tensor, case.inputs()))
        assert not fault(case, result.numpy()), str(case)


def _convolution(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, int], extra: int) -> Any:
    """Return the convolution that a transposed one becomes."""
    geometry = {"strides": strides, "padding": (w[2] // 2, 0), "dilation": (1, 1), "groups": 1,
                "output_padding": (extra, 0)}  # fmt: skip
    case = Case(0, "transposed", "float32", (x, w), geometry=geometry)
    program = _program(case)
    program(*map(st.tensor, case.inputs()))
    (conv,) = [n for n in split_phases(program.program.graph, convolutions).nodes if n.op.name == "conv"]
    return conv


def test_no_zeros_are_put_between_elements_before_a_convolution() -> None:
    conv = _convolution((2, 4, 5, 6), (4, 3, 3, 4), (2, 3), extra=1)
    assert conv.op.attributes["lhs_dilation"] == (1, 1)
    assert conv.shape[1] == 3 * 2 * 3 and conv.inputs[1].shape[2:] == (2, 2)
    assert conv.inputs[0].op.name != "pad"


@pytest.mark.parametrize(("share", "splits"), [(1.0, True), (0.5, True), (0.1, False)])
def test_phases_are_split_where_tactics_have_nothing_quicker_for_the_spread_operand(
    share: float, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = (graph_input("x", TensorType(float32, s)) for s in ((2, 4, 8, 8), (3, 4, 3, 3)))
    conv = Builder().conv(x, w, strides=(1, 1), padding=((2, 2), (2, 2)), lhs_dilation=(2, 2),
                          rhs_dilation=(1, 1), groups=1)  # fmt: skip
    monkeypatch.setattr(convolutions, "share_by_tiles", lambda conv: share)
    (found,) = [n for n in split_phases(Graph([x, w], [conv]), convolutions).nodes if n.op.name == "conv"]
    assert (found is not conv) == splits


def test_of_a_window_of_one_element_only_what_is_not_zero_is_computed() -> None:
    conv = _convolution((2, 4, 5, 6), (4, 3, 1, 1), (2, 2), extra=1)
    assert conv.shape == (2, 3, 5, 6)


def test_what_winograds_algorithm_computes_with_fewer_products_stays() -> None:
    conv = _convolution((2, 32, 8, 8), (32, 32, 3, 3), (2, 2), extra=1)
    assert conv.op.attributes["lhs_dilation"] == (2, 2)
    with settings.winograd(False):
        assert _convolution((2, 32, 8, 8), (32, 32, 3, 3), (2, 2), extra=1).shape[1] == 32 * 4


FILTERS = (3, 8, 20, 33)  # of a phase: fewer than a vector's lanes, and more


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize(
    ("strides", "padding", "groups"), [((2, 3), (1, 0), 1), ((2, 2), (1, 1), 2), ((3, 1), (0, 1), 1)]
)
def test_images_with_channels_last_are_written_once(
    filters: int, strides: tuple[int, int], padding: tuple[int, int], groups: int
) -> None:
    rng = np.random.default_rng(filters)
    shapes = (2, 5, 6, 4 * groups), (4 * groups, filters, 3, 3)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    def layer(x: Any, w: Any) -> Any:
        images = st.moveaxis(x, -1, 1)
        made = nn.functional.conv_transpose2d(images, w, stride=strides, padding=padding, groups=groups)
        return st.relu(st.moveaxis(made, 1, -1))

    compiled = st.compile(layer)
    result = compiled(*map(st.tensor, (x, w))).numpy()
    with st.eager():
        expected = layer(*(st.tensor(a.astype(np.float64)) for a in (x, w))).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    last = [k.tactic for k in compiled.program.draft.kernels.values()][-1]
    assert groups > 1 or last in ("contract", "dots")  # filters of groups do not lie as those of images do


PARTS = {
    "diagonal": lambda np_or_st, y: np_or_st.diagonal(y),
    "beside the diagonal": lambda np_or_st, y: np_or_st.diagonal(y, 1),
    "every third": lambda np_or_st, y: y.reshape(-1)[1::3],
    "a row": lambda np_or_st, y: y[1],
    "a column": lambda np_or_st, y: y[:, 0],
    "every second": lambda np_or_st, y: y[::2, 1::2],
    "an element": lambda np_or_st, y: y[0, 1],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_product_is_that_part(part):
    for size, depth in ((2, 2), (4, 2), (17, 5), (33, 40)):
        a = np.random.default_rng(size).standard_normal((size, depth)).astype(np.float32)
        got = st.compile(lambda x: PARTS[part](st, x @ x.T))(st.tensor(a))
        np.testing.assert_allclose(got, PARTS[part](np, a @ a.T), rtol=1e-4, atol=1e-5)


def test_a_product_with_a_number_that_becomes_a_vector():
    def f(x, w):
        return (st.floor(x).reshape(1) @ w).sum() + (x.reshape(1) @ w)[1]

    w = np.array([[0.5, -2.0, 3.0]], np.float32)
    got = st.compile(f)(st.tensor(np.float32(1.5)), st.tensor(w))
    np.testing.assert_allclose(got, w.sum() + 1.5 * w[0, 1], rtol=1e-6)
    scaled = st.compile(lambda x, w: st.einsum("a,na->n", x.reshape(1), w))
    np.testing.assert_allclose(scaled(st.tensor(1.5), st.tensor(w.T)), 1.5 * w[0])
