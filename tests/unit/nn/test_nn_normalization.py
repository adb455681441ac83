"""Normalisation against PyTorch: outputs, gradients, running statistics, text."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = {
    "batch norm 1d": (lambda nn: nn.BatchNorm1d(5), (6, 5)),
    "batch norm 1d, 3 axes": (lambda nn: nn.BatchNorm1d(5, momentum=None), (3, 5, 4)),
    "batch norm 2d": (lambda nn: nn.BatchNorm2d(3, momentum=0.3), (4, 3, 5, 5)),
    "batch norm 3d": (lambda nn: nn.BatchNorm3d(3), (2, 3, 2, 4, 3)),
    "batch norm without affine": (lambda nn: nn.BatchNorm2d(3, affine=False), (4, 3, 5, 5)),
    "batch norm without tracking": (lambda nn: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 5)),
    "batch norm in evaluation": (lambda nn: nn.BatchNorm2d(3).eval(), (4, 3, 5, 5)),
    "batch norm without tracking, in evaluation": (
        lambda nn: nn.BatchNorm2d(3, track_running_stats=False).eval(),
        (4, 3, 5, 5),
    ),
    "instance norm 1d": (lambda nn: nn.InstanceNorm1d(4), (2, 4, 5)),
    "instance norm 1d affine": (lambda nn: nn.InstanceNorm1d(4, affine=True), (2, 4, 5)),
    "instance norm 2d tracking": (
        lambda nn: nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=0.3),
        (2, 3, 4, 5),
    ),
    "instance norm 2d in evaluation": (
        lambda nn: nn.InstanceNorm2d(3, track_running_stats=True).eval(),
        (2, 3, 4, 5),
    ),
    "instance norm 2d unbatched": (lambda nn: nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
    "instance norm 3d": (lambda nn: nn.InstanceNorm3d(3, affine=True), (2, 3, 2, 3, 4)),
    "layer norm": (lambda nn: nn.LayerNorm(7), (2, 3, 7)),
    "layer norm over two axes": (lambda nn: nn.LayerNorm((3, 7), bias=False), (2, 3, 7)),
    "layer norm without affine": (lambda nn: nn.LayerNorm(7, elementwise_affine=False), (2, 3, 7)),
    "rms norm": (lambda nn: nn.RMSNorm(7), (2, 3, 7)),
    "rms norm over two axes": (lambda nn: nn.RMSNorm([3, 7], eps=1e-3), (2, 3, 7)),
    "rms norm without affine": (lambda nn: nn.RMSNorm(7, elementwise_affine=False), (2, 3, 7)),
    "group norm": (lambda nn: nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "group norm without affine": (lambda nn: nn.GroupNorm(3, 6, affine=False), (3, 6, 4)),
    "local response norm": (lambda nn: nn.LocalResponseNorm(3, alpha=0.1), (2, 6, 4, 3)),
    "local response norm of even size": (lambda nn: nn.LocalResponseNorm(4, 0.2, 0.5, 2.0), (2, 6, 5)),
    "local response norm 3d": (lambda nn: nn.LocalResponseNorm(2), (2, 3, 2, 3, 2)),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch(name, dtype):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape, dtype=dtype))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_prints_like_pytorch(name):
    make, _ = LAYERS[name]
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("earlier versions do not print the bias option")
    assert repr(make(nn)) == repr(make(torch.nn))


FUNCTIONS = {
    "instance_norm": lambda f, t, x: f.instance_norm(x, weight=t(np.ones(4) * 2)),
    "instance_norm of running statistics": lambda f, t, x: f.instance_norm(
        x, t(np.ones(4)), t(np.full(4, 3.0)), use_input_stats=False
    ),
    "rms_norm": lambda f, t, x: f.rms_norm(x, (5,), t(np.arange(5.0))),
    "local_response_norm": lambda f, t, x: f.local_response_norm(x, 2, k=0.5),
    "normalize": lambda f, t, x: f.normalize(x),
    "normalize of another norm": lambda f, t, x: f.normalize(x, p=3.0, dim=-1),
    "normalize of the largest": lambda f, t, x: f.normalize(x, p=float("inf"), dim=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_pytorch(name):
    compare_functions(FUNCTIONS[name], draw(3, 4, 5, dtype=np.float64))


def test_the_direction_of_nothing_has_no_gradient_as_in_pytorch():
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    compare_functions(lambda f, t, x: f.normalize(x), x)
    compare_functions(lambda f, t, x: f.cosine_similarity(x, t(np.ones((2, 2)))), x)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: nn.BatchNorm3d(3)(x), "takes 5 axes"),
        (lambda x: nn.InstanceNorm1d(5)(x), "the channels of 5"),
        (lambda x: nn.InstanceNorm2d(3)(st.ones((2, 3, 1, 1))), "more than one value"),
        (lambda x: nn.RMSNorm(5)(x), "normalised sizes"),
        (lambda x: nn.functional.layer_norm(x, ()), "normalised sizes"),
        (lambda x: nn.LocalResponseNorm(0)(x), "size must be positive"),
        (lambda x: nn.functional.local_response_norm(st.ones((2, 3)), 2), "at least 3 axes"),
        (lambda x: nn.GroupNorm(2, 3), "must divide"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.ones((2, 3, 4)))
    assert "test_nn_normalization.py" in str(info.value)


@pytest.mark.torch
@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("toggled", [True, False])
def test_tracking_can_be_toggled_as_in_pytorch(made, training, toggled):
    torch = pytest.importorskip("torch")
    x = draw(6, 3, dtype=np.float32)
    found = []
    for layers, tensor in ((nn, st.tensor), (torch.nn, torch.tensor)):
        layer = layers.BatchNorm1d(3, track_running_stats=made)
        layer(tensor(x * 2 + 1))
        layer.train(training)
        layer.track_running_stats = toggled
        y = layer(tensor(x)).detach().numpy()
        found.append([y, *(b.numpy() for b in (layer.running_mean, layer.running_var) if b is not None)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
