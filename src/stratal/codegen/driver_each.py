"""Calls of one foreign function for many matrices, as LLVM text (layouts: base.foreign)."""

from __future__ import annotations

from stratal.base.foreign import ARGUMENT_WORDS, ARGUMENTS, HEAD_WORDS
from stratal.base.native import WORD


def each_text() -> str:
    """Return `@stratal_each_chunk`: a kernel that takes an Each for its Frame and makes a chunk's calls."""
    numbers = range(ARGUMENTS)
    starts = "\n".join(_start(k) for k in numbers)
    phis = "\n".join(f"  %word_{k} = phi i64 [%start_{k}, %entry], [%next_{k}, %call]" for k in numbers)
    steps = "\n".join(f"  %next_{k} = add i64 %word_{k}, %step_{k}" for k in numbers)
    words = ", ".join(f"i64 %word_{k}" for k in numbers)
    return f"""
define void @stratal_each_chunk(ptr %each, i64 %chunk, i32 %worker) {{
entry:
  %count_at = getelementptr i64, ptr %each, i64 1
  %share_at = getelementptr i64, ptr %each, i64 2
  %function = load ptr, ptr %each, align {WORD}
  %count = load i64, ptr %count_at, align {WORD}
  %share = load i64, ptr %share_at, align {WORD}
  %first = mul i64 %chunk, %share
  %end = add i64 %first, %share
  %stop = call i64 @llvm.smin.i64(i64 %end, i64 %count)
  %number = sext i32 %worker to i64
{starts}
  br label %look
look:
  %index = phi i64 [%first, %entry], [%next, %call]
{phis}
  %more = icmp slt i64 %index, %stop
  br i1 %more, label %call, label %leave
call:
  call void %function({words})
  %next = add i64 %index, 1
{steps}
  br label %look
leave:
  ret void
}}
"""


def _start(k: int) -> str:
    """Find argument k of a chunk's first call."""
    at = HEAD_WORDS + k * ARGUMENT_WORDS
    return f"""\
  %at_{k} = getelementptr i64, ptr %each, i64 {at}
  %step_at_{k} = getelementptr i64, ptr %each, i64 {at + 1}
  %own_at_{k} = getelementptr i64, ptr %each, i64 {at + 2}
  %base_{k} = load i64, ptr %at_{k}, align {WORD}
  %step_{k} = load i64, ptr %step_at_{k}, align {WORD}
  %own_{k} = load i64, ptr %own_at_{k}, align {WORD}
  %skipped_{k} = mul i64 %first, %step_{k}
  %place_{k} = mul i64 %number, %own_{k}
  %from_{k} = add i64 %base_{k}, %skipped_{k}
  %start_{k} = add i64 %from_{k}, %place_{k}"""
