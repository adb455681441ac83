"""Contractions, convolutions and windows: agreement with NumPy and PyTorch, corners, derivatives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ops_calls import agrees_with_torch, evaluated, gradients, normal

import stratal as st
from stratal.autodiff import check_grad
from stratal.base.dtypes import float32, int32
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.graph.op import REGISTRY
from stratal.optimize.canonical import split_products
from stratal.runtime.storage import Storage

GEOMETRIES = list(itertools.product((1, 2, 3), (0, 2), (1, 2), (1, 2)))


@pytest.mark.parametrize(
    "spec", ["mk,kn->mn", "km,nk->nm", "bmk,bkn->bmn", "bmk,kn->bmn", "k,k->", "m,n->mn", "bk,bk->b"]
)
def test_contract_is_einsum(spec: str) -> None:
    sizes = {"b": 3, "m": 4, "k": 5, "n": 2}
    left, right = spec.split("->")[0].split(",")
    x, y = normal(*(sizes[c] for c in left)), normal(*(sizes[c] for c in right))
    np.testing.assert_allclose(
        evaluated(lambda b, x, y: b.contract(x, y, spec=spec), x, y), np.einsum(spec, x, y)
    )


def test_contract_of_bytes_accumulates_exactly_in_int32() -> None:
    x, y = np.full((2, 300), 127, np.int8), np.full((300, 2), -128, np.int8)
    got = evaluated(lambda b, x, y: b.contract(x, y, spec="mk,kn->mn", dtype=int32), x, y)
    assert got.dtype == np.int32 and np.all(got == 300 * 127 * -128)


def test_contract_of_half_precision_rounds_once() -> None:
    x, y = (normal(3, 500).astype(np.float16), normal(500, 3).astype(np.float16))
    got = evaluated(lambda b, x, y: b.contract(x, y, spec="mk,kn->mn"), x, y)
    exact = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16)
    assert np.mean(got == exact) > 0.8
    np.testing.assert_allclose(got.astype(np.float64), exact.astype(np.float64), rtol=2e-3, atol=2e-3)


def test_contract_counts_two_operations_per_product() -> None:
    op = REGISTRY["contract"]("bmk,bkn->bmn")
    cost = op.cost(TensorType(float32, (2, 3, 5)), TensorType(float32, (2, 5, 7)))
    assert cost.flops == 2 * 2 * 3 * 5 * 7 and cost.bytes == 4 * (30 + 70 + 42)


@pytest.mark.torch
@pytest.mark.parametrize(("stride", "pad", "dilation", "groups"), GEOMETRIES)
def test_conv_and_its_gradients_agree_with_torch(stride: int, pad: int, dilation: int, groups: int) -> None:
    functional = pytest.importorskip("torch").nn.functional
    agrees_with_torch(
        lambda b, x, w, c: b.convolution(
            x, w, c, strides=(stride,) * 2, padding=((pad, pad),) * 2, dilation=(dilation,) * 2, groups=groups
        ),
        lambda x, w, c: functional.conv2d(x, w, c, stride, pad, dilation, groups),
        normal(2, 4, 9, 8), normal(6, 4 // groups, 3, 2), normal(6),
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(("stride", "pad", "dilation", "groups"), GEOMETRIES)
def test_transposed_conv_agrees_with_torch(stride: int, pad: int, dilation: int, groups: int) -> None:
    functional = pytest.importorskip("torch").nn.functional
    extra = max(stride, dilation) - 1
    agrees_with_torch(
        lambda b, x, w, c: b.transposed_convolution(
            x, w, c, strides=(stride,) * 2, padding=((pad, pad),) * 2, output_padding=(extra,) * 2,
            dilation=(dilation,) * 2, groups=groups,
        ),
        lambda x, w, c: functional.conv_transpose2d(x, w, c, stride, pad, extra, groups, dilation),
        normal(2, 4, 5, 6), normal(4, 3, 3, 2), normal(3 * groups),
    )  # fmt: skip


def test_conv_gradients_hold_where_padding_exceeds_the_filter_and_strides_skip_the_end() -> None:
    """Both make the backward convolutions crop, also in the gaps of a dilated operand, and once all of it."""
    for stride, padding, base in ((1, (4, 3), 1), (3, (3, 0), 2), (10, (3, 0), 1), (2, (5, 5), 3)):

        def conv(b, x, w, stride=stride, padding=padding, base=base):  # type: ignore[no-untyped-def]
            return b.conv(
                x, w, strides=(stride,), padding=(padding,), lhs_dilation=(base,), rhs_dilation=(1,), groups=1
            )  # fmt: skip

        assert check_grad(conv, [normal(1, 2, 4), normal(2, 2, 2)], order=2).ok


def test_conv_of_zero_size_batches_has_zero_size() -> None:
    x, w = normal(0, 3, 5, 5), normal(4, 3, 3, 3)
    geometry = {
        "strides": (1, 1),
        "padding": ((0, 0),) * 2,
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1),
        "groups": 1,
    }
    conv = lambda b, x, w: b.conv(x, w, **geometry)  # noqa: E731
    assert evaluated(conv, x, w).shape == (0, 4, 3, 3)
    dx, dw = gradients(conv, np.zeros((0, 4, 3, 3)), x, w)
    assert dx.shape == x.shape and np.all(dw == 0) and dw.shape == w.shape


@pytest.mark.parametrize("kind", ["max", "min"])
def test_pooling_gives_the_cotangent_to_the_first_of_equal_elements(kind: str) -> None:
    x = np.array([1.0, 1.0, 1.0, 2.0 if kind == "max" else 0.0])
    pool = lambda b, x: b.window_reduce(  # noqa: E731
        x, kind=kind, window=(2,), strides=(2,), padding=((0, 0),), dilation=(1,)
    )
    (got,) = gradients(pool, np.array([5.0, 7.0]), x)
    np.testing.assert_array_equal(got, [5, 0, 0, 7])


def test_padding_never_wins_a_window_of_infinities_and_nan_always_does() -> None:
    geometry = {"window": (2,), "strides": (1,), "padding": ((1, 0),), "dilation": (1,)}
    x = np.array([-np.inf, -np.inf, 3.0, np.nan])
    np.testing.assert_array_equal(evaluated(lambda b, x: b.window_argmax(x, **geometry), x), [1, 0, 1, 1])
    got = evaluated(lambda b, x: b.window_reduce(x, kind="max", **geometry), x)
    np.testing.assert_array_equal(got, [-np.inf, -np.inf, 3, np.nan])


def test_window_scatter_is_the_transpose_of_window_gather() -> None:
    geometry = {"window": (3, 2), "strides": (2, 1), "padding": ((1, 1), (0, 1)), "dilation": (1, 2)}
    x = normal(6, 7)
    index = evaluated(lambda b, x: b.window_argmax(x, **geometry), x)
    y = normal(*index.shape)
    gathered = evaluated(lambda b, x, i: b.window_gather(x, i, **geometry), x, index)
    scattered = evaluated(lambda b, y, i: b.window_scatter(y, i, shape=x.shape, **geometry), y, index)
    assert np.sum(gathered * y) == pytest.approx(np.sum(x * scattered))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("x", "y"),
    [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
     ((2, 1, 3, 4), (5, 4, 6)),
     ((1, 3, 4), (7, 4, 2)), ((7, 3, 4), (1, 4, 2)), ((4,), (2, 4, 3)), ((1, 1, 2, 3), (1, 1, 3, 2)),
     ((0, 3, 4), (4, 5))],
)  # fmt: skip
def test_matmul_follows_numpy_and_so_do_its_gradients(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    left, right = normal(*x), normal(*y)
    np.testing.assert_allclose(evaluated(lambda b, x, y: b.matmul(x, y), left, right), np.matmul(left, right))
    torch = pytest.importorskip("torch")
    agrees_with_torch(lambda b, x, y: b.matmul(x, y), torch.matmul, left, right)


def test_matmul_says_which_operand_does_not_fit() -> None:
    with pytest.raises(ShapeError) as caught:
        evaluated(lambda b, x, y: b.matmul(x, y), normal(128, 784), normal(512, 10))
    message = str(caught.value)
    assert (
        "inner sizes differ" in message and "f64[128,784] @ f64[512,10]" in message and "784 rows" in message
    )


def test_matmul_broadcasts_no_operand() -> None:
    from ops_calls import traced

    graph = traced(lambda b, x, y: b.matmul(x, y), normal(8, 3, 4), normal(1, 4, 5))
    assert {n.op.name for n in graph.nodes} == {"input", "reshape", "contract"}


@pytest.mark.parametrize("spec", ["km,kn->mn", "mk,nk->nm", "kbm,kbn->mn"])
def test_a_tall_product_is_summed_in_parts(spec: str) -> None:
    """The gradient of a small weight over many rows: what one part adds up stays near."""
    rng = np.random.default_rng(2)
    size = {"k": 4800 if "b" not in spec else 1600, "b": 3, "m": 12, "n": 20}
    arrays = [rng.standard_normal([size[c] for c in part]) for part in spec.split("->")[0].split(",")]
    inputs = [graph_input(f"x{k}", TensorType(float32, a.shape)) for k, a in enumerate(arrays)]
    graph = Graph(inputs, [Builder().contract(*inputs, spec=spec)])
    split = split_products(graph)
    assert [n.op.name for n in split.nodes if n.op.name in ("contract", "sum")] == ["contract", "sum"]
    stored = [Storage.copy_of(a.astype(np.float32), i.aval) for a, i in zip(arrays, inputs, strict=True)]
    (got,) = compile_graph(graph).run(stored)
    np.testing.assert_allclose(got.array, np.einsum(spec, *arrays), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("spec", ["km,kn->mn", "mk,nk->nm"])
@pytest.mark.parametrize("depth", [4801, 16 * 289 + 15])
def test_a_tall_product_of_a_prime_depth_has_a_rest(spec: str, depth: int) -> None:
    size = {"k": depth, "m": 12, "n": 20}
    inputs = [
        graph_input(f"x{k}", TensorType(float32, tuple(size[c] for c in part)))
        for k, part in enumerate(spec.split("->")[0].split(","))
    ]
    graph = Graph(inputs, [Builder().contract(*inputs, spec=spec)])
    split = split_products(graph)
    assert sorted(n.op.name for n in split.nodes if n.op.name in ("contract", "sum")) == [
        "contract", "contract", "sum",
    ]  # fmt: skip
    # whole numbers: every order of summation is exact
    arrays = [np.random.default_rng(2).integers(-8, 9, i.shape).astype(np.float32) for i in inputs]
    stored = [Storage.copy_of(a, i.aval) for a, i in zip(arrays, inputs, strict=True)]
    (got,) = compile_graph(graph).run(stored)
    np.testing.assert_array_equal(got.array, np.einsum(spec, *arrays))


def test_products_of_odd_sizes_compile_with_the_update_that_follows_them() -> None:
    """Rows that do not fill the last tile meet columns of which unrolled vectors are known to be full."""
    rng = np.random.default_rng(0)
    x, y, w = (rng.standard_normal(s).astype(np.float32) for s in ((203, 67), (203, 131), (67, 131)))
    step = st.compile(lambda x, y, w: (w - 0.1 * (x.T @ y), (x.T @ y) * w))
    got = step(st.tensor(x), st.tensor(y), st.tensor(w))
    np.testing.assert_allclose(got[0].numpy(), w - 0.1 * (x.T @ y), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1].numpy(), (x.T @ y) * w, rtol=1e-4, atol=1e-3)
