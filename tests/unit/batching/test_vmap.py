"""vmap for people: arguments, containers, random numbers, state, mistakes; the same as torch.func's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import tree
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError, StratalError

X = np.arange(12.0).reshape(4, 3)


def array(t: Any) -> Any:
    return np.asarray(t.detach())


# -- arguments and results -----------------------------------------------------------------------------------
def test_containers_of_arguments_take_containers_of_axes() -> None:
    def f(point: Any, scale: Any) -> Any:
        return {"sum": point["x"].sum() + point["y"], "pair": [point["x"] * scale, scale]}

    point = {"x": st.tensor(X), "y": st.tensor(X[:, 0])}
    found = st.vmap(f, in_axes=({"x": 0, "y": 0}, None), out_axes={"sum": 0, "pair": [1, None]})(point, 2.0)
    np.testing.assert_array_equal(array(found["sum"]), X.sum(1) + X[:, 0])
    np.testing.assert_array_equal(array(found["pair"][0]), (X * 2).T)
    assert found["pair"][1].shape == ()


def test_pytorchs_names_arrays_numbers_and_keyword_arguments_are_taken() -> None:
    found = st.vmap(lambda x, by: x * by, in_dims=1, out_dims=-1)(X, by=3)
    np.testing.assert_array_equal(array(found), X * 3)
    np.testing.assert_array_equal(array(st.vmap(lambda x: 7.0)(X)), np.full(4, 7, np.float32))
    assert st.vmap(lambda: st.ones(2), axis_size=3)().shape == (3, 2)


def test_rows_at_a_time_give_the_same_and_no_rows_give_none() -> None:
    f = lambda x: (x.sum(), x * 2)  # noqa: E731
    for size in (1, 3, 4, 9):
        for got, want in zip(st.vmap(f, chunk_size=size)(X), st.vmap(f)(X), strict=True):
            np.testing.assert_array_equal(array(got), array(want))
    none = st.vmap(f)(np.zeros((0, 3)))
    assert [t.shape for t in none] == [(0,), (0, 3)]


def test_an_argument_changed_in_place_is_changed_for_the_caller() -> None:
    x = st.tensor(X)

    def f(row: Any) -> Any:
        row += 1
        return row.sum()

    assert array(st.vmap(f)(x)).tolist() == (X + 1).sum(1).tolist()
    np.testing.assert_array_equal(array(x), X + 1)


def test_what_takes_gradients_takes_them_through_a_vmap() -> None:
    w = st.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = st.tensor(X.astype(np.float32))
    st.vmap(lambda row: (row * w).sum() ** 2)(x).sum().backward()
    np.testing.assert_allclose(array(w.grad), 2 * (X @ array(w)) @ X, rtol=1e-6)
    assert not st.vmap(lambda row: row * 2)(x).requires_grad
    with st.no_grad():
        assert not st.vmap(lambda row: row * w)(x).requires_grad
    inner = st.vmap(st.grad(lambda row: (st.sin(row) * w).sum()))(x)
    assert inner.requires_grad, "the gradient by rows depends on w"


def test_a_host_call_is_made_once_per_row_and_run() -> None:
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return x * 2

    def f(x: Any) -> Any:
        return st.host_call(note, st.spec((), "float64"), x) + 1

    assert array(st.vmap(f)(X[:, 0])).tolist() == (X[:, 0] * 2 + 1).tolist()
    assert seen == X[:, 0].tolist()
    compiled = st.compile(st.vmap(f))
    compiled(st.tensor(X[:, 0]))
    assert len(seen) == 8


def test_one_program_serves_every_number_of_rows() -> None:
    w = st.tensor(np.random.default_rng(1).normal(size=(3, 3)))

    def f(row: Any) -> Any:
        kept = st.checkpoint(lambda v: st.tanh(v @ w), row)
        return st.scan(lambda c, v: (c + st.cond(v > 0, st.sin, st.cos, v), None), kept.sum(), row)[0]

    compiled = st.compile(st.vmap(st.value_and_grad(f)))
    for rows in (3, 4, 7, 5, 6, 2):
        x = st.tensor(np.random.default_rng(rows).normal(size=(rows, 3)))
        for got, want in zip(compiled(x), st.vmap(st.value_and_grad(f))(x), strict=True):
            np.testing.assert_allclose(array(got), array(want), rtol=1e-10)
    assert compiled.captures == 2


# -- random numbers and state --------------------------------------------------------------------------------
def test_random_numbers_differ_or_not_as_asked_and_go_on_as_one_draw() -> None:
    draw = lambda row: st.randn(3) + 0 * row  # noqa: E731
    rows = st.tensor(X.astype(np.float32))
    st.manual_seed(3)
    same = array(st.vmap(draw, randomness="same")(rows))
    after = array(st.randn(2))
    assert (same == same[0]).all()
    st.manual_seed(3)
    different = array(st.vmap(draw, randomness="different")(rows))
    assert len({row.tobytes() for row in different}) == 4
    np.testing.assert_array_equal(array(st.randn(2)), after)
    st.manual_seed(3)
    compiled = st.compile(st.vmap(draw, randomness="different"))
    np.testing.assert_array_equal(array(compiled(rows)), different)
    assert not np.array_equal(array(compiled(rows)), different)


def test_nested_vmaps_say_it_for_themselves_and_keys_need_no_word() -> None:
    inner = lambda mode: lambda row: st.vmap(lambda x: st.rand() + 0 * x, randomness=mode)(row)  # noqa: E731
    x = st.tensor(X.astype(np.float32))
    drawn = array(st.vmap(inner("different"), randomness="same")(x))
    assert (drawn == drawn[0]).all() and len(set(drawn[0].tolist())) == 3
    drawn = array(st.vmap(inner("same"), randomness="different")(x))
    assert (drawn == drawn[:, :1]).all() and len(set(drawn[:, 0].tolist())) == 4
    keys = st.random.split(st.random.key(1), 4)
    by_key = array(st.vmap(lambda k: st.random.uniform((2,), key=k))(keys))
    alone = [array(st.random.uniform((2,), key=keys[k])) for k in range(4)]
    np.testing.assert_array_equal(by_key, np.stack(alone))
    in_loop = lambda row: st.scan(lambda c, v: (c + st.rand(), None), row.sum() * 0, row)[0]  # noqa: E731
    assert len(set(array(st.vmap(in_loop, randomness="different")(x)).tolist())) == 4


def test_state_that_no_row_changes_is_written_back_once() -> None:
    steps = st.tensor(0.0)

    def f(row: Any) -> Any:
        steps.copy_(steps + 1)
        return row * steps

    np.testing.assert_array_equal(array(st.vmap(f)(X)), X)
    assert steps.item() == 1


# -- mistakes ------------------------------------------------------------------------------------------------
NORM = nn.BatchNorm1d(3)
WRONG: dict[str, tuple[type[StratalError], str, Callable[[], Any]]] = {
    "sizes": (ShapeError, "different numbers", lambda: st.vmap(lambda x, y: x)(X, X.T)),
    "axis size": (ShapeError, "different numbers", lambda: st.vmap(lambda x: x, axis_size=3)(X)),
    "no rows": (ShapeError, "no argument has rows", lambda: st.vmap(lambda x: x, None)(X)),
    "scalar": (ShapeError, "scalar has no rows", lambda: st.vmap(lambda x: x)(3.0)),
    "axis": (AttributeValueError, "out of range", lambda: st.vmap(lambda x: x, 2)(X)),
    "float axis": (ShapeError, "no container", lambda: st.vmap(lambda x: x, 0.5)(X)),
    "out axis": (AttributeValueError, "out of range", lambda: st.vmap(lambda x: x, 0, 2)(X)),
    "axes": (ShapeError, "in_axes", lambda: st.vmap(lambda x: x, (0, 0))(X)),
    "out axes": (ShapeError, "out_axes", lambda: st.vmap(lambda x: x, 0, (0, 0))(X)),
    "differs": (ShapeError, "same for every row", lambda: st.vmap(lambda x: x, 0, None)(X)),
    "result": (DTypeError, "must return tensors", lambda: st.vmap(lambda x: "x")(X)),
    "argument": (DTypeError, "takes tensors", lambda: st.vmap(lambda x: x)("rows")),
    "random": (CaptureError, "random numbers", lambda: st.vmap(lambda x: x + st.rand(3))(X)),
    "mode": (AttributeValueError, "randomness", lambda: st.vmap(lambda x: x, randomness="no")(X)),  # type: ignore[arg-type]
    "chunk": (AttributeValueError, "chunk_size", lambda: st.vmap(lambda x: x, chunk_size=0)(X)),
    "item": (CaptureError, "item()", lambda: st.vmap(lambda x: x.sum().item())(X)),
    "branch": (CaptureError, "bool", lambda: st.vmap(lambda x: x if x.sum() > 0 else -x)(X)),
    "state": (CaptureError, "from around", lambda: st.vmap(NORM)(st.ones((2, 4, 3)))),
    "backward": (CaptureError, "gradient cannot be stored",
                 lambda: st.vmap(lambda x: (NORM.weight * x).sum().backward())(st.ones((2, 3)))),
    "index": (StratalError, "out of range",
              lambda: array(st.vmap(lambda x, i: st.take(x, i))(X, np.array([0, 1, 3, 0])))),
    "jacobian of ints": (DTypeError, "floats", lambda: st.jacrev(lambda x: x)(st.arange(3))),
    "jacobian to ints": (DTypeError, "real floats", lambda: st.jacfwd(lambda x: x > 0)(st.ones(3))),
    "jacobian mode": (AttributeValueError, "mode", lambda: st.jacobian(lambda x: x, mode="both")),
    "argnums": (AttributeValueError, "argnums", lambda: st.hessian(lambda x: x, argnums=1)(st.ones(()))),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_an_error_of_four_lines(name: str) -> None:
    kind, says, call = WRONG[name]
    with pytest.raises(kind, match=says.replace("(", r"\(").replace(")", r"\)")) as caught:
        call()
    lines = [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]]
    assert lines[0] == "got" and "hint" in lines, str(caught.value)
    assert array(st.vmap(lambda x: x.sum())(X)).tolist() == X.sum(1).tolist(), "nothing is left behind"


# -- as torch.func -------------------------------------------------------------------------------------------
def _both(build: Callable[[Any], Any], *arrays: Any) -> tuple[list[Any], list[Any]]:
    """Return what a function of a namespace like torch.func gives here and there."""
    torch = pytest.importorskip("torch")
    ours = build(st.func)(*map(st.tensor, arrays))
    theirs = build(torch.func)(*map(torch.tensor, arrays))
    return [array(t) for t in tree.leaves(ours)], [t.detach().numpy() for t in tree.leaves(theirs)]


def _loss(w: Any, x: Any) -> Any:
    return ((x @ w).tanh() * x).sum() ** 2


AS_TORCH: dict[str, Callable[[Any], Any]] = {
    "per-sample gradients": lambda f: f.vmap(f.grad(_loss), in_dims=(None, 0)),
    "gradient and value": lambda f: f.grad_and_value(_loss, argnums=(0, 1)),
    "jacrev": lambda f: f.jacrev(lambda w, x: {"y": (x @ w).tanh(), "s": w.sum()}, argnums=(0, 1)),
    "jacfwd": lambda f: f.jacfwd(lambda w, x: [(x @ w).tanh(), x.sum()], argnums=1),
    "hessian": lambda f: f.hessian(_loss, argnums=(0, 1)),
    "per-sample hessians": lambda f: f.vmap(f.hessian(_loss), in_dims=(None, 0), out_dims=1),
    "vjp": lambda f: lambda w, x: f.vjp(_loss, w, x)[1](w.sum()),
    "jvp": lambda f: lambda w, x: f.jvp(_loss, (w, x), (w * 2, x)),
    "linearize": lambda f: lambda w, x: f.linearize(_loss, w, x)[1](w * 2, x),
    "rows of tangents": lambda f: (
        lambda w, x: f.vmap(lambda t: f.jvp(_loss, (w, x), (w, t))[1], 0)((x * x.sum(0)).reshape(1, *x.shape))
    ),
    "jacobian with aux": lambda f: f.jacrev(lambda w, x: ((x @ w).sum(0), w * 2), has_aux=True),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", AS_TORCH)
def test_torch_func_gives_the_same(name: str) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = _both(AS_TORCH[name], rng.normal(size=(3, 3)), rng.normal(size=(4, 3)))
    assert [a.shape for a in ours] == [a.shape for a in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# -- modules as functions ------------------------------------------------------------------------------------
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("count", st.tensor(0.0))

    def forward(self, x: Any, scale: Any = 1.0) -> Any:
        self.count += 1.0
        return self.second(st.tanh(self.first(x))) * scale


def test_a_module_runs_on_other_parameters_and_keeps_its_own() -> None:
    model = Tied()
    before = {n: array(t).copy() for n, t in model.state_dict().items()}
    x, weight = st.ones((2, 3)), st.eye(3)
    count = st.tensor(5.0)
    found = st.func.functional_call(model, ({"first.weight": weight}, {"count": count}), x, {"scale": 2.0})
    want = np.tanh(np.ones((2, 3)) + before["first.bias"]) * 2
    np.testing.assert_allclose(array(found), want, rtol=1e-6)
    assert count.item() == 6, "the buffer that was given is the one that changes"
    for name, value in before.items():
        np.testing.assert_array_equal(array(model.state_dict()[name]), value)
    apart = st.func.functional_call(model, {"first.weight": weight}, x, tie_weights=False)
    assert not np.allclose(array(apart) * 2, array(found))


def test_names_and_shapes_that_do_not_fit_a_module_are_all_named() -> None:
    model = Tied()
    with pytest.raises(StratalError, match="unknown") as caught:
        st.func.functional_call(
            model, {"third": st.ones(1), "fourth": st.ones(1)}, st.ones((1, 3)), strict=True
        )
    for word in ("fourth, third", "missing: count, first.bias, first.weight, second.weight"):
        assert word in str(caught.value)
    with pytest.raises(StratalError, match="another shape"):
        st.func.functional_call(model, {"first.bias": st.ones(2)}, st.ones((1, 3)))
    assert model(st.ones((1, 3))).shape == (1, 3)


def test_gradients_of_each_sample_by_the_parameters_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = dict(model.named_parameters())
    x, y = st.tensor(X.astype(np.float32)), st.tensor([0, 1, 1, 0])

    def loss(params: Any, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(st.func.functional_call(model, params, x[None]), y[None])

    found = st.compile(st.vmap(st.grad(loss), in_axes=(None, 0, 0)))(params, x, y)
    for k in range(4):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[k : k + 1]), y[k : k + 1]).backward()
        for name, p in params.items():
            np.testing.assert_allclose(array(found[name])[k], array(p.grad), rtol=1e-4, atol=1e-6)


def test_an_ensemble_runs_as_one() -> None:
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = st.func.stack_module_state(models)
    assert params["weight"].shape == (3, 2, 3) and params["weight"].requires_grad and not buffers
    x = st.tensor(X.astype(np.float32))
    found = st.vmap(lambda p: st.func.functional_call(models[0], p, x))(params)
    np.testing.assert_allclose(array(found), np.stack([array(m(x)) for m in models]), rtol=1e-5)
    with pytest.raises(StratalError, match="different tensors"):
        st.func.stack_module_state([*models, nn.Linear(3, 2, bias=False)])
