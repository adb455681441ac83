"""Metrics: values worked out by hand, batches in any split, merging, refusals."""

import math

import numpy as np
import pytest

import stratal as st
from stratal import metrics as M
from stratal.base.errors import StratalError

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
