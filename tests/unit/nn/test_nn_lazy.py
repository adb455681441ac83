"""Lazy layers: the plain layer from the first call or state dict on, as in PyTorch."""

import copy
import inspect

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError

LAYERS = {
    "LazyLinear": ((5,), {}, (4, 3)),
    "LazyConv1d": ((6, 3), {"stride": 2}, (2, 4, 9)),
    "LazyConv2d": ((6, 3), {"groups": 2, "bias": False}, (2, 4, 7, 8)),
    "LazyConv3d": ((2, 2), {}, (4, 5, 5, 5)),
    "LazyConvTranspose1d": ((6, 3), {}, (2, 4, 9)),
    "LazyConvTranspose2d": ((6, 3), {"groups": 2}, (2, 4, 7, 8)),
    "LazyConvTranspose3d": ((2, 2), {}, (1, 4, 3, 3, 3)),
    "LazyBatchNorm1d": ((), {"momentum": 0.2}, (4, 3)),
    "LazyBatchNorm2d": ((), {"affine": False}, (2, 3, 4, 4)),
    "LazyBatchNorm3d": ((), {}, (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": ((), {}, (2, 3, 8)),
    "LazyInstanceNorm2d": ((), {"track_running_stats": False}, (2, 3, 4, 4)),
    "LazyInstanceNorm3d": ((), {"affine": False}, (2, 3, 2, 2, 2)),
}


def draw(shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("name", LAYERS)
def test_a_lazy_layer_is_the_plain_one_after_its_first_call(name) -> None:
    torch = pytest.importorskip("torch")
    args, options, shape = LAYERS[name]
    ours, theirs = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    assert ours.has_uninitialized_params() and list(dict(ours.named_parameters())) == [
        n for n, p in theirs.named_parameters()
    ]
    x = draw(shape)
    want = theirs(torch.tensor(x))
    ours(st.tensor(x))
    assert type(ours) is getattr(nn, name.removeprefix("Lazy"))
    assert {n: tuple(v.shape) for n, v in ours.state_dict().items()} == {
        n: tuple(v.shape) for n, v in theirs.state_dict().items()
    }
    fresh = getattr(nn, name)(*args, **options)
    parameters = theirs.state_dict()
    if not parameters:
        return
    fresh.load_state_dict(parameters)
    assert type(fresh) is type(ours)
    fresh.eval(), theirs.eval()
    want = theirs(torch.tensor(x))
    np.testing.assert_allclose(fresh(st.tensor(x)).detach(), want.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("name", LAYERS)
def test_arguments_are_those_of_pytorch(name) -> None:
    torch = pytest.importorskip("torch")
    theirs = list(inspect.signature(getattr(torch.nn, name)).parameters)
    ours = inspect.signature(getattr(nn, name)).parameters.values()
    positional = [p.name for p in ours if p.kind is not p.KEYWORD_ONLY]
    assert positional == [n for n in theirs if n in positional]
    assert {*theirs} - {"dtype", "device", "bias"} <= {*positional}


def model() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def test_a_model_trains_once_it_was_called_and_says_so_before() -> None:
    net = model()
    assert "LazyLinear(in_features=0, out_features=2, bias=True)" in repr(net)
    with pytest.raises(CallOrderError, match="before the first call"):
        optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(CallOrderError, match="no shape"):
        sum(p.numel() for p in net.parameters())
    twin = copy.deepcopy(net)
    x, y = st.tensor(draw((8, 1, 6, 6))), st.tensor(draw((8, 2)))
    net(x)
    assert [type(m).__name__ for m in net] == ["Conv2d", "BatchNorm2d", "ReLU", "Flatten", "Linear"]
    assert type(twin[0]) is nn.LazyConv2d
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    @st.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [float(step(x, y)) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_first_call_may_be_a_captured_one() -> None:
    layer = nn.LazyLinear(3)
    run = st.compile(lambda x: layer(x))
    x = st.tensor(draw((4, 5)))
    first = run(x)
    assert type(layer) is nn.Linear and layer.in_features == 5
    np.testing.assert_allclose(first.detach(), layer(x).detach(), rtol=1e-5)
    np.testing.assert_allclose(run(x).detach(), layer(x).detach(), rtol=1e-5)


def test_modes_dtypes_hooks_and_freezing_before_the_first_call_are_kept() -> None:
    layer, seen = nn.LazyBatchNorm1d(), []
    layer.register_forward_hook(lambda m, args, result: seen.append(type(m).__name__))
    layer.double().eval().requires_grad_(False)
    layer(st.tensor(draw((3, 4)).astype(np.float64)))
    assert seen == ["BatchNorm1d"] and not layer.training and layer.weight.dtype is st.float64
    assert not layer.weight.requires_grad and layer.running_mean.dtype is st.float64


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: nn.LazyLinear(), AttributeValueError, "out_features"),
        (lambda: nn.LazyConv2d(4, 3, padding_mode="zero"), AttributeValueError, "padding_mode"),
        (lambda: nn.LazyConv2d(4, 3)(st.ones(5, 5)), ShapeError, "3 or 4 axes"),
        (lambda: nn.LazyBatchNorm2d()(st.ones(5, 5)), ShapeError, "4 axes"),
    ],
)
def test_a_wrong_call_is_refused(call, error, says) -> None:
    with pytest.raises(error, match=says):
        call()
