"""What rewrites of graphs are worth.

    attention    attention by hand in twelve ways, forward and backward: in blocks, over PyTorch's eager mode
                 and over our own plain attention of the same sizes; peaks beside those with stored scores

    losses       a linear layer and cross-entropy over 50,257 classes: blocks of rows over stored logits, over
                 PyTorch; the planned peak over the bytes of the logits

    networks     networks forward with the search over rewrites, over the same without and over the best of
                 onnxruntime and OpenVINO

    slower       every program of networks, training steps, examples and 100 random networks with the search,
                 over the same without; what is slower is dropped, its verdicts go to --records

A row is `workload, system, against, ratio, gate, met`: a ratio of medians of seconds, systems taking turns in
one process, or of planned bytes when N doubles. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import optimiser_losses, optimiser_networks, optimiser_slower
from benchmarks.optimiser_rows import Row, medians, row

PARTS: Final = ("attention", "losses", "networks", "slower")
SIZES: Final = ((2, 8, 1024, 64), (1, 8, 4096, 64))
SMOKE: Final = ((1, 2, 256, 16),)
TORCH_GATE: Final = 0.5
PLAIN_GATE: Final = 1.15
PEAK_GATE: Final = 2.2  # of twice the length: linear is 2, quadratic 4
AGREE: Final = 2e-4  # of the largest element of PyTorch's
Function = Callable[..., Any]


class Library:
    """The names in which the variants are written, of Stratal or of PyTorch."""

    def __init__(self, module: Any, functional: Any, repeat: Function) -> None:
        self.module, self.functional, self.repeat = module, functional, repeat

    def positions(self, s: Any) -> tuple[Any, Any]:
        rows, columns = (self.module.arange(n) for n in s.shape[-2:])
        return rows[:, None], columns[None, :]

    def softmax(self, s: Any) -> Any:
        return self.module.softmax(s, -1)

    def by_hand(self, s: Any) -> Any:
        e = self.module.exp(s - s.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)


def variants(lib: Library) -> dict[str, Function]:
    """Return the twelve, each a function of q, k, v of one size, a bias [L, S], and a number per head."""
    m = lib.module

    def attention(score: Function, softmax: Function = lib.softmax) -> Function:
        def of(q: Any, k: Any, v: Any, bias: Any, heads: Any) -> Any:
            s = q @ k.mT / q.shape[-1] ** 0.5
            return softmax(score(s, bias, heads)) @ v

        return of

    def seen(s: Any, _: Any, __: Any) -> Any:
        i, j = lib.positions(s)
        return m.where(j <= i, s, float("-inf"))

    def window(s: Any, _: Any, __: Any) -> Any:
        i, j = lib.positions(s)
        return m.where((j <= i) & (i - j < 256), s, float("-inf"))

    def alibi(s: Any, _: Any, heads: Any) -> Any:
        i, j = lib.positions(s)
        return s + heads[:, None, None] * (j - i)

    def sink(q: Any, k: Any, v: Any, bias: Any, heads: Any) -> Any:
        s = q @ k.mT / q.shape[-1] ** 0.5
        extra = heads[:, None, None]
        top = m.maximum(s.amax(-1, keepdim=True), extra).detach()
        e = m.exp(s - top)
        return (e / (e.sum(-1, keepdim=True) + m.exp(extra - top))) @ v

    def grouped(q: Any, k: Any, v: Any, bias: Any, heads: Any) -> Any:
        few = k.shape[1] // 2
        k, v = (lib.repeat(x[:, :few], 2) for x in (k, v))
        return attention(lambda s, *_: s)(q, k, v, bias, heads)

    def given(q: Any, k: Any, v: Any, bias: Any, _: Any) -> Any:
        return lib.functional.scaled_dot_product_attention(q, k, v, bias)

    return {
        "by hand": attention(lambda s, *_: s, lib.by_hand),
        "softmax": attention(lambda s, *_: s),
        "causal": attention(seen),
        "sliding window": attention(window),
        "bias": attention(lambda s, bias, _: s + bias),
        "mask of numbers": given,
        "ALiBi": attention(alibi),
        "soft cap": attention(lambda s, *_: 20 * m.tanh(s / 20)),
        "soft cap, causal": attention(lambda s, *rest: seen(20 * m.tanh(s / 20), *rest)),
        "ALiBi, causal": attention(lambda s, *rest: seen(alibi(s, *rest), *rest)),
        "sink": sink,
        "grouped heads": grouped,
    }


def trained(st: Any, function: Function) -> Function:
    """Return what computes gradients of q, k and v, uncompiled."""

    def step(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return st.grad(lambda q, k, v: function(q, k, v, *rest).square().sum(), (0, 1, 2))(q, k, v)

    return step


def attention(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield rows of each variant and size."""
    import stratal as st
    from stratal.base import settings
    from stratal.nn import functional

    torch = _torch(arguments)
    own = variants(Library(st, functional, lambda x, n: st.repeat_interleave(x, n, axis=1)))
    peers = {}
    if torch is not None:
        peers = variants(
            Library(torch, torch.nn.functional, lambda x, n: torch.repeat_interleave(x, n, dim=1))
        )
    with settings.threads(arguments.threads), settings.online(1):
        for size in SMOKE if arguments.smoke else SIZES:
            plain = st.compile(trained(st, _plain))
            for name in arguments.only or own:
                yield from _variant(arguments, name, size, own[name], plain, peers.get(name), torch)


