"""The adaptive softmax: frequent classes by one product, rare ones by clusters of fewer features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn.containers import ModuleList, Sequential
from stratal.nn.linear import Linear
from stratal.nn.module import Module
from stratal.tensor.functions.elementwise import where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.reductions import argmax
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor


class OutputAndLoss(NamedTuple):
    """The log-probability of each sample's target, and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """A log-softmax over many classes, sorted from frequent to rare. See: Grave et al. 2017.

    Classes below cutoffs[0] are the head's own; each cluster behind it is one entry of the head, and
    projects to in_features / div_value^(number of the cluster) features first. Every cluster is computed
    for all samples, so that shapes do not depend on the data.

    Shapes: input [N, in_features] and target [N] of integers, or [in_features] and a scalar.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        ends = list(cutoffs)
        if not ends or ends != sorted(set(ends)) or min(ends) <= 0 or max(ends) >= n_classes:
            raise AttributeValueError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs are increasing numbers in [1, n_classes)",
                got=f"{ends} of {n_classes} classes",
            )
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*ends, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, dtype=dtype)
        self.tail = ModuleList()
        for k in range(self.n_clusters):
            width, size = int(in_features // div_value ** (k + 1)), self.cutoffs[k + 1] - self.cutoffs[k]
            narrow = Linear(in_features, width, bias=False, dtype=dtype)
            self.tail.append(Sequential(narrow, Linear(width, size, bias=False, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights again."""
        for layer in (self.head, *(part for cluster in self.tail for part in cluster)):
            layer.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> OutputAndLoss:
        batched = input.ndim == 2
        if input.ndim not in (1, 2) or target.shape != input.shape[:-1] or not target.dtype.is_integer:
            raise ShapeError(
                "AdaptiveLogSoftmaxWithLoss: takes [N, in_features] and integers [N], or one sample",
                got=f"{input.type} and {target.type}",
            )
        x = input if batched else input.reshape((1, -1))
        classes = target.reshape((-1, 1))
        head = F.log_softmax(self.head(x), 1)
        known = (classes >= 0) & (classes < self.n_classes)
        entry_of = where(classes < self.shortlist_size, classes, 0)  # those in a cluster are replaced below
        output = take_along_axis(head, where(known, entry_of, self.n_classes + self.head_size), axis=1)
        for k, cluster in enumerate(self.tail):
            low, high = self.cutoffs[k], self.cutoffs[k + 1]
            inside = (classes >= low) & (classes < high)
            own = F.log_softmax(cluster(x), 1)
            picked = take_along_axis(own, where(inside, classes - low, 0), axis=1)
            entry = self.shortlist_size + k
            output = where(inside, picked + head[:, entry : entry + 1], output)
        output = output.reshape(target.shape)
        return OutputAndLoss(output, -output.mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, [N, n_classes]."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for k, cluster in enumerate(self.tail):
            entry = self.shortlist_size + k
            parts.append(F.log_softmax(cluster(input), 1) + head[:, entry : entry + 1])
        return concat(parts, axis=1)

    def predict(self, input: Tensor) -> Tensor:
        """Return the most likely class of each sample, [N]."""
        return argmax(self.log_prob(input), axis=1)
