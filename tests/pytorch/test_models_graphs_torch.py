"""Networks over graphs against PyTorch Geometric's, the tree-LSTM against its equations in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_models_graphs import CLASSES, VOCAB, WIDTH, forest, graph  # noqa: E402
from torch_twins import assert_close, compare, load  # noqa: E402

from stratal import models  # noqa: E402

pytestmark = pytest.mark.torch

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("GCN", {}),
    ("GCN", {"act": None, "num_layers": 3}),
    ("GCN", {"normalize": False, "bias": False}),
    ("GCN", {"add_self_loops": False}),
    ("GraphSAGE", {}),
    ("GraphSAGE", {"aggr": "max", "act": "elu"}),
    ("GraphSAGE", {"aggr": "sum", "root_weight": False, "normalize": True}),
    ("GAT", {}),
    ("GAT", {"heads": 2, "act": "tanh"}),
    ("GAT", {"heads": 4, "concat": False, "add_self_loops": False, "negative_slope": 0.1}),
]


def twins(name: str, options: dict[str, Any], out: int | None = CLASSES) -> tuple[Any, Any]:
    geometric = pytest.importorskip("torch_geometric.nn.models")
    torch.manual_seed(0)
    sizes = {"in_channels": WIDTH, "hidden_channels": 8, "num_layers": 2, "out_channels": out, **options}
    return getattr(models, name)(**sizes), getattr(geometric, name)(**sizes)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_a_network_agrees_with_pytorch_geometrics(name: str, options: dict[str, Any]) -> None:
    x, edges = graph(9, 30)
    for out in (CLASSES, None):
        compare(*twins(name, options, out), x.astype(np.float64), edges)


@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}], ids=str)
def test_weights_of_edges_are_pytorch_geometrics(options: dict[str, Any]) -> None:
    x, edges = graph(9, 30)
    edges = np.unique(
        edges, axis=1
    )  # of loops at one node the last counts, but PyTorch's gradient is that of all
    weights = np.random.default_rng(2).random(edges.shape[1])
    compare(*twins("GCN", options), x.astype(np.float64), edges, weights)


class ChildSum(torch.nn.Module):
    """Equations 2 to 8 of Tai, Socher and Manning 2015, for one tree."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(VOCAB, 4)
        cell = self.childsumtreelstm = torch.nn.Module()
        cell.ioux, cell.iouh = torch.nn.Linear(4, 18), torch.nn.Linear(6, 18)
        cell.fx, cell.fh = torch.nn.Linear(4, 6), torch.nn.Linear(6, 6)
        self.out = torch.nn.Linear(6, CLASSES)

    def node(self, tree: Any) -> Any:
        cell, x = self.childsumtreelstm, self.emb(torch.tensor(tree.token))
        children = [self.node(child) for child in tree.children]
        total = sum((h for h, _ in children), torch.zeros(6, dtype=x.dtype))
        i, o, u = (cell.ioux(x) + cell.iouh(total)).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        for child_h, child_c in children:
            c = c + torch.sigmoid(cell.fx(x) + cell.fh(child_h)) * child_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, trees: Any) -> Any:
        return torch.stack([self.out(self.node(tree)[0]) for tree in trees])


def test_a_tree_lstm_follows_its_equations() -> None:
    torch.manual_seed(0)
    theirs, ours, trees = ChildSum().double(), models.TreeLSTM(VOCAB, 4, 6, CLASSES).double(), forest(5)
    load(ours, theirs)
    found, expected = ours(models.levels_of(trees)), theirs(trees)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(found.detach(), expected.detach().numpy())
    gradients = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, gradients[name], name)
