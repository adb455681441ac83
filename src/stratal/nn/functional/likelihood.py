"""Losses that say how unlikely a target is: under a distribution, Poisson's, Gauss's, or of rare classes."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.functional.losses import binary_cross_entropy_with_logits
from stratal.nn.functional.reductions import like_input, reduced, same_shape
from stratal.tensor.elementwise import exp, log, maximum, sigmoid, where
from stratal.tensor.tensor import Tensor


def kl_div(input: Tensor, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return t (log t - x), reduced: the divergence of distributions t from those with logarithms x.

    With `log_target` the target is given as logarithms. `reduction` may be 'batchmean': the sum over axis 0's
    size, which is the divergence's own definition.
    """
    t = same_shape("kl_div", input, target)
    if log_target:
        loss = exp(t) * (t - input)
    else:
        none = t == 0
        loss = where(none, 0.0, t * log(where(none, 1.0, t))) - t * input
    if reduction == "batchmean":
        return loss.sum() / int(input.shape[0]) if input.ndim else loss
    return reduced(loss, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative log-likelihood of counts t with expectations exp(x), or x without `log_input`.

    Without `full`, log(t!) is left out, else Stirling's approximation of it counts where t > 1.
    """
    t = same_shape("poisson_nll_loss", input, target)
    loss = exp(input) - t * input if log_input else input - t * log(input + eps)
    if full:
        many = t > 1
        count = where(many, t, 2.0)
        stirling = count * log(count) - count + 0.5 * log(2 * math.pi * count)
        loss = loss + where(many, stirling, 0.0)
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Return (log v + (x - t)^2 / v) / 2 with variances v, counted as at least `eps`, reduced.

    With `full`, the constant log(2 pi) / 2 is added. `var` is a number, has the input's shape, that without
    the last axis, or sizes of 1 that stretch.
    """
    if eps <= 0:
        raise AttributeValueError("gaussian_nll_loss: eps must be positive", got=str(eps))
    if isinstance(var, (int, float)) and var < 0:
        raise AttributeValueError("gaussian_nll_loss: a variance is not negative", got=str(var))
    t = same_shape("gaussian_nll_loss", input, target)
    v = like_input(var, input)
    if v.shape == input.shape[:-1] and v.shape != input.shape:
        v = v.reshape((*v.shape, 1))
    fits = v.ndim == input.ndim and all(m in (1, n) for m, n in zip(v.shape, input.shape, strict=True))
    if v.ndim and not fits:
        raise ShapeError(
            "gaussian_nll_loss: variances have the input's shape, or that without its last axis",
            got=f"{list(v.shape)} for {list(input.shape)}",
        )
    v = v + (maximum(v, eps) - v).detach()  # the gradient goes to what was given, as in PyTorch
    distance = input - t
    loss = 0.5 * (log(v) + distance * distance / v)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def sigmoid_focal_loss(
    inputs: Tensor, targets: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Tensor:
    """Return the binary cross-entropy of sigmoid(x) times (1 - p_t)^gamma, which makes easy samples weigh
    less.

    p_t is the probability of the target; targets of 1 weigh `alpha`, of 0 weigh 1 - alpha; a negative alpha
    is none. Named and called as in torchvision.ops. See: Lin et al. 2017.
    """
    t = same_shape("sigmoid_focal_loss", inputs, targets)
    p = sigmoid(inputs)
    hit = p * t + (1 - p) * (1 - t)
    loss = binary_cross_entropy_with_logits(inputs, t, reduction="none") * (1 - hit) ** gamma
    if alpha >= 0:
        loss = (alpha * t + (1 - alpha) * (1 - t)) * loss
    return reduced(loss, reduction)
