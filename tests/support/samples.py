"""Samples of tests: of many cases some run by default; which ones follows from the commit.

Of a test with many cases a quarter runs, at least `LEAST`. A mark asks for fewer, or samples a whole test:

    @pytest.mark.sampled(4)     one case in four, at least one; a test without cases, at one commit in four
    @pytest.mark.sampled(4, among="launches")    of the cases of all tests with that mark, one in four
    pytestmark = pytest.mark.sampled(2, among="servers", by_file=True)    one file in two, whole

The others are marked slow, so that `-m slow` runs them; quick tests run whole. Over some commits all run, and
a run can be had again: it prints its seed, `--sample-seed` takes it. `--whole` runs all, a name too.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import pytest
from layout import ROOT

LEAST: Final = 4  # cases of a test that run in any case
SHARE: Final = 4  # of more, one in so many
SEED: Final = "TESTS_SAMPLE_SEED"  # in the environment, for the workers of xdist


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all cases of sampled tests")
    parser.addoption("--sample-seed", help="draw what a run with this seed drew; the default is the commit")


def seed_of(config: pytest.Config) -> str:
    """Return the seed of this run, the same in all its processes."""
    if SEED not in os.environ:
        os.environ[SEED] = config.getoption("--sample-seed") or _commit()
    return os.environ[SEED]


def leave_out(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases of tests that this run does not draw."""
    if config.getoption("--whole") or any("::" in argument for argument in config.args):
        return
    seed = seed_of(config)
    tests: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    shares: dict[str, tuple[int, ...]] = {}
    for item in items:
        if any(item.get_closest_marker(mark) for mark in ("slow", "quick")):
            continue
        file, test = item.nodeid.split("::")[0], item.nodeid.split("[")[0]
        for mark in [*item.iter_markers("sampled")] or [pytest.mark.sampled().mark]:
            group = mark.kwargs.get("among") or test
            shares[group] = mark.args
            tests[group][file if mark.kwargs.get("by_file") else item.nodeid].append(item)
    for group, cases in tests.items():
        for name in cases.keys() - drawn(seed, cases, *shares[group]):
            for item in cases[name]:
                item.add_marker(pytest.mark.slow)


def drawn(seed: str, cases: Collection[str], one_in: int | None = None) -> set[str]:
    """Return the cases of one test, or of several, that a seed draws."""
    if one_in is None:
        count = max(LEAST, -(-len(cases) // SHARE))
    elif len(cases) == 1:
        count = int(_rank(seed, *cases) % one_in == 0)
    else:
        count = -(-len(cases) // one_in)
    return set(sorted(cases, key=lambda name: _rank(seed, name))[:count])


def _rank(seed: str, name: str) -> int:
    """Return a number that differs with both; crc32 would draw the same pairs of cases at all seeds."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "none"  # no git, or no repository: always the same cases
