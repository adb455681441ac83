"""Long chains of ordinary ops: the time to compile them grows with their length, the stack does not, and a
loop that never asks for a value is computed piece by piece.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from python_calls import calls_and_depth

import stratal as st
from stratal import compiler, nn
from stratal.autodiff.vjp import vjp
from stratal.base.errors import StratalError
from stratal.graph.graph import Graph
from stratal.graph.node import Input, Node, constant, topological
from stratal.optimize.ways import Ways
from stratal.plan.host import current_target
from stratal.tensor.lazy import program_cache
from stratal.tensor.values import backlog
from stratal.tensor.values.binding import node_of

F = nn.functional


# -- links: each takes an array, NumPy's or a tensor, and gives one --------------------------------------
def euler(x: Any, length: int) -> Any:
    v = x * 0.5
    for _ in range(length):
        v = v - 0.01 * x
        x = x + 0.01 * v
    return x + v


def affine(z: Any, length: int) -> Any:
    a = z * 0.25
    for _ in range(length):
        z = z * 0.99 + a
    return z


def fibonacci(a: Any, length: int) -> Any:
    b = a * 0.5
    for _ in range(length):
        a, b = b, (a + b) * 0.5
    return b


def sum_of_losses(w: Any, length: int) -> Any:
    total = w[0] * 0
    for _ in range(length):
        w = w * 0.999
        total = total + w[1] * w[2]
    return total


def momentum(p: Any, length: int) -> Any:
    m, v = p * 0, p * 0
    for _ in range(length):
        g = p + p
        m = m * 0.9 + g * 0.1
        v = v * 0.99 + g * g * 0.01
        p = p - 0.01 * m / (v + 1.0)
    return p


def in_place(x: Any, length: int) -> Any:
    w = x * 1
    for _ in range(length):
        if isinstance(w, np.ndarray):
            w *= np.float32(0.999)
            w += x
        else:
            w.mul_(0.999).add_(x)
    return w


LINKS: dict[str, Callable[[Any, int], Any]] = {
    f.__name__: f for f in (euler, affine, fibonacci, sum_of_losses, momentum, in_place)
}


def start() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).uniform(0.2, 0.9, (4, 5)).astype(np.float32)


def check(name: str, length: int, compiled: bool) -> None:
    link = LINKS[name]
    run = st.compile(lambda x: link(x, length)) if compiled else lambda x: link(x, length)
    np.testing.assert_array_equal(np.asarray(run(st.tensor(start()))), link(start(), length))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
@pytest.mark.parametrize("name", LINKS)
def test_a_long_chain_gives_the_bits_of_numpy(name: str, compiled: bool) -> None:
    check(name, 1200, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
@pytest.mark.parametrize("name", LINKS)
def test_ten_thousand_links_give_the_bits_of_numpy(name: str, compiled: bool) -> None:
    check(name, 10_000, compiled)


def losses_of_a_net(x: Any, y: Any, w: Any, steps: int) -> Any:
    """Train a small net by hand and return the sum of the losses."""
    total = st.zeros(())
    for _ in range(steps):
        error = st.tanh(x @ w) - y
        total = total + (error * error).mean()
        w = w - 0.1 * (x.T @ error) / 8
    return total


@pytest.mark.sampled(4)
@pytest.mark.parametrize("steps", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_losses_summed_over_many_steps_are_the_same_lazily_and_compiled(steps: int) -> None:
    rng = np.random.default_rng(0)
    data = [st.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((8, 6), (8, 3), (6, 3))]
    lazy = losses_of_a_net(*data, steps)
    compiled = st.compile(lambda *data: losses_of_a_net(*data, steps))(*data)
    assert float(lazy) == pytest.approx(float(compiled), rel=1e-5)


# -- how the work grows ----------------------------------------------------------------------------------
def stacked(x: Any, length: int) -> Any:
    rows = []
    for _ in range(length):
        x = x * 0.99 + 0.01
        rows.append(x[0])
    return st.stack(rows)


def normalised(x: Any, length: int) -> Any:
    for _ in range(length):
        x = x / (x.sum() + 1.0)
    return x


def centred(x: Any, length: int) -> Any:
    for _ in range(length):
        x = x - x.mean(dim=0, keepdim=True) * 0.1
    return x


def layers(x: Any, length: int) -> Any:
    w = x.T @ x * 0.01
    for _ in range(length):
        x = st.tanh(x @ w)
    return x


def chosen(x: Any, length: int) -> Any:
    for _ in range(length):
        x = st.where(x > 0.5, x * 0.99, x + 0.01)
    return x


def squared(x: Any, length: int) -> Any:
    for _ in range(length):
        x = x * x * 0.5 + x
    return x


def after_a_product(x: Any, length: int) -> Any:
    z, y = x, x @ (x.T @ x)
    for _ in range(length):
        z = z * 0.99 + x
    return y + z


def views(x: Any, length: int) -> Any:
    for _ in range(length):
        x = x.flip(0) * 0.99 + F.pad(x[1:], (0, 0, 0, 1))
    return x


GROWING = LINKS | {
    f.__name__: f for f in (stacked, normalised, centred, layers, chosen, squared, after_a_product, views)
}


def graph_of(name: str, length: int) -> Graph:
    """Return the graph of a chain's sum and, where nothing is written in place, its gradient."""
    x = st.tensor(start())
    x_node = node_of(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog.HERE.backlog, "flush_some", lambda *_: None)  # one graph, however long
        total = node_of(GROWING[name](x, length).sum())
    (gradient,) = vjp([total], [constant(np.float32(1))], [x_node])
    roots = [total] if gradient is None else [total, gradient]
    inputs = [n for n in topological(roots) if isinstance(n.op, Input)]
    return Graph(inputs, roots)


