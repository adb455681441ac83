"""Targets: descriptions as data, found for this machine or asked for by name; the static roofline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratal.base import settings
from stratal.base.cost import Cost
from stratal.base.target import (
    LAUNCH_SECONDS,
    TARGETS,
    _cache_sizes,
    _class_of,
    current_target,
    host_arch,
    host_target,
    target_named,
)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_is_plain_data_that_makes_sense(target: object) -> None:
    row = json.loads(json.dumps(target.to_json()))  # type: ignore[attr-defined]
    assert row["vector_bits"] in (128, 256, 512)
    assert row["l1d_bytes"] < row["l2_bytes"] < row["l3_bytes"]
    assert row["wait"] == ("yield" if row["arch"] == "aarch64" else "pause")


def test_this_machine_is_described_and_hashed_the_same_each_time() -> None:
    host = host_target()
    assert host is host_target()
    assert host.name in TARGETS
    assert host.cpu
    assert host.triple
    assert len({t.digest for t in (host, *TARGETS.values())}) == 1 + len(TARGETS)


def test_the_setting_chooses_the_target() -> None:
    assert current_target() == host_target()
    with settings.target("neon"):
        assert current_target().triple.startswith("aarch64")
    if host_arch() == "x86_64":
        with settings.target("haswell"):
            assert current_target().vector_bits == 256
            assert current_target().triple == host_target().triple
    with pytest.raises(ValueError, match="no such target"):
        target_named("pentium")


def test_the_class_follows_from_what_the_machine_can_do() -> None:
    wide = ["+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"]
    assert _class_of("x86_64", wide) == "avx512"
    assert _class_of("x86_64", wide[:3]) == "haswell"
    assert _class_of("x86_64", ["+avx2", "-fma"]) == "generic"
    assert _class_of("aarch64", []) == "neon"
    assert _class_of("other", []) == "generic"


def test_both_vector_widths_are_stated_so_that_wide_vectors_are_not_split() -> None:
    assert dict(TARGETS["avx512"].function_attributes) == {
        "min-legal-vector-width": "512",
        "prefer-vector-width": "512",
    }
    assert TARGETS["neon"].function_attributes == ()


def test_the_roofline_names_what_binds() -> None:
    t = TARGETS["avx512"]
    assert t.estimate(Cost(1e9, 1e4, 1e4)).bound == "compute"
    assert t.estimate(Cost(1e6, 1e9, 1e9)).bound == "memory"
    assert t.estimate(Cost(10, 10, 10)).bound == "latency"
    assert t.seconds(Cost()) == LAUNCH_SECONDS
    assert t.seconds(Cost(1e9), threads=2) == pytest.approx(t.seconds(Cost(1e9)) / 2, rel=1e-3)
    assert t.bandwidth(1e9, threads=64) == t.memory_gbps * 1e9
    assert t.bandwidth(1000) > t.bandwidth(1e9)


def test_a_register_holds_at_least_one_element() -> None:
    assert TARGETS["avx512"].lanes(4) == 16
    assert TARGETS["generic"].lanes(8) == 2
    assert TARGETS["generic"].lanes(32) == 1


def test_cache_sizes_are_read_where_listed_and_left_out_where_not(tmp_path: Path) -> None:
    rows = ["1 Data 48K", "1 Instruction 32K", "2 Unified 2048K", "x Unified 1K"]
    for k, row in enumerate(rows):
        level, kind, size = row.split()
        folder = tmp_path / f"index{k}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()
    assert _cache_sizes(tmp_path) == {1: 48 << 10, 2: 2 << 20}
    assert _cache_sizes(tmp_path / "absent") == {}
