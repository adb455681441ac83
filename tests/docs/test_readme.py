"""The README tells the truth: its example runs, its commands and files exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
from layout import ROOT

from stratal.cli import COMMANDS

README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="runs in a checkout only")


def test_the_ten_line_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "range(10)" in example
    names: dict[str, Any] = {}
    exec(compile(example.replace("range(10)", "range(2)"), str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert re.match(r"(2[5-9]|3)\d+ of 359", printed)
    assert "x: f32[64,1,8,8]" in printed and "1 native call" in printed  # of a whole batch


def test_every_command_is_in_the_readme_and_none_is_made_up() -> None:
    text = README.read_text()
    assert set(re.findall(r"`stratal ([\w-]+)", text)) - {"demo"} == set(COMMANDS) - {"demo"}


def test_every_file_the_readme_points_to_is_there() -> None:
    links = re.findall(r"\]\(([^)h][^)]*)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_ci_run_and_the_readme_run_the_same_commands() -> None:
    (commands,) = re.findall(r"## Test\n.*?```sh\n(.*?)\n```", README.read_text(), re.DOTALL)
    install, test = commands.split(" && ")
    lines = (ROOT / ".ci" / "run").read_text().replace(" --quiet", "").splitlines()
    ci = [re.sub(r"^run \d+ ", "", line) for line in lines]
    assert install == "python -m pip install -e '.[dev]'"  # an edit under src/ is tested
    assert test.startswith("python -m pytest")
    assert ci.index(install) + 1 == ci.index(test)


def test_every_command_of_the_ci_run_has_a_limit() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if re.match(r"(python|stratal) ", line)] == []


def test_the_ci_run_also_takes_pytorch_both_fuzzers_and_processors_without_avx512() -> None:
    for_all, for_avx2 = (ROOT / ".ci" / "run").read_text().split("export STRATAL_TARGET=haswell")
    fuzzers = ("tests/fuzz/fuzz_programs.py --seconds 12", "tests/fuzz/fuzz_python.py --seconds 12")
    assert [c for c in ("pytest -n 2 -m 'torch and not slow'", *fuzzers) if c not in for_all] == []
    tests = ("tests/contract/test_records_native.py", "tests/unit/optimize/test_winograd.py")
    assert [c for c in (*tests, "tests/fuzz/fuzz.py", "stratal demo") if c not in for_avx2] == []
