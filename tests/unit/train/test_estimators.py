"""Classifier and Regressor are estimators as scikit-learn's own checks ask for."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

import stratal.train
from stratal import nn, optim
from stratal.base.errors import MissingExtraError

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
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
