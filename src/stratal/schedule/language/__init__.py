"""The schedule language: an algorithm, checked steps that rewrite its loops, all of it as text.

One file of `steps/` holds one family of primitives; importing this package fills the table of them.
"""

from __future__ import annotations

import importlib
import pkgutil

from stratal.schedule.language import steps


def _load() -> None:
    for module in pkgutil.walk_packages(steps.__path__, f"{steps.__name__}."):
        importlib.import_module(module.name)


_load()
