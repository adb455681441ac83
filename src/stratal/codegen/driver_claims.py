"""How threads share the chunks of one open region, as LLVM text.

Every thread has a share of the chunks, the same one in each region of as many chunks: what it wrote in one
region is still in its cache in the next. One 64-bit word per thread holds `epoch << 32 | chunks left` of its
share. The caller writes kernel, frame and chunk count, then those words, then the epoch; every thread claims
a chunk by a compare-and-swap that lowers such a word by one, of its own share first and then of the others'.
A thread that reads a count above zero knows the region is open, and its compare-and-swap fails if the region
has ended since, so what it read of the region in between is never used stale. The caller claims too and
afterwards waits only for chunks that others have started: a thread that was never scheduled costs nothing.
Whoever waits spins first and then sleeps in the kernel.
"""

from __future__ import annotations

from stratal.codegen.driver_words import CLAIMS, WORKER_BYTES, at


def claims_text(pause: str) -> str:
    """Return the functions that open a region, share it out and wait for its end."""
    return "\n".join([_shares(), _claim_chunks(), _publish(), _await_others(pause), _parallel_for()])


def _shares() -> str:
    """Find where a thread's word lies, and the first chunk of its share of `chunks`."""
    return f"""
define internal ptr @claim_word(ptr %pool, i64 %thread) {{
entry:
  %skipped = mul i64 %thread, {WORKER_BYTES}
  %offset = add i64 %skipped, {CLAIMS}
  %word_at = getelementptr i8, ptr %pool, i64 %offset
  ret ptr %word_at
}}

define internal i64 @share_start(ptr %pool, i64 %thread, i64 %chunks) {{
entry:
{at("threads")}
  %threads = load i64, ptr %threads_at, align 8
  %product = mul i64 %thread, %chunks
  %start = udiv i64 %product, %threads
  ret i64 %start
}}
"""


def _claim_chunks() -> str:
    """Run chunks of the open region until none is left, one's own share first; return how many."""
    return f"""
define internal i64 @claim_chunks(ptr %pool, i32 %worker) {{
entry:
{at("threads")}
  %threads = load i64, ptr %threads_at, align 8
  %own = zext i32 %worker to i64
  br label %share
share:
  %looked = phi i64 [0, %entry], [%looking, %next]
  %before = phi i64 [0, %entry], [%count, %next]
  %ahead = add i64 %own, %looked
  %thread = urem i64 %ahead, %threads
  %taken = call i64 @claim_share(ptr %pool, i64 %thread, i32 %worker)
  %count = add i64 %before, %taken
  br label %next
next:
  %looking = add i64 %looked, 1
  %more = icmp ult i64 %looking, %threads
  br i1 %more, label %share, label %leave
leave:
  ret i64 %count
}}

define internal i64 @claim_share(ptr %pool, i64 %thread, i32 %worker) {{
entry:
  %claim_at = call ptr @claim_word(ptr %pool, i64 %thread)
{at("kernel", "frame", "chunks")}
  %following = add i64 %thread, 1
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
  %end = call i64 @share_start(ptr %pool, i64 %following, i64 %chunks)
  %chunk = sub i64 %end, %left
  call void %kernel(ptr %frame, i64 %chunk, i32 %worker)
  %counted = add i64 %count, 1
  br label %look
leave:
  ret i64 %count
}}
"""


def _parallel_for() -> str:
    """Run the chunks of a launch: directly where there is one chunk or one thread, else in the pool."""
    return f"""
define i64 @stratal_parallel_for(ptr %pool, ptr %kernel, ptr %frame, i64 %chunks) {{
entry:
{at("threads")}
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
{at("done", "caller_chunks")}
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
{at("epoch", "kernel", "frame", "chunks", "done", "sleepers", "waking", "threads", "regions", "wakes")}
  call void @keep_apart(ptr %pool)
  store atomic ptr %kernel, ptr %kernel_at monotonic, align 8
  store atomic ptr %frame, ptr %frame_at monotonic, align 8
  store atomic i64 %chunks, ptr %chunks_at monotonic, align 8
  %done_before = load atomic i32, ptr %done_at monotonic, align 64
  %chunks32 = trunc i64 %chunks to i32
  %goal = add i32 %done_before, %chunks32
  %old_epoch = load atomic i32, ptr %epoch_at monotonic, align 64
  %epoch = add i32 %old_epoch, 1
  %epoch64 = zext i32 %epoch to i64
  %high = shl i64 %epoch64, 32
  %threads = load i64, ptr %threads_at, align 8
  br label %share
share:
  %thread = phi i64 [0, %entry], [%following, %share]
  %start = phi i64 [0, %entry], [%end, %share]
  %following = add i64 %thread, 1
  %end = call i64 @share_start(ptr %pool, i64 %following, i64 %chunks)
  %size = sub i64 %end, %start
  %word = or i64 %high, %size
  %claim_at = call ptr @claim_word(ptr %pool, i64 %thread)
  store atomic i64 %word, ptr %claim_at release, align 64
  %more = icmp ult i64 %following, %threads
  br i1 %more, label %share, label %open
open:
  %swapped = atomicrmw xchg ptr %epoch_at, i32 %epoch seq_cst, align 64
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
{at("done", "caller_sleeps", "caller_spins")}
  %patience = load i32, ptr %caller_spins_at, align 4
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
