"""Host calls: Python functions that a running program calls back, with views of planned memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.artifact import Command, CopyDone, CopyStart, Executable, Host
from stratal.base.errors import CompilerError, StratalError
from stratal.base.foreign import calls_through
from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.runtime.copies import Copies
from stratal.runtime.encode import Memory, Places, address_of
from stratal.runtime.far_memory import Location, location
from stratal.runtime.pool import Pool
from stratal.runtime.storage import Array, Storage

_PROTOTYPE: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class _Home(NamedTuple):
    """Where a value lies: in an input or output of the run, or as an array in the program's memory."""

    slot: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    array: Array | None


class HostCalls:
    """The host calls of one program.

    `callback` is what the driver calls; an exception waits in `raised` until the run is over.
    """

    def __init__(self, executable: Executable, *, at_once: bool = False) -> None:
        """`at_once`: copies are done when the command that begins them is, as where memory is checked."""
        self._calls: Final = executable.calls
        self._copies: Final = Copies()
        self._at_once: Final = at_once
        self._thunk: Final = _PROTOTYPE(self._enter)
        self.callback: Final = ctypes.cast(self._thunk, ctypes.c_void_p).value or 0
        self.raised: BaseException | None = None
        self._commands: Sequence[object] = ()
        self._places: Places | None = None
        self._memory: Memory | None = None
        self._homes: dict[int, _Home] = {}
        self._slots: Sequence[Storage] = ()

    def bind(self, commands: Sequence[object], places: Places, memory: Memory, pool: Pool) -> None:
        """Say what the indices of the callback mean, where values lie, and whose threads calls may use."""
        self._commands, self._places, self._memory = commands, places, memory
        self._through = calls_through(pool.threads, pool.call_each)
        self._homes = {}

    @contextmanager
    def during(self, slots: Sequence[Storage]) -> Iterator[None]:
        """Let host calls see this run's inputs and outputs; afterwards raise what one of them raised."""
        self._slots, self.raised = slots, None
        try:
            with UNINTERRUPTIBLE, self._through:  # an interrupt would leave states half updated
                yield
        finally:
            self._copies.drain()
            self._slots = ()
            raised, self.raised = self.raised, None
            if raised is not None:
                raise raised

    def _enter(self, index: int) -> int:
        try:
            command = self._commands[index]
            if isinstance(command, Host):
                self._call(command)
            elif isinstance(command, CopyStart):
                self._begin_copy(command)
            elif not isinstance(command, CopyDone):
                raise CompilerError("runtime: a host record without a host command", got=repr(command))
            elif not self._at_once:
                self._copies.finish(command)
        except BaseException as error:
            self.raised = error
            return 1
        return 0

    def _call(self, command: Host) -> None:
        call = self._calls[command.call]
        if not callable(call):
            raise CompilerError("runtime: a host call that cannot be called", got=repr(call))
        reads = [self._view(id_) for id_ in command.reads]
        for view in reads:
            view.flags.writeable = False
        try:
            results: Any = call(*reads)
        except StratalError as error:
            raise error.at(command.where) from None
        if not isinstance(results, (tuple, list)):
            results = (results,)
        if len(results) != len(command.writes):
            raise CompilerError(
                f"host call {command.label or command.call}: wrong number of results",
                got=f"{len(results)}, not {len(command.writes)}",
                where=command.where,
            )
        for id_, result in zip(command.writes, results, strict=True):
            self._store(command, id_, np.asarray(result))

    def _begin_copy(self, copy: CopyStart) -> None:
        assert self._places is not None
        nbytes = self._places.value(copy.source).nbytes
        self._copies.begin(copy, self._location(copy.source), self._location(copy.target), nbytes)
        if self._at_once:
            self._copies.finish(CopyDone(copy.source, copy.target))

    def _location(self, id_: int) -> Location | int:
        """Return where a value lies: in a file, or at an address."""
        assert self._places is not None
        place = self._places[id_]
        if place.slot is None:
            return place.address
        storage = self._slots[place.slot]
        return location(storage) or storage.address + place.address

    def _store(self, command: Host, id_: int, result: Array) -> None:
        target = self._view(id_)
        if result.shape != target.shape or result.dtype != target.dtype:
            raise CompilerError(
                f"host call {command.label or command.call}: a result of another type",
                got=f"{result.dtype}{list(result.shape)}, not {target.dtype}{list(target.shape)}",
                where=command.where,
            )
        np.copyto(target, result)

    def _view(self, id_: int) -> Array:
        home = self._homes.get(id_)
        if home is None:
            home = self._homes[id_] = self._home(id_)
        if home.slot is None:
            assert home.array is not None
            return home.array.view()
        array = self._slots[home.slot].array
        if array.dtype != home.dtype:  # the same bytes under another type
            if not array.flags.c_contiguous:  # `reshape` would copy, and what is written be lost
                raise CompilerError("runtime: bytes that lie apart are seen under another type")
            array = array.reshape(-1).view(home.dtype)
        if array.shape == home.shape and array.strides == home.strides:
            return array.view()
        return np.lib.stride_tricks.as_strided(array, home.shape, home.strides)

    def _home(self, id_: int) -> _Home:
        assert self._places is not None and self._memory is not None
        value, place = self._places.value(id_), self._places[id_]
        shape, strides = value.type.ints, tuple(s * value.type.dtype.itemsize for s in value.strides)
        if place.slot is not None:
            return _Home(place.slot, shape, strides, value.type.dtype.np, None)
        for block in (self._memory.arena, self._memory.persistent, self._memory.constants):
            offset = place.address - address_of(block)
            if offset >= 0 and offset + value.nbytes <= block.nbytes:
                array = np.ndarray(shape, value.type.dtype.np, block.data, offset, strides)
                return _Home(None, shape, strides, array.dtype, array)
        raise CompilerError("runtime: a host value lies in no memory of the program", got=f"%{id_}")


def has_host_calls(commands: Sequence[Command | object]) -> bool:
    """Whether any of these flat commands calls back."""
    return any(isinstance(command, (Host, CopyStart)) for command in commands)
