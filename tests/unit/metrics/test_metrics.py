"""Metrics: values worked out by hand, batches in any split, merging, refusals."""

import math

import numpy as np
import pytest

import stratal as st
from stratal import metrics as M
from stratal.base.errors import StratalError

pytestmark = pytest.mark.quick

# Classes 0, 1, 2 of a multiclass task; the confusion matrix of these is [[2, 1, 0], [0, 1, 1], [1, 0, 2]].
TRUE, SEEN = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([0, 0, 1, 1, 2, 2, 2, 0])
BITS, SCORES = np.array([1, 0, 1, 1, 0, 0]), np.array([0.9, 0.6, 0.6, 0.4, 0.3, 0.1])
# at 0.5: two hits, one false alarm, one miss, two correct rejections
X, Y = np.array([1.0, 2.0, 4.0, 3.0]), np.array([1.5, 2.0, 3.0, 5.0])

MACRO = (2 / 3 + 1 / 2 + 2 / 3) / 3


def _multi(metric, num_classes=3, **options):
    return lambda: metric("multiclass", num_classes=num_classes, **options)


CASES = {
    "accuracy": (_multi(M.Accuracy), SEEN, TRUE, 5 / 8),
    "accuracy macro": (_multi(M.Accuracy, average="macro"), SEEN, TRUE, MACRO),
    "accuracy absent": (_multi(M.Accuracy, average="macro", num_classes=5), SEEN, TRUE, MACRO),
    "precision": (_multi(M.Precision, average=None), SEEN, TRUE, [2 / 3, 1 / 2, 2 / 3]),
    "recall": (
        _multi(M.Recall, average="weighted"), SEEN, TRUE, (2 + 1 + 2) / 8
    ),
    "f1": (_multi(M.F1Score, average=None), SEEN, TRUE, [2 / 3, 1 / 2, 2 / 3]),
    "jaccard": (_multi(M.JaccardIndex, average=None), SEEN, TRUE, [2 / 4, 1 / 3, 2 / 4]),
    "matrix": (
        _multi(M.ConfusionMatrix), SEEN, TRUE, [[2, 1, 0], [0, 1, 1], [1, 0, 2]]
    ),
    # 5 hits of 8; true (3, 2, 3) . predicted (3, 2, 3) = 22
    "matthews": (_multi(M.MatthewsCorrCoef), SEEN, TRUE, (5 * 8 - 22) / (64 - 22)),
    "binary accuracy": (lambda: M.Accuracy("binary"), SCORES, BITS, 4 / 6),
    "binary precision": (lambda: M.Precision("binary"), SCORES, BITS, 2 / 3),
    "binary recall": (lambda: M.Recall("binary", threshold=0.35), SCORES, BITS, 1.0),
    "binary f2": (lambda: M.FBetaScore("binary", 2.0, threshold=0.7), SCORES, BITS, 5 * 1 / (4 * 3 + 1)),
    "logits": (lambda: M.Accuracy("binary"), np.log(SCORES / (1 - SCORES)), BITS, 4 / 6),
    # of the nine pairs: 0.9 wins 3, 0.6 wins 2 and ties 1, 0.4 wins 2
    "auroc": (M.AUROC, SCORES, BITS, 7.5 / 9),
    "average precision": (M.AveragePrecision, SCORES, BITS, (1 + 2 / 3 + 3 / 4) / 3),
    "auroc of one class": (M.AUROC, SCORES, np.ones(6), math.nan),
    "squared": (M.MeanSquaredError, X, Y, (0.25 + 0 + 1 + 4) / 4),
    "root": (lambda: M.MeanSquaredError(squared=False), X, Y, math.sqrt(5.25 / 4)),
    "absolute": (M.MeanAbsoluteError, X, Y, 3.5 / 4),
    "r2": (M.R2Score, X, Y, 1 - 5.25 / np.sum((Y - Y.mean()) ** 2)),
    "mean": (M.MeanMetric, X, Y, np.average(X, weights=Y)),
    "specificity": (_multi(M.Specificity, average=None), SEEN, TRUE, [4 / 5, 5 / 6, 4 / 5]),
    "hamming": (_multi(M.HammingDistance), SEEN, TRUE, 1 - MACRO),
    "ignored": (_multi(M.Accuracy, ignore_index=2), SEEN, TRUE, 3 / 5),
    **{  # class 2 is predicted once, for a 1; classes 0 and 1 count
        f"ignored macro {name}": (_multi(metric, ignore_index=2, average="macro"), SEEN, TRUE, value)
        for name, metric, value in (
            ("accuracy", M.Accuracy, (2 / 3 + 1 / 2) / 2),
            ("precision", M.Precision, (2 / 2 + 1 / 2) / 2),
            ("recall", M.Recall, (2 / 3 + 1 / 2) / 2),
            ("jaccard", M.JaccardIndex, (2 / 3 + 1 / 3) / 2),
            ("f1", M.F1Score, (4 / 5 + 1 / 2) / 2),
        )
    },
    # chance agrees on 22 of 64, the classes on 5 of 8
    "kappa": (_multi(M.CohenKappa), SEEN, TRUE, 1 - (3 / 8) / (42 / 64)),
    "labels": (
        lambda: M.Accuracy("multilabel", num_labels=2, average=None),
        np.array([[1, 0], [0, 0], [1, 1], [0, 1]]), np.array([[1, 1], [0, 0], [0, 1], [1, 1]]), [2 / 4, 3 / 4]
    ),
    "exact": (
        lambda: M.ExactMatch("multilabel", num_labels=2),
        np.array([[1, 0], [0, 0], [1, 1], [0, 1]]), np.array([[1, 1], [0, 0], [0, 1], [1, 1]]), 1 / 4
    ),
    "percentage": (M.MeanAbsolutePercentageError, X, Y, (0.5 / 1.5 + 0 + 1 / 3 + 2 / 5) / 4),
    "log": (M.MeanSquaredLogError, X, Y, np.mean(np.log((1 + X) / (1 + Y)) ** 2)),
    # ranks 1 2 4 3 and 1 2 3 4
    "spearman": (M.SpearmanCorrCoef, X, Y, 1 - 6 * 2 / (4 * 15)),
    "pearson": (M.PearsonCorrCoef, X, Y, np.corrcoef(X, Y)[0, 1]),
    "cosine": (M.CosineSimilarity, np.eye(4), np.ones((4, 4)), 2.0),
    "perplexity": (
        M.Perplexity, np.log([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [0.2, 0.8]]), np.array([0, 0, 1, 1]),
        (0.5 * 0.25 * 0.5 * 0.8) ** -0.25
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_metric_has_the_value_worked_out_by_hand_in_any_split(name):
    make, preds, target, want = CASES[name]
    whole, split, other = make(), make(), make()
    alone = whole(st.tensor(preds), st.tensor(target))
    np.testing.assert_allclose(alone, want, rtol=1e-12)
    split.update(preds[:1], target[:1])
    split.update(st.tensor(preds[1:3]), st.tensor(target[1:3]))
    other.update(preds[3:], target[3:])
    split.merge(other)
    split.merge(make())
    np.testing.assert_allclose(split.compute(), want, rtol=1e-12)
    split.reset()
    split.update(preds, target)
    np.testing.assert_allclose(split.compute(), want, rtol=1e-12)


def test_scores_of_classes_stand_for_the_greatest():
    scores = np.random.default_rng(0).random((4, 3, 5))
    target = scores.argmax(axis=1)
    assert M.Accuracy("multiclass", num_classes=3)(st.tensor(scores), st.tensor(target)) == 1.0


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: M.Accuracy("multiclass"), "num_classes"),
        (lambda: M.Accuracy("multilabel"), "task is binary"),
        (lambda: M.Accuracy("ordinal"), "task is binary"),
        (lambda: M.Precision("multiclass", num_classes=3, average="all"), "average is"),
        (lambda: M.Accuracy("multiclass", num_classes=3).update(SEEN, TRUE + 1), "target must be classes"),
        (lambda: M.Accuracy("multiclass", num_classes=3).update(SEEN[:3], TRUE), "do not fit"),
        (lambda: M.Accuracy("multiclass", num_classes=3).update(SEEN * 0.5, TRUE), "preds must be classes"),
        (lambda: M.AUROC().update(SCORES, TRUE[:6] + 2), "0 or 1"),
        (lambda: M.MeanSquaredError().update(X, Y[:2]), "differ in shape"),
        (lambda: M.R2Score().compute(), "before any batch"),
        (lambda: M.R2Score().merge(M.AUROC()), "same kind"),
        (lambda: M.Accuracy("multiclass", num_classes=3).merge(M.Accuracy("binary")), "same kind"),
    ],
)
def test_a_wrong_use_is_refused_with_the_users_line(run, says):
    with pytest.raises(StratalError, match=says) as info:
        run()
    assert "test_metrics.py" in str(info.value)


