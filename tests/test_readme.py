"""The README tells the truth: its example runs, its commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stratal.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="runs in a checkout only")


def test_the_ten_line_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert "range(10)" in example
    names: dict[str, Any] = {}
    exec(compile(example.replace("range(10)", "range(2)"), str(README), "exec"), names)
    assert names["right"] > 250
    printed = capsys.readouterr().out
    assert printed.startswith(f"{names['right']} of 359")
    assert "1 native call" in printed


def test_every_command_is_in_the_readme_and_none_is_made_up() -> None:
    text = README.read_text()
    assert set(re.findall(r"`stratal (\w+)", text)) - {"demo"} == set(COMMANDS) - {"demo"}


def test_every_file_the_readme_points_to_is_there() -> None:
    links = re.findall(r"\]\(([^)h][^)]*)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_ci_run_and_the_readme_run_the_same_commands() -> None:
    readme, ci = README.read_text(), (ROOT / ".ci" / "run").read_text()
    assert "python -m pip install '.[dev]' && python -m pytest" in readme
    assert re.search(r"^python -m pip install (--\w+ )*'\.\[dev\]'$", ci, re.MULTILINE)
    assert re.search(r"^python -m pytest$", ci, re.MULTILINE)