LONG = ("momentum", "normalised", "sum_of_losses", "squared", "stacked", "centred")  # half a minute each


@pytest.mark.sampled(13)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in GROWING]
)
def test_decisions_take_calls_in_proportion_to_nodes_and_no_deeper_a_stack(name: str) -> None:
    """From 150 links on, kernels are as long as they get."""
    graphs = [graph_of(name, length) for length in (150, 300)]
    decisions = [partial(compiler.decided, graph, current_target()) for graph in graphs]
    (calls, depth), (more, deeper) = map(calls_and_depth, decisions)
    grown = len(graphs[1].nodes) / len(graphs[0].nodes)
    assert more <= 1.2 * grown * calls
    assert deeper <= depth + 2 and deeper < 120


# -- what leads to a value -------------------------------------------------------------------------------
class Case:
    """A kernel of random members: enough of fusion's state to ask what leads where."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        x = st.tensor(start())
        nodes = [node_of(x), *(node_of(x * k) for k in range(2))]
        for _ in range(14):
            nodes.append(node_of_sum(*rng.choices(nodes[-6:], k=2)))
        nodes = list(dict.fromkeys(nodes))
        self.members = [n for n in topological(nodes) if n in set(nodes[3:])]
        self.known = {n for n in nodes[:3] if rng.random() < 0.7}
        self.fixed = {m for m in self.members if rng.random() < 0.15}
        self.number = {n: k for k, n in enumerate(topological(nodes))}
        self.reads = {m: [Read(i) for i in m.inputs] for m in self.members}

    def ways(self) -> Ways:
        return Ways(self, self, self.known, lambda v: False, lambda m: m not in self.fixed)  # type: ignore[arg-type]

    def walked(self, value: Node, source: Node) -> set[Node] | None:
        """Return what leads from a source to a value, found by walking."""
        way: set[Node] = set()
        stack = [value]
        while stack:
            node = stack.pop()
            if node is source or node in way:
                continue
            if node in self.fixed or any(i not in self.members and i not in self.known for i in node.inputs):
                return None
            way.add(node)
            stack += [i for i in node.inputs if i in self.members]
        return way


class Read:
    def __init__(self, value: Node) -> None:
        self.value = value


def node_of_sum(a: Node, b: Node) -> Node:
    from stratal.graph.builder import Builder

    return Builder(()).add(a, b)


def test_what_leads_to_a_value_is_what_a_walk_finds() -> None:
    led = refused = 0
    for seed in range(60):
        case = Case(seed)
        for source in case.members:
            ways = case.ways()
            for value in case.members:
                if value is source:
                    continue
                walked = case.walked(value, source)
                assert ways.lead(source, value) == (walked is not None)
                if walked is not None:
                    assert ways.between(source, [value]) == walked
                led, refused = led + (walked is not None), refused + (walked is None)
    assert min(led, refused) > 500


# -- what waits ------------------------------------------------------------------------------------------
@pytest.fixture
def small_backlog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backlog, "MOST_OPS", 64)
    monkeypatch.setattr(backlog, "LEAST_OPS", 8)
    st.zeros(()).item()
    monkeypatch.setattr(backlog.HERE, "backlog", backlog.Backlog(), raising=False)
    yield


@pytest.mark.usefixtures("small_backlog")
@pytest.mark.parametrize("name", LINKS)
def test_a_loop_that_asks_for_nothing_is_computed_in_pieces_that_share_a_program(name: str) -> None:
    link = LINKS[name]
    before = program_cache.COMPILED[0]
    got = link(st.tensor(start()), 600)
    assert len(waiting_nodes(got)) < 400
    np.testing.assert_array_equal(got.numpy(), link(start(), 600))
    assert program_cache.COMPILED[0] - before <= 8


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("small_backlog")
def test_a_loop_that_writes_elsewhere_in_every_turn_is_computed_in_pieces_that_come_again() -> None:
    x, whole = st.zeros(100), np.zeros(100)
    other = x[...]  # a third that shows what is written: no write is done at once
    compiled = []
    for k in range(1200):
        x[k % 10] += 1
        v = x[3:5]
        v *= 0.5
        whole[k % 10] += 1
        whole[3:5] *= 0.5
        compiled.append(program_cache.COMPILED[0])
    assert backlog.HERE.backlog.piece_ops < 64
    assert compiled[-1] == compiled[600] < compiled[0] + 40
    np.testing.assert_array_equal(x.numpy(), whole.astype(np.float32))
    np.testing.assert_array_equal(other.numpy(), x.numpy())


def waiting_nodes(tensor: Any) -> list[Node]:
    from stratal.tensor.lazy.work_set import goal_of, is_leaf

    if tensor._storage is not None:
        return []
    order, leaves = program_cache.walk([goal_of(tensor)], is_leaf)
    return [n for n in order if n not in set(leaves)]


@pytest.mark.usefixtures("small_backlog")
def test_a_piece_leaves_the_errors_of_others_to_them() -> None:
    table, x = st.ones((3,)), st.tensor(start())
    wrong = table[st.tensor([7])] + 1
    np.testing.assert_array_equal(affine(x, 200).numpy(), affine(start(), 200))
    with pytest.raises(StratalError):
        wrong.numpy()


@pytest.mark.usefixtures("small_backlog")
def test_gradients_of_a_loop_that_was_computed_in_pieces_are_right() -> None:
    x = st.tensor(start()).requires_grad_(True)
    affine(x, 400).sum().backward()
    y = st.tensor(start()).requires_grad_(True)
    with st.eager():
        affine(y, 400).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-5)


def test_batches_whose_losses_are_only_summed_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_BYTES", 1 << 18)
    monkeypatch.setattr(backlog.HERE.backlog, "nbytes", 0)
    w = st.ones((80,))
    total, known, held = st.zeros(()), [], []
    for k in range(64):
        batch = st.tensor(np.full((64, 80), k, np.float32))  # 20 KB, more than what is used again
        known.append(weakref.ref(batch._storage))
        total = total + (batch @ w).mean()
        del batch
        held.append(sum(ref() is not None for ref in known))
    assert max(held) <= 34  # twice the bound at most
    assert total.item() == 80 * sum(range(64))
