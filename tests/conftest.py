"""Markers, an isolated cache for the whole run, and the table of rows (`--rows`)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests share plain modules that stand beside them
from rows import ROWS

# Settings are read when stratal is first imported, so this stands before any test module is.
_OWN_CACHE = None
if "STRATAL_CACHE_DIR" not in os.environ:
    _OWN_CACHE = tempfile.mkdtemp(prefix="stratal-tests-")
    os.environ["STRATAL_CACHE_DIR"] = _OWN_CACHE

try:
    import hypothesis
except ImportError:  # the extra `dev` has it; a bare checkout can still collect
    pass
else:
    hypothesis.settings.register_profile("stratal", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("stratal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", action="store_true", help="run only tests that show a row; print the table")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(*ids): the test shows that these rows of the mission work")
    config.addinivalue_line("markers", "slow: takes minutes; run with -m slow")
    config.addinivalue_line("markers", "torch: compares with PyTorch; skipped where it is not installed")
    if config.getoption("--rows"):
        config.pluginmanager.register(RowTable(), "stratal-rows")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _OWN_CACHE is not None:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


class RowTable:
    """Which tests show which row, and whether they passed."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, str]] = defaultdict(dict)  # row -> test -> outcome

    @pytest.hookimpl(trylast=True)  # after -m: what it leaves out is not owed here
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marked = [item for item in items if any(item.iter_markers("row"))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(marked)])
        items[:] = marked
        for item in items:
            for marker in item.iter_markers("row"):
                for row in marker.args:
                    self.tests[row][item.nodeid] = "not run"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for outcomes in self.tests.values():
                if report.nodeid in outcomes:
                    outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("rows")
        for row in sorted(set(ROWS) | set(self.tests), key=_row_order):
            terminalreporter.write_line(f"{row:4} {_verdict(self.tests[row]):8} {ROWS.get(row, '')}")
            for test, outcomes in _grouped(self.tests[row]).items():
                terminalreporter.write_line(f"     {'':8} {test}{outcomes}")


def _row_order(row: str) -> tuple[str, int]:
    return row[0], int(row[1:]) if row[1:].isdigit() else 0


def _verdict(outcomes: dict[str, str]) -> str:
    seen = set(outcomes.values())
    for verdict in ("failed", "not run", "skipped", "passed"):
        if verdict in seen:
            return verdict
    return "no test"


def _grouped(outcomes: dict[str, str]) -> dict[str, str]:
    """Return test names without parameters, with how many cases each stands for."""
    counts: dict[str, int] = defaultdict(int)
    for test in outcomes:
        counts[test.split("[")[0]] += 1
    return {test: f"  ({n} cases)" if n > 1 else "" for test, n in counts.items()}
