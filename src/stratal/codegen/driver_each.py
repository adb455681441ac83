"""Calls of one foreign function for many matrices, as LLVM text (layouts: base.foreign)."""

from __future__ import annotations

from stratal.base.foreign import ARGUMENT_WORDS, ARGUMENTS, HEAD_WORDS
from stratal.codegen.driver_words import each, load


def each_text() -> str:
    """Return `@stratal_each_chunk`: a kernel that takes an Each for its Frame and makes a chunk's calls."""
    numbers = range(ARGUMENTS)
    starts = "\n".join(_start(k) for k in numbers)
    phis = "".join(f"  %word_{k} = phi i64 [%start_{k}, %entry], [%next_{k}, %turn]\n" for k in numbers)
    steps = "\n".join(f"  %next_{k} = add i64 %word_{k}, %step_{k}" for k in numbers)
    words = ", ".join(f"i64 %word_{k}" for k in numbers)
    calls = f"  call void %function({words})\n{steps}"
    return f"""
define void @stratal_each_chunk(ptr %each, i64 %chunk, i32 %worker) {{
entry:
{load("%each", "ptr function", "i64 count", "i64 share")}
  %first = mul i64 %chunk, %share
  %end = add i64 %first, %share
  %stop = call i64 @llvm.smin.i64(i64 %end, i64 %count)
  %number = sext i32 %worker to i64
{starts}
{each("%stop", calls, first="%first", phis=phis)}
  ret void
}}
"""


def _start(k: int) -> str:
    """Find argument k of a chunk's first call."""
    words = (f"i64 {name}_{k}" for name in ("base", "step", "own"))
    return f"""\
{load("%each", *words, first=HEAD_WORDS + k * ARGUMENT_WORDS)}
  %skipped_{k} = mul i64 %first, %step_{k}
  %place_{k} = mul i64 %number, %own_{k}
  %from_{k} = add i64 %base_{k}, %skipped_{k}
  %start_{k} = add i64 %from_{k}, %place_{k}"""
