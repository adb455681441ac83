"""The linker: every kind of relocation, memory and its protection, objects that are not what they seem."""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from layout import IMPORTED
from test_runtime_programs import counting, driver, kernels, storage

from stratal.base.errors import CompilerError
from stratal.base.target import TARGETS, host_arch
from stratal.codegen.assemble import assemble, host_machine
from stratal.codegen.assemble_worker import emit_object
from stratal.runtime import loader
from stratal.runtime.elf import read_object
from stratal.runtime.link import PATCHES, Linked, link
from stratal.runtime.llvm_linker import LlvmLinked
from stratal.runtime.loader import Library
from stratal.runtime.program import LoadedProgram

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or host_arch() != "x86_64", reason="objects of other machines are LLVM's to link"
)
HOST = host_machine()


@lru_cache(maxsize=64)
def assembled(source: str) -> bytes:
    """Return the object of assembly in AT&T syntax."""
    llvm.initialize_native_asmparser()
    lines = (line.strip().replace('"', "\\22") for line in source.strip().splitlines())
    return assemble("".join(f'module asm "{line}"\n' for line in lines), HOST)


def linked(*sources: str) -> Linked:
    return link([read_object(assembled(source)) for source in sources])


def called(library: Linked, name: str, argument: int = 0) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.addresses[name])(argument))


def kinds_in(code: bytes) -> set[int]:
    return {r.kind for section in read_object(code).sections.values() for r in section.relocations}


CALLER = ".globl caller\n.text\ncaller:\n"
CALLEE = ".globl callee\n.text\ncallee:\nleaq 7(%rdi), %rax\nretq"
NUMBER = ".data\n.globl number\nnumber:\n.quad 30"
REACHES = {  # kind of relocation -> code that needs it and returns 37, given 30
    1: f"{CALLER}movq pointer(%rip), %rax\njmp *%rax\n.data\npointer:\n.quad callee",
    2: f"{CALLER}movq number(%rip), %rax\naddq $7, %rax\nretq\n.data\nnumber:\n.quad 30",
    4: f"{CALLER}jmp callee@PLT",
    9: f"{CALLER}movq %rdi, %rcx\nmovdqu callee@GOTPCREL(%rip), %xmm0\nmovq %xmm0, %rax\njmp *%rax",
    24: f"{CALLER}leaq gap(%rip), %rax\naddq (%rax), %rax\njmp *%rax\n.data\ngap:\n.quad callee - .",
    41: f"{CALLER}jmpq *callee@GOTPCREL(%rip)",
    42: f"{CALLER}movq callee@GOTPCREL(%rip), %rax\njmp *%rax",
}


@pytest.mark.parametrize("kind", REACHES)
def test_every_kind_of_relocation_reaches_its_symbol(kind: int) -> None:
    assert kind in kinds_in(assembled(REACHES[kind]))
    assert called(linked(REACHES[kind], CALLEE), "caller", 30) == 37
    assert called(linked(CALLEE, REACHES[kind]), "caller", 30) == 37
    assert called(linked(f"{REACHES[kind]}\n{CALLEE}"), "caller", 30) == 37


def test_every_kind_that_the_linker_knows_is_tested() -> None:
    assert set(REACHES) == set(PATCHES)


@pytest.mark.parametrize("kind", [1, 4, 9, 41, 42])
def test_functions_of_the_c_library_are_called_from_more_than_2_gb_away(kind: int) -> None:
    function = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
    near = []
    for _ in range(20):  # those that came near, in a gap that other tests left, fill what is in reach
        with mmap.mmap(-1, 5 << 30, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            library = linked(f"{REACHES[kind].replace('callee', 'labs')}\n.bss\n.zero {1 << 28}")
        if abs(function - library.addresses["caller"]) > 1 << 31:
            break
        near.append(library)
    assert len(near) < 20
    assert called(library, "caller", -30) == 30


def test_math_functions_are_those_of_the_process() -> None:
    body = "{\n %y = call double @cos(double %x)\n ret double %y\n}"
    text = f"declare double @cos(double)\ndefine double @f(double %x) {body}"
    library = link([read_object(assemble(text, HOST))])
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.addresses["f"])
    assert function(0.5) == math.cos(0.5)


