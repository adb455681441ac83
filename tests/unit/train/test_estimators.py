"""Classifier and Regressor are estimators as scikit-learn's own checks ask for."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

import stratal.train
from stratal import nn, optim
from stratal.base.errors import MissingExtraError, StratalError

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.estimator_checks import check_estimator

from stratal.train import Classifier, Regressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * [1, 10, 100, 1]
Y = np.where(X[:, 0] + X[:, 1] / 10 > 0, "up", "down")
SMALL: dict[str, Any] = {"hidden": (16,), "lr": 0.02, "random_state": 0}


@pytest.mark.row("B7")
def test_a_classifier_works_in_a_pipeline_and_a_grid_search_and_is_pickled() -> None:
    model = make_pipeline(StandardScaler(), Classifier(**SMALL, epochs=10))
    search = GridSearchCV(model, {"classifier__epochs": [1, 15]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"classifier__epochs": 15}
    assert search.score(X, Y) > 0.9
    found = pickle.loads(pickle.dumps(search))  # noqa: S301  # our own bytes
    assert np.array_equal(found.predict_proba(X), search.predict_proba(X))
    assert set(search.predict(X)) == {"up", "down"}
    np.testing.assert_allclose(search.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.row("B7")
def test_a_regressor_predicts_one_target_or_several_in_their_units() -> None:
    x = X / [1, 10, 100, 1]
    y = 1000 + 50 * x[:, 0] * np.abs(x[:, 1])
    model = Regressor(**SMALL, epochs=60).fit(x, y)
    assert model.score(x, y) > 0.9 and model.predict(x).shape == (120,)
    both = Regressor(**SMALL, epochs=2).fit(x, np.stack([y, -y], 1))
    assert both.predict(x[:7]).shape == (7, 2)


def test_a_row_is_predicted_alike_whatever_stands_beside_it_and_a_seed_decides_all() -> None:
    stratal.manual_seed(5)
    before = np.asarray(stratal.get_rng_state())
    model = Classifier(**SMALL, epochs=2).fit(X, Y)
    again = clone(model).fit(X, Y)
    assert np.array_equal(np.asarray(stratal.get_rng_state()), before)
    whole = model.predict_proba(X)
    assert np.array_equal(whole, again.predict_proba(X))
    assert np.array_equal(whole, np.concatenate([model.predict_proba(X[k : k + 1]) for k in range(120)]))


def test_the_net_the_optimizer_and_the_trainers_options_are_ones_own() -> None:
    def net(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))

    model = Classifier(
        net, epochs=8, lr=0.1, optimizer=optim.SGD, options={"clip_norm": 5.0}, random_state=0
    ).fit(X, Y)
    assert isinstance(model.net_[0], nn.BatchNorm1d) and len(model.history_) == 8
    assert model.score(X, Y) > 0.85


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_whole_weights_repeat_rows_and_leave_those_of_weight_zero_out_in_any_order(kind: type) -> None:
    weights = RNG.integers(0, 3, 120)
    targets = Y if kind is Classifier else X[:, 0] * 100
    repeated = kind(**SMALL, epochs=2).fit(np.repeat(X, weights, 0), np.repeat(targets, weights, 0))
    order = RNG.permutation(120)
    weighed = kind(**SMALL, epochs=2).fit(X[order], targets[order], sample_weight=weights[order])
    assert np.array_equal(repeated.predict(X), weighed.predict(X))
    assert repeated.history_[-1]["loss"] == weighed.history_[-1]["loss"]


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_weights_that_are_no_counts_multiply_losses_and_their_scale_is_of_no_matter(kind: type) -> None:
    x = X / [1, 10, 100, 1]
    first = x[:, 0] > 0
    targets = np.where(first, "a", "b") if kind is Classifier else np.where(first, x[:, 1], -x[:, 1])
    weights = np.where(first, 1.0, 1e-6)
    model = kind(hidden=(16,), epochs=40, lr=0.02, random_state=0)
    found = model.fit(x, targets, sample_weight=weights).predict(x)
    if kind is Classifier:
        assert (found == "a").mean() > 0.9
    else:
        assert np.abs(found - targets)[first].mean() < 0.3 < np.abs(found - targets)[~first].mean()
    other = clone(model).fit(x, targets, sample_weight=weights * 4).predict(x)
    assert np.array_equal(found, other)


def test_weights_of_classes_are_those_of_scikit_learn() -> None:
    x = X / [1, 10, 100, 1]
    rare = np.where(np.arange(120) % 10 == 0, "rare", "often")
    plain = Classifier(**SMALL, epochs=5).fit(x, rare)
    balanced = Classifier(**SMALL, epochs=5, class_weight="balanced").fit(x, rare)
    share = compute_class_weight("balanced", classes=plain.classes_, y=rare)
    by_name = clone(plain).set_params(class_weight=dict(zip(plain.classes_, share, strict=True))).fit(x, rare)
    by_row = clone(plain).fit(x, rare, sample_weight=np.where(rare == "rare", share[1], share[0]))
    assert np.array_equal(balanced.predict_proba(x), by_name.predict_proba(x))
    assert np.array_equal(balanced.predict_proba(x), by_row.predict_proba(x))
    assert balanced.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean() + 0.1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(120), "not all weights"), (-np.ones(120), "negative"),
        (np.ones(7), "sample_weight"), (np.full(120, np.nan), "NaN"),
    ],
)  # fmt: skip
def test_weights_that_make_no_sense_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){message}"):
        Classifier(**SMALL, epochs=1).fit(X, Y, sample_weight=weights)
    if not np.any(weights):
        with pytest.raises(ValueError, match=message):
            Classifier(**SMALL, epochs=1, class_weight={"up": 0, "down": 0}).fit(X, Y)


def test_one_weight_for_all_rows_changes_nothing() -> None:
    plain, weighed = (Classifier(**SMALL, epochs=2) for _ in range(2))
    plain.fit(X, Y, sample_weight=np.ones(120, int))
    weighed.fit(X, Y, sample_weight=3)
    np.testing.assert_allclose(plain.predict_proba(X), weighed.predict_proba(X), rtol=1e-4, atol=1e-6)


def test_metrics_among_the_options_see_targets_and_no_weights() -> None:
    options = {"metrics": {"sum": lambda out, y: out.sum() + y.sum()}}
    model = Classifier(**SMALL, epochs=1, options=options).fit(X, Y)
    assert "sum" in model.history_[0]
    with pytest.raises(StratalError, match="metrics take no weights"):
        model.set_params(class_weight="balanced").fit(X, Y)


@pytest.mark.slow
@pytest.mark.row("B7")
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_the_checks_of_scikit_learn_pass(kind: type) -> None:
    found = check_estimator(kind(hidden=(32,), epochs=60, lr=0.01), on_fail=None, on_skip=None)
    assert {r["check_name"]: r["exception"] for r in found if r["status"] == "failed"} == {}
    assert sum(r["status"] == "passed" for r in found) > 40


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "stratal.train.estimators")
    monkeypatch.delattr(stratal.train, "estimators")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingExtraError, match="need scikit-learn") as caught:
        _ = stratal.train.Classifier
    assert caught.value.hint == "pip install 'stratal[sklearn]'"
    assert not hasattr(stratal.train, "Clusterer")


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_a_net_or_a_name_in_place_of_what_makes_one_says_what_is_taken(kind: Any) -> None:
    targets = Y if kind is Classifier else X[:, 0]
    for options, what in (
        ({"optimizer": "adam"}, "optimizer=optim.Adam"), ({"net": nn.Linear(4, 2)}, "net=lambda inputs"),
        ({"net": "mlp"}, "net=lambda inputs"),
    ):  # fmt: skip
        with pytest.raises(StratalError, match=f"{kind.__name__}: .* is a function of") as caught:
            kind(epochs=1, **options).fit(X, targets)
        assert what in caught.value.hint
    assert kind(epochs=1, net=nn.Linear, optimizer=optim.SGD).fit(X, targets).net_ is not None
