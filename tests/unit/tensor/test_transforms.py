"""Transformations of functions compose: each with each, through control flow, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import tree

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
ROWS = 3


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def values(result: Any) -> list[Array]:
    return [np.asarray(t.detach()) for t in tree.leaves(result)]


def assert_same(got: Any, want: Any, rtol: float = 1e-9) -> None:
    found, wanted = values(got), values(want)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-10)


def total(function: Function) -> Function:
    """Return the sum of all a function returns, as a scalar function."""
    return lambda *args: sum(t.sum() for t in tree.leaves(function(*args)))


# -- functions of every kind ---------------------------------------------------------------------------------
def _mlp(x: Any, w: Any) -> Any:
    return st.tanh(x @ w) @ w.T


def _norm(x: Any, w: Any) -> Any:
    return st.nn.functional.layer_norm(x, x.shape[-1:]) * st.softmax(x + w[0], axis=-1)


def _conv(x: Any, w: Any) -> Any:
    image = st.reshape(x, (1, 1, *x.shape))
    return st.nn.functional.conv2d(image, st.reshape(w, (1, 1, *w.shape)), padding=1)


def _gather(x: Any, w: Any) -> Any:
    order = st.argsort(x[0])
    return x[:, order] * st.cumsum(w, axis=0)[order.reshape(-1)][:, 0]


def _dynamic(x: Any, w: Any) -> Any:
    place = (x[0, 0] > 0).astype("int64")
    return x[place] * w[place + 1]


def _cond(x: Any, w: Any) -> Any:
    return st.cond(x.sum() > 0, lambda a: st.sin(a) @ w, lambda a: a * w, x)


def _switch(x: Any, w: Any) -> Any:
    which = (x[0, 0] > 0).astype("int64") + (x[0, 1] > 0).astype("int64")
    return st.switch(which, [lambda a: a * w, lambda a: st.exp(a), lambda a: a @ a], x)


def _scan(x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        carry = st.tanh(w @ carry + row)
        return carry, carry * row

    return st.scan(step, x[0], x)


def _shorter_scan(x: Any, w: Any) -> Any:
    length = 1 + (x[0, 0] > 0).astype("int64")
    return st.scan(lambda c, row: (c * row, c + w[0]), x[0], x, length=length)


def _reversed_scan(x: Any, w: Any) -> Any:
    return st.scan(lambda c, row: (c * w[0], c + row), x[0], x, reverse=True)[1]


def _fori(x: Any, w: Any) -> Any:
    return st.fori_loop(0, 3, lambda i, s: st.sin(s @ w) + i, x)


def _bounded_while(x: Any, w: Any) -> Any:
    return st.while_loop(lambda s: (s * s).sum() < 30, lambda s: s * 1.5 + w, x, max_steps=5)


def _map(x: Any, w: Any) -> Any:
    return st.map(lambda row: st.exp(row * 0.1) @ w, x)


def _prefixes(x: Any, w: Any) -> Any:
    rows = st.stack([x, w, x @ w, w.T, x * 2.0])
    return st.associative_scan(lambda a, b: a @ b, rows, reverse=True)


def _nested(x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, None]:
        grown = st.fori_loop(0, 2, lambda i, s: st.cond(s.sum() > 0, st.sin, lambda v: v * w[0], s), carry)
        return grown + row, None

    return st.scan(step, x[0], x)[0]


def _checkpointed(x: Any, w: Any) -> Any:
    return st.checkpoint(_mlp, st.checkpoint(_mlp, x, w), w)


@st.custom_jvp
def _cube(x: Any, w: Any) -> Any:
    return x * x * x @ w


@_cube.defjvp
def _cube_rule(primals: Any, tangents: Any) -> Any:
    (x, w), (dx, dw) = primals, tangents
    return x * x * x @ w, (3.0 * x * x * dx) @ w + x * x * x @ dw


def _inner_gradient(x: Any, w: Any) -> Any:
    return st.grad(lambda v: (st.sin(v) @ w).sum())(x) * st.vmap(lambda row: row.sum())(x)


FUNCTIONS: dict[str, Function] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and callable(function) and not name.startswith("__") and name != "_cube_rule"
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def arguments(seed: int = 0, *rows: int) -> tuple[Array, Array]:
    return tuple(rng(seed).uniform(-1, 1, (*rows, 3, 3)) for _ in range(2))  # type: ignore[return-value]


def tensors(*arrays: Array) -> list[Any]:
    return [st.tensor(a) for a in arrays]


def by_loop(function: Function, *arrays: Array) -> Any:
    """Return the results of a function on each row, stacked."""
    results = [function(*tensors(*(a[k] for a in arrays))) for k in range(len(arrays[0]))]
    return tree.map(lambda *rows: st.stack(list(rows)), *results)


# -- vmap ----------------------------------------------------------------------------------------------------
@every_function
def test_vmap_equals_a_loop(name: str) -> None:
    f, (x, w) = FUNCTIONS[name], arguments(1, ROWS)
    with st.eager():
        want = by_loop(f, x, w)
        assert_same(st.vmap(f)(*tensors(x, w)), want)
        shared = by_loop(lambda v: f(v, st.tensor(w[0])), x)
        assert_same(st.vmap(f, (0, None))(*tensors(x, w[0])), shared)
        turned = st.vmap(f, in_axes=(2, -1), out_axes=-1)(
            *tensors(np.moveaxis(x, 0, 2), np.moveaxis(w, 0, 2))
        )
        assert_same(tree.map(lambda t: st.moveaxis(t, -1, 0), turned), want)


@every_function
def test_vmap_inside_and_outside_compile_and_of_vmap(name: str) -> None:
    f, (x, w) = FUNCTIONS[name], arguments(2, 2, ROWS)
    with st.eager():
        want = tree.map(lambda *r: st.stack(list(r)), *(by_loop(f, a, b) for a, b in zip(x, w, strict=True)))
    assert_same(st.compile(st.vmap(st.vmap(f)))(*tensors(x, w)), want)
    with st.eager():
        inner = st.vmap(st.compile(f), in_axes=(0, 0), out_axes=0)
        turned = st.vmap(inner, in_axes=1)(*tensors(np.swapaxes(x, 0, 1), np.swapaxes(w, 0, 1)))
        assert_same(turned, want)


@pytest.mark.sampled(16)
@every_function
def test_gradients_of_rows_and_rows_of_gradients_agree(name: str) -> None:
    f, (x, w) = total(FUNCTIONS[name]), arguments(3, ROWS)
    with st.eager():
        want = by_loop(st.grad(f, argnums=(0, 1)), x, w)
        assert_same(st.vmap(st.grad(f, argnums=(0, 1)))(*tensors(x, w)), want)
        assert_same(st.grad(lambda a, b: st.vmap(f)(a, b).sum(), argnums=(0, 1))(*tensors(x, w)), want)
    assert_same(st.compile(st.vmap(st.grad(f, argnums=(0, 1))))(*tensors(x, w)), want)


# -- derivatives ---------------------------------------------------------------------------------------------
@every_function
def test_forward_and_reverse_mode_are_transposes_of_each_other(name: str) -> None:
    f, (x, w), (dx, dw) = FUNCTIONS[name], arguments(4), arguments(5)
    with st.eager():
        out, tangent = st.jvp(f, tensors(x, w), tensors(dx, dw))
        ct = tree.map(lambda t: st.tensor(rng(6).uniform(-1, 1, t.shape)), out)
        back = st.vjp(f, *tensors(x, w))[1](ct)
        pairs = zip(values(ct), values(tangent), strict=True)
        forward = sum(float(np.vdot(a, b)) for a, b in pairs)
        reverse = sum(float(np.vdot(a, b)) for a, b in zip(values(back), (dx, dw), strict=True))
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)


@pytest.mark.sampled(15)
@every_function
def test_derivatives_of_rows_agree_with_finite_differences_to_second_order(name: str) -> None:
    f, (x, w) = FUNCTIONS[name], arguments(7, 2)
    assert st.check_grad(lambda a, b: tree.leaves(st.vmap(f)(a, b)), [x, w], order=2, rtol=1e-4, atol=1e-6).ok


@every_function
def test_both_jacobians_and_the_hessian_agree(name: str) -> None:
    f, (x, w) = FUNCTIONS[name], arguments(8)
    with st.eager():
        reverse, forward = st.jacrev(f, (0, 1))(*tensors(x, w)), st.jacfwd(f, (0, 1))(*tensors(x, w))
        assert tree.flatten(reverse)[1] == tree.flatten(forward)[1]
        assert_same(reverse, forward)
        hessian = st.hessian(total(f))(*tensors(x, w))
        assert_same(hessian, st.jacrev(st.jacrev(total(f)))(*tensors(x, w)))
        flat = values(hessian)[0].reshape(9, 9)
    np.testing.assert_allclose(flat, flat.T, rtol=1e-9, atol=1e-10)


WORDS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: lambda x: st.grad(f)(x).sum(),
    "jvp": lambda f: lambda x: st.jvp(f, (x,), (st.cos(x),))[1],
    "vmap": lambda f: lambda x: st.vmap(lambda scale: f(x * scale))(x[0]).sum(),
    "compile": lambda f: st.compile(f),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", WORDS)
@pytest.mark.parametrize("second", WORDS)
def test_any_three_compose(first: str, second: str) -> None:
    def f(x: Any) -> Any:
        return st.scan(lambda c, row: (st.sin(c * row), None), x[0], x)[0].sum()

    x = arguments(9)[0]
    for third in WORDS:
        composed = WORDS[first](WORDS[second](WORDS[third](f)))
        with st.eager():
            assert st.check_grad(lambda v, g=composed: [g(v)], [x], rtol=1e-4, atol=1e-6).ok, third
