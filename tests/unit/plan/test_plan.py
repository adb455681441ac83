"""Plans: what they count, how they print, what their hash depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from layout import IMPORTED
from plan_programs import DENSE, HOST, LOOP, compiled, dense

from stratal.base import settings
from stratal.base.errors import FormatError
from stratal.graph.text import parse_graph
from stratal.plan import text
from stratal.plan.record import Plan
from stratal.plan.text import nested

pytestmark = pytest.mark.quick


def test_a_plan_counts_every_byte_it_needs() -> None:
    program = compiled(dense())
    memory = program.plan.memory
    parts = ("arena", "state", "input", "output", "scratch", "constant")
    assert program.plan.planned_peak_bytes == sum(memory[f"{p}_bytes"] for p in parts)
    assert memory["state_bytes"] == 5 * 4
    assert memory["input_bytes"] == (48 + 30) * 4
    assert memory["output_bytes"] == 40 * 4
    assert memory["arena_bytes"] == program.executable.arena_bytes >= memory["live_minimum_bytes"]


def test_the_work_of_a_kernel_is_that_of_its_ops_and_the_bytes_it_touches() -> None:
    product, total = compiled(dense()).plan.kernels
    assert product["ops"][0] == "contract"
    assert product["flops"] >= 2 * 8 * 6 * 5
    assert product["read_bytes"] == (48 + 30 + 5) * 4
    assert product["written_bytes"] == 40 * 4
    assert total["flops"] >= 40
    assert total["read_bytes"] == 40 * 4
    assert {"seconds", "bound", "chunks", "tactic", "from"} - set(total) <= {"from"}


def test_a_plan_prints_signature_memory_and_one_line_per_kernel() -> None:
    program = compiled(dense())
    lines = str(program.plan).splitlines()
    assert lines[0].startswith(
        "dense(x: f32[8,6], w: f32[6,5]) -> f32[8,5]   2 kernels, 1 native call, plan "
    )
    assert program.plan.hash[:8] in lines[0]
    assert "updated in place" in lines[1]
    assert "compiled in" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == ["#", "1", "2"]
    assert "contract+add+tanh" in lines[4]
    assert lines[5].split()[1:4] == ["sum", "->", "b"]
    assert not any(line.endswith(" ") for line in lines)


def test_loops_hold_their_kernels_and_count_how_often_they_run() -> None:
    plan = compiled(parse_graph(LOOP)).plan
    (loop,) = [c for c in plan.commands if c["do"] == "loop"]
    assert loop["trips"] == 7
    inside = [c for c in loop["body"] if c["do"] == "kernel"]
    assert inside and all(c["times"] == 7 for c in inside)
    rows = {k for k, v in enumerate(plan["values"]) if "row" in v}
    assert rows and all(plan["values"][k]["type"] == "f32[2,4]" for k in rows), "one of seven, in place"
    assert any(rows & set(c["reads"]) for c in inside)
    assert [k["number"] for k in plan.kernels] == list(range(1, len(plan.kernels) + 1))
    assert "scan, 7 times" in str(plan)
    assert sum(1 for c, depth in nested(plan.commands) if depth == 1) == len(loop["body"])


def test_a_host_call_is_named_with_its_reason_and_takes_promises_back() -> None:
    plan = compiled(parse_graph(HOST)).plan
    (call,) = plan.host_calls
    assert call["op"].startswith("matrix_exp")
    assert "NumPy" in call["why"]
    assert plan["calls"] == {"native": 1, "host": 1}
    assert "1 host call inside it" in str(plan)
    assert "promised for the rest alone" in str(plan)


def test_the_hash_depends_on_neither_threads_nor_labels_nor_lines() -> None:
    plan = compiled(dense()).plan
    with settings.threads(1):
        alone = compiled(dense()).plan
    renamed = compiled(parse_graph(DENSE.replace('"x"', '"input"').replace('"dense"', '"other"'))).plan
    assert plan.hash == alone.hash == renamed.hash
    assert plan == renamed
    assert plan.hash != compiled(parse_graph(DENSE.replace("tanh", "exp"))).plan.hash
    assert plan.hash != compiled(dense(), fused=False).plan.hash


def test_the_hash_of_a_constant_depends_on_its_value() -> None:
    text = 'graph "c"(%0: f32[2] = "x") {{\n  %1 = const() value=f32[2]{{1.0, {}}} : f32[2]\n'
    text += "  %2 = add(%0, %1) : f32[2]\n  return %2\n}}"
    one, two = (compiled(parse_graph(text.format(v))).plan for v in ("2.0", "3.0"))
    assert one.hash != two.hash


@pytest.mark.sampled(4)
def test_the_hash_does_not_depend_on_the_process_or_its_hash_seed() -> None:
    code = (
        "from plan_programs import LOOP, compiled, dense\n"
        "from stratal.graph.text import parse_graph\n"
        "print(compiled(dense()).plan.hash, compiled(parse_graph(LOOP)).plan.hash)\n"
    )
    found = set()
    for seed, workers in (("1", "0"), ("77", "2")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "STRATAL_COMPILE_WORKERS": workers,
            "STRATAL_CACHE_DIR": "off",
            "PYTHONPATH": os.pathsep.join([*IMPORTED, os.environ.get("PYTHONPATH", "")]),
        }
        made = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        found.add(made.stdout.strip())
    assert found == {f"{compiled(dense()).plan.hash} {compiled(parse_graph(LOOP)).plan.hash}"}


def test_a_plan_is_read_back_from_json_and_an_altered_one_is_refused() -> None:
    plan = compiled(dense()).plan
    value = json.loads(json.dumps(plan.to_json()))
    again = Plan.from_json(value)
    assert again == plan
    assert str(again) == str(plan)
    value["commands"][0]["chunks"] += 1
    with pytest.raises(FormatError, match="altered"):
        Plan.from_json(value)
    for broken in ([], {}, {"format": 99}, {"format": 1, "hash": "x"}):
        with pytest.raises(FormatError):
            Plan.from_json(broken)


def test_plans_are_compared_line_by_line() -> None:
    plan = compiled(dense()).plan
    assert plan.diff(compiled(dense()).plan) == ""
    other = compiled(parse_graph(DENSE.replace("tanh", "exp"))).plan
    changed = [line for line in plan.diff(other).splitlines() if line.startswith(("-  ", "+  "))]
    assert any("contract+add+tanh" in line for line in changed)
    assert any("contract+add+exp" in line for line in changed)


def test_a_plan_is_made_once_and_only_when_asked_for() -> None:
    program = compiled(dense())
    assert "plan" not in vars(program)
    assert program.plan is program.plan


def test_a_row_of_a_plan_counts_the_lines_it_does_not_name() -> None:
    command = {
        "do": "kernel", "number": 1, "name": "k", "tactic": "t", "from": ["a.py:1", "b.py:2", "c.py:3"],
        "bound": "latency", "flops": 1, "read_bytes": 1, "written_bytes": 1, "seconds": 1e-6, "times": 1,
    }  # fmt: skip
    assert "a.py:1 +2" in text._row({}, command, "", 1.0)
