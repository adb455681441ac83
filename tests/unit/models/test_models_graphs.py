"""Networks over graphs and trees: gradients, 32 samples learnt by heart, eager and captured runs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from model_checks import check_gradients, overfit

import stratal as st
from stratal import models, nn, optim

F = nn.functional
WIDTH, CLASSES, VOCAB = 5, 3, 9

NETWORKS: dict[str, Callable[[], Any]] = {
    "gcn": lambda: models.GCN(WIDTH, 8, 2, CLASSES),
    "graphsage": lambda: models.GraphSAGE(WIDTH, 8, 2, CLASSES),
    "graphsage, maxima": lambda: models.GraphSAGE(WIDTH, 8, 2, CLASSES, act="tanh", aggr="max"),
    "gat": lambda: models.GAT(WIDTH, 8, 2, CLASSES, act="elu", heads=2),
}


def graph(nodes: int, edges: int, seed: int = 0) -> tuple[Any, Any]:
    """Return features and edges; some are loops or come twice, and the last node has none."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((nodes, WIDTH)).astype(np.float32)
    return x, rng.integers(0, max(nodes - 1, 1), (2, edges))


def tree(rng: np.random.Generator, size: int) -> Any:
    """Return a tree of a random shape with `size` nodes, none with more than three children."""
    token = int(rng.integers(0, VOCAB))
    if size == 1:
        return models.Tree(token)
    count = int(rng.integers(1, min(4, size)))
    sizes = 1 + rng.multinomial(size - 1 - count, np.ones(count) / count)
    return models.Tree(token, tuple(tree(rng, int(n)) for n in sizes))


def forest(count: int, seed: int = 0, most: int = 15) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [tree(rng, int(rng.integers(1, most))) for _ in range(count)]


def labels(count: int) -> Any:
    return np.random.default_rng(1).integers(0, CLASSES, count)


def node_loss(model: Any, x: Any, edges: Any, y: Any) -> Any:
    return F.cross_entropy(model(x, edges), y)


def root_loss(model: Any, tokens: Any, owners: Any, roots: Any, y: Any) -> Any:
    return F.cross_entropy(model(models.Levels(tokens, owners, roots)), y)


@pytest.mark.quick
@pytest.mark.row("A11")
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_a_network_are_those_of_its_loss(name: str) -> None:
    st.manual_seed(0)
    x, edges = graph(7, 20)
    check_gradients(NETWORKS[name](), node_loss, x.astype(np.float64), edges, labels(7))


@pytest.mark.sampled(4)
@pytest.mark.row("A11")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_learns_32_nodes_by_heart(name: str) -> None:
    st.manual_seed(0)
    model = NETWORKS[name]()
    x, _ = graph(32, 1)
    edges = np.stack([np.arange(32), (np.arange(32) + 1) % 32])  # each node hears of another one
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    first, last = overfit(model, optimizer, node_loss, 2 * x, edges, labels(32), steps=400)
    assert last < 0.2 < first


@pytest.mark.row("A11")
def test_gradients_of_a_tree_lstm_are_those_of_its_loss() -> None:
    st.manual_seed(0)
    model = models.TreeLSTM(VOCAB, 4, 5, CLASSES)
    check_gradients(model, root_loss, *models.levels_of(forest(4)), labels(4))


@pytest.mark.sampled(4)
@pytest.mark.row("A11")
def test_a_tree_lstm_learns_32_trees_by_heart() -> None:
    st.manual_seed(0)
    model = models.TreeLSTM(VOCAB, 8, 16, CLASSES)
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    trees = [t for t in forest(60, most=12) if t.children][:32]  # single tokens come twice, with two labels
    first, last = overfit(model, optimizer, root_loss, *models.levels_of(trees), labels(32), steps=120)
    assert last < 0.05 < first


@pytest.mark.sampled(4)
@pytest.mark.row("A13")
def test_a_tree_lstm_runs_eagerly_by_recursion_and_captured_by_levels() -> None:
    st.manual_seed(0)
    model = models.TreeLSTM(VOCAB, 4, 6, CLASSES)
    captured = st.compile(model)
    with st.no_grad():
        for seed, count in enumerate((2, 5, 1, 4, 3)):
            trees = forest(count, seed)
            with st.eager():
                one_by_one = np.stack([np.asarray(model(t)) for t in trees])
            np.testing.assert_allclose(captured(models.levels_of(trees)), one_by_one, 1e-5, 1e-6)
    assert captured.captures <= 3


