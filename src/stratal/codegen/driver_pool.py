"""The claim pool as LLVM text: threads that claim the chunks of one open region.

One 64-bit word holds `epoch << 32 | chunks left`. The caller writes kernel, frame and chunk count, then
that word; every thread claims a chunk by a compare-and-swap that lowers it by one. A thread that reads a
count above zero knows the region is open, and its compare-and-swap fails if the region has ended since, so
what it read of the region in between is never used stale. The caller claims too and afterwards waits only
for chunks that others have started: a thread that was never scheduled costs nothing. Whoever waits spins
first and then sleeps in the kernel.
"""

from __future__ import annotations

from typing import Final

from stratal.base import native

# Byte offsets in the pool; words that different threads write lie on different cache lines.
CLAIM: Final = 0
EPOCH: Final = CLAIM + 4  # the high half of the claim word, little-endian: what sleeping workers watch
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
WORKERS: Final = 320  # one line per thread besides the caller
WORKER_BYTES: Final = 64
WORKER_POOL: Final = 0
WORKER_INDEX: Final = 8
WORKER_THREAD: Final = 16
WORKER_CHUNKS: Final = 24



def pool_text(pause: str) -> str:
    """Return the functions of the pool.

    They call `@wait(word, expected)` and `@wake(word, count)`; `pause` is an instruction.
    """
    parts = [_pause(pause), _claim_chunks(), _worker(pause), _publish(), _await_others(pause)]
    parts += [_parallel_for(), _pool(), _stats()]
    return "\n".join(parts)


def _at(name: str, offset: int, base: str = "%pool") -> str:
    return f"  %{name} = getelementptr i8, ptr {base}, i64 {offset}"


def _pause(pause: str) -> str:
    """Pause `count` times, so that a runtime can measure how long a pause is: 5 to 60 ns today."""
    return f"""
define i64 @stratal_pause(i64 %count) {{
entry:
  br label %look
look:
  %index = phi i64 [0, %entry], [%next, %rest]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %rest, label %leave
rest:
  {pause}
  %next = add i64 %index, 1
  br label %look
leave:
  ret i64 %index
}}
"""


def _claim_chunks() -> str:
    """Run chunks of the open region until none is left; return how many."""
    return f"""
define internal i64 @claim_chunks(ptr %pool, i32 %worker) {{
entry:
{_at("claim_at", CLAIM)}
{_at("kernel_at", KERNEL)}
{_at("frame_at", FRAME)}
{_at("chunks_at", CHUNKS)}
  br label %look
look:
  %count = phi i64 [0, %entry], [%count, %claim], [%counted, %work]
  %word = load atomic i64, ptr %claim_at acquire, align 64
  %left = and i64 %word, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %leave, label %claim
claim:
  %kernel = load atomic ptr, ptr %kernel_at monotonic, align 8
  %frame = load atomic ptr, ptr %frame_at monotonic, align 8
  %chunks = load atomic i64, ptr %chunks_at monotonic, align 8
  %lower = sub i64 %word, 1
  %swap = cmpxchg ptr %claim_at, i64 %word, i64 %lower acq_rel monotonic, align 64
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %work, label %look
work:
  %chunk = sub i64 %chunks, %left
  call void %kernel(ptr %frame, i64 %chunk, i32 %worker)
  %counted = add i64 %count, 1
  br label %look
leave:
  ret i64 %count
}}
"""


def _worker(pause: str) -> str:
    """The life of a thread: claim while there is work, spin a while, sleep until the epoch changes."""
    return f"""
define internal ptr @worker_main(ptr %record) {{
entry:
{_at("index_at", WORKER_INDEX, "%record")}
{_at("own_chunks_at", WORKER_CHUNKS, "%record")}
  %pool = load ptr, ptr %record, align 8
  %index64 = load i64, ptr %index_at, align 8
  %index = trunc i64 %index64 to i32
{_at("claim_at", CLAIM)}
{_at("epoch_at", EPOCH)}
{_at("done_at", DONE)}
{_at("caller_sleeps_at", CALLER_SLEEPS)}
{_at("sleepers_at", SLEEPERS)}
{_at("stop_at", STOP)}
{_at("waking_at", WAKING)}
{_at("patience_at", WORKER_SPINS)}
  %patience = load i32, ptr %patience_at, align 4
  br label %idle
idle:
  br label %spin
spin:
  %spins = phi i32 [0, %idle], [%spun, %rest]
  %word = load atomic i64, ptr %claim_at acquire, align 64
  %left = and i64 %word, 4294967295
  %open = icmp ne i64 %left, 0
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
  %last_word = load atomic i64, ptr %claim_at seq_cst, align 64
  %last_left = and i64 %last_word, 4294967295
  %last_open = icmp ne i64 %last_left, 0
  %last_stop = load atomic i32, ptr %stop_at seq_cst, align 4
  %last_stopped = icmp ne i32 %last_stop, 0
  %stay = or i1 %last_open, %last_stopped
  br i1 %stay, label %awake, label %sleep
sleep:
  %epoch64 = lshr i64 %last_word, 32
  %epoch = trunc i64 %epoch64 to i32
  call void @wait(ptr %epoch_at, i32 %epoch)
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


def _parallel_for() -> str:
    """Run the chunks of a launch: directly where there is one chunk or one thread, else in the pool."""
    return f"""
