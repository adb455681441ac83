"""What the generated code of each target is made of: object format, vector registers, fused multiply-adds."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest

import stratal as st
from stratal import nn
from stratal.base.target import TARGETS, Target
from stratal.codegen.assemble import assemble, emit_assembly
from stratal.codegen.driver import driver_target, driver_text
from stratal.codegen.kernel import pieces
from stratal.codegen.module import kernel_module
from stratal.compiler import decided

pytestmark = pytest.mark.quick

F = nn.functional
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
PROGRAMS = {
    "gemm": (lambda x, y: x @ y, [(96, 80), (80, 64)]),
    "residual": (lambda x, y: x @ y + x, [(160, 256), (256, 256)]),
    "rows": (lambda x, y: F.softmax(x, dim=-1) + y, [(64, 96), (64, 96)]),
    "columns": (lambda x, y: (x * y).sum(dim=0), [(64, 96), (64, 96)]),
    "pointwise": (lambda x, y: st.tanh(x) * y + x, [(64, 96), (64, 96)]),
    "conv": (lambda x, y: F.conv2d(x, y, padding=1), [(2, 16, 12, 12), (32, 16, 3, 3)]),
    "pad": (lambda x, y: F.pad(x, (0, 0, 1, 1)) + y, [(62, 64), (64, 64)]),
    "gather": (lambda x, y: x[(y[0] * 0).astype("int64")], [(64, 96), (64, 96)]),
}


def kernels_of(name: str, target: Target) -> dict[str, str]:
    """Return the LLVM text of the kernels a program has on a target, by tactic."""
    function, shapes = PROGRAMS[name]
    captured = st.compile(function)
    captured(*[st.ones(shape) for shape in shapes])
    draft = decided(captured.program.graph, target).draft
    return {
        f"{k}: {scheduled.tactic}": kernel_module(scheduled.kernel, target)
        for k, scheduled in enumerate(draft.kernels.values())
    }


def main_kernel(name: str, target: Target) -> str:
    """Return the assembly of the longest kernel."""
    return emit_assembly(max(kernels_of(name, target).values(), key=len), target)


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_gets_objects_for_its_own_machine(name: str, target: Target) -> None:
    for text in kernels_of(name, target).values():
        code = assemble(text, target)
        assert code[:4] == b"\x7fELF" and code[4] == 2  # 64 bits
        kind, machine = struct.unpack_from("<HH", code, 16)
        assert kind == 1 and machine == MACHINES[target.arch]  # relocatable


def test_the_driver_is_emitted_for_neon_too() -> None:
    neon = TARGETS["neon"]
    code = assemble(driver_text(driver_target(neon.triple)), neon)
    assert struct.unpack_from("<H", code, 18) == (MACHINES["aarch64"],)


@pytest.mark.parametrize("name", ["gemm", "conv", "pointwise"])
def test_neon_code_multiplies_and_adds_four_floats_at_once(name: str) -> None:
    text = main_kernel(name, TARGETS["neon"])
    fused = re.findall(r"\bfmla\s+v\d+\.4s", text)
    assert len(fused) >= 4, text[:2000]


@pytest.mark.parametrize("name", PROGRAMS)
def test_haswell_code_keeps_to_its_sixteen_wide_registers(name: str) -> None:
    texts = [emit_assembly(t, TARGETS["haswell"]) for t in kernels_of(name, TARGETS["haswell"]).values()]
    assert any("ymm" in t for t in texts)
    for text in texts:
        assert "zmm" not in text and not re.search(r"%?[xy]mm(1[6-9]|2\d|3[01])\b|\bk[0-7]\b", text)


@pytest.mark.parametrize(("target", "register"), [("haswell", "ymm"), ("avx512", "zmm")])
def test_x86_matrix_products_are_fused_multiply_adds_of_whole_registers(target: str, register: str) -> None:
    text = main_kernel("gemm", TARGETS[target])
    fused: list[Any] = re.findall(rf"vfmadd\d+ps.*{register}", text)
    assert len(fused) >= 8


@pytest.mark.parametrize(
    ("running", "found"),
    [("11111111", [(0, 8)]), ("1111111100", [(0, 8)]), ("1110", [(0, 2), (2, 1)]), ("0010", [(2, 1)]),
     ("1011111", [(0, 1), (2, 4), (6, 1)]), ("0000", [])],
)  # fmt: skip
def test_lanes_that_run_are_written_in_powers_of_two(running: str, found: list[tuple[int, int]]) -> None:
    assert pieces([lane == "1" for lane in running]) == found


def test_haswell_code_writes_no_known_lanes_under_a_mask() -> None:
    def odd(x: st.Tensor) -> st.Tensor:
        return F.softmax(x, dim=-1)

    captured = st.compile(odd)
    captured(st.ones((8, 203)))
    for kernel in decided(captured.program.graph, TARGETS["haswell"]).draft.kernels.values():
        code = emit_assembly(kernel_module(kernel.kernel, TARGETS["haswell"]), TARGETS["haswell"])
        assert not re.search(r"maskmov\w+\s+%\S+, %\S+, \S*\(", code)


def test_long_tiles_fetch_the_large_arrays_that_follow_them() -> None:
    fetches = {name: main_kernel(name, TARGETS["avx512"]).count("prefetch") for name in ("gemm", "residual")}
    assert fetches["gemm"] == 0  # its result fits the first cache
    assert fetches["residual"] >= 2 * 8  # rows of a tile, of the result


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_loops_count_along_what_addresses_need(name: str, target: Target) -> None:
    """No loop multiplies its variable: LLVM is told not to look for such products."""
    texts = kernels_of(name, target).values()
    assert not [line for text in texts for line in re.findall(r".*mul i64 %i\d+,.*", text)]
    if name != "gather":
        assert any(re.search(r"%m\d+ = phi i64", text) for text in texts)


def test_what_only_registers_follow_is_loaded_once() -> None:
    """Sums in registers change no memory: a product loads each element of a copy it made itself once."""
    (text,) = (t for k, t in kernels_of("conv", TARGETS["avx512"]).items() if k.endswith("winograd"))
    (block,) = (b for b in re.split(r"\n\w+:\n", text) if b.count("phi <16 x float>") > 4)
    loads = re.findall(r"= (load .*)", block)
    assert len(loads) == len(set(loads)) > 8


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_floats_become_whole_numbers_as_vectors(dtype: str) -> None:
    captured = st.compile(lambda x: x.astype(dtype))
    captured(st.ones((64, 1000)))
    (kernel,) = decided(captured.program.graph, TARGETS["avx512"]).draft.kernels.values()
    code = emit_assembly(kernel_module(kernel.kernel, TARGETS["avx512"]), TARGETS["avx512"])
    assert "cvttss2si" not in code and re.search(r"vcvttps2u?[dq]", code)


def test_indices_of_four_bytes_gather_by_four_bytes() -> None:
    captured = st.compile(lambda x, k: st.take_along_dim(x, k, dim=1))
    captured(st.ones((8, 4096)), st.zeros((8, 4096), dtype="int32"))
    kernels = decided(captured.program.graph, TARGETS["avx512"]).draft.kernels.values()
    texts = [emit_assembly(kernel_module(k.kernel, TARGETS["avx512"]), TARGETS["avx512"]) for k in kernels]
    assert any("vgatherdps" in t for t in texts) and not any("vgatherqps" in t for t in texts)


def test_rows_of_padding_are_read_from_where_a_page_is() -> None:
    (text,) = kernels_of("pad", TARGETS["avx512"]).values()
    read = re.findall(r"@llvm\.masked\.load\S+\(ptr align 4 (%\w+)", text)
    assert read and all(re.search(rf"{p} = select i1 %\w+, ptr %\w+, ptr %\w+", text) for p in read)
