"""The binary layout the native driver and the runtime share: command records, their opcodes, the run context.

    Record     := { i64 op, i64 n, ptr a, ptr b, ptr c, i64 m, i64 k, ptr d }        64 bytes
      LAUNCH   n chunks, a kernel, b Frame
      COPY     n bytes, a target, b source
      HOST     n index, a callback `int64 (*)(int64 index)`: non-zero stops the run
      LOOP     n trips, a counter cell, b cell with the runtime trip count or null, k reverse,
               c body, m records in it, d Moves or null
      WHILE    a predicate byte, b condition, n records in it, c body, m records in it
      BRANCH   a predicate byte, b then, n records in it, c otherwise, m records in it
      TIMED    a Timing, c body, m records in it: runs the body and adds its time to the Timing
    Moves      := { i64 count, Move.. }    before each turn of a loop `*where = base + counter * stride`
    Move       := { ptr where, i64 base, i64 stride in bytes }
    Timing     := { i64 calls, i64 total ns, ptr Log or null, i64 what }
    TracedCall := { ptr kernel, ptr Frame, ptr Logs, i64 bytes of one Log, i64 what }
    Log        := { i64 count, i64 capacity, Event.. }    64 bytes, then the events; one per thread
    Event      := { i64 what, i64 chunk or -1, i64 start ns, i64 end ns }
    Relocation := { i64 slot, i64 address, i64 count, Place.. }    before a run, where `addresses[slot]` is
                    not the address of the last run: `*where = addresses[slot] + offset` for each place
    Place      := { ptr where, i64 offset }
    Context    := { ptr pool, ptr error, ptr failed, ptr commands, i64 count,
                    ptr addresses, ptr relocations, i64 count, ptr slots }
    Frame      := see base.artifact

Symbols of the driver, all but `stratal_call` returning int64: `stratal_pool_bytes(threads)`,
`stratal_pause(count)`, `stratal_pool_start(pool, threads, i32 worker_spins, i32 caller_spins)`,
`stratal_pool_stop(pool)`, `stratal_pool_stat(pool, STAT_*)`,
`stratal_parallel_for(pool, kernel, frame, chunks)`, `stratal_run(context)`. `stratal_run` returns 0, or the
first non-zero error cell with `failed` at the record that caused it. `stratal_trace_chunk` has the kernel ABI
and takes a TracedCall for a Frame: it runs the chunk and writes an Event to the Log of its worker. Times are
those of Python's `time.perf_counter_ns`; events beyond a Log's capacity are counted and not written. Programs
that are not profiled hold neither TIMED records nor TracedCalls and read no clock. `stratal_each_chunk` has
the kernel ABI, too: it calls a foreign function for some matrices of a stack (see base.foreign).

`stratal_call` is `stratal_run` as a method of CPython (METH_FASTCALL), for a call through ctypes costs four
times as much. What it is bound to is an int, the address of a Context; its arguments are ints to put into
`addresses[slots[0]]`, `addresses[slots[1]]` and so on. Other Python threads go on while it runs.
"""

from __future__ import annotations

from typing import Final

WORD: Final = 8
RECORD_WORDS: Final = 8
RELOCATION_WORDS: Final = 3  # before the places
PLACE_WORDS: Final = 2
MOVE_WORDS: Final = 3
FRAME_WORDS: Final = 6

LAUNCH: Final = 0
COPY: Final = 1
HOST: Final = 2
LOOP: Final = 3
WHILE: Final = 4
BRANCH: Final = 5
TIMED: Final = 6

TIMING_WORDS: Final = 4
TRACED_CALL_WORDS: Final = 5
LOG_WORDS: Final = 8
EVENT_WORDS: Final = 4

HOST_FAILED: Final = -1  # what `stratal_run` returns when a host call asked to stop
MAX_CHUNKS: Final = (1 << 31) - 1

STAT_REGIONS: Final = 0  # launches that went through the pool
STAT_CALLER_CHUNKS: Final = 1  # chunks of those that the calling thread ran
STAT_WORKER_CHUNKS: Final = 2  # chunks that the other threads ran
STAT_WAKES: Final = 3  # times sleeping threads had to be woken

DRIVER_SYMBOLS: Final = (
    "stratal_pause", "stratal_pool_bytes", "stratal_pool_start", "stratal_pool_stop", "stratal_pool_stat",
    "stratal_parallel_for", "stratal_run", "stratal_call", "stratal_trace_chunk", "stratal_each_chunk",
)  # fmt: skip
