"""Windows, frames and spectrograms against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st

NUMPY = ("hanning", "hamming", "blackman", "bartlett")
SIGNAL = np.random.default_rng(0).standard_normal((2, 50))


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_symmetric_windows_are_numpys(name: str, n: int) -> None:
    np.testing.assert_allclose(getattr(st, name)(n), getattr(np, name)(n), atol=1e-7)
    np.testing.assert_allclose(st.kaiser(n, 5.0), np.kaiser(n, 5.0), atol=1e-7)


@pytest.mark.torch
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows_are_pytorchs(name: str, periodic: bool) -> None:
    torch = pytest.importorskip("torch")
    for n in (0, 1, 2, 8, 9):
        got = getattr(st, f"{name}_window")(n, periodic, dtype=st.float64)
        want = getattr(torch, f"{name}_window")(n, periodic, dtype=torch.float64)
        np.testing.assert_allclose(got, want, atol=1e-12)
    np.testing.assert_allclose(
        st.hamming_window(7, periodic, 0.6, 0.3), torch.hamming_window(7, periodic, 0.6, 0.3), atol=1e-7
    )


@pytest.mark.parametrize("step", [1, 2, 3, 9])
@pytest.mark.parametrize(("axis", "size"), [(0, 2), (1, 3), (-1, 5), (1, 5)])
def test_unfold_gives_numpys_sliding_windows(axis: int, size: int, step: int) -> None:
    x = np.arange(60.0).reshape(3, 5, 4) if axis != -1 else np.arange(60.0).reshape(3, 4, 5)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    want = windows[(slice(None),) * (axis % 3) + (slice(None, None, step),)]
    np.testing.assert_array_equal(st.tensor(x).unfold(axis, size, step), want)
    assert st.check_grad(lambda t: t.unfold(axis, size, step) ** 2, st.tensor(x), order=2)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "hop": {"hop_length": 3, "window": st.hann_window(16)},
    "short window": {"hop_length": 2, "win_length": 9, "window": st.hamming_window(9)},
    "both sides": {"hop_length": 5, "onesided": False},
    "scaled": {"hop_length": 4, "normalized": True, "window": st.hann_window(16)},
    "not centred": {"hop_length": 4, "center": False, "window": st.hamming_window(16)},
    "other edge": {"pad_mode": "replicate"},
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:The length of signal")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("signal", [SIGNAL, SIGNAL[0]], ids=["batch", "one"])
def test_spectrograms_and_signals_made_of_them_are_pytorchs(case: str, signal: Any) -> None:
    torch = pytest.importorskip("torch")
    options = {k: v.double() if k == "window" else v for k, v in CASES[case].items()}
    theirs = {k: torch.tensor(v.numpy()) if k == "window" else v for k, v in options.items()}
    theirs.setdefault("window", torch.ones(16, dtype=torch.float64))
    got = st.stft(signal, 16, **options)
    want = torch.stft(torch.tensor(signal), 16, **theirs, return_complex=True)
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert options.pop("pad_mode", 0) == theirs.pop("pad_mode", 0)
    for length in (None, 40) if case == "short window" else (None, 40, 60):  # it does not cover the last ones
        back = st.istft(got, 16, **options, length=length)
        np.testing.assert_allclose(back, torch.istft(want, 16, **theirs, length=length), atol=1e-12)


def test_a_signal_comes_back_from_its_spectrogram_and_gradients_are_right() -> None:
    window = st.hann_window(16, dtype=st.float64)
    there_and_back = st.compile(lambda x: st.istft(st.stft(x, 16, 4, window=window), 16, 4, window=window))
    np.testing.assert_allclose(there_and_back(st.tensor(SIGNAL)), SIGNAL[:, :48], atol=1e-12)
    power = lambda x: st.abs(st.stft(x, 8, 4)) ** 2  # noqa: E731
    assert st.check_grad(power, st.tensor(SIGNAL[:, :20]))
    pairs = st.stft(SIGNAL, 16, return_complex=False)
    assert tuple(pairs.shape) == (2, 9, 13, 2)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: st.stft(SIGNAL, 0), "are positive"),
        (lambda: st.stft(SIGNAL, 16, 0), "are positive"),
        (lambda: st.stft(SIGNAL, 16, win_length=17), "at most n_fft"),
        (lambda: st.stft(SIGNAL, 16, window=st.ones((8,))), "win_length weights"),
        (lambda: st.stft(SIGNAL[None], 16), "a signal"),
        (lambda: st.stft(SIGNAL, 64, center=False), "shorter than a frame"),
        (lambda: st.istft(st.ones((9, 3)), 16), "complex spectra"),
        (lambda: st.istft(st.stft(SIGNAL, 16), 32), "complex spectra"),
        (lambda: st.istft(st.stft(SIGNAL, 16, center=False), 16, 16, center=False, window=st.hann_window(16)),
         "uncovered"),
        (lambda: st.tensor(SIGNAL).unfold(1, 51, 1), "longer than the axis"),
        (lambda: st.tensor(SIGNAL).unfold(1, 5, 0), "step positive"),
        (lambda: st.hann_window(-1), "not negative"),
        (lambda: st.hann_window(3, dtype=st.int32), "floats"),
    ],
)  # fmt: skip
def test_what_makes_no_frames_is_an_error(call: Any, rule: str) -> None:
    with pytest.raises(st.StratalError, match=rule):
        call()
