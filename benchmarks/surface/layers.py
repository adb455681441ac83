"""A call of every function of `nn.functional`, and every layer: how it is made and what it is called on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.surface.draws import Array, Call, Draws, call
from benchmarks.surface.entries import Entry
from benchmarks.surface.functions import FFT, LINALG, MATH, RANDOM, SPECIAL, Maker, by_name, by_signature


def _images(d: Draws) -> Array:
    return d.images()


BY_RANK: dict[int, Callable[[Draws], Array]] = {
    1: lambda d: d.images(8, 1), 2: _images, 3: lambda d: d.images(8, 3)
}  # fmt: skip


def _signs(d: Draws, *shape: int) -> Array:
    return (2 * d.whole(0, 2, *shape) - 1).astype(d.dtype)


def _unpooled(d: Draws, k: int) -> Call:
    """Return a pooled image and the places its values came from: the first of each window."""
    x = BY_RANK[k](d)
    small = x[(..., *[slice(None, None, 2)] * k)]
    places = np.arange(int(np.prod(x.shape[2:]))).reshape(x.shape[2:])[tuple([slice(None, None, 2)] * k)]
    return call(np.ascontiguousarray(small), np.broadcast_to(places, small.shape).copy(), 2)


def _ctc(d: Draws) -> Call:
    steps = max(8, d.n // (4 * 20))
    scores = d.x(steps, 4, 20)
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    return call(scores, d.whole(1, 20, 4, 3), np.full(4, steps), np.full(4, 3))


def _grid(d: Draws) -> Call:
    x = d.images()
    return call(x, d.between(-1, 1, 2, *x.shape[2:], 2), align_corners=False)


def _attention(d: Draws) -> Call:
    length = max(4, round((d.n / 8) ** 0.5))
    return call(*(d.x(2, 4, length, 32) for _ in range(3)))


FUNCTIONAL = by_name({
    "glu": lambda d: call(d.x(d.r, 2 * (d.r // 2))),
    "log_softmax softmax softmin": lambda d: call(d.x(), dim=1),
    "pdist": lambda d: call(d.x(max(2, round((2 * d.n) ** 0.5)), 3)),
    "prelu": lambda d: call(d.images(), d.x(8)),
    "threshold": lambda d: call(d.x(), 0.1, 2.0),
    **{f"adaptive_{kind}_pool{k}d": (lambda d, k=k: call(BY_RANK[k](d), 3)) for kind in ("avg",
        "max") for k in BY_RANK},
    **{f"{kind}_pool{k}d": (lambda d, k=k: call(BY_RANK[k](d), 2)) for kind in ("avg",
        "max") for k in BY_RANK},
    **{f"lp_pool{k}d": (lambda d, k=k: call(np.abs(BY_RANK[k](d)), 2.0, 2)) for k in BY_RANK},
    **{f"max_unpool{k}d": (lambda d, k=k: _unpooled(d, k)) for k in BY_RANK},
    **{f"fractional_max_pool{k}d": (lambda d, k=k: call(BY_RANK[k](d), 2, output_size=2)) for k in (2, 3)},
    **{f"conv{k}d": (lambda d, k=k: call(BY_RANK[k](d), d.x(8, 8, *(3,) * k), padding=1)) for k in BY_RANK},
    **{f"conv_transpose{k}d": (lambda d, k=k: call(BY_RANK[k](d), d.x(8, 8, *(3,) * k),
        padding=1)) for k in BY_RANK},
    **{f"dropout{k}d": (lambda d, k=k: call(BY_RANK[k](d))) for k in BY_RANK},
    "feature_alpha_dropout instance_norm": lambda d: call(d.images()),
    "additive_mask": lambda d: call(d.mask(), d.x()),
    "affine_grid": lambda d: call(d.x(2, 2, 3), list(d.images().shape), align_corners=False),
    "grid_sample": _grid,
    "scaled_dot_product_attention attention_with_weights": _attention,
    "batch_norm": lambda d: call(d.images(), d.x(8), d.positive(8)),
    "group_norm channel_shuffle pixel_shuffle pixel_unshuffle": lambda d: call(d.images(), 2),
    "layer_norm rms_norm": lambda d: call(d.x(), (d.r,)),
    "local_response_norm unfold": lambda d: call(d.images(), 3),
    "bilinear": lambda d: call(d.x(d.n // 16, 16), d.x(d.n // 16, 16), d.x(8, 16, 16)),
    "embedding": lambda d: call(d.whole(0, 100, d.n // 64), d.x(100, 64)),
    "embedding_bag": lambda d: call(d.whole(0, 100, max(1, d.n // 640), 10), d.x(100, 64)),
    "one_hot": lambda d: call(d.whole(0, 10, d.n // 10), 10),
    "pad": lambda d: call(d.x(), (1, 2, 3, 0)),
    "cosine_similarity pairwise_distance huber_loss l1_loss mse_loss smooth_l1_loss":
        lambda d: call(d.x(), d.x()),
    "ctc_loss": _ctc,
    "binary_cross_entropy": lambda d: call(d.inside(), d.inside()),
    "binary_cross_entropy_with_logits multilabel_soft_margin_loss sigmoid_focal_loss":
        lambda d: call(d.x(), d.inside()),
    "cosine_embedding_loss": lambda d: call(d.x(), d.x(), _signs(d, d.r)),
    "cross_entropy nll_loss multi_margin_loss": lambda d: call(d.x(), d.whole(0, d.r, d.r)),
    "gaussian_nll_loss": lambda d: call(d.x(), d.x(), d.positive()),
    "hinge_embedding_loss soft_margin_loss": lambda d: call(d.x(), _signs(d)),
    "kl_div": lambda d: call(d.x(), d.inside(), reduction="batchmean"),
    "margin_ranking_loss": lambda d: call(d.x(), d.x(), _signs(d)),
    "multilabel_margin_loss": lambda d: call(d.x(d.n // 8, 8), d.whole(0, 8, d.n // 8, 8)),
    "poisson_nll_loss": lambda d: call(d.x(), d.positive()),
    "triplet_margin_loss triplet_margin_with_distance_loss": lambda d: call(d.x(), d.x(), d.x()),
    "fold": lambda d: call(d.x(2, 8 * 4, (max(2, round((d.n / 64) ** 0.5)) - 1) ** 2),
                           max(2, round((d.n / 64) ** 0.5)), 2),
    "interpolate": lambda d: call(d.images(), scale_factor=2, mode="bilinear", align_corners=False),
    "upsample upsample_nearest upsample_bilinear": lambda d: call(d.images(), scale_factor=2),
    "rotary_embedding": lambda d: call(d.x(2, 4, max(4, d.n // (2 * 4 * 32)), 32)),
    "sinusoidal_positions": lambda d: call(max(4, d.n // 64), 64),
})  # fmt: skip


class Layer(NamedTuple):
    """How a layer is made, and what it is called on."""

    made: Call
    called: Maker


def _same(name: str) -> Maker:
    """Return the call of the function of this name, less what a layer is made with."""
    return lambda d: Call(tuple(a for a in FUNCTIONAL[name](d).args if isinstance(a, np.ndarray)))


def _of(shape: Callable[[Draws], Array], *names: str, made: Call = call()) -> dict[str, Layer]:  # noqa: B008
    return {name: Layer(made, lambda d: call(shape(d))) for name in names}


def _ranked(name: str, *args: Any, **kwargs: Any) -> dict[str, Layer]:
    """Return the layers of one, two and three dimensions."""
    return {f"{name}{k}d": Layer(call(*args, **kwargs), lambda d, k=k: call(BY_RANK[k](d))) for k in BY_RANK}


def _losses(**functions: str) -> dict[str, Layer]:
    return {name: Layer(call(), _same(function)) for name, function in functions.items()}


def _square(d: Draws) -> Array:
    return d.x(d.r, 2 * (d.r // 2))


def _rows16(d: Draws) -> Array:
    return d.x(max(1, d.n // 16), 16)


def _short(d: Draws) -> Array:
    return d.x(5, 4, 16)


LAYERS: dict[str, Layer] = {
    **_of(_square, "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
          "LeakyReLU",
          "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus",
          "Softshrink",
          "Softsign", "Tanh", "Tanhshrink", "AlphaDropout", "Dropout", "Flatten", "Identity"),
    **_of(_square, "LogSoftmax", "Softmax", "Softmin", made=call(dim=1)),
    **_of(_square, "Threshold", made=call(0.1, 2.0)),
    **_of(_images, "Softmax2d", "FeatureAlphaDropout"),
    **_ranked("AdaptiveAvgPool", 3), **_ranked("AdaptiveMaxPool", 3), **_ranked("AvgPool", 2),
              **_ranked("MaxPool", 2),
    **_ranked("LPPool", 3, 2), **_ranked("Conv", 8, 8, 3, padding=1), **_ranked("ConvTranspose", 8, 8, 3,
              padding=1),
    **_ranked("BatchNorm", 8), **_ranked("InstanceNorm", 8), **_ranked("Dropout"), **_ranked("ZeroPad", 1),
    **_ranked("CircularPad", 1), **_ranked("ReflectionPad", 1), **_ranked("ReplicationPad", 1),
    **_ranked("ConstantPad", 1, 2.0),
    **{f"MaxUnpool{k}d": Layer(call(2), lambda d, k=k: Call(_unpooled(d, k).args[:2])) for k in BY_RANK},
    **{f"FractionalMaxPool{k}d": Layer(call(2, output_size=2), lambda d,
        k=k: call(BY_RANK[k](d))) for k in (2, 3)},
    **_of(_images, "GroupNorm", made=call(2, 8)), **_of(_images, "LocalResponseNorm", made=call(3)),
    **_of(_images, "ChannelShuffle", "PixelShuffle", "PixelUnshuffle", made=call(2)),
    **_of(_images, "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", made=call(scale_factor=2)),
    **_of(_images, "Unfold", made=call(3)),
    "Fold": Layer(call(3, 2), lambda d: call(d.x(2, 32, 4))),
    "Unflatten": Layer(call(1, (4, 4)), lambda d: call(_rows16(d))),
    **_of(_rows16, "LayerNorm", "RMSNorm", made=call(16)), **_of(_rows16, "Linear", made=call(16, 8)),
    **_of(_rows16, "GRUCell", "RNNCell", "LSTMCell", made=call(16, 8)),
    **_of(lambda d: d.x(max(2, d.n // (4 * 16)), 4, 16), "GRU", "RNN", "LSTM", made=call(16, 8)),
    **_of(_short, "TransformerEncoderLayer", made=call(16, 2, 32, 0.0)),
    "TransformerDecoderLayer": Layer(call(16, 2, 32, 0.0), lambda d: call(_short(d), _short(d))),
    "Transformer": Layer(call(16, 2, 1, 1, 32, 0.0), lambda d: call(_short(d), _short(d))),
    "MultiheadAttention": Layer(call(16, 2), lambda d: call(_short(d), _short(d), _short(d))),
    "Bilinear": Layer(call(16, 16, 8), lambda d: call(_rows16(d), _rows16(d))),
    "Embedding": Layer(call(100, 8), lambda d: call(d.whole(0, 100, d.n // 8))),
    "EmbeddingBag": Layer(call(100, 8), lambda d: call(d.whole(0, 100, max(1, d.n // 80), 10))),
    "RotaryEmbedding": Layer(call(16), lambda d: call(d.x(2, 4, 5, 16))),
    "SinusoidalPositions": Layer(call(16), lambda d: call(_short(d))),
    "CosineSimilarity": Layer(call(), _same("cosine_similarity")),
    "PairwiseDistance": Layer(call(), _same("pairwise_distance")),
    "AdaptiveLogSoftmaxWithLoss": Layer(call(16, 20, [5, 10]),
                                        lambda d: call(_rows16(d), d.whole(0, 20, max(1, d.n // 16)))),
    **_losses(BCELoss="binary_cross_entropy", BCEWithLogitsLoss="binary_cross_entropy_with_logits",
              CrossEntropyLoss="cross_entropy", NLLLoss="nll_loss", GaussianNLLLoss="gaussian_nll_loss",
              HuberLoss="huber_loss", KLDivLoss="kl_div", L1Loss="l1_loss", MSELoss="mse_loss",
              SmoothL1Loss="smooth_l1_loss", PoissonNLLLoss="poisson_nll_loss",
                  SigmoidFocalLoss="sigmoid_focal_loss",
              CosineEmbeddingLoss="cosine_embedding_loss", HingeEmbeddingLoss="hinge_embedding_loss",
              MarginRankingLoss="margin_ranking_loss", MultiLabelMarginLoss="multilabel_margin_loss",
              MultiLabelSoftMarginLoss="multilabel_soft_margin_loss", MultiMarginLoss="multi_margin_loss",
              SoftMarginLoss="soft_margin_loss", TripletMarginLoss="triplet_margin_loss",
              TripletMarginWithDistanceLoss="triplet_margin_with_distance_loss", CTCLoss="ctc_loss"),
}  # fmt: skip


# -- the call of an entry ------------------------------------------------------------------------------------
TABLES: dict[str, dict[str, Callable[[Draws], Call]]] = {
    "math": MATH,
    "special": SPECIAL,
    "linalg": LINALG,
    "fft": FFT,
    "random": RANDOM,
    "functional": FUNCTIONAL,
}


def call_of(entry: Entry, draws: Draws) -> Call | None:
    """Return a call that works, with arrays of about `draws.n` elements; None if none is known."""
    if entry.family not in TABLES:
        return None
    table = TABLES[entry.family]
    for name in (entry.name, *entry.aliases):
        if name in table:
            return table[name](draws)
    return by_signature(entry.name, entry.value, draws)


def made_and_called(entry: Entry, draws: Draws) -> tuple[Any, Call] | None:
    """Return a layer and a call of it that works; None if none is known."""
    layer = LAYERS.get(entry.name)
    return None if layer is None else (layer.made.of(entry.value), layer.called(draws))
