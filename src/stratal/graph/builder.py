"""The builder handed to derivative rules, rewrites and composites: `b.sum(x, axes=(0,))` by registry name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import DType
from stratal.base.errors import VerifyError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import Node, constant, items, make, take_item
from stratal.graph.op import REGISTRY, Op

COMPOSITES: dict[str, Callable[..., Any]] = {}
"""Named functions of primitives, `f(b, *nodes, **attributes)`, registered by `@composite`."""

_PLAIN: dict[str, Op] = {}  # records without attributes need only one instance


def composite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function of the builder under its own name, so that rules reach it as `b.name(...)`."""
    COMPOSITES[function.__name__] = function
    return function


class Builder:
    """Makes nodes by op name. Every node gets the provenance `where`.

    `vjp_graph` and `jvp_graph` differentiate a region (of control flow), `batch_graph` gives it an axis in
    front; autodiff and batching supply them, since records stand below both.
    """

    def __init__(
        self,
        where: tuple[SourceLine, ...] = (),
        vjp_graph: Callable[[Graph, Sequence[bool]], Graph] | None = None,
        jvp_graph: Callable[[Graph, Sequence[bool]], Graph] | None = None,
        needs: tuple[bool, ...] = (),
        batch_graph: Callable[..., Graph] | None = None,
    ) -> None:
        self.where = where
        self._vjp_graph = vjp_graph
        self._jvp_graph = jvp_graph
        self._needs = needs
        self._batch_graph = batch_graph

    def at(self, where: tuple[SourceLine, ...], needs: tuple[bool, ...] = ()) -> Builder:
        """Return a builder that gives its nodes another provenance."""
        return Builder(where, self._vjp_graph, self._jvp_graph, needs, self._batch_graph)

    def needed(self, index: int) -> bool:
        """Return whether the vjp rule being run must give a cotangent for input number `index`.

        Others are dropped.
        """
        return not self._needs or self._needs[index]

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name in COMPOSITES:
            function = COMPOSITES[name]
            return lambda *args, **attributes: function(self, *args, **attributes)
        if name not in REGISTRY:
            raise AttributeError(f"no op or composite is called {name!r}")
        return lambda *nodes, **attributes: self.op(name, *nodes, **attributes)

    def op(self, name: str, *nodes: Node, **attributes: Any) -> Node:
        """Return the node of the op called `name`."""
        if attributes:
            made = REGISTRY[name](**attributes)
        else:
            made = _PLAIN.get(name) or _PLAIN.setdefault(name, REGISTRY[name]())
        return make(made, *nodes, where=self.where)

    def const(self, value: object, dtype: DType | None = None) -> Node:
        """Return a constant; of `dtype` where given."""
        array = np.asarray(value)
        if dtype is not None:
            with np.errstate(over="ignore"):  # what is too large is infinite
                array = array.astype(dtype.np)
        return constant(array, self.where)

    def full(self, type_: TensorType, value: object) -> Node:
        """Return a tensor of `type_` filled with a scalar: a broadcast constant, never a stored array."""
        scalar = self.const(value, type_.dtype)
        return scalar if type_.ndim == 0 else self.op("broadcast", scalar, shape=type_.shape, axes=())

    def like(self, node: Node, value: object) -> Node:
        """Return a tensor of the node's type filled with a scalar."""
        return self.full(node.aval, value)

    def items(self, node: Node) -> list[Node]:
        """Return the results of an op with several."""
        return items(node)

    def item(self, node: Node, index: int) -> Node:
        return take_item(node, index)

    def vjp_graph(self, graph: Graph, wrt: Sequence[bool]) -> Graph:
        """Return the graph (inputs..., cotangents of outputs...) -> cotangents of the inputs in `wrt`."""
        if self._vjp_graph is None:
            raise VerifyError("builder: a derivative of a region was asked outside autodiff")
        return self._vjp_graph(graph, wrt)

    def jvp_graph(self, graph: Graph, wrt: Sequence[bool]) -> Graph:
        """Return the graph (inputs..., tangents of inputs in `wrt`...) -> (outputs..., their tangents)."""
        if self._jvp_graph is None:
            raise VerifyError("builder: a derivative of a region was asked outside autodiff")
        return self._jvp_graph(graph, wrt)

    def batch_graph(
        self, graph: Graph, size: Dim, mapped: Sequence[bool], forced: Sequence[bool] = ()
    ) -> Graph:
        """Return the graph over a new axis of `size`, which the inputs in `mapped` have in front.

        Outputs have it where they depend on these inputs, and where `forced`.
        """
        if self._batch_graph is None:
            raise VerifyError("builder: the batch of a region was asked outside vmap")
        return self._batch_graph(graph, size, mapped, forced)
