"""Networks whose graphs other optimisers were measured on: forward, their weights frozen.

Each is written once for any library with PyTorch's module names, as in `inference.py`. Sizes are those of the
papers: ResNeXt (Xie et al., 2017), GoogLeNet (Szegedy et al., 2015), SqueezeNet 1.0 (Iandola et al., 2016),
the recurrent cell of neural architecture search (Zoph and Le, 2017; Jia et al., "TASO", 2019).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import numpy as np

from benchmarks.inference import BOTTLENECKS, INFERENCE, Array, Inference, joiners
from benchmarks.optimiser_rows import Row, medians, row
from benchmarks.structure import draw
from benchmarks.systems import Job

Run = Callable[[], Array]


def resnext50(nn: Any, classes: int = 1000, groups: int = 32) -> Any:
    """Return ResNeXt-50 32x4d for 3x224x224: bottlenecks with grouped 3x3 convolutions."""
    F = nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, width: int, n_out: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=groups, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
            self.downsample = None
            if stride != 1 or n_in != n_out:
                projection = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
                self.downsample = nn.Sequential(projection, nn.BatchNorm2d(n_out))

        def forward(self, x: Any) -> Any:
            y = F.relu(self.bn1(self.conv1(x)))
            y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
            return F.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNeXt(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            blocks, n_in = [], 64
            for stage, depth in enumerate(BOTTLENECKS):
                for index in range(depth):
                    stride = 2 if stage and index == 0 else 1
                    blocks.append(Block(n_in, 128 << stage, 256 << stage, stride))
                    n_in = 256 << stage
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(n_in, classes)

        def forward(self, x: Any) -> Any:
            x = self.blocks(self.pool(F.relu(self.bn1(self.conv1(x)))))
            return self.fc(x.mean((2, 3)))

    return ResNeXt()


INCEPTIONS = (  # 1x1; 3x3 after a 1x1; 5x5 after a 1x1; 1x1 after pooling
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
POOLED_AFTER = (1, 6)  # of the inceptions


def googlenet(nn: Any, classes: int = 1000) -> Any:
    """Return GoogLeNet for 3x224x224: nine blocks of four branches, without its side outputs."""
    F = nn.functional
    concat, _ = joiners(nn)

    class Inception(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, sizes: tuple[int, ...]) -> None:
            super().__init__()
            one, three_in, three, five_in, five, pooled = sizes
            self.one = nn.Conv2d(n_in, one, 1)
            self.three_in, self.three = nn.Conv2d(n_in, three_in, 1), nn.Conv2d(three_in, three, 3, padding=1)
            self.five_in, self.five = nn.Conv2d(n_in, five_in, 1), nn.Conv2d(five_in, five, 5, padding=2)
            self.pool, self.pooled = nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(n_in, pooled, 1)

        def forward(self, x: Any) -> Any:
            three, five = F.relu(self.three_in(x)), F.relu(self.five_in(x))
            branches = [self.one(x), self.three(three), self.five(five), self.pooled(self.pool(x))]
            return concat([F.relu(b) for b in branches], 1)

    class GoogLeNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
            self.conv2, self.conv3 = nn.Conv2d(64, 64, 1), nn.Conv2d(64, 192, 3, padding=1)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
            n_in, blocks = 192, []
            for sizes in INCEPTIONS:
                blocks.append(Inception(n_in, sizes))
                n_in = sizes[0] + sizes[2] + sizes[4] + sizes[5]
            self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(n_in, classes)

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.conv1(x)))
            x = self.pool(F.relu(self.conv3(F.relu(self.conv2(x)))))
            for index, block in enumerate(self.blocks):
                x = block(x)
                if index in POOLED_AFTER:
                    x = self.pool(x)
            return self.fc(x.mean((2, 3)))

    return GoogLeNet()


FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
SQUEEZE_POOLED_AFTER = (2, 6)


def squeezenet(nn: Any, classes: int = 1000) -> Any:
    """Return SqueezeNet 1.0 for 3x224x224: a 1x1 convolution, then 1x1 and 3x3 ones side by side."""
    F = nn.functional
    concat, _ = joiners(nn)

    class Fire(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, n_in: int, squeeze: int, expand: int) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(n_in, squeeze, 1)
            self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.squeeze(x))
            return concat([F.relu(self.one(x)), F.relu(self.three(x))], 1)

    class SqueezeNet(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.pool = nn.Conv2d(3, 96, 7, stride=2), nn.MaxPool2d(3, stride=2)
            n_in, fires = 96, []
            for squeeze, expand in FIRES:
                fires.append(Fire(n_in, squeeze, expand))
                n_in = 2 * expand
            self.fires, self.last = nn.ModuleList(fires), nn.Conv2d(n_in, classes, 1)

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.conv1(x)))
            for index, fire in enumerate(self.fires):
                x = fire(x)
                if index in SQUEEZE_POOLED_AFTER:
                    x = self.pool(x)
            return F.relu(self.last(x)).mean((2, 3))

    return SqueezeNet()


def nasrnn(nn: Any, hidden: int = 512, steps: int = 5) -> Any:
    """Return the cell that a search found, unrolled: eight pairs of products of one input and one state."""

    class NasRnn(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.of_input = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(8)])
            self.of_state = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(8)])

        def cell(self, x: Any, state: Any) -> Any:
            t = [f(x) + g(state) for f, g in zip(self.of_input, self.of_state)]  # noqa: B905
            a = t[0].relu() + t[3].sigmoid()
            b = t[1].sigmoid() + t[2].tanh()
            c = t[4].sigmoid() * t[5].tanh()
            d = t[6].sigmoid() * t[7].relu()
            e = (b.sigmoid() + c.tanh()).tanh()
            return (e * (a.tanh() * d.tanh()).tanh()).tanh()

        def forward(self, x: Any) -> Any:
            state = x[0]
            for index in range(steps):
                state = self.cell(x[index], state)
            return state

    return NasRnn()


def gpt2_prefill(nn: Any, layers: int = 12, d: int = 768, heads: int = 12, vocab: int = 50257) -> Any:
    """Return GPT-2 small on a whole prompt: the logits of its last position."""
    F = nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
            self.proj, self.fc1, self.fc2 = nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def heads_of(self, x: Any) -> Any:
            return x.reshape(x.shape[0], x.shape[1], heads, d // heads).permute(0, 2, 1, 3)

        def forward(self, x: Any) -> Any:
            y = self.ln1(x)
            q, k, v = (self.heads_of(f(y)) for f in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.permute(0, 2, 1, 3).reshape(x.shape))
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))

    class Prefill(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(1024, d)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(d)

        def forward(self, tokens: Any) -> Any:
            x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x)[:, -1], self.tok.weight)

    return Prefill()


def _image(rng: np.random.Generator) -> tuple[Array, ...]:
    return (rng.standard_normal((1, 3, 224, 224), dtype=np.float32),)


NETWORKS: dict[str, Inference] = {
    "resnet50": INFERENCE["resnet50_b1"],
    "resnext50": Inference(resnext50, _image),
    "googlenet": Inference(googlenet, _image),
    "squeezenet": Inference(squeezenet, _image),
    "nasrnn": Inference(nasrnn, lambda rng: (rng.standard_normal((5, 1, 512), dtype=np.float32),)),
    "bert": INFERENCE["bert"],
    "gpt2_prefill": Inference(gpt2_prefill, lambda rng: (rng.integers(0, 50257, (1, 128)),)),
}


GATE: Final = 1.00  # of the time without a search, for each network; their geometric mean:
MEAN_GATE: Final = 0.90
PEER_GATE: Final = 0.85  # of the best of the peers' times, in the geometric mean
TOLERANCE: Final = 1e-3  # of the largest output


def networks(names: Sequence[str], rounds: int, threads: int, peers: bool) -> Iterator[Row]:
    """Yield rows of networks with `math="real"` over those without, and over the best peer that is installed.

    All systems take turns in one process; outputs are compared before the clock starts.
    """
    against_plain: list[float] = []
    against_peers: list[float] = []
    for name in names:
        runs = _systems(name, threads, peers)
        wanted = runs["exact"]()
        for system, run in runs.items():
            worst = float(np.abs(run() - wanted).max() / np.abs(wanted).max())
            if worst > TOLERANCE:
                raise SystemExit(f"{name}, {system}: differs by {worst:.1e} of the largest output")
        seconds = medians(runs, rounds)
        exact, real = seconds.pop("exact"), seconds.pop("real")
        against_plain.append(real / exact)
        yield row(name, "no search", real / exact, GATE, ms=1e3 * real, plain_ms=1e3 * exact)
        if seconds:
            best = min(seconds, key=lambda system: seconds[system])
            against_peers.append(real / seconds[best])
            theirs = {f"{system}_ms": 1e3 * s for system, s in seconds.items()}
            yield row(name, best, against_peers[-1], None, **theirs)
    yield row("geometric mean", "no search", geometric_mean(against_plain), MEAN_GATE)
    if against_peers:
        yield row("geometric mean", "the best peer", geometric_mean(against_peers), PEER_GATE)


def _systems(name: str, threads: int, peers: bool) -> dict[str, Run]:
    """Return what runs a network once, by system: ours without and with a search, and the peers there are."""
    import stratal as st
    from stratal import nn

    network = NETWORKS[name]
    arrays = network.inputs(np.random.default_rng(0))
    model = network.build(nn).eval()
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    weights = draw(shapes)
    model.load_state_dict(weights)
    inputs = [st.tensor(array) for array in arrays]

    def ours(math: str) -> Run:
        compiled = st.compile(lambda *tensors: model(*tensors), math=math)

        def run() -> Array:
            with st.inference_mode():
                return np.asarray(compiled(*inputs))

        return run

    others = _peers(network, weights, arrays, threads) if peers else {}
    return {"exact": ours("exact"), "real": ours("real"), **others}


def _peers(
    network: Inference, weights: Mapping[str, Any], arrays: Sequence[Array], threads: int
) -> dict[str, Run]:
    """Return what runs a network once in onnxruntime and in OpenVINO, where they are installed."""
    found: dict[str, Run] = {}
    if not find_spec("torch") or not find_spec("onnx"):
        return found
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        _export(network, weights, arrays, file)
        for system, module in (("onnxruntime", "onnx_runtime"), ("openvino", "openvino_cpu")):
            if find_spec(system):
                job = import_module(f"benchmarks.systems.{module}").job(file, arrays, threads)
                found[system] = partial(_first_output, job)
                found[system]()  # reads the file
    return found


def _first_output(job: Job) -> Array:
    return job.outputs(job.call())[0]


def _export(network: Inference, weights: Mapping[str, Any], arrays: Sequence[Array], file: Path) -> None:
    import torch

    model = network.build(torch.nn).eval()
    model.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in weights.items()})
    sample = tuple(map(torch.from_numpy, arrays))
    with torch.no_grad():
        torch.onnx.export(model, sample, str(file), dynamo=False, opset_version=18, verbose=False)
