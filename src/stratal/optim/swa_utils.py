"""Averages of weights over training: equal (SWA) or exponential (EMA). See: Izmailov et al. 2018."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn.module import Module
from stratal.optim.lr_scheduler.cosine import SWALR as SWALR
from stratal.tensor.functions.elementwise import where
from stratal.tensor.lazy.flushing import end_step
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad

# From the averaged value, the current one and how many were averaged to the averaged; or in place, for all.
AvgFn = Callable[[Tensor, Tensor, Tensor], Tensor]
MultiAvgFn = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]


def get_swa_avg_fn() -> AvgFn:
    """Return the function of an equally weighted average."""
    return _swa_average


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """Return the function of an exponential average: decay * averaged + (1 - decay) * current."""
    if not 0.0 <= decay <= 1.0:
        raise AttributeValueError("get_ema_avg_fn: decay must lie in [0, 1]", got=str(decay))
    return partial(_ema_average, decay)


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """Return the function of an equally weighted average, in place."""
    return partial(_in_place, get_swa_avg_fn())


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """Return the function of an exponential average, in place."""
    return partial(_in_place, get_ema_avg_fn(decay))


def _swa_average(averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
    return averaged + (current - averaged) / (num_averaged.to(averaged.dtype) + 1)


def _ema_average(decay: float, averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
    return decay * averaged + (1 - decay) * current


def _in_place(
    avg_fn: AvgFn, averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor
) -> None:
    for ours, theirs in zip(averaged, current, strict=True):
        ours.copy_(avg_fn(ours, theirs, num_averaged).to(ours.dtype))


class AveragedModel(Module):
    """A copy of a model that holds the average of its parameters, with `use_buffers` of its buffers too.

    `update_parameters` takes the model's values the first time and averages from then on; buffers that are
    not averaged follow the model. It may stand in a compiled step: its count is a buffer, `n_averaged`.
    """

    def __init__(
        self, model: Module, device: Any = None, avg_fn: AvgFn | None = None,
        multi_avg_fn: MultiAvgFn | None = None, use_buffers: bool = False
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AttributeValueError("AveragedModel: takes avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", tensor(0, dtype="int64"))
        self.multi_avg_fn = multi_avg_fn or partial(_in_place, avg_fn or _swa_average)
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the present values of `model` into the average."""
        ours: list[Tensor] = list(self.module.parameters())
        theirs: list[Tensor] = list(model.parameters())
        buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
        if self.use_buffers:
            ours += [b for b, _ in buffers]
            theirs += [b for _, b in buffers]
        with no_grad():
            moved = [p._snapshot() for p in ours]  # values: each cell is written once
            self.multi_avg_fn(moved, theirs, self.n_averaged)
            for averaged, current in zip(ours, theirs, strict=True):
                averaged.copy_(where(self.n_averaged == 0, current, moved.pop(0)))
            if not self.use_buffers:
                for averaged, current in buffers:
                    averaged.copy_(current)
            self.n_averaged.copy_(self.n_averaged + 1)
        end_step()


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Set the running statistics of all norms that track them to the averages over one pass of `loader`.

    A batch is a tensor, or a tuple or list that begins with one.
    """
    norms = [m for m in model.modules() if getattr(m, "track_running_stats", False)]
    if not norms:
        return
    momenta, was_training = [m.momentum for m in norms], model.training
    try:
        model.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over all batches
        with no_grad():
            for batch in loader:
                model(batch[0] if isinstance(batch, (list, tuple)) else batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(was_training)
