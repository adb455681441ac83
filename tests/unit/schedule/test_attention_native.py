"""Attention as native code, block by block: sizes that fill no block, masks over several blocks, scores that
are large, rows that see nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn

Array = np.ndarray[Any, Any]


def expected(q: Array, k: Array, v: Array, ct: Array, keep: Array) -> list[Array]:
    """Return the result and the gradients of q, k and v in float64."""
    q, k, v, ct = (x.astype(np.float64) for x in (q, k, v, ct))
    scale = 1 / np.sqrt(q.shape[-1])
    scores = np.where(keep, q @ np.swapaxes(k, -1, -2) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ v
    slopes = weights * (ct @ np.swapaxes(v, -1, -2) - (ct * out).sum(-1)[..., None]) * scale
    return [out, slopes @ k, np.swapaxes(slopes, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ ct]


def computed(arrays: list[Array], mask: Array | None, *, causal: bool) -> list[Array]:
    def value(q: Any, k: Any, v: Any) -> Any:
        kept = None if mask is None else st.tensor(mask)
        return nn.functional.scaled_dot_product_attention(q, k, v, kept, is_causal=causal)

    @st.compile
    def both(q: Any, k: Any, v: Any, ct: Any) -> Any:
        result, pullback = st.vjp(value, q, k, v)
        return result, *pullback(ct)

    return [x.numpy() for x in both(*map(st.tensor, arrays))]


def draw(batch: int, queries: int, keys: int, d: int, e: int, *, size: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(queries + keys)
    shapes = (batch, queries, d), (batch, keys, d), (batch, keys, e), (batch, queries, e)
    q, k, v, ct = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return [q * np.float32(size), k * np.float32(size), v, ct]


def agree(arrays: list[Array], mask: Array | None = None, *, causal: bool = False) -> None:
    queries, keys = arrays[0].shape[-2], arrays[1].shape[-2]
    keep = np.ones((queries, keys), bool) if mask is None else mask
    if causal:
        keep = keep & (np.arange(keys) <= np.arange(queries)[:, None])
    for got, want in zip(computed(arrays, mask, causal=causal), expected(*arrays, keep), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [(3, 64, 64, 16, 16), (2, 97, 97, 17, 33), (1, 33, 130, 8, 48), (2, 1, 65, 4, 5), (1, 130, 31, 64, 64)],
)
def test_blocks_agree_with_the_whole_matrix_of_scores(sizes: tuple[int, ...], causal: bool) -> None:
    agree(draw(*sizes), causal=causal)


def test_a_mask_hides_keys_in_every_block() -> None:
    mask = np.random.default_rng(5).random((2, 70, 100)) < 0.3
    mask[..., 0] = True
    agree(draw(2, 70, 100, 16, 24), mask)


def test_large_scores_neither_overflow_nor_lose_the_largest() -> None:
    agree(draw(1, 64, 96, 32, 32, size=6.0))


def test_a_row_that_sees_no_key_is_0_and_no_other() -> None:
    mask = np.ones((40, 64), bool)
    mask[7] = False
    out = computed(draw(1, 40, 64, 8, 8), mask[None], causal=False)[0]
    assert (out[0, 7] == 0).all() and np.delete(out, 7, axis=1).all()