define i64 @stratal_parallel_for(ptr %pool, ptr %kernel, ptr %frame, i64 %chunks) {{
entry:
{_at("threads_at", THREADS)}
  %threads = load i64, ptr %threads_at, align 8
  %few_chunks = icmp sle i64 %chunks, 1
  %few_threads = icmp sle i64 %threads, 1
  %alone = or i1 %few_chunks, %few_threads
  br i1 %alone, label %serial, label %shared
serial:
  %any = icmp sgt i64 %chunks, 0
  br i1 %any, label %chunk_loop, label %leave
chunk_loop:
  %chunk = phi i64 [0, %serial], [%next_chunk, %chunk_loop]
  call void %kernel(ptr %frame, i64 %chunk, i32 0)
  %next_chunk = add i64 %chunk, 1
  %more = icmp slt i64 %next_chunk, %chunks
  br i1 %more, label %chunk_loop, label %leave
shared:
{_at("done_at", DONE)}
{_at("caller_chunks_at", CALLER_CHUNKS)}
  %goal = call i32 @publish(ptr %pool, ptr %kernel, ptr %frame, i64 %chunks)
  %count = call i64 @claim_chunks(ptr %pool, i32 0)
  %own = load i64, ptr %caller_chunks_at, align 8
  %new_own = add i64 %own, %count
  store i64 %new_own, ptr %caller_chunks_at, align 8
  %count32 = trunc i64 %count to i32
  %done_then = atomicrmw add ptr %done_at, i32 %count32 acq_rel, align 64
  %done_now = add i32 %done_then, %count32
  %finished = icmp eq i32 %done_now, %goal
  br i1 %finished, label %leave, label %unfinished
unfinished:
  call void @await_others(ptr %pool, i32 %goal)
  br label %leave
leave:
  ret i64 0
}}
"""


def _publish() -> str:
    """Open a region and call sleeping threads; return the count of finished chunks that ends it."""
    return f"""
define internal i32 @publish(ptr %pool, ptr %kernel, ptr %frame, i64 %chunks) {{
entry:
{_at("claim_at", CLAIM)}
{_at("epoch_at", EPOCH)}
{_at("kernel_at", KERNEL)}
{_at("frame_at", FRAME)}
{_at("chunks_at", CHUNKS)}
{_at("done_at", DONE)}
{_at("sleepers_at", SLEEPERS)}
{_at("waking_at", WAKING)}
{_at("regions_at", REGIONS)}
{_at("wakes_at", WAKES)}
  store atomic ptr %kernel, ptr %kernel_at monotonic, align 8
  store atomic ptr %frame, ptr %frame_at monotonic, align 8
  store atomic i64 %chunks, ptr %chunks_at monotonic, align 8
  %done_before = load atomic i32, ptr %done_at monotonic, align 64
  %chunks32 = trunc i64 %chunks to i32
  %goal = add i32 %done_before, %chunks32
  %old_word = load atomic i64, ptr %claim_at monotonic, align 64
  %old_epoch = lshr i64 %old_word, 32
  %epoch = add i64 %old_epoch, 1
  %high = shl i64 %epoch, 32
  %word = or i64 %high, %chunks
  %swapped = atomicrmw xchg ptr %claim_at, i64 %word seq_cst, align 64
  %regions = load i64, ptr %regions_at, align 8
  %new_regions = add i64 %regions, 1
  store i64 %new_regions, ptr %regions_at, align 8
  %sleepers = load atomic i32, ptr %sleepers_at seq_cst, align 64
  %anyone = icmp sgt i32 %sleepers, 0
  %waking = load atomic i32, ptr %waking_at seq_cst, align 4
  %uncalled = icmp eq i32 %waking, 0
  %call_them = and i1 %anyone, %uncalled
  br i1 %call_them, label %rouse, label %leave
rouse:
  store atomic i32 1, ptr %waking_at seq_cst, align 4
  %others = sub i32 %chunks32, 1
  %needed = call i32 @llvm.smin.i32(i32 %sleepers, i32 %others)
  call void @wake(ptr %epoch_at, i32 %needed)
  %wakes = load i64, ptr %wakes_at, align 8
  %new_wakes = add i64 %wakes, 1
  store i64 %new_wakes, ptr %wakes_at, align 8
  br label %leave
leave:
  ret i32 %goal
}}
"""


def _await_others(pause: str) -> str:
    """Wait until the chunks that others have started are finished: spin, then sleep."""
    return f"""
