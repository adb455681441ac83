"""Metrics of text: how surprising it is to a model, how like its references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.metrics.metric import Metric, ratio


class Perplexity(Metric):
    """exp of the mean negative log-likelihood of the target words; logits [..., words], targets [...]."""

    higher_is_better = False

    def __init__(self, ignore_index: int | None = None) -> None:
        self.ignore_index = ignore_index
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"total": 0.0, "count": 0}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        p, t = np.asarray(preds, np.float64), np.asarray(target)
        if p.ndim < 2 or p.shape[:-1] != t.shape:
            raise ShapeError(
                "Perplexity: takes logits [..., words] and targets [...]",
                got=f"{list(p.shape)}, {list(t.shape)}",
                hint="preds.movedim(1, -1): words are the last axis"
                if p.ndim == t.ndim + 1 and p.shape[:1] + p.shape[2:] == t.shape else "",
            )  # fmt: skip
        counted = np.ones(t.shape, bool) if self.ignore_index is None else t != self.ignore_index
        scores, words = p[counted], t[counted]
        if words.dtype.kind not in "iu" or np.any((words < 0) | (words >= p.shape[-1])):
            raise AttributeValueError(f"Perplexity: target must be words from 0 to {p.shape[-1] - 1}")
        high = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        norm = np.log(np.exp(scores - high).sum(axis=-1)) + high[:, 0]
        found = norm - np.take_along_axis(scores, words[:, None], axis=-1)[:, 0]
        return {"total": float(found.sum()), "count": int(counted.sum())}

    def value(self, state: dict[str, Any]) -> Any:
        return float(np.exp(ratio(state["total"], state["count"])))


def _texts(name: str, texts: Any) -> list[str]:
    found = [texts] if isinstance(texts, str) else list(texts)
    if not all(isinstance(t, str) for t in found):
        raise AttributeValueError(
            f"{name}: takes strings", got=", ".join(type(t).__name__ for t in found)[:80]
        )
    return found


def _paired(name: str, preds: list[Any], target: list[Any]) -> None:
    if len(preds) != len(target):
        raise ShapeError(f"{name}: as many predictions as targets", got=f"{len(preds)}, {len(target)}")


def _grams(words: Sequence[str], most: int) -> Counter[tuple[str, ...]]:
    """Return how often each run of 1 to `most` words occurs."""
    return Counter(tuple(words[k : k + n]) for n in range(1, most + 1) for k in range(len(words) - n + 1))


class BLEUScore(Metric):
    """The geometric mean of the shares of runs of 1 to `n_gram` words that a reference has, less for brevity.

    `preds` are texts, `target` a list of references for each. `smooth` adds 1 to counts of runs of two words
    and more. See: Papineni et al., 2002.
    """

    higher_is_better = True

    def __init__(self, n_gram: int = 4, smooth: bool = False, weights: Sequence[float] | None = None) -> None:
        if n_gram < 1 or (weights is not None and len(weights) != n_gram):
            raise AttributeValueError(
                "BLEUScore: n_gram counts words, with a weight for each length", got=f"{n_gram}, {weights}"
            )
        self.n_gram, self.smooth = n_gram, smooth
        self.weights = list(weights) if weights is not None else [1 / n_gram] * n_gram
        super().__init__()

    def start(self) -> dict[str, Any]:
        return {"found": np.zeros(self.n_gram), "tried": np.zeros(self.n_gram), "length": 0, "wanted": 0}

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        said = [t.split() for t in _texts("BLEUScore", preds)]
        wanted = [[t.split() for t in _texts("BLEUScore", refs)] for refs in target]
        _paired("BLEUScore", said, wanted)
        state = self.start()
        for words, references in zip(said, wanted, strict=True):
            if not references:
                raise AttributeValueError("BLEUScore: needs a reference for each prediction", got="none")
            state["length"] += len(words)
            state["wanted"] += min((abs(len(r) - len(words)), len(r)) for r in references)[1]
            most: Counter[tuple[str, ...]] = Counter()
            for r in references:
                most |= _grams(r, self.n_gram)
            grams = _grams(words, self.n_gram)
            for run, count in grams.items():
                state["tried"][len(run) - 1] += count
            for run, count in (grams & most).items():
                state["found"][len(run) - 1] += count
        return state

    def value(self, state: dict[str, Any]) -> Any:
        found, tried = state["found"].copy(), state["tried"].copy()
        if not found.all():
            return 0.0
        if self.smooth:
            found[1:], tried[1:] = found[1:] + 1, tried[1:] + 1
        mean = float(np.exp(np.asarray(self.weights) @ np.log(found / tried)))
        brief = state["length"] <= state["wanted"]
        return mean * float(np.exp(1 - state["wanted"] / state["length"])) if brief else mean


def _edits(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many insertions, deletions and replacements lead from one to the other."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


class WordErrorRate(Metric):
    """How many words must be changed, over those of the targets; infinite where these have none."""

    higher_is_better = False

    def start(self) -> dict[str, Any]:
        return {"edits": 0, "count": 0}

    def parts(self, text: str) -> Sequence[str]:
        """Return what a text consists of."""
        return text.split()

    def batch(self, preds: Any, target: Any) -> dict[str, Any]:
        said, wanted = (_texts(type(self).__name__, t) for t in (preds, target))
        _paired(type(self).__name__, said, wanted)
        edits = sum(_edits(self.parts(p), self.parts(t)) for p, t in zip(said, wanted, strict=True))
        return {"edits": edits, "count": sum(len(self.parts(t)) for t in wanted)}

    def value(self, state: dict[str, Any]) -> Any:
        return float(ratio(state["edits"], state["count"]))


class CharErrorRate(WordErrorRate):
    """How many characters must be changed, over those of the targets."""

    def parts(self, text: str) -> Sequence[str]:
        return text
