"""Layers a network may have: what each is made of, by the shape it is given.

Shapes leave out the batch: (n,) a vector, (c, l) channels and length, (c, h, w) an image, (l, d, "steps") steps of a
sequence. A row is a function of the random numbers and a shape; it returns the text of a layer and its shape, or
None where the layer does not fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Shape = tuple[Any, ...]
Row = Callable[[random.Random, Shape], tuple[str, Shape] | None]

ODD = (1, 2, 3, 5, 6, 7, 9, 11, 13)
WRAPPERS = {
    "First": ["def forward(self, x): return self.inner(x)[0]"],
    "Residual": ["def forward(self, x): return x + self.inner(x)"],
    "Twice": ["def forward(self, x): return self.inner(self.inner(x))"],
    "Gate": ["def forward(self, x): return x * lib.sigmoid(self.inner(x))"],
    "Attend": ["def forward(self, x): return self.inner(x, x, x, need_weights=False)[0]"],
    "Swapped": ["def forward(self, x): return self.inner(x.transpose(1, 2)).transpose(1, 2)"],
    "Mean": ["def forward(self, x): return self.inner(x).mean(1)"],
    "Halves": ["def forward(self, x):", "    a, b = x.chunk(2, dim=-1)", "    return self.inner(a, b)"],
}


def _any(text: str) -> Row:
    return lambda rng, s: (text.replace("{p}", str(rng.choice([0.1, 0.3, 0.5]))), s)


def _vector(rng: random.Random, s: Shape) -> bool:
    return len(s) == 1


def _linear(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    n = rng.choice(ODD)
    at = s[0] if len(s) == 1 else s[1] if s[-1] == "steps" else s[-1]
    bias = rng.choice(["", ", bias=False"])
    shape = (n,) if len(s) == 1 else (s[0], n, "steps") if s[-1] == "steps" else (*s[:-1], n)
    return f"nn.Linear({at}, {n}{bias})", shape


def _same_linear(wrapper: str) -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        at = s[0] if len(s) == 1 else s[1] if s[-1] == "steps" else s[-1]
        return f"{wrapper}(nn.Linear({at}, {at}))", s

    return row


def _conv(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] == "steps" or len(s) not in (2, 3, 4):
        return None
    d, c = len(s) - 1, s[0]
    groups = rng.choice([g for g in (1, 1, c, 2) if c % g == 0])
    out = groups * rng.choice([1, 2, 3, 5])
    kernel, stride, padding = rng.choice([1, 2, 3, 5]), rng.choice([1, 1, 2, 3]), rng.choice([0, 1, 2])
    dilation = rng.choice([1, 1, 1, 2])
    sizes = tuple((n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for n in s[1:])
    if min(sizes) < 1:
        return None
    bias = rng.choice(["", ", bias=False"])
    options = f"{kernel}, {stride}, {padding}, dilation={dilation}, groups={groups}{bias}"
    return f"nn.Conv{d}d({c}, {out}, {options})", (out, *sizes)


def _transposed(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] == "steps" or len(s) not in (2, 3):
        return None
    kernel, stride = rng.choice([2, 3, 4]), rng.choice([1, 2])
    out, sizes = rng.choice([1, 2, 3]), tuple((n - 1) * stride + kernel for n in s[1:])
    return (f"nn.ConvTranspose{len(s) - 1}d({s[0]}, {out}, {kernel}, {stride})", (out, *sizes)) if max(sizes) < 30 else None


def _pool(kind: str, options: str = "") -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        if s[-1] == "steps" or len(s) not in (2, 3) or min(s[1:]) < 3:
            return None
        kernel, stride = rng.choice([2, 3]), rng.choice([1, 2])
        sizes = tuple((n - kernel) // stride + 1 for n in s[1:])
        first = "2, " if kind == "LPPool" else ""
        return f"nn.{kind}{len(s) - 1}d({first}{kernel}, {stride}{options})", (s[0], *sizes)

    return row


def _adaptive(kind: str) -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        if s[-1] == "steps" or len(s) not in (2, 3):
            return None
        n = rng.choice([1, 2, 3])
        return f"nn.Adaptive{kind}Pool{len(s) - 1}d({n})", (s[0], *(n for _ in s[1:]))

    return row


def _padded(kind: str) -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        if s[-1] == "steps" or len(s) not in (2, 3) or min(s[1:]) < 3:
            return None
        value = ", 0.5" if kind == "Constant" else ""
        return f"nn.{kind}Pad{len(s) - 1}d(1{value})", (s[0], *(n + 2 for n in s[1:]))

    return row


def _batch_norm(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] == "steps" or len(s) > 4:
        return None
    options = rng.choice(["", ", momentum=0.3", ", affine=False", ", track_running_stats=False", ", momentum=None"])
    return f"nn.BatchNorm{max(1, len(s) - 1)}d({s[0]}{options})", s


def _instance_norm(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] == "steps" or len(s) not in (2, 3) or s[1] < 2:
        return None
    options = rng.choice(["", ", affine=True", ", track_running_stats=True"])
    return f"nn.InstanceNorm{len(s) - 1}d({s[0]}{options})", s


def _group_norm(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    groups = rng.choice([g for g in (1, 2, 3, s[0]) if s[0] % g == 0])
    return None if s[-1] == "steps" or (len(s) == 1 and groups == s[0]) else (f"nn.GroupNorm({groups}, {s[0]})", s)


def _last_norm(kind: str) -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        n = s[1] if s[-1] == "steps" else s[-1]
        return (f"nn.{kind}({n})", s) if n > 1 else None

    return row


def _recurrent(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] != "steps":
        return None
    n, kind = rng.choice(ODD[1:6]), rng.choice(["LSTM", "GRU", "RNN"])
    both = rng.choice([False, False, True])
    options = ", bidirectional=True" * both + rng.choice(["", ", num_layers=2", ", bias=False"])
    return f"First(nn.{kind}({s[1]}, {n}, batch_first=True{options}))", (s[0], n * (1 + both), "steps")


def _attention(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] != "steps":
        return None
    heads = rng.choice([h for h in (1, 2, 3) if s[1] % h == 0])
    return f"Attend(nn.MultiheadAttention({s[1]}, {heads}, batch_first=True))", s


def _encoder(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
    if s[-1] != "steps" or s[1] < 2:
        return None
    heads = rng.choice([h for h in (1, 2, 3) if s[1] % h == 0])
    first = rng.choice(["", ", norm_first=True", ", activation='gelu'"])
    return f"nn.TransformerEncoderLayer({s[1]}, {heads}, 7, dropout=0.0, batch_first=True{first})", s


def _when(fits: Callable[[Shape], bool], text: str, shape: Callable[[Shape], Shape] = lambda s: s) -> Row:
    def row(rng: random.Random, s: Shape) -> tuple[str, Shape] | None:
        return (text.format(*s), shape(s)) if fits(s) else None

    return row


def _image(s: Shape) -> bool:
    return len(s) == 3 and s[-1] != "steps"


def _steps(s: Shape) -> bool:
    return s[-1] == "steps"


LAYERS: dict[str, Row] = {
    **{kind: _any(f"nn.{kind}()") for kind in (
        "ReLU", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Hardswish", "Softplus", "Tanh", "Sigmoid",
        "LogSigmoid", "Softsign", "Tanhshrink", "PReLU", "Hardtanh", "ReLU6", "Hardsigmoid", "Softshrink", "Hardshrink",
        "Identity",
    )},
    "GELU, tanh": _any("nn.GELU(approximate='tanh')"),
    "ReLU in place": _any("nn.Sequential(nn.Softsign(), nn.ReLU(inplace=True))"),
    "Threshold": _any("nn.Threshold(0.1, 0.2)"),
    "Softmax": _any("nn.Softmax(dim=-1)"),
    "LogSoftmax": _any("nn.LogSoftmax(dim=-1)"),
    "Dropout": _any("nn.Dropout({p})"),
    "AlphaDropout": _any("nn.AlphaDropout({p})"),
    "Linear": _linear,
    "Residual": _same_linear("Residual"),
    "Twice": _same_linear("Twice"),
    "Gate": _same_linear("Gate"),
    "GLU": _when(lambda s: len(s) == 1 and s[0] % 2 == 0, "nn.GLU()", lambda s: (s[0] // 2,)),
    "Bilinear": lambda rng, s: (f"Halves(nn.Bilinear({s[0] // 2}, {s[0] // 2}, 3))", (3,)) if len(s) == 1 and s[0] % 2 == 0 else None,
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "MaxPool": _pool("MaxPool"),
    "AvgPool": _pool("AvgPool"),
    "LPPool": _pool("LPPool"),
    "AdaptiveAvgPool": _adaptive("Avg"),
    "AdaptiveMaxPool": _adaptive("Max"),
    **{f"{kind}Pad": _padded(kind) for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")},
    "BatchNorm": _batch_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "LayerNorm": _last_norm("LayerNorm"),
    "RMSNorm": _last_norm("RMSNorm"),
    "LocalResponseNorm": _when(lambda s: _image(s) and s[0] > 1, "nn.LocalResponseNorm(2)"),
    "Upsample": _when(lambda s: _image(s) and s[1] < 9, "nn.Upsample(scale_factor=2, mode='bilinear')", lambda s: (s[0], 2 * s[1], 2 * s[2])),
    "Upsample, nearest": _when(lambda s: _image(s) and s[1] < 9, "nn.Upsample(scale_factor=2)", lambda s: (s[0], 2 * s[1], 2 * s[2])),
    "PixelShuffle": _when(lambda s: _image(s) and s[0] % 4 == 0, "nn.PixelShuffle(2)", lambda s: (s[0] // 4, 2 * s[1], 2 * s[2])),
    "PixelUnshuffle": _when(lambda s: _image(s) and s[1] % 2 == 0 and s[2] % 2 == 0, "nn.PixelUnshuffle(2)", lambda s: (4 * s[0], s[1] // 2, s[2] // 2)),
    "Unfold": _when(lambda s: _image(s) and min(s[1:]) > 1, "nn.Unfold(2)", lambda s: (4 * s[0], (s[1] - 1) * (s[2] - 1))),
    "Recurrent": _recurrent,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _encoder,
    "Mean": _when(_steps, "Mean(nn.Identity())", lambda s: (s[1],)),
    "Swapped": _when(_steps, "Swapped(nn.Linear({0}, {0}))"),
    "Flatten": _when(lambda s: len(s) > 1 and s[-1] != "steps", "nn.Flatten()", lambda s: (_size(s),)),
    "Flatten steps": _when(_steps, "nn.Flatten()", lambda s: (s[0] * s[1],)),
    "Unflatten": _when(lambda s: len(s) == 1 and s[0] % 2 == 0, "nn.Unflatten(1, (2, -1))", lambda s: (2, s[0] // 2)),
    "weight_norm": lambda rng, s: (f"nn.utils.parametrizations.weight_norm(nn.Linear({s[0]}, 4))", (4,)) if len(s) == 1 else None,
}  # fmt: skip
RANDOM = ("Dropout", "AlphaDropout")
STATISTICS = ("BatchNorm", "InstanceNorm")


def _size(s: Shape) -> int:
    product = 1
    for n in s:
        product *= n
    return product


def network(rng: random.Random, shape: Shape, outputs: int | None) -> tuple[list[str], Shape, list[str]]:
    """Draw layers for an input; return their texts, the shape of the output and the names of the kinds."""
    layers, kinds = [], []
    if shape[-1] == "tokens":
        d = rng.choice([4, 5, 6, 8])
        layers.append(f"nn.Embedding({shape[0]}, {d}{rng.choice(['', ', padding_idx=0'])})")
        shape = (shape[1], d, "steps")
        kinds.append("Embedding")
    for _ in range(rng.choice([1, 2, 3, 4, 5, 6])):
        name = rng.choice(list(LAYERS))
        if _large(shape) and name not in ("Flatten", "Mean", "AdaptiveAvgPool"):
            continue
        made = LAYERS[name](rng, shape)
        if made is not None:
            layers.append(made[0])
            shape = made[1]
            kinds.append(name)
    if outputs is not None:
        if shape[-1] == "steps":
            layers.append("Mean(nn.Identity())")
            shape = (shape[1],)
        elif len(shape) > 1:
            layers.append("nn.Flatten()")
            shape = (_size(shape),)
        layers.append(f"nn.Linear({shape[0]}, {outputs})")
        shape = (outputs,)
    return layers, shape, kinds


def _large(shape: Shape) -> bool:
    return _size(tuple(n for n in shape if n != "steps")) > 1500