# -- against scikit-learn ------------------------------------------------------------------------------------
RNG = np.random.default_rng(4)
CLASSES, LOGITS = RNG.integers(0, 4, 200), RNG.normal(size=(200, 4))
LABELS = RNG.integers(0, 2, (200, 3))
CHANCES = np.clip(LABELS * 0.3 + RNG.random((200, 3)) * 0.7, 0, 1)
BEST, MARKED = LOGITS.argmax(axis=1), (CHANCES > 0.5).astype(int)
U, V = RNG.normal(size=(50, 3)), RNG.normal(size=(50, 3)) * [0.5, 2.0, 1.0]
SHARES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
AVERAGES = ("micro", "macro", "weighted", None)
FOUR, THREE = {"task": "multiclass", "num_classes": 4}, {"task": "multilabel", "num_labels": 3}
TASKS = ((FOUR, (LOGITS, CLASSES), (CLASSES, BEST)), (THREE, (CHANCES, LABELS), (LABELS, MARKED)))
SKLEARN = {  # a function of ours, arguments, options, and scikit-learn's name and arguments
    **{f"{f} {a} {task['task']}": (f, given, {**task, "average": a}, g, wanted, {"average": a, **more})
       for f, g, more in (("precision", "precision_score", {}), ("recall", "recall_score", {}),
                          ("f1_score", "f1_score", {}), ("fbeta_score", "fbeta_score", {"beta": 1.0}),
                          ("jaccard_index", "jaccard_score", {}))
       for a in AVERAGES for task, given, wanted in TASKS},
    **{f"top {k}": ("accuracy", (LOGITS, CLASSES), {**FOUR, "top_k": k},
                    "top_k_accuracy_score", (CLASSES, LOGITS), {"k": k, "labels": range(4)})
       for k in (1, 2, 3)},
    **{f"kappa {w}": ("cohen_kappa", (BEST, CLASSES), {**FOUR, "weights": w},
                      "cohen_kappa_score", (CLASSES, BEST), {"weights": w})
       for w in (None, "linear", "quadratic")},
    **{f"auroc {a}": ("auroc", (SHARES, CLASSES), {**FOUR, "average": a},
                      "roc_auc_score", (CLASSES, SHARES), {"average": a, "multi_class": "ovr"})
       for a in ("macro", "weighted", None)},
    **{f"{f} labels {a}": (f, (CHANCES, LABELS), {**THREE, "average": a},
                           g, (LABELS, CHANCES), {"average": a})
       for a in ("macro", "weighted", None)
       for f, g in (("auroc", "roc_auc_score"), ("average_precision", "average_precision_score"))},
    "matrices": ("confusion_matrix", (CHANCES, LABELS), THREE,
                 "multilabel_confusion_matrix", (LABELS, MARKED), {}),
    "matthews": ("matthews_corrcoef", (BEST, CLASSES), FOUR,
                 "matthews_corrcoef", (CLASSES, BEST), {}),
    "exact": ("exact_match", (CHANCES, LABELS), THREE,
              "accuracy_score", (LABELS, MARKED), {}),
    **{f"{f} {m}": (f, (U, V), {"multioutput": m}, g, (V, U), {"multioutput": m})
       for f, g in (("r2_score", "r2_score"), ("explained_variance", "explained_variance_score"))
       for m in ("raw_values", "uniform_average", "variance_weighted")},
    "curve": ("precision_recall_curve", (CHANCES[:, 0], LABELS[:, 0]), {},
              "precision_recall_curve", (LABELS[:, 0], CHANCES[:, 0]), {}),
    "roc": ("roc", (CHANCES[:, 0], LABELS[:, 0]), {},
            "roc_curve", (LABELS[:, 0], CHANCES[:, 0]), {"drop_intermediate": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", SKLEARN)
def test_functions_of_one_batch_are_scikit_learns(name):
    theirs = pytest.importorskip("sklearn.metrics")
    function, given, options, other, wanted, more = SKLEARN[name]
    got = getattr(M.functional, function)(*map(st.tensor, given), **options)
    want = getattr(theirs, other)(*wanted, **more)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-15)


SHIFTED = LOGITS + 3 * RNG.normal(size=(200, 1))  # a softmax knows nothing of these
ODDS = np.log(CHANCES / (1 - CHANCES))
RANKINGS = [
    (name, given, options)
    for name in ("auroc", "average_precision", "roc", "precision_recall_curve", "accuracy", "f1_score")
    for given, options in (
        ((SHIFTED, SHARES, CLASSES), FOUR),
        ((ODDS, CHANCES, LABELS), THREE),
        ((ODDS[:, 0], CHANCES[:, 0], LABELS[:, 0]), {"task": "binary"}),
    )
    if options["task"] == "binary" or name not in ("roc", "precision_recall_curve")
]


@pytest.mark.parametrize(("name", "given", "options"), RANKINGS)
def test_scores_outside_of_0_to_1_are_logits(name, given, options):
    logits, chances, target = given
    options = {} if name in ("roc", "precision_recall_curve") else options
    got, want = (getattr(M.functional, name)(st.tensor(p), target, **options) for p in (logits, chances))
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-15)


# Logits of which most rows, but not all, lie within [0, 1]: what one batch shows says nothing of the others.
NEAR = RNG.uniform(-0.2, 1.0, (24, 4))
NEAR_BITS, NEAR_CLASSES = (RNG.random((24, 4)) < 0.5).astype(int), RNG.integers(0, 4, 24)
LABELS_OF_4 = {"task": "multilabel", "num_labels": 4}
SPLIT = [
    (name, task, *given)
    for tasks, names in (
        (
            (({"task": "binary"}, NEAR[:, 0], NEAR_BITS[:, 0]), (LABELS_OF_4, NEAR, NEAR_BITS)),
            (M.Accuracy, M.ConfusionMatrix, M.ExactMatch, M.F1Score, M.FBetaScore, M.HammingDistance,
             M.JaccardIndex, M.MatthewsCorrCoef, M.Precision, M.Recall, M.Specificity, M.AUROC,
             M.AveragePrecision),
        ),
        ((({"task": "binary"}, NEAR[:, 0], NEAR_BITS[:, 0]),), (M.CohenKappa,)),
        ((({}, NEAR[:, 0], NEAR_BITS[:, 0]),), (M.ROC, M.PrecisionRecallCurve)),
        (((FOUR, NEAR, NEAR_CLASSES),), (M.AUROC, M.AveragePrecision, M.Accuracy)),
    )
    for name in names
    for task, *given in tasks
]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "options", "logits", "target"), SPLIT,
    ids=[f"{metric.__name__} {options.get('task')}" for metric, options, *_ in SPLIT],
)  # fmt: skip
def test_logits_are_logits_in_batches_of_any_size_and_order(metric, options, logits, target):
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    want = metric(**options)(softmax if options is FOUR else 1 / (1 + np.exp(-logits)), target)
    order = np.argsort(logits.reshape(24, -1).min(1))  # those that show what they are first, or last
    for rows, size in ((order, 24), (order, 7), (order[::-1], 7), (order, 1), (order[::-1], 1)):
        whole, other = metric(**options), metric(**options)
        for k in range(0, 24, size):
            (whole if k % 2 else other).update(logits[rows[k : k + size]], target[rows[k : k + size]])
        whole.merge(other)
        got = whole.compute()
        for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
            np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-15)


