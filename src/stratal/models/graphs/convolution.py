"""Layers over graphs: every node combines what arrives along its edges.

Names, arguments, formulas and state dicts are those of PyTorch Geometric. Nodes are [N, F], edges [2, E],
where each comes from and where it goes.
"""

from __future__ import annotations

from typing import Any

from stratal import nn
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.parameter import empty_parameter
from stratal.tensor.api.functions import FUNCTIONS
from stratal.tensor.composites.writing import scatter_reduce
from stratal.tensor.functions.creation import arange, full, ones, zeros
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.indexing import index_add, take
from stratal.tensor.functions.shapes import broadcast_to, concat
from stratal.tensor.tensor import Tensor

F = nn.functional

AGGREGATIONS = ("mean", "sum", "max")


def checked_graph(name: str, x: Tensor, width: int, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return sources and targets. Raises: ShapeError unless x is [nodes, width] and edges integers [2, E]."""
    if x.ndim != 2 or int(x.shape[1]) != width:
        raise ShapeError(f"{name}: takes features [nodes, {width}]", got=f"shape {list(x.shape)}")
    if edge_index.ndim != 2 or int(edge_index.shape[0]) != 2 or not edge_index.dtype.is_integer:
        raise ShapeError(f"{name}: takes edges as integers [2, E]", got=str(edge_index.type))
    return edge_index[0], edge_index[1]


def with_loops(source: Tensor, target: Tensor, nodes: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges with one from each node to itself behind them, and which of all count, bool [E + nodes].

    Edges that were such loops do not count any more.
    """
    own = arange(nodes)
    counts = concat([source != target, ones(nodes, dtype="bool")])
    return concat([source, own]), concat([target, own]), counts


def weights_with_loops(source: Tensor, target: Tensor, weight: Tensor, nodes: Any, own: float) -> Tensor:
    """Return weights for the edges of `with_loops`: a loop has the weight it had (the last), or `own`."""
    loops = source == target
    places = where(loops, source, nodes)  # edges that are none write behind the end
    given = full((nodes + 1,), own, dtype=weight.dtype).at[places].set(weight)
    return concat([where(loops, 0, weight), given[:nodes]])


def aggregate(kind: str, messages: Tensor, target: Tensor, nodes: Any) -> Tensor:
    """Return for each node the mean, sum or maximum of the messages [E, F] that arrive, 0 where none do."""
    start = zeros((nodes, messages.shape[1]), dtype=messages.dtype)
    if kind == "max":
        where_to = broadcast_to(target.reshape((-1, 1)), messages.shape)
        return scatter_reduce(start, 0, where_to, messages, "amax", include_self=False)
    total = index_add(start, 0, target, messages)
    return total if kind == "sum" else total / FUNCTIONS["maximum"](degrees(target, nodes, total.dtype), 1)


def degrees(target: Tensor, nodes: Any, dtype: Any) -> Tensor:
    """Return how many edges arrive at each node, [nodes, 1]."""
    count = index_add(zeros(nodes, dtype=dtype), 0, target, ones(target.shape[0], dtype=dtype))
    return count.reshape((-1, 1))


def softmax_of_arriving(scores: Tensor, target: Tensor, nodes: Any) -> Tensor:
    """Return exp(score) over its sum, among the edges [E, H] that arrive at the same node."""
    where_to = broadcast_to(target.reshape((-1, 1)), scores.shape)
    floor = zeros((nodes, scores.shape[1]), dtype=scores.dtype)
    highest = scatter_reduce(floor, 0, where_to, scores.detach(), "amax", include_self=False)
    powers = FUNCTIONS["exp"](scores - take(highest, target, axis=0))
    return powers / take(index_add(floor, 0, target, powers), target, axis=0)


def checked_aggregation(name: str, kind: str) -> str:
    """Return "mean", "sum" or "max". Raises: AttributeValueError for anything else."""
    known = {"add": "sum"}.get(kind, kind)
    if known not in AGGREGATIONS:
        raise AttributeValueError(f"{name}: aggr is one of " + ", ".join(AGGREGATIONS), got=repr(kind))
    return known


class GCNConv(nn.Module):
    """x' = D^-1/2 (A + I) D^-1/2 x W + b, D being the sums of the weights that arrive at each node.

    `improved` gives loops the weight 2 (in PyTorch Geometric only where edges have weights). A loop that is
    among the edges keeps its weight. See: Kipf and Welling 2017, equation 2. Shapes: x [N, in_channels],
    edge_index [2, E], edge_weight [E] -> [N, out_channels].
    """

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, add_self_loops: bool = True,
        normalize: bool = True, bias: bool = True
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
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False,
        root_weight: bool = True, bias: bool = True
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
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True, bias: bool = True
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
