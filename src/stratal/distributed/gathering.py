"""Gathers of sharded parameters, put into the graph of a captured step before the optimizer updates.

    captured   h1 = f(x, w1)    loss = g(h1, w2)    d2 = .. loss ..    d1 = .. w2 ..
    before     gather w1, w2 | f | wait w1 .. g | wait w2            two buckets are whole at once
    again      gather w2 | .. d1 .. | scatter d2 | scatter d1        what backward reads is gathered anew

Every start is put behind the one before it, which is one order on all ranks. The gather of a bucket starts
when the layer before it begins (`shard_after`), and is waited for where it is used first; backward starts the
next one when it needs this one. A reduce-scatter starts as soon as a bucket's gradients are there, and ends
before the next one starts. So 3 M (N-1)/N bytes are sent at most: 1.5 times what `data` sends.

The new graph is built inputs before users, each start behind what has been built: no order can be a cycle.
See: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.distributed.records import ShardAfter, ShardStart, ShardWait
from stratal.graph.node import Const, Input, Node, make, rebuild, topological
from stratal.graph.op import Op

Where = tuple[SourceLine, ...]


class Bucket(NamedTuple):
    """Parameters that are gathered together."""

    own: Node  # this rank's shard, [n / ranks]
    inputs: tuple[Node, ...]  # stand for the parameters in the captured graph
    split: Callable[[Node], list[Node]]  # parameters out of [n]


class Sending(NamedTuple):
    """What collectives of a step have in common."""

    mesh_axis: str
    ranks: int
    algorithm: str
    program: str
    where: Where


class Chain:
    """Starts of collectives, each behind the one before it."""

    def __init__(self, sending: Sending) -> None:
        self.last: Node | None = None
        self._sending: Final = sending

    def start(self, kind: str, x: Node) -> Node:
        axis, ranks, algorithm, program, _ = self._sending
        op = ShardStart(axis, ranks, kind, "mean" if kind == "reduce_scatter" else "sum", algorithm, program)
        self.last = self._make(op, *([self.last] if self.last is not None else []), x)
        return self.last

    def wait(self, kind: str, token: Node, x: Node) -> Node:
        """Return what a start began, waited for behind all starts so far."""
        axis, ranks, algorithm, _, _ = self._sending
        op = ShardWait(axis, ranks, kind, "mean" if kind == "reduce_scatter" else "sum", algorithm)
        return self._make(op, *([self.last] if self.last is not None else []), token, x)

    def put_behind(self, x: Node) -> None:
        """Let no start come before a value is there."""
        if self.last is not None and isinstance(x.type, TensorType):
            self.last = self._make(ShardAfter(self._sending.mesh_axis, self._sending.ranks), self.last, x)

    def _make(self, op: Op, *inputs: Node) -> Node:
        return make(op, *inputs, where=self._sending.where)


class Gathering:
    """The graph of a step over gathered parameters, from the one that was captured.

    `losses` are what backward was called of: nodes they depend on are forward, all others backward.
    """

    def __init__(self, buckets: Sequence[Bucket], losses: Sequence[Node], sending: Sending) -> None:
        self.chain: Final = Chain(sending)
        self._buckets: Final = buckets
        self._losses: Final = losses
        self._bucket_of: Final = {x: k for k, bucket in enumerate(buckets) for x in bucket.inputs}
        self._order: Final = topological(losses)
        self._forward: Final = frozenset(self._order)
        self._weights: Final = self._computed_from_weights()
        self._new: Final[dict[Node, Node]] = {}  # of captured nodes
        self._again: Final[dict[Node, Node]] = {}  # of weights, for backward
        self._wanted: Final[deque[int]] = deque()  # buckets that backward reads, the first one first
        self._under_way: Final[dict[int, Node]] = {}  # of them, those that are being gathered: their tokens

    def _computed_from_weights(self) -> dict[Node, frozenset[int]]:
        """Return what is computed of parameters and constants alone, such as transposes, with its buckets."""
        found = {x: frozenset((k,)) for x, k in self._bucket_of.items()}
        for node in self._order:
            inputs = [x for x in node.inputs if not isinstance(x.op, Const)]
            if inputs and not node.op.effects and all(x in found for x in inputs):
                found[node] = frozenset[int]().union(*(found[x] for x in inputs))
        return found

    # -- forward ---------------------------------------------------------------------------------------------
    def gather_forward(self) -> None:
        """Gather every bucket before the first node that reads it, while the node before that runs."""
        under_way: tuple[int, Node] | None = None
        for bucket, activation in self._first_uses():
            token = self.chain.start("all_gather", self._buckets[bucket].own)
            if under_way is not None:
                self._finish(*under_way, self._new)
            under_way = bucket, token
            if activation is not None:
                self.chain.put_behind(self.new(activation))
        if under_way is not None:
            self._finish(*under_way, self._new)

    def _first_uses(self) -> list[tuple[int, Node | None]]:
        """Return buckets in the order of their first use, each with what else that reads."""
        found: dict[int, Node | None] = {}
        for node in self._order:
            if node in self._weights:
                continue
            others = [
                x for x in node.inputs if x not in self._weights and not isinstance(x.op, (Input, Const))
            ]
            for x in node.inputs:
                for bucket in sorted(self._weights.get(x, ())):
                    found.setdefault(bucket, others[-1] if others else None)
        return list(found.items())

    def _finish(self, bucket: int, token: Node, into: dict[Node, Node]) -> None:
        own, inputs, split = self._buckets[bucket]
        into.update(zip(inputs, split(self.chain.wait("all_gather", token, own)), strict=True))

    def new(self, root: Node) -> Node:
        """Return a node of the captured graph over gathered parameters."""
        for node in topological([root], stop=self._new.__contains__):
            if node in self._new:
                continue
            if node in self._bucket_of:
                bucket = self._bucket_of[node]
                self._finish(bucket, self.chain.start("all_gather", self._buckets[bucket].own), self._new)
            else:
                self._new[node] = rebuild(node, [self._new[x] for x in node.inputs])
        return self._new[root]

    # -- backward --------------------------------------------------------------------------------------------
    def scatter(self, flats: Sequence[Node]) -> list[Node]:
        """Return this rank's parts of the means of gradients, of vectors in the order in which they leave."""
        self._wanted.extend(dict.fromkeys(b for n in topological(flats) for b in self._buckets_again(n)))
        for loss in self._losses if self._wanted else ():
            self.chain.put_behind(self.new(loss))
        self._start_next()
        parts: list[Node] = []
        under_way: tuple[Node, Node] | None = None
        for flat in flats:
            whole = self._of_backward(flat)
            if under_way is not None:
                parts.append(self.chain.wait("reduce_scatter", *under_way))
                self.chain.put_behind(parts[-1])
            under_way = self.chain.start("reduce_scatter", whole), whole
        if under_way is not None:
            parts.append(self.chain.wait("reduce_scatter", *under_way))
        return parts

    def _buckets_again(self, node: Node) -> list[int]:
        """Return the buckets that a node of backward reads; none for nodes of forward."""
        if node in self._forward or node in self._weights:
            return []
        return sorted({b for x in node.inputs for b in self._weights.get(x, ())})

    def _start_next(self) -> None:
        if self._wanted:
            bucket = self._wanted.popleft()
            self._under_way[bucket] = self.chain.start("all_gather", self._buckets[bucket].own)

    def _of_backward(self, root: Node) -> Node:
        """Return a node of backward over parameters that are gathered again, the next ones meanwhile."""
        for node in topological([root], stop=self._new.__contains__):
            if node in self._new:
                continue
            if node in self._forward or node in self._weights:
                self.new(node)
                continue
            for bucket in self._buckets_again(node):
                if bucket in self._under_way:
                    token = self._under_way.pop(bucket)
                    self._start_next()
                    self._finish(bucket, token, self._again)
            self._new[node] = rebuild(node, [self._weight_again(x) for x in node.inputs])
        return self._new[root]

    def _weight_again(self, x: Node) -> Node:
        if x not in self._weights:
            return self._new[x]
        for node in topological([x], stop=self._again.__contains__):
            if node not in self._again:
                self._again[node] = rebuild(node, [self._again[i] for i in node.inputs])
        return self._again[x]