def protection_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, protection, *_ = line.split()
        first, end = (int(part, 16) for part in span.split("-"))
        if first <= address < end:
            return protection
    return "none"


PLACES = """
.text
.globl code
code:
retq
.globl table
.section .rodata,"a",@progbits
.p2align 6
table:
.quad 1
.globl cell
.data
.p2align 5
cell:
.quad 2
.globl zeros
.bss
.p2align 12
zeros:
.zero 100000
"""


def test_code_is_never_writable_and_constants_are_only_read() -> None:
    library = linked(
        PLACES,
        PLACES.replace("code", "code2")
        .replace("table", "table2")
        .replace("cell", "c2")
        .replace("zeros", "z2"),
    )
    at = library.addresses
    assert [protection_of(at[n]) for n in ("code", "table", "cell", "zeros")] == [
        "r-xp",
        "r--p",
        "rw-p",
        "rw-p",
    ]
    assert [protection_of(at[n]) for n in ("code2", "table2", "c2", "z2")] == ["r-xp", "r--p", "rw-p", "rw-p"]
    assert [at["table2"] % 64, at["c2"] % 32, at["z2"] % 4096] == [0, 0, 0]
    assert [at["code"] % 64, at["code2"] % 64] == [0, 0]
    assert ctypes.c_int64.from_address(at["table2"]).value == 1
    assert ctypes.c_int64.from_address(at["c2"]).value == 2
    assert ctypes.string_at(at["z2"], 100000) == bytes(100000)


def test_memory_goes_back_when_the_library_dies() -> None:
    library = Library([assembled(PLACES)], ["code", "table", "cell"])
    addresses = dict(library.addresses)
    assert all(protection_of(a) != "none" for a in addresses.values())
    del library
    gc.collect()
    assert {protection_of(a) for a in addresses.values()} == {"none"}


def test_a_link_that_fails_leaves_no_memory_behind() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    def fail() -> None:
        with pytest.raises(CompilerError):
            linked(f"{CALLER}jmp nowhere@PLT")

    fail()
    gc.collect()
    before = mappings()
    for _ in range(200):
        fail()
    gc.collect()
    assert mappings() < before + 20


def test_what_contradicts_itself_is_refused_in_words() -> None:
    with pytest.raises(CompilerError, match="does not link") as undefined:
        linked(f"{CALLER}jmp nowhere@PLT")
    assert "nowhere" in undefined.value.got
    with pytest.raises(CompilerError) as twice:
        linked(CALLEE, CALLEE)
    assert "two definitions of 'callee'" in twice.value.got
    with pytest.raises(CompilerError, match="lacks") as lacking:
        Library([assembled(CALLEE)], ["callee", "caller"])
    assert lacking.value.got == "caller"


def edited(code: bytes, section_type: int, field: int, value: int) -> bytes:
    """Return an object with one field of the header of the first section of a type changed."""
    start, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    layout = struct.Struct("<IIQQQQIIQQ")
    for k in range(count):
        fields = list(layout.unpack_from(code, start + 64 * k))
        if fields[1] == section_type:
            fields[field] = value
            return code[: start + 64 * k] + layout.pack(*fields) + code[start + 64 * (k + 1) :]
    raise AssertionError(section_type)


HUGE = (1 << 64) - 1
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "section past the end": lambda code: edited(code, 1, 4, len(code)),
    "section of all memory": lambda code: edited(code, 1, 5, HUGE),
    "offset that wraps": lambda code: edited(code, 1, 4, HUGE - 3),
    "odd alignment": lambda code: edited(code, 1, 8, 3),
    "alignment of a terabyte": lambda code: edited(code, 1, 8, 1 << 40),
    "zeros without end": lambda code: edited(code, 8, 5, 1 << 45),
    "more zeros than there are": lambda code: edited(code, 8, 5, HUGE),
    "half a symbol": lambda code: edited(code, 2, 5, 25),
    "names of no section": lambda code: edited(code, 2, 6, 1000),
    "half a relocation": lambda code: edited(code, 4, 5, 25),
    "relocations past the end": lambda code: edited(code, 4, 4, HUGE),
    "no name": lambda code: edited(code, 3, 5, 0),
    "a table of sections past the end": lambda code: code[:40] + struct.pack("<Q", HUGE) + code[48:],
    "writable code": lambda code: edited(code, 1, 2, 7),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_an_object_that_breaks_the_format_is_refused(fault: str) -> None:
    whole = assembled(f"{REACHES[1]}\n.bss\nzeros:\n.zero 64\n{CALLEE}")
    assert called(link([read_object(whole)]), "caller", 30) == 37
    with pytest.raises(CompilerError):
        link([read_object(BROKEN[fault](whole))])


