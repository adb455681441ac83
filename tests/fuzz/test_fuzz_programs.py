"""Whole training programs agree in all ways to run them; tests/fuzz/fuzz_programs.py is the long form.

The fuzzers themselves are tested here, too: what they call a fault, how they make programs small, that a
process which dies or does not end is a finding, and that faults planted in capture are found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_faults import finds, mixture, sound
from fuzz_python import programs
from programs.execute import judge
from programs.faults import FAULTS
from programs.pool import Pool, Program, Worker
from programs.shrink import shrunk
from programs.training.layers import LAYERS
from programs.training.write import drawn

SEED = 7
EXPECTED = Path(__file__).parent / "fuzz_programs_expected.txt"
FAILING = {int(line.split()[0]) for line in EXPECTED.read_text().splitlines()}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(limit_seconds=60) as made:
        yield made


@pytest.mark.sampled(10)
@pytest.mark.parametrize("k", [
    pytest.param(k, marks=[pytest.mark.xfail(reason="fails today", strict=True)] if k in FAILING else [])
    for k in range(6)
])  # fmt: skip
def test_a_training_program_sees_the_same_in_every_way(k: int, pool: Pool) -> None:
    program = drawn(SEED, k)
    verdict = pool.alone.judge(program)
    assert not verdict.fault, f"{verdict.way} {verdict.verdict}: {verdict.detail}\n\n{program.text}"


def test_the_grammar_has_the_layers_it_promises_and_every_program_is_python() -> None:
    assert len(LAYERS) >= 25
    for k in range(200):
        compile(drawn(SEED, k).text, "program", "exec")
    for _, program in programs(400, SEED):
        compile(program.text, "program", "exec")


def test_what_a_thread_of_the_pool_raises_ends_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(worker: Worker, program: Program) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Worker, "judge", judge)
    endless = (Program(str(k), "") for k in itertools.count())
    with Pool(processes=3) as made, pytest.raises(ZeroDivisionError):
        made.judge_all(endless, lambda program, verdict: None)


def _differing(value: str) -> str:
    return f"""
def program(lib, compiled):
    odd = compiled(len) is not len
    for k in range(3):
        a = [k, 2, 3]
        b = {{'x': a, 'y': lib.ones(2)}}
        yield look(b, {value} if odd and k == 1 else 0)
"""


def test_a_silent_difference_is_found_and_made_small() -> None:
    verdict = judge(_differing("1"))
    assert (verdict.verdict, verdict.way) == ("wrong", "compiled")
    assert "call 2" in verdict.detail
    text, found = shrunk(_differing("1"), verdict, judge)
    assert found.key == verdict.key
    assert "ones" not in text and "'x'" not in text and len(text.splitlines()) <= 7


def test_an_error_that_the_uncompiled_program_does_not_raise_is_a_fault() -> None:
    assert judge(_differing("1 / 0")).verdict == "raises"
    assert judge(_differing("0").replace("yield", "1 / 0; yield")).verdict == "invalid"
    assert judge(_differing("0")).verdict == "right"


def test_a_refusal_names_a_line_of_the_program() -> None:
    text = """
def program(lib, compiled):
    f = compiled(lambda x: x * 2 if bool(x.sum() > 0) else x)
    for k in range(2):
        yield look(f(lib.ones(2) * k))
"""
    assert judge(text).verdict == "refused"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "statement, verdict, limit_seconds", [("os._exit(3)", "crash", 60.0), ("time.sleep(9999)", "hang", 5.0)]
)
def test_a_process_that_dies_or_does_not_end_is_a_finding(
    statement: str, verdict: str, limit_seconds: float, pool: Pool
) -> None:
    text = f"import os, time\ndef program(lib, compiled):\n    yield 1\n    {statement}\n"
    worker = Worker(limit_seconds, pool.cache)
    assert worker.judge(Program("", "def program(lib, compiled): yield 1")).verdict == "right"
    found = worker.judge(Program("", text))
    assert (found.verdict, found.way) == (verdict, "eager")
    assert worker.judge(Program("", "def program(lib, compiled): yield 1")).verdict == "right"
    worker.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", [
    pytest.param("guards are not compared", marks=pytest.mark.slow),
    "signature without values", "effects are lost",
])  # fmt: skip
def test_a_fault_planted_in_capture_is_found(fault: str, some_sound_ones: list[Program]) -> None:
    _, program, verdict = finds(fault, some_sound_ones, processes=1)
    assert program is not None and verdict is not None


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_planted_in_capture_is_found_within_200_programs(
    fault: str, sound_ones: list[Program]
) -> None:
    count, program, _ = finds(fault, sound_ones, processes=1)
    assert program is not None and count <= 200


@pytest.fixture(scope="module")
def some_sound_ones() -> list[Program]:
    return sound([p for _, p in programs(60, SEED)], processes=1)


@pytest.fixture(scope="module")
def sound_ones() -> list[Program]:
    return sound(mixture(300, SEED), processes=1)[:200]
