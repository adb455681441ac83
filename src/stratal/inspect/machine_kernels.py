"""The kernels that measure a machine, as LLVM text: chains of multiply-adds, sweeps that read, sweeps that
copy.

    void chain_DTYPE(ptr data, i64 rounds)                       8 KiB of operands, the last result stored
    void read(ptr source, ptr sink, i64 bytes, i64 passes)       bytes: a multiple of STEP_BYTES
    void copy(ptr source, ptr target, i64 bytes, i64 passes)     plain stores
    void stream(ptr source, ptr target, i64 bytes, i64 passes)   stores that go around the caches
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import DType, bfloat16, float32, float64, int8
from stratal.base.target import Target

DATA_BYTES: Final = 8192
STEP_VECTORS: Final = 8  # vectors a sweep's loop handles at once
STEP_BYTES: Final = 4096  # a multiple of the step of every target
_UNROLL: Final = 4


class Instruction(NamedTuple):
    """One multiply-add of whole vectors: sums, operands -> sums."""

    call: str  # LLVM's intrinsic
    accumulator: str  # LLVM types
    operand: str
    operations: int  # a multiply and an add count as two


def multiply_adds(target: Target) -> dict[DType, Instruction]:
    """Return the fastest multiply-add of each dtype that the machine has in hardware.

    bfloat16 multiplies into float32 sums and int8 into int32 sums; a dtype without an instruction of its own
    is left out.
    """
    bits = target.vector_bits
    found = {}
    fused = "fma" if target.fma or target.arch == "aarch64" else "fmuladd"  # the latter: two instructions
    for dtype, name in ((float32, "float"), (float64, "double")):
        lanes = target.lanes(dtype.itemsize)
        kind = f"<{lanes} x {name}>"
        found[dtype] = Instruction(f"llvm.{fused}.v{lanes}f{dtype.bits}", kind, kind, 2 * lanes)
    floats, ints, words = (f"<{bits // 32} x {kind}>" for kind in ("float", "i32", "i32"))
    if target.has("avx512bf16") and bits == 512:
        call = "llvm.x86.avx512bf16.dpbf16ps.512"
        found[bfloat16] = Instruction(call, floats, f"<{bits // 16} x bfloat>", bits // 8)
    if target.arch == "x86_64" and (target.has("avx512vnni") or target.has("avxvnni")):
        found[int8] = Instruction(f"llvm.x86.avx512.vpdpbusd.{bits}", ints, words, bits // 4)
    if target.arch == "aarch64" and target.has("dotprod"):
        found[int8] = Instruction("llvm.aarch64.neon.sdot.v4i32.v16i8", ints, "<16 x i8>", bits // 4)
    return found


def num_chains(target: Target) -> int:
    """Return how many independent sums hide the latency: all registers but a few for the operands."""
    return min(24, target.num_vector_registers - 4)


def module_text(target: Target) -> str:
    """Return the module with a chain for each dtype of `multiply_adds`, and the sweeps."""
    attributes = " ".join(f'"{key}"="{value}"' for key, value in target.function_attributes)
    parts = [
        _chain(dtype, instruction, num_chains(target), attributes)
        for dtype, instruction in multiply_adds(target).items()
    ]
    parts += [_sweep(name, target, attributes) for name in ("read", "copy", "stream")]
    return "\n".join([f'target triple = "{target.triple}"', *parts, "!0 = !{i32 1}", ""])


def _chain(dtype: DType, how: Instruction, chains: int, attributes: str) -> str:
    kind = how.accumulator
    phis = [f"  %s{c} = phi {kind} [%first{c}, %entry], [%s{c}_{_UNROLL}, %loop]" for c in range(chains)]
    steps = []
    for u in range(_UNROLL):
        for c in range(chains):
            old = f"%s{c}" if u == 0 else f"%s{c}_{u}"
            terms = f"{kind} {old}, {how.operand} %x, {how.operand} %y"
            steps.append(f"  %s{c}_{u + 1} = call {kind} @{how.call}({terms})")
    loads = [f"  %at{c} = getelementptr i8, ptr %data, i64 {128 + 64 * c}" for c in range(chains)]
    loads += [f"  %first{c} = load {kind}, ptr %at{c}, align 4" for c in range(chains)]
    stores = [f"  store {kind} %s{c}_{_UNROLL}, ptr %at{c}, align 4" for c in range(chains)]
    return "\n".join(
        [
            f"declare {kind} @{how.call}({kind}, {how.operand}, {how.operand})",
            f"define void @chain_{dtype.name}(ptr %data, i64 %rounds) {attributes} {{",
            "entry:",
            f"  %x = load {how.operand}, ptr %data, align 4",
            "  %y_at = getelementptr i8, ptr %data, i64 64",
            f"  %y = load {how.operand}, ptr %y_at, align 4",
            *loads,
            "  br label %loop",
            "loop:",
            "  %left = phi i64 [%rounds, %entry], [%fewer, %loop]",
            *phis,
            *steps,
            "  %fewer = sub i64 %left, 1",
            "  %more = icmp sgt i64 %fewer, 0",
            "  br i1 %more, label %loop, label %leave",
            "leave:",
            *stores,
            "  ret void",
            "}",
        ]
    )


def operations_per_round(dtype: DType, target: Target) -> int:
    """Return the operations of one round of `chain_DTYPE`."""
    return multiply_adds(target)[dtype].operations * num_chains(target) * _UNROLL


def _sweep(name: str, target: Target, attributes: str) -> str:
    """Return a loop over a buffer, `passes` times; `read` keeps the bitwise or of all it saw."""
    width = target.vector_bits // 8
    kind, reads = f"<{width // 4} x i32>", name == "read"
    lines, sums = [], []
    for v in range(STEP_VECTORS):
        lines.append(f"  %o{v} = add i64 %at, {v * width}")
        lines.append(f"  %p{v} = getelementptr i8, ptr %source, i64 %o{v}")
        lines.append(f"  %v{v} = load {kind}, ptr %p{v}, align {width}")
        if reads:
            lines.append(f"  %n{v} = or {kind} %s{v}, %v{v}")
            sums.append(f"  %s{v} = phi {kind} [zeroinitializer, %entry], [%n{v}, %next]")
        else:
            hint = ", !nontemporal !0" if name == "stream" else ""
            lines.append(f"  %q{v} = getelementptr i8, ptr %target, i64 %o{v}")
            lines.append(f"  store {kind} %v{v}, ptr %q{v}, align {width}{hint}")
    stores = []
    for v in range(STEP_VECTORS if reads else 0):
        stores += [f"  %r{v} = getelementptr i8, ptr %target, i64 {v * width}"]
        stores += [f"  store {kind} %n{v}, ptr %r{v}, align {width}"]
    return "\n".join(
        [
            f"define void @{name}(ptr %source, ptr %target, i64 %bytes, i64 %passes) {attributes} {{",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %at = phi i64 [0, %entry], [%start, %next]",
            "  %pass = phi i64 [0, %entry], [%passed, %next]",
            *sums,
            *lines,
            f"  %moved = add i64 %at, {STEP_VECTORS * width}",
            "  %ended = icmp sge i64 %moved, %bytes",
            "  %start = select i1 %ended, i64 0, i64 %moved",
            "  %one = zext i1 %ended to i64",
            "  %passed = add i64 %pass, %one",
            "  %more = icmp slt i64 %passed, %passes",
            "  br i1 %more, label %next, label %leave",
            "next:",
            "  br label %loop",
            "leave:",
            *stores,
            "  ret void",
            "}",
        ]
    )
