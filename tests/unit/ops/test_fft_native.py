"""Fourier transforms in native code equal NumPy's in float64, whatever the length, and leave no host call."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st

SHAPES = (
    (1,), (2,), (17,), (1000,), (7, 20), (9, 97), (9, 131), (20, 1517), (3, 1001), (40, 96), (4, 4, 6),
    (12, 10, 9), (7, 5000), (20000,),
)  # fmt: skip
CLOSE = {np.float32: 1e-6, np.float64: 1e-14}  # of the largest result
CALLS = {
    "fft": lambda m, z: m.fft(z),
    "fft of reals": lambda m, z: m.fft(z.real, norm="ortho"),
    "fft of the first axis": lambda m, z: m.fft(z, axis=0),
    "ifft": lambda m, z: m.ifft(z),
    "ifft of reals": lambda m, z: m.ifft(z.real, norm="forward"),
    "rfft": lambda m, z: m.rfft(z.real),
    "irfft": lambda m, z: m.irfft(z, 2 * z.shape[-1]),
    "irfft of odd length": lambda m, z: m.irfft(z, 2 * z.shape[-1] - 1, norm="ortho"),
    "rfftn": lambda m, z: m.rfftn(z.real),
    "irfftn": lambda m, z: m.irfftn(z, (2 * z.shape[-1],), (-1,), norm="forward"),
}


@pytest.mark.sampled(23)
@pytest.mark.parametrize("dtype", CLOSE, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transforms_of_every_kind_of_length_are_numpys(shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(len(shape))
    z = rng.standard_normal(shape).astype(dtype) + 1j * rng.standard_normal(shape).astype(dtype)
    wide = z.astype(np.complex128)

    @st.compile
    def all_of_them(z: st.Tensor) -> list[st.Tensor]:
        return [call(st.fft, z) for call in CALLS.values()]

    got = all_of_them(st.tensor(z))
    assert not all_of_them.program.plan.host_calls
    for (name, call), result in zip(CALLS.items(), got, strict=True):
        want = call(np.fft, wide)
        assert result.numpy().dtype == (z if np.iscomplexobj(want) else z.real).dtype, name
        error = np.max(np.abs(result.numpy() - want)) / np.max(np.abs(want))
        assert error < CLOSE[dtype], f"{name}: {error:.1e}"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("n", [*range(1, 24), 32, 37, 74, 121, 127, 169, 210, 343, 4096])
def test_every_radix_is_right(n: int) -> None:
    z = np.random.default_rng(n).standard_normal((2, 8, n, 2)) @ [1, 1j]
    got = st.compile(lambda z: st.fft.fft(st.fft.ifft(z), norm="forward"))(st.tensor(z)).numpy()
    np.testing.assert_allclose(got * n, z, atol=2e-14)
    np.testing.assert_allclose(st.fft.fft(st.tensor(z)).numpy(), np.fft.fft(z), atol=4e-14 * n**0.5)


def test_parts_that_a_real_result_cannot_have_are_ignored() -> None:
    z = np.arange(10).reshape(2, 5) * (1 + 2j)
    for n in (8, 9):
        got = st.compile(lambda z, n=n: st.fft.irfft(z, n))(st.tensor(z)).numpy()
        np.testing.assert_allclose(got, np.fft.irfft(z, n), atol=1e-14)


def test_special_values_spread_over_their_line_only() -> None:
    x = np.ones((20, 24), np.float32)
    x[3, 5], x[7, 0] = np.nan, np.inf
    got = st.fft.rfft(st.tensor(x)).numpy()
    bad = ~np.isfinite(got)
    assert bad.any(1).tolist() == [row in (3, 7) for row in range(20)]
    assert np.isnan(got[3]).all()


def test_a_line_too_long_for_tables_runs_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratal.ops.fourier.in_reals.LONGEST", 100)
    x = np.random.default_rng(0).standard_normal(101)
    transform = st.compile(st.fft.rfft)
    np.testing.assert_allclose(transform(st.tensor(x)).numpy(), np.fft.rfft(x), atol=1e-12)
    assert [call["op"][:5] for call in transform.program.plan.host_calls] == ["rfft("]


@pytest.mark.parametrize("n", [12, 15])
def test_gradients_of_native_transforms_agree_with_differences(n: int) -> None:
    def loss(x: st.Tensor) -> st.Tensor:
        spectrum = st.fft.rfft(x)
        return (abs(spectrum) ** 2).sum() + (st.fft.irfft(spectrum * (1 + 2j), n) ** 3).sum()

    assert st.check_grad(loss, np.random.default_rng(n).standard_normal((3, n)), order=2).ok
