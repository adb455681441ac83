"""nn.utils against PyTorch: normalised weights, parametrizations; containers, hooks, initialisers."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import assert_close, compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn, optim  # noqa: E402

pytestmark = pytest.mark.torch


def x(*shape, seed=0):
    return draw(*shape, dtype=np.float64, seed=seed)


LAYERS = {
    "linear": (lambda nn: nn.Linear(4, 3), (5, 4)),
    "conv": (lambda nn: nn.Conv2d(2, 3, 3), (2, 2, 5, 5)),
    "transposed": (lambda nn: nn.ConvTranspose1d(2, 3, 3), (2, 2, 5)),
}
WRAPPERS = {
    "weight norm": lambda nn, m: nn.utils.parametrizations.weight_norm(m),
    "weight norm of all": lambda nn, m: nn.utils.parametrizations.weight_norm(m, dim=1),
    "spectral norm": lambda nn, m: nn.utils.parametrizations.spectral_norm(m),
    "spectral norm of more steps": lambda nn, m: nn.utils.parametrizations.spectral_norm(
        m, n_power_iterations=3
    ),
    "spectral norm in evaluation": lambda nn, m: nn.utils.parametrizations.spectral_norm(m).eval(),
    "older weight norm": lambda nn, m: nn.utils.weight_norm(m),
    "older weight norm of one length": lambda nn, m: nn.utils.weight_norm(m, dim=None),
    "older spectral norm": lambda nn, m: nn.utils.spectral_norm(m),
    "older spectral norm in evaluation": lambda nn, m: nn.utils.spectral_norm(m).eval(),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_normalised_weight_agrees_with_pytorch(layer, wrapper):
    make, shape = LAYERS[layer]
    wrap = WRAPPERS[wrapper]
    compare(wrap(nn, make(nn)), wrap(torch.nn, make(torch.nn)), x(*shape))
    if "older" not in wrapper:
        assert repr(wrap(nn, make(nn))) == repr(wrap(torch.nn, make(torch.nn)))


@pytest.mark.parametrize("kind", ["weight", "spectral"])
def test_a_normalised_weight_keeps_its_value_when_the_norm_is_removed(kind):
    layer = nn.Linear(4, 3)
    before = layer.weight.numpy().copy()
    getattr(nn.utils, f"{kind}_norm")(layer)
    layer.eval()
    value = layer.weight.detach().numpy()
    if kind == "weight":
        np.testing.assert_allclose(value, before, rtol=1e-6)
    getattr(nn.utils, f"remove_{kind}_norm")(layer)
    np.testing.assert_array_equal(layer.weight.numpy(), value)
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    value = layer.weight.detach().numpy()
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    np.testing.assert_array_equal(layer.weight.numpy(), value)
    assert not nn.utils.parametrize.is_parametrized(layer)


class Symmetric(nn.Module):
    def forward(self, w):
        upper = st.triu(w)
        return upper + st.triu(w, 1).T

    def right_inverse(self, w):
        return st.triu(w)


class Doubled(nn.Module):
    def forward(self, w):
        return 2 * w

    def right_inverse(self, w):
        return w / 2


def test_parametrizations_chain_and_assigning_goes_through_their_inverses():
    layer = nn.Linear(3, 3)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric(), unsafe=True)
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]
    w = layer.weight.detach().numpy()
    np.testing.assert_allclose(w, w.T)
    value = draw(3, 3)
    value = value + value.T
    layer.weight = st.tensor(value)
    np.testing.assert_allclose(layer.weight.detach().numpy(), value, rtol=1e-6)
    twin = copy.deepcopy(layer)
    layer.weight = st.tensor(2 * value)
    np.testing.assert_allclose(twin.weight.detach().numpy(), value, rtol=1e-6)


@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_compiled_step_trains_a_normalised_weight_and_is_captured_once(wrap):
    st.manual_seed(0)
    layer = wrap(nn.Linear(4, 3))
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    a, b = st.tensor(draw(8, 4)), st.tensor(draw(8, 3, seed=1))

    @st.compile
    def step(a, b):
        loss = nn.functional.mse_loss(layer(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [float(step(a, b)) for _ in range(20)]
    assert losses[-1] < losses[0] and step.captures == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: nn.utils.weight_norm(m, "gain"), "no parameter of that name"),
        (lambda m: nn.utils.remove_weight_norm(m), "not normalised"),
        (lambda m: nn.utils.spectral_norm(m, n_power_iterations=0), "positive"),
        (lambda m: nn.utils.weight_norm(m, dim=3), "axis out of range"),
        (lambda m: nn.utils.parametrize.register_parametrization(m, "gain", Doubled()), "no parameter"),
        (
            lambda m: nn.utils.parametrize.register_parametrization(m, "weight", nn.Flatten(0)),
            "keeps its shape",
        ),
        (lambda m: nn.utils.parametrize.remove_parametrizations(m, "weight"), "not parametrized"),
        (lambda m: nn.init.dirac_(m.weight), "axes"),
        (lambda m: nn.init.sparse_(m.bias, 0.1), "takes a matrix"),
        (lambda m: nn.init.eye_(m.bias), "takes a matrix"),
        (lambda m: nn.Sequential(m) * 0, "positive number of times"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(nn.Linear(4, 3))
    assert "test_nn_utils.py" in str(info.value)


def test_norms_of_gradients_agree_with_pytorch():
    grads = [draw(3, 4), draw(5, seed=1)]
    for p in (1.0, 2.0, 3.0, float("inf")):
        ours = nn.utils.get_total_norm([st.tensor(g) for g in grads], p)
        theirs = torch.nn.utils.get_total_norm([torch.tensor(g) for g in grads], p)
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    parameter = nn.Parameter(np.zeros(4, np.float32))
    parameter.grad = st.tensor(np.full(4, 3.0, np.float32))
    nn.utils.clip_grads_with_norm_([parameter], 1.0, st.tensor(6.0))
    np.testing.assert_allclose(parameter.grad.numpy(), 0.5, rtol=1e-5)


# -- containers ----------------------------------------------------------------------------------------------
def test_parameter_dicts_behave_like_dicts_and_train():
    table = nn.ParameterDict({"a": np.ones(2, np.float32), "b": nn.Parameter(np.zeros((2, 3), np.float32))})
    table["c"] = st.tensor([1.0])
    assert list(table) == ["a", "b", "c"] and "b" in table and len(table) == 3
    assert [n for n, _ in table.named_parameters()] == ["a", "b", "c"]
    assert table.get("d") is None and table.setdefault("d", np.ones(1, np.float32)) is table["d"]
    assert table.pop("a").shape == (2,) and "a" not in table
    assert list((table | {"e": np.ones(1, np.float32)}).keys()) == ["b", "c", "d", "e"]
    with pytest.raises(KeyError):
        table["a"]
    table.clear()
    assert not len(table) and not list(table.parameters())


def test_lists_of_modules_add_up_pop_and_print_equal_ones_once():
    def make(nn):
        layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()])
        layers += [nn.ReLU(), nn.Linear(1, 1)]
        return layers

    assert repr(make(nn)) == repr(make(torch.nn))
    layers = make(nn)
    assert isinstance(layers.pop(2), nn.ReLU) and len(layers) == 4
    assert len(layers + nn.ModuleList([nn.ReLU()])) == 5
    twice = nn.Sequential(nn.Linear(2, 2), nn.ReLU()) * 2
    assert len(twice) == 4 and twice[0] is twice[2]
    table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
    assert isinstance(table.pop("a"), nn.ReLU) and list(table) == ["b"]
    table.clear()
    assert not len(table)
    params = nn.ParameterList().extend([np.ones(1, np.float32)])
    params += [np.ones(2, np.float32)]
    assert [p.shape for p in params] == [(1,), (2,)]


# -- modules -------------------------------------------------------------------------------------------------
def test_hooks_see_keyword_arguments_and_run_in_order():
    class Scale(nn.Module):
        def forward(self, x, by=1.0):
            return x * by

    layer, seen = Scale(), []
    layer.register_forward_pre_hook(lambda m, args: seen.append("second"))
    layer.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"by": kwargs["by"] + 1}), with_kwargs=True
    )
    layer.register_forward_pre_hook(lambda m, args: seen.append("first"), prepend=True)
    layer.register_forward_hook(lambda m, args, kwargs, y: y + kwargs["by"], with_kwargs=True)
    assert float(layer(st.tensor(2.0), by=2.0)) == 9.0 and seen == ["first", "second"]
    with layer.register_forward_hook(lambda m, args, y: y * 0):
        assert float(layer(st.tensor(2.0), by=2.0)) == 0.0
    assert float(layer(st.tensor(2.0), by=2.0)) == 9.0


def test_hooks_of_state_dicts_rename_keys_and_hear_of_the_result():
    net, heard = nn.Sequential(nn.Linear(2, 3)), []

    def rename(module, state, prefix, *rest):
        if prefix + "gain" in state:
            state[prefix + "weight"] = state.pop(prefix + "gain")

    net[0].register_load_state_dict_pre_hook(rename)
    net.register_load_state_dict_post_hook(lambda module, result: heard.append(result))
    net[0].register_state_dict_post_hook(lambda module, state, prefix, meta: state.update({prefix + "v": 2}))
    state = net.state_dict()
    assert state.pop("0.v") == 2
    state["0.gain"] = state.pop("0.weight") * 2
    before = net[0].weight.numpy().copy()
    net.load_state_dict(state)
    np.testing.assert_allclose(net[0].weight.numpy(), 2 * before)
    assert heard[0].missing_keys == []


def test_a_module_below_is_replaced_by_its_dotted_name():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    net.set_submodule("0.0", nn.Tanh())
    assert isinstance(net[0][0], nn.Tanh)
    with pytest.raises(st.StratalError, match="no module"):
        net.set_submodule("0.7", nn.Tanh())
    assert net.cpu() is net and net.type("float64") is net


# -- initialisers --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("shape", "groups"), [((6, 3, 3), 1), ((6, 3, 3, 4), 2), ((4, 6, 1, 2, 3), 1)])
def test_dirac_agrees_with_pytorch(shape, groups):
    ours = nn.init.dirac_(nn.Parameter(np.zeros(shape, np.float32)), groups)
    theirs = torch.nn.init.dirac_(torch.empty(shape), groups)
    assert_close(ours.detach(), theirs)


def test_sparse_columns_and_draws_of_a_generator():
    st.manual_seed(0)
    w = nn.init.sparse_(nn.Parameter(np.zeros((50, 40), np.float32)), 0.3, std=2.0).numpy()
    assert np.all((w == 0).sum(0) == 15) and w[w != 0].std() == pytest.approx(2.0, rel=0.1)
    for name in ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_",
                 "kaiming_uniform_", "kaiming_normal_", "orthogonal_"):  # fmt: skip
        fill = getattr(nn.init, name)
        first, second = (
            fill(nn.Parameter(np.zeros((4, 5), np.float32)), generator=st.Generator(3)).numpy()
            for _ in range(2)
        )
        np.testing.assert_array_equal(first, second)
        assert first.any()


@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_an_orthogonal_weight_agrees_with_pytorch_and_stays_orthogonal(shape, kind, trivial):
    torch = pytest.importorskip("torch")
    rows, columns = shape
    theirs, ours = torch.nn.Linear(columns, rows), nn.Linear(columns, rows)
    start = np.linalg.qr(draw(max(shape), min(shape)))[0]
    start = np.ascontiguousarray(start if rows >= columns else start.T)
    theirs.weight.data = torch.tensor(start)
    ours.weight = nn.Parameter(start)
    wrap = {"orthogonal_map": kind, "use_trivialization": trivial}
    if not trivial and kind != "householder":
        with pytest.raises(st.StratalError, match="use_trivialization"):
            nn.utils.parametrizations.orthogonal(ours, **wrap)
        return
    torch.nn.utils.parametrizations.orthogonal(theirs, **wrap)
    nn.utils.parametrizations.orthogonal(ours, **wrap)
    np.testing.assert_allclose(ours.weight.detach(), start, atol=2e-6)
    state = theirs.state_dict()
    assert {n: tuple(v.shape) for n, v in state.items()} == {
        n: tuple(v.shape) for n, v in ours.state_dict().items()
    }
    moved = dict(state)
    original = state["parametrizations.weight.original"]
    step = torch.tensor(0.1 * draw(*original.shape))
    moved["parametrizations.weight.original"] = original + step * (1 - torch.eye(rows, columns))
    theirs.load_state_dict(moved)
    ours.load_state_dict(moved)
    x = draw(2, columns)
    want = theirs(torch.tensor(x))
    got = ours(st.tensor(x))
    np.testing.assert_allclose(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
    want.square().sum().backward()
    (got * got).sum().backward()
    gradient = theirs.parametrizations.weight.original.grad
    np.testing.assert_allclose(ours.parametrizations.weight.original.grad, gradient, rtol=1e-3, atol=1e-4)
    w = ours.weight.detach().numpy()
    small = w @ w.T if rows <= columns else w.T @ w
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)
