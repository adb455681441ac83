"""Data parallel: every rank trains on its part of the batch, and all take the same step.

    step = st.compile(st.distributed.parallel(train_step, st.distributed.data()))

    optimizer.step()
      -> the gradients of its parameters, the last layer's first, end to end in buckets
      -> one all-reduce per bucket, which starts as soon as backward has made the bucket
      -> the mean over ranks in place of each gradient; then the update, alike on every rank
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError, DTypeError
from stratal.distributed.collectives import all_reduce
from stratal.distributed.fixed_order import FixedOrder, Noting, fixed_order_step
from stratal.distributed.links import choose
from stratal.distributed.parameter_server import ParameterServer, ServedOptimizer, served_step
from stratal.distributed.reducer import Reducer, begin_alike, pieces, reducer_of
from stratal.distributed.sharded_parameters import ShardedParameters
from stratal.distributed.world import world
from stratal.distributed.zero import ShardedReducer, Zero
from stratal.nn.module import Module
from stratal.nn.utils.gradients import SHARED_STEP, Gradients
from stratal.optim.optimizer import Optimizer
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE, Part, no_grad


class Data(NamedTuple):
    """What `data` was told."""

    optimizers: tuple[Optimizer, ...]
    bucket_bytes: int
    algorithm: str
    local_steps: int = 1
    virtual_shards: int = 0
    elastic: bool = False


def data(
    *optimizers: Optimizer,
    bucket_bytes: int | None = None,
    algorithm: str = "all_to_all",
    local_steps: int = 1,
    virtual_shards: int | None = None,
    elastic: bool = False,
) -> Data:
    """Return the strategy of data parallelism, for `parallel`.

    `optimizers`: those the step uses; by default all that the step's variables show. `bucket_bytes`: how many
    bytes of gradients leave at once; by default what the model of links gives. `algorithm`: of all-reduces;
    all_to_all adds in the order of ranks, so that gradients do not depend on buckets, to the bit.
    `local_steps`: each rank takes that many steps by itself, then parameters become their means over ranks,
    which sends less and learns something else: compare the accuracy. Optimizer states stay each rank's own.
    `virtual_shards`: the same bits at any number of ranks that divides it, for steps of one optimizer. The
    step runs once per shard of the whole batch, with random numbers of that shard; gradients are added over a
    tree of shards, and the update comes when the step has returned for all of them. The result are the means
    of the float scalars that it returned.
    `elastic`: for `virtual_shards`, in a job of `stratal launch --elastic`: a rank that dies is left out, and
    the step it broke off is done again by the others, from the state before it. Every rank is given the whole
    batch, and takes its shards' rows; any number of ranks up to `virtual_shards` goes.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("data: takes optimizers", got=type(optimizer).__name__)
    if bucket_bytes is not None and bucket_bytes < 1:
        raise AttributeValueError("data: a bucket holds at least one byte", got=str(bucket_bytes))
    if local_steps < 1:
        raise AttributeValueError("data: ranks take at least one step by themselves", got=str(local_steps))
    if virtual_shards is not None:
        if virtual_shards < 1:
            raise AttributeValueError("data: there is at least one virtual shard", got=str(virtual_shards))
        if bucket_bytes is not None or algorithm != "all_to_all" or local_steps > 1:
            raise AttributeValueError(
                "data: virtual_shards fix what is sent, and when",
                got="bucket_bytes, algorithm or local_steps beside it",
            )  # fmt: skip
    elif elastic:
        raise AttributeValueError(
            "data: what a lost rank had to do is known by virtual shards",
            got="elastic without virtual_shards",
            hint="data(virtual_shards=8, elastic=True)",
        )  # fmt: skip
    return Data(optimizers, bucket_bytes or 0, algorithm, local_steps, virtual_shards or 0, elastic)


def shard() -> tuple[int, int]:
    """Return (rank, world size), for `DataLoader(..., shard=st.distributed.shard())`."""
    return world().rank, world().size


Strategy = Data | Zero | ParameterServer


