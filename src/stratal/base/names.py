"""Names of a package that are loaded when first used, so that importing it costs next to nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stratal.base.elsewhere import no_attribute
from stratal.base.interrupts import UNINTERRUPTIBLE


def lazy_names(
    package: str,
    names: Mapping[str, str],
    modules: Iterable[str] = (),
    offer: Callable[[Any], Any] = lambda value: value,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `names` says for each of its modules which names come from there, with spaces between; `modules` are
    offered themselves. What `offer` makes of a value stands under its name.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}
    offered = set(modules)

    def getattr_(name: str) -> Any:
        if name not in offered and name not in homes:
            raise no_attribute(sys.modules[package], f"module {package!r}", name)
        if sys.is_finalizing():
            raise AttributeError(f"{package}.{name}: Python is shutting down, and imports nothing any more")
        with UNINTERRUPTIBLE:  # no import stops halfway
            if name in offered:
                value: Any = importlib.import_module(f"{package}.{name}")
            else:
                value = offer(getattr(importlib.import_module(f"{package}.{homes[name]}"), name))
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted(offered.union(homes))

    return getattr_, dir_
