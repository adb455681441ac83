"""Connectionist temporal classification: the likelihood of a label sequence, summed over all alignments.

See: Graves et al. 2006. The forward variables run over time in one scan; gradients are the scan's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.nn.functional.reductions import reduced
from stratal.tensor.build import call, required
from stratal.tensor.functions.creation import arange, full
from stratal.tensor.functions.elementwise import cast, exp, log, maximum, where
from stratal.tensor.functions.indexing import take, take_along_axis
from stratal.tensor.functions.shapes import broadcast_to, pad_constant
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.transformations.control import scan

_NEVER = -1e30  # the logarithm of what cannot be: finite, so that sums and differences stay numbers
_IMPOSSIBLE = -1e29


def ctc_loss(
    log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False
) -> Tensor:
    """Return minus the logarithm of the probability of label sequences, of all their alignments together.

    A mean divides each loss by its target's length first. Where a target cannot be aligned the loss is
    infinite, or, with `zero_infinity`, 0 with no gradient.
    Shapes: log_probs [T, N, C] (or [T, C]); targets [N, S] of integers other than `blank`, padded, or all end
    to end as one vector; lengths [N] (or scalars).
    """
    if log_probs.ndim not in (2, 3) or not log_probs.dtype.is_float or 0 in log_probs.shape:
        raise ShapeError("ctc_loss: takes log-probabilities [T, N, C] or [T, C]", got=str(log_probs.type))
    classes = int(log_probs.shape[-1])
    if not 0 <= blank < classes:
        raise AttributeValueError("ctc_loss: blank is one of the classes", got=f"{blank} of {classes}")
    batched = log_probs.ndim == 3
    x = log_probs if batched else log_probs.reshape((log_probs.shape[0], 1, classes))
    steps, batch = int(x.shape[0]), x.shape[1]
    lengths = _lengths("input_lengths", input_lengths, batch, most=steps)
    shape = targets.shape if isinstance(targets, Tensor) else np.shape(targets)
    longest = int(shape[1]) if len(shape) == 2 else None
    sizes = _lengths("target_lengths", target_lengths, batch, most=longest)
    labels = _labels(targets, sizes, batch, batched)
    inside = arange(int(labels.shape[1])) < sizes.reshape((batch, 1))
    labels = where(inside, labels, blank)  # what pads a row may be anything
    x = cast(x, log_probs.dtype.compute)
    ends = _forward(x, labels, lengths, blank)
    last = (2 * sizes).reshape((batch, 1))
    with_blank = take_along_axis(ends, last, axis=1)
    without = where(last > 0, take_along_axis(ends, maximum(last - 1, 0), axis=1), _NEVER)
    likelihood = _log_sum(with_blank, without).reshape((batch,))
    likelihood = where(lengths == 0, where(sizes == 0, 0.0, _NEVER), likelihood)
    possible = likelihood > _IMPOSSIBLE
    loss = where(possible, -likelihood, 0.0 if zero_infinity else float("inf"))
    loss = cast(loss, log_probs.dtype)
    if reduction == "mean":
        return (loss / cast(maximum(sizes, 1), loss.dtype)).mean()
    return reduced(loss if batched else loss.reshape(()), reduction)


def _lengths(name: str, given: Any, batch: Any, most: int | None = None) -> Tensor:
    found = given if isinstance(given, Tensor) else tensor(np.asarray(given))
    found = found if found.ndim else found.reshape((1,))
    if not found.dtype.is_integer or found.shape != (batch,):
        raise ShapeError(f"ctc_loss: {name} is one integer per sample", got=f"{found.type} for {batch}")
    known = given if isinstance(given, (int, list, tuple, np.ndarray)) else None
    if known is not None and most is not None and np.max(known) > most:
        raise AttributeValueError(f"ctc_loss: {name} is at most {most}", got=str(np.ravel(known).tolist()))
    found = cast(found, "int64")
    if known is not None or most is None:
        return found
    return required(found, (found < 0) | (found > most), 1, f"ctc_loss: {name} lies in [0, {most}]")


def _labels(targets: Any, sizes: Tensor, batch: Any, batched: bool) -> Tensor:
    """Return the targets as a padded matrix [N, S]."""
    found = targets if isinstance(targets, Tensor) else tensor(np.asarray(targets))
    if not found.dtype.is_integer:
        raise DTypeError("ctc_loss: targets are integers", got=str(found.dtype))
    found = cast(found, "int64")
    if found.ndim == 2 and found.shape[0] == batch:
        return found if found.shape[1] else pad_constant(found, [(0, 0), (0, 1)])
    if found.ndim != 1:
        raise ShapeError("ctc_loss: targets are [N, S] or one vector", got=f"shape {list(found.shape)}")
    if not batched:
        return found.reshape((1, -1)) if found.numel() else full((1, 1), 0, dtype="int64")
    # All end to end: each sample's labels start where those before it end.
    total = int(found.shape[0])
    if not total:
        return full((batch, 1), 0, dtype="int64")
    starts = (sizes.cumsum(axis=0) - sizes).reshape((batch, 1))
    places = starts + arange(total)
    return take(found, where(places < total, places, 0), axis=0)


def _forward(x: Tensor, labels: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Return the forward variables at each sample's last step, [N, 2 S + 1]: labels with blanks around."""
    steps, batch, count = int(x.shape[0]), x.shape[1], int(labels.shape[1])
    around = pad_constant(labels.reshape((batch, count, 1)), [(0, 0), (0, 0), (1, 0)], blank)
    states = pad_constant(around.reshape((batch, 2 * count)), [(0, 0), (0, 1)], blank)
    # A state is entered from itself, the one before, and, past a blank between different labels, the one
    # before.
    skips = (states != blank) & (states != pad_constant(states[:, :-2], [(0, 0), (2, 0)], blank))
    index = broadcast_to(states.reshape((1, *states.shape)), (steps, *states.shape))
    emitted = maximum(call("gather_along", x, index, axis=2), _NEVER)
    first = where(arange(2 * count + 1) < 2, emitted[0], _NEVER)

    def step(alpha: Tensor, row: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        seen, running = row
        padded = pad_constant(alpha, [(0, 0), (2, 0)], _NEVER)
        jumped = where(skips, padded[:, :-2], _NEVER)
        entered = _log_sum(alpha, padded[:, 1:-1], jumped) + seen
        return where(running, maximum(entered, _NEVER), alpha), None

    if steps == 1:
        return first
    running = (arange(1, steps).reshape((-1, 1)) < lengths).reshape((steps - 1, batch, 1))
    last, _ = scan(step, first, (emitted[1:], running))
    return last  # type: ignore[no-any-return]


def _log_sum(*terms: Tensor) -> Tensor:
    """Return log(sum(exp(terms))), whose terms are finite."""
    high = terms[0]
    for term in terms[1:]:
        high = maximum(high, term)
    high = high.detach()
    total = exp(terms[0] - high)
    for term in terms[1:]:
        total = total + exp(term - high)
    return high + log(total)
