"""The tour runs on its own, and the modules it names are there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from layout import ROOT

TOUR = ROOT / "docs" / "tour.py"
pytestmark = pytest.mark.skipif(not TOUR.exists(), reason="runs in a checkout only")


def test_the_tour_runs_to_its_end() -> None:
    done = subprocess.run([sys.executable, str(TOUR)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("the tour is over\n")


def test_the_tour_imports_nothing_of_stratal() -> None:
    imported = set()
    for node in ast.walk(ast.parse(TOUR.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "llvmlite"}


def test_every_module_the_tour_names_exists() -> None:
    comments = "\n".join(
        line for line in TOUR.read_text(encoding="utf-8").split("\n") if line.startswith("#")
    )
    named = set(re.findall(r"\b[a-z_]+/(?:[a-z_]+(?:\.py|/))?", comments))
    assert len(named) > 20
    assert [n for n in named if not (ROOT / "src" / "stratal" / n).exists()] == []
