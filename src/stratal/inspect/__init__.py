"""Viewers and measurements on top of everything else; nobody imports them.

Names are loaded when first used: each viewer imports what it alone needs.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES: dict[str, str] = {
    "stratal.inspect.machine": "machine_peaks",
    "stratal.inspect.profiler": "Profile Profiler profile",
    "stratal.inspect.timer": "Comparison Measurement Timer compare",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stratal.inspect' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
