"""The shape of the tests: folders that mirror the package, a quick test in each, few files on top."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import samples
from layout import IMPORTED, TESTS

import stratal

PACKAGE = Path(stratal.__file__).parent
FOLDERS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
pytestmark = pytest.mark.quick


def test_few_files_stand_at_the_top_and_none_that_is_no_test_stands_beside_tests() -> None:
    assert len([p for p in TESTS.iterdir() if p.is_file()]) <= 12
    beside = [p for p in TESTS.glob("**/*.py") if not p.name.startswith("test_")]
    allowed = (TESTS / "support", TESTS / "fuzz", TESTS / "conftest.py")
    assert [p for p in beside if not any(p.is_relative_to(a) for a in allowed)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_package_has_tests_of_its_own_and_a_quick_one(folder: str) -> None:
    files = list((TESTS / "unit" / folder).glob("test_*.py"))
    assert any("mark.quick" in p.read_text(encoding="utf-8") for p in files)


def test_no_two_files_of_tests_have_one_name() -> None:
    names = [p.name for folder in map(Path, IMPORTED[1:]) for p in folder.glob("*.py")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("cases", "one_in", "count"), [(60, None, 15), (10, None, 4), (3, None, 3), (60, 10, 6), (5, 10, 1)]
)
def test_a_sample_follows_from_its_seed_and_misses_no_case_for_long(
    cases: int, one_in: int | None, count: int
) -> None:
    names = [f"test_of_a_table[{k}]" for k in range(cases)]
    first = samples.drawn("one", names, one_in)
    assert first == samples.drawn("one", names[::-1], one_in) and len(first) == count
    assert set().union(*(samples.drawn(str(seed), names, one_in) for seed in range(100))) == set(names)


def test_a_test_without_cases_runs_at_some_seeds() -> None:
    assert 70 < sum(len(samples.drawn(str(seed), ["test_alone"], 4)) for seed in range(400)) < 130


class Item:
    """What a sample reads and writes of a test."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self.marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return iter([self.marks[name]] if name in self.marks else [])

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


@pytest.mark.parametrize(("among", "cases", "runs"), [("launches", 1, 2), ("launches", 3, 6), (None, 3, 10)])
def test_tests_may_be_drawn_from_together(among: str | None, cases: int, runs: int) -> None:
    sampled = pytest.mark.sampled(5, among=among)
    items: Any = [Item(f"test_a.py::test_{k}[{n}]", sampled) for k in range(10) for n in range(cases)]
    config = SimpleNamespace(getoption=lambda name: False, args=[])
    samples.leave_out(config, items)  # type: ignore[arg-type]
    assert len([item for item in items if "slow" not in item.marks]) == runs


def test_files_may_be_drawn_whole() -> None:
    sampled = pytest.mark.sampled(2, among="servers", by_file=True)
    items: Any = [Item(f"test_{k}.py::test_{n}", sampled) for k in range(7) for n in range(3)]
    config = SimpleNamespace(getoption=lambda name: False, args=[])
    samples.leave_out(config, items)  # type: ignore[arg-type]
    assert sorted(sum("slow" in item.marks for item in items[k : k + 3]) for k in range(0, 21, 3)) == [
        0, 0, 0, 0, 3, 3, 3,
    ]  # fmt: skip
