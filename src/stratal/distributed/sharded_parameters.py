"""ZeRO's third stage, as FSDP: every rank keeps a shard of the parameters, too.

    between steps     this rank's shard, with its optimizer state; a parameter has no memory, reading it is an
                      error that says so
    in a step         captured whole; when the optimizer steps, gathers are put where parameters are read
                      (`gathering`), gradients are scattered, and the shard is updated
    full_parameters   whole on every rank, for evaluation and for files

A step is captured with a placeholder in place of each parameter: only once backward is known can be said when
which bucket is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from stratal.base.errors import (
    AttributeValueError,
    CallOrderError,
    CaptureError,
    DTypeError,
    StratalError,
    UndecidedError,
)
from stratal.distributed.collectives import all_gather
from stratal.distributed.gathering import Bucket, Gathering, Sending
from stratal.distributed.overlapped import AXIS, all_reduce_in_buckets, communicator
from stratal.distributed.reducer import gradient_of, pieces, program_digest, reducer_of
from stratal.distributed.zero import Shard, ShardedReducer, Zero
from stratal.graph.node import Node, graph_input
from stratal.nn.utils.gradients import Gradients
from stratal.optim.optimizer import Optimizer
from stratal.tensor.build import where_now
from stratal.tensor.capture import note_mutation
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.handle import (
    CONSTANT,
    TRACKED,
    Handle,
    Scope,
    detach_from_memory,
    enter_trace,
    give_gradient,
    invalidate,
    leave_trace,
    set_node,
    set_state,
)
from stratal.tensor.values.state import MODE, no_grad
from stratal.tensor.values.trace import Trace


class Released(Scope):
    """Where parameters are while they have no memory."""

    name = "zero(3)"

    def refusal(self, tensor: Handle, asked: str) -> Exception:
        return CallOrderError(
            "zero(3): a parameter is sharded, and whole until the optimizer steps in a parallel step alone",
            got=f"{tensor.type} for {asked}",
            hint="with st.distributed.full_parameters(optimizer), on every rank, gathers all of them",
        )  # fmt: skip


_RELEASED: Final = Released()


class ShardedParameters(ShardedReducer):
    """Hooks of an optimizer whose parameters are sharded, with its update and state."""

    def __init__(self, strategy: Zero, optimizer: Optimizer) -> None:
        super().__init__(strategy, optimizer)
        self.params: Final = [p for shard in self.all_shards() for p in shard.params]
        shown = next(
            (p for p in self.params if p._view is not None and len(p._view.memory.alive()) > 1), None
        )
        if shown is not None:
            raise AttributeValueError(
                "zero(3): a parameter shares its memory with another tensor", got=str(shown.type),
                hint="zero(2) leaves parameters whole",
            )  # fmt: skip
        self._trace: Trace | None = None  # the capture of the step under way
        self._inputs: dict[Tensor, Node] = {}
        self._shared = False  # whether shards have their gradients already, in the step under way
        for group in optimizer.param_groups:
            group.has_params = False
        self.take_shards()

    # -- between steps ---------------------------------------------------------------------------------------
    def take_shards(self) -> None:
        """Keep this rank's part of parameters that are whole, and let go of the rest."""
        with no_grad():
            for shard in self.all_shards():
                own = np.array(shard.part([p.detach() for p in shard.params]))
                shard.own.copy_(tensor(own))
                np.asarray(shard.own)  # now: it reads nothing of what is let go
        for p in self.params:
            invalidate(p)
            set_state(p, None, graph_input("", p.type), TRACKED)
            self._release(p)
        note_mutation()

    def give_back(self) -> None:
        """Make parameters whole on every rank; every rank calls it."""
        for shard in self.all_shards():
            whole = np.array(all_gather(np.array(shard.own.detach()), algorithm=self.strategy.algorithm))
            for p, piece in pieces(shard.params, tensor(whole)):
                made = tensor(np.array(piece))
                assert made._storage is not None  # of an array
                leave_trace(p, made._storage)
        note_mutation()

    def _release(self, p: Tensor) -> None:
        enter_trace(p, _RELEASED)
        give_gradient(p, None)
        detach_from_memory(p)

    # -- steps -----------------------------------------------------------------------------------------------
    def begin(self) -> None:
        super().begin()
        trace = MODE.trace
        if trace is None or trace.parent is not None:
            raise CaptureError(
                "zero(3): gathers are put into a step that is compiled", got="a step that runs at once",
                hint="st.compile(st.distributed.parallel(step, st.distributed.zero(3)))",
            )  # fmt: skip
        whole = next((p for p in self.params if p._trace is not _RELEASED), None)
        if whole is not None:
            raise CallOrderError("zero(3): a step begins with sharded parameters",
                                 got=f"{whole.type} is whole, as in full_parameters")  # fmt: skip
        self._trace = trace
        for p in self.params:
            self._inputs[p] = node_values.placeholder("sharded parameter", p.type, trace.name)
            set_node(p, self._inputs[p], TRACKED)
            enter_trace(p, trace)
            trace.made(p)

    def end(self) -> None:
        trace = self._trace
        if self._shared or (trace is not None and trace.losses):
            raise CallOrderError("zero(3): gradients do not stay from one step to the next",
                                 got="backward() without optimizer.step()")  # fmt: skip
        if trace is None:  # the optimizer has stepped
            return
        self._weave(trace, [])
        self._close(trace)

    def failed(self, error: BaseException) -> None:
        """Release parameters. Errors become CaptureErrors: after any other the step would run again, not
        compiled, where parameters are not whole and the first error would be hidden.
        """
        if self._trace is not None:
            self._close(self._trace)
        self._drop_gradients()
        if MODE.trace is None or isinstance(error, CaptureError | UndecidedError):
            return
        if isinstance(error, StratalError):
            raise CaptureError(error.rule, got=error.got, where=error.where, hint=error.hint) from error
        if isinstance(error, Exception):
            raise CaptureError(
                "zero(3): the step raised while it was captured", got=f"{type(error).__name__}: {error}",
                hint="the cause of this error is the one that it raised",
            ) from error  # fmt: skip

    def before(self, optimizer: Optimizer) -> None:
        if not self._shared:
            self._share(optimizer, "another step of it")
        elif any(p.grad is not None for p in self.params):
            raise CallOrderError("zero(3): gradients that were clipped or unscaled stay as they are",
                                 got="another one behind that", hint="zero(2) takes them")  # fmt: skip
        self._shared = False

    def _share(self, optimizer: Optimizer, what: str) -> None:
        """Give every shard this rank's part of the mean gradients; parameters have no memory any more."""
        trace = self._trace
        if trace is None or MODE.trace is not trace:
            raise CallOrderError(
                "zero(3): the optimizer steps once in a parallel step, outside of branches and loops",
                got=what, hint="zero(2) takes any number",
            )  # fmt: skip
        self.check_gradients(optimizer)
        changed = next((p for p, node in self._inputs.items() if node_of(p) is not node), None)
        if changed is not None:
            raise CallOrderError(
                "zero(3): the optimizer alone changes parameters in a step",
                got=f"{changed.type} was written", hint="zero(2) leaves them whole",
            )  # fmt: skip
        with no_grad():
            shards = self.all_shards()
            flats = [s.flat([gradient_of(p) for p in s.params]) for s in shards]
            parts = self._weave(trace, flats)
            for shard, part in zip(shards, parts, strict=True):
                shard.own.grad = part
        self._close(trace)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        self._shared = False
        for shard in self.all_shards():
            shard.own.grad = None

    def reduce(self, optimizer: Optimizer) -> None:
        raise CallOrderError(
            "zero(3): gradients are whole on no rank", got="synchronize()",
            hint="clip_grad_norm_, clip_grad_value_ and GradScaler take shares; zero(2) makes them whole",
        )  # fmt: skip

    def reduced(self, optimizer: Optimizer) -> bool:
        return False  # what reads them asks for shares

    def with_shared_gradient(self) -> Sequence[Tensor]:
        return self.params if self._shared else ()

    def shared_gradients(self, optimizer: Optimizer, params: Sequence[Tensor]) -> Gradients:
        if not self._shared:
            if set(params) != set(self.params):
                raise CallOrderError(
                    "zero(3): the gradients of all of an optimizer's parameters are read together",
                    got=f"{len(set(params))} parameters for its {len(self.params)}",
                    hint="zero(2) takes some of them, or of several optimizers",
                )  # fmt: skip
            self._share(optimizer, "gradients read behind it, or inside of one")
            self._shared = True
        return Gradients([gradient_of(s.own) for s in self.all_shards()], over_ranks)

    def _weave(self, trace: Trace, flats: Sequence[Tensor]) -> list[Tensor]:
        """Put gathers into all that was captured; return this rank's parts of the means of gradients."""
        shards = self.all_shards()
        buckets = [
            Bucket(node_of(s.own), tuple(self._inputs[p] for p in s.params), _splitter(s)) for s in shards
        ]
        sending = Sending(
            AXIS, communicator().size, self.strategy.algorithm, program_digest(flats), where_now()
        )
        gathering = Gathering(buckets, trace.losses, sending)
        gathering.gather_forward()
        parts = gathering.scatter([node_of(flat) for flat in flats])
        for handle in [t for r in trace.created if (t := r()) is not None and t._trace is trace]:
            if handle not in self._inputs and (node := handle._node) is not None:
                set_node(handle, gathering.new(node), handle._track)
        for cell in trace.cells.values():
            cell.node = gathering.new(cell.node)
        trace.tokens[:] = [gathering.new(token) for token in trace.tokens]
        if gathering.chain.last is not None:
            trace.tokens.append(gathering.chain.last)
        return [wrap(part, CONSTANT) for part in parts]

    def _close(self, trace: Trace) -> None:
        """Let go of parameters: what comes behind in the step cannot read them."""
        self._trace = None
        mine = set(map(id, self.params))
        trace.created[:] = [r for r in trace.created if (t := r()) is not None and id(t) not in mine]
        for p, node in self._inputs.items():
            set_node(p, node, TRACKED)
            self._release(p)
        self._inputs = {}


