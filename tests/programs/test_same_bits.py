"""Same bits: what training computes depends on no threads, repeats, caches, hash seeds or interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from layout import SUPPORT

SCRIPT = SUPPORT / "training.py"
MODELS = ("mlp", "cnn", "gpt")


def trained(
    cache: Path, model: str, *arguments: object, threads: int = 2, hash_seed: int = 0
) -> dict[str, str]:
    """Train in a fresh process; return what it printed: plan hash, last loss, digest of the state."""
    command = [sys.executable, str(SCRIPT), model, *map(str, arguments)]
    environment = {
        "STRATAL_THREADS": str(threads),
        "PYTHONHASHSEED": str(hash_seed),
        "STRATAL_CACHE_DIR": str(cache),
    }
    child = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=600)
    assert child.returncode == 0, child.stderr[-2000:]
    return dict(line.split(" ", 1) for line in child.stdout.splitlines())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_a_few_steps_give_the_same_bits_everywhere(model: str, tmp_path: Path) -> None:
    cache, saved = tmp_path / "cache", tmp_path / "model"
    one = trained(cache, model, "--steps", 7, "--save-at", 4, "--file", saved, threads=1, hash_seed=1)
    two = trained(cache, model, "--steps", 7, threads=2, hash_seed=2)  # the cache is warm now
    four = trained(cache, model, "--steps", 7, "--resume", saved, threads=4, hash_seed=3)
    assert one == two == four


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_two_hundred_steps_give_the_same_bits_everywhere(model: str, tmp_path: Path) -> None:
    cache, saved = tmp_path / "cache", tmp_path / "model"
    first = trained(cache, model, "--steps", 200, "--save-at", 100, "--file", saved)
    for threads in (1, 2, 4):
        assert trained(cache, model, "--steps", 200, threads=threads, hash_seed=threads) == first
    assert trained(tmp_path / "cold", model, "--steps", 200) == first
    assert trained(cache, model, "--steps", 200, "--resume", saved) == first
    lazy = trained(cache, model, "--steps", 200, "--style", "lazy")
    assert lazy == {name: first[name] for name in ("loss", "digest")}
