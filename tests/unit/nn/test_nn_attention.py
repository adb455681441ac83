"""Attention and the Transformer against PyTorch: masks, options, stacks; positions by their definition."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

CAUSAL = np.triu(np.ones((3, 3), bool), 1)
PADDING = np.array([[False, False, True], [False, False, False]])
BIAS = draw(3, 3, dtype=np.float64, seed=5)


def x(*shape, seed=0):
    return draw(*shape, dtype=np.float64, seed=seed)


def tensor_of(module):
    return st.tensor if isinstance(module, nn.Module) else torch.tensor


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_agrees_with_its_masks(batch_first):
    def make(nn):
        return nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def masked(m, x):
        t = tensor_of(m)
        return m(x, x, x, attn_mask=t(CAUSAL), key_padding_mask=t(PADDING), need_weights=False)[0]

    a = x(2, 3, 8) if batch_first else x(3, 2, 8)
    compare(make(nn), make(torch.nn), a, forward=lambda m, x: m(x, x, x)[0])
    compare(make(nn), make(torch.nn), a, forward=masked)
    with st.eager():
        compare(make(nn), make(torch.nn), a, forward=lambda m, x: m(x, x, x)[1])
        compare(make(nn), make(torch.nn), a, forward=lambda m, x: m(x, x, x, average_attn_weights=False)[1])
        compare(make(nn), make(torch.nn), x(3, 8), forward=lambda m, x: m(x, x, x)[1])


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "both", "numbers", "per head"])
@pytest.mark.parametrize("options", [
    {"add_zero_attn": True}, {"add_bias_kv": True},
    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
])  # fmt: skip
def test_keys_and_values_behind_the_others_agree(options, mask):
    masks = {
        "none": {}, "causal": {"attn_mask": CAUSAL}, "padding": {"key_padding_mask": PADDING},
        "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDING}, "numbers": {"attn_mask": BIAS},
        "per head": {"attn_mask": np.stack([CAUSAL] * 4)},
    }[mask]  # fmt: skip

    def forward(which):
        def run(m, x):
            t = tensor_of(m)
            return m(x, x, x, **{k: t(v) for k, v in masks.items()})[which]

        return run

    def make(nn):
        return nn.MultiheadAttention(8, 2, **options)

    with st.eager():
        for which in (0, 1):
            compare(make(nn), make(torch.nn), x(3, 2, 8), forward=forward(which))


def test_causality_leaves_the_keys_behind_visible():
    layer = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    a = st.tensor(draw(3, 2, 8))
    _, weights = layer(a, a, a, is_causal=True)
    np.testing.assert_array_equal(weights.numpy()[0] > 0, np.c_[~CAUSAL, np.ones(3, bool)])


def test_cross_attention_with_other_sizes_agrees():
    def make(nn):
        return nn.MultiheadAttention(8, 2, kdim=5, vdim=6)

    arrays = [x(4, 2, n, seed=n) for n in (8, 5, 6)]
    compare(make(nn), make(torch.nn), *arrays, forward=lambda m, q, k, v: m(q, k, v, need_weights=False)[0])


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_encoder_layer_agrees(norm_first):
    def make(nn):
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", norm_first=norm_first)

    compare(make(nn), make(torch.nn), x(4, 2, 8))


def masked_decoder(m, tgt, memory):
    t = tensor_of(m)
    return m(
        tgt, memory, tgt_mask=t(CAUSAL), memory_mask=t(np.eye(3, 4) > 0), tgt_key_padding_mask=t(PADDING),
        memory_key_padding_mask=t(np.c_[PADDING, [[False], [True]]]),
    )  # fmt: skip


@pytest.mark.parametrize("options", [
    {}, {"norm_first": True, "bias": False}, {"batch_first": True, "activation": "gelu"},
])  # fmt: skip
def test_a_transformer_decoder_layer_agrees(options):
    def make(nn):
        return nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, **options)

    first = "batch_first" in options
    arrays = (x(2, 3, 8), x(2, 4, 8, seed=1)) if first else (x(3, 2, 8), x(4, 2, 8, seed=1))
    compare(make(nn), make(torch.nn), *arrays, forward=masked_decoder)
    with st.eager():
        compare(make(nn), make(torch.nn), *arrays)


def test_stacks_of_layers_agree():
    def encoder(nn):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def decoder(nn):
        return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2, nn.LayerNorm(8))

    def masked(m, x):
        t = tensor_of(m)
        return m(x, mask=t(CAUSAL), src_key_padding_mask=t(PADDING))

    compare(encoder(nn), encoder(torch.nn), x(3, 2, 8), forward=masked)
    compare(decoder(nn), decoder(torch.nn), x(3, 2, 8), x(4, 2, 8, seed=1), forward=masked_decoder)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_whole_transformer_agrees_and_has_pytorchs_keys(norm_first):
    def make(nn):
        return nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, norm_first=norm_first)

    def run(m, src, tgt):
        t, n = tensor_of(m), (nn if isinstance(m, nn.Module) else torch.nn)
        causal = n.Transformer.generate_square_subsequent_mask(3, dtype=(st if n is nn else torch).float64)
        return m(src, tgt, tgt_mask=causal, src_key_padding_mask=t(np.zeros((2, 4), bool)))

    compare(make(nn), make(torch.nn), x(4, 2, 8), x(3, 2, 8, seed=1), forward=run)
    ours = repr(make(nn))
    assert ours == repr(make(torch.nn)).replace("NonDynamicallyQuantizableLinear", "Linear")


def test_causal_flags_mean_the_causal_mask():
    st.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
    src, tgt = st.tensor(draw(3, 2, 8)), st.tensor(draw(3, 2, 8, seed=1))
    mask = model.generate_square_subsequent_mask(3)
    want = model(src, tgt, src_mask=mask, tgt_mask=mask)
    got = model(src, tgt, src_is_causal=True, tgt_is_causal=True)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: nn.MultiheadAttention(6, 4), "must divide embed_dim"),
        (lambda a: nn.MultiheadAttention(8, 0), "must divide embed_dim"),
        (lambda a: nn.MultiheadAttention(8, 2)(a[0, 0], a, a), "2 or 3 axes"),
        (lambda a: nn.TransformerDecoderLayer(8, 2, activation="swish"), "activation"),
        (lambda a: nn.Transformer(8, 2, 1, 1, 16)(a, a[:, :1]), "one batch"),
        (lambda a: nn.Transformer(4, 2, 1, 1, 16)(a, a), "4 features"),
        (lambda a: nn.RotaryEmbedding(7), "in pairs"),
        (lambda a: nn.RotaryEmbedding(10)(a), "at most the features"),
        (lambda a: nn.RotaryEmbedding(8)(a, st.ones(3)), "positions are an int"),
        (lambda a: nn.SinusoidalPositions(6)(a), "the last of 6"),
        (lambda a: nn.SinusoidalPositions(5), "in pairs"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.tensor(draw(3, 2, 8)))
    assert "test_nn_attention.py" in str(info.value)


# -- positions -----------------------------------------------------------------------------------------------
def test_sinusoidal_positions_are_their_definition():
    table = nn.functional.sinusoidal_positions(5, 6, offset=3, dtype="float64").numpy()
    for p in range(5):
        for k in range(3):
            angle = (p + 3) / 10000 ** (2 * k / 6)
            assert table[p, 2 * k] == pytest.approx(np.sin(angle), abs=1e-13)
            assert table[p, 2 * k + 1] == pytest.approx(np.cos(angle), abs=1e-13)
    a = draw(5, 2, 6)
    waves = nn.functional.sinusoidal_positions(5, 6).numpy()
    np.testing.assert_allclose(nn.SinusoidalPositions(6)(st.tensor(a)).numpy(), a + waves[:, None], rtol=1e-6)
    first = nn.SinusoidalPositions(6, batch_first=True)(st.tensor(a.swapaxes(0, 1))).numpy()
    np.testing.assert_allclose(first, (a + waves[:, None]).swapaxes(0, 1), rtol=1e-6)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("positions", [None, 7, np.array([4, 0, 9])])
def test_rotations_are_products_with_complex_numbers(interleaved, positions):
    a = x(2, 3, 8)
    at = np.arange(3) + (positions or 0) if positions is None or isinstance(positions, int) else positions
    turns = np.exp(1j * at[:, None] / 10000 ** (2 * np.arange(4) / 8))
    first, second = (a[..., ::2], a[..., 1::2]) if interleaved else (a[..., :4], a[..., 4:])
    turned = (first + 1j * second) * turns
    want = np.empty_like(a)
    if interleaved:
        want[..., ::2], want[..., 1::2] = turned.real, turned.imag
    else:
        want[..., :4], want[..., 4:] = turned.real, turned.imag
    given = st.tensor(positions) if isinstance(positions, np.ndarray) else positions
    got = nn.RotaryEmbedding(8, interleaved=interleaved)(st.tensor(a), given)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-13)


def test_products_of_rotated_vectors_depend_on_their_distance_alone():
    rotate = nn.RotaryEmbedding(8)
    q, k = st.tensor(np.tile(x(1, 8), (6, 1))), st.tensor(np.tile(x(1, 8, seed=1), (6, 1)))
    scores = (rotate(q) @ rotate(k).T).numpy()
    shifted = (rotate(q, 100) @ rotate(k, 100).T).numpy()
    np.testing.assert_allclose(scores, shifted, rtol=1e-10)
    np.testing.assert_allclose(np.diag(scores, -2), scores[2, 0], rtol=1e-10)


def test_only_the_first_features_turn_and_gradients_are_those_of_finite_differences():
    a = x(3, 8)
    got = nn.RotaryEmbedding(4)(st.tensor(a)).numpy()
    np.testing.assert_array_equal(got[:, 4:], a[:, 4:])
    assert st.check_grad(lambda a: nn.functional.rotary_embedding(a, dim=4), [a], order=2).ok
