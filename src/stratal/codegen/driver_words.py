"""Where the words of the claim pool lie, its own, then a record for each thread besides the caller; and how
generated text reads and writes words."""

from __future__ import annotations

from typing import Final

WORDS: Final = {  # byte offsets in the pool; words that different threads write lie on different cache lines
    "epoch": 0,  # 32 bits: the region opened last, what workers without work watch
    "kernel": 64,
    "frame": 72,
    "chunks": 80,
    "done": 128,
    "caller_sleeps": 132,
    "sleepers": 192,
    "stop": 196,
    "waking": 200,  # sleepers have been called and none has come yet: no need to call again
    "threads": 256,
    "regions": 264,
    "caller_chunks": 272,
    "wakes": 280,
    "worker_spins": 288,  # pauses of a thread without work before it sleeps
    "caller_spins": 292,  # pauses of the caller before it sleeps
    "caller_place": 296,  # the processor the caller was on when it last called sleepers
}
CLAIMS: Final = 320  # one word per thread, WORKER_BYTES apart: the second line of each record
WORKERS: Final = 384  # records of the threads besides the caller
WORKER_BYTES: Final = 128
WORKER_POOL: Final = 0  # of a record: pool, index, thread, chunks
WORKER_THREAD: Final = 16
WORKER_CHUNKS: Final = 24


def at(*names: str) -> str:
    """Return the lines that find words of the pool: `%epoch_at` for `epoch`."""
    return "\n".join(f"  %{name}_at = getelementptr i8, ptr %pool, i64 {WORDS[name]}" for name in names)


def in_record(name: str, thread: str, offset: int) -> str:
    """Return the lines that find a word in the record of a thread, whose number `thread` holds: 1 or more."""
    return f"""  %{name}_skipped = mul i64 {thread}, {WORKER_BYTES}
  %{name}_offset = add i64 %{name}_skipped, {WORKERS - WORKER_BYTES + offset}
  %{name} = getelementptr i8, ptr %pool, i64 %{name}_offset"""


def find(base: str, *names: str, first: int = 0) -> str:
    """Return the lines that find words of 8 bytes which follow each other, from number `first` on."""
    numbered = enumerate(names, first)
    return "\n".join(f"  %{name}_at = getelementptr i8, ptr {base}, i64 {8 * k}" for k, name in numbered)


def load(base: str, *words: str, first: int = 0) -> str:
    """Return the lines that read words which follow each other, from number `first` on: `%a` for `ptr a`."""
    typed = [word.split() for word in words]
    found = find(base, *(name for _, name in typed), first=first)
    return "\n".join((found, *(f"  %{name} = load {ty}, ptr %{name}_at, align 8" for ty, name in typed)))


def sum_from(entry: str) -> str:
    """Return the line that hands `%new_sum` of a turn to the next one, as `%sum`."""
    return f"  %sum = phi i64 [0, %{entry}], [%new_sum, %turn]\n"


def each(count: str, body: str, *, first: int | str = 0, entry: str = "entry", phis: str = "") -> str:
    """Return a loop over `%index`, from `first` to below a count, which ends at the label `leave`.

    `body` is one block; `entry` is the one before the loop, `phis` the lines of what else turns hand on.
    """
    return f"""\
  br label %look
look:
  %index = phi i64 [{first}, %{entry}], [%next, %turn]
{phis}  %more = icmp slt i64 %index, {count}
  br i1 %more, label %turn, label %leave
turn:
{body}
  %next = add i64 %index, 1
  br label %look
leave:"""
