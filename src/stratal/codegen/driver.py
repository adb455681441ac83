"""The native driver as LLVM text: claim pool and interpreter of command records (layouts: base.native)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratal.base import native
from stratal.base.errors import CompilerError
from stratal.codegen.driver_each import each_text
from stratal.codegen.driver_places import places_declarations
from stratal.codegen.driver_pool import pool_text
from stratal.codegen.driver_timing import timing_text
from stratal.codegen.driver_words import each, find, load


@dataclass(frozen=True, slots=True)
class DriverTarget:
    """What the driver needs to know of a machine.

    `pause` is an intrinsic call for spin loops. `futex` is the number of the Linux system call; None waits by
    `usleep` instead. `clock` is the one of `clock_gettime` that Python's `perf_counter` reads.
    """

    triple: str
    pause: str
    futex: int | None
    clock: int = 1  # CLOCK_MONOTONIC on Linux


_PAUSES: Final = {
    "x86_64": "@llvm.x86.sse2.pause()",
    "aarch64": "@llvm.aarch64.hint(i32 1)",
    "arm64": "@llvm.aarch64.hint(i32 1)",
}
_FUTEXES: Final = {"x86_64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}


def driver_target(triple: str) -> DriverTarget:
    """Return the driver's view of a target triple.

    Raises: CompilerError for a big-endian or 32-bit machine.
    """
    machine = triple.split("-")[0]
    if machine not in _FUTEXES:
        known = ", ".join(_FUTEXES)
        raise CompilerError("driver: not a machine it runs on", got=triple, hint=f"one of {known}")
    linux = "linux" in triple
    futex, clock = (_FUTEXES[machine], 1) if linux else (None, 8)  # CLOCK_UPTIME_RAW on macOS
    return DriverTarget(triple, _PAUSES.get(machine, ""), futex, clock)


def driver_text(target: DriverTarget) -> str:
    """Return the driver's LLVM module for a target."""
    pause = f"call void {target.pause}" if target.pause else ""
    parts = [f'target triple = "{target.triple}"', _declarations(target), _waiting(target)]
    parts += [pool_text(pause, target.futex is not None), timing_text(target.clock)]
    parts += [each_text(), _relocate(), _move(), _commands(), _run(), _call()]
    return "\n".join(parts)


def _declarations(target: DriverTarget) -> str:
    pause = ""
    if target.pause:
        name, _, arguments = target.pause.partition("(")
        pause = f"declare void {name}({'i32' if arguments != ')' else ''})"
    wait = "declare i64 @syscall(i64, ...)" if target.futex is not None else "declare i32 @usleep(i32)"
    return f"""
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.trap()
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
{pause}
{wait}
{places_declarations(target.futex is not None)}
"""


def _waiting(target: DriverTarget) -> str:
    """`wait(word, expected)` may return early at any time; `wake(word, count)` ends waits on that word.

    The wait has no limit: the other side is a thread of this process, which runs kernels only, and nothing
    ends or stops one thread alone.
    """
    if target.futex is None:
        return """
define internal void @wait(ptr %word, i32 %expected) {
  %ignored = call i32 @usleep(i32 50)
  ret void
}
define internal void @wake(ptr %word, i32 %count) {
  ret void
}
"""
    wait_private, wake_private = 128, 129
    call = f"call i64 (i64, ...) @syscall(i64 {target.futex}, ptr %word,"
    return f"""
define internal void @wait(ptr %word, i32 %expected) noinline {{
  %ignored = {call} i32 {wait_private}, i32 %expected, ptr null, ptr null, i32 0)
  ret void
}}
define internal void @wake(ptr %word, i32 %count) noinline {{
  %ignored = {call} i32 {wake_private}, i32 %count, ptr null, ptr null, i32 0)
  ret void
}}
"""


