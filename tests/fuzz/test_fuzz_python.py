"""Compiled functions do what their Python says, or refuse; tests/fuzz/fuzz_python.py is the long form.

A sample of programs, each a test: those named in fuzz_python_expected.txt fail today, and must fail until
they are taken out of it (`python tests/fuzz/fuzz_python.py --expected` writes it anew).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz_python import EXPECTED, sample
from programs.pool import Pool, Program, Worker

FAILING = set(EXPECTED.read_text().splitlines())
SAMPLE = {program.name: program for program in sample()}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Pool() as pool:
        yield pool.alone


def _case(name: str) -> object:
    marks = [pytest.mark.xfail(reason="fails today", strict=True)] if name in FAILING else []
    return pytest.param(SAMPLE[name], id=name, marks=marks)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("program", [_case(name) for name in SAMPLE])
def test_a_program_is_right_or_refused(program: Program, worker: Worker) -> None:
    verdict = worker.judge(program)
    assert not verdict.fault, f"{verdict.way} {verdict.verdict}: {verdict.detail}\n\n{program.text}"


def test_programs_expected_to_fail_are_of_the_sample() -> None:
    assert set(SAMPLE) >= FAILING
