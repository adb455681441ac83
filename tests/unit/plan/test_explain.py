"""Explanations: decisions with the user's line, kernels in depth, pictures, `stratal explain`."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_programs import DENSE, HOST, LOOP, compiled, dense

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, MissingExtraError, StratalError
from stratal.cli import main
from stratal.graph.text import parse_graph
from stratal.inspect.graph_picture import kernels_to_dot
from stratal.inspect.memory_map import memory_svg, save_memory_map


@pytest.fixture(scope="module")
def step() -> Any:
    """A compiled training step of a small network."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @st.compile
    def train(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    rng = np.random.default_rng(0)
    x = st.tensor(rng.standard_normal((8, 1, 6, 6)).astype(np.float32))
    train(x, st.tensor(rng.integers(0, 5, 8)))
    return train


def test_every_kernel_is_explained_with_what_it_computes_why_and_where(step: Any) -> None:
    text = step.explain()
    plan = step.plan
    for kernel in plan.kernels:
        assert f"{kernel['number']:>3}  {kernel['name']}" in text
    assert "conv, add" in text
    assert "apart because a sum of products starts a kernel" in text
    assert "[test_explain.py:" in text
    assert repr(text) == str(text)


@pytest.mark.row("I12")
def test_what_takes_longest_is_named_first(step: Any) -> None:
    lines = step.explain().splitlines()
    assert lines[2].startswith("takes longest")
    longest = max(step.plan.kernels, key=lambda k: k["seconds"] * k["times"])
    assert f"{longest['number']} {longest['name']}" in lines[3]
    assert "bound by" in lines[3]


def test_decisions_name_what_was_shared_kept_apart_and_laid_out(step: Any) -> None:
    text = step.explain()
    assert "memory shared, copies left" in text
    assert "nobody looks at the old value in between" in text
    assert "layouts other than row-major" in text
    log = step.program.log
    assert {"fuse", "layout", "in place", "simplify"} <= {d.stage for d in log}
    assert all(d.why for d in log)


def test_a_refused_fusion_says_which_rule_refused_it() -> None:
    text = compiled(dense()).explain()
    assert "5x8" in text or "8x5" in text
    assert "fusion is off" in compiled(dense(), fused=False).explain()


def test_a_copy_that_must_stay_says_why() -> None:
    text = DENSE.replace("return %6", "return %6, %7")
    explained = compiled(parse_graph(text)).explain()
    assert "is copied there" in explained


def test_host_calls_are_explained_with_their_reason() -> None:
    text = compiled(parse_graph(HOST)).explain()
    assert "run by Python" in text
    assert "matrix_exp" in text.split("run by Python")[1].splitlines()[1]


def test_one_kernel_shows_its_expression_schedule_and_loops() -> None:
    program = compiled(dense())
    text = program.explain(kernel=1)
    assert program.explain(1) == text
    for part in ("expression", "buffers", "schedule", "loops\nkernel k_"):
        assert part in text
    assert "dot[b<6](a0[a, b], a1[b, c])" in text
    assert "x1: f32[6, 5] is %1 w in input" in text
    assert "define void" not in text
    deep = program.explain(kernel=1, llvm=True, assembly=True)
    assert "define void @k_" in deep
    assert ".text" in deep.split("assembly for")[1]


def test_a_kernel_or_topic_that_is_not_there_is_refused() -> None:
    program = compiled(dense())
    with pytest.raises(AttributeValueError, match="kernel"):
        program.explain(kernel=9)
    with pytest.raises(AttributeValueError, match="topic"):
        program.explain("weather")


def test_memory_graph_and_decisions_are_topics(step: Any) -> None:
    assert step.explain("memory").startswith("arena ")
    assert step.explain("graph").startswith('graph "train"')
    assert "fuse:" in step.explain("decisions")


def test_the_memory_map_is_a_picture_of_every_block(step: Any, tmp_path: Path) -> None:
    svg = memory_svg(step.program)
    root = ElementTree.fromstring(svg)
    boxes = [e for e in root.iter() if e.get("class") == "b"]
    tips = [e[0].text or "" for e in boxes]
    assert len(boxes) == svg.count('class="b"') > 3
    assert any("test_explain.py:" in tip for tip in tips)
    assert all("kernel" in tip for tip in tips)
    save_memory_map(step.program, tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text() == svg
    with pytest.raises(StratalError, match="svg"):
        save_memory_map(step.program, tmp_path / "map.gif")


def test_an_empty_arena_and_a_loop_are_drawn_too() -> None:
    assert "nothing lives in the arena" in memory_svg(compiled(dense()))
    looped = memory_svg(compiled(parse_graph(LOOP)))
    assert "carried by a loop" in looped and "repeated" in looped


def test_a_png_needs_the_extra_and_says_so(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError) as caught:
        save_memory_map(step.program, tmp_path / "map.png")
    assert "stratal[viz]" in caught.value.hint


def test_kernels_are_drawn_as_dot(step: Any) -> None:
    dot = kernels_to_dot(step.program)
    assert dot.startswith('digraph "train" {')
    assert dot.count("fillcolor") >= len(step.plan.kernels)
    assert "shape=cylinder" in dot  # the states


SCRIPT = """
import numpy as np
import stratal as st

@st.compile
def scaled(x):
    return st.tanh(x) @ st.ones((8, 2))

print(scaled(st.tensor(np.ones((4, 8), np.float32))).shape)
"""


def test_the_command_draws_and_shows_one_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    svg, dot = tmp_path / "memory.svg", tmp_path / "kernels.dot"
    arguments = [
        "explain",
        "--only",
        "scaled",
        "--kernel",
        "1",
        "--llvm",
        "--svg",
        str(svg),
        "--dot",
        str(dot),
    ]
    assert main([*arguments, str(script)]) == 0
    out = capsys.readouterr().out
    assert "define void @k_" in out
    assert "script.py:7" in out
    assert svg.read_text().startswith("<svg")
    assert dot.read_text().startswith("digraph")


def test_the_command_takes_a_stage_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, kernel = tmp_path / "a.graph", tmp_path / "a.kernel"
    graph.write_text(DENSE)
    scheduled = next(iter(compiled(dense()).draft.kernels.values()))
    kernel.write_text(str(scheduled.kernel))
    assert main(["explain", "--only", "dense", "--show", "plan", str(graph)]) == 0
    assert "contract+add+tanh" in capsys.readouterr().out
    assert main(["explain", str(kernel)]) == 0
    assert "bytes of object code" in capsys.readouterr().out
    kernel.write_text("kernel k:\n  nonsense")
    assert main(["explain", str(kernel)]) == 1
    assert "kernel text" in capsys.readouterr().err


def test_the_command_gives_a_summary_first_and_all_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["explain", "--only", "scaled", str(script)]) == 0
    summary = capsys.readouterr().out
    assert "the kernels estimated to take longest" in summary and "--kernel N" in summary
    assert "decisions" not in summary.replace("decisions and memory", "")
    assert main(["explain", "--only", "scaled", "--all", str(script)]) == 0
    whole = capsys.readouterr().out
    assert "\ndecisions\n" in whole and "\nmemory\n" in whole
    assert len(whole) > 2 * len(summary)
