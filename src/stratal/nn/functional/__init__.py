"""Layers as functions, with PyTorch's names and arguments.

Names are loaded when first used.
"""

from __future__ import annotations

from typing import Any

from stratal.base.names import lazy_names
from stratal.tensor.api.explained import explained
from stratal.tensor.autocast import full_precision
from stratal.tensor.calls.call_cache import cached_call

_NAMES = {
    "activations": "celu elu gelu glu gumbel_softmax hardshrink hardsigmoid hardswish hardtanh "
    "leaky_relu log_softmax logsigmoid mish prelu relu relu6 rrelu selu sigmoid silu softmax softmin "
    "softplus softshrink softsign tanh tanhshrink threshold",
    "adaptive_pooling": "adaptive_avg_pool adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "fractional_max_pool fractional_max_pool2d fractional_max_pool3d",
    "attention": "additive_mask attention_with_weights scaled_dot_product_attention",
    "convolution": "conv conv1d conv2d conv3d conv_transpose conv_transpose1d conv_transpose2d "
    "conv_transpose3d",
    "ctc": "ctc_loss",
    "distance": "cosine_similarity normalize pairwise_distance pdist",
    "grids": "affine_grid grid_sample",
    "losses": "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy gaussian_nll_loss "
    "huber_loss kl_div l1_loss mse_loss nll_loss poisson_nll_loss sigmoid_focal_loss smooth_l1_loss",
    "margins": "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss "
    "triplet_margin_with_distance_loss",
    "noise": "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout",
    "normalization": "batch_norm group_norm instance_norm layer_norm local_response_norm rms_norm",
    "padding": "pad",
    "pooling": "avg_pool avg_pool1d avg_pool2d avg_pool3d lp_pool lp_pool1d lp_pool2d lp_pool3d "
    "max_pool max_pool1d max_pool2d max_pool3d max_unpool max_unpool1d max_unpool2d max_unpool3d",
    "positions": "rotary_embedding sinusoidal_positions",
    "products": "bilinear linear",
    "resizing": "interpolate upsample upsample_bilinear upsample_nearest",
    "tables": "embedding embedding_bag one_hot",
    "windows": "channel_shuffle flatten fold pixel_shuffle pixel_unshuffle unfold",
}

_FULL_PRECISION = {"ctc", "distance", "grids", "losses", "margins"}  # under `autocast`


def _offered(value: Any) -> Any:
    function = explained(cached_call(value))
    return full_precision(function) if value.__module__.split(".")[-1] in _FULL_PRECISION else function


__getattr__, __dir__ = lazy_names(__name__, _NAMES, offer=_offered)
