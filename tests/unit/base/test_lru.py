"""Tables of what was used last keep what they say, whatever is raised while keys are compared."""

from __future__ import annotations

import pytest

from stratal.base.lru import LRU

pytestmark = pytest.mark.quick


class Key:
    """A key whose comparison can be made to raise, as a signal handler may."""

    raising = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if Key.raising:
            raise KeyboardInterrupt
        return isinstance(other, Key) and other.name == self.name


def test_what_was_kept_longest_ago_goes_first() -> None:
    table = LRU[str, int](2)
    assert [table.keep(k, v) for k, v in (("a", 1), ("b", 2), ("a", 3), ("c", 4))] == [1, 2, 3, 4]
    assert table == {"a": 3, "c": 4} and list(table) == ["a", "c"]


def test_an_interrupt_while_keys_are_compared_leaves_the_table_whole() -> None:
    table = LRU[Key, int](3)
    for k, name in enumerate("abc"):
        table.keep(Key(name), k)
    Key.raising = True
    try:
        with pytest.raises(KeyboardInterrupt):
            table.keep(Key("b"), 7)
    finally:
        Key.raising = False
    assert table.keep(Key("b"), 8) == 8 and table.keep(Key("d"), 9) == 9
    assert [key.name for key in table] == ["c", "b", "d"]
