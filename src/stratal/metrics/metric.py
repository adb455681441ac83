"""What every metric is: sums over batches, kept in double precision on the host, and a value made of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError, not_given
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.capture.replayed_calls import replayed_method

Array = np.ndarray[Any, Any]
_PARTS: Final = (
    "define start(self), the sums before the first batch by name, batch(self, preds, target), what one adds, "
    "and value(self, state), in place of torchmetrics' add_state, update and compute"
)


class Metric:
    """Base of every metric: `update` with each batch, then `compute` the value over all.

    A subclass gives `start`, the sums before the first batch by name, and `batch`, what one batch adds.
    Calling a metric updates it and returns the value of that batch alone. `higher_is_better` says which way
    its value improves, None where that is not known; what monitors the metric goes by it.
    """

    higher_is_better: bool | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "batch")

    def __init__(self) -> None:
        self.reset()

    def start(self) -> dict[str, Any]:
        """Return the state before the first batch."""
        raise not_given(self, "start", _PARTS)

    def batch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what a batch adds to each entry of the state."""
        raise not_given(self, "batch", _PARTS)

    def value(self, state: dict[str, Any]) -> Any:
        """Return the metric of a state."""
        raise not_given(self, "value", _PARTS)

    def reset(self) -> None:
        """Forget all batches."""
        self.state, self._seen = self.start(), False

    def replayed_state(self) -> list[Any]:
        """Return what an update changes."""
        return [self]

    @replayed_method
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch. A compiled function adds one in each call, when its results are there."""
        self._add(self.batch(*args, **kwargs))

    def _add(self, added: dict[str, Any]) -> None:
        self.state = {name: total + added[name] for name, total in self.state.items()}
        self._seen = True

    def merge(self, other: Metric) -> None:
        """Add all that another metric of this kind has seen, such as that of another process."""
        if type(other) is not type(self) or other._settings() != self._settings():
            raise AttributeValueError(
                "merge: takes a metric of the same kind and settings",
                got=f"{type(other).__name__} {other._settings()}",
            )
        if other._seen:
            self._add(other.state)

    def _settings(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("state", "_seen")}

    def compute(self) -> Any:
        """Return the value over all batches: a float, or an array. Raises: before the first batch."""
        if not self._seen:
            raise AttributeValueError(
                f"{type(self).__name__}: compute before any batch", hint="call update(preds, target) first"
            )
        return self.value(self.state)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        added = self.batch(*args, **kwargs)
        self._add(added)
        empty = self.start()
        return self.value({name: empty[name] + added[name] for name in empty})


def pair(name: str, preds: Any, target: Any) -> tuple[Array, Array]:
    """Return two arrays of one shape, in double precision."""
    p, t = np.asarray(preds, np.float64), np.asarray(target, np.float64)
    if p.shape != t.shape:
        column = p.ndim == t.ndim + 1 and p.shape[:-1] == t.shape
        raise ShapeError(
            f"{name}: preds and target differ in shape", got=f"{list(p.shape)}, {list(t.shape)}",
            hint="" if not column else "preds.squeeze(-1)" if p.shape[-1] == 1
            else 'preds[..., 1] where they are of two classes; task="multiclass" of metrics that have tasks',
        )  # fmt: skip
    return p, t


def ratio(over: Any, under: Any) -> Array:
    """Return over / under, and 0 where that is 0 / 0."""
    over, under = np.asarray(over, np.float64), np.asarray(under, np.float64)
    made = np.zeros(np.broadcast(over, under).shape)
    with np.errstate(divide="ignore"):
        return np.asarray(np.divide(over, under, out=made, where=(over != 0) | (under != 0)))