def test_scores_of_ignored_targets_do_not_say_what_the_others_are():
    scores, target = np.array([0.3, 0.7, -9.0, np.nan]), np.array([0, 1, -1, -1])
    assert M.Accuracy("binary", ignore_index=-1)(scores, target) == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_does_not_pass_for_one(value):
    stats = pytest.importorskip("scipy.stats")
    x, y = np.array([0.7, value, 0.2, 0.4]), np.array([1.0, 0.0, 0.5, 0.1])
    for a, b in ((x, y), (y, x)):
        np.testing.assert_allclose(M.functional.spearman_corrcoef(a, b), stats.spearmanr(a, b).statistic)
    if np.isnan(value):
        for name, preds, task in (
            ("accuracy", x, {"task": "binary"}), ("f1_score", x[:, None], {**THREE, "num_labels": 1}),
            ("accuracy", np.where(np.eye(4) > 0, value, LOGITS[:4]), FOUR), ("auroc", x, {}),
        ):  # fmt: skip
            target = np.array([0, 1, 0, 1])[:, None] if "num_labels" in task else np.array([0, 1, 0, 1])
            with pytest.raises(StratalError, match="NaN"):
                getattr(M.functional, name)(preds, target, **task)


def test_correlations_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    x, y = np.round(U[:, 0], 1), np.round(U[:, 1] + U[:, 0], 1)  # with ties
    np.testing.assert_allclose(M.functional.pearson_corrcoef(x, y), stats.pearsonr(x, y).statistic)
    np.testing.assert_allclose(M.functional.spearman_corrcoef(x, y), stats.spearmanr(x, y).statistic)
    each = M.functional.spearman_corrcoef(U, V)
    np.testing.assert_allclose(each, [stats.spearmanr(a, b).statistic for a, b in zip(U.T, V.T, strict=True)])


