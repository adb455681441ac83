"""Weak tables: what dies is forgotten, by callbacks that run no Python code."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    table: dict[int, object] = {}
    thing = Thing(1)
    reference = note(table, thing)
    assert table == {id(thing): reference}
    assert type(reference.__callback__).__name__ == "partial"
    assert type(reference.__callback__.func).__name__ == "builtin_function_or_method"
    entries: WeakTable[Thing] = WeakTable()
    entries.add(0, thing)
    (entry,) = entries._entries.values()
    assert type(entry.__callback__).__name__ == "builtin_function_or_method"
    del thing
    assert not table
