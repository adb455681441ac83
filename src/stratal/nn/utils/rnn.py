"""Sequences of different lengths: padded to one, or packed end to end, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.errors import AttributeValueError, CaptureError, ShapeError
from stratal.tensor.functions.elementwise import where
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.shapes import pad_constant, stack
from stratal.tensor.tensor import Tensor, tensor


class PackedSequence(NamedTuple):
    """Sequences in order of length, longest first: all first steps, then all second ones, and so on.

    `data` is [all steps, ...]; `batch_sizes`, ints, says how many sequences have each step. The indices,
    int64 [N] or None, sort the caller's sequences by length and put them back. Shapes follow from the
    sizes, so they are known when a function is compiled: other sizes are another program.
    """

    data: Tensor
    batch_sizes: tuple[int, ...]
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None


tree.register(
    PackedSequence, lambda p: ([p.data, p.sorted_indices, p.unsorted_indices], p.batch_sizes),
    lambda sizes, children: PackedSequence(children[0], sizes, *children[1:]),
)  # fmt: skip


def _known(name: str, lengths: Any) -> np.ndarray[Any, Any]:
    """Return lengths as an array. Raises: CaptureError where they are not known now."""
    try:
        found = np.asarray(lengths.detach() if isinstance(lengths, Tensor) else lengths)
    except CaptureError as error:
        raise CaptureError(
            f"{name}: lengths decide shapes, so they are known before a function is compiled",
            got=error.got, hint="pass them as a list of ints; a Trainer, whose batches are tensors, takes "
            "compiled=False",
        ) from None  # fmt: skip
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ShapeError(f"{name}: lengths are a vector of ints", got=f"{found.dtype}{list(found.shape)}")
    return found.astype(np.int64)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the permutation that undoes one."""
    return None if permutation is None else tensor(np.argsort(_known("invert_permutation", permutation)))


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences [T, N, ...] ([N, T, ...] with `batch_first`) of the given lengths.

    With `enforce_sorted` the longest come first already.
    """
    if input.ndim < 2:
        raise ShapeError("pack_padded_sequence: takes [T, N, ...]", got=f"shape {list(input.shape)}")
    x = input.permute(1, 0, *range(2, input.ndim)) if batch_first else input
    sizes = _known("pack_padded_sequence", lengths)
    steps, batch = (int(n) for n in x.shape[:2])
    if len(sizes) != batch or (batch and (sizes.min() < 1 or sizes.max() > steps)):
        raise AttributeValueError(
            f"pack_padded_sequence: takes {batch} lengths between 1 and {steps}", got=str(sizes.tolist())
        )
    order = undone = None
    if enforce_sorted:
        if np.any(np.diff(sizes) > 0):
            raise AttributeValueError(
                "pack_padded_sequence: lengths must not increase", got=str(sizes.tolist()),
                hint="enforce_sorted=False sorts",
            )  # fmt: skip
    else:
        ranks = np.argsort(-sizes, kind="stable")
        order, undone, sizes = tensor(ranks), tensor(np.argsort(ranks)), sizes[ranks]
        x = take(x, order, axis=1)
    counts = [int((sizes > step).sum()) for step in range(int(sizes.max(initial=0)))]
    places = np.concatenate([step * batch + np.arange(n) for step, n in enumerate(counts)] or [np.arange(0)])
    data = take(x.reshape((steps * batch, *x.shape[2:])), tensor(places), axis=0)
    return PackedSequence(data, tuple(counts), order, undone)


def padded_sorted(packed: PackedSequence, padding_value: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the sequences padded, [T, N, ...], still longest first, and where they go on, bool [T, N]."""
    counts = np.array(packed.batch_sizes, np.int64)
    batch = int(counts.max(initial=0))
    inside = np.arange(batch) < counts[:, None]
    starts = np.cumsum(counts) - counts
    places = np.where(inside, starts[:, None] + np.arange(batch), 0)
    x, running = take(packed.data, tensor(places), axis=0), tensor(inside)
    there = running.reshape((*inside.shape, *(1,) * (x.ndim - 2)))
    return where(there, x, padding_value), running


def packed_like(x: Tensor, like: PackedSequence) -> PackedSequence:
    """Pack [T, N, ...], longest first, with the sizes and order of another packed sequence."""
    batch = int(x.shape[1])
    places = np.concatenate([step * batch + np.arange(n) for step, n in enumerate(like.batch_sizes)])
    data = take(x.reshape((-1, *x.shape[2:])), tensor(places), axis=0)
    return like._replace(data=data)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return packed sequences padded, [T, N, ...] in the caller's order, and their lengths, int64 [N]."""
    if not isinstance(sequence, PackedSequence):
        raise AttributeValueError("pad_packed_sequence: takes a PackedSequence", got=type(sequence).__name__)
    x, _ = padded_sorted(sequence, padding_value)
    counts = np.array(sequence.batch_sizes)
    steps = len(counts)
    if total_length is not None:
        if total_length < steps:
            raise AttributeValueError(
                f"pad_packed_sequence: total_length is at least {steps}", got=str(total_length)
            )
        pads = [(0, total_length - steps)] + [(0, 0)] * (x.ndim - 1)
        x = pad_constant(x, pads, padding_value)
    lengths = tensor((np.arange(counts.max(initial=0)) < counts[:, None]).sum(0))
    if sequence.unsorted_indices is not None:
        x = take(x, sequence.unsorted_indices, axis=1)
        lengths = take(lengths, sequence.unsorted_indices, axis=0)
    return (x.permute(1, 0, *range(2, x.ndim)) if batch_first else x), lengths


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Stack sequences [T_k, ...] into [T, N, ...] ([N, T, ...] with `batch_first`), padded to the longest."""
    given = list(sequences)
    if not given or any(s.ndim < 1 or s.shape[1:] != given[0].shape[1:] for s in given):
        raise ShapeError(
            "pad_sequence: takes tensors that differ in their first size only",
            got=", ".join(str(list(s.shape)) for s in given) or "none",
        )
    if padding_side not in ("right", "left"):
        raise AttributeValueError("pad_sequence: padding_side is 'right' or 'left'", got=repr(padding_side))
    longest = max(int(s.shape[0]) for s in given)
    rows = []
    for s in given:
        missing = longest - int(s.shape[0])
        first = (missing, 0) if padding_side == "left" else (0, missing)
        rows.append(pad_constant(s, [first] + [(0, 0)] * (s.ndim - 1), padding_value))
    return stack(rows, axis=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Return the sequences of a padded batch, each of its own length."""
    x = padded_sequences if batch_first else padded_sequences.permute(1, 0, *range(2, padded_sequences.ndim))
    return [x[k, :n] for k, n in enumerate(_known("unpad_sequence", lengths).tolist())]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [T_k, ...]; with `enforce_sorted` the longest come first already."""
    lengths = [int(s.shape[0]) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences of a packed one, in the caller's order."""
    x, lengths = pad_packed_sequence(packed_sequences)
    return unpad_sequence(x, lengths)
