"""Targets: descriptions as data, found for this machine or asked for by name; the static roofline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import stratal as st
from stratal.base import settings
from stratal.base.cost import Cost
from stratal.base.errors import SettingError
from stratal.base.target import LAUNCH_SECONDS, TARGETS, Target, class_of, host_arch
from stratal.codegen.assemble import Machine, host_machine
from stratal.plan import host
from stratal.plan.host import _cache_sizes, current_target, host_target, target_named
from stratal.runtime.cache import object_cache


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """Forget this machine and use an empty cache; count how often LLVM is asked."""

    def counted() -> Machine:
        calls.append(1)
        return machine

    def forget() -> None:
        for known in (host._described, host._key, host.host_target):
            known.cache_clear()

    calls: list[int] = []
    machine = host_machine()
    monkeypatch.setattr(host, "host_machine", counted)
    forget()
    with settings.cache_dir(tmp_path / "cache"):
        yield calls
    forget()


@pytest.mark.skipif(not host._BOOT.exists(), reason="this system does not tell one start from the next")
def test_llvm_describes_a_machine_once_and_again_when_the_cache_travels(
    asked: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def elsewhere(place: str, path: Path) -> None:
        monkeypatch.setattr(host, place, path)
        host._key.cache_clear()

    def described() -> Target:
        host._described.cache_clear()
        host_target.cache_clear()
        return host_target()

    here = described()
    assert described() == here and len(asked) == 1
    (tmp_path / "boot").write_text("another start\n")
    elsewhere("_BOOT", tmp_path / "boot")
    assert described() == here and len(asked) == 2
    flags = Path("/proc/cpuinfo").read_text()
    (tmp_path / "processors").write_text(flags.replace("cpu MHz\t\t: ", "cpu MHz\t\t: 1"))
    elsewhere("_PROCESSORS", tmp_path / "processors")
    assert described() == here and len(asked) == 2  # only its clock differs
    (tmp_path / "processors").write_text(flags.replace("sse2", ""))
    elsewhere("_PROCESSORS", tmp_path / "processors")
    assert described() == here and len(asked) == 3
    object_cache().put(host._key(), b'["two", "words"]')
    assert described() == here and len(asked) == 4
    elsewhere("_BOOT", tmp_path / "missing")
    assert described() == described() == here and len(asked) == 6  # nothing tells this machine from others


@pytest.mark.skipif(sys.platform != "linux" or host_arch() != "x86_64", reason="LLVM links elsewhere")
def test_a_process_compiles_and_runs_without_llvm_in_it(tmp_path: Path) -> None:
    code = (
        "import sys, stratal as st\n"
        "f = st.compile(lambda x: st.softmax(x @ x.T, 1).sum())\n"
        "print(round(float(f(st.ones((40, 40))))), int(st.arange(5).sum()))\n"
        "print('llvmlite.binding' in sys.modules, 'libllvmlite' in open('/proc/self/maps').read())\n"
    )
    environment = {**os.environ, "STRATAL_CACHE_DIR": str(tmp_path / "cache"), "STRATAL_COMPILE_WORKERS": "2"}
    for _ in ("cold", "warm"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            timeout=600,
        )
        assert done.stdout.split("\n")[:2] == ["40 10", "False False"]


def test_the_class_follows_from_what_the_machine_can_do() -> None:
    wide = ["+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"]
    assert class_of("x86_64", ",".join(wide)).name == "avx512"
    assert class_of("x86_64", ",".join(wide[:3])).name == "haswell"
    assert class_of("x86_64", "+avx2,-fma").name == "generic"
    assert class_of("aarch64", "").name == "neon"
    assert class_of("other", "").name == "generic"


@pytest.mark.parametrize("run", [lambda x: (x * 2).sum().item(), st.compile(lambda x: x * 2)])
def test_code_for_a_machine_that_this_one_is_not_is_never_loaded(
    run: Callable[[st.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanting = replace(TARGETS["haswell"], arch=host_arch(), requires=("telepathy",))
    monkeypatch.setitem(TARGETS, "haswell", wanting)
    with settings.target("haswell"), pytest.raises(SettingError, match="does not run on this") as told:
        run(st.ones(3))
    assert told.value.got == "it lacks telepathy"
    other = "generic" if host_arch() == "aarch64" else "neon"
    with settings.target(other), pytest.raises(SettingError, match="a processor of"):
        run(st.ones(3))
    run(st.ones(3))


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
