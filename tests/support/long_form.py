"""The ten-line network of the README without a framework: convolution, pooling, their derivatives and Adam by
hand, in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def windows(images: Array) -> Array:
    """Return the 3 x 3 surroundings of every pixel. Shapes: [n, c, h, w] -> [n, h, w, c * 9]."""
    n, c, h, w = images.shape
    padded = np.zeros((n, c, h + 2, w + 2), images.dtype)
    padded[:, :, 1:-1, 1:-1] = images
    found = np.empty((n, h, w, c, 3, 3), images.dtype)
    for i in range(3):
        for j in range(3):
            found[..., i, j] = padded[:, :, i : i + h, j : j + w].transpose(0, 2, 3, 1)
    return found.reshape(n, h, w, c * 9)


def forward(weights: list[Array], images: Array) -> tuple[Array, tuple[Array, ...]]:
    """Return scores [n, 10], and what the derivatives need."""
    filters, bias, head, head_bias = weights
    seen = windows(images)
    maps = (seen @ filters.reshape(len(filters), -1).T + bias).transpose(0, 3, 1, 2)
    active = np.maximum(maps, 0)
    n, c, h, w = active.shape
    blocks = active.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, -1, 4)
    chosen = blocks.argmax(2)
    flat = np.take_along_axis(blocks, chosen[..., None], 2)[..., 0]
    return flat @ head.T + head_bias, (seen, maps, chosen, flat)


def gradients(weights: list[Array], images: Array, labels: Array) -> list[Array]:
    """Return the derivatives of the mean cross-entropy by each weight."""
    filters, _, head, _ = weights
    scores, (seen, maps, chosen, flat) = forward(weights, images)
    exps = np.exp(scores - scores.max(1, keepdims=True))
    d_scores = exps / exps.sum(1, keepdims=True)
    d_scores[np.arange(len(labels)), labels] -= 1
    d_scores /= len(labels)
    d_flat = d_scores @ head
    d_blocks = np.zeros((*d_flat.shape, 4), d_flat.dtype)
    np.put_along_axis(d_blocks, chosen[..., None], d_flat[..., None], 2)
    n, c, h, w = maps.shape
    d_maps = d_blocks.reshape(n, c, h // 2, w // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h, w)
    d_maps = d_maps * (maps > 0)
    d_rows = d_maps.transpose(0, 2, 3, 1).reshape(-1, c)
    d_filters = (d_rows.T @ seen.reshape(len(d_rows), -1)).reshape(filters.shape)
    return [d_filters, d_rows.sum(0), d_scores.T @ flat, d_scores.sum(0)]


def train(weights: list[Array], batches: list[tuple[Array, Array]], rate: float = 3e-3) -> list[Array]:
    """Return the weights after one step of Adam per batch."""
    weights = [w.copy() for w in weights]
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for step, (images, labels) in enumerate(batches, 1):
        for w, m, s, g in zip(weights, means, squares, gradients(weights, images, labels), strict=True):
            m += 0.1 * (g - m)
            s += 0.001 * (g * g - s)
            w -= rate * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
    return weights


def accuracy(weights: list[Array], images: Array, labels: Array) -> float:
    """Return the share of images that are read right."""
    return float((forward(weights, images)[0].argmax(1) == labels).mean())
