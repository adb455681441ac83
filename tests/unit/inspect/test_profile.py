"""`st.profile` and `stratal profile`: the bottleneck, the roofline, classes of work, trace, picture."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.artifact import Launch, Loop, flat
from stratal.base.dtypes import float32
from stratal.base.errors import AttributeValueError, MissingExtraError, StratalError
from stratal.base.types import TensorType
from stratal.cli import main
from stratal.compiler import Program, compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.inspect.machine import MachinePeaks, machine_peaks
from stratal.inspect.profiler import Profile, Profiler, profile
from stratal.inspect.roofline import command_work
from stratal.ops.composite import activations, normalization
from stratal.plan.work import flops
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import program_cache

SLOW_MEMORY = MachinePeaks(
    threads=1, cpu="described", flops={float32: 100.0}, read_gbs=10.0, copy_gbs=10.0, l1_gbs=400.0,
    l2_gbs=100.0, l3_gbs=20.0, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=8 << 20,
)  # fmt: skip
CACHES = (32 << 10) + (1 << 20) + (8 << 20)  # bytes of all of them

SCRIPT = """
import sys
import numpy as np
import stratal as st
from stratal import nn, optim

net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
opt = optim.Adam(net.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
x = st.tensor(rng.standard_normal((64, 256)).astype(np.float32))
y = st.tensor(rng.integers(0, 10, 64))

@st.compile
def train_step(x, y):
    logits = net(x)
    loss = nn.functional.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss

for k in range(int(sys.argv[1])):
    loss = train_step(x, y)
print("loss is", float(loss))
"""


@pytest.fixture(scope="module")
def step() -> Any:
    """A training step of a small network, with its arguments bound."""
    net = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 10))
    opt = optim.Adam(net.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x = st.tensor(rng.standard_normal((128, 256)).astype(np.float32))
    y = st.tensor(rng.integers(0, 10, 128))

    @st.compile
    def train(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return lambda: train(x, y)


@pytest.fixture(scope="module")
def measured(step: Any) -> Profile:
    return profile(step, repeats=15, trace=True)


def recorded(program: Program, runs: int = 8) -> Profile:
    """Return the profile of a program on random inputs."""
    rng = np.random.default_rng(0)
    inputs = [
        Storage.copy_of(rng.standard_normal(t.ints).astype(t.dtype.np), t) for t in program.graph.input_types
    ]
    with Profiler() as profiler:
        for _ in range(runs):
            program_cache.run(program, inputs)
    return profiler.profile()


# -- the bottleneck ------------------------------------------------------------------------------------------
@pytest.mark.sampled(8)
@pytest.mark.row("I12")
def test_the_first_sentence_names_the_most_expensive_kernel_its_line_and_its_bound(measured: Profile) -> None:
    program = measured.programs[0]
    top = program.kernels[0]
    assert top.seconds == max(row.seconds for row in program.kernels)
    first = str(measured).splitlines()[0]
    assert first == measured.bottleneck
    assert top.name in first and top.lines[0] in first and f"{top.share:.0%} of each run" in first
    assert f"{top.of_roofline:.0%} of the roofline" in first
    assert top.lines[0].startswith("test_profile.py:")


@pytest.mark.sampled(5)
@pytest.mark.row("I12")
def test_where_python_between_the_runs_takes_longest_it_is_named_and_no_kernel() -> None:
    add = st.compile(lambda x: x + 1)
    x = st.tensor(np.ones(4, np.float32))
    with Profiler() as profiler, st.no_grad():
        for _ in range(6):
            add(x)
            time.sleep(0.004)
    assert profiler.profile().bottleneck.startswith("Python between two runs of")


@pytest.mark.sampled(5)
def test_kernels_come_in_falling_order_of_time_and_cover_the_run(measured: Profile) -> None:
    program = measured.programs[0]
    times = [row.seconds for row in program.kernels]
    assert times == sorted(times, reverse=True)
    numbers = {row.number for row in program.kernels if row.number}
    assert numbers == {kernel["number"] for kernel in program.program.plan.kernels}
    samples = program.times.samples
    assert (samples[:, list(program.by_step)].sum(axis=1) <= samples[:, -1]).all()
    assert program.run_time.low <= program.seconds <= program.run_time.high
    assert program.gap_seconds < program.seconds


@pytest.mark.sampled(5)
def test_kernels_of_one_code_and_line_count_together_for_what_is_the_bottleneck() -> None:
    w = [st.tensor(np.eye(96, dtype=np.float32)) for _ in range(5)]

    def deep(x: Any) -> Any:
        for k in range(5):
            x = st.tanh(x @ w[k])
        return x

    with st.no_grad():
        found = profile(st.compile(deep), st.tensor(np.ones((96, 96), np.float32)), repeats=4)
    program = found.programs[0]
    top = program.kinds[0]
    assert top.alike == 4
    same = [row for row in program.kernels if row.symbol == top.symbol]
    assert top.seconds == pytest.approx(sum(row.seconds for row in same))
    assert f"(kernel {top.number} and 4 alike) takes {top.share:.0%} of each run" in found.bottleneck
    assert sum(row.seconds for row in program.kinds) == pytest.approx(sum(r.seconds for r in program.kernels))


def test_lines_add_up_what_their_kernels_take(measured: Profile) -> None:
    program = measured.programs[0]
    lines = program.lines()
    assert [g.seconds for g in lines] == sorted((g.seconds for g in lines), reverse=True)
    assert sum(g.num_kernels for g in lines) == sum(bool(row.lines) for row in program.kernels)
    top = next(g for g in lines if g.line == program.kernels[0].lines[0])
    assert f"all {top.num_kernels} kernels of {top.line} together take {top.share:.0%}" in program.bottleneck


@pytest.mark.sampled(5)
def test_a_profile_counts_warm_runs_only_and_says_so_where_there_are_none(step: Any) -> None:
    measured = profile(step, repeats=5)
    assert measured.programs[0].num_runs == 6
    assert measured.programs[0].num_samples == 5
    with Profiler() as once:
        step()
    assert not once.profile().programs[0].warm


def test_profile_refuses_what_runs_no_program() -> None:
    with pytest.raises(StratalError, match="ran no compiled program"):
        profile(lambda: 1)
    with pytest.raises(AttributeValueError, match="at least one run"):
        profile(lambda: 1, repeats=0)


def test_a_program_from_the_cache_is_profiled_like_one_just_compiled() -> None:
    graph = product(96, 64, 80)
    first, second = compile_graph(graph), compile_graph(graph)
    assert second.kernels_from_cache == len(second.executable.kernels)
    a, b = (recorded(p).programs[0] for p in (first, second))
    assert [(r.number, r.flops, r.nbytes) for r in a.by_step.values()] == [
        (r.number, r.flops, r.nbytes) for r in b.by_step.values()
    ]
    assert sum(r.flops for r in b.kernels) >= 2 * 96 * 64 * 80


# -- the roofline --------------------------------------------------------------------------------------------
def product(m: int, k: int, n: int) -> Graph:
    x, w = graph_input("x", TensorType(float32, (m, k))), graph_input("w", TensorType(float32, (k, n)))
    return Graph([x, w], [Builder().contract(x, w, spec="mk,kn->mn")], name="product")


def sweep(n: int) -> Graph:
    x = graph_input("x", TensorType(float32, (n,)))
    b = Builder()
    return Graph([x], [b.add(x, b.full(x.aval, 1.0))], name="sweep")


def floors(graph: Graph) -> list[Any]:
    """Return the work and the floor of each launch on the described machine."""
    program = compile_graph(graph)
    made = program.executable
    work = command_work(program.draft, made.values, made.commands)
    launches = [c for c in made.commands if isinstance(c, Launch)]
    return [(work[id(c)], work[id(c)].floor(SLOW_MEMORY)) for c in launches]


@pytest.mark.row("I1")
def test_operations_and_bytes_are_those_of_the_mathematics() -> None:
    ((work, floor),) = floors(sweep(1 << 22))
    assert work.flops == 1 << 22
    assert (work.read_bytes, work.written_bytes) == (4 << 22, 4 << 22)
    behind = 1 - CACHES / (8 << 22)  # the share that no cache can hold
    assert floor.memory_seconds == pytest.approx(behind * (8 << 22) / 10e9)
    heavy = max((w for w, _ in floors(product(256, 512, 384))), key=lambda w: w.flops)
    assert heavy.flops == 2 * 256 * 512 * 384


def convolved(*, of_filters: bool) -> list[Any]:
    """Return the work of the kernels of a convolution of 64 by 64 channels, or of its gradient by filters."""
    x, w = st.ones(8, 64, 34, 34), st.ones(64, 64, 3, 3).requires_grad_(of_filters)

    @st.compile
    def convolve() -> Any:
        out = nn.functional.conv2d(x, w)
        return st.gradients((out * out).sum(), w) if of_filters else out

    convolve()
    program = convolve.program
    work = command_work(program.draft, program.executable.values, program.executable.commands).values()
    found = [w for w in work if w.tactic.startswith("winograd")]
    planned = [k["flops"] for k in program.plan.kernels if k["tactic"].startswith("winograd")]
    assert planned == pytest.approx([w.flops for w in found])
    return found


@pytest.mark.row("I1")
def test_winograds_algorithm_is_credited_with_the_operations_it_does() -> None:
    direct = 2 * 9 * 8 * 32 * 32 * 64 * 64
    (work,) = convolved(of_filters=False)
    # F(4x4, 3x3) multiplies 36 times where the direct sum does 144 times, and transforms beside that
    assert direct / 4 < work.flops < direct / 3
    assert work.flops == pytest.approx(work.share * sum(map(flops, work.members)))


@pytest.mark.row("I1")
def test_kernels_that_make_one_sum_together_share_its_operations() -> None:
    forward, *gradient = convolved(of_filters=True)
    direct = 2 * 9 * 8 * 32 * 32 * 64 * 64
    assert direct / 4 < forward.flops < direct / 3 and sum(w.flops for w in gradient) < direct / 3
    if len(gradient) == 2:  # as many as there are threads for: each sums a part of the batch
        assert gradient[1].flops < 0.1 * gradient[0].flops


@pytest.mark.row("I1")
def test_each_kernel_is_placed_under_the_roof_that_bounds_it() -> None:
    *_, (work, floor) = floors(product(512, 512, 512))
    assert floor.bound == "compute"
    assert floor.compute_seconds == pytest.approx(work.flops / 100e9)
    assert floors(sweep(1 << 22))[0][1].bound == "memory"
    assert floors(sweep(8))[0][1].bound == "overhead"


@pytest.mark.row("I1")
def test_bytes_touched_a_moment_ago_come_from_the_cache_that_holds_them() -> None:
    (small,) = floors(sweep(1 << 14))  # 128 kB in all, touched again in the next run
    (large,) = floors(sweep(1 << 23))
    from_second = (8 << 14) - (32 << 10)  # the first cache may have the rest still
    assert small[1].memory_seconds == pytest.approx(from_second / 100e9)
    assert large[1].memory_seconds == pytest.approx(((8 << 23) - CACHES) / 10e9)  # memory


def launched(graph: Graph) -> list[Any]:
    """Return the work of the kernels of a graph in which each op has one."""
    program = compile_graph(graph, fused=False)
    made = program.executable
    work = command_work(program.draft, made.values, made.commands)
    return [work[id(c)] for c in flat(made.commands) if isinstance(c, Launch)]


@pytest.mark.row("I1")
def test_what_several_kernels_sweep_counts_once_in_what_was_touched_since() -> None:
    n = 1 << 18
    x = graph_input("x", TensorType(float32, (n,)))
    b = Builder()
    total = b.exp(x)
    for _ in range(6):
        total = b.add(total, x)
    work = launched(Graph([x], [total], name="sweeps"))
    values = 4 * n * 3  # at most x, a sum and the one before are different bytes between two uses of x
    assert len(work) == 7
    for kernel in work[1:]:
        again = min(a.distance for a in kernel.accesses if not a.writes)
        assert again <= values
    assert max(a.distance for kernel in work for a in kernel.accesses) <= 4 * n * 9


@pytest.mark.row("I1")
def test_the_body_of_a_loop_finds_in_the_cache_what_the_trip_before_touched() -> None:
    w = st.tensor(np.eye(64, dtype=np.float32))
    large = st.ones(1 << 21)

    @st.compile
    def looped(x: Any, large: Any) -> Any:
        carry, _ = st.scan(lambda c, _: (st.tanh(c @ w), c.sum()), x, length=50)
        return carry, large * 2

    looped(st.ones((4, 64)), large)
    program = looped.program
    made = program.executable
    work = command_work(program.draft, made.values, made.commands)
    (loop,) = [c for c in made.commands if isinstance(c, Loop)]
    inside = [work[id(c)] for c in flat(loop.body) if isinstance(c, Launch)]
    product = max(inside, key=lambda work: work.flops)
    assert max(a.distance for a in product.accesses if not a.writes) < 1 << 18


def test_levels_deliver_at_the_same_time_and_the_slowest_counts() -> None:
    near, far = (1e6, 0.5e6), (1e6, 1e12)
    both = SLOW_MEMORY.traffic_seconds([near, far])
    assert both == SLOW_MEMORY.traffic_seconds([far]) == pytest.approx(1e6 / 10e9, rel=1e-3)
    assert SLOW_MEMORY.traffic_seconds([near]) < both / 9
    just_beyond = SLOW_MEMORY.traffic_seconds([(CACHES * 1.1, CACHES * 1.1)])
    assert just_beyond < SLOW_MEMORY.traffic_seconds([(CACHES * 1.1, 1e12)]) / 2  # most of it may be cached
    assert SLOW_MEMORY.traffic_seconds([]) == SLOW_MEMORY.traffic_seconds([(0.0, 0.0)]) == 0.0


@pytest.mark.sampled(5)
@pytest.mark.row("I1")
def test_no_kernel_is_faster_than_the_measured_machine(measured: Profile) -> None:
    peaks = machine_peaks(measured.peaks.threads)
    large = recorded(compile_graph(product(512, 1024, 512))).programs[0]
    top = large.kernels[0]
    assert top.bound == "compute" and top.flops * top.calls == 2 * 512 * 1024 * 512
    # neighbours can slow down either measurement by any factor; a wrong unit is off by a thousand
    assert 1e-3 < top.of_roofline < 30
    assert top.gflops < 30 * peaks.flops_of(float32)
    assert top.gflops == pytest.approx(top.flops * top.calls / top.seconds / 1e9)


# -- classes of work -----------------------------------------------------------------------------------------
def block(rows: int, width: int) -> Graph:
    """Return a Transformer's feed-forward block: normalise, widen, gelu, narrow, add."""
    x = graph_input("x", TensorType(float32, (rows, width)))
    w1 = graph_input("w1", TensorType(float32, (width, 2 * width)))
    w2 = graph_input("w2", TensorType(float32, (2 * width, width)))
    scale, shift = (graph_input(k, TensorType(float32, (width,))) for k in ("scale", "shift"))
    b = Builder()
    y = normalization.layer_norm(b, x, scale, shift)
    y = activations.gelu(b, b.contract(y, w1, spec="mk,kn->mn"))
    out = b.add(b.contract(y, w2, spec="mk,kn->mn"), x)
    return Graph([x, w1, w2, scale, shift], [out], name="block")


@pytest.mark.sampled(5)
@pytest.mark.row("I2")
def test_contractions_hold_nearly_all_operations_and_fusion_shrinks_the_time_of_the_rest() -> None:
    graph = block(1024, 192)
    tables = []
    for fused in (True, False):
        program = recorded(compile_graph(graph, fused=fused), runs=12).programs[0]
        table = {row.name: row for row in program.classes()}
        assert sum(row.flops_share for row in table.values()) == pytest.approx(1)
        assert sum(row.time_share for row in table.values()) == pytest.approx(1)
        assert table["contraction"].flops_share > 0.85
        tables.append(table)
    fused_rest, plain_rest = (t["normalisation"].seconds + t["element-wise"].seconds for t in tables)
    assert fused_rest < 0.6 * plain_rest
    assert tables[1]["element-wise"].num_kernels > tables[0]["element-wise"].num_kernels


@pytest.mark.row("I2")
def test_every_kernel_of_a_training_step_has_a_class(measured: Profile) -> None:
    program = measured.programs[0]
    table = program.classes()
    assert [row.name for row in table] == ["contraction", "normalisation", "element-wise"]
    assert sum(row.num_kernels for row in table) >= len(program.program.plan.kernels)
    assert table[0].flops_share > 0.8
    assert table[0].flops_share > table[0].time_share  # the others move data for few operations


# -- trace and picture ---------------------------------------------------------------------------------------
def test_a_trace_shows_runs_commands_and_the_chunks_of_each_thread(measured: Profile, tmp_path: Path) -> None:
    measured.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert list(names.values())[:3] == ["Python", "commands", "thread 0 (runs Python)"]
    complete = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in complete)
    runs = [e for e in complete if e["cat"] == "run"]
    assert len(runs) == measured.programs[0].num_runs
    first, last = runs[0]["ts"], runs[-1]["ts"] + runs[-1]["dur"]
    commands = [e for e in complete if e["tid"] == 1]
    assert len(commands) == measured.programs[0].num_runs * len(measured.programs[0].by_step)
    assert all(first <= e["ts"] <= last for e in commands)
    assert any("chunk" in e["args"] for e in complete if e["tid"] >= 2)
    assert trace["otherData"]["bottleneck"] == measured.bottleneck


