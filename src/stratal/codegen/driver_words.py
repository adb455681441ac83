"""Where the words of the claim pool lie: its own, then a record for each thread besides the caller."""

from __future__ import annotations

from typing import Final

# Byte offsets in the pool; words that different threads write lie on different cache lines.
EPOCH: Final = 0  # 32 bits: the region opened last, what workers without work watch
KERNEL: Final = 64
FRAME: Final = 72
CHUNKS: Final = 80
DONE: Final = 128
CALLER_SLEEPS: Final = 132
SLEEPERS: Final = 192
STOP: Final = 196
WAKING: Final = 200  # sleepers have been called and none has come yet: no need to call again
THREADS: Final = 256
REGIONS: Final = 264
CALLER_CHUNKS: Final = 272
WAKES: Final = 280
WORKER_SPINS: Final = 288  # pauses of a thread without work before it sleeps
CALLER_SPINS: Final = 292  # pauses of the caller before it sleeps
CALLER_PLACE: Final = 296  # the processor the caller was on when it last called sleepers
CLAIMS: Final = 320  # one word per thread, WORKER_BYTES apart: the second line of each record
WORKERS: Final = 384  # records of the threads besides the caller
WORKER_BYTES: Final = 128
WORKER_POOL: Final = 0
WORKER_INDEX: Final = 8
WORKER_THREAD: Final = 16
WORKER_CHUNKS: Final = 24


def at(name: str, offset: int, base: str = "%pool") -> str:
    """Return the line that finds a word."""
    return f"  %{name} = getelementptr i8, ptr {base}, i64 {offset}"


def in_record(name: str, thread: str, offset: int) -> str:
    """Return the lines that find a word in the record of a thread, whose number `thread` holds: 1 or more."""
    return f"""  %{name}_skipped = mul i64 {thread}, {WORKER_BYTES}
  %{name}_offset = add i64 %{name}_skipped, {WORKERS - WORKER_BYTES + offset}
  %{name} = getelementptr i8, ptr %pool, i64 %{name}_offset"""
