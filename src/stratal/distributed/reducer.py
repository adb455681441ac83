"""Hook of an optimizer in a parallel step: its parameters' gradients become their means over ranks.

    grads, the last layer's first -> buckets, end to end -> one all-reduce each -> their means, as grads
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from stratal.base.errors import CallOrderError
from stratal.distributed.collectives import broadcast, check_same
from stratal.distributed.links import bucket_bytes
from stratal.distributed.overlapped import all_reduce_in_buckets
from stratal.distributed.records import ShardWait
from stratal.distributed.world import world
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node, graph_input, topological
from stratal.nn.utils.gradients import Gradients
from stratal.optim.optimizer import Optimizer
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.state import MODE, no_grad


class Sending(Protocol):
    """What strategies say of messages."""

    @property
    def bucket_bytes(self) -> int:
        """How many bytes of gradients leave at once; 0: what the model of links gives."""

    @property
    def algorithm(self) -> str:
        """That of collectives."""


class Reducer:
    """Hook of an optimizer, before it steps: makes gradients their means over ranks."""

    def __init__(self, strategy: Sending) -> None:
        self.strategy: Final = strategy
        self._means: dict[int, Node] | None = None  # once reduced, before the optimizer steps

    def begin(self) -> None:
        """Note that a step begins: one that raised may have left gradients reduced."""
        self._means = None

    def end(self) -> None:
        """Note that a step has returned."""

    def failed(self, error: BaseException) -> None:
        """Note that a step, or its `begin` or `end`, has raised; may raise another error in its place."""

    @property
    def was_reduced(self) -> bool:
        """Whether gradients have been averaged in this step."""
        return self._means is not None

    def reduced(self, optimizer: Optimizer) -> bool:
        """Return whether gradients are the means over ranks that `reduce` made, and nothing was added since.

        In a capture that is seen. Outside of one it is not, so there they are reduced once more: the mean of
        equal ones is the same.
        """
        return MODE.trace is not None and self._means == self._nodes(optimizer)

    def shared_gradients(self, optimizer: Optimizer, params: Sequence[Tensor]) -> Gradients | None:
        """Return this rank's share of the means of gradients that are whole on no rank; else None."""
        return None

    def with_shared_gradient(self) -> Sequence[Tensor]:
        """Return the parameters of which this rank has its share of the gradients, and no more."""
        return ()

    def note(self, optimizer: Optimizer) -> None:
        """Note that gradients are alike on all ranks."""
        self._means = self._nodes(optimizer)

    def _nodes(self, optimizer: Optimizer) -> dict[int, Node]:
        return {id(p): node_of(gradient_of(p)) for p in _with_gradient(optimizer)}

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.before(optimizer)
        self._means = None

    def before(self, optimizer: Optimizer) -> None:
        """Reduce gradients, unless `synchronize` has, or what reads them."""
        if not self.reduced(optimizer):
            self.reduce(optimizer)

    def reduce(self, optimizer: Optimizer) -> None:
        """Put means over ranks in place of gradients."""
        within = world()
        limit = self.strategy.bucket_bytes or bucket_bytes(within.size, within.link)
        params = _with_gradient(optimizer)
        with no_grad():
            filled = list(buckets(params[::-1], limit))
            flats = [concat([gradient_of(p).reshape((-1,)) for p in bucket]) for bucket in filled]
            means = all_reduce_in_buckets(flats, "mean", self.strategy.algorithm, program_digest(flats))
            for bucket, mean in zip(filled, means, strict=True):
                for p, piece in pieces(bucket, mean):
                    p.grad = piece
        self.note(optimizer)


def _with_gradient(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def check_gradients(optimizer: Optimizer, params: Sequence[Tensor], name: str) -> None:
    """Refuse steps of other parameters than these. Raises: CallOrderError."""
    known, found = set(params), set(_with_gradient(optimizer))
    if known != found:
        some = sorted(str(p.type) for p in known ^ found)
        raise CallOrderError(
            f"{name}: parameters have a gradient in every step, or in none",
            got=f"{'no' if known - found else 'a new'} gradient of {', '.join(some)}",
            hint="requires_grad_(False) before parallel() freezes one; data() takes any",
        )  # fmt: skip


def pieces(params: Sequence[Tensor], flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with what stands for it in a vector of all, end to end."""
    start = 0
    for p in params:
        yield p, flat[start : start + p.numel()].reshape(p.shape)
        start += p.numel()


def buckets(params: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Yield parameters in order, together as long as their gradients have one dtype and fit into `limit`
    bytes; a larger one has a bucket of its own.
    """
    bucket: list[Tensor] = []
    filled = 0
    for p in params:
        if bucket and (p.dtype is not bucket[0].dtype or filled + p.nbytes > limit):
            yield bucket
            bucket, filled = [], 0
        bucket.append(p)
        filled += p.nbytes
    if bucket:
        yield bucket


def gradient_of(p: Tensor) -> Tensor:
    assert p.grad is not None  # those without are in no bucket
    return p.grad


def program_digest(flats: Sequence[Tensor]) -> str:
    """Return the digest of what computes gradients, where it is being captured: ranks must have it alike."""
    if MODE.trace is None:
        return ""  # what is computed at once differs from step to step: shapes are compared alone
    roots = [node_of(x) for x in flats]
    # What another optimizer's step gathered was computed by each rank from shards of its own.
    nodes = topological(roots)
    gathered = [n for n in nodes if isinstance(n.op, ShardWait) and n.op.kind == "all_gather"]
    inputs = {n: graph_input("gathered", n.aval) for n in gathered}
    roots = substitute(roots, inputs)
    leaves = [n for n in topological(roots) if isinstance(n.op, Input)]
    return Graph(leaves, roots).digest[:12]


def reducer_of(optimizer: Optimizer) -> Reducer | None:
    hooks = (hook.function for hook in optimizer._hooks["before step"].values())
    return next((h for h in hooks if isinstance(h, Reducer)), None)


def begin_alike(optimizer: Optimizer) -> None:
    """Give every rank rank 0's parameters. Raises: ProgramMismatchError where they have other types."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    check_same(", ".join(str(p.type) for p in params), "parameters")
    with no_grad():
        for p in params:
            p.copy_(broadcast(p))
