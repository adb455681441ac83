"""Data parallel with the same bits at any number of ranks: virtual shards, summed over a tree of fixed shape.

    batch            | v0 | v1 | v2 | v3 | v4 | v5 |      virtual shards, whatever the number of ranks
    on 2 ranks       |   rank 0     |   rank 1     |
    on 3 ranks       | rank 0  | rank 1  | rank 2  |
    gradients        (v0 + (v1 + v2)) + (v3 + (v4 + v5))  for any of them, then / 6, one update

A rank runs the step once per shard of its part, with an optimizer that notes gradients instead of updating.
Random numbers come from a key of the shard, not of the rank. Each rank adds up the nodes of the tree that lie
in its part, sends slices of them to the rank that adds those up, and all gather the sum.

Gradients before and after a step are those of one process on the whole batch: each shard begins with what the
step began with; where a step leaves the gradients it stepped with, they become the means over all shards.

In an elastic step every rank is given the whole batch, of which it takes its shards' rows; ranks agree that
all have the gradients before any of them updates, see `elastic.py`.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from stratal.base import tree
from stratal.base.errors import (
    AttributeValueError,
    CallOrderError,
    CaptureError,
    DTypeError,
    ShapeError,
)
from stratal.distributed.algorithms import bounds
from stratal.distributed.collectives import all_gather
from stratal.distributed.elastic import surviving
from stratal.distributed.errors import ProgramMismatchError
from stratal.distributed.reducer import (
    Reducer,
    Sending,
    buckets,
    check_gradients,
    gradient_of,
    pieces,
    program_digest,
)
from stratal.distributed.tree_sums import Node, nodes_of, total, tree_all_reduce
from stratal.distributed.world import world
from stratal.optim.optimizer import Optimizer
from stratal.tensor.functions.creation import full_like, zeros
from stratal.tensor.functions.random import default_generator
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE, no_grad

Array = np.ndarray[Any, Any]
_STRIDE: Final = 0x9E3779B97F4A7C15  # between the keys of steps, as between a generator's draws


class _Means(Enum):
    """Stands for the gradient with which the optimizer stepped, where a step leaves that."""

    MEANS = "means"


Left = Array | None | _Means


class OfShard(NamedTuple):
    """What the step of one shard made."""

    noted: list[Array]  # gradients end to end, of each dtype
    left: list[Left]  # as gradients of each parameter, behind the step
    result: Any


class Noting(Reducer):
    """Hook of an optimizer that notes gradients where it would step, shard by shard."""

    def __init__(self, strategy: Sending, optimizer: Optimizer) -> None:
        super().__init__(strategy)
        self.optimizer: Final = optimizer
        self.params: Final = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        self.noted: Final = [  # gradients end to end, of each dtype
            (bucket, zeros((sum(p.numel() for p in bucket),), dtype=bucket[0].dtype))
            for bucket in buckets(self.params, 1 << 62)
        ]
        self.count: Final = tensor(np.int64(0))  # of the steps noted
        self.program = ""  # a digest of what was captured last
        self._updating = False
        self._nothing: Final[list[list[Tensor]]] = [[] for _ in optimizer.param_groups]

    def before(self, optimizer: Optimizer) -> None:
        if self._updating:
            return
        check_gradients(optimizer, self.params, "data(virtual_shards=...)")
        with no_grad():
            flats = [concat([gradient_of(p).reshape((-1,)) for p in bucket]) for bucket, _ in self.noted]
            self.program = program_digest(flats)
            for (_, noted), flat in zip(self.noted, flats, strict=True):
                noted.copy_(flat)
            self.count.copy_(self.count + 1)
            for p in self.params:  # one shard's would be taken for those of the batch
                p.grad = full_like(p, float("nan"))

    def reduce(self, optimizer: Optimizer) -> None:
        raise CallOrderError(
            "data(virtual_shards=...): gradients over the whole batch are known when the step has returned",
            got="clipping, a loss scaler or synchronize()", hint="data() without virtual_shards takes them",
        )  # fmt: skip

    def run(self, shard: Callable[[], Any], start: Sequence[Array | None]) -> OfShard:
        """Take the step of one shard, which begins with gradients `start`. Raises: CallOrderError."""
        self._give(start)
        steps, rates = int(self.count), _hyper_parameters(self.optimizer)
        if len([h for k in ("before step", "after step") for h in self.optimizer._hooks[k]]) != 1:
            raise CallOrderError(
                "data(virtual_shards=...): hooks of steps would run once per shard", got="a hook",
                hint="call it behind the parallel step",
            )  # fmt: skip
        with self._steps_of(self._nothing):
            result = shard()
        steps = int(self.count) - steps
        if steps != 1 or _hyper_parameters(self.optimizer) != rates:
            raise CallOrderError(
                "data(virtual_shards=...): a step runs once per shard, and its optimizer steps once in it",
                got=f"{steps} steps" if steps != 1 else "other hyper-parameters",
                hint="one optimizer.step() in the step; scheduler.step() behind it",
            )  # fmt: skip
        left = [_left_by_step(p.grad) for p in self.params]
        with no_grad():
            return OfShard([np.array(noted.detach()) for _, noted in self.noted], left, result)

    @contextmanager
    def gradients_before(self) -> Iterator[list[Array | None]]:
        """Yield the gradients a step begins with, and give them back where it raises."""
        start = [None if p.grad is None else np.array(p.grad.detach()) for p in self.params]
        try:
            yield start
        except BaseException:
            self._give(start)
            raise

    def _give(self, gradients: Iterable[Array | None]) -> None:
        with no_grad():
            for p, gradient in zip(self.params, gradients, strict=True):
                p.grad = None if gradient is None else tensor(gradient)

    def update(self, means: Iterable[Array], left: Iterable[Left]) -> None:
        """Take the optimizer's step with some gradients, and leave those that the step's code left."""
        with no_grad():
            for (bucket, _), mean in zip(self.noted, means, strict=True):
                for p, piece in pieces(bucket, tensor(mean)):
                    p.grad = piece
        self._updating = True
        try:
            self.optimizer.step()
        finally:
            self._updating = False
        with no_grad():
            for p, gradient in zip(self.params, left, strict=True):
                if not isinstance(gradient, _Means):
                    p.grad = None if gradient is None else tensor(gradient)

    @contextmanager
    def _steps_of(self, nothing: Sequence[list[Tensor]]) -> Iterator[None]:
        """Let steps of the optimizer update no parameter."""
        groups = self.optimizer.param_groups
        if len(groups) != len(nothing):
            raise CallOrderError("data(virtual_shards=...): parameters were added", got="another group",
                                 hint="add_param_group() before parallel()")  # fmt: skip
        for group, none in zip(groups, nothing, strict=True):
            group.shards = none
        try:
            yield
        finally:
            for group in groups:
                group.shards = None


def _left_by_step(gradient: Tensor | None) -> Left:
    """Return what a step left: the means, zeros or nothing. Raises: CallOrderError."""
    if gradient is None:
        return None
    left = np.array(gradient.detach())
    if np.isnan(left).all():
        return _Means.MEANS
    if left.any():
        raise CallOrderError(
            "data(virtual_shards=...): gradients over the whole batch are known when the step has returned",
            got="a step that changes them behind optimizer.step()",
            hint="zero_grad() may stand there; backward() comes before it, other code behind the step",
        )  # fmt: skip
    return left


def _hyper_parameters(optimizer: Optimizer) -> list[Mapping[str, Any]]:
    return [group.as_numbers() for group in optimizer.param_groups]


class _HasBuffers(Protocol):
    def buffers(self) -> Iterator[Tensor]: ...


class FixedOrder:
    """Runs the step shard by shard, and updates once.

    `elastic`: arguments are whole batches, and a step that a dying rank breaks off begins again without it.
    """

    def __init__(
        self, step: Callable[..., Any], noting: Noting, shards: int, modules: Sequence[_HasBuffers],
        elastic: bool = False,
    ) -> None:  # fmt: skip
        within = world()
        if shards < within.size or (shards % within.size and not elastic):
            raise AttributeValueError(
                "data: virtual_shards is a multiple of the number of ranks",
                got=f"{shards} shards on {within.size} ranks",
                hint="12 goes with 1, 2, 3, 4, 6 and 12 ranks; any number up to it with elastic=True",
            )  # fmt: skip
        self._step: Final = step
        self._noting: Final = noting
        self._shards: Final = shards
        self._modules: Final = modules
        self._elastic: Final = elastic

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = np.array(default_generator().get_state())

        with self._noting.gradients_before() as start:

            def computed() -> tuple[Any, list[Array], list[Left]]:
                return self._computed(args, kwargs, state.copy(), start)

            result, means, left = surviving(computed) if self._elastic else computed()
        self._noting.update(means, left)
        return result

    def _computed(
        self, args: Any, kwargs: Any, state: Array, start: Sequence[Array | None]
    ) -> tuple[Any, list[Array], list[Left]]:
        """Return the result and the mean gradients over the whole batch, and what steps left as gradients.

        Parameters stay as they are.
        """
        within = world()
        ends = bounds(self._shards, within.size)
        first, own = (0, self._shards) if self._elastic else (ends[within.rank], self._shards // within.size)
        rows, shard_of = self._sliced(args, kwargs, own)
        batch = _digest((args, kwargs, start)) if self._elastic else 0
        results: list[Any] = []
        left: list[Left] = []

        def of(node: Node) -> list[Array] | None:
            if node[1] - node[0] > 1:
                return None
            default_generator().set_state(_state_of(state, node[0]))
            args, kwargs = shard_of(node[0] - first)
            found = self._of_shard(args, kwargs, start, not results)
            results.append(found.result)
            left[:] = found.left
            return found.noted

        try:
            sums = [total(node, of) for node in nodes_of(within.rank, within.size, self._shards)]
        finally:
            state[1] = (int(state[1]) + _STRIDE) % (1 << 64)
            default_generator().set_state(state)
        # Elastic ranks capture at other times, having other numbers of shards: there it is not compared.
        program = 0 if self._elastic else int(self._noting.program or "0", 16)
        result = self._joined(results, [state[1], rows, batch, program], ends)
        return result, [self._mean(list(own)) for own in zip(*sums, strict=True)], left

    def _of_shard(self, args: Any, kwargs: Any, start: Any, first: bool) -> OfShard:
        """Return the gradients and the result of a shard, after a look at buffers at the first one."""
        before = [np.array(b).tobytes() for m in self._modules for b in m.buffers()] if first else []
        found = self._noting.run(lambda: self._step(*args, **kwargs), start)
        after = [np.array(b).tobytes() for m in self._modules for b in m.buffers()] if first else []
        if before != after:
            raise CallOrderError(
                "data(virtual_shards=...): a step changed buffers, which would depend on the number of ranks",
                got="running statistics, as of BatchNorm",
                hint="GroupNorm and LayerNorm have none; data() leaves them to each rank",
            )  # fmt: skip
        return found

    def _mean(self, own: list[Array]) -> Array:
        within, shards = world(), self._shards
        buffer = np.empty_like(own[0])
        within.run(
            lambda: tree_all_reduce(own, buffer, within.rank, within.size, shards),
            f"all_reduce sum over {shards} virtual shards of {buffer.dtype}[{buffer.size}]",
        )
        np.divide(buffer, np.asarray(shards, buffer.dtype), out=buffer)
        return buffer

    def _sliced(self, args: Any, kwargs: Any, own: int) -> tuple[int, Callable[[int], Any]]:
        """Return the rows of a shard, and the arguments by its number among the `own` of these batches."""
        leaves, structure = tree.flatten((args, kwargs))
        shapes = [list(x.shape) for x in leaves if _is_batch(x)]
        lengths = {shape[0] for shape in shapes}
        if len(lengths) != 1 or (count := lengths.pop()) % own or not count:
            of = "all" if self._elastic else "this rank's"
            raise ShapeError(
                f"data(virtual_shards={self._shards}): arguments are batches of one size, divisible by {of} "
                f"{own} shards", got=", ".join(map(str, shapes)) or "none",
                hint="DataLoader(..., drop_last=True) with a batch size that virtual_shards divides",
            )  # fmt: skip
        rows = count // own

        def of_shard(number: int) -> Any:
            some = slice(number * rows, (number + 1) * rows)
            return tree.unflatten(structure, [x[some] if _is_batch(x) else x for x in leaves])

        return rows, of_shard

    def _joined(self, results: Sequence[Any], head: Sequence[Any], ends: Sequence[int]) -> Any:
        """Return the means over all shards of what steps returned, and check that ranks agree.

        `head`: the key of the random generator, rows per shard, the digests of the batch and of the program.
        """
        values, structure = [], None
        for result in results:
            leaves, structure = tree.flatten(result)
            values.append([_number(leaf) for leaf in leaves])
        own = np.zeros((ends[1], len(values[0])))  # rank 0 has the most shards
        own[: len(values)] = values
        start = np.array([*head, own.shape[1]], np.uint64)
        sent = np.concatenate([start, own.reshape(-1).view(np.uint64)])
        found = all_gather(sent).reshape(world().size, -1)
        if (found[:, : start.size] != start).any():
            raise ProgramMismatchError(
                "data(virtual_shards=...): ranks have random generators of one state, batches of one size and"
                " one program, with elastic=True the same batch and gradients",
                got="; ".join(
                    f"{rows} rows, key {key:x}, batch {batch:x}, program {program:x} on rank {r}"
                    for r, (key, rows, batch, program, _) in enumerate(found[:, : start.size])
                ),
                hint="st.manual_seed(0) on every rank; drop_last=True; seed= of the loader",
            )  # fmt: skip
        sums = np.ascontiguousarray(found[:, start.size :]).view(np.float64)
        gathered = sums.reshape(len(found), *own.shape)
        everywhere = np.concatenate([g[: b - a] for g, (a, b) in zip(gathered, pairwise(ends), strict=True)])
        means = total((0, self._shards), lambda n: [everywhere[n[0]]] if n[1] - n[0] == 1 else None)[0]
        like = tree.leaves(results[0])
        joined = [_like(x, mean / self._shards) for x, mean in zip(like, means, strict=True)]
        assert structure is not None  # a rank has shards
        return tree.unflatten(structure, joined)


def _digest(arguments: Any) -> int:
    """Return a number of the first and last rows of arrays: with other ones on ranks a step is of none."""
    arrays = [x.detach() if isinstance(x, Tensor) else x for x in tree.leaves(arguments) if _is_batch(x)]
    return zlib.crc32(b"".join(np.asarray(x)[[0, -1]].tobytes() for x in arrays if len(x)))


def _is_batch(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray)) and x.ndim > 0


def _state_of(state: Array, shard: int) -> Array:
    """Return the state of a generator for one shard of a step."""
    digest = hashlib.blake2b(state[1].tobytes() + shard.to_bytes(8, "little"), digest_size=16).digest()
    key, draws = np.frombuffer(digest, np.uint64)
    return np.array([state[0], key, draws], np.uint64)


def _number(x: Any) -> float:
    """Return the number that a leaf of a result is; NaN for None. Raises: DTypeError."""
    if x is None:
        return float("nan")
    if isinstance(x, float) or (isinstance(x, Tensor) and not x.ndim and x.dtype.is_float):
        return float(x)
    raise DTypeError(
        "data(virtual_shards=...): a step returns None or float scalars, which become means over the batch",
        got=str(x.type) if isinstance(x, Tensor) else type(x).__name__,
        hint="compute other things outside of the step",
    )  # fmt: skip


def _like(x: Any, mean: float) -> Any:
    if x is None:
        return None
    return tensor(np.asarray(mean)).astype(x.dtype) if isinstance(x, Tensor) else float(mean)


def fixed_order_step(step: Callable[..., Any], fixed: FixedOrder) -> Callable[..., Any]:
    """Return the step of all shards together."""

    @functools.wraps(step, updated=())
    def taken(*args: Any, **kwargs: Any) -> Any:
        if MODE.trace is not None:
            raise CaptureError(
                "parallel: a step that runs shard by shard is not compiled from outside",
                got="virtual_shards",
                hint="st.distributed.parallel(st.compile(step), st.distributed.data(virtual_shards=...))",
            )  # fmt: skip
        return fixed(args, kwargs)

    return taken
