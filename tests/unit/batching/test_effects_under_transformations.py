"""What a function writes to around it, under vmap of derivatives: as the derivative alone leaves it, or
refused; never lost.
"""

import pytest

import stratal as st
from stratal import nn
from stratal.base import tree
from stratal.base.errors import CaptureError

pytestmark = pytest.mark.quick

X = st.linspace(0.5, 1.5, 3)
TRANSFORMATIONS = {
    "the function": lambda f: f,
    "grad": st.grad,
    "value_and_grad": st.value_and_grad,
    "vjp": lambda f: lambda *x: st.func.vjp(f, *x)[1](st.ones(())),
    "jvp": lambda f: lambda *x: st.func.jvp(f, x, tuple(st.ones_like(v) for v in x)),
    "jacrev": st.func.jacrev,
    "jacfwd": st.func.jacfwd,
    "hessian": st.func.hessian,
    "grad of grad": lambda f: st.grad(lambda *x: st.grad(f)(*x).sum()),
}
WAYS = {
    "eager": lambda f: f,
    "compiled": lambda f: st.compile(f),
    "compiled, not audited": lambda f: st.compile(f, audit=False),
}


def _vmapped(function, transformation, way, *args, in_axes=0):
    return WAYS[way](st.vmap(TRANSFORMATIONS[transformation](function), in_axes=in_axes))(*args)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_no_row_changes_is_written(name, way):
    def effects(run):
        seen, factor = st.zeros(3), st.ones(3)

        def f(row):
            seen.add_(factor)
            factor.mul_(2)
            return (row * seen).pow(2).sum()

        for _ in range(2):
            result = run(f)
        return tree.leaves(result), seen.tolist(), factor.tolist()

    rows = st.stack([X, 2 * X])
    wanted, *after = effects(lambda f: [TRANSFORMATIONS[name](f)(row) for row in (X,)])
    got, *found = effects(lambda f: _vmapped(f, name, way, rows))
    assert found == after
    for whole, first in zip(got, wanted, strict=True):
        assert st.allclose(whole[0], first, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_rows_change_differently_is_refused_and_stays(name, way):
    seen, norm = st.zeros(3), nn.BatchNorm1d(3)

    def f(row):
        seen.add_(row.sum(0))
        return norm(row).pow(2).sum()

    with pytest.raises(CaptureError, match="rows give a tensor from around the function different values"):
        _vmapped(f, name, way, st.stack([st.eye(3), 2 * st.ones(3, 3)]))
    assert seen.tolist() == [0, 0, 0]
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert norm.state_dict()["num_batches_tracked"].item() == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["the function", "grad", "jacrev", "grad of grad"])
def test_what_is_handed_in_with_rows_is_written(name, way):
    def effects(run):
        seen, rows = st.stack([X, 2 * X]), st.stack([X, 3 * X])

        def f(row, state):
            state.mul_(row).add_(1)
            return (row * state).sum().pow(2)

        for _ in range(2):
            result = run(f, rows, seen)
        return result, seen

    def looped(f, rows, seen):
        return st.stack([TRANSFORMATIONS[name](f)(row, state) for row, state in zip(rows, seen, strict=True)])

    (wanted, after), (got, found) = effects(looped), effects(lambda f, *a: _vmapped(f, name, way, *a))
    assert found.flatten().tolist() == pytest.approx(after.flatten().tolist(), rel=1e-5)
    assert got.flatten().tolist() == pytest.approx(wanted.flatten().tolist(), rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_the_buffers_of_an_ensemble_move_under_a_gradient(way):
    st.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(3)]
    params, buffers = st.func.stack_module_state(models)
    x = st.randn(5, 3)

    def loss(p, b, x):
        return st.func.functional_call(models[0], (p, b), (x,)).pow(2).sum()

    grads = _vmapped(loss, "grad", way, params, buffers, x, in_axes=(0, 0, None))
    for k, model in enumerate(models):
        model(x).pow(2).sum().backward()
        mean = model[1].running_mean.tolist()
        assert buffers["1.running_mean"][k].tolist() == pytest.approx(mean, rel=1e-5, abs=1e-6)
        weight = model[0].weight.grad.flatten().tolist()
        assert grads["0.weight"][k].flatten().tolist() == pytest.approx(weight, rel=1e-3, abs=1e-5)
    assert buffers["1.num_batches_tracked"].tolist() == [1, 1, 1]
