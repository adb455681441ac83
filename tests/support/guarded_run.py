"""Runs a compiled program one kernel at a time with every buffer against a page that cannot be touched.

A kernel that reads or writes one byte beyond a buffer ends the process, so callers run this in a process of
its own. Chunks run in reverse order: none may need what another one does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from guard_pages import Edge, guarded_array

from stratal.base.artifact import Branch, Command, Copy, Executable, Host, Launch, Loop, Once, Value, While
from stratal.memory.liveness import roots
from stratal.runtime.loader import load_kernels

Array = np.ndarray[Any, Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)


class Frame(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("ints", ctypes.c_void_p),
        ("floats", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("error", ctypes.c_void_p),
    ]


class IndexCheckFailed(Exception):
    """A kernel met an index out of range."""


class GuardedRun:
    """One program in guarded memory: values that share memory share a block between pages."""

    def __init__(self, executable: Executable, flush: Edge) -> None:
        self.executable = executable
        self.flush: Edge = flush
        self.values = {v.id: v for v in executable.values}
        self.addresses, self._libraries = load_kernels(executable.kernels.values())
        shared = roots(executable.values)
        blocks = {
            r: guarded_array((self.values[r].nbytes,), np.dtype(np.uint8), flush=flush)
            for r in set(shared.values())
        }
        for block in blocks.values():
            block[:] = 0xFF  # a NaN in every float: what nobody wrote must not be read
        self.memory = {id_: blocks[r] for id_, r in shared.items()}
        for value in executable.values:
            if value.home == "const":
                self.memory[value.id][:] = np.frombuffer(executable.constants[value.index], np.uint8)
        self.scratch = guarded_array((executable.scratch_bytes,), np.dtype(np.uint8), flush=flush)
        self.error = ctypes.c_int64(0)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return outputs, then new states."""
        for id_, array in zip(self.executable.inputs, inputs, strict=True):
            self.view(id_)[...] = array
        self.commands(self.executable.commands)
        states = [self.executable.inputs[p] for p in self.executable.states]
        return [self.view(id_).copy() for id_ in (*self.executable.outputs, *states)]

    def view(self, id_: int) -> Array:
        value: Value = self.values[id_]
        strides = tuple(s * value.type.dtype.itemsize for s in value.strides)
        data = self.memory[id_].data
        return np.ndarray(value.type.ints, value.type.dtype.np, data, self.offset(id_), strides)

    def offset(self, id_: int) -> int:
        """Return where a value starts in its block: a row of another value moves with its counter."""
        value, bytes_in = self.values[id_], 0
        while value.alias is not None:
            if value.row is not None:
                bytes_in += int(self.view(value.row)) * value.nbytes
            value = self.values[value.alias]
        return bytes_in

    def bytes_of(self, id_: int) -> Array:
        start = self.offset(id_)
        return self.memory[id_][start : start + self.values[id_].nbytes]

    def commands(self, commands: Sequence[Command]) -> None:
        for c in commands:
            if isinstance(c, Launch):
                self.launch(c)
            elif isinstance(c, Copy):
                self.bytes_of(c.target)[:] = self.bytes_of(c.source).copy()
            elif isinstance(c, Host):
                self.host(c)
            elif isinstance(c, Branch):
                self.commands(c.then if self.view(c.predicate) else c.otherwise)
            elif isinstance(c, Loop):
                self.loop(c)
            elif isinstance(c, Once):
                self.commands(c.body)
            else:
                self.while_(c)

    def loop(self, c: Loop) -> None:
        trips = c.trips if c.trips_value is None else max(0, min(c.trips, int(self.view(c.trips_value))))
        for turn in range(trips):
            self.view(c.counter)[...] = trips - 1 - turn if c.reverse else turn
            self.commands(c.body)

    def while_(self, c: While) -> None:
        self.commands(c.condition)
        while self.view(c.predicate):
            self.commands(c.body)
            self.commands(c.condition)

    def host(self, c: Host) -> None:
        results = self.executable.calls[c.call](*(self.view(id_).copy() for id_ in c.reads))  # type: ignore[operator]
        for id_, result in zip(c.writes, results if isinstance(results, tuple) else (results,), strict=True):
            self.view(id_)[...] = result

    def launch(self, c: Launch) -> None:
        pointers = [self.memory[id_].ctypes.data + self.offset(id_) for id_ in (*c.reads, *c.writes)]
        buffers = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        scratch = self.scratch.ctypes.data
        frame = Frame(ctypes.addressof(buffers), None, None, scratch, 0, ctypes.addressof(self.error))
        kernel = KERNEL(self.addresses[c.kernel])
        for chunk in reversed(range(c.chunks)):
            kernel(ctypes.addressof(frame), chunk, 0)
            if self.error.value:
                raise IndexCheckFailed(c.label)
