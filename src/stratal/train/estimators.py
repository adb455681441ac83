"""Classifier and Regressor: nets as scikit-learn's estimators, for pipelines and searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, MissingExtraError
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
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError(
        "train: Classifier and Regressor need scikit-learn 1.6 or newer", got=str(error),
        hint="pip install 'stratal[sklearn]'",
    ) from error  # fmt: skip

Array = np.ndarray[Any, Any]
Losses = Callable[[Any, Any], Tensor]  # of outputs and targets, one for each row
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

    def _fit_net(self, x: Array, y: Array, weights: Array | None, outputs: int, losses: Losses) -> None:
        """Fit a new net to rows in an order of their own; the default generator's state is what it was."""
        self._check_makers()
        order = _order(x, y, weights)
        targets: Any = y[order]
        if weights is not None:  # of mean 1
            if "metrics" in (self.options or {}):
                raise AttributeValueError("fit: metrics take no weights", got="metrics with weights")
            targets = targets, (weights[order] / weights.mean()).astype(np.float32)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        before = get_rng_state()
        try:
            manual_seed(seed)
            self.net_ = (self.net or self._perceptron)(x.shape[1], outputs)
            optimizer = self.optimizer(self.net_.parameters(), lr=self.lr)
            trainer = Trainer(self.net_, loss=_mean_of(losses), optimizer=optimizer, **(self.options or {}))
            history = trainer.fit(
                (x[order], targets), epochs=self.epochs, batch_size=self.batch_size, progress=False
            )
            self.history_ = history.rows
        finally:
            set_rng_state(before)
        self._predictor: Trainer | None = Trainer(self.net_)

    def _check_makers(self) -> None:
        """Raises: DTypeError for a net or an optimizer in place of a function that makes one."""
        who = type(self).__name__
        if self.net is not None and (isinstance(self.net, Module) or not callable(self.net)):
            raise DTypeError(
                f"{who}: net is a function of the numbers of inputs and outputs that makes a module",
                got=f"a {type(self.net).__name__}",
                hint="net=lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, outputs))",
            )  # fmt: skip
        if not callable(self.optimizer):
            raise DTypeError(
                f"{who}: optimizer is a function of parameters and lr that makes one",
                got=f"{self.optimizer!r:.60}", hint="optimizer=optim.Adam",
            )  # fmt: skip

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


def _rows(sample_weight: Any, x: Array) -> tuple[Any, Array | None]:
    """Return which rows to fit to, and their weights: None where each counts alike.

    Whole numbers are how often a row is there. Raises: AttributeValueError; scikit-learn's ValueError.
    """
    if sample_weight is None:
        return slice(None), None
    weights = np.asarray(sample_weight)
    if not weights.ndim:  # one for all rows
        weights = np.full(len(x), weights, float)
    _refuse_zeros(weights)
    checked = _check_sample_weight(weights, x)
    if weights.dtype.kind in "iub":
        return np.repeat(np.arange(len(x)), weights), None
    (rows,) = np.nonzero(checked)
    return rows, checked[rows]


def _refuse_zeros(weights: Array) -> None:
    if (weights < 0).any() or not weights.any():
        raise AttributeValueError(
            "fit: no weight is negative, and not all weights are zero",
            got="negative weights" if (weights < 0).any() else "zeros",
        )


def _order(*columns: Array | None) -> Array:
    """Return an order of rows that follows from what they are, not from where they stand."""
    parts = [np.ascontiguousarray(c).reshape(len(c), -1) for c in columns if c is not None]
    rows = np.concatenate([part.view(np.uint8) for part in parts], axis=1)
    return np.argsort(rows.view(np.dtype((np.void, rows.shape[1]))).ravel(), kind="stable")


def _row_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    each: Tensor = mse_loss(outputs, targets, reduction="none").mean(axis=1)
    return each


def _mean_of(losses: Losses) -> Losses:
    """Return the loss for targets, or for targets with weights."""

    def loss(outputs: Tensor, given: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        each = losses(outputs, given[0]) * given[1] if isinstance(given, tuple) else losses(outputs, given)
        mean: Tensor = each.mean()
        return mean

    return loss


class Classifier(ClassifierMixin, _NetEstimator):  # type: ignore[misc]
    """A net as a scikit-learn classifier: `fit`, `predict`, `predict_proba`, `score`.

    `net(inputs, outputs)` makes the net, which returns a score for each class; by default a perceptron with
    ReLU and the layers of `hidden`. `optimizer(parameters, lr=)` makes the optimizer, and `options` are those
    of `Trainer`. Inputs become float32; scale them, as with `StandardScaler` in a pipeline.
    `class_weight` is None, "balanced", or a dict of weights, as in scikit-learn.
    After `fit` there are `net_`, `classes_`, `n_features_in_` and `history_`, the rows of a History.
    """

    def __init__(
        self, net: Callable[[int, int], Module] | None = None, *, hidden: Sequence[int] = (100,),
        epochs: int = 100, batch_size: int = 32, lr: float = 1e-3,
        optimizer: Callable[..., Optimizer] = Adam, options: Mapping[str, Any] | None = None,
        random_state: Any = None, class_weight: Any = None,
    ) -> None:  # fmt: skip  # scikit-learn reads the names of parameters here
        super().__init__(
            net, hidden=hidden, epochs=epochs, batch_size=batch_size, lr=lr, optimizer=optimizer,
            options=options, random_state=random_state,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Fit to rows and their classes.

        Weights that are whole numbers count rows; others multiply losses.
        """
        x, given = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(given)
        rows, weights = _rows(sample_weight, x)
        x, given = x[rows], given[rows]
        self.classes_, classes = np.unique(given, return_inverse=True)
        if self.class_weight is not None:
            weights = np.ones(len(x)) if weights is None else weights
            weights = weights * self._class_weights(given, classes, weights)[classes]
            _refuse_zeros(weights)
        losses = partial(cross_entropy, reduction="none")
        self._fit_net(x, classes.astype(np.int64), weights, len(self.classes_), losses)
        return self

    def _class_weights(self, given: Array, classes: Array, weights: Array) -> Array:
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            sums = np.bincount(classes, weights)
            return np.asarray(sums.sum() / (len(sums) * sums))
        return np.asarray(compute_class_weight(self.class_weight, classes=self.classes_, y=given))

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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Fit to rows and their targets, [rows] or [rows, targets].

        Weights that are whole numbers count rows; others multiply losses.
        """
        x, given = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        rows, weights = _rows(sample_weight, x)
        x, targets = x[rows], np.asarray(given, np.float64)[rows]
        self._one = targets.ndim == 1
        targets = targets.reshape(len(x), -1)
        targets = targets[order := _order(x, targets, weights)]  # whose sums have the bits of any order
        x, weights = x[order], None if weights is None else weights[order]
        self._mean = np.average(targets, axis=0, weights=weights)
        spread = np.sqrt(np.average((targets - self._mean) ** 2, axis=0, weights=weights))
        self._spread = np.where(spread > 0, spread, 1.0)
        scaled = ((targets - self._mean) / self._spread).astype(np.float32)
        self._fit_net(x, scaled, weights, scaled.shape[1], _row_errors)
        return self

    def predict(self, X: Any) -> Array:
        """Return the targets of each row, float64."""
        found = self._outputs(X) * self._spread + self._mean
        return np.asarray(found[:, 0] if self._one else found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
