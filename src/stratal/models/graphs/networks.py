"""Stacks of layers over graphs, with a function and dropout between: GCN, GraphSAGE, GAT.

Names, arguments and state dicts are those of `torch_geometric.nn.models`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.graphs.convolution import GATConv, GCNConv, SAGEConv
from stratal.nn.depth import repeated
from stratal.tensor.tensor import Tensor

F = nn.functional

_FUNCTIONS = {"relu": F.relu, "elu": F.elu, "leaky_relu": F.leaky_relu, "tanh": F.tanh, "gelu": F.gelu}


class _Stack(nn.Module):
    """`num_layers` layers; all but the last are followed by `act` and dropout.

    Shapes: x [N, in_channels], edge_index [2, E] -> [N, out_channels], or [N, hidden_channels] without.
    `options` are those of the layer.
    """

    layer: ClassVar[type[nn.Module]]

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int | None = None,
        dropout: float = 0.0, act: str | None = "relu", **options: Any
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if num_layers < 1:
            raise AttributeValueError(f"{name}: num_layers is at least 1", got=str(num_layers))
        if act is not None and act not in _FUNCTIONS:
            known = ", ".join(_FUNCTIONS)
            raise AttributeValueError(f"{name}: act is None or one of {known}", got=repr(act))
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.num_layers, self.dropout, self.act = num_layers, dropout, act
        self.out_channels = hidden_channels if out_channels is None else out_channels
        last = num_layers - 1

        def layer(k: int) -> nn.Module:
            n_in = hidden_channels if k else in_channels
            n_out = self.out_channels if k == last else hidden_channels
            return self._layer(n_in, n_out, k == last and out_channels is not None, options)

        self.convs = nn.ModuleList(repeated(name, num_layers, layer))

    def _layer(self, n_in: int, n_out: int, last: bool, options: dict[str, Any]) -> nn.Module:
        """Return a layer; `last` is the one that leads to `out_channels`."""
        return self.layer(n_in, n_out, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index)

    def run(self, x: Tensor, edge_index: Tensor, *weights: Tensor) -> Tensor:
        """Return what the last layer gives; `weights` are further arguments of the layers."""
        for k, layer in enumerate(self.convs):
            x = layer(x, edge_index, *weights)
            if k < self.num_layers - 1:
                x = x if self.act is None else _FUNCTIONS[self.act](x)
                x = F.dropout(x, self.dropout, self.training)
        return x


class GCN(_Stack):
    """Graph convolutions; `edge_weight` [E] weights the edges. See: Kipf and Welling 2017."""

    layer = GCNConv

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.run(x, edge_index, *(() if edge_weight is None else (edge_weight,)))


class GraphSAGE(_Stack):
    """Layers that add to each node what its neighbours are on average. See: Hamilton et al. 2017."""

    layer = SAGEConv


class GAT(_Stack):
    """Layers that attend to neighbours, in `heads` whose results stand side by side. See: Velickovic et al.
    2018.
    """

    def _layer(self, n_in: int, n_out: int, last: bool, options: dict[str, Any]) -> nn.Module:
        heads = options.get("heads", 1)
        concat = options.get("concat", True) and not last  # the mean of the heads leads to out_channels
        if concat and n_out % heads:
            raise AttributeValueError("GAT: heads divide the channels", got=f"{heads} for {n_out}")
        options = {"dropout": self.dropout, **options, "concat": concat}
        return GATConv(n_in, n_out // heads if concat else n_out, **options)
