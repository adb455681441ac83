"""`stratal memory`: what each program takes, by purpose and by value, and whether a budget suffices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratal.cli import main
from stratal.cli.memory import PURPOSES

SCRIPT = """\
import sys
import stratal as st
from stratal import nn, optim

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
opt = optim.Adam(net.parameters())

@st.compile
def budgeted(x, y):
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss

print("loss", budgeted(st.ones((32, 64)), st.zeros((32,), dtype=st.int64)).item())
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.row("E9")
def test_a_script_fits_a_budget_or_lacks_bytes_and_ends_with_1(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = script.with_name("memory.json")
    options = ["memory", "--only", "budgeted", "--json", str(report)]
    assert main([*options, "--budget", "8GB", str(script)]) == 0
    assert "fits into 8.00 GB" in capsys.readouterr().out
    (step,) = json.loads(report.read_text())
    purposes = [number for key, number in step.items() if key in PURPOSES]
    assert step["peak_bytes"] == sum(purposes) and step["missing_bytes"] == 0
    assert main([*options, "--budget", str(step["peak_bytes"]), str(script)]) == 0
    capsys.readouterr()
    assert main([*options, "--budget", str(step["peak_bytes"] - 1000), str(script)]) == 1
    assert "1.00 kB are missing" in capsys.readouterr().out
    (step,) = json.loads(report.read_text())
    assert step["missing_bytes"] == 1000


def test_the_largest_values_are_named_with_the_lines_that_use_them(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "--values", "20", "--only", "budgeted", str(script)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("loss") and "budgeted: planned peak" in out
    weight = next(line for line in out.splitlines() if "net.0.weight" in line)
    assert weight.split()[:4] == ["32.77", "kB", "f32[128,64]", "state"] and "train.py:10" in weight
    assert any("f32[32,128]" in line and "arena" in line for line in out.splitlines())


def test_the_status_of_the_script_and_nonsense_budgets_are_told(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "--budget", "8GB", str(script), "one", "two"]) == 2
    assert "ended with status 2" in capsys.readouterr().out
    assert main(["memory", "--budget", "lots", str(script)]) == 1
    told = capsys.readouterr()
    assert "--budget: not a size in bytes" in told.err and "loss" not in told.out
