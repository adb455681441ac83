"""The op records, by family, and the named composites. Importing this package fills the registry."""

from __future__ import annotations

import importlib
import pkgutil

from stratal.base.interrupts import UNINTERRUPTIBLE


def _load() -> None:
    with UNINTERRUPTIBLE:  # no import stops halfway
        for module in pkgutil.walk_packages(__path__, f"{__name__}."):
            importlib.import_module(module.name)


_load()
