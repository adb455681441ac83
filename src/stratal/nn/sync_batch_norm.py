"""Batch normalisation whose batch is that of all ranks."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError
from stratal.nn.functional.normalization import move_running
from stratal.nn.lazy import Lazy
from stratal.nn.module import Module
from stratal.nn.running_statistics import _BatchNorm
from stratal.ops.collective import COMMUNICATORS
from stratal.tensor.build import call
from stratal.tensor.functions.creation import full
from stratal.tensor.functions.elementwise import cast, rsqrt
from stratal.tensor.functions.shapes import concat
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.control import _happen_once
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.state import no_grad

_AXIS = "data"  # of the mesh: the ranks of the job


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of [N, C, ...] over the parts of a batch that all ranks have, with PyTorch's name.

    In training every rank must come here, and gradients flow through the statistics of all: a parallel step
    is then that of one process on the whole batch. Two sums go over ranks in each direction. On one rank, in
    evaluation, and before the process has joined its job (`st.distributed`), it is batch normalisation.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *,
        bias: bool = True
    ) -> None:
        _check_group(process_group)
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, bias=bias
        )

    def _check(self, input: Tensor, axis: int, what: str) -> None:
        if input.ndim < 2 or int(input.shape[axis]) != self.num_features:
            raise ShapeError(
                f"SyncBatchNorm: takes at least 2 axes, {what} of {self.num_features}",
                got=f"{list(input.shape)}",
            )

    def forward(self, input: Tensor) -> Tensor:
        axis = COMMUNICATORS.get(_AXIS)
        size = 1 if axis is None else axis.size
        if not self.training or size == 1:
            return super().forward(input)
        self._check(input, 1, "axis 1")
        x = cast(input, "float32") if input.dtype.itemsize == 2 else input
        centred, variance, mean, count = _moments(x, size)
        if self.track_running_stats and self.running_mean is not None:
            momentum = self._next_momentum()
            with no_grad():
                unbiased = variance * count / (count - 1.0)
                move_running((self.running_mean, self.running_var), (mean, unbiased), momentum)
        scale = rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * cast(self.weight, x.dtype)
        y = centred * _per_channel(scale, x)
        if self.bias is not None:
            y = y + _per_channel(cast(self.bias, x.dtype), x)
        return cast(y, input.dtype)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Return a module with synchronised layers in place of all BatchNorm layers in it, parameters and
        statistics the same; where it is a BatchNorm layer itself, a new one.
        """
        _check_group(process_group)
        if isinstance(module, Lazy) and issubclass(module.becomes, _BatchNorm):
            raise CallOrderError(
                "convert_sync_batchnorm: a lazy layer has no sizes yet", got=type(module).__name__,
                hint="call the module once before",
            )  # fmt: skip
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            return cls._converted(module)
        for name, child in list(module.named_children()):
            converted = cls.convert_sync_batchnorm(child)
            if converted is not child:
                module.add_module(name, converted)
        return module

    @classmethod
    def _converted(cls, layer: _BatchNorm) -> SyncBatchNorm:
        options = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made = cls(*options, bias=layer.bias is not None)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            if getattr(layer, name) is not None:
                setattr(made, name, getattr(layer, name))
        return made.train(layer.training)


def _moments(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x minus its mean, the biased variance and the mean of each channel, and the number of values a
    channel has, over all ranks.

    In two passes: squares of small deviations do not vanish beside a large mean.
    """
    axes = (0, *range(2, x.ndim))
    own = full((1,), x.numel() // int(x.shape[1]), dtype=x.dtype)
    sums = _summed(concat([x.sum(axes), own]), size)
    count = sums[-1]
    mean = sums[:-1] / count
    centred = x - _per_channel(mean, x)
    return centred, _summed((centred * centred).sum(axes), size) / count, mean, count


def _summed(x: Tensor, size: int) -> Tensor:
    """Return the sum over ranks; so is the cotangent of x."""
    found = call("all_reduce", x, mesh_axis=_AXIS, ranks=size, op="sum", algorithm="all_to_all")
    _happen_once(node_of(found), [found])  # now, as on every rank, not when somebody asks for a value
    return found


def _per_channel(vector: Tensor, like: Tensor) -> Tensor:
    return vector.reshape((1, -1, *(1,) * (like.ndim - 2)))


def _check_group(group: Any) -> None:
    if group is not None:
        raise AttributeValueError(
            "SyncBatchNorm: statistics are those of all ranks", got="a process group",
            hint="leave process_group out",
        )  # fmt: skip
