"""The training workloads of the benchmarks and agreement tests, written once for any library with PyTorch's
module names.

`mlp(nn)`, `lenet(nn)`, `resnet18(nn)`, `lstm(nn)`, `gpt(nn)` and `gcn(nn)` build the same model from
`stratal.nn` or from `torch.nn`: the twins have equal state-dict keys, so weights move from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def mlp(nn: Any, sizes: tuple[int, ...] = (784, 512, 512, 10)) -> Any:
    """Return Linear-ReLU-Linear-ReLU-Linear with biases."""
    layers: list[Any] = []
    for k, (n_in, n_out) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if k else []
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)


def lenet(
    nn: Any, channels: tuple[int, int] = (6, 16), widths: tuple[int, int] = (120, 84), classes: int = 10
) -> Any:
    """Return LeNet-5 for 1x28x28: two convolutions with max pooling, then 400-120-84-10."""
    return nn.Sequential(
        nn.Conv2d(1, channels[0], 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(*channels, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(25 * channels[1], widths[0]), nn.ReLU(),
        nn.Linear(*widths), nn.ReLU(), nn.Linear(widths[1], classes),
    )  # fmt: skip


def resnet18(nn: Any, width: int = 64, classes: int = 10) -> Any:
    """Return ResNet-18 for 3x32x32: a 3x3 stem, four stages of two basic blocks, a global mean, a linear
    head.
    """
    F = nn.functional

    class BasicBlock(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, n_out: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(n_out)
            self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(n_out)
            self.downsample = None
            if stride != 1 or n_in != n_out:
                projection = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
                self.downsample = nn.Sequential(projection, nn.BatchNorm2d(n_out))

        def forward(self, x: Any) -> Any:
            y = F.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return F.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            n_in = width
            for stage in range(4):
                n_out, stride = width << stage, 1 if stage == 0 else 2
                blocks = nn.Sequential(BasicBlock(n_in, n_out, stride), BasicBlock(n_out, n_out, 1))
                setattr(self, f"layer{stage + 1}", blocks)
                n_in = n_out
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(n_in, classes)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.bn1(self.conv1(x)))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).reshape(x.shape[0], -1))

    return ResNet()


def gpt(nn: Any, layers: int = 6, d: int = 384, heads: int = 6, context: int = 256, vocab: int = 256) -> Any:
    """Return a decoder: pre-norm blocks with biases, causal attention, GELU perceptron x4, head tied to the
    embedding.
    """
    F = nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(d, 3 * d)
            self.proj = nn.Linear(d, d)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            qkv = self.qkv(x).reshape(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
            return self.proj(y.permute(0, 2, 1, 3).reshape(b, t, d))

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.attn = nn.LayerNorm(d), Attention()
            self.ln2, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln1(x))
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))

    class GPT(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok = nn.Embedding(vocab, d)
            self.pos = nn.Embedding(context, d)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(d)

        def forward(self, tokens: Any) -> Any:
            x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.tok.weight)

    model = GPT()
    if hasattr(nn, "init"):
        nn.init.normal_(model.tok.weight, 0.0, 0.02)
        nn.init.normal_(model.pos.weight, 0.0, 0.02)
    return model


def lstm(nn: Any, inputs: int = 64, hidden: int = 256, classes: int = 10) -> Any:
    """Return an LSTM over [time, batch, inputs] with a linear head on the last step."""

    class Recurrent(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(inputs, hidden)
            self.head = nn.Linear(hidden, classes)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][-1])

    return Recurrent()


def gcn(nn: Any, inputs: int = 128, hidden: int = 64, classes: int = 10) -> Any:
    """Return two graph convolutions A(xW + b) with a ReLU between.

    A is given by its edges: source and target nodes, and a coefficient each.
    """
    F = nn.functional

    class GraphConvolution(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.linear1 = nn.Linear(inputs, hidden)
            self.linear2 = nn.Linear(hidden, classes)

        def spread(self, h: Any, source: Any, target: Any, coefficient: Any) -> Any:
            messages = h.index_select(0, source) * coefficient.reshape(-1, 1)
            return h.new_zeros(h.shape).index_add(0, target, messages)

        def forward(self, x: Any, source: Any, target: Any, coefficient: Any) -> Any:
            h = F.relu(self.spread(self.linear1(x), source, target, coefficient))
            return self.spread(self.linear2(h), source, target, coefficient)

    return GraphConvolution()


def nothing(rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], ...]:
    """Return no arrays: most models take their data alone."""
    return ()


@dataclass(frozen=True)
class Workload:
    """A model, its data and its optimizer, for a library's `nn` and `optim`."""

    name: str
    build: Callable[[Any], Any]
    data: Callable[[np.random.Generator], Arrays]
    optimizer: Callable[[Any, Any], Any]  # (optim, parameters)
    rest: Callable[[np.random.Generator], tuple[np.ndarray[Any, Any], ...]] = nothing

    def loss(self, nn: Any, model: Any, x: Any, y: Any, *rest: Any) -> Any:
        """Return the cross-entropy over all positions; `rest` is what the model takes besides x."""
        logits = model(x, *rest)
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def images(batch: int, shape: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Return what draws a batch of arrays with one of ten labels each."""

    def draw(rng: np.random.Generator) -> Arrays:
        return rng.standard_normal((batch, *shape), dtype=np.float32), rng.integers(0, 10, batch)

    return draw


def tokens(batch: int, length: int, vocab: int) -> Callable[[np.random.Generator], Arrays]:
    """Return what draws texts, and the same texts one token on."""

    def draw(rng: np.random.Generator) -> Arrays:
        text = rng.integers(0, vocab, (batch, length + 1))
        return text[:, :-1].copy(), text[:, 1:].copy()

    return draw


def sequences(length: int, batch: int, width: int) -> Callable[[np.random.Generator], Arrays]:
    """Return what draws [length, batch, width] with a label per sequence."""

    def draw(rng: np.random.Generator) -> Arrays:
        return rng.standard_normal((length, batch, width), dtype=np.float32), rng.integers(0, 10, batch)

    return draw


def graph(nodes: int, edges: int) -> Callable[[np.random.Generator], tuple[np.ndarray[Any, Any], ...]]:
    """Return what draws edges (sources, targets) with the coefficients of symmetric normalisation."""

    def draw(rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], ...]:
        source, target = rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)
        degree = 1.0 + np.bincount(source, minlength=nodes) + np.bincount(target, minlength=nodes)
        return source, target, (degree[source] * degree[target]).astype(np.float32) ** -0.5

    return draw


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("mlp", mlp, images(32, (784,)), lambda o, p: o.Adam(p, lr=1e-3)),
        Workload("mlp128", mlp, images(128, (784,)), lambda o, p: o.SGD(p, lr=0.01, momentum=0.9)),
        Workload("lenet", lenet, images(64, (1, 28, 28)), lambda o, p: o.Adam(p, lr=1e-3)),
        Workload("gpt", gpt, tokens(8, 256, 256), lambda o, p: o.AdamW(p, lr=1e-3, weight_decay=0.1)),
        Workload("resnet18", resnet18, images(32, (3, 32, 32)), lambda o, p: o.SGD(p, lr=0.01, momentum=0.9)),
        Workload("lstm", lstm, sequences(64, 32, 64), lambda o, p: o.Adam(p, lr=1e-3)),
        Workload("gcn", gcn, images(20_000, (128,)), lambda o, p: o.Adam(p, lr=1e-3), graph(20_000, 200_000)),
    )
}


def copy_weights(source: ModuleType | Any, target: Any) -> None:
    """Load the torch twin's weights into our model."""
    target.load_state_dict({name: value.numpy() for name, value in source.state_dict().items()})
