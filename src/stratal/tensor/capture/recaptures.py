"""Why a compiled function was captured, each time, and a warning where the reason is always the same."""

from __future__ import annotations

import re
import warnings
from collections import Counter

from stratal.base.source import user_line

_MANY = 16
_SUBJECT = re.compile(r" (?:changed from|is another|now takes|no longer takes) ")


class RecompileWarning(UserWarning):
    """A compiled function that is captured, and compiled, again and again."""


class Reasons(list[str]):
    """One sentence per capture, its subject in front."""

    def __init__(self) -> None:
        super().__init__()
        self._subjects: Counter[str] = Counter()

    def add(self, function: str, reason: str) -> None:
        """Take note of a capture; warn where its subject has been the reason `_MANY` times."""
        self.append(reason)
        parts = _SUBJECT.split(reason, maxsplit=1)
        if len(parts) < 2:
            return
        self._subjects[parts[0]] += 1
        if self._subjects[parts[0]] == _MANY:
            warnings.warn(
                f"{function}: captured {len(self)} times, since {parts[0]} keeps changing\n"
                f"  got:   {reason}\n"
                f"  where: {user_line()}\n"
                f"  hint:  pass numbers that change as tensors, st.tensor(n); "
                f"leave dynamic=None where sizes change",
                RecompileWarning,
                stacklevel=4,
            )


__all__ = ["Reasons", "RecompileWarning"]
