"""The functions of the kernel table and of the forward table: written once for PyTorch and Stratal, whose
functional names agree; jax and NumPy have a form for each kind in the module of their system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CHAIN = 2000


@dataclass(frozen=True)
class Function:
    """A function of tensors: `kind` names how each library writes it, `settings` its parameters.

    With `gradients`, the last input is the result's cotangent, and the gradients of all others are computed.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    settings: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"  # bfloat16 inputs are drawn in float32 and rounded
    gradients: bool = False

    def inputs(self) -> tuple[Array, ...]:
        """Return the inputs every system is given."""
        rng = np.random.default_rng(0)
        if self.dtype == "int8":
            return tuple(rng.integers(-127, 128, shape, dtype=np.int8) for shape in self.shapes)
        return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in self.shapes)


def gemm(m: int, k: int, n: int, dtype: str = "float32") -> Function:
    """Return the product of [m, k] and [k, n]."""
    return Function("gemm_int8" if dtype == "int8" else "gemm", ((m, k), (k, n)), dtype=dtype)


def convolution(batch: int, n_in: int, n_out: int, size: int, kernel: int, stride: int = 1) -> Function:
    """Return a convolution of square images, padded by half the kernel."""
    settings = {"stride": stride, "padding": kernel // 2}
    return Function("convolution", ((batch, n_in, size, size), (n_out, n_in, kernel, kernel)), settings)


def attention(batch: int, heads: int, time: int, d: int) -> Function:
    """Return causal attention with the gradients of queries, keys and values."""
    return Function("attention", ((batch, heads, time, d),) * 4, gradients=True)


FUNCTIONS: dict[str, Function] = {
    "softmax_chain": Function("softmax_chain", ((1000,),)),
    "layernorm_gelu": Function("layernorm_gelu", ((4096, 4096), (4096,), (4096,))),
    "gemm_128": gemm(128, 128, 128),
    "gemm_512": gemm(512, 512, 512),
    "gemm_1024": gemm(1024, 1024, 1024),
    "gemm_64x1024x4096": gemm(64, 1024, 4096),
    "gemm_8x1024x4096": gemm(8, 1024, 4096),
    "gemm_1x1024x4096": gemm(1, 1024, 4096),
    "conv_64_32x32": convolution(32, 64, 64, 32, 3),
    "conv_64_56x56": convolution(8, 64, 64, 56, 3),
    "conv_128_28x28": convolution(8, 128, 128, 28, 3),
    "conv_stem": convolution(8, 3, 64, 224, 7, stride=2),
    "conv_1x1": convolution(8, 64, 256, 56, 1),
    "softmax_rows": Function("softmax", ((4096, 4096),)),
    "attention_8x6x256": attention(8, 6, 256, 64),
    "attention_1x12x1024": attention(1, 12, 1024, 64),
    "int8_gemm_512": gemm(512, 512, 512, "int8"),
    "int8_gemm_1024": gemm(1024, 1024, 1024, "int8"),
    "bf16_gemm_512": gemm(512, 512, 512, "bfloat16"),
    "bf16_gemm_1024": gemm(1024, 1024, 1024, "bfloat16"),
}


# -- how PyTorch and Stratal write each kind: (functional, tensors, settings) -----------------------
def _chain(F: Any, x: Any) -> Any:
    for _ in range(CHAIN):
        x = F.softmax(x, dim=-1)
    return x


TORCH_STYLE: dict[str, Callable[..., Any]] = {
    "gemm": lambda F, a, b: a @ b,
    "convolution": lambda F, x, w, **settings: F.conv2d(x, w, **settings),
    "softmax": lambda F, x: F.softmax(x, dim=-1),
    "softmax_chain": _chain,
    "layernorm_gelu": lambda F, x, w, b: F.layer_norm(F.gelu(x * w + b) + x, (x.shape[-1],)),
    "attention": lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}
