"""Metrics over batches, with the names of torchmetrics: update, compute, reset, merge."""

from stratal.metrics.classification import Accuracy as Accuracy
from stratal.metrics.classification import ConfusionMatrix as ConfusionMatrix
from stratal.metrics.classification import F1Score as F1Score
from stratal.metrics.classification import FBetaScore as FBetaScore
from stratal.metrics.classification import JaccardIndex as JaccardIndex
from stratal.metrics.classification import MatthewsCorrCoef as MatthewsCorrCoef
from stratal.metrics.classification import Precision as Precision
from stratal.metrics.classification import Recall as Recall
from stratal.metrics.metric import Metric as Metric
from stratal.metrics.ranking import AUROC as AUROC
from stratal.metrics.ranking import AveragePrecision as AveragePrecision
from stratal.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
from stratal.metrics.regression import MeanMetric as MeanMetric
from stratal.metrics.regression import MeanSquaredError as MeanSquaredError
from stratal.metrics.regression import R2Score as R2Score