@pytest.mark.sampled(4)
@pytest.mark.row("A13")
def test_training_on_trees_is_the_same_eagerly_and_captured() -> None:
    def train(run: Callable[[Any, Any, Any], Any]) -> tuple[list[float], Any]:
        st.manual_seed(0)
        model = models.TreeLSTM(VOCAB, 4, 6, CLASSES)
        optimizer = optim.SGD(model.parameters(), lr=0.5)
        losses = [float(run(model, optimizer, forest(3, seed, 9))) for seed in range(3)]
        return losses, model.state_dict()

    def update(optimizer: Any, loss: Any) -> Any:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def recursive(model: Any, optimizer: Any, trees: Any) -> Any:
        with st.eager():
            logits = st.stack([model(t) for t in trees])
            return update(optimizer, F.cross_entropy(logits, st.tensor(labels(3))))

    step = st.compile(lambda model, optimizer, trees, y: update(optimizer, F.cross_entropy(model(trees), y)))

    def levelled(model: Any, optimizer: Any, trees: Any) -> Any:
        return step(model, optimizer, models.levels_of(trees), st.tensor(labels(3)))

    (eager, eager_state), (captured, state) = train(recursive), train(levelled)
    np.testing.assert_allclose(captured, eager, 1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(value, eager_state[name], 1e-4, 1e-6, err_msg=name)


@pytest.mark.sampled(7)
@pytest.mark.row("A13")
@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_of_different_sizes_run_eagerly_and_captured(name: str) -> None:
    st.manual_seed(0)
    model = NETWORKS[name]()
    captured = st.compile(lambda x, edges: model(x, edges).mean(0))
    with st.no_grad():
        for nodes, edges in ((9, 25), (12, 40), (5, 8), (20, 70), (3, 3), (17, 51), (1, 1), (14, 60)):
            data = [st.tensor(a) for a in graph(nodes, edges, nodes)]
            with st.eager():
                eager = np.asarray(model(*data).mean(0))
            np.testing.assert_allclose(captured(*data), eager, 1e-5, 1e-6)
    assert captured.captures <= 5


@pytest.mark.quick
def test_a_node_nothing_arrives_at_keeps_to_itself() -> None:
    x, edges = st.tensor(np.ones((3, WIDTH), np.float32)), st.zeros((2, 0), dtype="int64")
    for build in NETWORKS.values():
        model = build()
        alone = model(x[:1], edges).detach()
        assert np.isfinite(np.asarray(alone)).all()
        np.testing.assert_allclose(model(x, edges).detach(), np.repeat(np.asarray(alone), 3, 0), 1e-6)


x, edges = (st.tensor(a) for a in graph(4, 6))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "other features": (lambda: models.GCN(3, 4, 2)(x, edges), r"\[nodes, 3\]"),
    "edges as rows": (lambda: models.GAT(WIDTH, 4, 2)(x, edges.T), r"integers \[2, E\]"),
    "edges as floats": (lambda: models.GraphSAGE(WIDTH, 4, 2)(x, edges.float()), r"integers \[2, E\]"),
    "weights of other edges": (lambda: models.GCN(WIDTH, 4, 2)(x, edges, st.ones(5)), "for every edge"),
    "an unknown aggregation": (lambda: models.SAGEConv(3, 4, aggr="median"), "aggr is one of"),
    "an unknown function": (lambda: models.GCN(3, 4, 2, act="swoosh"), "act is None or one of"),
    "no layer": (lambda: models.GCN(3, 4, 0), "at least 1"),
    "heads that do not divide": (lambda: models.GAT(3, 5, 2, heads=2), "heads divide"),
    "no tree": (lambda: models.levels_of([]), "at least one tree"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    run, rule = REFUSED[name]
    with pytest.raises(st.StratalError, match=rule):
        run()


def test_an_edge_to_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(st.StratalError, match="index"):
        np.asarray(models.GCN(WIDTH, 4, 1)(x, st.tensor([[0], [4]])).detach())
