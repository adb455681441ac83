"""Derivatives of element-wise records where finite differences cannot tell: ties, kinks, zeros, complex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import stratal.ops  # noqa: F401  fills the registry
from stratal.autodiff import jvp_graph, trace, vjp_graph
from stratal.base.dtypes import as_dtype
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.interpret import interpret
from stratal.graph.node import Node

Array = np.ndarray[Any, Any]
Function = Callable[..., Node]


def cotangents(function: Function, *arrays: Sequence[float] | Array, ct: Array | None = None) -> list[Array]:
    """Return the vjp of a function of one result, at ones unless `ct` says otherwise."""
    inputs = [np.asarray(a) for a in arrays]
    graph = trace(function, [TensorType(as_dtype(a.dtype), a.shape) for a in inputs])
    out = graph.outputs[0].aval
    seed = np.ones(out.ints, out.dtype.np) if ct is None else ct
    marks = [i.dtype.is_inexact for i in graph.inputs]
    return interpret(vjp_graph(graph, marks), [*inputs, seed])[0]


def tangent(function: Function, inputs: Sequence[Array], tangents: Sequence[Array]) -> Array:
    graph = trace(function, [TensorType(as_dtype(a.dtype), a.shape) for a in inputs])
    return interpret(jvp_graph(graph, [True] * len(inputs)), [*inputs, *tangents])[0][1]


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_tie_splits_its_cotangent_evenly(name: str) -> None:
    by_x, by_y = cotangents(lambda b, x, y: b.op(name, x, y), [1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    winner = [0.5, 0.0, 1.0] if name == "max" else [0.5, 1.0, 0.0]
    np.testing.assert_array_equal(by_x, winner)
    np.testing.assert_array_equal(by_y, 1 - np.array(winner))


def test_the_derivative_of_abs_at_zero_is_zero_for_real_and_complex() -> None:
    assert cotangents(lambda b, x: b.abs(x), [0.0, -0.0])[0].tolist() == [0, 0]
    (by_z,) = cotangents(lambda b, x: b.abs(x), np.array([0j, 3 + 4j]))
    assert by_z[0] == 0 and by_z[1] == pytest.approx(0.6 + 0.8j)


def test_powers_have_finite_derivatives_at_a_base_or_exponent_of_zero() -> None:
    by_x, by_y = cotangents(
        lambda b, x, y: b.pow(x, y), [0.0, 0.0, 0.0, -2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 0.0]
    )
    np.testing.assert_array_equal(by_x, [0, 1, 0, 12, 0])
    np.testing.assert_array_equal(by_y[:3], [0, 0, 0])
    assert np.isnan(by_y[3])  # the logarithm of a negative base
    assert by_y[4] == pytest.approx(np.log(3.0))


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "trunc", "round", "stop_gradient"])
def test_step_functions_pass_no_cotangent(name: str) -> None:
    assert cotangents(lambda b, x: b.op(name, x), [0.3, -1.0, 2.5])[0].tolist() == [0, 0, 0]


def test_the_remainder_moves_with_its_dividend_and_against_its_divisor() -> None:
    by_x, by_y = cotangents(lambda b, x, y: b.rem(x, y), [7.5, -7.5, 7.5], [2.0, 2.0, -2.0])
    assert by_x.tolist() == [1, 1, 1]
    assert by_y.tolist() == [-3, 4, 4]


def test_select_gives_each_cotangent_to_the_chosen_side_only() -> None:
    condition = np.array([True, False])
    by_x, by_y = cotangents(lambda b, c, x, y: b.select(c, x, y), condition, [np.nan, 1.0], [1.0, np.inf])
    assert by_x.tolist() == [1, 0] and by_y.tolist() == [0, 1]


def test_a_cast_through_integers_ends_the_derivative() -> None:
    def through(b: Builder, x: Node) -> Node:
        return b.cast(b.cast(x, dtype=as_dtype("int32")), dtype=as_dtype("float64"))

    assert cotangents(through, [1.5, 2.5])[0].tolist() == [0, 0]


def test_a_cast_to_lower_precision_returns_the_cotangent_in_the_operands_dtype() -> None:
    (by_x,) = cotangents(lambda b, x: b.cast(x, dtype=as_dtype("float16")), np.array([1.5, 2.5], np.float32))
    assert by_x.dtype == np.float32 and by_x.tolist() == [1, 1]


COMPLEX: dict[str, Function] = {
    "product": lambda b, z, w: b.mul(z, w),
    "quotient": lambda b, z, w: b.div(z, w),
    "power": lambda b, z, w: b.pow(z, w),
    "exp of a product": lambda b, z, w: b.exp(b.mul(z, w)),
    "modulus": lambda b, z, w: b.abs(b.add(z, w)),
    "real part of conj": lambda b, z, w: b.real(b.mul(b.conj(z), w)),
    "imaginary part": lambda b, z, w: b.imag(b.sin(b.mul(z, w))),
    "parts put together": lambda b, z, w: b.complex(b.imag(z), b.real(b.mul(w, w))),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_cotangents_are_adjoint_to_tangents_in_the_real_inner_product(name: str) -> None:
    rng = np.random.default_rng(3)
    z, w, tz, tw, ct = (rng.normal(size=4) + 1j * rng.normal(size=4) for _ in range(5))
    moved = tangent(COMPLEX[name], [z, w], [tz, tw])
    if moved.dtype.kind != "c":
        ct = ct.real
    by_z, by_w = cotangents(COMPLEX[name], z, w, ct=ct)
    forward = np.vdot(ct, moved).real
    backward = np.vdot(by_z, tz).real + np.vdot(by_w, tw).real
    assert forward == pytest.approx(backward, rel=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradients_equal_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    z, w = (rng.normal(size=4) + 1j * rng.normal(size=4) for _ in range(2))
    tz, tw = (torch.tensor(a, requires_grad=True) for a in (z, w))
    theirs = {
        "product": lambda: tz * tw,
        "quotient": lambda: tz / tw,
        "power": lambda: tz**tw,
        "exp of a product": lambda: torch.exp(tz * tw),
        "modulus": lambda: torch.abs(tz + tw),
        "real part of conj": lambda: (tz.conj() * tw).real,
        "imaginary part": lambda: torch.sin(tz * tw).imag,
        "parts put together": lambda: torch.complex(tz.imag, (tw * tw).real),
    }[name]()
    ct = rng.normal(size=4) + (1j * rng.normal(size=4) if theirs.is_complex() else 0)
    theirs.backward(torch.tensor(ct))
    for mine, parameter in zip(cotangents(COMPLEX[name], z, w, ct=np.asarray(ct)), (tz, tw), strict=True):
        np.testing.assert_allclose(mine, parameter.grad.resolve_conj().numpy(), rtol=1e-10)
