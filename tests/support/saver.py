"""What processes do that save, tune and read one folder at once, until they are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import stratal as st
from stratal.base import tuning
from stratal.formats.safetensors import load_tensors, save_tensors
from stratal.runtime.cache import ObjectCache

SIZES = (3, 100, 5000)  # small files beside some that take a while


def checkpoint(number: int) -> dict[str, Any]:
    """Return a checkpoint whose parts all name its number."""
    return {"epoch": number, "w": [np.full(n, number, np.float32) for n in SIZES], "same": np.zeros(7)}


def whole(found: Any) -> bool:
    """Return whether a checkpoint is of one version."""
    return all((np.asarray(w) == found["epoch"]).all() for w in found["w"]) and len(found["w"]) == len(SIZES)


def record(kernel: str) -> tuning.Record:
    return tuning.Record(
        kernel=kernel, target="t", toolchain="c", objective="time", algorithm="a", parameters=(("rows", 4),),
        seconds=1.0, workspace_bytes=0, default="d", default_seconds=2.0, default_workspace_bytes=0, trials=7,
        threads=2, when="2026-01-01T00:00:00Z", about="test",
    )  # fmt: skip


def save(folder: Path, number: int) -> None:
    st.save(checkpoint(number), folder / "last")
    st.save(checkpoint(number), folder / "last.stratal")
    save_tensors(folder / "last.safetensors", {"w": np.full(2000, number, np.float32)})


def read(folder: Path) -> None:
    """Read all there is. Raises where it is not whole."""
    for name in ("last", "last.stratal"):
        if (folder / name / "manifest.json" if name == "last" else folder / name).exists():
            assert whole(st.load(folder / name)), name
    if (folder / "last.safetensors").exists():
        (w,) = load_tensors(folder / "last.safetensors").values()
        assert (w == w[0]).all()
    if (folder / "tuning.json").exists():
        tuning.read_file(folder / "tuning.json")


def tune(folder: Path, who: int, number: int) -> None:
    tuning.write_file(folder / "tuning.json", [record(f"{who} {number}")])
    cache = ObjectCache(folder / "cache", 1 << 20)
    key = f"k{number % 5}"
    assert cache.get(key) in (None, key.encode() * 5000)
    assert cache.counts.refused == 0
    cache.put(key, key.encode() * 5000)


def work(folder: Path, who: int, rounds: int) -> None:
    """Save, tune or read some times, as `who` says."""
    for number in range(rounds):
        if who % 3 == 0:
            save(folder, 1000 * who + number)
        elif who % 3 == 1:
            tune(folder, who, number)
        else:
            read(folder)
            save(folder, 1000 * who + number)
