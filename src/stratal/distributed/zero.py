"""ZeRO: every rank keeps a share of the optimizer's state, and updates that share of the parameters.

    gradients of a bucket, end to end -> one reduce-scatter: this rank's part of their means
    -> the optimizer updates this rank's shard of the parameters, with the state it has for that
    -> one all-gather: the parameters, whole again on every rank

Stage 1 leaves each rank its own gradients, stage 2 drops them; both send as many bytes as `data` does.
Stage 3 also shards parameters (`sharded_parameters`). The update and its state are 1 / ranks of one process.
See: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory optimizations toward training trillion parameter
models", 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError
from stratal.distributed.collectives import all_gather
from stratal.distributed.links import bucket_bytes
from stratal.distributed.overlapped import all_gather_in_buckets, reduce_scatter_in_buckets
from stratal.distributed.reducer import Reducer, buckets, gradient_of, pieces, program_digest
from stratal.distributed.world import world
from stratal.formats.shards import Pieces
from stratal.nn.state import as_array
from stratal.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, Lion, RAdam, RMSprop, Rprop
from stratal.optim.optimizer import Optimizer, check_groups
from stratal.tensor.capture import note_mutation
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad

# Those that update element by element: a shard is updated as the whole is.
ELEMENTWISE: Final = (SGD, Adam, AdamW, Adamax, RAdam, Adagrad, Adadelta, RMSprop, Lion, Rprop)


class Zero(NamedTuple):
    """What `zero` was told."""

    stage: int
    optimizers: tuple[Optimizer, ...]
    bucket_bytes: int
    algorithm: str


def zero(
    stage: int, *optimizers: Optimizer, bucket_bytes: int | None = None, algorithm: str = "all_to_all"
) -> Zero:
    """Return the strategy of data parallelism with a sharded update, for `parallel`.

    `stage`: 1 shards the optimizer's state, 2 also drops gradients when the optimizer steps, 3 also shards
    parameters (as FSDP does): they are whole where the compiled step reads them, or in `full_parameters`.
    `optimizers`, `bucket_bytes` and `algorithm` as for `data`; a bucket is one shard on each rank.
    Raises: AttributeValueError.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("zero: takes a stage and optimizers", got=type(optimizer).__name__)
    if stage not in (1, 2, 3):
        raise AttributeValueError("zero: a stage is 1, 2 or 3", got=repr(stage))
    if bucket_bytes is not None and bucket_bytes < 1:
        raise AttributeValueError("zero: a bucket holds at least one byte", got=str(bucket_bytes))
    return Zero(stage, optimizers, bucket_bytes or 0, algorithm)


