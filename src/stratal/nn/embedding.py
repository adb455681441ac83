"""Tables of vectors: rows by integer index, one by one or in bags."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.applied import changed
from stratal.nn.functional.tables import check_dense, table_row
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter, empty_parameter
from stratal.tensor.tensor import Tensor


class _Table(Module):
    """A table [num_embeddings, embedding_dim], drawn from N(0, 1) or given as `_weight`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, max_norm: float | None,
        norm_type: float, scale_grad_by_freq: bool, sparse: bool, weight: Any, dtype: Any
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else table_row(name, padding_idx, num_embeddings)
        check_dense(name, sparse)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if weight is None:
            self.weight = empty_parameter((num_embeddings, embedding_dim), dtype)
            self.reset_parameters()
        elif tuple(weight.shape) != (num_embeddings, embedding_dim):
            raise ShapeError(
                f"{name}: the table given has another shape",
                got=f"{list(weight.shape)} for {[num_embeddings, embedding_dim]}",
            )
        else:
            self.weight = Parameter(weight)

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1), the padding row zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            init.zero_row_(self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        others = changed(self, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False)
        return ", ".join([f"{self.num_embeddings}, {self.embedding_dim}", *others])


class Embedding(_Table):
    """Rows of a table by integer index; the row `padding_idx` starts at zero and receives no gradient.

    Shapes: input [...] of integers, weight [num_embeddings, embedding_dim], result [..., embedding_dim].
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Any = None, _freeze: bool = False, device: Any = None,
        dtype: Any = None
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            _weight, dtype,
        )  # fmt: skip
        self.weight.requires_grad_(not _freeze)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False
    ) -> Embedding:
        """Return a layer whose table is the given matrix."""
        rows, columns = embeddings.shape
        return cls(
            rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, _weight=embeddings,
            _freeze=freeze,
        )  # fmt: skip


class EmbeddingBag(_Table):
    """The sum, mean or maximum of the rows of each bag of indices; of an empty bag 0.

    Shapes: input [bags, n], or [n] with the offsets at which bags start; result [bags, embedding_dim].
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Any = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None,
        dtype: Any = None
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            _weight, dtype,
        )  # fmt: skip
        if mode not in ("sum", "mean", "max"):
            raise AttributeValueError("EmbeddingBag: mode is 'sum', 'mean' or 'max'", got=repr(mode))
        self.mode, self.include_last_offset = mode, include_last_offset

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
        include_last_offset: bool = False, padding_idx: int | None = None
    ) -> EmbeddingBag:
        """Return a layer whose table is the given matrix."""
        rows, columns = embeddings.shape
        bag = cls(
            rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings,
            include_last_offset, padding_idx,
        )  # fmt: skip
        bag.weight.requires_grad_(not freeze)
        return bag

    def forward(self, input: Tensor, offsets: Any = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = super().extra_repr().replace(f", padding_idx={self.padding_idx}", "")
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{text}, mode={self.mode!r}{padding}"
