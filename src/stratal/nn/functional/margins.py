"""Losses with a margin: nothing is left to learn once classes, or distances, are that far apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.functional.activations import logsigmoid
from stratal.nn.functional.distance import pairwise_distance
from stratal.nn.functional.reductions import (
    class_indices,
    class_weights,
    like_input,
    one_float_dtype,
    positive_part,
    reduced,
    same_shape,
    same_type,
)
from stratal.tensor.build import call
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import cast, minimum, sqrt, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.reductions import cumprod
from stratal.tensor.functions.shapes import broadcast_arrays
from stratal.tensor.tensor import Tensor


# -- targets of 1 and -1 -------------------------------------------------------------------------------------
def hinge_embedding_loss(input: Tensor, target: Any, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """Return x where the target is 1, max(0, margin - x) where it is -1, reduced."""
    t = same_type("hinge_embedding_loss", input, target)
    apart = where(t != 1, positive_part(margin - input), 0.0)
    return reduced(apart + where(t != -1, input, 0.0), reduction)


def soft_margin_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """Return log(1 + exp(-t x)), reduced, without overflow."""
    return reduced(-logsigmoid(same_type("soft_margin_loss", input, target) * input), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return max(0, margin - t (x1 - x2)), reduced: with t = 1, x1 should be the greater."""
    one_float_dtype("margin_ranking_loss", input1, input2)
    t = like_input(target, input1)
    if not input1.ndim == input2.ndim == t.ndim:
        raise ShapeError(
            "margin_ranking_loss: inputs and target have as many axes",
            got=f"{list(input1.shape)}, {list(input2.shape)}, {list(t.shape)}",
        )
    return reduced(positive_part(-t * (input1 - input2) + margin), reduction)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return 1 - cos(x1, x2) where the target is 1, max(0, cos - margin) where it is -1, reduced.

    Shapes: inputs [N, D] and target [N], or [D] and a scalar.
    """
    one_float_dtype("cosine_embedding_loss", input1, input2)
    t = like_input(target, input1)
    a, b = broadcast_arrays(input1, input2)
    if a.ndim not in (1, 2) or t.ndim != a.ndim - 1:
        raise ShapeError(
            "cosine_embedding_loss: takes inputs [N, D] and target [N], or [D] and a scalar",
            got=f"{list(input1.shape)}, {list(input2.shape)}, {list(t.shape)}",
        )
    lengths = ((a * a).sum(axis=-1) + 1e-12) * ((b * b).sum(axis=-1) + 1e-12)
    cosine = (a * b).sum(axis=-1) / sqrt(lengths)
    together, apart = where(t == 1, 1 - cosine, 0.0), where(t == -1, positive_part(cosine - margin), 0.0)
    return reduced(together + apart, reduction)


# -- classes -------------------------------------------------------------------------------------------------
def _rows(name: str, input: Tensor) -> None:
    if input.ndim not in (1, 2) or 0 in input.shape[-1:]:
        raise ShapeError(f"{name}: takes [N, C] or [C]", got=f"shape {list(input.shape)}")


def multi_margin_loss(
    input: Tensor, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean over classes i of max(0, margin - x_t + x_i)^p, but for i = t, times the class's
    weight.

    Shapes: input [N, C] and target [N] of integers, or [C] and a scalar.
    """
    _rows("multi_margin_loss", input)
    if p not in (1, 2):
        raise AttributeValueError("multi_margin_loss: p is 1 or 2", got=str(p))
    classes = int(input.shape[-1])
    t = class_indices("multi_margin_loss", target, input.shape[:-1])
    at = t.reshape((*t.shape, 1))
    gap = margin - call("gather_along", input, at, axis=input.ndim - 1) + input
    gap = where((gap > 0) & (arange(classes) != at), gap, 0.0)
    loss = gap if p == 1 else gap * gap
    if weight is not None:
        found = class_weights("multi_margin_loss", weight, input, input.ndim - 1)
        loss = loss * call("gather", found, t, axis=0).reshape(at.shape)
    return reduced(loss.sum(axis=-1) / classes, reduction)


def multilabel_margin_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """Return the sum over classes t of a sample and all others i of max(0, 1 - (x_t - x_i)), over the
    number of classes. The target lists a sample's classes; what stands behind the first -1 does not count.

    Shapes: input and target [N, C], or [C] both.
    """
    _rows("multilabel_margin_loss", input)
    classes = int(input.shape[-1])
    t = class_indices("multilabel_margin_loss", target, input.shape)
    listed = cumprod(cast(t >= 0, "int64"), axis=-1) == 1
    # [..., place in the list, class]: where a listed class is which class
    places = minimum(where(listed, t, 0), classes)
    marked = (places.reshape((*t.shape, 1)) == arange(classes)) & listed.reshape((*t.shape, 1))
    others = ~marked.any(axis=-2)
    found = take_along_axis(input, places, axis=-1)
    gap = 1 - found.reshape((*t.shape, 1)) + input.reshape((*t.shape[:-1], 1, classes))
    counts = listed.reshape((*t.shape, 1)) & others.reshape((*t.shape[:-1], 1, classes)) & (gap > 0)
    return reduced(where(counts, gap, 0.0).sum(axis=(-2, -1)) / classes, reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Any, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean over classes (the last axis) of the binary cross-entropy of sigmoid(x), weighted."""
    _rows("multilabel_soft_margin_loss", input)
    t = same_shape("multilabel_soft_margin_loss", input, target)
    loss = -(t * logsigmoid(input) + (1 - t) * logsigmoid(-input))
    loss = loss if weight is None else loss * like_input(weight, input)
    return reduced(loss.mean(axis=-1), reduction)


# -- triplets ------------------------------------------------------------------------------------------------
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, reduction: str = "mean"
) -> Tensor:
    """Return max(0, margin + d(anchor, positive) - d(anchor, negative)), d the p-norm distance, reduced.

    With `swap` the negative's distance is that from anchor or positive, whichever is less.
    Shapes: [N, D] or [D] each. See: Balntas et al. 2016.
    """

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap, reduction=reduction
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean"
) -> Tensor:
    """Return the triplet loss of any distance; without one, of the 2-norm."""
    if margin <= 0:
        raise AttributeValueError("triplet loss: margin must be positive", got=str(margin))
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            "triplet loss: anchor, positive and negative have as many axes",
            got=f"{list(anchor.shape)}, {list(positive.shape)}, {list(negative.shape)}",
        )
    distance = pairwise_distance if distance_function is None else distance_function
    if not callable(distance):
        raise AttributeValueError("triplet loss: a distance is a function", got=type(distance).__name__)
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return reduced(positive_part(margin + near - far), reduction)
