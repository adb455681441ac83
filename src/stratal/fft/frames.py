"""Spectrograms: the transforms of overlapping frames of a signal, and the signal they came from."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError, StratalError
from stratal.fft.transforms import fft, ifft, irfft, rfft
from stratal.tensor.build import as_tensor
from stratal.tensor.composites.joining import pad
from stratal.tensor.composites.signals import unfold
from stratal.tensor.functions.creation import arange, ones, zeros
from stratal.tensor.functions.indexing import index_add
from stratal.tensor.functions.parts import real, view_as_real
from stratal.tensor.functions.shapes import narrow, pad_constant
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE

_MODES = {"replicate": "edge", "circular": "wrap"}  # PyTorch's words for NumPy's


def _framing(
    name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Any
) -> tuple[int, Tensor]:
    """Return the hop and a window of `n_fft` weights: a shorter one stands in the middle of zeros."""
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 0 < length <= n_fft:
        raise AttributeValueError(
            f"{name}: n_fft, hop_length and win_length are positive, the last at most n_fft",
            got=f"{n_fft}, {hop}, {length}",
        )
    weights = ones((length,)) if window is None else as_tensor(window, name)
    if tuple(weights.shape) != (length,):
        raise ShapeError(f"{name}: the window has win_length weights", got=f"{weights.type} for {length}")
    before = (n_fft - length) // 2
    return hop, pad_constant(weights, [(before, n_fft - length - before)])


def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return the transform of every frame of a signal, complex; frames start `hop_length` (n_fft / 4) apart.

    With `center` frame t is centred at sample t * hop_length of the signal, padded at both ends. `window` has
    `win_length` (n_fft) weights, all 1 by default. `normalized` divides by sqrt(n_fft). `onesided` leaves the
    conjugate half out, by default for real signals. `return_complex=False` gives pairs of real numbers.
    Shapes: [L] or [N, L] -> [..., n_fft // 2 + 1 (or n_fft), frames].
    """
    x = as_tensor(input, "stft")
    hop, weights = _framing("stft", n_fft, hop_length, win_length, window)
    if x.ndim not in (1, 2):
        raise ShapeError("stft: takes a signal [L] or a batch of them [N, L]", got=str(x.type))
    if center:
        around = [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        x = pad(x, around, mode=_MODES.get(pad_mode, pad_mode))
    if int(x.shape[-1]) < n_fft:
        raise ShapeError("stft: the signal is shorter than a frame", got=f"{x.type}, n_fft {n_fft}")
    frames = unfold(x, -1, n_fft, hop) * weights
    half = not frames.dtype.is_complex if onesided is None else onesided
    transform = rfft if half else fft
    made = transform(frames, norm="ortho" if normalized else None).mT
    return made if return_complex or return_complex is None else view_as_real(made)


def istft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """Return the signal whose `stft`, of the same arguments, is nearest (Griffin and Lim, 1984).

    Where windows overlap, what they weigh is divided out. `length` cuts the signal or pads it with zeros.
    Shapes: [..., n_fft // 2 + 1 (or n_fft), frames] -> [..., L]. Raises: StratalError where no window covers
    a sample (compiled functions cannot look: they divide by 0).
    """
    spectra = as_tensor(input, "istft")
    hop, weights = _framing("istft", n_fft, hop_length, win_length, window)
    bins = n_fft if return_complex or onesided is False else n_fft // 2 + 1
    if not spectra.dtype.is_complex or spectra.ndim not in (2, 3) or int(spectra.shape[-2]) != bins:
        raise ShapeError(
            "istft: takes complex spectra [..., bins, frames]", got=f"{spectra.type} for {bins} bins"
        )
    norm = "ortho" if normalized else None
    back = irfft(spectra.mT, n_fft, norm=norm) if bins < n_fft or n_fft == 1 else ifft(spectra.mT, norm=norm)
    frames = (back if return_complex else real(back)) * weights
    count = int(frames.shape[-2])
    total = n_fft + hop * (count - 1)
    places = (hop * arange(count)[:, None] + arange(n_fft)).reshape(-1)

    def added(parts: Tensor) -> Tensor:
        return index_add(zeros((*parts.shape[:-1], total), dtype=parts.dtype), -1, places, parts)

    start = n_fft // 2 if center else 0
    stop = total - start if length is None else min(start + length, total)
    signal = added(frames.reshape((*frames.shape[:-2], count * n_fft)))
    covered = added((weights * weights).expand(count, n_fft).reshape(-1))
    signal, covered = (narrow(v, -1, start, max(stop - start, 0)) for v in (signal, covered))
    if MODE.trace is None and covered.numel() and float(covered.min()) < 1e-11:
        raise StratalError("istft: the windows leave samples uncovered", got=f"hop {hop}, n_fft {n_fft}",
                           hint="use a shorter hop, or a window without zeros")  # fmt: skip
    signal = signal / covered
    missing = 0 if length is None else length - int(signal.shape[-1])
    return pad_constant(signal, [(0, 0)] * (signal.ndim - 1) + [(0, missing)])
