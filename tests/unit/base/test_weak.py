"""Weak tables: what dies is forgotten, by callbacks that run no Python code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stratal
from stratal.base.weak import WeakTable, note


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_a_weak_table_knows_exactly_what_is_held(events: list[tuple[int, bool]]) -> None:
    table: WeakTable[Thing] = WeakTable()
    held: dict[int, Thing] = {}
    for value, keep in events:
        if not keep:
            held.pop(value, None)
        elif value not in held:
            assert table.get(value) is None
            held[value] = table.add(value, Thing(value))
        assert all(table.get(k) is held.get(k) for k in range(10))
    table.add(10, Thing(10))
    assert len(table) == len(held) + 1  # keys of the dead went before the new one came


def test_the_callbacks_of_weak_tables_are_c_functions() -> None:
    table: dict = {}
    thing = Thing(1)
    note(table, thing)
    reference = table[id(thing)]
    assert reference() is thing
    assert type(reference.__callback__).__name__ == "partial"
    assert type(reference.__callback__.func).__name__ == "builtin_function_or_method"
    entries: WeakTable[Thing] = WeakTable()
    entries.add(0, thing)
    (entry,) = entries._entries.values()
    assert type(entry.__callback__).__name__ == "builtin_function_or_method"
    del thing
    assert not table


def _finalizers(path: Path) -> Iterator[str]:
    """Yield what runs Python code when something dies."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield f"{path}:{node.lineno} __del__"
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name.startswith("Weak") and name.endswith(("Dictionary", "Set")):
            yield f"{path}:{node.lineno} {name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("weakref."):
            callbacks = [ast.unparse(a) for a in node.args[1:]]
            in_c = all(c.startswith("functools.partial(") for c in callbacks)
            if "finalize" in ast.unparse(node.func) or not in_c:
                yield f"{path}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.sampled(4)
def test_no_python_code_of_the_package_runs_when_something_dies() -> None:
    """A signal handler that raises in such code is not heard: Python prints the error and drops it."""
    templates = "capture/templates.py"  # makes references again that users' functions made
    files = [p for p in Path(stratal.__file__).parent.rglob("*.py") if not p.as_posix().endswith(templates)]
    assert [found for path in files for found in _finalizers(path)] == []
