"""The models of the forward table, written once for any library with PyTorch's module names.

`resnet50(nn)`, `bert(nn)` and `gpt2(nn)` give twins with equal state-dict keys, as in `models.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BOTTLENECKS = (3, 4, 6, 3)
EPS = 1e-5


def resnet50(nn: Any, classes: int = 1000) -> Any:
    """Return ResNet-50 for 3x224x224: bottlenecks with the stride on their 3x3 convolution."""
    F = nn.functional

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(4 * width)
            self.downsample = None
            if stride != 1 or n_in != 4 * width:
                projection = nn.Conv2d(n_in, 4 * width, 1, stride=stride, bias=False)
                self.downsample = nn.Sequential(projection, nn.BatchNorm2d(4 * width))

        def forward(self, x: Any) -> Any:
            y = F.relu(self.bn1(self.conv1(x)))
            y = F.relu(self.bn2(self.conv2(y)))
            y = self.bn3(self.conv3(y))
            return F.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(64)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            n_in = 64
            for stage, depth in enumerate(BOTTLENECKS):
                width, blocks = 64 << stage, []
                for index in range(depth):
                    blocks.append(Bottleneck(n_in, width, 2 if stage and index == 0 else 1))
                    n_in = 4 * width
                setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(n_in, classes)

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).reshape(x.shape[0], -1))

    return ResNet()


def bert(nn: Any, layers: int = 12, d: int = 768, heads: int = 12, vocab: int = 30522) -> Any:
    """Return BERT's encoder without a head: post-norm layers, GELU (erf), all positions of one kind."""
    F = nn.functional

    class Layer(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
            self.output, self.ln1 = nn.Linear(d, d), nn.LayerNorm(d, eps=1e-12)
            self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.ln2 = nn.LayerNorm(d, eps=1e-12)

        def heads_of(self, x: Any) -> Any:
            return x.reshape(x.shape[0], x.shape[1], heads, d // heads).permute(0, 2, 1, 3)

        def forward(self, x: Any) -> Any:
            q, k, v = (self.heads_of(f(x)) for f in (self.query, self.key, self.value))
            y = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(x.shape)
            x = self.ln1(x + self.output(y))
            return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))

    class Bert(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos, self.kind = nn.Embedding(vocab, d), nn.Embedding(512, d), nn.Embedding(2, d)
            self.norm = nn.LayerNorm(d, eps=1e-12)
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])

        def forward(self, tokens: Any) -> Any:
            x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]] + self.kind.weight[0]
            x = self.norm(x)
            for layer in self.layers:
                x = layer(x)
            return x

    return Bert()


def gpt2(nn: Any, layers: int = 12, d: int = 768, heads: int = 12, vocab: int = 50257) -> Any:
    """Return GPT-2 small decoding one token: logits, and the new keys and values for the cache.

    Shapes: token [1, 1], past [layers, 2, 1, heads, T, d / heads] -> [1, vocab], [layers, 2, 1, heads, 1,
    d / heads].
    """
    F = nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln2, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, concat: Any, x: Any, past_k: Any, past_v: Any) -> tuple[Any, Any, Any]:
            qkv = self.qkv(self.ln1(x)).reshape(1, 1, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
            k, v = qkv[1], qkv[2]
            y = F.scaled_dot_product_attention(qkv[0], concat([past_k, k], 2), concat([past_v, v], 2))
            x = x + self.proj(y.permute(0, 2, 1, 3).reshape(1, 1, d))
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh")), k, v

    class GPT2(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(1024, d)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(d)
            self.concat, self.stack = joiners(nn)

        def forward(self, token: Any, past: Any) -> tuple[Any, Any]:
            x = self.tok(token) + self.pos.weight[past.shape[4]]
            new = []
            for index, block in enumerate(self.blocks):
                x, k, v = block(self.concat, x, past[index][0], past[index][1])
                new.append(self.stack([k, v], 0))
            return F.linear(self.norm(x), self.tok.weight)[:, 0], self.stack(new, 0)

    return GPT2()


def joiners(nn: Any) -> tuple[Any, Any]:
    """Return `concat` and `stack` of the library whose `nn` it is."""
    import importlib

    library = importlib.import_module(nn.__name__.partition(".")[0]) if hasattr(nn, "__name__") else None
    return getattr(library, "concat", None), getattr(library, "stack", None)


@dataclass(frozen=True)
class Inference:
    """A model that runs forward, and what it is given."""

    build: Callable[[Any], Any]
    inputs: Callable[[np.random.Generator], tuple[Array, ...]]


def _images(batch: int) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    return lambda rng: (rng.standard_normal((batch, 3, 224, 224), dtype=np.float32),)


def _decoding(rng: np.random.Generator) -> tuple[Array, ...]:
    return rng.integers(0, 50257, (1, 1)), rng.standard_normal((12, 2, 1, 12, 255, 64), dtype=np.float32)


INFERENCE: dict[str, Inference] = {
    "resnet50_b1": Inference(resnet50, _images(1)),
    "resnet50_b16": Inference(resnet50, _images(16)),
    "bert": Inference(bert, lambda rng: (rng.integers(0, 30522, (1, 128)),)),
    "gpt2_decode": Inference(gpt2, _decoding),
}


def norms_of(weights: Mapping[str, Any]) -> dict[str, str]:
    """Return convolution -> batch norm that follows it, by the names of ResNet's modules."""
    found = {}
    for name in weights:
        owner, _, leaf = name.rpartition(".")
        if leaf == "running_mean":
            parent, _, last = owner.rpartition(".")
            conv = "0" if last == "1" else last.replace("bn", "conv")
            found[f"{parent}.{conv}" if parent else conv] = owner
    return found


def folded(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return weights with every batch norm folded into the convolution before it, which gets a bias."""
    found = dict(weights)
    for conv, norm in norms_of(weights).items():
        scale = found.pop(f"{norm}.weight") / np.sqrt(found.pop(f"{norm}.running_var") + np.float32(EPS))
        found[f"{conv}.bias"] = found.pop(f"{norm}.bias") - found.pop(f"{norm}.running_mean") * scale
        found[f"{conv}.weight"] = found[f"{conv}.weight"] * scale.reshape(-1, 1, 1, 1)
        del found[f"{norm}.num_batches_tracked"]
    return found
