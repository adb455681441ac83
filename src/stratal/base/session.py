"""The session: what this process remembers of work it has seen, in one object that can be reset.

Tables of a session are caches: a process that forgets them computes the same values, some programs anew.
Facts about living values are not among them.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar


class _Table(Protocol):
    def clear(self) -> None: ...


AnyTable = TypeVar("AnyTable", bound=_Table)


class Session:
    """The caches of this process."""

    def __init__(self) -> None:
        self.tables: Final[list[Any]] = []

    def cache(self, table: AnyTable) -> AnyTable:
        """Take in a table that a reset empties, and return it."""
        self.tables.append(table)
        return table

    def reset(self) -> None:
        """Forget everything: what comes next runs as in a new process."""
        for table in self.tables:
            table.clear()


SESSION: Final = Session()
