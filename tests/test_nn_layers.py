"""Every layer against PyTorch: state-dict keys, outputs, gradients of inputs and parameters, buffers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = {
    "linear": (lambda nn: nn.Linear(5, 3), (4, 5)),
    "linear without bias, 3 axes": (lambda nn: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "dropout in evaluation": (lambda nn: nn.Dropout(0.3).eval(), (3, 4)),
    "identity": (lambda nn: nn.Identity(), (3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch_in_float64(name):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape, dtype=np.float64))


@pytest.mark.parametrize("name", ["linear"])
def test_a_layer_agrees_with_pytorch_in_float32(name):
    make, shape = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(*shape))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_prints_like_pytorch(name):
    make, _ = LAYERS[name]
    if "norm" in name and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("earlier versions do not print the bias option")
    assert repr(make(nn)).replace(", inplace=False", "") == repr(make(torch.nn)).replace(
        ", inplace=False", ""
    )


@pytest.mark.parametrize(("layers", "reverse"), [(1, False), (2, True)])
def test_the_lstm_agrees_with_pytorch(layers, reverse):
    def make(nn):
        return nn.LSTM(3, 4, num_layers=layers, bidirectional=reverse, batch_first=reverse)

    def forward(module, x):
        y, (h, c) = module(x)
        return y.sum() + (h * 2.0).sum() + (c * 3.0).sum()

    compare(make(nn), make(torch.nn), draw(5, 2, 3, dtype=np.float64), forward=lambda m, x: m(x)[0])
    with st.eager():
        compare(make(nn), make(torch.nn), draw(5, 2, 3, dtype=np.float64), forward=forward)
