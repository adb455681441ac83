"""Loss functions: how far outputs are from targets, reduced to a mean, a sum, or not at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.source import scope
from stratal.nn.functional.activations import log_softmax
from stratal.nn.functional.reductions import class_weights, like_input, reduced, same_shape, same_type
from stratal.ops.elementwise.special import Logistic
from stratal.tensor.build import call, required
from stratal.tensor.composites.arithmetic import xlogy
from stratal.tensor.functions.elementwise import exp, log, maximum, sigmoid, where
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.binding import node_and_track


# -- regression ------------------------------------------------------------------------------------
def l1_loss(input: Tensor, target: Any, reduction: str = "mean", weight: Any = None) -> Tensor:
    """Return |input - target|, reduced; a mean of weighted elements divides by the sum of their weights."""
    loss = abs(input - same_shape("l1_loss", input, target))
    return _weighted("l1_loss", loss, reduction, weight)


def mse_loss(input: Tensor, target: Any, reduction: str = "mean", weight: Any = None) -> Tensor:
    """Return (input - target)^2, reduced; a mean of weighted elements divides by the sum of their weights."""
    difference = input - same_shape("mse_loss", input, target)
    return _weighted("mse_loss", difference * difference, reduction, weight)


def _weighted(name: str, loss: Tensor, reduction: str, weight: Any) -> Tensor:
    if weight is None:
        return reduced(loss, reduction)
    w = same_type(f"{name} (weight)", loss, weight)
    return reduced(loss * w, reduction, w.sum())


def huber_loss(
    input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Tensor:
    """Return d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), of d = input - target, reduced.

    Weights multiply elements; a mean divides by their number all the same, as in PyTorch.
    """
    if delta <= 0:
        raise AttributeValueError("huber_loss: delta must be positive", got=str(delta))
    if not input.dtype.is_float:
        raise DTypeError("huber_loss: takes an input of floats", got=str(input.type))
    d = input - same_type("huber_loss", input, target)
    loss = _bent(d, abs(d) > delta, 0.5, delta, 0.5 * delta)
    return reduced(
        loss if weight is None else loss * same_type("huber_loss (weight)", loss, weight), reduction
    )


def smooth_l1_loss(input: Tensor, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, of d = input - target, reduced."""
    if beta < 0:
        raise AttributeValueError("smooth_l1_loss: beta must not be negative", got=str(beta))
    if beta == 0:
        return l1_loss(input, target, reduction)
    d = input - same_shape("smooth_l1_loss", input, target)
    return reduced(_bent(d, abs(d) >= beta, 0.5 / beta, 1.0, 0.5 * beta), reduction)


def _bent(d: Tensor, far: Tensor, curvature: float, slope: float, less: float) -> Tensor:
    """Return slope (|d| - less) far from 0, else curvature d^2; an infinite d has a gradient, too."""
    inner = where(far, 0.0, d)
    return where(far, slope * (abs(d) - less), curvature * inner * inner)  # type: ignore[no-any-return]


# -- two classes -----------------------------------------------------------------------------------
def binary_cross_entropy(input: Tensor, target: Any, weight: Any = None, reduction: str = "mean") -> Tensor:
    """Return -(t log p + (1 - t) log(1 - p)), reduced; each logarithm is at least -100, so the loss is
    finite.

    The derivative by p is (p - t) / max(p (1 - p), 1e-12), finite at 0 and 1 too, as in PyTorch.
    """
    input, t = _probability(input), _probability(same_type("binary_cross_entropy", input, target))
    p = input.detach()
    loss = -(t * maximum(log(p), -100.0) + (1.0 - t) * maximum(log(1.0 - p), -100.0))
    slope = (p - t.detach()) / maximum(p * (1.0 - p), 1e-12)
    loss = loss + slope * (input - p)  # adds zero to the value, and the slope to the derivative
    return reduced(loss if weight is None else loss * like_input(weight, loss), reduction)


def _probability(x: Tensor) -> Tensor:
    """Return `x`, looked at unless it lies in [0, 1] by what it was made with."""
    if isinstance(node_and_track(x)[0].op, Logistic):
        return x
    return required(x, (x < 0) | (x > 1), 1, "binary_cross_entropy: input and target lie in [0, 1]")


