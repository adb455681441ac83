"""The demo and `stratal explain`, as a newcomer runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import next_line

from stratal.cli import demo, main

FIGURES = {
    "test_accuracy",
    "train_seconds",
    "cold_compile_seconds",
    "warm_compile_seconds",
    "steps_per_second",
    "reference_steps_per_second",
    "kernels",
    "planned_peak_bytes",
    "observed_peak_bytes",
}


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "stratal", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.sampled(5)
def test_the_demo_trains_saves_and_loads_in_a_fresh_process(tmp_path: Path) -> None:
    model, figures = tmp_path / "digits", tmp_path / "demo.json"
    demo = start("demo", "--epochs", "3", "--seeds", "2", "--json", str(figures), "--save", str(model))
    out, err = demo.communicate(timeout=600)
    assert demo.returncode == 0, err
    report = json.loads(figures.read_text())
    assert set(report) >= FIGURES
    assert report["split"] == "stratified-80-20-seed-0"
    assert len(report["test_accuracies"]) == 2
    assert report["test_accuracy"] > 0.93
    assert report["loaded_test_accuracy"] == report["test_accuracies"][0]
    assert report["observed_peak_bytes"] == report["planned_peak_bytes"]
    assert "the same bits" in out
    assert "digits.py:" in out  # the example's lines are the user's
    assert out.rstrip().splitlines()[-4].startswith("Three commands")
    assert (model / "manifest.json").exists()


@pytest.mark.sampled(4)
@pytest.mark.skipif(sys.platform == "win32", reason="signals as on POSIX")
def test_ctrl_c_ends_the_demo_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = start("demo", "--epochs", "1000", "--save", str(tmp_path / "model"), env=environment)
    assert demo.stdout is not None
    while not next_line(demo).startswith("epoch"):
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, err = demo.communicate(timeout=600)
    assert demo.returncode == 130
    assert time.monotonic() - asked < 20
    assert "interrupted" in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


SCRIPT = """
import sys
import numpy as np
import stratal as st

x = st.tensor(np.ones((4, 8), np.float32))
print(float((x @ st.ones((8, 2))).sum()), sys.argv[1:])
{tail}
"""


@pytest.mark.sampled(4)
def test_explain_runs_a_script_and_shows_what_it_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tail=""))
    assert (
        main(["explain", "--show", "all", "--json", str(tmp_path / "e.json"), str(script), "one", "--two"])
        == 0
    )
    out = capsys.readouterr().out
    assert "64.0 ['one', '--two']" in out
    assert "script.py:7" in out
    assert "arena" in out
    rows = json.loads((tmp_path / "e.json").read_text())
    mine = next(r for r in rows if "script.py:7" in r["graph"])
    assert {"plan", "decisions", "arena", "loops", "graph"} <= set(mine)


@pytest.mark.sampled(4)
def test_explain_tells_what_is_wrong_with_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tail="1 / 0"))
    assert main(["explain", str(script)]) == 1
    captured = capsys.readouterr()
    assert "ZeroDivisionError" in captured.err
    assert "runpy" not in captured.err
    assert "compiled" in captured.out
    script.write_text("import sys; sys.exit(3)")
    assert main(["explain", str(script)]) == 3
    assert main(["explain", str(tmp_path / "absent.py")]) == 1
    with pytest.raises(SystemExit):
        main(["explain", "--show", "nonsense", str(script)])


def test_the_reference_may_run_more_steps_than_an_epoch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    class Training:
        loader = ((0.0, 0.0), (0.0, 0.0))

        def __init__(self, epochs: int) -> None:
            self.epochs = epochs

        def train_step(self, x: float, y: float) -> tuple[float]:
            time.sleep(0.001)
            return (x + y,)

    monkeypatch.setattr(demo.example, "Training", Training)
    monkeypatch.setattr(demo, "REFERENCE_SECONDS", 0.5)
    assert demo.reference_rate(Training(1)) > 2 / 0.5
