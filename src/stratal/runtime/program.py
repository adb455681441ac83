"""A loaded program: kernels linked, memory allocated, commands encoded; `run` is one native call.

Where outputs and states live: an output is computed in fresh memory, or in that of an earlier output nobody
holds any more. A state is written where its Storage stands, except that a Storage somebody looks at through
NumPy moves to fresh memory first. An output that is an input's own value (of a state: its old value) is
copied before the commands; any other output computed elsewhere is copied after them. Outputs never share
memory with anything else.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from sys import getrefcount
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.artifact import Executable, Launch, Once, Value, flat, offloaded
from stratal.base.dtypes import DType, float32, uint64
from stratal.base.errors import CompilerError, ShapeError, StratalError, check_failed
from stratal.base.session import SESSION
from stratal.base.types import TensorType
from stratal.runtime import encode, far_memory
from stratal.runtime.check import CheckedRun, GuardedBlock
from stratal.runtime.host import HostCalls, has_host_calls
from stratal.runtime.loader import load_kernels
from stratal.runtime.pool import LOCK, Pool, pool_for
from stratal.runtime.prologue import Prologue
from stratal.runtime.storage import Array, Layout, Storage, any_exported, any_stamped, layout_of, row_major

_ADDRESS: Final = attrgetter("address")
_LAYOUT: Final = attrgetter("layout")


class Issued(NamedTuple):
    """Storage that was handed out, with its array, and the array that owns the memory.

    Every view NumPy makes of the array refers to one of the two.
    """

    storage: Storage
    array: Array
    owner: Array


def _issue(layout: Layout) -> Issued:
    storage = Storage.in_memory(layout)
    owner = storage.array
    while isinstance(owner.base, type(owner)):
        owner = owner.base
    return Issued(storage, storage.array, owner)


def _unshared() -> tuple[int, int, int]:
    """Return the references of memory nobody looks at, as `OutputMemory.take` counts them."""
    for storage, array, owner in [_issue((TensorType(float32, (1,)), (4,), True))]:
        return getrefcount(storage), getrefcount(array), getrefcount(owner)
    raise AssertionError


_UNSHARED: Final = _unshared()


class OutputMemory:
    """Memory for one output: an earlier run's is used again once nobody holds it, or a view of it.

    So many storages are remembered, more where they are small; a caller that hoards outputs gets fresh memory
    for each.
    """

    __slots__ = ("_capacity", "_issued", "_last", "layout")
    LEAST: Final = 4
    MOST: Final = 128
    SMALL_BYTES: Final = 1 << 16  # of all that is remembered, beyond the least

    def __init__(self, layout: Layout, small_bytes: int = SMALL_BYTES) -> None:
        self.layout: Final = layout
        fit = small_bytes // max(layout[0].nbytes, 1)
        self._capacity: Final = min(max(fit, self.LEAST), self.MOST)
        self._issued: list[Issued] = []
        self._last = 0  # which was taken last: the first to be asked, the one after it is the next

    def take(self) -> Storage:
        """Return storage that nobody else uses, nor its memory."""
        alone, array_alone, owner_alone = _UNSHARED
        issued = self._issued
        count = len(issued)
        first = self._last - count  # from the end: the one after the last is the first
        for at in range(first, first + min(count, self.LEAST)):
            storage, array, owner = issued[at]
            if storage.array is not array:  # it has moved: what it holds now is not ours
                issued[at] = made = _issue(self.layout)
                self._last = at % count
                return made.storage
            if (
                getrefcount(storage) == alone
                and getrefcount(array) == array_alone
                and getrefcount(owner) == owner_alone
            ):
                self._last = at % count
                # As one that never held anything.
                storage.stamp = storage._exports = storage.nodes = storage.handles = None
                storage.pinned = False
                return storage
        made = _issue(self.layout)
        if count < self._capacity:
            self._last = count
            issued.append(made)
        else:
            self._last = (self._last + 1) % count
            issued[self._last] = made
        return made.storage


_FEW_BYTES: Final = 1 << 14
_MOST_SHAPES: Final = 1 << 7
_BATCH_BYTES: Final = 1 << 18  # remembered of one type: a batch of items
_MEMORY: Final = SESSION.cache(dict[tuple[DType, tuple[int, ...]], OutputMemory]())


def new_storage(dtype: DType, shape: tuple[int, ...]) -> Storage:
    """Return uninitialised row-major storage: of a small value that nobody holds any more, or new."""
    memory = _MEMORY.get((dtype, shape))
    return storage_maker(dtype, shape)() if memory is None else memory.take()


def storage_maker(dtype: DType, shape: tuple[int, ...]) -> Callable[[], Storage]:
    """Return what `new_storage` calls, for many values of one type."""
    memory = _MEMORY.get((dtype, shape))
    if memory is None:
        type_ = TensorType(dtype, shape)
        if type_.nbytes > _FEW_BYTES:
            return partial(Storage.empty, type_)
        if len(_MEMORY) >= _MOST_SHAPES:
            _MEMORY.clear()
        memory = _MEMORY[dtype, shape] = OutputMemory(row_major(type_), _BATCH_BYTES)
    return memory.take


class LoadedProgram:
    """An Executable ready to run on its number of threads; `driver` is the native driver's object code.

    `new` gives its memory, see `encode.allocate`.
    """

    def __init__(
        self, executable: Executable, driver: bytes, *, checked: bool | None = None,
        new: Callable[[str, int], Array] | None = None
    ) -> None:
        self.name: Final = executable.name
        self.executable: Final = executable
        commands = list(flat(executable.commands))
        launches = [c for c in commands if isinstance(c, Launch)]
        self._addresses, self._libraries = load_kernels(executable.kernels.values())
        self.checked: Final = settings.verify.value if checked is None else checked
        blocks: dict[str, GuardedBlock] = {}

        def guarded(name: str, nbytes: int) -> Array:
            return blocks.setdefault(name, GuardedBlock(name, nbytes)).payload

        self.memory: Final = encode.allocate(executable, launches, guarded if self.checked else new)
        self._host: Final = HostCalls(executable, at_once=self.checked)
        num_slots = len(executable.inputs) + len(executable.outputs)
        self.encoding: Final = encode.Encoding(
            executable, self.memory, self._addresses, self._host.callback, num_slots
        )
        self.calls_back: Final = has_host_calls(commands)
        values = {value.id: value for value in executable.values}
        self.layouts: Final = [self._layout(values[i]) for i in executable.inputs]
        self._states: Final = executable.states
        self.output_memory: Final = [OutputMemory(self._layout(values[i])) for i in executable.outputs]
        self.bound: object = None  # who put the addresses of all inputs into the slots, if they still stand
        self._offloaded: Final = offloaded(executable.commands, executable.inputs)
        once = any(isinstance(command, Once) for command in commands)
        self.prologue: Final = Prologue(executable.frozen, self.encoding.stale) if once else None
        self._pack: Final = struct.Struct(f"{num_slots}q").pack_into
        self._packed: Final = self.encoding.slots.data.cast("B")
        self.pool: Final[Pool] = pool_for(driver, executable.threads)
        self._host.bind(self.encoding.command_at, self.encoding.places, self.memory, self.pool)
        self._context = self.encoding.context(self.pool.address)
        self._runner = self.pool.runner(encode.address_of(self._context))
        self._running_in = 0  # the process that runs it
        self._is_plain: Final = not (self._states or self.prologue or self.calls_back or self.checked)
        self._check: Final = (
            CheckedRun(executable, self.encoding, blocks, self.pool, self._host) if self.checked else None
        )

    @staticmethod
    def _layout(value: Value) -> Layout:
        itemsize = value.type.dtype.itemsize
        return layout_of(value.type, tuple(s * itemsize for s in value.strides))

    def run(self, inputs: Sequence[Storage]) -> list[Storage]:
        """Run once with one Storage per input: return the outputs, update the states where they stand.

        Another thread that runs a program is waited for. Raises: IndexOutOfRangeError from an
        index check of a kernel; what a host call raised; CompilerError.
        """
        with LOCK:
            if self._running_in == os.getpid():
                hint = "a host call ran the program that called it"
                raise StratalError(f"{self.name}: a program cannot run inside itself", hint=hint)
            self._running_in = os.getpid()
            try:
                return self._run(inputs)
            finally:
                self._running_in = 0

    def run_in_section(self, inputs: Sequence[Storage]) -> list[Storage]:
        """Run once where signal handlers wait; quicker than `run`, which does it where that is not enough."""
        if not self._is_plain or not LOCK.acquire(False):
            return self.run(inputs)
        try:
            if list(map(_LAYOUT, inputs)) != self.layouts:
                inputs = self._fitted(inputs)
            outputs = [memory.take() for memory in self.output_memory]
            self.bound = None
            self._pack(self._packed, 0, *map(_ADDRESS, inputs), *map(_ADDRESS, outputs))
            if not self.pool.started:
                self.pool.ensure_started()
            code = self._runner()
            if code:
                self._fail(code)
            return outputs
        finally:
            LOCK.release()

    def run_in(self, context: Array, inputs: Sequence[Storage]) -> list[Storage]:
        """Run once through another context block, such as one whose records are timed."""
        with LOCK:
            own = self._context, self._runner
            self._context, self._runner = context, self.pool.runner(encode.address_of(context))
            try:
                return self.run(inputs)
            finally:
                self._context, self._runner = own

    def _run(self, inputs: Sequence[Storage]) -> list[Storage]:
        given = inputs
        if list(map(_LAYOUT, inputs)) != self.layouts:
            inputs = self._fitted(inputs)
        if self._states and any_exported():
            for position in self._states:
                if inputs[position].exported:
                    inputs[position].move_to(self.layouts[position])
        if self._offloaded:  # those states lie in a file from the first run on
            far_memory.move([inputs[k] for k in self._offloaded])
        addresses = list(map(_ADDRESS, inputs))
        if self.prologue is not None:
            self.prologue.before(given, addresses)
        if self._states and any_stamped():
            for position in self._states:
                inputs[position].stamp = None
        if self._states and len(set(addresses)) != len(addresses):
            inputs = self._apart(inputs)
            addresses = list(map(_ADDRESS, inputs))
        outputs = [memory.take() for memory in self.output_memory]
        self.bound = None
        self._pack(self._packed, 0, *addresses, *map(_ADDRESS, outputs))
        if self._check is not None:
            self.pool.ensure_started()
            code, self._context[2] = self._check.run(inputs, outputs)
            if code:
                self._fail(code)
        elif self.calls_back:
            with self._host.during([*inputs, *outputs]):
                self.execute()
        else:
            self.execute()
        if self.prologue is not None:
            self.prologue.after()
        return outputs

    def bind(self, owner: object, addresses: Sequence[int], slots: Array) -> None:
        """Let inputs lie at `addresses` until another run; `execute` then fills `slots` alone."""
        self.bound = None
        self.encoding.slots[: len(addresses)] = addresses
        self._context[8] = encode.address_of(slots)
        self.bound = owner

    def execute(self, addresses: Sequence[int] = ()) -> None:
        """Run the commands, with these addresses in the slots named last; call with `LOCK` held."""
        if not self.pool.started:
            self.pool.ensure_started()
        code = self._runner(*addresses)
        if code:
            self._fail(code)

    def _fitted(self, inputs: Sequence[Storage]) -> Sequence[Storage]:
        """Return the inputs in the layouts the program expects.

        Raises: ShapeError for another type or number.
        """
        types = [layout[0] for layout in self.layouts]
        if [s.type for s in inputs] != types:
            raise ShapeError(
                f"{self.name}: the inputs are not those it was compiled for",
                got=", ".join(str(s.type) for s in inputs),
                hint="expected " + ", ".join(map(str, types)),
            )
        fitted = list(inputs)
        for position, (storage, layout) in enumerate(zip(inputs, self.layouts, strict=True)):
            if storage.layout == layout:
                continue
            if position in self._states:
                storage.move_to(layout)
            else:
                fitted[position] = Storage.in_layout(storage.array, layout)
        return fitted

    def _apart(self, inputs: Sequence[Storage]) -> Sequence[Storage]:
        """Return inputs of which none shares the memory of a state, which is written while they are read."""
        apart = list(inputs)
        written = {apart[p].address: p for p in self._states if apart[p].type.nbytes}
        for position, storage in enumerate(inputs):
            state = written.get(storage.address)
            if state is None or state == position or not storage.type.nbytes:
                continue
            if position in self._states:
                raise StratalError(
                    f"{self.name}: two states share one memory", got=f"inputs number {state} and {position}"
                )
            apart[position] = Storage.in_layout(storage.array, self.layouts[position])
        return apart

    def _fail(self, code: int) -> None:
        """Raise what stopped the run.

        A host call's exception is raised by HostCalls before this is reached.
        """
        index = self.encoding.index_of(int(self._context[2]))
        command = self.encoding.command_at[index]
        if isinstance(command, Launch) and command.may_fail:
            index = code - 1 if code > 0 else code + 1  # as `schedule/checks.py` writes it
            if {v.type.dtype for v in self.executable.values if v.id in command.reads} == {uint64}:
                index %= 1 << 64
            raise check_failed(command.may_fail, index).at(command.where)
        got = f"code {code} from {command!r}"[:500]
        raise CompilerError("runtime: a command without a check failed", got=got)
