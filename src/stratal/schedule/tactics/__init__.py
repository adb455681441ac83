"""Tactics: which loops, in what order, split and vectorised how, for one kind of group each.

A module here names the `KIND` of groups it schedules and yields `candidates(x, target)`: the ways it knows
for one group, each with an estimate. It needs to be listed nowhere. One that can be tuned also has

    variants(x, target)                              the same algorithms with other legal parameters
    candidate_of(x, target, algorithm, parameters)   the candidate so named, None where it is not legal here

Without the second, a candidate is found by its name among those it yields.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from types import ModuleType

from stratal.base.fallback import lines, optional
from stratal.base.target import Target
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.result import Candidate


@cache
def tactics(kind: str) -> tuple[ModuleType, ...]:
    """Return the modules that schedule groups of a kind."""
    modules = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return tuple(m for m in modules if getattr(m, "KIND", None) == kind)


def candidates(kind: str, x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield every way known to make a kernel of a group; a tactic that fails has none."""
    where = lines(x.group.members)
    for module in tactics(kind):
        name = module.__name__.rpartition(".")[2]
        found = partial(_listed, module, x, target)
        yield from optional(f"tactic {name}", found, list[Candidate], where=where)


def _listed(module: ModuleType, x: GroupExpressions, target: Target) -> list[Candidate]:
    return list(module.candidates(x, target))


def variants(kind: str, x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield further ways to make a kernel of a group, for measurements to choose from."""
    for module in tactics(kind):
        if hasattr(module, "variants"):
            yield from module.variants(x, target)


def tunable(kind: str) -> bool:
    """Return whether measurements have anything to choose from."""
    return any(hasattr(module, "variants") for module in tactics(kind))


def candidate_of(
    kind: str, x: GroupExpressions, target: Target, algorithm: str, parameters: tuple[tuple[str, int], ...]
) -> Candidate | None:
    """Return the way of that name and those parameters; None where this group has no such way."""
    modules = tactics(kind)
    for module in (m for m in modules if hasattr(m, "candidate_of")):
        found: Candidate | None = module.candidate_of(x, target, algorithm, dict(parameters))
        if found is not None:
            return found
    others = (c for m in modules if not hasattr(m, "candidate_of") for c in m.candidates(x, target))
    wanted = algorithm, dict(parameters)
    return next((c for c in others if (c.algorithm, dict(c.parameters)) == wanted), None)