@pytest.mark.parametrize(
    "field, value", [(0, HUGE), (0, 1 << 20), (8, (1 << 32) - 1 << 32 | 1), (16, 1 << 63)]
)
def test_a_relocation_to_nowhere_is_refused(field: int, value: int) -> None:
    """Its offset is beyond the section, its symbol does not exist, or what it adds does not fit."""
    whole = assembled(f"{REACHES[2]}\n.bss\nzeros:\n.zero 64\n{CALLEE}")
    (table,) = (s for s in read_object(whole).sections.values() if s.relocations)
    first = table.relocations[0]
    entry = struct.pack("<QIIq", *first)
    wrong = entry[:field] + struct.pack("<Q", value) + entry[field + 8 :]
    if field == 8:
        wrong = entry[:8] + struct.pack("<II", first.kind, (1 << 32) - 1) + entry[16:]
    with pytest.raises(CompilerError):
        link([read_object(whole.replace(entry, wrong))])


def test_an_object_cut_short_anywhere_is_refused() -> None:
    code = kernels()["fill"].code
    for length in range(len(code)):
        with pytest.raises(CompilerError):
            link([read_object(code[:length])])


FLIPS = """
import random, sys
sys.path[:0] = sys.argv[1:]
import test_runtime_link as t
from test_runtime_programs import driver, kernels
from stratal.base import native
from stratal.base.errors import CompilerError
from stratal.runtime.llvm_linker import LlvmLinked
from stratal.runtime.loader import Library
objects = [(driver(), native.DRIVER_SYMBOLS), (kernels()["mix"].code, ["mix"])]
objects += [(t.assembled(t.PLACES), ["code", "table"])] * 2
loaded = refused = 0
for seed in range(4000):
    draw = random.Random(seed)
    code, symbols = draw.choice(objects)
    code = bytearray(code)
    first = draw.choice((0, len(code) * 2 // 3))  # tables lie at the end
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(first, len(code)) if draw.random() < 0.8 else draw.randrange(64)
        code[at] = draw.choice((code[at] ^ 1 << draw.randrange(8), draw.randrange(256), 0, 255))
    try:
        Library([bytes(code)], symbols)
        loaded += 1
    except CompilerError:
        refused += 1
print(loaded, refused)
"""


def test_flipped_bits_load_or_are_refused_and_never_crash() -> None:
    command = [sys.executable, "-c", FLIPS, *IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    loaded, refused = map(int, done.stdout.split())
    assert loaded > 500 and refused > 500


@pytest.mark.parametrize(
    "source", [".comm shared,8,8", ".weak shared", '.section .tdata,"awT",@progbits\n.quad 1', ".long code"]
)
def test_what_generated_code_never_holds_is_refused(source: str) -> None:
    code = assembled(f".globl code\n.text\ncode:\nretq\n.data\n{source}")
    with pytest.raises(CompilerError, match="does not link"):
        link([read_object(code)])


def test_objects_of_another_machine_or_format_are_refused() -> None:
    neon = emit_object(TARGETS["neon"].triple, "", "", "define void @k() { ret void }")
    for code in (neon, b"", b"MZ, or whatever else", neon[:4]):
        with pytest.raises(CompilerError, match="does not link"):
            Library([code], ["k"])


def test_programs_run_the_same_where_llvm_links_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "host_arch", lambda: "other")
    code = driver() + b"\0"  # not the driver that is loaded already
    with pytest.raises(CompilerError, match="does not link"):
        Library([assembled(f"{CALLER}jmp nowhere@PLT")], ["caller"])
    program = LoadedProgram(counting(300, threads=2).executable, code)
    assert isinstance(program.pool._driver._linked, LlvmLinked)
    np.testing.assert_array_equal(program.run([storage(np.zeros(64))])[0].array, sum(range(300)))