def _plain(q: Any, k: Any, v: Any, *_: Any) -> Any:
    from stratal.nn import functional

    return functional.scaled_dot_product_attention(q, k, v)


def _torch(arguments: argparse.Namespace) -> Any:
    if arguments.against == "none":
        return None
    try:
        import torch
    except ImportError:
        print("torch is skipped: it is not installed", flush=True)
        return None
    torch.set_num_threads(arguments.threads)
    return torch


def _variant(
    arguments: argparse.Namespace, name: str, size: tuple[int, ...], function: Function, plain: Function,
    peer: Function | None, torch: Any
) -> Iterator[Row]:  # fmt: skip
    import stratal as st

    arrays = drawn(size)
    own = st.compile(trained(st, function))
    operands = [st.tensor(a) for a in arrays]
    ours = {"own": own, "plain": plain}
    runs: dict[str, Function] = {n: lambda f=f: f(*operands)[0].numpy() for n, f in ours.items()}
    if peer is not None:
        given = [torch.tensor(a, requires_grad=k < 3) for k, a in enumerate(arrays)]

        def eager() -> Any:
            return torch.autograd.grad(peer(*given).square().sum(), given[:3])

        runs["torch"] = eager
        for got, want in zip(own(*operands), eager(), strict=True):
            far = float(np.abs(got.numpy() - want.numpy()).max() / want.abs().max())
            if not far <= AGREE:
                raise SystemExit(f"{name}: gradients differ from PyTorch's by {far:.2g}")
    seconds = medians(runs, 1 if arguments.smoke else arguments.rounds)
    workload = f"{name} {'x'.join(map(str, size))}"
    for against, gate in (("torch", TORCH_GATE), ("plain", PLAIN_GATE)):
        if against in seconds:
            yield row(workload, against, seconds["own"] / seconds[against], gate, seconds=seconds["own"],
                      other_seconds=seconds[against])  # fmt: skip
    peaks = [peak(function, n) for n in ((*size[:2], k * size[2], size[3]) for k in (1, 2))]
    whole = peak(function, size, blocks=False)
    yield row(workload, "peak at half the length", peaks[1] / peaks[0], PEAK_GATE, peak_bytes=peaks[0],
              stored_peak_bytes=whole)  # fmt: skip


def peak(function: Function, size: tuple[int, ...], *, blocks: bool = True) -> int:
    """Return the bytes that the plan of a step needs beside what it is given, scores in blocks or stored."""
    import stratal as st
    from stratal.base import settings
    from stratal.compiler import planned

    small = st.compile(trained(st, function))
    with settings.online(1):  # stored, they may not fit
        small(*(st.tensor(a) for a in drawn(size)))
    with settings.online(1 if blocks else None):
        given = sum(x.aval.nbytes for x in small.graph.inputs)
        return planned(small.graph)[1].planned_peak_bytes - given


def drawn(size: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = (size, size, size, (size[2], size[2]), (size[1],))
    return [rng.standard_normal(shape, dtype=np.float32) * np.float32(0.5) for shape in shapes]


def networks(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield rows of the networks that graph optimisers are measured on."""
    names = arguments.only or list(optimiser_networks.NETWORKS)
    return optimiser_networks.networks(
        names, 1 if arguments.smoke else arguments.rounds, arguments.threads, arguments.against != "none"
    )


def losses(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield rows of losses over many classes."""
    return optimiser_losses.losses(
        arguments.rounds, arguments.threads, _torch(arguments), smoke=arguments.smoke
    )


def slower(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield rows of programs that the search may have slowed down."""
    from stratal.base import settings

    with tempfile.TemporaryDirectory() as folder, settings.threads(arguments.threads):
        path = arguments.records or Path(folder) / "records.json"
        rounds = 1 if arguments.smoke else arguments.rounds
        yield from optimiser_slower.slower(arguments.only, rounds, path.absolute(), arguments.smoke)


RUNS: Final = {"attention": attention, "losses": losses, "networks": networks, "slower": slower}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--part", default=",".join(PARTS), metavar="LIST", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--only", default=(), type=lambda text: text.split("; "), metavar="LIST",
                        help='variants of attention, networks, or what runs programs, separated by "; "')
    parser.add_argument("--against", default="torch", metavar="LIST", help="torch and its exports, or none")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of turns (default: 7)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N", help="of each system")
    parser.add_argument("--records", type=Path, metavar="FILE",
                        help="verdicts on what is slower go there (default: they are not kept)")
    parser.add_argument("--smoke", action="store_true", help="one small size and one round: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command; return 1 where a gate is not met."""
    rows = []
    for part in arguments.part.split(","):
        for found in RUNS[part](arguments):
            rows.append(found)
            verdict = "" if found["met"] in (None, True) else "  NOT MET"
            gate = "" if found["gate"] is None else f"  at most {found['gate']:g}"
            head = f"{found['workload']:36} {found['ratio']:7.3f}{gate}"
            print(f"{head} over {found['against']}{verdict}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(found["met"] in (None, True) for found in rows) or arguments.smoke else 1
