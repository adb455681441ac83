"""Two plans side by side: which kernels are the same code, which changed, came or went."""

from __future__ import annotations

import difflib
from typing import Any

from stratal.plan.record import Plan

JSON = dict[str, Any]
_SHOWN = ("number", "name", "tactic", "seconds", "times")


def compare(before: Plan, now: Plan) -> JSON:
    """Return the rows of a comparison: [what, number before or None, number now or None] in order of running.

    `what` is `same` for the same code over as many chunks, else `changed`. Kernels that changed stand beside
    each other where as many came as went.
    """
    old, new = before.kernels, now.kernels
    matcher = difflib.SequenceMatcher(None, [_key(k) for k in old], [_key(k) for k in new], autojunk=False)
    rows: list[tuple[str, int | None, int | None]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        what = "same" if tag == "equal" else "changed"
        for step in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + step, j1 + step
            rows.append((what, i + 1 if i < i2 else None, j + 1 if j < j2 else None))
    return {
        "name": before.name,
        "hash": before.hash,
        "seconds": before.estimated_seconds,
        "memory": before.memory,
        "kernels": [{key: k[key] for key in _SHOWN} for k in old],
        "rows": rows,
    }


def _key(kernel: JSON) -> tuple[str, int]:
    return kernel["symbol"], kernel["chunks"]
