"""`stratal.fft` against NumPy: values, sizes, scales, dtypes, errors, derivatives."""

import numpy as np
import pytest

import stratal as st

pytestmark = pytest.mark.quick

NORMS = ("backward", "ortho", "forward")
REAL, WHOLE = (
    np.random.default_rng(0).standard_normal((2, 5, 6)),
    np.exp(1j * np.arange(60.0)).reshape(2, 5, 6),
)


def close(got, want, rtol=1e-12):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=rtol)


@pytest.mark.sampled(26)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options", [{}, {"n": 4}, {"n": 9, "axis": 1}, {"axis": 0}, {"n": 1}, {"n": 7}], ids=str
)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_transforms_along_one_axis_agree_with_numpy(name, options, norm):
    x = REAL if name in ("rfft", "ihfft") else WHOLE
    close(getattr(st.fft, name)(x, norm=norm, **options), getattr(np.fft, name)(x, norm=norm, **options))


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "options", [{}, {"axes": (0, 2)}, {"s": (3, 8), "axes": (1, 2)}, {"axes": (2, 0, 1)}], ids=str
)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"])
def test_transforms_along_several_axes_agree_with_numpy(name, options):
    if name.endswith("2") and len(options.get("axes", (0, 1))) != 2:
        pytest.skip("two axes")
    x = REAL if name.startswith("r") else WHOLE
    for norm in NORMS:
        close(getattr(st.fft, name)(x, norm=norm, **options), getattr(np.fft, name)(x, norm=norm, **options))


def test_pytorch_names_axes_dim_and_leaves_sizes_of_minus_one():
    close(st.fft.fft(WHOLE, dim=0), np.fft.fft(WHOLE, axis=0))
    close(st.fft.fftn(WHOLE, s=(-1, 4), dim=(0, 2)), np.fft.fftn(WHOLE, s=(2, 4), axes=(0, 2)))
    close(st.fft.fftn(WHOLE, s=(3, 4)), np.fft.fftn(WHOLE, s=(3, 4), axes=(1, 2)))
    close(st.fft.rfft(REAL, 8), np.fft.rfft(REAL, 8))
    close(st.fft.irfft(st.fft.rfft(REAL, dim=1), 5, dim=1), REAL)


@pytest.mark.parametrize(
    ("given", "want"),
    [("float32", "complex64"), ("float64", "complex128"), ("complex64", "complex64"), ("int64", "complex64")],
)
def test_precision_stays(given, want):
    x = st.ones((4,), dtype=given)
    assert st.fft.fft(x).dtype.name == want
    back = {"complex64": "float32", "complex128": "float64"}[want]
    assert st.fft.irfft(x).dtype.name == back
    if not given.startswith("complex"):
        assert st.fft.rfft(x).dtype.name == want


@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_frequencies_and_shifts(n):
    close(st.fft.fftfreq(n, 0.5, dtype=st.float64), np.fft.fftfreq(n, 0.5))
    close(st.fft.rfftfreq(n, d=2.0, dtype=st.float64), np.fft.rfftfreq(n, 2.0))
    assert st.fft.fftfreq(n).dtype is st.float32
    x = np.arange(3.0 * n).reshape(3, n)
    for axes in (None, 1, (0, 1), [0]):
        close(st.fft.fftshift(x, axes), np.fft.fftshift(x, axes))
        close(st.fft.ifftshift(x, axes=axes), np.fft.ifftshift(x, axes))


def test_a_stack_of_none_and_of_one():
    close(st.fft.fft(np.zeros((0, 4))), np.zeros((0, 4), complex))
    close(st.fft.rfft(np.zeros((0, 4))), np.zeros((0, 3), complex))
    close(st.fft.irfft(np.zeros((0, 3))), np.zeros((0, 4)))
    close(st.fft.fft(np.ones((3, 1))), np.ones((3, 1), complex))
    close(st.fft.fftn(WHOLE, axes=()), WHOLE)
    assert np.isnan(st.fft.fft(np.array([1.0, np.nan])).numpy()).all()


BAD = {
    "empty": (lambda: st.fft.fft(np.zeros(0)), ValueError, "empty"),
    "no points": (lambda: st.fft.fft(np.ones(4), n=0), ValueError, "positive"),
    "points": (lambda: st.fft.fft(np.ones(4), n=2.5), ValueError, "positive int"),
    "one term": (lambda: st.fft.irfft(np.ones(1)), ValueError, "positive"),
    "scalar": (lambda: st.fft.fft(np.ones(())), ValueError, "axis out of range"),
    "axis": (lambda: st.fft.fft(np.ones(4), axis=1), ValueError, "axis out of range"),
    "twice": (lambda: st.fft.fftn(np.ones((4, 4)), axes=(0, 0)), ValueError, "twice"),
    "sizes": (lambda: st.fft.fftn(np.ones((4, 4)), s=(2,), axes=(0, 1)), ValueError, "every axis"),
    "many sizes": (lambda: st.fft.fftn(np.ones(4), s=(2, 2)), ValueError, "more sizes"),
    "norm": (lambda: st.fft.fft(np.ones(4), norm="none"), ValueError, "norm"),
    "complex": (lambda: st.fft.rfft(np.ones(4) * 1j), TypeError, "real"),
    "half": (lambda: st.fft.fft(st.ones((4,), dtype=st.float16)), TypeError, "takes"),
    "frequencies": (lambda: st.fft.fftfreq(0), ValueError, "positive"),
    "no axes": (lambda: st.fft.rfftn(np.ones(())), ValueError, "at least one axis"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name):
    call, kind, says = BAD[name]
    with pytest.raises(kind, match=says) as caught:
        call()
    assert isinstance(caught.value, st.StratalError)


SMOOTH = {
    "fft cut": (lambda x: st.fft.fft(x, 3), WHOLE[0, :2, :4]),
    "fft padded": (lambda x: st.fft.fft(x, 5, norm="ortho"), WHOLE[0, :2, :3]),
    "fft of real": (lambda x: st.fft.fft(x), REAL[0, :2, :3]),
    "rfftn": (lambda x: st.fft.rfftn(x, s=(2, 5)), REAL[0, :3, :4]),
    "irfftn": (lambda x: st.fft.irfftn(x, norm="forward"), WHOLE[0, :2, :3]),
    "hfft": (lambda x: st.fft.hfft(x, 5), WHOLE[0, 0, :3]),
    "ihfft": (lambda x: st.fft.ihfft(x, norm="ortho"), REAL[0, 0, :4]),
    "power": (lambda x: st.abs(st.fft.rfft(x)) ** 2, REAL[0, 0, :5]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_finite_differences(name):
    function, x = SMOOTH[name]
    assert st.check_grad(function, [x], order=2).ok


def test_a_convolution_by_transforms_compiles():
    @st.compile
    def convolve(x, y):
        n = x.shape[-1] + y.shape[-1] - 1
        return st.fft.irfft(st.fft.rfft(x, n) * st.fft.rfft(y, n), n)

    x, y = np.arange(5.0), np.array([1.0, -2.0, 3.0])
    close(convolve(st.tensor(x), st.tensor(y)), np.convolve(x, y), 1e-9)