class Shard(NamedTuple):
    """Parameters end to end, filled up with zeros to a multiple of the ranks, and this rank's part."""

    params: tuple[Tensor, ...]
    own: Tensor  # [length / ranks]
    rank: int
    size: int

    @property
    def length(self) -> int:
        return int(self.own.shape[0]) * self.size

    @property
    def unfilled(self) -> int:
        return sum(p.numel() for p in self.params)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of the parameters' shapes end to end."""
        parts = [t.reshape((-1,)) for t in tensors]
        rest = self.length - self.unfilled
        return concat([*parts, zeros((rest,), dtype=self.own.dtype)] if rest else parts)

    def part(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return this rank's part of `flat`, made of nothing else."""
        count = int(self.own.shape[0])
        begin, end, start, found = self.rank * count, (self.rank + 1) * count, 0, []
        for t in tensors:
            low, high = max(begin - start, 0), min(end - start, t.numel())
            if low < high:
                found.append(t.reshape((-1,))[low:high])
            start += t.numel()
        if (rest := end - max(begin, self.unfilled)) > 0:
            found.append(zeros((rest,), dtype=self.own.dtype))
        return concat(found)

    def in_pieces(self, param: Tensor, own: Tensor, name: str) -> Pieces:
        """Return what `own`, laid out as this rank's part of the parameters, has of one of them."""
        flat = np.asarray(own.detach())
        count = max(len(flat), 1)
        start = sum(p.numel() for p in takewhile(lambda p: p is not param, self.params))
        stop = start + param.numel()
        first = min(start // count, self.size - 1)
        last = max((stop - 1) // count, first)
        begin = self.rank * count
        low, high = max(start, begin), min(stop, begin + count)
        mine = low < high or (start == stop and self.rank == first)
        pieces = {self.rank - first: flat[low - begin : max(low, high) - begin]} if mine else {}
        return Pieces(name, tuple(param.shape), last - first + 1, pieces)


class ShardedReducer(Reducer):
    """Hooks of an optimizer whose update is sharded over ranks."""

    def __init__(self, strategy: Zero, optimizer: Optimizer) -> None:
        """Shard an optimizer, with the state it has. Raises: AttributeValueError where that cannot be."""
        super().__init__(strategy)
        if type(optimizer) not in ELEMENTWISE:
            raise AttributeValueError(
                "zero: an optimizer whose updates are not known to be element by element",
                got=type(optimizer).__name__,
                hint=f"there are {', '.join(k.__name__ for k in ELEMENTWISE)}; others with data()",
            )  # fmt: skip
        self.stage: Final = strategy.stage
        state = optimizer.state_dict()
        self.shards: Final = tuple(tuple(self._shards_of(g["params"])) for g in optimizer.param_groups)
        for group, shards in zip(optimizer.param_groups, self.shards, strict=True):
            group.shards = [s.own for s in shards]
        self._saved_as: str | None = None  # the name of a state dict in pieces, while it is made
        note_mutation()
        optimizer.register_step_post_hook(self.after)
        optimizer.register_state_dict_post_hook(self.gathered)
        optimizer.register_load_state_dict_pre_hook(self.sharded)
        optimizer.load_state_dict(state)

    def _shards_of(self, params: Sequence[Tensor]) -> Iterator[Shard]:
        within = world()
        limit = self.strategy.bucket_bytes or bucket_bytes(within.size, within.link)
        for bucket in buckets([p for p in params[::-1] if p.requires_grad], limit):
            count = -(-sum(p.numel() for p in bucket) // within.size)
            own = tensor(np.zeros(count, np.float32)).astype(bucket[0].dtype)
            yield Shard(tuple(bucket), own, within.rank, within.size)

    def all_shards(self) -> list[Shard]:
        return [shard for shards in self.shards for shard in shards]

    # -- steps -----------------------------------------------------------------------------------------------
    def before(self, optimizer: Optimizer) -> None:
        self.check_gradients(optimizer)
        shards = self.all_shards()
        with no_grad():
            if self.reduced(optimizer):  # whole already, and perhaps clipped
                parts = [s.part([gradient_of(p) for p in s.params]) for s in shards]
            else:
                flats = [s.flat([gradient_of(p) for p in s.params]) for s in shards]
                parts = reduce_scatter_in_buckets(
                    flats, "mean", self.strategy.algorithm, program_digest(flats)
                )
            for shard, part in zip(shards, parts, strict=True):
                shard.own.copy_(shard.part(shard.params))
                shard.own.grad = part

    def check_gradients(self, optimizer: Optimizer) -> None:
        """Refuse steps of other parameters than those sharded: a shard is updated as a whole."""
        for group, shards in zip(optimizer.param_groups, self.shards, strict=False):
            known = {p for shard in shards for p in shard.params}
            with_gradient = {p for p in group["params"] if p.grad is not None}
            if known != with_gradient:
                some = sorted(str(p.type) for p in known ^ with_gradient)
                raise CallOrderError(
                    "zero: parameters have a gradient in every step, or in none",
                    got=f"{'no' if known - with_gradient else 'a new'} gradient of {', '.join(some)}",
                    hint="requires_grad_(False) before parallel() freezes one; data() takes any",
                )  # fmt: skip
        if len(optimizer.param_groups) != len(self.shards):
            raise CallOrderError(
                "zero: parameters were added to a sharded optimizer", got=f"{len(self.shards)} groups before",
                hint="add_param_group() before parallel()",
            )  # fmt: skip

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Put the updated shards of all ranks in place of the parameters."""
        shards = self.all_shards()
        with no_grad():
            whole = all_gather_in_buckets([s.own for s in shards], self.strategy.algorithm)
            for shard, flat in zip(shards, whole, strict=True):
                shard.own.grad = None
                for p, piece in pieces(shard.params, flat):
                    p.copy_(piece)
                    if self.stage > 1:
                        p.grad = None

    # -- state dicts -----------------------------------------------------------------------------------------
    def gathered(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state dict of the whole optimizer; every rank calls it, since it gathers.

        While `state_in_pieces` runs it is one in pieces, and nothing is sent.
        """
        number, saved_as = numbers_of(optimizer), self._saved_as
        state: dict[int, dict[str, Any]] = {}
        for k, shard in enumerate(self.all_shards()):
            for name, value in state_dict["state"].get(k, {}).items():
                whole: Iterable[tuple[Tensor, Any]]
                if isinstance(value, Tensor) and value.ndim and saved_as is not None:
                    whole = [
                        (p, shard.in_pieces(p, value, f"{saved_as}.{number[p]}.{name}")) for p in shard.params
                    ]
                elif isinstance(value, Tensor) and value.ndim:
                    whole = pieces(shard.params, all_gather(value, algorithm=self.strategy.algorithm))
                else:
                    whole = ((p, value) for p in shard.params)
                for p, piece in whole:
                    state.setdefault(number[p], {})[name] = piece
        groups = [
            {**saved, "params": [number[p] for p in group["params"]]}
            for saved, group in zip(state_dict["param_groups"], optimizer.param_groups, strict=True)
        ]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def state_in_pieces(self, optimizer: Optimizer, name: str) -> dict[str, Any]:
        """Return the state dict of the whole optimizer, of tensors in it this rank's pieces."""
        self._saved_as = name
        try:
            return optimizer.state_dict()
        finally:
            self._saved_as = None

    def sharded(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's part of the state dict of a whole optimizer.

        Raises: AttributeValueError, ShapeError where it is of another one.
        """
        saved_groups = state_dict["param_groups"]
        check_groups(optimizer, saved_groups, [len(g["params"]) for g in optimizer.param_groups])
        saved_keys = (k for g in saved_groups for k in g["params"])
        saved_as = dict(zip(numbers_of(optimizer), saved_keys, strict=True))
        state = {}
        for k, shard in enumerate(self.all_shards()):
            entries = [state_dict["state"].get(saved_as[p], {}) for p in shard.params]
            state[k] = {name: _own_part(shard, name, entries) for name in entries[0]}
            if any(e.keys() != entries[0].keys() for e in entries):
                raise _of_one_shard("state", [", ".join(e) or "none" for e in entries])
        groups, number = [], 0
        for saved, shards in zip(saved_groups, self.shards, strict=True):
            groups.append({**saved, "params": list(range(number, number + len(shards)))})
            number += len(shards)
        return {"state": {k: v for k, v in state.items() if v}, "param_groups": groups}


def numbers_of(optimizer: Optimizer) -> dict[Tensor, int]:
    """Return the numbers that parameters have in a state dict of the whole optimizer."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return {p: k for k, p in enumerate(params)}


def _own_part(shard: Shard, name: str, entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return this rank's part of the saved state of a shard's parameters, of one name."""
    values = [e.get(name) for e in entries]
    arrays = [np.asarray(v if isinstance(v, Tensor) else as_array(v)) for v in values if v is not None]
    if len(arrays) < len(values):
        raise _of_one_shard(name, ["none" if v is None else "some" for v in values])
    if not any(a.ndim for a in arrays):
        if len({a.item() for a in arrays}) > 1:
            raise _of_one_shard(name, [str(a.item()) for a in arrays])
        return values[0]
    wrong = [f"{list(a.shape)} for {list(p.shape)}" for a, p in zip(arrays, shard.params, strict=True)
             if a.shape != tuple(p.shape)]  # fmt: skip
    if wrong:
        raise ShapeError(f"load_state_dict: {name} has other shapes", got="; ".join(wrong),
                         hint="it is of an optimizer of other parameters")  # fmt: skip
    flat = np.concatenate([a.reshape(-1) for a in arrays])
    filled = np.zeros(shard.length, flat.dtype)
    filled[: flat.size] = flat
    return tensor(np.split(filled, shard.size)[shard.rank].copy())


def _of_one_shard(what: str, got: Sequence[str]) -> AttributeValueError:
    return AttributeValueError(
        f"zero: parameters of one shard have the same {what}", got=" | ".join(dict.fromkeys(got)),
        hint="parameters that did not all step together are trained on with data()",
    )  # fmt: skip


# -- memory --------------------------------------------------------------------------------------------------
class Memory(NamedTuple):
    """Bytes of model state one rank keeps, without activations and buffers."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def zero_memory(
    parameters: float, ranks: int, *, optimizer_bytes: float = 12, parameter_bytes: float = 2,
    gradient_bytes: float = 2,
) -> dict[str, Memory]:  # fmt: skip
    """Return what each rank keeps of a model: "data", "zero 1", "zero 2" and "zero 3".

    `parameters`: how many. The bytes are per parameter; by default those of Adam in mixed precision: weights
    and gradients of 16 bits, and for the optimizer (the paper's K = 12) weights in float32 and two moments.
    Units: bytes. See: Rajbhandari et al. 2020, figure 1.

    >>> for name, kept in zero_memory(7.5e9, 64).items():
    ...     print(f"{name}: {kept.total / 1e9:.3g} GB")
    data: 120 GB
    zero 1: 31.4 GB
    zero 2: 16.6 GB
    zero 3: 1.88 GB
    """
    if parameters < 0 or ranks < 1:
        raise AttributeValueError(
            "zero_memory: of parameters on at least one rank", got=f"{parameters} on {ranks} ranks"
        )
    found = {}
    for stage, name in enumerate(("data", "zero 1", "zero 2", "zero 3")):
        shares = [parameters / (ranks if stage >= least else 1) for least in (3, 2, 1)]
        sizes = (parameter_bytes, gradient_bytes, optimizer_bytes)
        found[name] = Memory(*(share * size for share, size in zip(shares, sizes, strict=True)))
    return found
