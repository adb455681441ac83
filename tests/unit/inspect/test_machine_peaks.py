"""The measured ceilings of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stratal.base import settings
from stratal.base.dtypes import bfloat16, float32, float64
from stratal.base.errors import SettingError
from stratal.base.target import TARGETS
from stratal.codegen.assemble import emit_assembly
from stratal.inspect import machine
from stratal.inspect.machine_kernels import module_text, multiply_adds, num_chains


@pytest.fixture
def peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> machine.MachinePeaks:
    monkeypatch.setattr(machine, "_measured", {})
    monkeypatch.setattr(machine, "_SECONDS", 1e-3)
    monkeypatch.setattr(machine, "_REPEATS", 4)
    monkeypatch.setattr(machine, "_MEMORY_BYTES", 8 << 20)
    with settings.cache_dir(tmp_path / "cache"):
        found = machine.machine_peaks(1)
        machine._measured.clear()
        monkeypatch.setattr(machine, "_measure", _never)
        assert machine.machine_peaks(1) == found, "the next process reads what this one stored"
    return found


def _never(threads: int) -> machine.MachinePeaks:
    raise AssertionError("measured again")


@pytest.mark.sampled(4)
def test_every_ceiling_is_measured(peaks: machine.MachinePeaks) -> None:
    """How large they are depends on what else the machine does."""
    assert set(peaks.flops) >= {float32, float64, bfloat16}
    rates = (*peaks.flops.values(), peaks.read_gbs, peaks.copy_gbs, peaks.l1_gbs, peaks.l2_gbs, peaks.l3_gbs)
    assert all(np.isfinite(rate) and rate > 0 for rate in rates)


@pytest.mark.sampled(4)
def test_the_roofline_is_the_larger_of_arithmetic_and_traffic(peaks: machine.MachinePeaks) -> None:
    flops, gbs = peaks.flops[float32] * 1e9, max(peaks.read_gbs, peaks.copy_gbs) * 1e9
    assert np.isclose(peaks.seconds({float32: flops}, gbs / 2), 1.0)
    assert peaks.seconds({float32: flops}, 3e2 * gbs) > 10
    assert peaks.bandwidth(1e4) >= peaks.bandwidth(peaks.l2_bytes) >= peaks.bandwidth()


@pytest.mark.sampled(4)
def test_a_later_measurement_only_raises_a_ceiling(peaks: machine.MachinePeaks) -> None:
    import dataclasses

    slower = dataclasses.replace(
        peaks, read_gbs=peaks.read_gbs / 2, flops={d: r / 2 for d, r in peaks.flops.items()}
    )
    assert machine._larger(slower, peaks) == peaks == machine._larger(peaks, slower)


def test_no_threads_cannot_be_measured() -> None:
    with pytest.raises(SettingError, match="at least one thread"):
        machine.machine_peaks(0)


@pytest.mark.parametrize("name", ["avx512", "haswell", "generic", "neon"])
def test_the_kernels_of_every_target_assemble_and_keep_their_sums_in_registers(name: str) -> None:
    target = TARGETS[name]
    text = emit_assembly(module_text(target), target)
    body = text.split("chain_float32:")[1].split("chain_float64")[0]
    loop = max(body.split(":\n"), key=lambda part: part.count("mul") + part.count("fm"))
    mnemonics = {"avx512": "vfmadd", "haswell": "vfmadd", "generic": "mulps", "neon": "fml"}
    assert loop.count(mnemonics[name]) >= num_chains(target) * 4 - 2
    assert float32 in multiply_adds(target)
