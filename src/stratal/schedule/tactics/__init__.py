"""Tactics: which loops, in what order, split and vectorised how, for one kind of group each.

A module here names the `KIND` of groups it schedules and yields `candidates(x, target)`: the ways it knows
for one group, each with an estimate. It needs to be listed nowhere.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from stratal.base.target import Target
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.result import Candidate


@cache
def tactics(kind: str) -> tuple[ModuleType, ...]:
    """Return the modules that schedule groups of a kind."""
    modules = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return tuple(m for m in modules if getattr(m, "KIND", None) == kind)


def candidates(kind: str, x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield every way known to make a kernel of a group."""
    for module in tactics(kind):
        yield from module.candidates(x, target)