def binary_cross_entropy_with_logits(
    input: Tensor, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor:
    """Return the binary cross-entropy of sigmoid(input), stably; `pos_weight` scales positive terms."""
    t = same_type("binary_cross_entropy_with_logits", input, target)
    scale = () if pos_weight is None else (broadcast_to(like_input(pos_weight, input), input.shape),)
    loss: Tensor = call("bce_with_logits", input, t, *scale)
    return reduced(loss if weight is None else loss * like_input(weight, loss), reduction)


# -- many classes ----------------------------------------------------------------------------------
def nll_loss(
    input: Tensor, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return minus the log-probability of each class, weighted by class; a mean is over the weights.

    Shapes: input [N, C, ...] (or [C]), target [N, ...] (or a scalar) of integers.
    """
    if input.ndim < 1:
        raise ShapeError("nll_loss: takes [N, C, ...] or [C]", got=f"shape {list(input.shape)}")
    classes = _signed(target if isinstance(target, Tensor) else tensor(np.asarray(target)))
    loss, weights = _chosen("nll_loss", input, classes, weight, ignore_index)
    return reduced(loss, reduction, weights.sum())


def cross_entropy(
    input: Tensor, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of softmax(input) with class indices, or with probabilities of the input's
    shape.

    Shapes: input [N, C, ...] (or [C]); target [N, ...] of integers or [N, C, ...] of floats.
    """
    if not 0 <= label_smoothing <= 1:
        raise AttributeValueError(
            "cross_entropy: label_smoothing must lie in [0, 1]", got=str(label_smoothing)
        )
    if input.ndim < 1:
        raise ShapeError("cross_entropy: takes [N, C, ...] or [C]", got=f"shape {list(input.shape)}")
    found = _signed(target if isinstance(target, Tensor) else tensor(np.asarray(target)))
    axis = 0 if input.ndim == 1 else 1
    if found.shape == input.shape and found.dtype.is_inexact:
        return _of_probabilities(input, found, weight, reduction, label_smoothing, axis)
    log_p = log_softmax(input, axis)
    loss, weights = _chosen("cross_entropy", log_p, found, weight, ignore_index)
    total = weights.sum()
    hard = reduced(loss, reduction, total)
    if not label_smoothing:
        return hard
    terms = log_p if weight is None else log_p * _along(weight, log_p, axis)
    smooth = reduced(where(found != ignore_index, -terms.sum(axis=axis), 0.0), reduction, total)
    return (1.0 - label_smoothing) * hard + label_smoothing / int(input.shape[axis]) * smooth


def _signed(classes: Tensor) -> Tensor:
    """Return classes in a dtype that holds a negative number to be ignored."""
    return classes.to("int64") if classes.dtype.kind == "u" else classes


def _of_probabilities(
    input: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float, axis: int
) -> Tensor:
    count = int(input.shape[axis])
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / count
    terms = log_softmax(input, axis) * like_input(target, input)
    if weight is not None:
        terms = terms * _along(weight, terms, axis)
    return reduced(-terms.sum(axis=axis), reduction)


def _along(weight: Any, like: Tensor, axis: int) -> Tensor:
    """Return class weights shaped to multiply along the class axis."""
    return class_weights("cross_entropy", weight, like, axis).reshape(
        (1,) * axis + (-1,) + (1,) * (like.ndim - axis - 1)
    )


def _chosen(
    name: str, log_p: Tensor, classes: Tensor, weight: Any, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return minus the log-probabilities of the given classes times their weights, and these weights; both
    are 0 where ignored, and no gradient comes from there: not of a mean over no weight at all, either.
    """
    if not classes.dtype.is_integer:
        raise DTypeError(f"{name}: class indices are integers", got=str(classes.dtype),
                         hint="target.long() makes them; probabilities have the input's shape")  # fmt: skip
    axis = 0 if log_p.ndim == 1 else 1
    expected = log_p.shape[:axis] + log_p.shape[axis + 1 :]
    if classes.shape != expected:
        cure = ""
        if classes.shape == log_p.shape:
            cure = "; probabilities are floats: target.float()"
        elif tuple(n for n in classes.shape if n != 1) == tuple(n for n in expected if n != 1):
            cure = f": target.reshape({list(expected)})"
        raise ShapeError(
            f"{name}: input and target do not fit", got=f"{list(log_p.shape)} and {list(classes.shape)}",
            hint=f"class indices for this input have shape {list(expected)}{cure}",
        )  # fmt: skip
    kept = classes != ignore_index
    # An ignored position reads class 0 and weighs nothing; any other place outside the classes is the
    # gather's error.
    safe = where(kept, classes, 0)
    with scope(name):
        loss, weights = call("nll", log_p, safe, axis=axis), kept.to(log_p.dtype)
    if weight is not None:
        weights = where(kept, take(class_weights(name, weight, log_p, axis), safe, axis=0), 0.0)
        loss = loss * weights
    return where(kept, loss, 0.0), weights


def kl_div(input: Tensor, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return t (log t - x), reduced: the divergence of distributions t from those with logarithms x.

    With `log_target` the target is given as logarithms. `reduction` may be 'batchmean': the sum over axis 0's
    size, which is the divergence's own definition.
    """
    t = same_shape("kl_div", input, target)
    if log_target:
        loss = exp(t) * (t - input)
    else:
        loss = xlogy(t, t) - t * input
    if reduction == "batchmean":
        return loss.sum() / int(input.shape[0]) if input.ndim else loss
    return reduced(loss, reduction)


def poisson_nll_loss(
    input: Tensor, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean"
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
    v = required(v, v < 0, 1, "gaussian_nll_loss: a variance is not negative")
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
    t = same_type("sigmoid_focal_loss", inputs, targets)
    p = sigmoid(inputs)
    hit = p * t + (1 - p) * (1 - t)
    loss = binary_cross_entropy_with_logits(inputs, t, reduction="none") * (1 - hit) ** gamma
    if alpha >= 0:
        loss = (alpha * t + (1 - alpha) * (1 - t)) * loss
    return reduced(loss, reduction)
