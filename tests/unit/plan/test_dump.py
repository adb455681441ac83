"""Stages of a compilation: dumped, fed back edited, verified, and reported when a pass fails."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from plan_programs import LOOP, compiled, dense, run

from stratal import compiler
from stratal.base import settings
from stratal.base.artifact import Launch
from stratal.base.errors import CompilerError, FormatError, StratalError, VerifyError
from stratal.base.target import Target
from stratal.cli import main
from stratal.compiler import Program
from stratal.graph.text import parse_graph
from stratal.loops.parse import parse_kernel
from stratal.loops.stmt import Kernel
from stratal.memory.liveness import analyse, roots
from stratal.memory.plan import Block, arena_blocks
from stratal.plan import check, failure, generation


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    """The folder of the stages of the dense program."""
    with settings.dump(tmp_path / "dump"):
        compiled(dense())
    (folder,) = (tmp_path / "dump").iterdir()
    return folder


def test_every_stage_is_a_numbered_file(dumped: Path) -> None:
    names = sorted(p.name for p in dumped.iterdir())
    assert dumped.name.startswith("dense-")
    assert names == [
        "00-captured.graph", "01-simplified.graph", "02-partition.txt", "03-commands.txt", "04-kernels",
        "05-llvm", "06-linked.txt", "07-memory.txt", "08-plan.json", "08-plan.txt", "09-decisions.txt",
    ]  # fmt: skip
    assert parse_graph((dumped / "00-captured.graph").read_text()).digest == dense().digest
    kernels = sorted((dumped / "04-kernels").iterdir())
    assert len(kernels) == 2
    for path in kernels:
        assert parse_kernel(path.read_text()).name == path.stem
        assert f"@{path.stem}(" in (dumped / "05-llvm" / f"{path.stem}.ll").read_text()
    assert (
        "copy" in (dumped / "03-commands.txt").read_text()
    )  # of the new state: it goes when memory is shared
    assert "copy" not in (dumped / "06-linked.txt").read_text()
    assert "fuse:" in (dumped / "09-decisions.txt").read_text()


def test_the_regions_of_a_loop_are_dumped_too(tmp_path: Path) -> None:
    with settings.dump(tmp_path):
        compiled(parse_graph(LOOP))
    (folder,) = tmp_path.iterdir()
    assert (folder / "02-partition.2.txt").is_file()
    assert "loop 7 times" in (folder / "06-linked.txt").read_text()


def test_stages_fed_back_unchanged_change_nothing(dumped: Path) -> None:
    plain = compiled(dense())
    with settings.override(dumped.parent):
        again = compiled(dense())
    assert again.plan.hash == plain.plan.hash
    assert not again.plan["overrides"]


def test_an_edited_graph_is_used_recorded_and_hashed(dumped: Path) -> None:
    plain = compiled(dense())
    stage = dumped / "01-simplified.graph"
    stage.write_text(stage.read_text().replace("tanh(", "exp("))
    with settings.override(dumped.parent):
        edited = compiled(dense())
    assert np.allclose(np.tanh(np.log(run(edited)[0])), run(plain)[0], atol=1e-5)
    assert edited.plan["overrides"][0].startswith("simplified ")
    assert "overridden by hand: simplified" in str(edited.plan)
    assert edited.plan.hash != plain.plan.hash
    assert "edited by hand in" in edited.explain()
    assert compiled(dense()).plan.hash == plain.plan.hash  # and nowhere else


def test_an_edited_kernel_is_verified_used_and_named_by_its_content(dumped: Path) -> None:
    plain = compiled(dense())
    (path,) = (p for p in (dumped / "04-kernels").iterdir() if "fma(" in p.read_text())
    text = path.read_text()
    line = next(row for row in text.splitlines() if "y0[" in row)
    path.write_text(text.replace(line, line.split(" = ")[0] + " = 2.0:f32"))
    with settings.override(dumped.parent), settings.verify(True):
        edited = compiled(dense())
        outputs, state = run(edited)
    assert np.all(outputs == 2.0)
    assert np.allclose(state, 16.0)
    (override,) = edited.plan["overrides"]
    assert override.startswith("kernel k_")
    assert path.stem not in override
    assert edited.plan.hash != plain.plan.hash
    assert "edited by hand, was" in edited.explain(kernel=1)


def test_an_edit_that_breaks_the_rules_is_refused_with_its_file(dumped: Path) -> None:
    stage = dumped / "01-simplified.graph"
    kernels = list((dumped / "04-kernels").iterdir())
    whole = stage.read_text()
    for broken, says in (
        (whole.replace("tanh(", "tangent("), "no op has this name"),
        (whole.replace("return %6", "return %6, %6"), "must keep its outputs"),
        ("", "not valid"),
    ):
        stage.write_text(broken)
        with settings.override(dumped.parent), pytest.raises(FormatError) as caught:
            compiled(dense())
        assert says in str(caught.value) or says in caught.value.got
        assert "01-simplified.graph" in str(caught.value)
    stage.write_text(whole)
    text = kernels[0].read_text()
    kernels[0].write_text(text.replace("  in  x0: f32[8,", "  in  x0: f32[9,"))
    with settings.override(dumped.parent), pytest.raises(FormatError, match="parameters"):
        compiled(dense())


def test_a_dump_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with settings.dump(tmp_path / "file"), pytest.raises(StratalError, match="cannot be written"):
        compiled(dense())


def test_a_failing_pass_leaves_its_stage_in_a_file_that_reproduces_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a pass went wrong")

    monkeypatch.setattr(compiler, "share_memory", broken)
    with settings.dump(tmp_path), pytest.raises(CompilerError) as caught:
        compiled(dense())
    error = caught.value
    assert "a pass went wrong" in error.got
    assert isinstance(error.__cause__, KeyError)
    assert "`stratal explain " in error.hint
    path = Path(error.hint.split("stratal explain ")[1].split("`")[0])
    assert parse_graph(path.read_text()).digest
    assert main(["explain", str(path)]) == 1
    assert "a pass went wrong" in capsys.readouterr().err


def test_llvm_text_that_is_rejected_is_kept_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = generation.kernel_module

    def spoiled(kernel: Kernel, target: Target) -> str:
        text = original(kernel, target)
        return text.replace("ret void", "ret i1") if "llvm.fma" in text else text

    monkeypatch.setattr(generation, "kernel_module", spoiled)
    with settings.dump(tmp_path), settings.cache_dir(None), pytest.raises(CompilerError) as caught:
        compiled(dense())
    path = Path(caught.value.hint.split("stratal explain ")[1].split("`")[0])
    assert path.suffix == ".ll"
    assert "ret i1" in path.read_text()
    assert main(["explain", str(path)]) == 1
    assert "LLVM refuses this text" in capsys.readouterr().err


def test_a_kernel_whose_code_cannot_be_generated_is_kept_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled while others are scheduled; the report waits for the stage that holds them all."""

    def broken(kernel: Kernel, target: Target) -> str:
        raise VerifyError("codegen: a pass went wrong")

    monkeypatch.setattr(generation, "kernel_module", broken)
    monkeypatch.setattr(failure, "kernel_module", broken)
    with settings.cache_dir(None), pytest.raises(CompilerError, match="after stage 'commands'") as caught:
        compiled(dense())
    path = Path(caught.value.hint.split("stratal explain ")[1].split("`")[0])
    assert path.suffix == ".kernel"
    parse_kernel(path.read_text())


