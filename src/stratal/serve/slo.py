"""Error budgets: which share of the requests failed or was late, against what the objective allows.

With an objective of 99 % one request in a hundred may be bad. The burn rate of a window is the share that was
bad over the share that may be: at 1 the budget is used up exactly as fast as it is given. Alerts take two
windows, so that they come soon and go soon (Site Reliability Workbook, chapter 5): `burn_fast` where the last
hour and the last 5 minutes burn at 14.4, `burn_slow` where the last 6 hours and 30 minutes burn at 6.
"""

from __future__ import annotations

from typing import Final

import numpy as np

WINDOWS: Final = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21600}  # seconds
ALERTS: Final = {"burn_fast": ("1h", "5m", 14.4), "burn_slow": ("6h", "30m", 6.0)}
LEAST_REQUESTS: Final = 20  # in the shorter window, below which there is no alert
_STEP: Final = 10  # seconds of a bucket
_BUCKETS: Final = WINDOWS["6h"] // _STEP


class ErrorBudget:
    """Good and bad requests of the last six hours. The clock is an argument, in seconds."""

    def __init__(self, objective: float) -> None:
        self.objective = objective
        self._counts = np.zeros((_BUCKETS, 2), np.int64)  # bad, all
        self._latest = -1  # number of the newest bucket
        self._bad = self._noted = (
            0  # bad, all, of what is not in that bucket yet: an array is slow to count in
        )

    def note(self, good: bool, now: float) -> None:
        """Count a request."""
        if int(now // _STEP) != self._latest:
            self._forget(now)
        self._bad += not good
        self._noted += 1

    def _forget(self, now: float) -> None:
        """Empty the buckets that the clock has passed since they were used."""
        number = int(now // _STEP)
        if self._latest < 0:
            self._latest = number
        self._counts[self._latest % _BUCKETS] += (self._bad, self._noted)
        self._bad = self._noted = 0
        for past in range(max(self._latest, number - _BUCKETS) + 1, number + 1):
            self._counts[past % _BUCKETS] = 0
        self._latest = max(self._latest, number)

    def counts(self, window: str, now: float) -> tuple[int, int]:
        """Return how many requests of a window were bad, and how many there were."""
        self._forget(now)
        past = np.arange(self._latest - WINDOWS[window] // _STEP + 1, self._latest + 1)
        bad, whole = self._counts[past % _BUCKETS].sum(0)
        return int(bad), int(whole)

    def burn_rate(self, window: str, now: float) -> float:
        """Return how fast a window uses up the budget; 1 is as fast as it is given."""
        bad, whole = self.counts(window, now)
        return bad / max(1, whole) / (1 - self.objective)

    def alerts(self, now: float) -> dict[str, bool]:
        """Return which alerts are on."""
        return {
            name: self.counts(short, now)[1] >= LEAST_REQUESTS
            and min(self.burn_rate(long, now), self.burn_rate(short, now)) >= rate
            for name, (long, short, rate) in ALERTS.items()
        }
