"""Metrics over batches, with the names of torchmetrics: update, compute, reset, merge.

`stratal.metrics.functional` has those of one batch as functions.
"""

from stratal.metrics import functional as functional
from stratal.metrics.classification import Accuracy as Accuracy
from stratal.metrics.classification import CohenKappa as CohenKappa
from stratal.metrics.classification import ConfusionMatrix as ConfusionMatrix
from stratal.metrics.classification import ExactMatch as ExactMatch
from stratal.metrics.classification import F1Score as F1Score
from stratal.metrics.classification import FBetaScore as FBetaScore
from stratal.metrics.classification import HammingDistance as HammingDistance
from stratal.metrics.classification import JaccardIndex as JaccardIndex
from stratal.metrics.classification import MatthewsCorrCoef as MatthewsCorrCoef
from stratal.metrics.classification import Precision as Precision
from stratal.metrics.classification import Recall as Recall
from stratal.metrics.classification import Specificity as Specificity
from stratal.metrics.metric import Metric as Metric
from stratal.metrics.ranking import AUROC as AUROC
from stratal.metrics.ranking import ROC as ROC
from stratal.metrics.ranking import AveragePrecision as AveragePrecision
from stratal.metrics.ranking import PrecisionRecallCurve as PrecisionRecallCurve
from stratal.metrics.regression import CosineSimilarity as CosineSimilarity
from stratal.metrics.regression import ExplainedVariance as ExplainedVariance
from stratal.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
from stratal.metrics.regression import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from stratal.metrics.regression import MeanMetric as MeanMetric
from stratal.metrics.regression import MeanSquaredError as MeanSquaredError
from stratal.metrics.regression import MeanSquaredLogError as MeanSquaredLogError
from stratal.metrics.regression import PearsonCorrCoef as PearsonCorrCoef
from stratal.metrics.regression import R2Score as R2Score
from stratal.metrics.regression import SpearmanCorrCoef as SpearmanCorrCoef
from stratal.metrics.text import BLEUScore as BLEUScore
from stratal.metrics.text import CharErrorRate as CharErrorRate
from stratal.metrics.text import Perplexity as Perplexity
from stratal.metrics.text import WordErrorRate as WordErrorRate
