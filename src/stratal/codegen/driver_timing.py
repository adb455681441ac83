"""Clock reads as LLVM text: what profiled programs run around commands and chunks (layouts: base.native)."""

from __future__ import annotations

from stratal.base import native
from stratal.codegen.driver_words import find, load


def timing_text(clock: int) -> str:
    """Return `@now`, `@add_time` and `@stratal_trace_chunk`; `clock` is a number of `clock_gettime`."""
    return "\n".join((_now(clock), _write_event(), _add_time(), _trace_chunk()))


def _now(clock: int) -> str:
    """Read the clock in nanoseconds: 20 to 40 ns, without a system call."""
    return f"""
define internal i64 @now() noinline {{
  %time = alloca {{ i64, i64 }}, align 8
  %ignored = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %nanoseconds_at = getelementptr i8, ptr %time, i64 8
  %seconds = load i64, ptr %time, align 8
  %nanoseconds = load i64, ptr %nanoseconds_at, align 8
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanoseconds
  ret i64 %sum
}}
"""


def _write_event() -> str:
    """Append an event to a log that only the calling thread writes."""
    return f"""
define internal void @write_event(ptr %log, i64 %what, i64 %chunk, i64 %start, i64 %end) noinline {{
entry:
{load("%log", "i64 count", "i64 capacity")}
  %next = add i64 %count, 1
  store i64 %next, ptr %log, align 8
  %room = icmp slt i64 %count, %capacity
  br i1 %room, label %write, label %leave
write:
  %skipped = mul i64 %count, {native.EVENT_WORDS * native.WORD}
  %offset = add i64 %skipped, {native.LOG_WORDS * native.WORD}
  %event = getelementptr i8, ptr %log, i64 %offset
{find("%event", "what", "chunk", "start", "end")}
  store i64 %what, ptr %what_at, align 8
  store i64 %chunk, ptr %chunk_at, align 8
  store i64 %start, ptr %start_at, align 8
  store i64 %end, ptr %end_at, align 8
  br label %leave
leave:
  ret void
}}
"""


def _add_time() -> str:
    """Add what a command took to its Timing, and to the log of commands where there is one."""
    return f"""
define internal void @add_time(ptr %timing, i64 %start) noinline {{
entry:
  %end = call i64 @now()
{load("%timing", "i64 calls", "i64 total", "ptr log", "i64 what")}
  %took = sub i64 %end, %start
  %new_calls = add i64 %calls, 1
  %new_total = add i64 %total, %took
  store i64 %new_calls, ptr %calls_at, align 8
  store i64 %new_total, ptr %total_at, align 8
  %silent = icmp eq ptr %log, null
  br i1 %silent, label %leave, label %write
write:
  call void @write_event(ptr %log, i64 %what, i64 -1, i64 %start, i64 %end)
  br label %leave
leave:
  ret void
}}
"""


def _trace_chunk() -> str:
    """Run one chunk of the kernel a TracedCall names; note which worker ran it, and when."""
    return f"""
define void @stratal_trace_chunk(ptr %call, i64 %chunk, i32 %worker) {{
{load("%call", "ptr kernel", "ptr frame", "ptr logs", "i64 log_bytes", "i64 what")}
  %index = sext i32 %worker to i64
  %offset = mul i64 %index, %log_bytes
  %log = getelementptr i8, ptr %logs, i64 %offset
  %start = call i64 @now()
  call void %kernel(ptr %frame, i64 %chunk, i32 %worker)
  %end = call i64 @now()
  call void @write_event(ptr %log, i64 %what, i64 %chunk, i64 %start, i64 %end)
  ret void
}}
"""
