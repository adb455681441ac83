"""Timed runs of loaded programs: the same results, every command and every chunk accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_programs import DENSE, HOST, LOOP, compiled

import stratal as st
from stratal.base import native, settings
from stratal.base.artifact import Host, Launch, flat
from stratal.base.errors import IndexOutOfRangeError, StratalError
from stratal.compiler import Program
from stratal.graph.text import parse_graph
from stratal.inspect.profiler import Profiler
from stratal.runtime.storage import Storage
from stratal.runtime.timing import TimedProgram


def program_of(text: str) -> Program:
    return compiled(parse_graph(text))


def inputs_of(program: Program, seed: int = 0) -> list[Storage]:
    rng = np.random.default_rng(seed)
    types = program.graph.input_types
    return [Storage.copy_of(rng.standard_normal(t.ints).astype(np.float32), t) for t in types]


def big_product() -> Program:
    return program_of(
        'graph "product"(%0: f32[384,256] = "x", %1: f32[256,320] = "w") {\n'
        '  %2 = contract(%0, %1) spec="ab,bc->ac" dtype=none : f32[384,320]\n'
        "  %3 = tanh(%2) : f32[384,320]\n  return %3\n}"
    )


@pytest.mark.parametrize("text", [DENSE, LOOP, HOST], ids=["dense", "loop", "host"])
@pytest.mark.parametrize("events", [0, 1000], ids=["timed", "traced"])
def test_a_timed_run_gives_the_bits_and_states_of_a_plain_one(text: str, events: int) -> None:
    program = program_of(text)
    plain, mine = inputs_of(program), inputs_of(program)
    timed = TimedProgram(program.loaded, events_per_log=events)
    for _ in range(3):
        expected = [s.array.copy() for s in program.run(plain)]
        for a, b in zip(expected, timed.run(mine), strict=True):
            np.testing.assert_array_equal(a, b.array)
    for a, b in zip(plain, mine, strict=True):
        np.testing.assert_array_equal(a.array, b.array)


def test_every_command_is_counted_as_often_as_it_runs() -> None:
    program = program_of(LOOP)
    timed = TimedProgram(program.loaded)
    timed.run(inputs_of(program))
    launches = {id(c) for c in flat(program.executable.commands) if isinstance(c, (Launch, Host))}
    counts = {id(s): int(n) for s, n in zip(timed.steps, timed.calls, strict=False) if id(s) in launches}
    assert set(counts) == launches
    assert 7 in counts.values()  # the body of the loop
    assert timed.calls[-1] == 1
    timed.run(inputs_of(program))
    assert timed.calls[-1] == 1  # each run starts from nothing


def test_times_of_commands_fill_the_run_and_never_exceed_it() -> None:
    program = big_product()
    timed = TimedProgram(program.loaded)
    inputs = inputs_of(program)
    for _ in range(5):
        timed.run(inputs)
        *commands, whole = timed.total_ns.tolist()
        assert 0 < sum(commands) <= whole


def test_a_trace_has_every_chunk_once_inside_the_span_of_its_command() -> None:
    program = big_product()
    timed = TimedProgram(program.loaded, events_per_log=10_000)
    timed.run(inputs_of(program))
    (*threads, commands), dropped = timed.take_events()
    assert dropped == 0
    spans = {int(e["what"]): e for e in commands}
    assert len(spans) == len(commands) == 1 + sum(timed.calls[:-1])
    for index, step in enumerate(timed.steps):
        if not isinstance(step, Launch):
            continue
        chunks = np.concatenate([log[log["what"] == index] for log in threads])
        assert sorted(chunks["chunk"]) == list(range(step.chunks))
        assert (chunks["start_ns"] >= spans[index]["start_ns"]).all()
        assert (chunks["end_ns"] <= spans[index]["end_ns"]).all()
    for log in threads:  # a thread does one thing at a time
        assert (log["start_ns"][1:] >= log["end_ns"][:-1]).all()


def test_a_full_trace_drops_events_counts_them_and_keeps_the_times() -> None:
    program = program_of(LOOP)
    timed = TimedProgram(program.loaded, events_per_log=2)
    timed.run(inputs_of(program))
    logs, dropped = timed.take_events()
    assert dropped > 0
    assert max(map(len, logs)) == 2
    assert sum(timed.calls[:-1]) > 7
    assert timed.take_events()[1] == 0  # taken is taken


def test_programs_that_are_not_profiled_read_no_clock() -> None:
    program = big_product()
    before = program.loaded.encoding.records.copy()
    TimedProgram(program.loaded, events_per_log=10).run(inputs_of(program))
    np.testing.assert_array_equal(program.loaded.encoding.records, before)
    assert native.TIMED not in before[:, 0]
    assert int(program.loaded._context[3]) == program.loaded.encoding.record_at(0)


def test_an_index_check_that_fails_while_timed_names_its_line_and_leaves_the_program_usable() -> None:
    table = st.tensor(np.arange(6, dtype=np.float32))

    @st.compile
    def pick(index: Any) -> Any:
        return table[index]

    good, bad = st.tensor(np.array([1, 2])), st.tensor(np.array([1, 9]))
    with Profiler(), pytest.raises(IndexOutOfRangeError, match="test_timed_runs"):
        pick(bad)
    assert pick(good).numpy().tolist() == [1.0, 2.0]


def test_branches_and_loops_whose_conditions_are_inputs_are_timed() -> None:
    @st.compile
    def choose(flag: Any, count: Any, x: Any) -> Any:
        grown = st.cond(flag, lambda v: v * 2, lambda v: v - 1, x)
        return st.fori_loop(0, count, lambda i, v: v + 1, grown)

    x = st.tensor(np.zeros(3, np.float32) + 5)
    for flag, count in ((True, 4), (False, 0), (True, 2)):
        with Profiler(trace=True) as profiler, st.no_grad():
            got = choose(st.tensor(np.array(flag)), st.tensor(np.array(count)), x)
        assert got.numpy().tolist() == [(10.0 if flag else 4.0) + count] * 3
        (times,) = profiler.programs
        repeated = {type(s).__name__ for s, n in zip(times.timed.steps, times.calls, strict=False) if n > 1}
        assert ("Launch" in repeated) is (count > 1)


def test_a_checked_program_refuses_to_be_timed() -> None:
    with settings.verify(True):
        program = program_of(DENSE)
    with pytest.raises(StratalError, match="cannot be timed"):
        TimedProgram(program.loaded)
