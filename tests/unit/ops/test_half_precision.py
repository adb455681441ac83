"""Composites of 16-bit floats compute in float32 and round once: nothing overflows or vanishes on the way."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal.nn import functional as F
from stratal.nn import utils

CALLS = {
    "mean": lambda x, y, z: x.mean(),
    "mean of rows": lambda x, y, z: st.mean(x, axis=1, keepdims=True),
    "var": lambda x, y, z: st.var(x, axis=1),
    "std": lambda x, y, z: st.std(x * 40, correction=1),
    "var_mean": lambda x, y, z: st.var_mean(x)[0],
    "std_mean": lambda x, y, z: st.std_mean(x * 40)[0],
    "norm": lambda x, y, z: x.norm(),
    "norm of order 3": lambda x, y, z: st.norm(x, 3, axis=1),
    "vector_norm": lambda x, y, z: st.linalg.vector_norm(x, axis=1),
    "dist": lambda x, y, z: st.dist(x, y),
    "renorm": lambda x, y, z: st.renorm(x, 2, 0, 1.0),
    "normalize": lambda x, y, z: F.normalize(x, dim=1),
    "cosine_similarity": lambda x, y, z: F.cosine_similarity(x, x + 1),
    "pairwise_distance": lambda x, y, z: F.pairwise_distance(x, y),
    "mse_loss": lambda x, y, z: F.mse_loss(x, y),
    "l1_loss": lambda x, y, z: F.l1_loss(x * 5, y),
    "smooth_l1_loss": lambda x, y, z: F.smooth_l1_loss(x, y),
    "huber_loss": lambda x, y, z: F.huber_loss(x, y, delta=2.0),
    "triplet_margin_loss": lambda x, y, z: F.triplet_margin_loss(x, y, z),
    "trapezoid": lambda x, y, z: st.trapezoid(x, dx=0.01),
    "logsumexp": lambda x, y, z: st.logsumexp(x, axis=1),
    "softmax": lambda x, y, z: st.softmax(x, axis=1),
    "layer_norm": lambda x, y, z: F.layer_norm(x, (1000,)),
}


def operands(dtype: str) -> list[st.Tensor]:
    """Return [2, 1000] of about 20, 0 and 3: squares add up beyond what float16 reaches."""
    rng = np.random.default_rng(0)
    drawn = (rng.normal(mean, spread, (2, 1000)) for mean, spread in ((20, 9), (0, 1), (3, 1)))
    return [st.tensor(x.astype(np.float32)).astype(dtype) for x in drawn]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_made_of_16_bit_floats_is_rounded_once(name: str, dtype: str, compiled: bool) -> None:
    call = st.compile(CALLS[name]) if compiled else CALLS[name]
    given = operands(dtype)
    got = call(*given)
    assert got.dtype.name == dtype
    want = CALLS[name](*(x.astype("float32") for x in given)).numpy()
    steps = 2 * float(st.finfo(dtype).eps)  # what x * 5, x + 1 and y - x round beside
    np.testing.assert_allclose(got.astype("float32").numpy(), want, rtol=steps, atol=1e-3 * steps)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_of_16_bits_are_clipped_and_not_lost(norm_type: float) -> None:
    p = st.nn.Parameter(st.zeros(1000).astype("float16"))
    p.grad = st.full((1000,), 20.0).astype("float16")
    total = utils.clip_grad_norm_([p], 1.0, norm_type)
    want = 20.0 * 1000 ** (1 / norm_type)
    assert float(total) == pytest.approx(want, rel=1e-3)
    assert float(p.grad[0]) == pytest.approx(20 / want, rel=2e-3)


def test_an_end_of_lerp_is_exact() -> None:
    far, near, infinite = st.tensor([1e8]), st.tensor([1.0]), st.tensor([float("inf")])
    for weight in (1.0, st.tensor([1.0])):
        assert st.lerp(far, near, weight).item() == 1.0
    assert st.lerp(far, near, 0.0).item() == 1e8
    assert st.lerp(infinite, st.tensor([0.0]), 0.7).item() == float("inf")


def test_the_value_of_addcmul_and_addcdiv_comes_first() -> None:
    """As in PyTorch: what would overflow without it does not."""
    large = st.tensor([3e38])
    assert st.addcmul(st.tensor([0.0]), large, st.tensor([1.5]), value=0.5).item() == pytest.approx(2.25e38)
    assert st.addcdiv(st.tensor([0.0]), large, st.tensor([0.5]), value=0.25).item() == pytest.approx(1.5e38)


@pytest.mark.parametrize("mode", ["trunc", "floor", None])
def test_rounded_quotients(mode: str | None) -> None:
    x, y = [7, -7, 2**40 + 1, -(2**40) - 1, 5], [2, 2, 3, 3, -5]
    got = st.div(st.tensor(x), st.tensor(y), rounding_mode=mode).tolist()
    exact = {"trunc": [int(abs(a) // abs(b)) * (1 if a * b > 0 else -1) for a, b in zip(x, y, strict=True)],
             "floor": [a // b for a, b in zip(x, y, strict=True)]}  # fmt: skip
    assert got == exact[mode] if mode else got == pytest.approx([a / b for a, b in zip(x, y, strict=True)])
    assert st.divide(input=st.tensor([7.0]), other=st.tensor([2.0]), rounding_mode="floor").item() == 3.0
