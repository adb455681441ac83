"""Parameter servers: ranks that own parameters and update them with the gradients that workers push.

    worker   forward, backward -> push gradients ..................... pull parameters -> next step
    server   receive pushes -> optimizer step on the parameters it owns -> send them back

The last ranks of a job are servers, the others workers. A parameter, with its optimizer state, is owned by
one server as a whole. Of M bytes of parameters each of N workers sends M and receives M in a step: 2MN.

    sync    a server waits for the gradients of all workers, adds them in the order of ranks, and steps once
    async   every push is a step of its own; a worker that is more than `staleness` steps ahead of the slowest
            one gets its parameters when that has caught up (stale synchronous parallel)

Sources: Li et al., "Scaling distributed machine learning with the parameter server", 2014; Ho et al., "More
effective distributed ML via a stale synchronous parallel parameter server", 2013.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, CallOrderError, CaptureError, DTypeError
from stratal.distributed.algorithms import Round
from stratal.distributed.collectives import broadcast
from stratal.distributed.links import bucket_bytes
from stratal.distributed.overlapped import communicator, exchange_in_buckets
from stratal.distributed.reducer import (
    Reducer,
    buckets,
    check_gradients,
    gradient_of,
    pieces,
    program_digest,
    reducer_of,
)
from stratal.distributed.served_programs import LENGTH, OFFSET, Programs
from stratal.distributed.served_state import own_state, whole_state
from stratal.distributed.world import world
from stratal.optim.group import updated
from stratal.optim.optimizer import Optimizer
from stratal.tensor.capture import note_mutation
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE, no_grad

Array = np.ndarray[Any, Any]
_FIRST_CHANNEL: Final = 1000  # below are the tags of `send`
_CHANNELS: Final = OFFSET


class ParameterServer(NamedTuple):
    """What `parameter_server` was told, and which part this rank has."""

    optimizers: tuple[Optimizer, ...]
    servers: int
    mode: str
    staleness: int
    bucket_bytes: int
    algorithm: str = ""  # messages go straight to their server

    @property
    def workers(self) -> int:
        """How many ranks train. Raises: AttributeValueError where there would be none."""
        size = world().size
        if size == 1:
            return 1
        if self.servers >= size:
            raise AttributeValueError(
                "parameter_server: at least one rank trains", got=f"{self.servers} servers of {size} ranks",
                hint=f"stratal launch -n {self.servers + 1} starts one worker more than servers",
            )  # fmt: skip
        return size - self.servers

    @property
    def is_server(self) -> bool:
        """Whether this rank serves; no rank does in a job of one rank."""
        return world().rank >= self.workers

    def shard(self) -> tuple[int, int]:
        """Return (worker, number of workers), for `DataLoader(..., shard=...)`.

        On a server that of worker 0: it asks for as many batches as workers do, and uses none.
        """
        return (0 if self.is_server else world().rank), self.workers


def parameter_server(
    *optimizers: Optimizer, servers: int = 1, mode: str = "sync", staleness: int | None = None,
    bucket_bytes: int | None = None,
) -> ParameterServer:  # fmt: skip
    """Return the strategy of data parallelism over parameter servers, for `parallel`.

    The last `servers` ranks serve, the others train. `mode`: "sync" learns what one process learns on the
    whole batch; "async" takes a step of the optimizer for every worker's gradients alone, with parameters
    from which up to `staleness` steps of the slowest worker may be missing (4). `optimizers` and
    `bucket_bytes` as for `data`; each optimizer steps exactly once in a call of the parallel step.
    Raises: AttributeValueError.
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("parameter_server: takes optimizers", got=type(optimizer).__name__)
    if servers < 1:
        raise AttributeValueError("parameter_server: there is at least one server", got=str(servers))
    if mode not in ("sync", "async"):
        raise AttributeValueError("parameter_server: mode is 'sync' or 'async'", got=repr(mode))
    if staleness is not None and (mode == "sync" or staleness < 0):
        raise AttributeValueError(
            "parameter_server: staleness is a number of steps from 0 on, of mode='async'",
            got=f"{staleness} with mode={mode!r}",
        )  # fmt: skip
    if bucket_bytes is not None and bucket_bytes < 1:
        raise AttributeValueError("parameter_server: a bucket holds at least one byte", got=str(bucket_bytes))
    allowed = 0 if mode == "sync" else 4 if staleness is None else staleness
    return ParameterServer(optimizers, servers, mode, allowed, bucket_bytes or 0)


