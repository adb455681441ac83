"""Samples of generated tests: of a marked test some cases run by default, which ones follows from the commit.

    @pytest.mark.sampled(4)     one case in four; the others are marked slow, so that `-m slow` runs them

Over some commits all cases run, and a run can be had again: it prints its seed, `--sample-seed` takes it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from typing import Final

import pytest
from layout import ROOT

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
    """Mark as slow the cases of sampled tests that this run does not draw."""
    if config.getoption("--whole"):
        return
    seed = seed_of(config)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and not drawn(seed, item.nodeid, *mark.args):
            item.add_marker(pytest.mark.slow)


def drawn(seed: str, name: str, one_in: int) -> bool:
    """Say whether a seed draws a case; crc32 would draw the same pairs of cases for all seeds."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % one_in == 0


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "none"  # no git, or no repository: always the same cases
