"""Compiled functions with and without audits: the ways in which tests of captures run each of their cases."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import stratal as st

WAYS: dict[str, Callable[..., Any]] = {
    "audited": st.compile, "not audited": functools.partial(st.compile, audit=False),
}  # fmt: skip
each_way = pytest.mark.parametrize("way", WAYS)
SIZED_WAYS = WAYS | {"for all sizes": functools.partial(st.compile, audit=False, dynamic=True)}
each_sized_way = pytest.mark.parametrize("way", SIZED_WAYS)
GUARDS_NOTICE = [  # not audits; how often a function is captured is no matter
    pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning"),
    pytest.mark.filterwarnings("error::stratal.tensor.capture.audit.AuditWarning"),
]