def over_ranks(x: Tensor, op: str) -> Tensor:
    """Return the reduction over ranks of a scalar, in the order of ranks."""
    found: Tensor = all_reduce_in_buckets([x.reshape((1,))], op, "all_to_all", "")[0].reshape(())
    return found


def _splitter(shard: Shard) -> Any:
    def split(flat: Node) -> list[Node]:
        with no_grad():
            return [node_of(piece) for _, piece in pieces(shard.params, wrap(flat, CONSTANT))]

    return split


@contextmanager
def full_parameters(optimizer: Optimizer) -> Iterator[None]:
    """Make the parameters of an optimizer whole on every rank inside of the block, if they are sharded.

    Every rank enters it, between steps: for evaluation, `state_dict()`, `load_state_dict()`. What is written
    to parameters in the block is kept, and must be the same on all ranks.
    """
    if not isinstance(optimizer, Optimizer):
        raise DTypeError("full_parameters: takes an optimizer", got=type(optimizer).__name__)
    sharded = reducer_of(optimizer)
    if not isinstance(sharded, ShardedParameters):
        yield
        return
    if MODE.trace is not None:
        raise CaptureError("full_parameters: gathers between steps", got="inside of a compiled function")
    sharded.give_back()
    try:
        yield
    finally:
        sharded.take_shards()
