"""Containers that notify compiled functions of changes: a module's tables, an optimizer's lists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from stratal.tensor.values.state import note_mutation

F = TypeVar("F", bound=Callable[..., Any])


def _announcing(method: F) -> F:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:  # afterwards: another thread may compare what stands there meanwhile
            note_mutation()

    return call  # type: ignore[return-value]


class Table(dict[str, Any]):
    """A dict that notifies of changes."""

    __setitem__ = _announcing(dict.__setitem__)
    __delitem__ = _announcing(dict.__delitem__)
    __ior__ = _announcing(dict.__ior__)
    clear = _announcing(dict.clear)
    pop = _announcing(dict.pop)
    popitem = _announcing(dict.popitem)
    setdefault = _announcing(dict.setdefault)
    update = _announcing(dict.update)


class Row(list[Any]):
    """A list that notifies of changes."""

    __setitem__ = _announcing(list.__setitem__)
    __delitem__ = _announcing(list.__delitem__)
    __iadd__ = _announcing(list.__iadd__)
    __imul__ = _announcing(list.__imul__)
    append = _announcing(list.append)
    clear = _announcing(list.clear)
    extend = _announcing(list.extend)
    insert = _announcing(list.insert)
    pop = _announcing(list.pop)
    remove = _announcing(list.remove)
    reverse = _announcing(list.reverse)
    sort = _announcing(list.sort)