PRODUCTS = """graph "products"(%0: f32[64,64] = "x", %1: f32[64,64] = "y") {
  %2 = contract(%0, %1) spec="mk,kn->mn" dtype=none : f32[64,64]
  %3 = contract(%1, %0) spec="mk,kn->mn" dtype=none : f32[64,64]
  %4 = contract(%2, %3) spec="mk,kn->mn" dtype=none : f32[64,64]
  return %4
}"""


def blocks_alive_together(program: Program) -> tuple[Block, Block]:
    made = program.executable
    live = analyse(made.commands, roots(made.values))
    blocks = arena_blocks(made.values, live, made.outputs)
    return next((a, b) for a, b in combinations(blocks, 2) if a.life.meets(b.life))


def test_verification_finds_buffers_that_overlap_or_leave_the_arena() -> None:
    program = compiled(parse_graph(PRODUCTS))
    made = program.executable
    check.executable(made)
    first, second = blocks_alive_together(program)
    made.values[second.root].offset = made.values[first.root].offset
    with pytest.raises(VerifyError, match="overlap"):
        check.executable(made)
    made.values[second.root].offset = made.arena_bytes
    with pytest.raises(VerifyError, match="leaves the arena"):
        check.executable(made)


def test_verification_finds_launches_that_do_not_fit_their_kernels() -> None:
    draft = compiled(dense()).draft
    check.draft(draft)
    (launch, *_) = (c for c in draft.commands if isinstance(c, Launch))
    short = dataclasses.replace(launch, reads=launch.reads[1:])
    draft.commands = (short,)
    with pytest.raises(VerifyError, match="too much or too little"):
        check.draft(draft)
    small = dataclasses.replace(launch, reads=(launch.reads[2], *launch.reads[1:]))
    draft.commands = (small,)
    with pytest.raises(VerifyError, match="does not fit"):
        check.draft(draft)


def test_programs_compile_and_run_with_verification_on() -> None:
    with settings.verify(True):
        for graph in (dense(), parse_graph(LOOP)):
            run(compiled(graph))


def test_a_result_that_is_an_input_passes_verification() -> None:
    text = 'graph "alias"(%0: f32[8] = "x") {\n  %1 = exp(%0) : f32[8]\n  return %1, %0\n}'
    with settings.verify(True):
        outputs = run(compiled(parse_graph(text)))
    assert np.allclose(outputs[0], np.exp(outputs[1]), rtol=1e-5)
