"""The lectures' product in blocks of 8: its schedule steps, and the accelerator's instructions as blocks."""

from __future__ import annotations

from stratal import te

TILED = """
split(y, 8)
split(x, 8)
reorder(yo, xo, yi, xi)
fission(xi)
fission(yi)
split(k, 8)
reorder(ko, yi_1, xi_1, ki)
"""
LOCAL = """
cache_write(C, xo)
cache_read(B, ko)
cache_read(A, ko)
"""
BLOCKS = """
tensorize(yi, fill_zero)
tensorize(a0, dma_copy2d)
tensorize(b0, dma_copy2d)
tensorize(yi_1, fused_gemm8x8_add)
tensorize(c0, dma_copy2d)
"""


def declare_accelerator() -> None:
    """Declare the three instructions, each by what it computes and by loops that do so here."""
    a, b, k = te.placeholder((8, 8)), te.placeholder((8, 8)), te.reduce_axis(8)
    gemm = te.compute((8, 8), lambda y, x: te.sum(a[k, y] * b[k, x], axis=k))
    te.intrinsic("fused_gemm8x8_add", gemm, "reorder(k, y, x)\nvectorize(x)\nunroll(y)", accumulate=True)
    te.intrinsic("fill_zero", te.compute((8, 8), lambda y, x: te.cast(0.0, "float32")), "vectorize(x)")
    source = te.placeholder((8, 8))
    te.intrinsic("dma_copy2d", te.compute((8, 8), lambda y, x: source[y, x]), "vectorize(x)")
