"""Markers, an isolated cache for the whole run, and the table of rows (`--rows`)."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
import samples
from layout import IMPORTED
from rows import ROWS

sys.path[:0] = IMPORTED

# Settings are read when stratal is first imported, so this stands before any test module is.
_OWN_CACHE = None
if "STRATAL_CACHE_DIR" not in os.environ:
    _OWN_CACHE = tempfile.mkdtemp(prefix="stratal-tests-")
    os.environ["STRATAL_CACHE_DIR"] = _OWN_CACHE
os.environ.setdefault("STRATAL_STRICT", "1")  # no failure of the compiler hides behind a fallback

try:
    import hypothesis
except ImportError:  # the extra `dev` has it; a bare checkout can still collect
    pass
else:
    hypothesis.settings.register_profile("stratal", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("stratal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", action="store_true", help="run only tests that show a row; print the table")
    samples.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let `-n 2` give each process a run of files: they share fixtures and compiled programs."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(*ids): the test shows that these rows of the mission work")
    config.addinivalue_line("markers", "slow: takes minutes; run with -m slow")
    config.addinivalue_line("markers", "quick: `-m quick` runs these alone, in a minute")
    config.addinivalue_line("markers", "sampled(n, among=None): one case in n runs by default")
    config.addinivalue_line("markers", "torch: compares with PyTorch; skipped where it is not installed")
    samples.seed_of(config)  # workers of xdist take it from the environment
    if config.getoption("--rows"):
        config.pluginmanager.register(RowTable(), "stratal-rows")
    alone = threading.current_thread() is threading.main_thread()
    if alone and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


def pytest_report_header(config: pytest.Config) -> str:
    return f"sampled tests: --sample-seed {samples.seed_of(config)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare `-m quick` and `-m torch` the import of files that have no such test."""
    mark = config.getoption("-m").partition(" and ")[0]
    if mark not in ("quick", "torch") or collection_path.suffix != ".py":
        return None
    return f"mark.{mark}" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)  # before -m looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    samples.leave_out(config, items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test need PyTorch without the mark: where PyTorch is installed only marked ones run."""
    report = yield
    missing = report.skipped and "could not import 'torch'" in str(report.longrepr)
    if missing and item.get_closest_marker("torch") is None:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} needs @pytest.mark.torch"
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    if _OWN_CACHE is not None:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


class RowTable:
    """Which tests show which row, and whether they passed.

    Workers of xdist collect the tests, and send which rows they show to the process that prints.
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, None]] = defaultdict(dict)  # of each row, in order
        self.outcomes: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)  # after -m: what it leaves out is not owed here
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marked = [item for item in items if any(item.iter_markers("row"))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(marked)])
        items[:] = marked
        for item in items:
            for marker in item.iter_markers("row"):
                for row in marker.args:
                    self.tests[row][item.nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["rows"] = {row: list(tests) for row, tests in self.tests.items()}

    @pytest.hookimpl(optionalhook=True)  # where xdist is installed
    def pytest_testnodedown(self, node: Any) -> None:
        for row, tests in getattr(node, "workeroutput", {}).get("rows", {}).items():
            self.tests[row].update(dict.fromkeys(tests))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("rows")
        for row in sorted(set(ROWS) | set(self.tests), key=_row_order):
            terminalreporter.write_line(f"{row:4} {self._verdict(row):8} {ROWS.get(row, '')}")
            for test, cases in _grouped(self.tests[row]).items():
                terminalreporter.write_line(f"     {'':8} {test}{cases}")

    def _verdict(self, row: str) -> str:
        seen = {self.outcomes.get(test, "not run") for test in self.tests[row]}
        for verdict in ("failed", "not run", "skipped", "passed"):
            if verdict in seen:
                return verdict
        return "no test"


def _row_order(row: str) -> tuple[str, int]:
    return row[0], int(row[1:]) if row[1:].isdigit() else 0


def _grouped(tests: Iterable[str]) -> dict[str, str]:
    """Return test names without parameters, with how many cases each stands for."""
    counts: dict[str, int] = defaultdict(int)
    for test in tests:
        counts[test.split("[")[0]] += 1
    return {test: f"  ({n} cases)" if n > 1 else "" for test, n in counts.items()}


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Let no test leave a signal handler behind for the next one."""
    watched = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)
    before = [signal.getsignal(number) for number in watched]
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(watched, before, strict=True):
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> None:
    """Let captures, which collect now and then, not look at all that other tests have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_callbacks_of_the_collector() -> Iterator[None]:
    """Put callbacks of the collector aside, as Hypothesis has: Python drops what a handler raises there."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


@pytest.fixture
def nothing_waits() -> Iterator[None]:
    """Leave out tensors of earlier tests that still wait, or failed: with those about, steps build nodes."""
    from stratal.tensor.values import live

    before = dict(live.LIVE), dict(live.FAILED)
    live.LIVE.clear()
    live.FAILED.clear()
    yield
    live.LIVE.update(before[0])
    live.FAILED.update(before[1])
