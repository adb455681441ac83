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


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_agrees_with_its_masks(batch_first):
    def make(nn):
        return nn.MultiheadAttention(8, 2, batch_first=batch_first)

    x = draw(3, 3, 8, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x, x, x)[0])
    with st.eager():
        compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x, x, x)[1])
        compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x, x, x, average_attn_weights=False)[1])
    causal = np.triu(np.ones((3, 3), bool), 1)
    padding = np.array([[False, False, True]] * 3)

    def masked(m, x):
        tensor = st.tensor if isinstance(m, nn.Module) else torch.tensor
        return m(x, x, x, attn_mask=tensor(causal), key_padding_mask=tensor(padding), need_weights=False)[0]

    compare(make(nn), make(torch.nn), x, forward=masked)


def test_cross_attention_with_other_sizes_agrees():
    def make(nn):
        return nn.MultiheadAttention(8, 2, kdim=5, vdim=6)

    arrays = [draw(4, 2, n, dtype=np.float64, seed=n) for n in (8, 5, 6)]
    compare(make(nn), make(torch.nn), *arrays, forward=lambda m, q, k, v: m(q, k, v, need_weights=False)[0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_layer_agrees(norm_first):
    def make(nn):
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", norm_first=norm_first)

    compare(make(nn), make(torch.nn), draw(4, 2, 8, dtype=np.float64))