def _relocate() -> str:
    """Write the addresses of inputs and outputs that moved wherever a frame or a record mentions them."""
    return f"""
define internal void @relocate(ptr %addresses, ptr %table, i64 %count) {{
entry:
  br label %look
look:
  %index = phi i64 [0, %entry], [%next, %done]
  %relocation = phi ptr [%table, %entry], [%after, %done]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %compare, label %leave
compare:
{load("%relocation", "i64 slot", "i64 known", "i64 places")}
  %first = getelementptr i8, ptr %relocation, i64 {native.RELOCATION_WORDS * native.WORD}
  %length = mul i64 %places, {native.PLACE_WORDS * native.WORD}
  %after = getelementptr i8, ptr %first, i64 %length
  %address_at = getelementptr i64, ptr %addresses, i64 %slot
  %address = load i64, ptr %address_at, align 8
  %stands = icmp eq i64 %address, %known
  br i1 %stands, label %done, label %moved
moved:
  store i64 %address, ptr %known_at, align 8
  br label %patch
patch:
  %place = phi ptr [%first, %moved], [%next_place, %patch]
{load("%place", "ptr where", "i64 offset")}
  %value = add i64 %address, %offset
  store i64 %value, ptr %where, align 8
  %next_place = getelementptr i8, ptr %place, i64 {native.PLACE_WORDS * native.WORD}
  %patched = icmp eq ptr %next_place, %after
  br i1 %patched, label %done, label %patch
done:
  %next = add i64 %index, 1
  br label %look
leave:
  ret void
}}
"""


def _move() -> str:
    """Write the addresses of the rows of this turn wherever a frame or a record mentions them."""
    row = f"""\
  %start = mul i64 %index, {native.MOVE_WORDS * native.WORD}
  %move_at = getelementptr i8, ptr %first, i64 %start
{load("%move_at", "ptr where", "i64 base", "i64 stride")}
  %distance = mul i64 %stride, %counter
  %address = add i64 %base, %distance
  store i64 %address, ptr %where, align 8"""
    return f"""
define internal void @move(ptr %table, i64 %counter) {{
entry:
  %count = load i64, ptr %table, align 8
  %first = getelementptr i8, ptr %table, i64 8
{each("%count", row)}
  ret void
}}
"""


