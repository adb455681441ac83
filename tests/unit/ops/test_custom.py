"""Derivatives of one's own, functions run again in the backward pass, and control flow beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    DTypeError,
    NotDifferentiableError,
    ShapeError,
    StratalError,
)
from stratal.ops.control.host_call import HOST_FUNCTIONS
from stratal.optimize.simplify import simplify

X = np.linspace(-1, 2, 6).reshape(2, 3)


def array(t: Any) -> Any:
    return np.asarray(t.detach())


# -- custom_vjp ----------------------------------------------------------------------------------------------
def clipped(limit: float = 0.5) -> Any:
    """Return the identity whose cotangents are clipped, one of the usual reasons to want a rule."""

    @st.custom_vjp
    def f(x: Any, options: dict[str, Any]) -> Any:
        return x * options["scale"]

    def backward(residuals: Any, ct: Any) -> Any:
        return st.clip(ct * residuals["scale"], -limit, limit), None

    f.defvjp(lambda x, options: (x * options["scale"], options), backward)
    return f


WAYS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: st.grad(lambda x: (f(x) * x).sum()),
    "compiled": lambda f: st.compile(st.grad(lambda x: (f(x) * x).sum())),
    "by rows": lambda f: st.vmap(st.grad(lambda row: (f(row) * row).sum())),
    "through rows": lambda f: st.grad(lambda x: st.vmap(lambda row: f(row) * row)(x).sum()),
    "in a loop": lambda f: st.grad(
        lambda x: st.scan(lambda c, r: (c + f(r) * r, None), x[0] * 0, x)[0].sum()
    ),
    "in a branch": lambda f: st.grad(
        lambda x: st.cond(x.sum() > 0, f, lambda v: v, x).sum() * 0 + (f(x) * x).sum()
    ),
    "checkpointed": lambda f: st.grad(lambda x: (st.checkpoint(f, x) * x).sum()),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_rule_of_a_custom_vjp_is_the_derivative(way: str) -> None:
    f = clipped()
    found = WAYS[way](lambda x: f(x, {"scale": 3.0}))(st.tensor(X))
    np.testing.assert_allclose(array(found), 3.0 * X + np.clip(3.0 * X, -0.5, 0.5), rtol=1e-12)


def test_both_rules_are_differentiated_for_higher_orders() -> None:
    f = st.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 30 * x**2,))
    third = st.grad(st.grad(st.grad(lambda x: f(x))))
    x = st.tensor(2.0)
    assert st.grad(lambda v: f(v))(x).item() == 120
    assert st.grad(st.grad(lambda v: f(v)))(x).item() == 120 and third(x).item() == 60
    assert st.hessian(lambda v: f(v) * 1.0)(x).item() == 120


def test_a_shared_argument_sums_the_cotangents_of_rows() -> None:
    f = st.custom_vjp(lambda x, w: x * w)
    f.defvjp(lambda x, w: (x * w, (x, w)), lambda r, ct: (ct * r[1], (ct * r[0] * 10).sum()))
    by_w = st.grad(lambda w: st.vmap(f, (0, None))(st.tensor(X), w).sum())(st.tensor(2.0))
    np.testing.assert_allclose(by_w.item(), X.sum() * 10)
    alike = st.grad(lambda w: st.vmap(lambda _, v: f(st.ones(()), v), (0, None))(st.tensor(X), w).sum())
    np.testing.assert_allclose(alike(st.tensor(2.0)).item(), 20)


def test_methods_integers_and_several_results_take_rules() -> None:
    class Layer:
        @st.custom_vjp
        def power(self, x: Any, n: Any) -> Any:
            return {"y": x**n, "n": n}

    Layer.power.defvjp(
        lambda self, x, n: ({"y": x**n, "n": n}, (x, n)),
        lambda r, ct: (None, ct["y"] * r[1] * r[0] ** (r[1] - 1), None),
    )
    n = st.tensor(3)
    found = st.grad(lambda x: Layer().power(x, n=n)["y"].sum())(st.tensor(X))
    np.testing.assert_allclose(array(found), 3 * X**2)
    with st.no_grad():
        assert Layer().power(st.tensor(X), n)["n"] is n


# -- custom_jvp ----------------------------------------------------------------------------------------------
def test_a_custom_jvp_serves_both_modes_and_orders() -> None:
    @st.custom_jvp
    def f(x: Any, k: Any) -> Any:
        return st.sin(x) * k

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, k), (dx, dk) = primals, tangents
        return f(x, k), 10 * st.cos(x) * k * dx + st.sin(x) * dk

    x, k = st.tensor(X), st.tensor(2.0, dtype="float64")
    want = 20 * np.cos(X)
    by_all, by_each = st.grad(lambda v: f(v, k).sum()), st.grad(lambda v: f(v, k))
    forward = lambda v: st.jvp(lambda u: f(u, k), (v,), (st.ones_like(v),))[1]  # noqa: E731
    for way in (by_all, st.compile(by_all), forward, st.vmap(st.vmap(by_each)), st.vmap(by_all)):
        np.testing.assert_allclose(array(way(x)), want, rtol=1e-12)
    by_k = st.grad(lambda c: st.vmap(f, (0, None))(x, c).sum())(k)
    np.testing.assert_allclose(by_k.item(), np.sin(X).sum())
    second = st.jacrev(st.grad(lambda v: f(v, k)))(st.tensor(0.3, dtype="float64"))
    np.testing.assert_allclose(second.item(), -20 * np.sin(0.3), rtol=1e-12)


# -- checkpoint ----------------------------------------------------------------------------------------------
def block(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = st.tanh(x @ w)
    return x


def deep(run: Callable[..., Any], loop: bool) -> Callable[..., Any]:
    def loss(weights: Any, x: Any) -> Any:
        if loop:
            x = st.scan(lambda c, w: (run(c, w), None), x, weights)[0]
        else:
            for k in range(weights.shape[0]):
                x = run(x, weights[k])
        return (x * x).sum()

    return st.compile(st.value_and_grad(loss, argnums=(0, 1)))


@pytest.mark.parametrize("loop", [False, True], ids=["unrolled", "scan"])
def test_a_checkpoint_gives_the_same_gradients_in_less_memory(loop: bool) -> None:
    rng = np.random.default_rng(0)
    weights = st.tensor((rng.normal(size=(6, 32, 32)) / 6).astype(np.float32))
    x = st.tensor(rng.normal(size=(256, 32)).astype(np.float32))
    plain, again = deep(block, loop), deep(st.checkpoint(block), loop)
    (value, grads), (other, others) = plain(weights, x), again(weights, x)
    assert value.item() == other.item()
    for a, b in zip(grads, others, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=1e-5, atol=1e-6)
    kept, bytes_again = (f.plan.memory["arena_bytes"] for f in (plain, again))
    assert bytes_again < 0.75 * kept, f"{bytes_again} of {kept} bytes"
    tanhs = [n for n in simplify(again.graph).nodes if n.op.name == "tanh"]
    assert loop or len(tanhs) == 2 * 18, "each is computed twice, and no rewrite makes one of the two"


def test_a_checkpoint_draws_the_same_numbers_again_and_writes_state_once() -> None:
    norm = nn.BatchNorm1d(3)

    def f(x: Any) -> Any:
        return nn.functional.dropout(norm(x) * x, 0.5, training=True)

    x = st.tensor(X.astype(np.float32))
    gradients = []
    for run in (f, st.checkpoint(f), lambda v: st.checkpoint(f, v, use_reentrant=False)):
        st.manual_seed(1)
        norm.load_state_dict(nn.BatchNorm1d(3).state_dict())
        gradients.append(array(st.grad(lambda v, run=run: run(v).sum())(x)))
        gradients.append(array(st.rand(2)))
        assert norm.num_batches_tracked.item() == 1
    for k in (2, 4):
        np.testing.assert_allclose(gradients[k], gradients[0], rtol=1e-5)
        np.testing.assert_array_equal(gradients[k + 1], gradients[1])


def test_a_checkpoint_takes_gradients_to_parameters_containers_and_no_arguments() -> None:
    layer = nn.Linear(3, 3)
    x = st.tensor(X.astype(np.float32), requires_grad=True)
    st.checkpoint(lambda d, flag: {"y": layer(d["x"]) if flag else d, "name": "y"}, {"x": x}, True)[
        "y"
    ].sum().backward()
    np.testing.assert_allclose(array(layer.bias.grad), [2, 2, 2])
    np.testing.assert_allclose(array(x.grad), np.tile(array(layer.weight).sum(0), (2, 1)), rtol=1e-6)


# -- loops and branches --------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("error")  # the branches' lambdas are made anew by each capture
def test_switch_takes_the_nearest_branch_and_runs_one() -> None:
    seen: list[int] = []

    def branch(k: int) -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            st.host_call(lambda v: seen.append(k), None, x)
            return x * k

        return f

    branches = [branch(k) for k in range(5)]
    compiled = st.compile(lambda i, x: st.switch(i, branches, x))
    for index, taken in ((-3, 0), (0, 0), (2, 2), (4, 4), (9, 4)):
        for i in (index, st.tensor(index)):
            assert st.switch(i, branches, st.tensor(2.0)).item() == 2.0 * taken
        assert compiled(st.tensor(index), st.tensor(2.0)).item() == 2.0 * taken
    assert seen == [t for taken in (0, 0, 2, 4, 4) for t in (taken,) * 3]


def test_a_lambda_called_on_the_host_in_a_loop_compiles_once() -> None:
    x, before = st.tensor([1.0, 2.0]), len(HOST_FUNCTIONS)
    for _ in range(5):
        x = st.host_call(lambda v: v + 1, x, x, pure=True)
    assert x.tolist() == [6.0, 7.0]
    assert len(HOST_FUNCTIONS) == before + 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_equals_a_loop(count: int, reverse: bool) -> None:
    rng = np.random.default_rng(count)
    a, u = rng.uniform(-1, 1, (2, 3, count))

    def combine(first: Any, second: Any) -> Any:
        return {"a": first["a"] * second["a"], "u": second["a"] * first["u"] + second["u"]}

    found = st.associative_scan(combine, {"a": st.tensor(a), "u": st.tensor(u)}, reverse, dim=1)["u"]
    want, h = np.zeros((3, count)), np.zeros(3)
    for k in range(count)[:: -1 if reverse else 1]:
        h = want[:, k] = a[:, k] * h + u[:, k]
    np.testing.assert_allclose(array(found), want, rtol=1e-12, atol=1e-14)


def test_a_while_with_a_bound_is_differentiable_and_stops_there() -> None:
    def f(x: Any, steps: int) -> Any:
        return st.while_loop(lambda s: s < 100, lambda s: s * x, x, max_steps=steps)

    x = st.tensor(3.0)
    assert f(x, 20).item() == 243 and f(x, 2).item() == 27 and f(x, 0).item() == 3
    assert st.grad(lambda v: f(v, 20))(x).item() == 405
    assert st.check_grad(lambda v: [f(v, 9)], [np.array(2.5)], order=2).ok


def test_rows_of_a_while_end_each_in_its_own_time() -> None:
    def f(x: Any) -> Any:
        return st.while_loop(lambda s: s[0] < 100, lambda s: (s[0] * x, s[1] + 1), (x, 0))

    def power(x: Any, n: Any) -> Any:
        return st.fori_loop(0, n, lambda i, s: s * x + i, x)

    x, n = st.tensor([3.0, 200.0, 1.5], dtype="float64"), st.tensor([0, 3, 2])
    for run in (lambda g: g, st.compile):
        final, steps = run(st.vmap(f))(x)
        np.testing.assert_allclose(array(final), [243, 200, 1.5**12])
        assert array(steps).tolist() == [4, 0, 11]
        found = run(st.vmap(power))(x, n)
        np.testing.assert_allclose(array(found), [power(x[k], int(n[k])).item() for k in range(3)])
        tangent = run(lambda v: st.jvp(st.vmap(lambda u: f(u)[0]), (v,), (st.ones_like(v),))[1])(x)
        np.testing.assert_allclose(array(tangent), [5 * 3.0**4, 1, 12 * 1.5**11])
        by_rows = run(st.vmap(lambda u: st.jvp(lambda v: f(v)[0], (u,), (st.ones_like(u),))[1]))(x)
        np.testing.assert_allclose(array(by_rows), array(tangent))


def test_rows_of_a_scan_have_lengths_of_their_own() -> None:
    def f(x: Any, n: Any) -> Any:
        return st.scan(lambda c, row: (c * row, c), x[0], x, length=n, reverse=True)

    rng = np.random.default_rng(0)
    x, n = st.tensor(rng.uniform(1, 2, (4, 5))), st.tensor([0, 2, 5, 9])
    got, want = st.vmap(f)(x, n), [f(x[k], n[k]) for k in range(4)]
    for k, part in enumerate(got):
        np.testing.assert_allclose(array(part), np.stack([array(w[k]) for w in want]))
    grads = st.vmap(st.grad(lambda v, m: f(v, m)[0]))(x, n)
    by_loop = [array(st.grad(lambda v, m: f(v, m)[0])(x[k], n[k])) for k in range(4)]
    np.testing.assert_allclose(array(grads), np.stack(by_loop))


# -- mistakes ------------------------------------------------------------------------------------------------
def broken(forward: Any = lambda x: (x, x), backward: Any = lambda r, ct: (ct,)) -> Any:
    f = st.custom_vjp(lambda x: x)
    f.defvjp(forward, backward)
    return lambda: st.grad(lambda x: f(x).sum())(st.ones(3))


W = st.ones(3)
WRONG: dict[str, tuple[type[StratalError], str, Callable[[], Any]]] = {
    "no rule": (AttributeValueError, "no rule yet", lambda: st.custom_vjp(st.sin)(W)),
    "no pair": (DTypeError, "residuals", broken(forward=lambda x: x)),
    "other result": (ShapeError, "forward rule", broken(forward=lambda x: (x.sum(), x))),
    "no tuple": (ShapeError, "one cotangent per argument", broken(backward=lambda r, ct: ct)),
    "too many": (ShapeError, "one cotangent per argument", broken(backward=lambda r, ct: (ct, ct))),
    "shape": (ShapeError, "shape of what it is for", broken(backward=lambda r, ct: (ct.sum(),))),
    "container": (ShapeError, "containers", broken(backward=lambda r, ct: ([ct, ct],))),
    "draws": (CaptureError, "must not change", broken(backward=lambda r, ct: (ct + st.rand(3),))),
    "forward mode": (NotDifferentiableError, "reverse mode alone",
                     lambda: st.jvp(lambda x: clipped()(x, {"scale": W}), (W,), (W,))),
    "closure": (NotDifferentiableError, "read from around",
                lambda: st.grad(lambda w: _closing(w)(W).sum())(W)),
    "effects": (CaptureError, "run twice",
                lambda: st.checkpoint(lambda x: st.host_call(np.sin, st.spec((3,)), x), W)),
    "unbounded": (NotDifferentiableError, "max_steps",
                  lambda: st.grad(lambda x: st.while_loop(lambda s: s < 9, st.exp, x))(st.tensor(2.0))),
    "no branch": (AttributeValueError, "at least one", lambda: st.switch(st.tensor(0), [])),
    "float index": (DTypeError, "integer scalar", lambda: st.switch(st.tensor(0.5), [st.sin], W)),
    "branches": (ShapeError, "switch: branches", lambda: st.switch(st.tensor(0), [st.sin, st.sum], W)),
    "prefix sizes": (ShapeError, "share the size", lambda: st.associative_scan(st.add, [W, st.ones(2)])),
    "prefix of nothing": (ShapeError, "share the size", lambda: st.associative_scan(lambda a, b: a, [])),
    "prefix axis": (AttributeValueError, "out of range", lambda: st.associative_scan(st.add, W, axis=1)),
    "prefix result": (ShapeError, "like its arguments", lambda: st.associative_scan(lambda a, b: a.sum(), W)),
    "map": (ShapeError, "leading axis", lambda: st.map(lambda r: r, st.tensor(1.0))),
}  # fmt: skip


def _closing(w: Any) -> Any:
    f = st.custom_vjp(lambda x: x * w)
    f.defvjp(lambda x: (x * w, None), lambda r, ct: (ct * w,))
    return f


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_an_error_that_says_what_to_do(name: str) -> None:
    kind, says, call = WRONG[name]
    with pytest.raises(kind, match=says) as caught:
        call()
    lines = [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]]
    assert lines[0] == "got" and "hint" in lines, str(caught.value)
