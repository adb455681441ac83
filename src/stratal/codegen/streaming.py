"""Results that fill much of the last cache are written past it: no line of theirs is read from memory."""

from __future__ import annotations

from typing import Final

from stratal.base.target import Target
from stratal.codegen.values import Values
from stratal.loops.expr import Buffer
from stratal.loops.stmt import Kernel, loaded

LINE_BYTES: Final = 64


def streamed(kernel: Kernel, target: Target) -> frozenset[Buffer]:
    """Return the results of a kernel that would take more than half of the last cache, which what is read
    meanwhile wants too, and that it does not read again.
    """
    if target.arch != "x86_64":
        return frozenset()
    again = loaded(kernel.body)
    return frozenset(b for b in kernel.writes if 2 * b.nbytes > target.l3_bytes and b not in again)


class Streaming(Values):
    """Emits the stores of such results.

    A store goes past the caches if it fills whole lines, which its address shows as it runs, and if the
    result does not lie where an operand does: that operand's lines are near then, and are written there.
    """

    def _open_streams(self, streams: frozenset[Buffer]) -> None:
        """Find out, at the start of the kernel, which results lie in the place of an operand."""
        self.streams: dict[Buffer, str] = {}  # each with an integer that is 0 where the result lies apart
        for buffer in sorted(streams, key=self.kernel.writes.index):
            in_place = "0"
            for operand in self.kernel.reads:
                if operand.nbytes == buffer.nbytes:
                    same = self._append(f"icmp eq ptr {self.pointers[operand]}, {self.pointers[buffer]}")
                    in_place = self._append(f"or i64 {in_place}, {self._append(f'zext i1 {same} to i64')}")
            self.streams[buffer] = in_place

    def _passes(self, buffer: Buffer) -> bool:
        """Return whether vectors of a buffer go past the caches unless its address says otherwise."""
        return buffer in self.streams and self.lanes * buffer.dtype.itemsize % LINE_BYTES == 0

    def _close_streams(self) -> None:
        """Wait for the stores, at the end of the kernel: nothing else orders them before what follows."""
        if self.streams:
            self.scalars.declared.add("declare void @llvm.x86.sse.sfence()")
            self._line("  call void @llvm.x86.sse.sfence()")

    def _stream(self, buffer: Buffer, pointer: str, ty: str, value: str) -> bool:
        """Store a vector past the caches if that may be; return whether it is stored, in either way."""
        if not self._passes(buffer):
            return False
        address = self._append(f"ptrtoint ptr {pointer} to i64")
        begins = self._append(f"and i64 {address}, {LINE_BYTES - 1}")
        apart = self._append(f"icmp eq i64 {self._append(f'or i64 {begins}, {self.streams[buffer]}')}, 0")
        past, through, after = (self._fresh(name)[1:] for name in ("past", "through", "after"))
        self._line(f"  br i1 {apart}, label %{past}, label %{through}")
        self._block(past)
        self._line(f"  store {ty} {value}, ptr {pointer}, align {LINE_BYTES}, !nontemporal !1")
        self._line(f"  br label %{after}")
        self._block(through)
        self._line(f"  store {ty} {value}, ptr {pointer}, align {buffer.dtype.itemsize}")
        self._line(f"  br label %{after}")
        self._block(after)
        return True
