"""Models whose training needs much memory, for a library's `nn`: built alike from ours and from PyTorch's."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.models import WORKLOADS, Arrays, Workload, gpt, tokens


def llama(nn: Any, layers: int = 12, d: int = 256, heads: int = 4, vocab: int = 256) -> Any:
    """Return a decoder in Llama's manner: RMS norms, no biases, SwiGLU perceptrons, learned positions."""
    F = nn.functional
    hidden = 688  # 8/3 d, a multiple of 16

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
            self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
            self.o = nn.Linear(d, d, bias=False)
            self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
            self.down = nn.Linear(hidden, d, bias=False)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            h = self.norm1(x)
            parts = (m(h).reshape(b, t, heads, d // heads) for m in (self.q, self.k, self.v))
            q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.permute(0, 2, 1, 3).reshape(b, t, d))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(256, d)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

        def forward(self, text: Any) -> Any:
            x = self.tok(text) + self.pos.weight[: text.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Llama()


def unet(nn: Any, width: int = 32, depth: int = 4, classes: int = 2) -> Any:
    """Return a U-Net: two 3x3 convolutions with batch norm a level, skips by concatenation."""
    import importlib

    library = importlib.import_module(nn.__name__.partition(".")[0])

    class Level(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, n_out: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(),
                nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    class UNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            widths = [width << k for k in range(depth)]
            self.down = nn.ModuleList([Level(a, b) for a, b in zip([3, *widths], widths, strict=False)])
            self.pool = nn.MaxPool2d(2)
            pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.grow = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs])
            self.up = nn.ModuleList([Level(2 * b, b) for _, b in pairs])
            self.last = nn.Conv2d(width, classes, 1)

        def forward(self, x: Any) -> Any:
            skips = []
            for k, level in enumerate(self.down):
                x = level(x if k == 0 else self.pool(x))
                skips.append(x)
            for grow, level, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
                x = level(library.cat([skip, grow(x)], 1))
            return self.last(x).permute(0, 2, 3, 1)

    return UNet()


def masks(batch: int, size: int) -> Any:
    """Return what draws images and a class of each of their points."""

    def draw(rng: np.random.Generator) -> Arrays:
        images = rng.standard_normal((batch, 3, size, size), dtype=np.float32)
        return images, rng.integers(0, 2, (batch, size, size))

    return draw


MEMORY_WORKLOADS: Final = {
    "gpt": WORKLOADS["gpt"],
    "resnet18": WORKLOADS["resnet18"],
    "unet": Workload("unet", unet, masks(8, 96), lambda o, p: o.Adam(p, lr=1e-3)),
    "llama": Workload("llama", llama, tokens(8, 256, 256), lambda o, p: o.AdamW(p, lr=1e-3)),
    "gpt48": Workload(
        "gpt48", partial(gpt, layers=48, d=256, heads=4), tokens(16, 256, 256), lambda o, p: o.SGD(p, lr=0.01)
    ),
}


def blocks_of(name: str, model: Any) -> list[Any]:
    """Return the parts of a model around which people put checkpoints."""
    if name == "resnet18":
        return [block for k in range(1, 5) for block in getattr(model, f"layer{k}")]
    return [*model.down, *model.up] if name == "unet" else list(model.blocks)