define internal void @await_others(ptr %pool, i32 %goal) {{
entry:
{_at("done_at", DONE)}
{_at("caller_sleeps_at", CALLER_SLEEPS)}
{_at("patience_at", CALLER_SPINS)}
  %patience = load i32, ptr %patience_at, align 4
  br label %spin
spin:
  %spins = phi i32 [0, %entry], [%spun, %rest]
  %done = load atomic i32, ptr %done_at acquire, align 64
  %enough = icmp eq i32 %done, %goal
  br i1 %enough, label %leave, label %rest
rest:
  {pause}
  %spun = add i32 %spins, 1
  %tired = icmp uge i32 %spun, %patience
  br i1 %tired, label %doze, label %spin
doze:
  %was_awake = atomicrmw xchg ptr %caller_sleeps_at, i32 1 seq_cst, align 4
  br label %sleep_loop
sleep_loop:
  %seen = load atomic i32, ptr %done_at seq_cst, align 64
  %arrived = icmp eq i32 %seen, %goal
  br i1 %arrived, label %rise, label %sleep
sleep:
  call void @wait(ptr %done_at, i32 %seen)
  br label %sleep_loop
rise:
  %was_asleep = atomicrmw xchg ptr %caller_sleeps_at, i32 0 seq_cst, align 4
  br label %leave
leave:
  ret void
}}
"""


def _pool() -> str:
    """Start and stop the threads of a pool. `start` returns how many threads run, the caller counted."""
    return f"""
define i64 @stratal_pool_bytes(i64 %threads) {{
  %records = mul i64 %threads, {WORKER_BYTES}
  %bytes = add i64 %records, {WORKERS}
  ret i64 %bytes
}}

define i64 @stratal_pool_start(ptr %pool, i64 %threads, i32 %worker_spins, i32 %caller_spins) {{
entry:
{_at("threads_at", THREADS)}
{_at("worker_spins_at", WORKER_SPINS)}
{_at("caller_spins_at", CALLER_SPINS)}
  store i32 %worker_spins, ptr %worker_spins_at, align 4
  store i32 %caller_spins, ptr %caller_spins_at, align 4
  br label %look
look:
  %index = phi i64 [1, %entry], [%next, %started]
  %missing = icmp slt i64 %index, %threads
  br i1 %missing, label %create, label %leave
create:
  %before = sub i64 %index, 1
  %skipped = mul i64 %before, {WORKER_BYTES}
  %offset = add i64 %skipped, {WORKERS}
  %record = getelementptr i8, ptr %pool, i64 %offset
{_at("index_at", WORKER_INDEX, "%record")}
{_at("thread_at", WORKER_THREAD, "%record")}
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
{_at("threads_at", THREADS)}
{_at("claim_at", CLAIM)}
{_at("epoch_at", EPOCH)}
{_at("stop_at", STOP)}
  store atomic i32 1, ptr %stop_at seq_cst, align 4
  %word = atomicrmw add ptr %claim_at, i64 4294967296 seq_cst, align 64
  call void @wake(ptr %epoch_at, i32 2147483647)
  %threads = load i64, ptr %threads_at, align 8
  br label %look
look:
  %index = phi i64 [1, %entry], [%next, %join]
  %running = icmp slt i64 %index, %threads
  br i1 %running, label %join, label %leave
join:
  %before = sub i64 %index, 1
  %skipped = mul i64 %before, {WORKER_BYTES}
  %offset = add i64 %skipped, {WORKERS + WORKER_THREAD}
  %thread_at = getelementptr i8, ptr %pool, i64 %offset
  %thread = load i64, ptr %thread_at, align 8
  %ignored = call i32 @pthread_join(i64 %thread, ptr null)
  %next = add i64 %index, 1
  br label %look
leave:
  store i64 1, ptr %threads_at, align 8
  ret i64 0
}}
"""


def _stats() -> str:
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
{_at("regions_at", REGIONS)}
  %region_count = load i64, ptr %regions_at, align 8
  ret i64 %region_count
caller:
{_at("caller_chunks_at", CALLER_CHUNKS)}
  %caller_count = load i64, ptr %caller_chunks_at, align 8
  ret i64 %caller_count
wakes:
{_at("wakes_at", WAKES)}
  %wake_count = load i64, ptr %wakes_at, align 8
  ret i64 %wake_count
workers:
{_at("threads_at", THREADS)}
  %threads = load i64, ptr %threads_at, align 8
  br label %look
look:
  %index = phi i64 [1, %workers], [%next, %add]
  %sum = phi i64 [0, %workers], [%new_sum, %add]
  %running = icmp slt i64 %index, %threads
  br i1 %running, label %add, label %leave
add:
  %before = sub i64 %index, 1
  %skipped = mul i64 %before, {WORKER_BYTES}
  %offset = add i64 %skipped, {WORKERS + WORKER_CHUNKS}
  %count_at = getelementptr i8, ptr %pool, i64 %offset
  %count = load i64, ptr %count_at, align 8
  %new_sum = add i64 %sum, %count
  %next = add i64 %index, 1
  br label %look
leave:
  ret i64 %sum
}}
"""
