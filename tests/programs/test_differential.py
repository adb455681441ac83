"""Random graphs give the same interpreted, unfused and fused; their kernels touch nothing beyond buffers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from differential import check_seed
from layout import TESTS
from record_samples import NAMES

from stratal.base import settings
from stratal.graph.op import REGISTRY

LOWERED = [name for name in NAMES if not REGISTRY[name].not_lowered]
QUICK = range(45)


@pytest.mark.sampled(5)
@pytest.mark.row("C1")
@pytest.mark.parametrize("start", range(0, len(QUICK), 15))
def test_a_random_graph_gives_the_same_interpreted_unfused_and_fused(start: int) -> None:
    with settings.using(compile_workers=0):
        found = {seed: check_seed(seed) for seed in QUICK[start : start + 15]}
    assert not any(found.values()), found


@pytest.mark.sampled(4)
def test_the_same_holds_for_avx2() -> None:
    with settings.using(compile_workers=0, target="haswell"):
        found = {seed: check_seed(seed) for seed in (*range(100, 108), 6534)}  # the last: dot products
    assert not any(found.values()), found


def test_a_row_of_one_element_is_stored_beside_its_reductions() -> None:
    """Beside a reduction of its own it has a loop over vectors, whose variables the store must not name."""
    with settings.using(compile_workers=0):
        assert check_seed(6743) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "haswell"])
def test_two_thousand_random_graphs(target: str) -> None:
    """The whole fuzz; `python tests/fuzz/fuzz.py` runs it from the command line."""
    run_script("fuzz/fuzz.py", "--graphs", "2000", "--processes", "2", target=target)


@pytest.mark.sampled(5)
def test_kernels_of_random_graphs_touch_nothing_beyond_their_buffers() -> None:
    run_script("support/guard_worker.py", "graphs", "0", "16")


@pytest.mark.slow
def test_kernels_of_many_random_graphs_touch_nothing_beyond_their_buffers() -> None:
    for target in ("host", "haswell"):
        run_script("support/guard_worker.py", "graphs", "16", "316", target=target)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "haswell"])
def test_kernels_of_every_record_touch_nothing_beyond_their_buffers(target: str) -> None:
    run_script("support/guard_worker.py", "records", *LOWERED, target=target)


def run_script(script: str, *arguments: str, target: str = "host") -> None:
    """Run a script of the tests in a process of its own; fail with the end of what it printed."""
    environment = {"STRATAL_TARGET": target, "STRATAL_COMPILE_WORKERS": "0"}
    command = [sys.executable, str(TESTS / script), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=600)
    faults = [line for line in found.stdout.splitlines() if line.startswith("fault")]
    if found.returncode or faults:
        tail = "\n".join([*found.stdout.splitlines()[-8:], *found.stderr.splitlines()[-12:]])
        pytest.fail(f"{script} ended with {found.returncode}, {faults[:3]}\n{tail}", pytrace=False)