# -- text ----------------------------------------------------------------------------------------------------
def test_bleu_counts_runs_of_words():
    preds = ["the cat is on the mat"]
    target = [["there is a cat on the mat", "a cat is on the mat"]]
    # runs found of 1 to 4 words: 5 of 6, 4 of 5, 3 of 4, 2 of 3; as long as the nearest reference
    want = (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert math.isclose(M.functional.bleu_score(preds, target), want)
    assert math.isclose(M.functional.bleu_score(preds, target, n_gram=2), (5 / 6 * 4 / 5) ** 0.5)
    smooth = (5 / 6 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
    assert math.isclose(M.functional.bleu_score(preds, target, smooth=True), smooth)
    short = M.functional.bleu_score(["the cat"], [["the cat is here"]], n_gram=2)
    assert math.isclose(short, math.exp(1 - 4 / 2))
    assert M.functional.bleu_score(["a dog"], target) == 0.0
    whole = M.BLEUScore()
    for p, t in (("a b c d e", ["a b c d e f"]), (preds[0], target[0])):
        whole.update([p], [t])
    both = M.functional.bleu_score(["a b c d e", *preds], [["a b c d e f"], *target])
    assert math.isclose(whole.compute(), both)


def test_errors_of_words_and_characters_are_edits():
    preds, target = (
        ["this is the prediction", "there is an other sample"],
        ["this is the reference", "there is another one"],
    )
    assert M.functional.word_error_rate(preds, target) == 4 / 8
    assert M.functional.char_error_rate(["kitten"], ["sitting"]) == 3 / 7
    assert M.functional.word_error_rate(["a b"], [""]) == math.inf
    assert M.functional.word_error_rate([""], [""]) == 0.0


def test_perplexity_leaves_out_what_is_ignored_and_holds_for_large_logits():
    logits = np.array([[[1e4, 0.0], [0.0, 0.0]]])
    found = M.functional.perplexity(st.tensor(logits), st.tensor([[0, -100]]), ignore_index=-100)
    assert found == 1.0


def test_functions_show_the_options_of_their_classes():
    import inspect

    shown = inspect.signature(M.functional.accuracy)
    assert list(shown.parameters)[:3] == ["preds", "target", "task"] and "top_k" in shown.parameters
    assert "correct predictions" in M.functional.accuracy.__doc__


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: M.Accuracy("multiclass", num_classes=3, top_k=4), "top_k counts classes"),
        (lambda: M.Accuracy("binary", top_k=2), "top_k counts classes"),
        (lambda: M.functional.accuracy(CHANCES, LABELS, "multilabel", num_labels=4), "do not fit"),
        (lambda: M.functional.cohen_kappa(BEST, CLASSES, "multilabel", num_labels=3), "binary or multiclass"),
        (lambda: M.functional.auroc(LOGITS, CLASSES, "multiclass", num_classes=3), "classes from 0 to 2"),
        (lambda: M.functional.auroc(LOGITS, CLASSES, "multiclass"), "num_classes"),
        (lambda: M.functional.r2_score(U, V, multioutput="sum"), "multioutput is"),
        (lambda: M.functional.pearson_corrcoef(LOGITS[None], LOGITS[None]), "outputs"),
        (lambda: M.functional.cosine_similarity(X, Y), "takes rows"),
        (lambda: M.functional.perplexity(LOGITS, CLASSES + 1), "words from 0 to 3"),
        (lambda: M.functional.perplexity(LOGITS, CLASSES[:4]), "takes logits"),
        (lambda: M.functional.bleu_score(["a"], [["a"], ["b"]]), "as many predictions"),
        (lambda: M.functional.bleu_score([3], [["a"]]), "takes strings"),
        (lambda: M.BLEUScore(2, weights=[1.0]), "a weight for each length"),
    ],
)
def test_a_wrong_use_of_the_later_metrics_is_refused(run, says):
    with pytest.raises(StratalError, match=says):
        run()


def test_scores_of_two_classes_and_words_in_axis_1_say_how_they_are_taken() -> None:
    scores, bits = np.random.default_rng(0).normal(size=(6, 2)), np.array([0, 1, 0, 1, 1, 0])
    with pytest.raises(StratalError, match=r"preds and target|takes logits") as caught:
        st.metrics.AUROC("binary")(scores, bits)
    assert 'task="multiclass"' in caught.value.hint
    with pytest.raises(StratalError, match=r"preds and target|takes logits") as caught:
        st.metrics.MeanSquaredError()(scores[:, :1], bits)
    assert caught.value.hint == "preds.squeeze(-1)"
    with pytest.raises(StratalError, match=r"preds and target|takes logits") as caught:
        st.metrics.Perplexity()(np.zeros((2, 7, 3)), np.zeros((2, 3), int))
    assert "movedim(1, -1)" in caught.value.hint
