"""Input drift: how far requests are from the training sample of the artefact, feature by feature.

PSI    population stability index, sum (q - p) ln(q / p), over ten bins that hold a tenth of the training
       sample each, and bins of their own for common values, for numbers below and above all of the sample,
       and for NaN and infinity. Half a row is added to each bin, so that none is empty.
       Common practice calls 0.1 a shift to look at and 0.25 one to act on.
KS     Kolmogorov-Smirnov: the largest distance between the two cumulative distributions, with its asymptotic
       p-value (Stephens' approximation for finite samples).

A feature has drifted where its PSI is above a threshold (`PSI`) and the p-value below `SIGNIFICANCE` shared
out over all features (Bonferroni): PSI tells a large shift from a small one, KS a shift from chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.formats.signature import Signature
from stratal.formats.training_sample import feature_names, features

Array = np.ndarray[Any, Any]
BINS: Final = 10
PSI: Final = 0.25
SIGNIFICANCE: Final = 0.001
WINDOW_ROWS: Final = 1000
LEAST_WINDOW: Final = 200  # rows below which nothing is said
WINDOW_SECONDS: Final = 300.0


class Drift(NamedTuple):
    """What one feature's distance from the training sample is."""

    feature: str
    psi: float
    ks: float
    p_value: float

    def drifted(self, psi: float, features: int) -> bool:
        """Return whether this is a shift, as one of so many features."""
        return bool(self.psi > psi and self.p_value < SIGNIFICANCE / features)


def psi(training: Array, seen: Array) -> float:
    """Return the population stability index of numbers against a training sample; both 1-d."""
    cuts = _cuts(training[np.isfinite(training)])
    p, q = (_shares(values, cuts) for values in (training, seen))
    return float(np.sum((q - p) * np.log(q / p)))


def _cuts(training: Array) -> Array:
    """Return where bins begin: the least number, the deciles, and just above the largest number.

    A value that is common (of counts, classes, pixels) has a bin of its own: what lies beside it is another.
    """
    if not len(training):
        return np.array([0.0])
    deciles = np.quantile(training, np.linspace(0, 1, BINS + 1)[:-1], method="lower")
    values, counts = np.unique(training, return_counts=True)
    common = values[counts * 2 * BINS > len(training)]
    return np.unique(np.concatenate([deciles, common, np.nextafter([*common, values[-1]], np.inf)]))


def _shares(values: Array, cuts: Array) -> Array:
    finite = values[np.isfinite(values)]
    counts = np.bincount(np.searchsorted(cuts, finite, "right"), minlength=len(cuts) + 1)
    whole = np.append(counts, len(values) - len(finite)) + 0.5
    return np.asarray(whole / whole.sum())


def kolmogorov_smirnov(training: Array, seen: Array) -> tuple[float, float]:
    """Return the two-sample statistic and its asymptotic p-value; NaN counts as larger than any number."""
    a, b = (np.sort(np.nan_to_num(x, nan=np.inf, posinf=np.inf, neginf=-np.inf)) for x in (training, seen))
    pooled = np.concatenate([a, b])
    below = [np.searchsorted(x, pooled, "right") / len(x) for x in (a, b)]
    distance = float(np.abs(below[0] - below[1]).max())
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return distance, _kolmogorov((root + 0.12 + 0.11 / root) * distance)


def _kolmogorov(x: float) -> float:
    """Return P(K > x) of Kolmogorov's distribution."""
    if x < 0.2:  # the series below needs many terms there; the value is 1 to ten digits
        return 1.0
    series = (math.exp(-2 * (k * x) ** 2) * (1 if k % 2 else -1) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(series)))


def compare(training: Mapping[str, Array], seen: Mapping[str, Array], signature: Signature) -> list[Drift]:
    """Return the drift of every feature of every input."""
    found = []
    for spec in signature.inputs:
        columns = zip(feature_names(spec), training[spec.name].T, seen[spec.name].T, strict=True)
        found += [Drift(name, psi(a, b), *kolmogorov_smirnov(a, b)) for name, a, b in columns]
    return found


class Window:
    """Rows drawn evenly from the requests of some minutes (reservoir sampling, Vitter's algorithm R).

    Every `WINDOW_SECONDS` a new window begins; until it has `LEAST_WINDOW` rows the one before stands.
    """

    def __init__(self, signature: Signature, seed: int = 0) -> None:
        self.signature = signature
        self.rows: dict[str, Array] = {}  # features by input, of what is drawn so far
        self.complete: dict[str, Array] = {}  # of the window before
        self.seen = 0
        self.began = 0.0
        self._random = random.Random(seed)

    def observe(self, inputs: Sequence[bytes | memoryview], rows: int, now: float) -> None:
        """Take note of a request: the bytes of each input, which have so many rows."""
        if not self.seen or (now - self.began >= WINDOW_SECONDS and self.seen >= LEAST_WINDOW):
            if self.seen:
                self.complete = self.drawn()
            self.seen, self.began = 0, now
        chosen = self._chosen(rows)
        self.seen += rows
        if not chosen:
            return
        for spec, data in zip(self.signature.inputs, inputs, strict=True):
            array = np.frombuffer(data, spec.dtype.np).reshape(rows, *spec.shape)
            found = features(array[list(chosen.values())], spec)
            if spec.name not in self.rows:
                self.rows[spec.name] = np.zeros((WINDOW_ROWS, found.shape[1]))
            self.rows[spec.name][list(chosen)] = found

    def _chosen(self, rows: int) -> dict[int, int]:
        """Return {position in the window: row of the request} of the rows that are drawn."""
        chosen = {}
        for row in range(rows):
            number = self.seen + row
            at = number if number < WINDOW_ROWS else self._random.randrange(number + 1)
            if at < WINDOW_ROWS:
                chosen[at] = row
        return chosen

    def drawn(self) -> dict[str, Array]:
        """Return copies of the rows drawn in the window that goes on."""
        count = min(self.seen, WINDOW_ROWS)
        return {name: rows[:count].copy() for name, rows in self.rows.items()}

    def latest(self) -> dict[str, Array]:
        """Return rows to compare: of this window, or of the one before; nothing where there are few."""
        return self.drawn() if self.seen >= LEAST_WINDOW else self.complete
