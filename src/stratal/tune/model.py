"""Which candidate to measure next: at random, or what a learned cost model expects to be fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np

from stratal.base.errors import MissingExtraError
from stratal.schedule.result import Candidate

ModelName = Literal["lightgbm", "none"]
MODELS: Final[tuple[ModelName, ...]] = ("lightgbm", "none")
PARAMETERS: Final = (
    "rows", "vectors", "columns", "depth", "run_rows", "run_columns", "copy_a", "copy_b", "m", "tiles",
)  # fmt: skip
LEARN_FROM: Final = 8  # measurements before the model is asked
LEARN_EVERY: Final = 4
EXPLORE: Final = 0.15  # of the draws stay random, or the model sees only what it believes in
Rows = np.ndarray[Any, Any]


class Strategy(Protocol):
    """Proposes candidates and learns from what was measured."""

    def propose(self, rows: Rows) -> int:
        """Return which row of features to measure next."""

    def learn(self, row: Rows, ratio: float) -> None:
        """Take note of a measured time, relative to the default's."""


class RandomStrategy:
    """Draws candidates with equal chances."""

    def __init__(self, seed: int) -> None:
        self._rng: Final = np.random.default_rng(seed)

    def propose(self, rows: Rows) -> int:
        return int(self._rng.integers(len(rows)))

    def learn(self, row: Rows, ratio: float) -> None:
        """A random draw learns nothing."""


class LearnedStrategy:
    """Draws what gradient-boosted trees, fitted to all measurements so far, expect to be fastest.

    Raises: MissingExtraError without lightgbm.
    """

    def __init__(self, seed: int) -> None:
        try:
            import lightgbm
        except ImportError:
            hint = "pip install 'stratal[tune]', or tune at random: --model none"
            raise MissingExtraError("tuning: the cost model needs lightgbm", hint=hint) from None
        self._lightgbm: Final = lightgbm
        self._rng: Final = np.random.default_rng(seed)
        self._seed: Final = seed
        self._rows: Final[list[Rows]] = []
        self._ratios: Final[list[float]] = []
        self._model: Any = None

    def propose(self, rows: Rows) -> int:
        if self._model is None or self._rng.random() < EXPLORE:
            return int(self._rng.integers(len(rows)))
        return int(np.argmin(self.predict(rows)))

    def learn(self, row: Rows, ratio: float) -> None:
        self._rows.append(row)
        self._ratios.append(math.log(ratio))
        count = len(self._rows)
        if count >= LEARN_FROM and (count % LEARN_EVERY == 0 or self._model is None):
            self.fit()

    def fit(self) -> None:
        """Fit the trees to everything measured so far."""
        options = {
            "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 2, "learning_rate": 0.15,
            "min_data_in_bin": 1, "verbosity": -1, "num_threads": 1,
            "seed": self._seed, "deterministic": True,
        }  # fmt: skip
        data = self._lightgbm.Dataset(np.stack(self._rows), np.array(self._ratios), params={"verbosity": -1})
        self._model = self._lightgbm.train(options, data, num_boost_round=60)

    def predict(self, rows: Rows) -> Rows:
        """Return the expected logarithm of the time relative to the default's, for rows of features."""
        return np.asarray(self._model.predict(rows))


def strategy(name: ModelName, seed: int) -> Strategy:
    """Return a strategy by name. Raises: MissingExtraError."""
    return LearnedStrategy(seed) if name == "lightgbm" else RandomStrategy(seed)


def features(candidates: Sequence[Candidate], default: Candidate, shape: Sequence[int]) -> Rows:
    """Return one row for each candidate: its parameters, its estimate beside the default's, the sizes.

    Shape: float64[candidates, features]. What an algorithm has no parameter for is -1.
    """
    elements = math.prod(shape) or 1
    last = ([1, 1, *shape])[-2:]
    sizes = [_log(elements), _log(default.operations / elements), *map(_log, last)]
    return np.array([_row(c, default) + sizes for c in candidates], np.float64)


def _row(candidate: Candidate, default: Candidate) -> list[float]:
    given = dict(candidate.parameters)
    row = [_log(given[name]) if name in given else -1.0 for name in PARAMETERS]
    accumulators = given.get("rows", 1) * given.get("vectors", given.get("columns", 1))
    expected = candidate.seconds / default.seconds if default.seconds else 1.0
    saved = candidate.operations / default.operations if default.operations else 1.0
    return [*row, float(accumulators), _log(expected), _log(saved)]


def _log(value: float) -> float:
    return math.log2(1 + value)