def _commands() -> str:
    """Run a list of records, lists inside records by recursion: as deep as the program text nests."""
    record_bytes = native.RECORD_WORDS * native.WORD
    body = "call i64 @run_list(ptr %context, ptr %c, i64 %m)"
    return f"""
define internal i64 @run_list(ptr %context, ptr %records, i64 %count) {{
entry:
{load("%context", "ptr pool", "ptr error_at")}
{find("%context", "failed", first=2)}
  br label %look
look:
  %index = phi i64 [0, %entry], [%next, %done]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %fetch, label %success
success:
  ret i64 0
fetch:
  %start = mul i64 %index, {record_bytes}
  %record = getelementptr i8, ptr %records, i64 %start
{load("%record", "i64 op", "i64 n", "ptr a", "ptr b", "ptr c", "i64 m")}
{find("%record", "k", "d", first=6)}
  switch i64 %op, label %unknown [
    i64 {native.LAUNCH}, label %launch
    i64 {native.COPY}, label %copy
    i64 {native.HOST}, label %host
    i64 {native.LOOP}, label %loop
    i64 {native.WHILE}, label %while
    i64 {native.BRANCH}, label %branch
    i64 {native.TIMED}, label %timed
  ]
unknown:
  call void @llvm.trap()
  unreachable
launch:
  %one = icmp eq i64 %n, 1
  br i1 %one, label %direct, label %pooled
direct:
  call void %a(ptr %b, i64 0, i32 0)
  br label %check
pooled:
  %ignored = call i64 @stratal_parallel_for(ptr %pool, ptr %a, ptr %b, i64 %n)
  br label %check
check:
  %error = load i64, ptr %error_at, align 8
  %failed = icmp ne i64 %error, 0
  br i1 %failed, label %fail, label %done
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)
  br label %done
host:
  %stop = call i64 %a(i64 %n)
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %fail, label %done
fail:
  %code = phi i64 [%error, %check], [{native.HOST_FAILED}, %host]
  store ptr %record, ptr %failed_at, align 8
  ret i64 %code
loop:
  %reverse = load i64, ptr %k_at, align 8
  %static = icmp eq ptr %b, null
  br i1 %static, label %trips_known, label %trips_read
trips_read:
  %wanted = load i64, ptr %b, align 8
  %positive = call i64 @llvm.smax.i64(i64 %wanted, i64 0)
  %bounded = call i64 @llvm.smin.i64(i64 %positive, i64 %n)
  br label %trips_known
trips_known:
  %trips = phi i64 [%n, %loop], [%bounded, %trips_read]
  %last = sub i64 %trips, 1
  %backwards = icmp ne i64 %reverse, 0
  %moves = load ptr, ptr %d_at, align 8
  %still = icmp eq ptr %moves, null
  br label %trip
trip:
  %turn = phi i64 [0, %trips_known], [%next_turn, %turned]
  %again = icmp slt i64 %turn, %trips
  br i1 %again, label %turn_body, label %done
turn_body:
  %mirrored = sub i64 %last, %turn
  %counter = select i1 %backwards, i64 %mirrored, i64 %turn
  store i64 %counter, ptr %a, align 8
  br i1 %still, label %turn_run, label %turn_move
turn_move:
  call void @move(ptr %moves, i64 %counter)
  br label %turn_run
turn_run:
  %turn_code = {body}
  %turn_failed = icmp ne i64 %turn_code, 0
  br i1 %turn_failed, label %inner_fail, label %turned
turned:
  %next_turn = add i64 %turn, 1
  br label %trip
while:
  %condition_code = call i64 @run_list(ptr %context, ptr %b, i64 %n)
  %condition_failed = icmp ne i64 %condition_code, 0
  br i1 %condition_failed, label %inner_fail, label %while_test
while_test:
  %held = load i8, ptr %a, align 1
  %holds = icmp ne i8 %held, 0
  br i1 %holds, label %while_body, label %done
while_body:
  %while_code = {body}
  %while_failed = icmp ne i64 %while_code, 0
  br i1 %while_failed, label %inner_fail, label %while
branch:
  %chosen = load i8, ptr %a, align 1
  %taken = icmp ne i8 %chosen, 0
  %arm = select i1 %taken, ptr %b, ptr %c
  %arm_count = select i1 %taken, i64 %n, i64 %m
  %arm_code = call i64 @run_list(ptr %context, ptr %arm, i64 %arm_count)
  %arm_failed = icmp ne i64 %arm_code, 0
  br i1 %arm_failed, label %inner_fail, label %done
timed:
  %began = call i64 @now()
  %timed_code = {body}
  call void @add_time(ptr %a, i64 %began)
  %timed_failed = icmp ne i64 %timed_code, 0
  br i1 %timed_failed, label %inner_fail, label %done
inner_fail:
  %inner_code = phi i64 [%turn_code, %turn_run], [%condition_code, %while], [%while_code, %while_body],
  [%arm_code, %branch], [%timed_code, %timed]
  ret i64 %inner_code
done:
  %next = add i64 %index, 1
  br label %look
}}
"""


def _run() -> str:
    return f"""
define i64 @stratal_run(ptr %context) {{
{load("%context", "ptr addresses", "ptr relocations", "i64 num_relocations", first=5)}
  call void @relocate(ptr %addresses, ptr %relocations, i64 %num_relocations)
{load("%context", "ptr error_at", first=1)}
{find("%context", "failed", first=2)}
  store i64 0, ptr %error_at, align 8
  store ptr null, ptr %failed_at, align 8
{load("%context", "ptr commands", "i64 count", first=3)}
  %code = call i64 @run_list(ptr %context, ptr %commands, i64 %count)
  ret i64 %code
}}
"""


def _call() -> str:
    """Run for CPython: addresses of slots come as Python ints, the error code goes back as one."""
    slot = """\
  %object_at = getelementptr ptr, ptr %arguments, i64 %index
  %slot_at = getelementptr i64, ptr %slots, i64 %index
  %object = load ptr, ptr %object_at, align 8
  %slot = load i64, ptr %slot_at, align 8
  %address = call i64 @PyLong_AsLongLong(ptr %object)
  %address_at = getelementptr i64, ptr %addresses, i64 %slot
  store i64 %address, ptr %address_at, align 8"""
    return f"""
define ptr @stratal_call(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %context = call ptr @PyLong_AsVoidPtr(ptr %self)
{load("%context", "ptr addresses", first=5)}
{load("%context", "ptr slots", first=8)}
{each("%count", slot)}
  %thread = call ptr @PyEval_SaveThread()
  %code = call i64 @stratal_run(ptr %context)
  call void @PyEval_RestoreThread(ptr %thread)
  %made = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %made
}}
"""