def test_the_roofline_is_drawn_and_only_as_a_kind_of_file_there_is(measured: Profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured.save_roofline(tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(StratalError, match=r"ending in one of \.png"):
        measured.save_roofline(tmp_path / "roof.txt")


def test_without_matplotlib_the_error_names_the_extra(
    measured: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="viz"):
        measured.save_roofline(tmp_path / "roof.png")


# -- the command ---------------------------------------------------------------------------------------------
@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_the_command_runs_the_script_and_writes_what_it_is_asked_for(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "trace.json"
    assert main(["profile", "--json", str(report), "--trace", str(trace), str(script), "6"]) == 0
    shown = capsys.readouterr().out
    assert "loss is" in shown
    assert shown.index("bottleneck") < shown.index("train_step: ")
    assert "train.py:" in shown and "contraction" in shown
    found = json.loads(report.read_text())
    (program,) = (p for p in found["programs"] if p["name"] == "train_step")
    assert program["runs"] == 6
    assert program["kernels"][0]["seconds"] == max(k["seconds"] for k in program["kernels"])
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_script_that_raises_shows_its_own_line_and_what_was_measured(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SCRIPT + "\nraise ValueError('the data ran out')\n")
    assert main(["profile", str(script), "4"]) == 1
    shown = capsys.readouterr()
    assert "ValueError: the data ran out" in shown.err
    assert f'File "{script}", line {len(SCRIPT.splitlines()) + 2}' in shown.err
    assert "runpy" not in shown.err
    assert "status 1: what was measured until then follows" in shown.out
    assert "train_step: " in shown.out


def test_ctrl_c_ends_the_script_with_what_was_measured(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = "    if k == 3:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGINT)\n"
    script.write_text(SCRIPT.replace("    loss = train_step(x, y)\n", "    loss = train_step(x, y)\n" + stop))
    assert main(["profile", str(script), "100000"]) == 130
    shown = capsys.readouterr().out
    assert "Interrupted: what was measured until then follows" in shown
    assert "median of 3 warm runs" in shown


def test_a_script_that_compiles_nothing_or_is_not_there_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "idle.py").write_text("print('idle')\n")
    assert main(["profile", str(tmp_path / "idle.py")]) == 0
    assert "Nothing compiled ran." in capsys.readouterr().out
    assert main(["profile", str(tmp_path / "missing.py")]) == 1
    assert "there is no such script" in capsys.readouterr().err
