"""Metrics of one batch as functions, with the names of torchmetrics: `accuracy(preds, target, "binary")`.

Each is its class, made with the options, on the batch alone; what it takes and returns stands there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stratal.metrics import classification, ranking, regression, text
from stratal.metrics.metric import Metric

CLASSES: dict[str, type[Metric]] = {
    "accuracy": classification.Accuracy,
    "auroc": ranking.AUROC,
    "average_precision": ranking.AveragePrecision,
    "bleu_score": text.BLEUScore,
    "char_error_rate": text.CharErrorRate,
    "cohen_kappa": classification.CohenKappa,
    "confusion_matrix": classification.ConfusionMatrix,
    "cosine_similarity": regression.CosineSimilarity,
    "exact_match": classification.ExactMatch,
    "explained_variance": regression.ExplainedVariance,
    "f1_score": classification.F1Score,
    "fbeta_score": classification.FBetaScore,
    "hamming_distance": classification.HammingDistance,
    "jaccard_index": classification.JaccardIndex,
    "matthews_corrcoef": classification.MatthewsCorrCoef,
    "mean_absolute_error": regression.MeanAbsoluteError,
    "mean_absolute_percentage_error": regression.MeanAbsolutePercentageError,
    "mean_squared_error": regression.MeanSquaredError,
    "mean_squared_log_error": regression.MeanSquaredLogError,
    "pearson_corrcoef": regression.PearsonCorrCoef,
    "perplexity": text.Perplexity,
    "precision": classification.Precision,
    "precision_recall_curve": ranking.PrecisionRecallCurve,
    "r2_score": regression.R2Score,
    "recall": classification.Recall,
    "roc": ranking.ROC,
    "spearman_corrcoef": regression.SpearmanCorrCoef,
    "specificity": classification.Specificity,
    "word_error_rate": text.WordErrorRate,
}


def _function(name: str, metric: type[Metric]) -> Callable[..., Any]:
    def function(preds: Any, target: Any, *args: Any, **options: Any) -> Any:
        return metric(*args, **options)(preds, target)

    own = list(inspect.signature(metric).parameters.values())
    first = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("preds", first), inspect.Parameter("target", first), *own]
    )
    function.higher_is_better = metric.higher_is_better  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"Return of one batch: {(metric.__doc__ or '').strip()}"
    return function


globals().update({name: _function(name, metric) for name, metric in CLASSES.items()})
__all__ = list(CLASSES)
