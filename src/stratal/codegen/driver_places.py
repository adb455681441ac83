"""Which processor a thread of the pool may run on, as LLVM text.

A scheduler that wakes a thread often puts it where it ran last, or where the thread that wakes it runs. So a
thread of the pool may share the caller's processor while another idles: where it waits for a turn, the caller
works through all chunks itself. Schedulers see that late, after several milliseconds. So whenever the caller
finds itself on another processor than before, it forbids that one to the threads of the pool.
"""

from __future__ import annotations

from typing import Final

from stratal.codegen.driver_words import WORKER_THREAD, at, each, in_record, sum_from

SET_BYTES: Final = 128  # of a set of processors, as libc has it: 1024 bits
SET_WORDS: Final = SET_BYTES // 8


def places_declarations(linux: bool) -> str:
    """Return the declarations the text below needs."""
    if not linux:
        return ""
    return """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i64 @llvm.ctpop.i64(i64)"""


def places_text(linux: bool) -> str:
    """Return `keep_apart(pool)`, which the caller runs before it opens a region."""
    if not linux:
        return """
define internal void @keep_apart(ptr %pool) {
  ret void
}
"""
    counted = """\
  %word_at = getelementptr i64, ptr %set, i64 %index
  %word = load i64, ptr %word_at, align 8
  %ones = call i64 @llvm.ctpop.i64(i64 %word)
  %new_sum = add i64 %sum, %ones"""
    forbidden = f"""\
{in_record("thread_at", "%index", WORKER_THREAD)}
  %thread = load i64, ptr %thread_at, align 8
  %ignored = call i32 @pthread_setaffinity_np(i64 %thread, i64 {SET_BYTES}, ptr %set)"""
    return f"""
define internal i64 @count_places(ptr %set) {{
entry:
{each(str(SET_WORDS), counted, phis=sum_from("entry"))}
  ret i64 %sum
}}

define internal void @keep_apart(ptr %pool) noinline {{
entry:
  %set = alloca [{SET_WORDS} x i64], align 64
{at("caller_place", "threads")}
  %place = call i32 @sched_getcpu()
  %before = load i32, ptr %caller_place_at, align 4
  %same = icmp eq i32 %place, %before
  %known = icmp ult i32 %place, {8 * SET_BYTES}
  %unknown = xor i1 %known, true
  %nothing = or i1 %same, %unknown
  br i1 %nothing, label %leave, label %moved
moved:
  store i32 %place, ptr %caller_place_at, align 4
  %failed = call i32 @sched_getaffinity(i32 0, i64 {SET_BYTES}, ptr %set)
  %bad = icmp slt i32 %failed, 0
  br i1 %bad, label %leave, label %forbid
forbid:
  %place64 = zext i32 %place to i64
  %number = lshr i64 %place64, 6
  %shift = and i64 %place64, 63
  %bit = shl i64 1, %shift
  %others = xor i64 %bit, -1
  %word_at = getelementptr i64, ptr %set, i64 %number
  %word = load i64, ptr %word_at, align 8
  %left = and i64 %word, %others
  store i64 %left, ptr %word_at, align 8
  %count = call i64 @count_places(ptr %set)
  %none = icmp eq i64 %count, 0
  %threads = load i64, ptr %threads_at, align 8
  br i1 %none, label %leave, label %keep
keep:
{each("%threads", forbidden, first=1, entry="keep")}
  ret void
}}
"""
