"""Derivatives of nn.functional against finite differences in float64, to second order."""

import numpy as np
import pytest

import stratal as st
from stratal import nn

F = nn.functional


def x(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


CLASSES = np.array([0, 3, 1, 3])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
MARKS = (x(4, 4, seed=3) > 0).astype(np.float64)
POSITIVE = np.abs(x(4, 4, seed=4)) + 0.1

# name: (function of the inputs that are differentiated, their values); smooth at these values
SMOOTH = {
    "elu": (F.elu, [x(6)]),
    "celu": (lambda a: F.celu(a, 1.5), [x(6)]),
    "selu": (F.selu, [x(6)]),
    "gelu": (F.gelu, [x(6)]),
    "gelu tanh": (lambda a: F.gelu(a, "tanh"), [x(6)]),
    "silu": (F.silu, [x(6)]),
    "mish": (F.mish, [x(6)]),
    "softplus": (F.softplus, [x(6)]),
    "logsigmoid": (F.logsigmoid, [x(6)]),
    "softsign": (F.softsign, [x(6)]),
    "tanhshrink": (F.tanhshrink, [x(6)]),
    "hardswish": (F.hardswish, [x(6)]),
    "hardsigmoid": (F.hardsigmoid, [x(6)]),
    "hardtanh": (F.hardtanh, [x(6)]),
    "hardshrink": (F.hardshrink, [x(6)]),
    "softshrink": (F.softshrink, [x(6)]),
    "threshold": (lambda a: F.threshold(a, 0.1, 5.0), [x(6)]),
    "leaky_relu": (F.leaky_relu, [x(6)]),
    "prelu": (F.prelu, [x(2, 3), x(3, seed=1)]),
    "glu": (F.glu, [x(2, 4)]),
    "softmin": (lambda a: F.softmin(a, 1), [x(2, 3)]),
    "log_softmax": (lambda a: F.log_softmax(a, 1), [x(2, 3)]),
    "bilinear": (F.bilinear, [x(2, 3), x(2, 2, seed=1), x(2, 3, 2, seed=2)]),
    "conv3d": (lambda a, w: F.conv3d(a, w, padding=1), [x(1, 1, 2, 2, 2), x(1, 1, 2, 2, 2, seed=1)]),
    "conv_transpose3d": (
        lambda a, w: F.conv_transpose3d(a, w, stride=2), [x(1, 1, 2, 2, 1), x(1, 1, 2, 2, 2, seed=1)],
    ),
    "max_pool3d": (lambda a: F.max_pool3d(a, 2), [x(1, 2, 2, 4)]),
    "avg_pool3d": (lambda a: F.avg_pool3d(a, 2, padding=1), [x(1, 2, 2, 4)]),
    "lp_pool2d": (lambda a: F.lp_pool2d(a, 2, 2), [POSITIVE[None]]),
    "adaptive_avg_pool3d": (lambda a: F.adaptive_avg_pool3d(a, (2, 1, 2)), [x(1, 3, 2, 3)]),
    "adaptive_max_pool2d": (lambda a: F.adaptive_max_pool2d(a, 2), [x(1, 3, 3)]),
    "pad reflect": (lambda a: F.pad(a, (2, 1), "reflect"), [x(2, 4)]),
    "pad replicate": (lambda a: F.pad(a, (2, 1), "replicate"), [x(2, 4)]),
    "pad circular": (lambda a: F.pad(a, (2, 1), "circular"), [x(2, 4)]),
    "unfold": (lambda a: F.unfold(a, 2, padding=1), [x(1, 2, 2, 3)]),
    "fold": (lambda a: F.fold(a, 3, 2), [x(1, 4, 4)]),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 2), [x(4, 2, 1)]),
    "instance_norm": (lambda a, w: F.instance_norm(a, weight=w), [x(2, 2, 4), x(2, seed=1)]),
    "rms_norm": (lambda a, w: F.rms_norm(a, 3, w), [x(2, 3), x(3, seed=1)]),
    "local_response_norm": (lambda a: F.local_response_norm(a, 2, alpha=0.5), [x(1, 3, 2)]),
    "normalize": (F.normalize, [x(2, 3)]),
    "cosine_similarity": (F.cosine_similarity, [x(2, 3), x(2, 3, seed=1)]),
    "pairwise_distance": (F.pairwise_distance, [x(2, 3), x(2, 3, seed=1)]),
    "pdist": (F.pdist, [x(3, 2)]),
    "embedding_bag": (lambda w: F.embedding_bag(st.tensor([[0, 2], [1, 1]]), w), [x(3, 2)]),
    "interpolate bilinear": (lambda a: F.interpolate(a, (3, 5), mode="bilinear"), [x(1, 1, 2, 3)]),
    "interpolate bicubic": (lambda a: F.interpolate(a, scale_factor=2, mode="bicubic"), [x(1, 1, 2, 2)]),
    "interpolate nearest": (lambda a: F.interpolate(a, 5), [x(1, 1, 3)]),
    "grid_sample": (F.grid_sample, [x(1, 1, 3, 3), 0.4 * x(1, 2, 2, 2, seed=1)]),
    "grid_sample bicubic": (
        lambda a, g: F.grid_sample(a, g, "bicubic"), [x(1, 1, 3, 3), 0.4 * x(1, 2, 1, 2)],
    ),
    "affine_grid": (lambda t: F.affine_grid(t, (1, 1, 2, 3)), [x(1, 2, 3)]),
    "kl_div": (lambda a, t: F.kl_div(a, t), [x(2, 3), POSITIVE[:2, :3]]),
    "poisson_nll_loss": (lambda a: F.poisson_nll_loss(a, POSITIVE, full=True), [x(4, 4)]),
    "gaussian_nll_loss": (F.gaussian_nll_loss, [x(4, 4), x(4, 4, seed=1), POSITIVE]),
    "sigmoid_focal_loss": (lambda a: F.sigmoid_focal_loss(a, MARKS, reduction="mean"), [x(4, 4)]),
    "soft_margin_loss": (lambda a: F.soft_margin_loss(a, SIGNS), [x(4)]),
    "hinge_embedding_loss": (lambda a: F.hinge_embedding_loss(a, SIGNS), [x(4)]),
    "margin_ranking_loss": (lambda a, b: F.margin_ranking_loss(a, b, SIGNS), [x(4), x(4, seed=1)]),
    "cosine_embedding_loss": (
        lambda a, b: F.cosine_embedding_loss(a, b, SIGNS), [x(4, 3), x(4, 3, seed=1)],
    ),
    "multi_margin_loss": (lambda a: F.multi_margin_loss(a, CLASSES, p=2), [x(4, 4)]),
    "multilabel_margin_loss": (
        lambda a: F.multilabel_margin_loss(a, np.tile([2, 0, -1, 1], (4, 1))), [x(4, 4)],
    ),
    "multilabel_soft_margin_loss": (lambda a: F.multilabel_soft_margin_loss(a, MARKS), [x(4, 4)]),
    "triplet_margin_loss": (F.triplet_margin_loss, [x(2, 3), x(2, 3, seed=1), x(2, 3, seed=2)]),
    "huber_loss": (lambda a: F.huber_loss(a, POSITIVE), [x(4, 4)]),
    "cross_entropy": (lambda a: F.cross_entropy(a, CLASSES, label_smoothing=0.1), [x(4, 4)]),
    "sinusoidal positions": (lambda a: nn.SinusoidalPositions(4)(a), [x(3, 4)]),
    "rotary_embedding": (F.rotary_embedding, [x(3, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_finite_differences_to_second_order(name):
    function, inputs = SMOOTH[name]
    report = st.check_grad(function, inputs, order=2)
    assert report.ok, report


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [
    "mish", "selu", "celu", "hardswish", "logsigmoid", "rms_norm", "instance_norm", "interpolate bicubic",
    "rotary_embedding", "adaptive_max_pool2d", "unfold",
])  # fmt: skip
def test_narrow_floats_stay_narrow_and_are_near_the_exact_value(name, dtype):
    function, inputs = SMOOTH[name]
    narrow = [st.tensor(a).astype(dtype) for a in inputs]
    got = function(*narrow)
    want = function(*[a.astype("float64") for a in narrow]).numpy()
    assert got.dtype is getattr(st, dtype)
    np.testing.assert_allclose(got.astype("float64").numpy(), want, atol=0.03, rtol=0.03)
