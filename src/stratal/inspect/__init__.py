"""Viewers and measurements on top of everything else; nobody imports them.

Names are loaded when first used: each viewer imports what it alone needs.
"""

from __future__ import annotations

from stratal.base.names import lazy_names

__getattr__, __dir__ = lazy_names(
    "stratal.inspect",
    {
        "machine": "machine_peaks",
        "profiler": "Profile Profiler profile",
        "timer": "Comparison Measurement Timer compare",
    },
)