def parallel(step: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
    """Return a training step that all ranks take together, on their parts of one batch.

    `step` is an ordinary function, compiled or not: forward, backward, `optimizer.step()`. Its loss must be a
    mean over its batch, and the ranks' batches of one size: then the step is that of one process on the whole
    batch. Parameters begin as rank 0 has them. Losses and metrics stay each rank's own.

    Gradients are averaged when the optimizer steps, or before, when `nn.utils` clips them or a GradScaler
    unscales them, wherever that is called. Code of one's own that is not linear in them comes behind
    `synchronize(optimizer)`.
    Raises: AttributeValueError where no optimizer is found; ProgramMismatchError before the first update
    where ranks run different programs; the step CallOrderError where `get_total_norm` is given gradients
    that are not averaged yet.
    """
    if not callable(step) or not isinstance(strategy, Strategy):
        raise DTypeError("parallel: takes a function and a strategy", got=type(strategy).__name__,
                         hint="st.distributed.parallel(step, st.distributed.data())")  # fmt: skip
    found = strategy.optimizers or tuple(_optimizers_of(step))
    if not found:
        raise AttributeValueError(
            "parallel: no optimizer is seen in the step's variables", got=getattr(step, "__name__", "a step"),
            hint="st.distributed.data(optimizer)",
        )  # fmt: skip
    if isinstance(strategy, Data) and strategy.virtual_shards:
        return _in_fixed_order(step, found, strategy)
    if isinstance(strategy, Zero) and strategy.stage == 3 and len(found) > 1:
        raise AttributeValueError(
            "zero(3): a step has one optimizer", got=f"{len(found)} of them",
            hint="one with several groups; zero(2) takes any number",
        )  # fmt: skip
    reducers: list[Reducer] = []
    alone = isinstance(strategy, Data) and strategy.local_steps > 1
    if world().size > 1:
        kind = "reduce_scatter" if isinstance(strategy, Zero) else "all_reduce"
        choose(kind, 1, world().size, world().link, strategy.algorithm)
        for optimizer in found:
            _begin(optimizer)
            reducers.append(_reducer(strategy, optimizer))
            if not alone:
                optimizer.register_step_pre_hook(reducers[-1])
    if world().size > 1 and isinstance(strategy, Data) and alone:
        return _local_steps(step, found, strategy.local_steps)

    together = _sharing(step, list(zip(reducers, found, strict=False)), world().rank)
    served = [r for r in reducers if isinstance(r, ServedOptimizer)]
    return served_step(together, served, step) if served else together


def _begin(optimizer: Optimizer) -> None:
    if reducer_of(optimizer) is not None:
        raise AttributeValueError(
            "parallel: an optimizer is of one parallel step", got=f"a second one for {optimizer}"
        )
    begin_alike(optimizer)


def _in_fixed_order(
    step: Callable[..., Any], optimizers: Sequence[Optimizer], strategy: Data
) -> Callable[..., Any]:
    if len(optimizers) > 1:
        raise AttributeValueError(
            "data(virtual_shards=...): a step has one optimizer", got=f"{len(optimizers)} of them",
            hint="one with several groups; or data(optimizer, virtual_shards=...)",
        )  # fmt: skip
    _begin(optimizers[0])
    noting = Noting(strategy, optimizers[0])
    modules = _seen_by(step, Module)
    together = _sharing(step, [(noting, optimizers[0])])
    fixed = FixedOrder(together, noting, strategy.virtual_shards, modules, strategy.elastic)
    optimizers[0].register_step_pre_hook(noting)
    return fixed_order_step(step, fixed)


def _sharing(
    step: Callable[..., Any], pairs: Sequence[tuple[Reducer, Optimizer]], rank: int | None = None
) -> Callable[..., Any]:
    """Return a step in which what reads gradients has those of all ranks.

    `rank`: dropouts draw the rows of that rank in the mask of the whole batch.
    """
    shared = _SharedStep(pairs)
    # The number is an input of programs, so that they are alike on all ranks.
    part = None if rank is None or not pairs else Part(tensor(rank, dtype="int64"))

    @functools.wraps(step, updated=())
    def together(*args: Any, **kwargs: Any) -> Any:
        before = SHARED_STEP.set(shared if pairs else None)
        part_before, MODE.part = MODE.part, part
        try:
            for reducer, _ in pairs:
                reducer.begin()
            result = step(*args, **kwargs)
            for reducer, _ in pairs:
                reducer.end()
            return result
        except BaseException as error:
            for reducer, _ in pairs:
                reducer.failed(error)
            raise
        finally:
            SHARED_STEP.reset(before)
            MODE.part = part_before

    return together


def _reducer(strategy: Strategy, optimizer: Optimizer) -> Reducer:
    if isinstance(strategy, ParameterServer):
        return ServedOptimizer(strategy, optimizer)
    if isinstance(strategy, Zero):
        return (ShardedParameters if strategy.stage == 3 else ShardedReducer)(strategy, optimizer)
    return Reducer(strategy)


class _SharedStep:
    """What a parallel step does where its gradients are read before optimizers step."""

    def __init__(self, reducers: Sequence[tuple[Reducer, Optimizer]]) -> None:
        self._reducers: Final = reducers

    def gradients(self, params: Sequence[Tensor]) -> Gradients | None:
        shared = None
        for reducer, optimizer in self._of(params):
            if not reducer.reduced(optimizer):
                shared = reducer.shared_gradients(optimizer, params)
                if shared is None:
                    reducer.reduce(optimizer)
        return shared

    def with_gradient(self, params: Sequence[Tensor]) -> list[Tensor]:
        shared = {p for reducer, _ in self._reducers for p in reducer.with_shared_gradient()}
        return [p for p in params if p.grad is not None or p in shared]

    def changed(self, params: Sequence[Tensor]) -> None:
        for reducer, optimizer in self._of(params):
            reducer.note(optimizer)

    def check_whole(self, gradients: Sequence[Tensor]) -> None:
        given = set(map(id, gradients))
        own = [p for r, o in self._reducers if not r.was_reduced for p in _params(o) if p.grad is not None]
        if any(id(p.grad) in given for p in own):
            raise CallOrderError(
                "parallel: the norm would be that of this rank's own gradients", got="no synchronize before",
                hint="st.distributed.synchronize(optimizer), behind backward() and before it",
            )  # fmt: skip

    def _of(self, params: Sequence[Tensor]) -> Iterator[tuple[Reducer, Optimizer]]:
        """Yield the optimizers of some parameters."""
        wanted = set(params)
        for reducer, optimizer in self._reducers:
            if not wanted.isdisjoint(_params(optimizer)):
                yield reducer, optimizer


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _local_steps(
    step: Callable[..., Any], optimizers: Sequence[Optimizer], every: int
) -> Callable[..., Any]:
    """Return a step after which, every so often, parameters become their means over ranks."""
    count, part = 0, Part(tensor(world().rank, dtype="int64"))

    @functools.wraps(step, updated=())
    def together(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if MODE.trace is not None:
            raise CaptureError(
                "parallel: a step that counts its calls is not compiled from outside", got="local_steps",
                hint="st.distributed.parallel(st.compile(step), st.distributed.data(local_steps=...))",
            )  # fmt: skip
        before, MODE.part = MODE.part, part
        try:
            result = step(*args, **kwargs)
        finally:
            MODE.part = before
        count += 1
        if count % every == 0:
            average_parameters(optimizers)
        return result

    return together


def average_parameters(optimizers: Sequence[Optimizer]) -> None:
    """Make the parameters of optimizers their means over ranks, in one all-reduce per dtype."""
    params = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    with no_grad():
        for bucket in _by_dtype(params):
            flat = all_reduce(concat([p.reshape((-1,)) for p in bucket]), "mean", algorithm="all_to_all")
            for p, piece in pieces(bucket, flat):
                p.copy_(piece)


def _by_dtype(params: Sequence[Tensor]) -> list[list[Tensor]]:
    found: dict[Any, list[Tensor]] = {}
    for p in params:
        found.setdefault(p.dtype, []).append(p)
    return list(found.values())


def synchronize(optimizer: Optimizer) -> None:
    """Replace the gradients of an optimizer's parameters by their means over ranks now, not when it steps.

    For steps of `parallel`: after the last `backward()`, before what reads gradients, such as clipping.
    """
    if world().size == 1:
        return
    reducer = reducer_of(optimizer)
    if reducer is None:
        raise AttributeValueError(
            "synchronize: the optimizer is of no parallel step", got=type(optimizer).__name__,
            hint="st.distributed.parallel(step, st.distributed.data(optimizer))",
        )  # fmt: skip
    reducer.reduce(optimizer)


# -- finding optimizers --------------------------------------------------------------------------------------
T = TypeVar("T")


def _optimizers_of(step: Any) -> list[Optimizer]:
    return _seen_by(step, Optimizer)


def _seen_by(step: Any, kind: type[T]) -> list[T]:
    """Return the objects of a kind that the variables of a step show, in containers and attributes of one
    object.
    """
    found = (x for value in _variables_of(step) for x in _inside(value, kind))
    return list({id(x): x for x in found}.values())


def _layers(step: Any) -> Iterator[Any]:
    """Yield a step, and what it is made of, down to a function."""
    while True:
        yield step
        if isinstance(step, functools.partial):
            step = step.func
        elif isinstance(step, Compiled):
            step = step._function
        elif isinstance(step, MethodType):
            step = step.__func__
        else:
            return


def _innermost(step: Any) -> Any:
    *_, last = _layers(step)
    return last


def _variables_of(step: Any) -> Iterator[Any]:
    """Yield what a function reads from around it: closure, globals by name, defaults, `self`."""
    for outer in _layers(step):
        if isinstance(outer, functools.partial):
            yield from (*outer.args, *outer.keywords.values())
        elif isinstance(outer, MethodType):
            yield outer.__self__
    step = _innermost(step)
    if not isinstance(step, FunctionType):
        yield step
        return
    for cell in step.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    yield from (step.__globals__[name] for name in step.__code__.co_names if name in step.__globals__)
    yield from (*(step.__defaults__ or ()), *(step.__kwdefaults__ or {}).values())


def _inside(value: Any, kind: type[T]) -> Iterator[T]:
    if isinstance(value, kind):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (list, tuple, set)):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        parts = vars(value).values()
    yield from (part for part in list(parts) if isinstance(part, kind))
