"""One call from compiled programs to a page: what `step.view()` and `stratal view` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from stratal.base.errors import AttributeValueError
from stratal.explorer.compare import compare
from stratal.explorer.page import Page
from stratal.explorer.subject import describe
from stratal.plan.explain import Explained
from stratal.plan.record import Plan

JSON = dict[str, Any]


class Measured(Protocol):
    """Times of programs that ran, such as `st.profile` returns."""

    def of_plan(self, hash_: str) -> JSON | None:
        """Return the times of the program with this plan, None where it did not run."""
        ...


def view(
    programs: Sequence[Explained], path: str | os.PathLike[str] | None = None, *, diff: object = None,
    profile: Measured | None = None
) -> Page:
    """Return the explorer's page of some programs; write it where a path is given.

    `diff` is a plan, or what has one, to be compared with the programs of its name, or with the only one.

    Raises: OSError where it cannot be written; AttributeValueError for a `diff` without a plan.
    """
    rows = []
    for program in programs:
        row = describe(program)
        times = None if profile is None else profile.of_plan(program.plan.hash)
        rows.append(row if times is None else row | {"profile": times})
    if diff is not None:
        add_comparisons(rows, [plan_of(diff)])
    page = Page(rows)
    if path is not None:
        page.save(path)
    return page


def plan_of(subject: object) -> Plan:
    """Return the plan of a compiled function, a program, or of a plan itself."""
    found = subject if isinstance(subject, Plan) else getattr(subject, "plan", None)
    if not isinstance(found, Plan):
        raise AttributeValueError(
            "view: diff takes a plan, or a compiled function that has run", got=type(subject).__name__
        )
    return found


def add_comparisons(rows: Sequence[JSON], others: Sequence[Plan]) -> None:
    """Set each program beside the other plan of its name; a single one beside the single other."""
    named = {plan.name: plan for plan in others}
    for row in rows:
        other = others[0] if len(rows) == len(others) == 1 else named.get(row["name"])
        if other is not None:
            now = Plan({k: v for k, v in row["plan"].items() if k != "hash"})
            row["diff"] = compare(other, now)