class Part(NamedTuple):
    """Parameters whose gradients are one message to the server that owns them."""

    params: tuple[Tensor, ...]
    server: int  # its rank

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of the parameters' shapes end to end."""
        return concat([t.reshape((-1,)) for t in tensors])

    def take(self, flat: Tensor) -> None:
        """Write what stands end to end into the parameters."""
        for p, piece in pieces(self.params, flat):
            p.copy_(piece)


def parts_of(params: Sequence[Tensor], servers: Sequence[int], limit: int) -> list[Part]:
    """Return parts of at most `limit` bytes, or one parameter, by server and the last layer's first.

    The largest parameters are dealt first, each to the server that has the fewest bytes. All workers push in
    the order of servers: otherwise two servers could wait for workers that push to the other one.
    """
    loads, owner = dict.fromkeys(servers, 0), {}
    for p in sorted(params, key=lambda p: -p.nbytes):
        owner[p] = min(servers, key=loads.__getitem__)
        loads[owner[p]] += p.nbytes
    return [
        Part(tuple(bucket), server)
        for server in servers
        for bucket in buckets([p for p in params[::-1] if owner[p] == server], limit)
    ]


class ServedOptimizer(Reducer):
    """Hook of an optimizer whose parameters are owned by servers."""

    def __init__(self, strategy: ParameterServer, optimizer: Optimizer) -> None:
        super().__init__(strategy)
        within, workers = world(), strategy.workers
        self.optimizer: Final = optimizer
        self.channel: Final = _new_channel()
        self.bound: Final = strategy.staleness
        params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        limit = strategy.bucket_bytes or bucket_bytes(within.size, within.link)
        self.parts: Final = parts_of(params, range(workers, within.size), limit)
        own = [part for part in self.parts if part.server == within.rank]
        self.serving: Final = Serving(self, own, workers, strategy.mode) if strategy.is_server else None
        state = optimizer.state_dict()
        mine = {p for part in own for p in part.params}
        for group in optimizer.param_groups:
            group.shards = [p for p in group["params"] if p in mine]
        note_mutation()
        optimizer.register_state_dict_post_hook(self.gathered)
        optimizer.register_load_state_dict_pre_hook(self.of_server)
        optimizer.load_state_dict(state)

    # -- on workers ------------------------------------------------------------------------------------------
    def before(self, optimizer: Optimizer) -> None:
        """Send gradients and take over the parameters that come back; the step itself has nothing to do."""
        if self.serving is not None:
            return
        check_gradients(optimizer, [p for part in self.parts for p in part.params], "parameter_server")
        with no_grad():
            flats = [part.flat([gradient_of(p) for p in part.params]) for part in self.parts]
            servers = [part.server for part in self.parts]
            found = exchange_in_buckets(flats, servers, self.channel, program_digest(flats))
            for part, flat in zip(self.parts, found, strict=True):
                part.take(flat)

    def reduce(self, optimizer: Optimizer) -> None:
        raise CallOrderError(
            "parameter_server: gradients over the whole batch are known to servers alone",
            got="clipping, a loss scaler or synchronize()", hint="train with st.distributed.data() or zero()",
        )  # fmt: skip

    # -- state dicts -----------------------------------------------------------------------------------------
    def gathered(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        servers = range(self.strategy.workers, world().size)  # type: ignore[attr-defined]
        return whole_state(optimizer, servers, _owned(optimizer), state_dict)

    def of_server(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return own_state(optimizer, _owned(optimizer), state_dict)

    @property
    def pushed(self) -> int:
        """How many parts this worker has pushed so far."""
        return communicator().exchanges(self.channel).started


def _new_channel() -> int:
    """Return the tag of an optimizer's messages; ranks make their parallel steps in one order."""
    axis = communicator()
    axis.channels += 1
    return _FIRST_CHANNEL + axis.channels % _CHANNELS


def _owned(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that this rank updates, in the order of a state dict."""
    return [p for group in optimizer.param_groups for p in updated(group)]


# -- on servers ----------------------------------------------------------------------------------------------
class Serving:
    """What a server knows of the workers of one optimizer."""

    def __init__(self, served: ServedOptimizer, parts: Sequence[Part], workers: int, mode: str) -> None:
        self.served: Final = served
        self.parts: Final = parts
        self.sync: Final = mode == "sync"
        self.pushes = 0  # complete ones, of all workers
        self.steps: list[tuple[int, int, int, int]] = []  # worker, its step, steps behind, updates missed
        self._got: Final[list[list[Array]]] = [[] for _ in range(workers)]  # parts of the push under way
        self._waiting: Final[dict[int, int]] = {}  # workers without an answer, and the updates they missed
        self._clocks: Final = [0] * workers
        self._read: Final = [0] * workers  # the number of updates in what each worker pulled last
        self._updates = 0
        self._programs: Final = Programs(workers)

    def sources(self) -> list[tuple[int, int]]:
        """Return the (rank, channel) of workers that may push."""
        return [(w, self.served.channel) for w in range(len(self._got)) if w not in self._waiting]

    def receive(self, worker: int) -> None:
        """Receive the next part of a worker's push; update and answer where that is the last one."""
        got = self._got[worker]
        if not got:
            self._check_program(worker)
        part = self.parts[len(got)]
        count = sum(p.numel() for p in part.params)
        got.append(np.empty(count, part.params[0].dtype.np))
        self._send_or_receive(
            Round([], [(worker, got[-1])]), f"push of {got[-1].dtype}[{count}] from rank {worker}"
        )
        if len(got) < len(self.parts):
            return
        self.pushes += 1
        self._clocks[worker] += 1
        self._waiting[worker] = self._updates - self._read[worker]
        if not self.sync:
            self._update([worker])
        elif len(self._waiting) == len(self._got):
            self._update(range(len(self._got)))
        slowest = min(self._clocks)
        ready = [w for w in sorted(self._waiting) if self._clocks[w] - slowest <= self.served.bound]
        if ready:
            self._answer(ready, slowest)

    def _check_program(self, worker: int) -> None:
        """Receive which program a worker runs, if it says so before the push that has come."""
        channel, what = self.served.channel, f"program of rank {worker}"
        told = (worker, channel + OFFSET)
        if world().next_message([told, (worker, channel)], what) == told:
            message = np.empty(LENGTH, np.uint8)
            world().run(lambda: iter([Round([], [(worker, message)])]), what, told[1])
            self._programs.told(worker, message)
        self._programs.check(worker, self._clocks[worker])

    def _update(self, workers: Sequence[int]) -> None:
        """Take one step with the mean of some workers' gradients, added in the order of ranks."""
        optimizer = self.served.optimizer
        with no_grad():
            for k, part in enumerate(self.parts):
                total = self._got[workers[0]][k]
                for w in workers[1:]:
                    np.add(total, self._got[w][k], out=total)
                np.divide(total, np.asarray(len(workers), total.dtype), out=total)
                for p, piece in pieces(part.params, tensor(total)):
                    p.grad = piece
            optimizer.step()
            for p in (p for part in self.parts for p in part.params):
                p.grad = None
        for w in workers:
            self._got[w].clear()
        self._updates += 1

    def _answer(self, workers: Sequence[int], slowest: int) -> None:
        with no_grad():
            flats = [np.array(part.flat([p.detach() for p in part.params])) for part in self.parts]
        sends = [(w, flat) for w in workers for flat in flats]
        self._send_or_receive(Round(sends, []), f"parameters to ranks {', '.join(map(str, workers))}")
        for w in workers:
            self._read[w] = self._updates
            self.steps.append((w, self._clocks[w], self._clocks[w] - slowest, self._waiting.pop(w)))

    def _send_or_receive(self, messages: Round, what: str) -> None:
        world().run(lambda: iter([messages]), what, self.served.channel)


class Server:
    """The step of a server: it lasts until as many pushes came as its workers make in a step of theirs."""

    def __init__(self, served: Sequence[ServedOptimizer], workers: int) -> None:
        found = [s.serving for s in served if s.serving is not None and s.serving.parts]
        self._serving: Final = {serving.served.channel: serving for serving in found}
        self._workers: Final = workers
        self._due = 0
        self._last = 0  # the worker served last: the others are asked first

    def serve(self) -> None:
        """Serve one step. Raises: what waiting for messages raises."""
        self._due += self._workers
        while any(s.pushes < self._due for s in self._serving.values()):
            sources = [source for s in self._serving.values() for source in s.sources()]
            sources.sort(key=lambda source: (source[0] - self._last - 1) % self._workers)
            ranks = ", ".join(map(str, sorted({rank for rank, _ in sources})))
            worker, channel = world().next_message(sources, f"the next push of rank {ranks}")
            self._last = worker
            self._serving[channel].receive(worker)


def served_step(
    together: Callable[..., Any], served: Sequence[ServedOptimizer], step: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the step of a worker, or of a server, which returns None."""
    workers = min(part.server for s in served for part in s.parts)
    server = Server(served, workers) if served[0].serving is not None else None

    @functools.wraps(step, updated=())
    def taken(*args: Any, **kwargs: Any) -> Any:
        if MODE.trace is not None:
            raise CaptureError(
                "parallel: a step that a server takes part in is not compiled from outside",
                got="parameter_server",
                hint="st.distributed.parallel(st.compile(step), st.distributed.parameter_server())",
            )  # fmt: skip
        if server is not None:
            return server.serve()
        before = [s.pushed for s in served]
        with world().without_collectives("a step with parameter servers"):
            result = together(*args, **kwargs)
        for s, pushed in zip(served, before, strict=True):
            if s.pushed - pushed != len(s.parts):
                raise CallOrderError(
                    "parameter_server: an optimizer steps once in each call, since servers count steps",
                    got=f"{(s.pushed - pushed) // len(s.parts)} steps of {type(s.optimizer).__name__}",
                    hint="accumulate gradients inside of the step; data() takes any number",
                )  # fmt: skip
        return result

    return taken


# -- on all ranks --------------------------------------------------------------------------------------------
def pull(optimizer: Optimizer) -> None:
    """Give every rank, servers too, the parameters of an optimizer as servers have them now.

    Every rank calls it, for instance after the last step: workers of mode="async" end with parameters of
    different steps, and a server's model has only the parameters it owns up to date.
    """
    if world().size == 1:
        return
    with no_grad():
        for part in served_by(optimizer, "pull").parts:
            part.take(broadcast(part.flat([p.detach() for p in part.params]), part.server))


def served_by(optimizer: Optimizer, name: str) -> ServedOptimizer:
    """Return the hook of an optimizer, for a function of a name. Raises: AttributeValueError."""
    found = reducer_of(optimizer)
    if not isinstance(found, ServedOptimizer):
        raise AttributeValueError(
            f"{name}: the optimizer is of no step with parameter servers", got=type(optimizer).__name__,
            hint="st.distributed.parallel(step, st.distributed.parameter_server(optimizer))",
        )  # fmt: skip
    return found
