"""The claim pool as LLVM text: its threads, how they start and end, what is counted."""

from __future__ import annotations

from stratal.base import native
from stratal.codegen.driver_claims import claims_text
from stratal.codegen.driver_places import places_text
from stratal.codegen.driver_words import (
    WORKER_BYTES,
    WORKER_CHUNKS,
    WORKER_POOL,
    WORKER_THREAD,
    WORKERS,
    at,
    each,
    find,
    in_record,
    load,
    sum_from,
)


def pool_text(pause: str, linux: bool) -> str:
    """Return the functions of the pool.

    They call `@wait(word, expected)` and `@wake(word, count)`; `pause` is an instruction.
    """
    parts = [_pause(pause), places_text(linux), claims_text(pause), _worker(pause), _pool(), _stats()]
    return "\n".join(parts)


def _pause(pause: str) -> str:
    """Pause `count` times, so that a runtime can measure how long a pause is: 5 to 60 ns today."""
    return f"""
define i64 @stratal_pause(i64 %count) {{
entry:
{each("%count", f"  {pause}")}
  ret i64 %index
}}
"""


def _worker(pause: str) -> str:
    """The life of a thread: claim while there is work, spin a while, sleep until the epoch changes."""
    return f"""
define internal ptr @worker_main(ptr %record) {{
entry:
{load("%record", "ptr pool", "i64 index64")}
{find("%record", "own_chunks", first=WORKER_CHUNKS // 8)}
  %index = trunc i64 %index64 to i32
{at("epoch", "done", "caller_sleeps", "sleepers", "stop", "waking", "worker_spins")}
  %patience = load i32, ptr %worker_spins_at, align 4
  br label %idle
idle:
  %seen = phi i32 [0, %entry], [%seen, %awake], [%epoch, %work], [%epoch, %report], [%epoch, %rouse]
  br label %spin
spin:
  %spins = phi i32 [0, %idle], [%spun, %rest]
  %epoch = load atomic i32, ptr %epoch_at acquire, align 64
  %open = icmp ne i32 %epoch, %seen
  br i1 %open, label %work, label %check
check:
  %stop = load atomic i32, ptr %stop_at acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %leave, label %rest
rest:
  {pause}
  %spun = add i32 %spins, 1
  %tired = icmp uge i32 %spun, %patience
  br i1 %tired, label %doze, label %spin
doze:
  %before = atomicrmw add ptr %sleepers_at, i32 1 seq_cst, align 64
  store atomic i32 0, ptr %waking_at seq_cst, align 4
  %last_epoch = load atomic i32, ptr %epoch_at seq_cst, align 64
  %last_open = icmp ne i32 %last_epoch, %seen
  %last_stop = load atomic i32, ptr %stop_at seq_cst, align 4
  %last_stopped = icmp ne i32 %last_stop, 0
  %stay = or i1 %last_open, %last_stopped
  br i1 %stay, label %awake, label %sleep
sleep:
  call void @wait(ptr %epoch_at, i32 %seen)
  br label %awake
awake:
  %after = atomicrmw sub ptr %sleepers_at, i32 1 seq_cst, align 64
  store atomic i32 0, ptr %waking_at seq_cst, align 4
  br label %idle
work:
  %count = call i64 @claim_chunks(ptr %pool, i32 %index)
  %worked = icmp ne i64 %count, 0
  br i1 %worked, label %report, label %idle
report:
  %total = load i64, ptr %own_chunks_at, align 8
  %new_total = add i64 %total, %count
  store i64 %new_total, ptr %own_chunks_at, align 8
  %count32 = trunc i64 %count to i32
  %finished = atomicrmw add ptr %done_at, i32 %count32 seq_cst, align 64
  %sleeping = load atomic i32, ptr %caller_sleeps_at seq_cst, align 4
  %asleep = icmp ne i32 %sleeping, 0
  br i1 %asleep, label %rouse, label %idle
rouse:
  call void @wake(ptr %done_at, i32 1)
  br label %idle
leave:
  ret ptr null
}}
"""


def _pool() -> str:
    """Start and stop the threads of a pool. `start` returns how many threads run, the caller counted."""
    join = f"""\
{in_record("thread_at", "%index", WORKER_THREAD)}
  %thread = load i64, ptr %thread_at, align 8
  %ignored = call i32 @pthread_join(i64 %thread, ptr null)"""
    return f"""
define i64 @stratal_pool_bytes(i64 %threads) {{
  %records = mul i64 %threads, {WORKER_BYTES}
  %bytes = add i64 %records, {WORKERS}
  ret i64 %bytes
}}

define i64 @stratal_pool_start(ptr %pool, i64 %threads, i32 %worker_spins, i32 %caller_spins) {{
entry:
{at("threads", "worker_spins", "caller_spins", "caller_place")}
  store i32 %worker_spins, ptr %worker_spins_at, align 4
  store i32 %caller_spins, ptr %caller_spins_at, align 4
  store i32 -1, ptr %caller_place_at, align 4
  br label %look
look:
  %index = phi i64 [1, %entry], [%next, %started]
  %missing = icmp slt i64 %index, %threads
  br i1 %missing, label %create, label %leave
create:
{in_record("record", "%index", WORKER_POOL)}
{find("%record", "index", "thread", first=1)}
  store ptr %pool, ptr %record, align 8
  store i64 %index, ptr %index_at, align 8
  %failed = call i32 @pthread_create(ptr %thread_at, ptr null, ptr @worker_main, ptr %record)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %leave, label %started
started:
  %next = add i64 %index, 1
  br label %look
leave:
  store i64 %index, ptr %threads_at, align 8
  ret i64 %index
}}

define i64 @stratal_pool_stop(ptr %pool) {{
entry:
{at("threads", "epoch", "stop")}
  store atomic i32 1, ptr %stop_at seq_cst, align 4
  %epoch = atomicrmw add ptr %epoch_at, i32 1 seq_cst, align 64
  call void @wake(ptr %epoch_at, i32 2147483647)
  %threads = load i64, ptr %threads_at, align 8
{each("%threads", join, first=1)}
  store i64 1, ptr %threads_at, align 8
  ret i64 0
}}
"""


def _stats() -> str:
    counted = f"""\
{in_record("count_at", "%index", WORKER_CHUNKS)}
  %count = load i64, ptr %count_at, align 8
  %new_sum = add i64 %sum, %count"""
    return f"""
define i64 @stratal_pool_stat(ptr %pool, i64 %which) {{
entry:
  switch i64 %which, label %unknown [
    i64 {native.STAT_REGIONS}, label %regions
    i64 {native.STAT_CALLER_CHUNKS}, label %caller
    i64 {native.STAT_WORKER_CHUNKS}, label %workers
    i64 {native.STAT_WAKES}, label %wakes
  ]
unknown:
  ret i64 -1
regions:
{at("regions")}
  %region_count = load i64, ptr %regions_at, align 8
  ret i64 %region_count
caller:
{at("caller_chunks")}
  %caller_count = load i64, ptr %caller_chunks_at, align 8
  ret i64 %caller_count
wakes:
{at("wakes")}
  %wake_count = load i64, ptr %wakes_at, align 8
  ret i64 %wake_count
workers:
{at("threads")}
  %threads = load i64, ptr %threads_at, align 8
{each("%threads", counted, first=1, entry="workers", phis=sum_from("workers"))}
  ret i64 %sum
}}
"""
