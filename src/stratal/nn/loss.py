"""Losses as layers; the formulas are in `functional`."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn import functional as F
from stratal.nn.functional.reductions import maybe_tensor
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor


class Loss(Module):
    """What losses share: how they are reduced."""

    reductions = ("mean", "sum", "none")

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions:
            known = ", ".join(map(repr, self.reductions))
            raise AttributeValueError(
                f"{type(self).__name__}: reduction must be one of {known}", got=repr(reduction)
            )
        self.reduction = reduction


class L1Loss(Loss):
    """|input - target|."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.l1_loss(input, target, self.reduction)


class MSELoss(Loss):
    """(input - target)^2."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.mse_loss(input, target, self.reduction)


class SmoothL1Loss(Loss):
    """Quadratic within `beta` of the target, linear beyond, divided by beta."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(Loss):
    """Quadratic within `delta` of the target, linear beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


class Weighted(Loss):
    """A loss with weights of classes or elements, which are a buffer."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", maybe_tensor(weight))


class NLLLoss(Weighted):
    """Minus the log-probability of each sample's class, weighted by class."""

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(Weighted):
    """Cross-entropy of logits with class indices, or with probabilities of the input's shape."""

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class BCELoss(Weighted):
    """Binary cross-entropy of probabilities; each logarithm is clamped at -100."""

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(Weighted):
    """Binary cross-entropy of logits, computed stably; `pos_weight` scales the positive terms."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", maybe_tensor(pos_weight))

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


# -- likelihoods ---------------------------------------------------------------------------------------------
class KLDivLoss(Loss):
    """The divergence t (log t - x) of distributions t from those with logarithms x."""

    reductions = (*Loss.reductions, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)


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


class SigmoidFocalLoss(Loss):
    """Binary cross-entropy of sigmoid(x) in which easy samples weigh less; see `functional`."""

    def __init__(self, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, input: Tensor, target: Any) -> Tensor:
        return F.sigmoid_focal_loss(input, target, self.alpha, self.gamma, self.reduction)


class CTCLoss(Loss):
    """Minus the log-probability of label sequences, of all their alignments together."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
