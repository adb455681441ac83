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
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError, DTypeError
from stratal.distributed.collectives import all_reduce, broadcast, check_same
from stratal.distributed.links import bucket_bytes, choose
from stratal.distributed.overlapped import all_reduce_in_buckets
from stratal.distributed.world import world
from stratal.graph.graph import Graph
from stratal.graph.node import Input, topological
from stratal.optim.grad_scaler import GradScaler
from stratal.optim.optimizer import Optimizer
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.handles import node_of
from stratal.tensor.values.state import MODE, no_grad


class Data(NamedTuple):
    """What `data` was told."""

    optimizers: tuple[Optimizer, ...]
    bucket_bytes: int
    algorithm: str
    local_steps: int = 1


def data(
    *optimizers: Optimizer,
    bucket_bytes: int | None = None,
    algorithm: str = "all_to_all",
    local_steps: int = 1,
) -> Data:
    """Return the strategy of data parallelism, for `parallel`.

    `optimizers`: those the step uses; by default all that the step's variables show. `bucket_bytes`: how many
    bytes of gradients leave at once; by default what the model of links gives. `algorithm`: of all-reduces;
    all_to_all adds in the order of ranks, so that gradients do not depend on buckets, to the bit.
    `local_steps`: each rank takes that many steps by itself, then parameters become their means over ranks,
    which sends less and learns something else: compare the accuracy. Optimizer states stay each rank's own.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("data: takes optimizers", got=type(optimizer).__name__)
    if bucket_bytes is not None and bucket_bytes < 1:
        raise AttributeValueError("data: a bucket holds at least one byte", got=str(bucket_bytes))
    if local_steps < 1:
        raise AttributeValueError("data: ranks take at least one step by themselves", got=str(local_steps))
    return Data(optimizers, bucket_bytes or 0, algorithm, local_steps)


def shard() -> tuple[int, int]:
    """Return (rank, world size), for `DataLoader(..., shard=st.distributed.shard())`."""
    return world().rank, world().size


def parallel(step: Callable[..., Any], strategy: Data) -> Callable[..., Any]:
    """Return a training step that all ranks take together, on their parts of one batch.

    `step` is an ordinary function, compiled or not: forward, backward, `optimizer.step()`. Its loss must be a
    mean over its batch, and the ranks' batches of one size: then the step is that of one process on the whole
    batch. Parameters begin as rank 0 has them. Losses and metrics stay each rank's own.

    Gradients are averaged when the optimizer steps. What is not linear in them, such as clipping by a norm,
    needs `synchronize(optimizer)` first: a step whose own code clips, or that uses a GradScaler, is refused
    without.
    Raises: AttributeValueError where no optimizer is found; CallOrderError as said; ProgramMismatchError
    before the first update where ranks run different programs.
    """
    if not callable(step) or not isinstance(strategy, Data):
        raise DTypeError("parallel: takes a function and a strategy", got=type(strategy).__name__,
                         hint="st.distributed.parallel(step, st.distributed.data())")  # fmt: skip
    found = strategy.optimizers or tuple(_optimizers_of(step))
    if not found:
        raise AttributeValueError(
            "parallel: no optimizer is seen in the step's variables", got=getattr(step, "__name__", "a step"),
            hint="st.distributed.data(optimizer)",
        )  # fmt: skip
    reducers: list[Reducer] = []
    if world().size > 1:
        choose("all_reduce", 1, world().size, world().link, strategy.algorithm)
        for optimizer in found:
            if _reducer_of(optimizer) is not None:
                raise AttributeValueError(
                    "parallel: an optimizer is of one parallel step", got=f"a second one for {optimizer}"
                )
            reducers.append(Reducer(strategy, _reads_gradients(step)))
            _begin_alike(optimizer)
            if strategy.local_steps == 1:
                optimizer.register_step_pre_hook(reducers[-1])
    if world().size > 1 and strategy.local_steps > 1:
        return _local_steps(step, found, strategy.local_steps)

    @functools.wraps(step, updated=())
    def together(*args: Any, **kwargs: Any) -> Any:
        for reducer in reducers:
            reducer.begin()
        return step(*args, **kwargs)

    return together


def _local_steps(
    step: Callable[..., Any], optimizers: Sequence[Optimizer], every: int
) -> Callable[..., Any]:
    """Return a step after which, every so often, parameters become their means over ranks."""
    count = 0

    @functools.wraps(step, updated=())
    def together(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if MODE.trace is not None:
            raise CaptureError(
                "parallel: a step that counts its calls is not compiled from outside", got="local_steps",
                hint="st.distributed.parallel(st.compile(step), st.distributed.data(local_steps=...))",
            )  # fmt: skip
        result = step(*args, **kwargs)
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
            start = 0
            for p in bucket:
                p.copy_(flat[start : start + p.numel()].reshape(p.shape))
                start += p.numel()


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
    reducer = _reducer_of(optimizer)
    if reducer is None:
        raise AttributeValueError(
            "synchronize: the optimizer is of no parallel step", got=type(optimizer).__name__,
            hint="st.distributed.parallel(step, st.distributed.data(optimizer))",
        )  # fmt: skip
    reducer.reduce(optimizer)


class Reducer:
    """Hook of an optimizer, before it steps: makes gradients their means over ranks."""

    def __init__(self, strategy: Data, reader: str) -> None:
        self.strategy: Final = strategy
        self.reader: Final = reader  # what reads gradients before the optimizer steps, if something does
        self._reduced = False  # in this call of the step, since the optimizer stepped

    def begin(self) -> None:
        """Note that a step begins: one that raised may have left gradients reduced."""
        self._reduced = False

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.reader and not self._reduced:
            raise CallOrderError(
                f"parallel: {self.reader} would see this rank's own gradients", got="no synchronize before",
                hint="st.distributed.synchronize(optimizer), behind backward() and before it",
            )  # fmt: skip
        if not self._reduced:
            self.reduce(optimizer)
        self._reduced = False

    def reduce(self, optimizer: Optimizer) -> None:
        within = world()
        limit = self.strategy.bucket_bytes or bucket_bytes(within.size, within.link)
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        with no_grad():
            filled = list(buckets(params[::-1], limit))
            flats = [concat([_gradient(p).reshape((-1,)) for p in bucket]) for bucket in filled]
            means = all_reduce_in_buckets(flats, "mean", self.strategy.algorithm, _program(flats))
            for bucket, mean in zip(filled, means, strict=True):
                start = 0
                for p in bucket:
                    p.grad = mean[start : start + p.numel()].reshape(p.shape)
                    start += p.numel()
        self._reduced = True


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


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None  # those without are in no bucket
    return p.grad


def _program(flats: Sequence[Tensor]) -> str:
    """Return the digest of what computes gradients, where it is being captured: ranks must have it alike."""
    if MODE.trace is None:
        return ""  # what is computed at once differs from step to step: shapes are compared alone
    roots = [node_of(x) for x in flats]
    leaves = [n for n in topological(roots) if isinstance(n.op, Input)]
    return Graph(leaves, roots).digest[:12]


def _reducer_of(optimizer: Optimizer) -> Reducer | None:
    hooks = (hook.function for hook in optimizer._hooks["before step"].values())
    return next((h for h in hooks if isinstance(h, Reducer)), None)


def _begin_alike(optimizer: Optimizer) -> None:
    """Give every rank rank 0's parameters. Raises: ProgramMismatchError where they have other types."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    check_same(", ".join(str(p.type) for p in params), "parameters")
    with no_grad():
        for p in params:
            p.copy_(broadcast(p))


# -- finding optimizers --------------------------------------------------------------------------------------
def _optimizers_of(step: Any) -> Iterator[Optimizer]:
    """Yield the optimizers that the variables of a step show, in containers and attributes of one object."""
    seen: dict[int, Optimizer] = {}
    for value in _variables_of(step):
        for found in _inside(value):
            seen[id(found)] = found
    yield from seen.values()


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


_READERS: Final = {"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"}


def _reads_gradients(step: Any) -> str:
    """Return the name of what a step's own code uses on gradients before its optimizer steps; or nothing."""
    if any(isinstance(v, GradScaler) and v.is_enabled() for v in _variables_of(step)):
        return "GradScaler"
    codes, names = [c for c in (getattr(_innermost(step), "__code__", None),) if c is not None], set[str]()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    return min(names & _READERS, default="")


def _inside(value: Any) -> Iterator[Optimizer]:
    if isinstance(value, Optimizer):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (list, tuple, set)):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        parts = vars(value).values()
    yield from (part for part in list(parts) if isinstance(part, Optimizer))
