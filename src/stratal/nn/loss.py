"""Losses as layers; the formulas are in `functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn import functional as F
from stratal.nn.applied import Applied
from stratal.nn.functional.reductions import maybe_tensor
from stratal.tensor.tensor import Tensor


class Loss(Applied):
    """What losses share: how they are reduced."""

    _options, _shown = ("reduction",), ()
    reductions = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            known = ", ".join(map(repr, self.reductions))
            raise AttributeValueError(
                f"{type(self).__name__}: reduction must be one of {known}", got=repr(reduction)
            )
        self.reduction = reduction

    def forward(self, input: Tensor, target: Any) -> Any:
        return self._applied(input, target)


class L1Loss(Loss, function=F.l1_loss):
    """|input - target|."""


class MSELoss(Loss, function=F.mse_loss):
    """(input - target)^2."""


class SmoothL1Loss(Loss, function=F.smooth_l1_loss):
    """Quadratic within `beta` of the target, linear beyond, divided by beta."""

    _options = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta


class HuberLoss(Loss, function=F.huber_loss):
    """Quadratic within `delta` of the target, linear beyond."""

    _options = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta


class Weighted(Loss):
    """A loss with weights of classes or elements, which are a buffer."""

    _options = ("weight", "reduction")

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", maybe_tensor(weight))


class NLLLoss(Weighted, function=F.nll_loss):
    """Minus the log-probability of each sample's class, weighted by class."""

    _options = ("weight", "ignore_index", "reduction")

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index


class CrossEntropyLoss(Weighted, function=F.cross_entropy):
    """Cross-entropy of logits with class indices, or with probabilities of the input's shape."""

    _options = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing


class BCELoss(Weighted, function=F.binary_cross_entropy):
    """Binary cross-entropy of probabilities; each logarithm is clamped at -100."""


class BCEWithLogitsLoss(Weighted, function=F.binary_cross_entropy_with_logits):
    """Binary cross-entropy of logits, computed stably; `pos_weight` scales the positive terms."""

    _options = ("weight", "reduction", "pos_weight")

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", maybe_tensor(pos_weight))


# -- likelihoods ---------------------------------------------------------------------------------------------
class KLDivLoss(Loss, function=F.kl_div):
    """The divergence t (log t - x) of distributions t from those with logarithms x."""

    _options = ("reduction", "log_target")
    reductions = (*Loss.reductions, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target


class PoissonNLLLoss(Loss):
    """The negative log-likelihood of counts with expectations exp(x), or x without `log_input`."""

    def __init__(
        self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Any) -> Tensor:
        return F.poisson_nll_loss(log_input, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Loss):
    """(log v + (x - t)^2 / v) / 2 with variances v, counted as at least `eps`."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Any, var: Any) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class SigmoidFocalLoss(Loss, function=F.sigmoid_focal_loss):
    """Binary cross-entropy of sigmoid(x) in which easy samples weigh less; see `functional`."""

    _options = ("alpha", "gamma", "reduction")

    def __init__(self, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.alpha, self.gamma = alpha, gamma


class CTCLoss(Loss):
    """Minus the log-probability of label sequences, of all their alignments together."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class _Margin(Loss):
    _options = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class HingeEmbeddingLoss(_Margin, function=F.hinge_embedding_loss):
    """x where the target is 1, max(0, margin - x) where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)


class SoftMarginLoss(Loss, function=F.soft_margin_loss):
    """log(1 + exp(-t x)) with targets of 1 and -1."""


class MarginRankingLoss(_Margin):
    """max(0, margin - t (x1 - x2)): with t = 1, x1 should be the greater."""

    def forward(self, input1: Tensor, input2: Tensor, target: Any) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class CosineEmbeddingLoss(_Margin):
    """1 - cos(x1, x2) where the target is 1, max(0, cos - margin) where it is -1."""

    def forward(self, input1: Tensor, input2: Tensor, target: Any) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class MultiMarginLoss(Weighted, function=F.multi_margin_loss):
    """The mean over classes i of max(0, margin - x_t + x_i)^p, but for the target t."""

    _options = ("p", "margin", "weight", "reduction")

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        if p not in (1, 2):
            raise AttributeValueError("MultiMarginLoss: p is 1 or 2", got=str(p))
        self.p, self.margin = p, margin


class MultiLabelMarginLoss(Loss, function=F.multilabel_margin_loss):
    """max(0, 1 - (x_t - x_i)) summed over the classes t of a sample and all others i."""


class MultiLabelSoftMarginLoss(Weighted, function=F.multilabel_soft_margin_loss):
    """The mean over classes of the binary cross-entropy of sigmoid(x)."""


class TripletMarginLoss(_Margin):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d the p-norm distance."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
        reduction: str = "mean"
    ) -> None:
        super().__init__(margin, reduction)
        if margin <= 0:
            raise AttributeValueError("TripletMarginLoss: margin must be positive", got=str(margin))
        self.p, self.eps, self.swap = p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )


class TripletMarginWithDistanceLoss(_Margin):
    """The triplet loss of any distance, a function of two tensors; without one, of the 2-norm."""

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
        swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(margin, reduction)
        if margin <= 0:
            raise AttributeValueError(
                "TripletMarginWithDistanceLoss: margin must be positive", got=str(margin)
            )
        self.distance_function = F.pairwise_distance if distance_function is None else distance_function
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin,
            swap=self.swap, reduction=self.reduction,
        )  # fmt: skip
