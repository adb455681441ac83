"""Batches in parts: the same numbers in any number of parts, or a refusal that says what takes the batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hst

import stratal as st
from stratal import nn, optim
from stratal.base.types import TensorType
from stratal.compiler import Lowerings
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import graph_input
from stratal.optimize.batch_parts import NotSplit
from stratal.optimize.micro_batches import counts, micro_batched
from stratal.optimize.simplify import simplify
from stratal.tensor.capture.ahead import captured_ahead
from stratal.tensor.capture.compiled import Compiled

F = nn.functional


def captured(step: Callable[..., Any], *args: Any) -> Graph:
    return simplify(captured_ahead(Compiled(step), *args).graph)


def drawn(graph: Graph) -> list[np.ndarray]:
    """Return operands of a graph: small numbers, which are indices of anything, too."""
    rng = np.random.default_rng(0)
    found = []
    for i in graph.inputs:
        t = i.aval
        values = rng.normal(size=t.ints) * 0.3 if t.dtype.is_float else rng.integers(0, 3, t.ints)
        found.append(np.asarray(values).astype(t.dtype.np))
    return found


def assert_parts_agree(graph: Graph) -> int:
    """Compare a graph in all numbers of parts with the whole; return how many there were."""
    operands, numbers = drawn(graph), counts(graph)
    wanted = interpret(graph, operands)
    for count in numbers:
        split = micro_batched(graph, count, Lowerings())
        assert split.output_types == graph.output_types
        assert any(n.op.name == "scan" and n.op.length == count for n in split.nodes)
        for a, b in zip(tree_of(wanted), tree_of(interpret(split, operands)), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-11)
    return len(numbers)


def tree_of(found: Any) -> list[np.ndarray]:
    """Return outputs and new states, end to end."""
    if isinstance(found, np.ndarray):
        return [found]
    return [a for part in (found.values() if isinstance(found, dict) else found) for a in tree_of(part)]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)

    def forward(self, text: Any) -> Any:
        x = self.tok(text) + self.pos.weight[: text.shape[1]]
        return self.layer(x) @ self.tok.weight.T


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 4)), (9, 5)),
    "norms": (lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.SiLU(), nn.RMSNorm(8)), (6, 5)),
    "pools": (lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (4, 2, 8, 8)),
    "transposed": (lambda: nn.Sequential(
        nn.Conv1d(3, 4, 3, dilation=2), nn.Tanh(), nn.ConvTranspose1d(4, 2, 2, stride=2)), (4, 3, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_in_parts_gives_the_numbers_of_the_whole(name: str) -> None:
    make, shape = NETWORKS[name]
    st.manual_seed(0)
    net = make().double()
    opt = optim.AdamW(net.parameters(), lr=1e-2)

    def step(x: Any, y: Any) -> Any:
        out = net(x)
        loss = F.cross_entropy(out.reshape(out.shape[0], -1), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss, out

    x = st.tensor(np.zeros(shape))
    assert assert_parts_agree(captured(step, x, st.tensor(np.zeros(shape[0], np.int64)))) >= 2


def test_a_decoder_with_tied_embeddings_and_padding_gives_the_numbers_of_the_whole() -> None:
    """Embeddings are scattered into, masks of padding counted over the batch, attention is causal."""
    st.manual_seed(0)
    net = Decoder().double()
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(text: Any, target: Any) -> Any:
        loss = F.cross_entropy(net(text).reshape(-1, 11), target.reshape(-1), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    text = st.tensor(np.ones((4, 6), np.int64))
    assert assert_parts_agree(captured(step, text, text)) == 2


def test_what_goes_along_another_axis_is_split_such_as_the_best_classes_beside_a_loss() -> None:
    w = nn.Parameter(st.ones(3, 5, dtype=st.float64))
    opt = optim.SGD([w], lr=0.1)

    def step(x: Any, y: Any) -> Any:
        logits = x @ w
        loss = F.cross_entropy(logits.cumsum(1), y)
        loss.backward()
        opt.step()
        best = logits.topk(2, 1).indices
        return loss, (best == y[:, None]).any(1).sum(), logits.sort(1).values, logits.gather(1, y[:, None])

    x = st.tensor(np.random.default_rng(0).normal(size=(12, 3)))
    assert assert_parts_agree(captured(step, x, st.tensor(np.arange(12) % 5))) == 4


# -- what takes the whole batch ------------------------------------------------------------------------------
TAKES_THE_BATCH: dict[str, Callable[[Any], Any]] = {
    "batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "contrast": lambda h: h @ h.T,
    "softmax over the batch": lambda h: F.softmax(h, 0),
    "running sum": lambda h: h.cumsum(0),
    "reversed": lambda h: h.flip(0) * h,
    "rolled": lambda h: h.roll(1, 0) * h,
    "sorted": lambda h: h.sort(0).values * h,
    "neighbours": lambda h: h[1:] * h[:-1],
    "first row": lambda h: h * h[0],
    "largest": lambda h: h / h.max(),
    "doubled": lambda h: st.cat([h, h], 0)[::2] * h,
}


@pytest.mark.parametrize("name", TAKES_THE_BATCH)
def test_what_takes_the_whole_batch_is_not_split_and_named(name: str) -> None:
    w = nn.Parameter(st.ones(3, 3, dtype=st.float64))
    opt = optim.SGD([w], lr=0.1)

    def step(x: Any) -> Any:
        loss = TAKES_THE_BATCH[name](x @ w).square().mean()
        loss.backward()
        opt.step()
        return loss

    with pytest.raises(NotSplit) as refused:
        micro_batched(captured(step, st.ones(6, 3, dtype=st.float64)), 2, Lowerings())
    assert "test_micro_batches.py" in str(refused.value)


# -- random steps --------------------------------------------------------------------------------------------
LINKS: list[Callable[[Any, Any], Any]] = [
    lambda h, w: h @ w, lambda h, w: st.tanh(h), lambda h, w: h * h.mean(-1, keepdim=True),
    lambda h, w: h.transpose(1, 2) if h.shape[1] == h.shape[2] else h, lambda h, w: h + w[0],
    lambda h, w: h.reshape(-1, h.shape[-1]).reshape(h.shape), lambda h, w: h.flip(1), lambda h, w: h.flip(0),
    lambda h, w: h.cumsum(1), lambda h, w: F.softmax(h, 1), lambda h, w: h[:, ::2].repeat(1, 2, 1),
    lambda h, w: F.pad(h, (1, 1))[..., 1:-1], lambda h, w: st.cat([h[..., 1:], h[..., :1]], -1),
    lambda h, w: h * st.arange(h.shape[0], dtype=st.float64).reshape(-1, 1, 1), lambda h, w: h.roll(1, 0),
    lambda h, w: h - h.mean(0), lambda h, w: h.reshape(h.shape[0] * h.shape[1], -1).T.T.reshape(h.shape),
    lambda h, w: st.where(h > 0, h, h * w.sum()), lambda h, w: h.max(2).values[..., None] + h,
    lambda h, w: F.dropout(h, 0.5), lambda h, w: st.einsum("btd,bsd->bts", h, h) @ h,
    lambda h, w: h.transpose(0, 1).reshape(4, 16).reshape(4, 4, 4).transpose(0, 1),
    lambda h, w: h.permute(1, 0, 2).contiguous().reshape(h.shape), lambda h, w: h[st.tensor([3, 0, 1, 2])],
    lambda h, w: h.sort(1).values, lambda h, w: h.topk(2, 2).values.sum(-1, keepdim=True) + h,
    lambda h, w: h.sort(0).values, lambda h, w: h.cummax(2).values,
    lambda h, w: h.gather(2, h.argsort(2)),
]  # fmt: skip


@given(hst.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_random_steps_in_parts_give_the_numbers_of_the_whole_or_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    links = [rng.choice(LINKS) for _ in range(rng.randint(1, 4))]
    w = nn.Parameter(st.full((4, 4), 0.3, dtype=st.float64))
    reduced = rng.choice((lambda h: h.mean(), lambda h: h.square().sum(), lambda h: h.square().max()))

    def step(x: Any) -> Any:
        h = x @ w
        for link in links:
            h = link(h, w)
        loss = reduced(h)
        loss.backward()
        return loss

    graph = captured(step, st.ones(4, 4, 4, dtype=st.float64))
    try:
        assert_parts_agree(graph)
    except NotSplit:
        return


@pytest.mark.parametrize("dtype", [st.float16, st.bfloat16])
def test_sums_of_16_bits_are_added_up_in_32(dtype: Any) -> None:
    """2048 ones of float16, one after another, would stop at 2048; of bfloat16 at 256."""
    x, b = graph_input("x", TensorType(dtype, (4096, 2))), Builder()
    graph = Graph([x], [b.sum(x, axes=(0,))])
    (found,) = tree_of(interpret(micro_batched(graph, 4096, Lowerings()), [np.ones((4096, 2), dtype.np)]))
    assert found.astype(np.float64).tolist() == [4096.0, 4096.0]


# -- compiled ------------------------------------------------------------------------------------------------
class Training:
    def __init__(self, **how: Any) -> None:
        st.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
                                 nn.Linear(64, 4))  # fmt: skip
        self.opt = optim.SGD(self.net.parameters(), lr=0.05)
        self.compiled = st.compile(self.step, **how)

    def step(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        return loss

    def run(self, steps: int) -> list[float]:
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(256, 16)).astype(np.float32), rng.integers(0, 4, 256)
        return [float(self.compiled(st.tensor(x), st.tensor(y))) for _ in range(steps)]


@pytest.mark.row("E8")
def test_a_budget_may_split_the_batch_and_says_so() -> None:
    free = Training()
    wanted = free.run(50)
    budget = free.compiled.plan.planned_peak_bytes * 6 // 10
    with pytest.raises(st.DoesNotFit, match="micro_batches=True"):
        Training(memory=budget).run(1)
    small = Training(memory=budget, micro_batches=True)
    np.testing.assert_allclose(small.run(50), wanted, rtol=1e-6)
    for a, b in zip(free.net.parameters(), small.net.parameters(), strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), atol=2e-6)
    assert small.compiled.plan.planned_peak_bytes <= budget
    assert "results agree to rounding, not to the bit" in str(small.compiled.memory)
    (choice,) = [d for d in small.compiled.program.log if d.subject == "micro-batches"]
    assert "parts of the batch" in choice.choice


def test_more_parts_are_tried_where_two_need_more_than_the_whole() -> None:
    """Sums over parts take memory of their own, which a few parts may not repay."""
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))
    opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    x, y = st.ones(512, 64), st.zeros(512, dtype=st.int64)
    whole = st.fits(step, x, y, memory="1 GB").planned_peak_bytes
    with pytest.raises(st.DoesNotFit) as refused:
        st.fits(step, x, y, memory=whole * 8 // 10)
    assert refused.value.least_bytes > whole * 8 // 10
    assert st.fits(step, x, y, memory=whole * 8 // 10, micro_batches=True).slowdown < 1.3


def test_the_setting_allows_parts_to_every_budget() -> None:
    budget = "400 kB"
    with st.base.settings.micro_batches(True):
        allowed = Training(memory=budget)
        allowed.run(1)
    assert "parts of the batch" in str(allowed.compiled.memory)


def test_micro_batches_without_a_budget_are_refused() -> None:
    with pytest.raises(st.base.errors.AttributeValueError, match="memory"):
        st.compile(lambda x: x, micro_batches=True)


def test_a_refusal_says_what_keeps_the_batch_together() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 4))
    opt = optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    with pytest.raises(st.DoesNotFit, match="its batch is not split: sum takes the whole batch"):
        st.fits(step, st.ones(64, 16), memory=1000, micro_batches=True)
