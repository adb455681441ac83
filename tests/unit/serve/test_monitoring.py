"""Monitoring: what drifted inputs, wrong answers and late answers look like, and that others do not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import (
    FEATURES,
    Server,
    asked,
    by_turns,
    eventually,
    frozen,
    needs_server,
    network,
    rows,
    serving,
)

import stratal as st
from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.container import read_container, write_container
from stratal.formats.signature import Signature, TensorSpec
from stratal.formats.training_sample import MOST_ROWS, feature_names, features
from stratal.serve.drift import WINDOW_ROWS, WINDOW_SECONDS, Window, compare, kolmogorov_smirnov, psi
from stratal.serve.feedback import Accuracy, Answers, Said, kind_of, predictions
from stratal.serve.model_config import ModelConfig, read_config
from stratal.serve.protocol import RequestError
from stratal.serve.slo import ErrorBudget


def signature(
    *shape: int, dtype: str = "float32", output: tuple[int, ...] = (4,), of: str = "float32"
) -> Signature:
    inputs = (TensorSpec("input", as_dtype(dtype), shape),)
    return Signature(inputs, (TensorSpec("output", as_dtype(of), output),), True)


# -- drift ---------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_ks_and_its_p_value_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for shift, ties in [(0.0, False), (0.1, False), (0.3, True), (0.0, True)]:
        a, b = rng.standard_normal(1000), rng.standard_normal(400) + shift
        if ties:
            a, b = np.round(a), np.round(b)
        found, p_value = kolmogorov_smirnov(a, b)
        wanted = stats.ks_2samp(a, b, method="asymp")
        assert found == pytest.approx(wanted.statistic, abs=1e-12)
        assert p_value == pytest.approx(wanted.pvalue, rel=0.15, abs=0.02)


@pytest.mark.quick
def test_psi_is_its_formula_where_bins_are_filled_evenly() -> None:
    training = np.arange(1001.0)
    seen = np.concatenate([np.arange(500.0), np.arange(500.0)])  # the upper half never comes
    p, q = np.r_[0, np.full(9, 100), 101, 0, 0] + 0.5, np.r_[0, np.full(5, 200), np.zeros(5), 0, 0] + 0.5
    p, q = p / p.sum(), q / q.sum()
    assert psi(training, seen) == pytest.approx(np.sum((q - p) * np.log(q / p)), rel=1e-9)
    assert psi(training, training) == 0.0


SHIFTS = {
    "moved": lambda x, rng: x + 1,
    "scaled": lambda x, rng: 3 * x,
    "constant": lambda x, rng: 0 * x + 0.1,
    "missing": lambda x, rng: np.where(rng.random(x.shape) < 0.3, np.nan, x),
    "infinite": lambda x, rng: np.where(rng.random(x.shape) < 0.3, np.inf, x),
}


@pytest.mark.parametrize("change", SHIFTS)
def test_a_feature_that_changes_is_found_and_its_neighbours_are_not(change: str) -> None:
    rng = np.random.default_rng(1)
    shape = signature(8)
    for _ in range(10):
        training, seen = rng.standard_normal((1000, 8)), rng.standard_normal((400, 8))
        seen[:, 3] = SHIFTS[change](seen[:, 3], rng)
        found = compare({"input": training}, {"input": seen}, shape)
        assert [d.feature for d in found if d.drifted(0.25, 8)] == ["input[3]"], found


@pytest.mark.parametrize("kind", ["pixels", "counts", "dead"])
def test_values_that_are_common_have_bins_of_their_own(kind: str) -> None:
    rng = np.random.default_rng(2)
    sparse = np.where(rng.random(1000) < 0.95, 0.0, rng.integers(1, 17, 1000))
    training = {"pixels": sparse, "counts": rng.integers(0, 3, 1000).astype(float), "dead": np.zeros(1000)}[
        kind
    ]
    other = {
        "pixels": np.where(rng.random(400) < 0.3, 8.0, 0.0),
        "counts": np.full(400, 1.0),
        "dead": np.full(400, 2.0),
    }
    [drift] = compare({"input": training[:, None]}, {"input": other[kind][:, None]}, signature(1))
    assert drift.drifted(0.25, 64), drift
    [same] = compare(
        {"input": training[:, None]}, {"input": rng.permutation(training)[:400, None]}, signature(1)
    )
    assert not same.drifted(0.25, 1), same


def test_samples_of_the_training_data_raise_no_alarm() -> None:
    """20 x 64 features of each of four distributions, with the fewest rows that anything is said about."""
    rng = np.random.default_rng(3)
    draws = [
        rng.standard_normal,
        rng.standard_cauchy,
        rng.standard_exponential,
        lambda s: rng.poisson(1.0, s) * 1.0,
    ]
    for draw in draws:
        for _ in range(20):
            found = compare({"input": draw((250, 64))}, {"input": draw((200, 64))}, signature(64))
            assert not any(d.drifted(0.25, 64) for d in found)


def test_a_window_draws_rows_evenly_from_all_that_come() -> None:
    window, total = Window(signature(1)), 40_000
    rng, at = random.Random(4), 0
    while at < total:
        count = rng.randrange(1, 200)
        window.observe([np.arange(at, at + count, dtype=np.float32).tobytes()], count, 0.0)
        at += count
    drawn = np.sort(window.drawn()["input"][:, 0])
    assert len(drawn) == len(set(drawn)) == WINDOW_ROWS
    assert kolmogorov_smirnov(drawn, np.arange(at) * 1.0)[1] > 0.01
    window.observe([np.zeros(1, np.float32).tobytes()], 1, WINDOW_SECONDS)  # another begins
    assert len(window.latest()["input"]) == WINDOW_ROWS and window.seen == 1
    window.observe([np.full(300, 7, np.float32).tobytes()], 300, WINDOW_SECONDS)
    assert len(window.latest()["input"]) == 301


def test_rows_with_many_numbers_are_watched_by_three_of_them() -> None:
    wide, narrow = signature(3, 16, 16).inputs[0], signature(2, 3).inputs[0]
    assert feature_names(wide) == ("input.mean", "input.std", "input.largest")
    assert feature_names(narrow)[:4] == ("input[0,0]", "input[0,1]", "input[0,2]", "input[1,0]")
    x = np.random.default_rng(5).standard_normal((2, 3, 16, 16)).astype(np.float32)
    wanted = [[r.mean(dtype=float), r.std(dtype=float), abs(r).max()] for r in x]
    np.testing.assert_allclose(features(x, wide), wanted, rtol=1e-6, atol=1e-9)
    assert features(x[:, :, 0, 0], signature(3).inputs[0]).shape == (2, 3)


# -- the artefact --------------------------------------------------------------------------------------------


def test_a_training_sample_travels_in_the_artefact_and_names_no_other_model(tmp_path: Path) -> None:
    plain, watched = (
        st.freeze(network(), rows(4), batch_sizes=(1,), name="m", training=training)
        for training in (None, rows(1500))
    )
    for model, name in ((plain, "plain.stratal"), (watched, "watched.stratal")):
        model.save(tmp_path / name)
    loaded = st.load(tmp_path / "watched.stratal")
    assert loaded.origin.content == plain.origin.content
    assert loaded.training["input"].shape == (MOST_ROWS, FEATURES)
    drawn = {row.tobytes() for row in rows(1500).astype(np.float64)}
    assert {row.tobytes() for row in loaded.training["input"]} <= drawn
    assert st.load(tmp_path / "plain.stratal").training == {}


def test_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttributeValueError, match="at least 50 rows"):
        st.freeze(network(), rows(4), batch_sizes=(1,), training=rows(49))
    with pytest.raises(AttributeValueError, match="batch axis"):
        st.freeze(network(), rows(4), batch_sizes=None, training=rows(100))
    st.freeze(network(), rows(4), batch_sizes=(1,), training=rows(60)).save(tmp_path / "m.stratal")
    files = {name: [bytes(data)] for name, data in read_container(tmp_path / "m.stratal").items()}
    from stratal.formats.safetensors import encode

    fits = np.zeros((60, FEATURES))
    single = fits.astype(np.float32)
    for wrong in ({"input": fits[:, 1:]}, {"other": fits}, {}, {"input": single}, {"input": fits[:10]}):
        write_container(tmp_path / "m.stratal", files | {"training.safetensors": list(encode(wrong))})
        with pytest.raises(FormatError, match="training sample does not fit"):
            st.load(tmp_path / "m.stratal")


# -- feedback ------------------------------------------------------------------------------------------------


def said(values: Any, kind: str = "scores", caller: str = "") -> Said:
    return Said("m", "1", caller, kind, np.asarray(values))


@pytest.mark.quick
def test_predictions_are_classes_by_their_score_integers_or_numbers() -> None:
    scores = np.array([[0, 2, 1], [5, 1, 0]], np.float32)
    assert predictions(scores.tobytes(), signature(2, output=(3,))).tolist() == [1, 0]
    assert predictions(np.array([7, 9]).tobytes(), signature(2, output=(), of="int64")).tolist() == [7, 9]
    assert predictions(np.array([[0.5]], np.float32).tobytes(), signature(2, output=(1,))).tolist() == [0.5]
    assert kind_of(signature(2, output=(3, 4))) == kind_of(signature(2, output=(4,), of="int64")) == ""


def test_an_answer_takes_its_label_once_and_from_whoever_asked() -> None:
    answers = Answers()
    answers.note("m", "a", said([1, 2], caller="shop"))
    for identity, caller, label, status in [("b", "shop", [1, 2], 404), ("a", "other", [1, 2], 404),
                                            ("a", "shop", 1, 400), ("a", "shop", [1, 2.0], 400),
                                            ("a", "shop", [1, True], 400), ("a", "shop", [1, 1 << 70], 400),
                                           ]:  # fmt: skip
        with pytest.raises(RequestError) as error:
            answers.labelled("m", identity, caller, label)
        assert error.value.status == status
    assert answers.labelled("m", "a", "shop", [1, 3])[1].tolist() == [1.0, 0.0]
    with pytest.raises(RequestError):
        answers.labelled("m", "a", "shop", [1, 3])
    answers.note("m", "v", said([1.5], kind="value"))
    assert answers.labelled("m", "v", "", 2)[1].tolist() == [0.5]
    answers.note("m", "n", said([np.nan], kind="value"))
    with pytest.raises(RequestError, match="no finite number"):
        answers.labelled("m", "n", "", 2)


def test_answers_are_bounded_and_the_oldest_go_first() -> None:
    answers = Answers()
    for k in range(120):
        answers.note("m", f"{k}", said(np.zeros(4096)))
    with pytest.raises(RequestError):
        answers.labelled("m", "0", "", [0] * 4096)
    assert len(answers.labelled("m", "119", "", [0] * 4096)[1]) == 4096


@pytest.mark.quick
def test_accuracy_alerts_are_for_what_is_surely_worse() -> None:
    bad, few, fine, error = (Accuracy.of(kind) for kind in ("scores", "scores", "scores", "value"))
    bad.add([1.0, 0.0] * 100)
    few.add([0.0] * 20)
    fine.add([1.0] * 88 + [0.0] * 12)
    error.add([0.5] * 60)
    assert bad.worse_than(0.9, None) and not bad.worse_than(None, None) and not bad.worse_than(0.5, None)
    assert not few.worse_than(0.9, None)
    assert not fine.worse_than(0.9, None)  # 88 of 100 may well be 90 %
    assert error.worse_than(None, 0.4) and not error.worse_than(None, 0.6)


# -- error budgets -------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_burn_rates_equal_a_count_of_all_requests() -> None:
    rng, budget, events, now = random.Random(6), ErrorBudget(0.95), [], 1000.0
    for _ in range(4000):
        now += rng.expovariate(0.15)
        good = rng.random() > (0.3 if 9000 < now < 11_000 else 0.02)
        budget.note(good, now)
        events.append((now // 10, good))
    for window, seconds in (("5m", 300), ("30m", 1800), ("1h", 3600), ("6h", 21600)):
        inside = [good for at, good in events if at > now // 10 - seconds // 10]
        assert budget.counts(window, now) == (inside.count(False), len(inside))
        assert budget.burn_rate(window, now) == pytest.approx(inside.count(False) / len(inside) / 0.05)
    assert budget.counts("6h", now + 30_000) == (0, 0)


def test_alerts_come_while_the_budget_burns_and_go_when_it_does_not() -> None:
    budget, now = ErrorBudget(0.99), 0.0
    for _ in range(3600):  # an hour without a fault
        budget.note(True, now := now + 1)
    assert not any(budget.alerts(now).values())
    for _ in range(1200):  # 20 minutes in which one of two fails
        budget.note(now % 2 == 0, now := now + 1)
    assert budget.alerts(now) == {"burn_fast": True, "burn_slow": True}
    for _ in range(600):  # ten minutes later the last five are fine
        budget.note(True, now := now + 1)
    assert budget.alerts(now) == {"burn_fast": False, "burn_slow": True}
    few = ErrorBudget(0.99)
    for k in range(10):
        few.note(False, float(k))
    assert not any(few.alerts(10.0).values())


# -- the config ----------------------------------------------------------------------------------------------


def test_a_config_says_what_is_promised_of_a_model(tmp_path: Path) -> None:
    assert read_config(tmp_path, "m") == ModelConfig()
    (tmp_path / "m.toml").write_text(
        'sla_ms = 50\nvariants = ["small"]\nobjective = 0.999\nleast_accuracy = 0.9\n'
    )
    assert read_config(tmp_path, "m") == ModelConfig(0.05, 0.999, ("small",), least_accuracy=0.9)


@pytest.mark.parametrize(
    ("text", "text_said"),
    [
        ("sla_ms = 0", "above 0"), ("objective = 1", "below 1"), ("objective = true", "a number"),
        ("variants = 'm2'", "a list"), ("variants = ['m']", "other models"),
        ("variants = ['a', 'a']", "other models"),
        ("slo = 3", "it has"), ("sla_ms = ", "cannot be read"), ("sla_ms = nan", "above 0"),
        ("sla_ms = 1" + "0" * 400, "above 0"),
    ],
)  # fmt: skip
def test_odd_configs_are_refused(tmp_path: Path, text: str, text_said: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(RequestError, match=text_said):
        read_config(tmp_path, "m")


# -- the server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("monitored") / "models"
    folder.mkdir()
    model = st.freeze(network(), rows(4), batch_sizes=(1, 8), name="digits", training=rows(1000, seed=9))
    model.save(folder / "digits.stratal")
    (folder / "digits.toml").write_text("least_accuracy = 0.9\nsla_ms = 20000\n")
    (folder / "odd.toml").write_text("sla_ms = -1")
    frozen(2, "odd").save(folder / "odd.stratal")
    with serving(folder, "--workers", "1", "--allow-load", "--log", str(folder.parent / "log")) as running:
        yield running


def monitored(server: Server) -> Any:
    return next(m["monitoring"] for m in server.status()["models"] if m["name"] == "digits")


def infer(server: Server, x: Any, identity: str = "") -> Any:
    status, answer = server.json("POST", "/v2/models/digits/infer", asked(x) | {"id": identity})
    assert status == 200, answer
    return np.array(answer["outputs"][0]["data"]).reshape(-1, 4).argmax(1)


@needs_server
@by_turns
def test_drifted_requests_raise_an_alert_that_names_the_feature(server: Server) -> None:
    for k in range(5):
        infer(server, rows(60, seed=20 + k))
    assert eventually(lambda: monitored(server)["watched"] == FEATURES)
    assert monitored(server)["drifted"] == 0
    assert server.metrics()['stratal_alert{alert="drift",model="digits"}'] == 0
    for k in range(10):
        x = rows(60, seed=40 + k)
        x[:, 5] += 3
        infer(server, x)
    assert eventually(lambda: monitored(server)["drifted"] == 1)
    assert monitored(server)["worst"][0]["feature"] == "input[5]"
    found = server.metrics()
    assert found['stratal_alert{alert="drift",model="digits"}'] == 1
    assert found['stratal_drift_psi{feature="input[5]",model="digits",version="1"}'] > 0.5
    assert found['stratal_drift_psi{feature="input[4]",model="digits",version="1"}'] < 0.1
    assert "the alert drift is on" in server.log.read_text()
    lines = map(json.loads, (server.log.parent / "log").read_text().splitlines())
    assert {"model": "digits", "alert": "drift", "on": True} in list(lines)


@needs_server
@by_turns
def test_labels_become_accuracy_and_an_alert(server: Server) -> None:
    for k in range(40):
        predicted = infer(server, rows(2, seed=k), f"order-{k}")
        label = (predicted + (k % 2)) % 4  # one request in two was wrong
        status, found = server.json(
            "POST", "/v2/models/digits/feedback", {"id": f"order-{k}", "label": label.tolist()}
        )
        assert (status, found) == (200, {"model": "digits", "version": "1", "rows": 2, "mean": 1.0 - k % 2})
    assert eventually(lambda: "accuracy" in monitored(server)["alerts"])
    assert (monitored(server)["labels"], monitored(server)["accuracy"]) == (80, 0.5)
    found = server.metrics()
    assert found['stratal_feedback_accuracy{model="digits",version="1"}'] == 0.5
    assert found['stratal_feedback_rows_total{model="digits",version="1"}'] == 80
    assert found['stratal_feedback_right_rows_total{model="digits",version="1"}'] == 40
    for body, status in [({"id": "order-1", "label": [0, 0]}, 404), ({"id": "never", "label": 0}, 404),
                         ({"id": 7, "label": 0}, 400), ({"label": 0}, 400), ([], 400)]:  # fmt: skip
        assert server.json("POST", "/v2/models/digits/feedback", body)[0] == status
    assert server.json("POST", "/v2/models/nobody/feedback", {"id": "a", "label": 0})[0] == 404


@needs_server
@by_turns
def test_answers_in_time_keep_the_budget_and_a_config_that_is_odd_costs_its_model_alone(
    server: Server,
) -> None:
    infer(server, rows(1))
    assert server.infer(rows(1), timeout=1)[0] == 429  # less than was promised: no fault of the server
    assert server.json("POST", "/v2/models/digits/infer", {})[0] == 400
    now = server.metrics()
    assert now['stratal_slo_budget_left{model="digits"}'] == 1.0
    assert now['stratal_slo_burn_rate{model="digits",window="5m"}'] == 0.0
    assert "sla_ms is a number above 0" in server.status()["failed"]["odd"]


@needs_server
@by_turns
def test_a_model_loaded_again_is_watched_afresh(server: Server) -> None:
    infer(server, rows(60))
    assert server.json("POST", "/v2/repository/models/digits/load")[0] == 200
    found = monitored(server)
    assert (found["labels"], found["watched"], found["rows"]) == (0, 0, 0)
    assert server.json("POST", "/v2/repository/models/digits/unload")[0] == 200
    assert not any("stratal_drift" in key or "stratal_alert" in key for key in server.metrics())
    assert server.json("POST", "/v2/repository/models/digits/load")[0] == 200
