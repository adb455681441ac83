"""Classifier and Regressor: nets as scikit-learn's estimators, for pipelines and searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stratal.base.errors import MissingExtraError
from stratal.data.datasets import TensorDataset
from stratal.data.loader import DataLoader
from stratal.nn.activation import ReLU
from stratal.nn.containers import Sequential
from stratal.nn.functional import cross_entropy, mse_loss
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.optim import Adam, Optimizer
from stratal.tensor.functions.random import get_rng_state, manual_seed, set_rng_state
from stratal.tensor.tensor import Tensor
from stratal.train.trainer import Trainer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError(
        "train: Classifier and Regressor need scikit-learn 1.6 or newer", got=str(error),
        hint="pip install 'stratal[sklearn]'",
    ) from error  # fmt: skip

Array = np.ndarray[Any, Any]
_ROWS: Final = 256  # that predictions are made of at once, the last ones padded: one program for any number


class _NetEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both have in common: parameters, and a net fitted to float32 rows."""

    def __init__(
        self, net: Callable[[int, int], Module] | None = None, *, hidden: Sequence[int] = (100,),
        epochs: int = 100, batch_size: int = 32, lr: float = 1e-3,
        optimizer: Callable[..., Optimizer] = Adam, options: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.net = net
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.optimizer = optimizer
        self.options = options
        self.random_state = random_state

    def _fit_net(self, x: Array, y: Array, outputs: int, loss: Callable[[Any, Any], Tensor]) -> None:
        """Fit a new net; the default generator's state is afterwards what it was."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        before = get_rng_state()
        try:
            manual_seed(seed)
            self.net_ = (self.net or self._perceptron)(x.shape[1], outputs)
            optimizer = self.optimizer(self.net_.parameters(), lr=self.lr)
            rows = DataLoader(TensorDataset(x, y), self.batch_size, shuffle=True, seed=seed)
            trainer = Trainer(self.net_, loss=loss, optimizer=optimizer, **(self.options or {}))
            self.history_ = trainer.fit(rows, epochs=self.epochs, progress=False).rows
        finally:
            set_rng_state(before)
        self._predictor: Trainer | None = Trainer(self.net_)

    def _perceptron(self, inputs: int, outputs: int) -> Module:
        sizes = [inputs, *self.hidden]
        layers: list[Module] = []
        for before, after in pairwise(sizes):
            layers += [Linear(before, after), ReLU()]
        return Sequential(*layers, Linear(sizes[-1], outputs))

    def _outputs(self, x: Any) -> Array:
        """Return the net's outputs for checked rows."""
        check_is_fitted(self)
        rows = validate_data(self, x, dtype=np.float32, reset=False)
        if self._predictor is None:  # of a copy
            self._predictor = Trainer(self.net_)
        padded = np.zeros((-(-len(rows) // _ROWS) * _ROWS, rows.shape[1]), np.float32)
        padded[: len(rows)] = rows
        return np.asarray(self._predictor.predict(padded, batch_size=_ROWS))[: len(rows)]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_predictor": None} if "_predictor" in state else state  # which is compiled


class Classifier(ClassifierMixin, _NetEstimator):  # type: ignore[misc]
    """A net as a scikit-learn classifier: `fit`, `predict`, `predict_proba`, `score`.

    `net(inputs, outputs)` makes the net, which returns a score for each class; by default a perceptron with
    ReLU and the layers of `hidden`. `optimizer(parameters, lr=)` makes the optimizer, and `options` are those
    of `Trainer`. Inputs become float32; scale them, as with `StandardScaler` in a pipeline.
    After `fit` there are `net_`, `classes_`, `n_features_in_` and `history_`, the rows of a History.
    """

    def fit(self, X: Any, y: Any) -> Classifier:
        """Fit to rows and their classes."""
        x, given = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(given)
        self.classes_, classes = np.unique(given, return_inverse=True)
        self._fit_net(x, classes.astype(np.int64), len(self.classes_), cross_entropy)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, float64 [rows, classes]."""
        scores = self._outputs(X).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """Return the likeliest class of each row."""
        best = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


class Regressor(RegressorMixin, _NetEstimator):  # type: ignore[misc]
    """A net as a scikit-learn regressor: `fit`, `predict`, `score`.

    Parameters are those of Classifier; the net returns a number for each target. Targets are standardised for
    training, and predictions are in their units again.
    After `fit` there are `net_`, `n_features_in_` and `history_`.
    """

    def fit(self, X: Any, y: Any) -> Regressor:
        """Fit to rows and their targets, [rows] or [rows, targets]."""
        x, given = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        targets = np.asarray(given, np.float64)
        self._one = targets.ndim == 1
        targets = targets.reshape(len(x), -1)
        self._mean, spread = targets.mean(axis=0), targets.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        scaled = ((targets - self._mean) / self._spread).astype(np.float32)
        self._fit_net(x, scaled, scaled.shape[1], mse_loss)
        return self

    def predict(self, X: Any) -> Array:
        """Return the targets of each row, float64."""
        found = self._outputs(X) * self._spread + self._mean
        return np.asarray(found[:, 0] if self._one else found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
