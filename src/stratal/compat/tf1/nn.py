"""`tf.nn`: activations, losses, convolutions and pooling, images with channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.compat.tf1.functions import listed, unnamed
from stratal.nn import functional as F
from stratal.tensor.api.functions import FUNCTIONS
from stratal.tensor.build import call
from stratal.tensor.functions import random
from stratal.tensor.tensor import Tensor

relu = unnamed(F.relu)
relu6 = unnamed(F.relu6)
elu = unnamed(F.elu)
softplus = unnamed(F.softplus)
sigmoid = unnamed(FUNCTIONS["sigmoid"])
tanh = unnamed(FUNCTIONS["tanh"])


@unnamed
def softmax(logits: Any, axis: int = -1, dim: int | None = None) -> Tensor:
    """Return probabilities along an axis."""
    return F.softmax(listed(logits, "softmax"), dim=axis if dim is None else dim)


@unnamed
def log_softmax(logits: Any, axis: int = -1, dim: int | None = None) -> Tensor:
    """Return logarithms of probabilities along an axis."""
    return F.log_softmax(listed(logits, "log_softmax"), dim=axis if dim is None else dim)


@unnamed
def softmax_cross_entropy_with_logits(
    first: Any = None, second: Any = None, dim: int = -1, *, labels: Any = None, logits: Any = None
) -> Tensor:
    """Return the cross entropy of each row of logits with a row of probabilities.

    Called with two positions, they are the logits and the labels, as before TensorFlow 1.0.
    """
    logits, labels = _two("softmax_cross_entropy_with_logits", first, second, logits, labels)
    shares = listed(labels, "labels") * F.log_softmax(listed(logits, "logits"), dim=dim)
    return -shares.sum(axis=dim)


softmax_cross_entropy_with_logits_v2 = softmax_cross_entropy_with_logits


@unnamed
def sparse_softmax_cross_entropy_with_logits(
    first: Any = None, second: Any = None, *, labels: Any = None, logits: Any = None
) -> Tensor:
    """Return the cross entropy of each row of logits with a class; classes outside of the row are errors."""
    logits, labels = _two("sparse_softmax_cross_entropy_with_logits", first, second, logits, labels)
    return F.cross_entropy(
        listed(logits, "logits"), listed(labels, "labels").astype("int64"), reduction="none"
    )


@unnamed
def sigmoid_cross_entropy_with_logits(
    first: Any = None, second: Any = None, *, labels: Any = None, logits: Any = None
) -> Tensor:
    """Return the cross entropy of each element with a probability."""
    logits, labels = _two("sigmoid_cross_entropy_with_logits", first, second, logits, labels)
    return F.binary_cross_entropy_with_logits(
        listed(logits, "logits"), listed(labels, "labels"), reduction="none"
    )


def _two(name: str, first: Any, second: Any, logits: Any, labels: Any) -> tuple[Any, Any]:
    given = (first if logits is None else logits, second if labels is None else labels)
    if any(x is None for x in given):
        raise AttributeValueError(f"{name}: needs logits and labels", hint="labels=..., logits=...")
    return given


@unnamed
def l2_loss(t: Any) -> Tensor:
    """Return half the sum of squares."""
    x = listed(t, "l2_loss")
    return (x * x).sum() / 2.0


@unnamed
def dropout(x: Any, keep_prob: Any) -> Tensor:
    """Return what remains when each element is kept with a probability, a number or a scalar, and scaled."""
    t = listed(x, "dropout")
    kept = FUNCTIONS["floor"](random.uniform(t.shape, dtype=t.dtype) + keep_prob)
    return t / keep_prob * kept


@unnamed
def bias_add(value: Any, bias: Any) -> Tensor:
    """Return a value with a bias added to each channel, the last axis."""
    return listed(value, "bias_add") + bias


@unnamed
def embedding_lookup(params: Any, ids: Any) -> Tensor:
    """Return rows of a matrix."""
    return F.embedding(listed(ids, "embedding_lookup"), listed(params, "embedding_lookup"))


# -- images --------------------------------------------------------------------------------------------------
_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # channels


@unnamed
def conv2d(
    input: Any, filter: Any = None, strides: Sequence[int] = (1, 1, 1, 1), padding: str = "SAME", *,
    filters: Any = None, data_format: str = "NHWC",
) -> Tensor:  # fmt: skip
    """Return the correlation of images [N, H, W, C] with filters [h, w, C, out]."""
    x = _channels_first("conv2d", input, data_format)
    w = listed(filter if filters is None else filters, "conv2d").permute(3, 2, 0, 1)
    steps = _spatial("conv2d: strides", strides, data_format)
    pads = _pads("conv2d", x, tuple(int(n) for n in w.shape[2:]), steps, padding)
    made = call("convolution", x, w, strides=steps, dilation=(1, 1), groups=1, padding=pads)
    return _as_given(made, data_format)


@unnamed
def max_pool(
    value: Any, ksize: Sequence[int], strides: Sequence[int], padding: str, data_format: str = "NHWC"
) -> Tensor:
    """Return the maximum of each window of images [N, H, W, C]."""
    x, window, steps, pads = _pooling("max_pool", value, ksize, strides, padding, data_format)
    (top, bottom), (left, right) = pads
    if any((top, bottom, left, right)):
        x = F.pad(x, (left, right, top, bottom), value=-float("inf"))
    return _as_given(F.max_pool2d(x, window, steps), data_format)


@unnamed
def avg_pool(
    value: Any, ksize: Sequence[int], strides: Sequence[int], padding: str, data_format: str = "NHWC"
) -> Tensor:
    """Return the mean of each window of images [N, H, W, C]; padding does not count."""
    x, window, steps, pads = _pooling("avg_pool", value, ksize, strides, padding, data_format)
    (top, bottom), (left, right) = pads
    if not any((top, bottom, left, right)):
        return _as_given(F.avg_pool2d(x, window, steps), data_format)
    around = (left, right, top, bottom)
    inside = F.pad(FUNCTIONS["ones_like"](x), around)
    made = F.avg_pool2d(F.pad(x, around), window, steps) / F.avg_pool2d(inside, window, steps)
    return _as_given(made, data_format)


def _pooling(
    name: str, value: Any, ksize: Sequence[int], strides: Sequence[int], padding: str, layout: str
) -> Any:
    x = _channels_first(name, value, layout)
    window = _spatial(f"{name}: ksize", ksize, layout)
    steps = _spatial(f"{name}: strides", strides, layout)
    return x, window, steps, _pads(name, x, window, steps, padding)


def _channels_first(name: str, value: Any, layout: str) -> Tensor:
    if layout not in ("NHWC", "NCHW"):
        raise AttributeValueError(f"{name}: data_format is 'NHWC' or 'NCHW'", got=repr(layout))
    t = listed(value, name)
    if t.ndim != 4:
        raise AttributeValueError(f"{name}: takes images of four axes", got=str(t.type))
    return t.permute(*_FIRST) if layout == "NHWC" else t


def _as_given(made: Any, layout: str) -> Tensor:
    return made.permute(*_LAST) if layout == "NHWC" else made


def _spatial(name: str, sizes: Sequence[int], layout: str) -> tuple[int, int]:
    """Return the sizes along height and width of a list of four."""
    if isinstance(sizes, int) or len(sizes) != 4:
        raise AttributeValueError(f"{name}: one size for each of four axes", got=repr(sizes))
    at = 1 if layout == "NHWC" else 2
    rest = [n for k, n in enumerate(sizes) if k not in (at, at + 1)]
    if rest != [1, 1]:
        raise AttributeValueError(f"{name}: must be 1 along examples and channels", got=repr(sizes))
    return int(sizes[at]), int(sizes[at + 1])


def _pads(name: str, x: Tensor, window: Sequence[int], steps: Sequence[int], padding: str) -> Any:
    """Return what TensorFlow pads before and after height and width: 'SAME' gives ceil(size / stride)
    results, and of an odd padding the larger half comes after.
    """
    if padding not in ("SAME", "VALID"):
        raise AttributeValueError(f"{name}: padding is 'SAME' or 'VALID'", got=repr(padding))
    if padding == "VALID":
        return ((0, 0), (0, 0))
    wanted = []
    for size, reach, step in zip(map(int, x.shape[2:]), window, steps, strict=True):
        total = max((-(-size // step) - 1) * step + reach - size, 0)
        wanted.append((total // 2, total - total // 2))
    return tuple(wanted)
