"""Layers over graphs: every node combines what arrives along its edges.

Names, arguments, formulas and state dicts are those of PyTorch Geometric. Nodes are [N, F], edges [2, E].
"""

from __future__ import annotations

from typing import Any

from stratal import nn
from stratal.base.errors import ShapeError
from stratal.models.graphs.edges import (
    aggregate,
    checked_aggregation,
    checked_graph,
    softmax_of_arriving,
    weights_with_loops,
    with_loops,
)
from stratal.nn.parameter import empty_parameter
from stratal.tensor.creation import ones, zeros
from stratal.tensor.elementwise import cast, where
from stratal.tensor.functions import FUNCTIONS
from stratal.tensor.indexing import index_add, take
from stratal.tensor.tensor import Tensor

F = nn.functional


class GCNConv(nn.Module):
    """x' = D^-1/2 (A + I) D^-1/2 x W + b, D being the sums of the weights that arrive at each node.

    `improved` gives loops the weight 2 (in PyTorch Geometric only where edges have weights). A loop that is
    among the edges keeps its weight. See: Kipf and Welling 2017, equation 2. Shapes: x [N, in_channels],
    edge_index [2, E], edge_weight [E] -> [N, out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.improved = in_channels, out_channels, improved
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self.register_parameter("bias", empty_parameter((out_channels,)) if bias else None)
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        source, target = checked_graph("GCNConv", x, self.in_channels, edge_index)
        nodes = x.shape[0]
        if edge_weight is not None and edge_weight.shape != source.shape:
            raise ShapeError(
                "GCNConv: there is a weight for every edge", got=f"{edge_weight.type} for {source.type}"
            )
        weight = ones(source.shape[0], dtype=x.dtype) if edge_weight is None else cast(edge_weight, x.dtype)
        if self.normalize:
            if self.add_self_loops:
                own = 2.0 if self.improved else 1.0
                weight = weights_with_loops(source, target, weight, nodes, own)
                source, target, _ = with_loops(source, target, nodes)
            degree = index_add(zeros(nodes, dtype=x.dtype), 0, target, weight)
            scale = where(degree > 0, FUNCTIONS["maximum"](degree, 1e-38) ** -0.5, 0)
            weight = take(scale, source) * weight * take(scale, target)
        out = aggregate("sum", take(self.lin(x), source, axis=0) * weight.reshape((-1, 1)), target, nodes)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(nn.Module):
    """x' = aggregate(x of what arrives) W_l + b + x W_r, scaled to length 1 with `normalize`.

    `aggr` is "mean", "sum" or "max". See: Hamilton et al. 2017, algorithm 1.
    Shapes: x [N, in_channels], edge_index [2, E] -> [N, out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.normalize = in_channels, out_channels, normalize
        self.aggr = checked_aggregation("SAGEConv", aggr)
        self.lin_l = nn.Linear(in_channels, out_channels, bias)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False) if root_weight else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = checked_graph("SAGEConv", x, self.in_channels, edge_index)
        out = self.lin_l(aggregate(self.aggr, take(x, source, axis=0), target, x.shape[0]))
        if self.lin_r is not None:
            out = out + self.lin_r(x)
        return F.normalize(out, dim=-1) if self.normalize else out

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GATConv(nn.Module):
    """x' = sum of the x W that arrive, weighted by attention: softmax(leaky_relu(a_src x_j W + a_dst x_i W)).

    Heads stand side by side, or with `concat=False` their mean is taken. `dropout` leaves out edges in
    training. See: Velickovic et al. 2018, equations 3 to 6. Shapes: x [N, in_channels], edge_index [2, E] ->
    [N, heads * out_channels], or [N, out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops = add_self_loops
        self.att_src = empty_parameter((1, heads, out_channels))
        self.att_dst = empty_parameter((1, heads, out_channels))
        width = heads * out_channels if concat else out_channels
        self.register_parameter("bias", empty_parameter((width,)) if bias else None)
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = checked_graph("GATConv", x, self.in_channels, edge_index)
        nodes: Any = x.shape[0]
        h = self.lin(x).reshape((nodes, self.heads, self.out_channels))
        leaving, arriving = (h * self.att_src).sum(-1), (h * self.att_dst).sum(-1)
        counts = None
        if self.add_self_loops:
            source, target, counts = with_loops(source, target, nodes)
        scores = take(leaving, source, axis=0) + take(arriving, target, axis=0)
        scores = F.leaky_relu(scores, self.negative_slope)
        if counts is not None:
            scores = where(counts.reshape((-1, 1)), scores, -float("inf"))
        shares = F.dropout(softmax_of_arriving(scores, target, nodes), self.dropout, self.training)
        messages = take(h, source, axis=0) * shares.reshape((-1, self.heads, 1))
        out = aggregate("sum", messages.reshape((-1, self.heads * self.out_channels)), target, nodes)
        if not self.concat:
            out = out.reshape((nodes, self.heads, self.out_channels)).mean(1)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
