"""Counts that callers give: Python's whole numbers, and NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError


def as_count(rule: str, value: Any, least: int = 1) -> int:
    """Return a whole number from `least` on as Python's. Raises: AttributeValueError, which says the rule."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise AttributeValueError(rule, got=repr(value), hint=f"a whole number from {least} on")
    return int(value)
