"""What the array API standard asks for: inspection, exchange without copies, sets, signs, scalar masks."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError
from stratal.tensor.functions.sets import LARGE

A = np.array([[1.5, -0.0, 0.0], [np.nan, -3.0, np.inf]], np.float32)
ROW = np.array([3.0, 1.0, 1.0, 2.0, np.nan, np.nan], np.float32)


def same(got, want):
    np.testing.assert_array_equal(np.asarray(got), want)


# -- the namespace -------------------------------------------------------------------------------------------
def test_the_namespace_describes_itself():
    info = st.__array_namespace_info__()
    assert info.devices() == [info.default_device()] == ["cpu"]
    assert info.default_dtypes()["integral"] is st.int64
    assert info.dtypes(kind=("bool", "complex floating")).keys() == {"bool", "complex64", "complex128"}
    assert all(getattr(st, name) is d for name, d in info.dtypes().items())
    assert st.ones(2).__array_namespace__(api_version=st.__array_api_version__) is st
    with pytest.raises(AttributeValueError, match="version"):
        st.ones(2).__array_namespace__(api_version="1999.01")


def test_there_is_one_device():
    x = st.ones(2)
    assert x.to_device("cpu") is x
    with pytest.raises(st.StratalError, match="CPU"):
        x.to_device("cuda")


# -- exchange ------------------------------------------------------------------------------------------------
def test_memory_is_shared_both_ways():
    theirs = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = st.from_dlpack(theirs)
    assert np.shares_memory(ours.numpy(), theirs)
    theirs[0, 0] = 10
    same(ours + 1, theirs + 1)
    assert np.shares_memory(np.from_dlpack(ours), theirs)


def test_memory_of_others_is_never_written():
    theirs = np.ones(3, np.float32)
    ours = st.from_dlpack(theirs)
    ours += 1

    @st.compile
    def step(x):
        x *= 2
        return x.sum()

    again = st.from_dlpack(theirs)
    step(again), step(again)
    same(ours, [2, 2, 2])
    same(again, [4, 4, 4])
    same(theirs, [1, 1, 1])


def test_arrays_laid_out_otherwise_are_read_as_they_lie():
    theirs = np.arange(6, dtype=np.float32).reshape(2, 3)
    for view in (theirs.T, theirs[:, ::2], theirs[::-1], theirs[:0], theirs[0, 1]):
        same(st.from_dlpack(np.asarray(view)), view)
    assert np.shares_memory(st.from_dlpack(theirs.T).numpy(), theirs)
    with pytest.raises(AttributeValueError, match="copy"):
        st.from_dlpack(theirs[:, ::2], copy=False)
    assert not np.shares_memory(st.from_dlpack(theirs, copy=True).numpy(), theirs)


def test_what_is_no_array_is_refused():
    with pytest.raises(DTypeError, match="__dlpack__"):
        st.from_dlpack([1, 2])


@pytest.mark.torch
def test_pytorch_shares_memory_with_us():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6.0).reshape(2, 3)
    assert st.from_dlpack(theirs).numpy().ctypes.data == theirs.data_ptr()
    ours = st.tensor([1.0, 2.0])
    torch.from_dlpack(ours)[0] = 7
    same(ours, [7, 2])
    short = torch.ones(2, dtype=torch.bfloat16)
    seen = st.from_dlpack(short)
    short[0] = 7
    same(seen.astype(st.float32), [7, 1])


# -- signs and parts -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_signs_and_neighbours_are_numpys(dtype):
    a, b = A.astype(dtype), np.array([2.0, -1.0, np.inf], dtype)
    same(st.signbit(st.tensor(a)), np.signbit(a))
    same(st.copysign(st.tensor(a), st.tensor(b)), np.copysign(a, b))
    same(st.signbit(st.copysign(st.tensor(b), st.tensor(a))), np.signbit(np.copysign(b, a)))
    same(st.nextafter(st.tensor(a), st.tensor(b)), np.nextafter(a, b))
    least = np.nextafter(np.zeros(2, dtype), dtype(1))
    same(st.nextafter(st.tensor(least), 0.0), [0, 0])


def test_signs_of_integers_are_those_of_their_floats():
    same(st.signbit(st.tensor([-1, 0, 2])), [True, False, False])
    assert st.copysign(st.tensor([1, 2]), -1.0).dtype is st.float32
    assert st.check_grad(st.copysign, [np.array([1.5, -2.0]), np.array([-1.0, 3.0])], order=2)


def test_parts_of_complex_numbers():
    z = np.array([3 + 4j, -1j, 0], np.complex64)
    for name in ("real", "imag", "conj", "sign", "abs", "angle"):
        np.testing.assert_allclose(np.asarray(getattr(st, name)(st.tensor(z))), getattr(np, name)(z), 1e-6)
    same(st.imag(st.tensor([1.0, 2.0])), [0, 0])
    same(st.real(st.tensor([1, 2])), [1, 2])
    np.testing.assert_allclose(np.asarray(st.angle(st.tensor([2.0, -2.0]))), [0, np.pi], 1e-6)
    with pytest.raises(DTypeError, match="complex"):
        st.signbit(st.tensor(z))


# -- sets ----------------------------------------------------------------------------------------------------
def test_sets_are_numpys_and_every_nan_is_its_own():
    found = st.unique_all(st.tensor(ROW))
    same(found.values, [1, 2, 3, np.nan, np.nan])
    same(found.counts, [2, 1, 1, 1, 1])
    same(ROW[np.asarray(found.indices)], np.asarray(found.values))
    same(np.asarray(found.values)[np.asarray(found.inverse_indices)], ROW)
    same(st.unique_counts(st.tensor(ROW)).values, np.asarray(st.unique_inverse(st.tensor(ROW)).values))
    grid = np.array([[1, 2], [2, 1], [1, 2]])
    same(st.unique(st.tensor(grid), dim=0), [[1, 2], [2, 1]])
    assert st.unique_inverse(st.tensor(grid)).inverse_indices.shape == (3, 2)
    _, counts = st.unique(st.tensor(grid), return_counts=True)
    same(counts, [3, 3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_sets_of_many_elements_are_those_of_few(dtype):
    rng = np.random.default_rng(0)
    x = np.rint(rng.normal(size=(LARGE + 3, 2)) * 3e3)
    if dtype in (np.float32, np.float64, np.float16):
        x[rng.random(x.shape) < 1e-3] = np.nan
        x = x.astype(dtype)
    else:
        x = (x % 256).astype(dtype)
    want = np.unique(x, True, True, True, equal_nan=False)
    for ours, theirs in zip(st.unique_all(st.tensor(x)), want, strict=True):
        same(ours, theirs)
    same(st.unique_values(st.tensor(x)), want[0])
    same(st.unique_counts(st.tensor(x)).counts, want[3])
    same(st.unique(st.tensor(x), return_inverse=True)[1], want[2])


def test_membership():
    x = st.tensor([[1, 2], [3, 4]])
    same(st.isin(x, st.tensor([2, 3])), [[False, True], [True, False]])
    same(st.isin(x, st.tensor([2, 3]), invert=True), [[True, False], [False, True]])
    same(st.isin(x, st.tensor([], dtype=st.int64)), [[False, False], [False, False]])


def test_sizes_that_are_data_are_refused_while_a_function_is_captured():
    for function in (st.unique_values, lambda x: st.repeat(x, st.tensor([1, 2]))):
        with pytest.raises(CaptureError, match="data"):
            st.compile(function)(st.tensor([1, 2]))


# -- order ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_places_in_sorted_rows_are_numpys(side, dtype):
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 31, 100):
        edges, x = rng.integers(0, 50, n).astype(dtype), rng.integers(0, 50, (7, 3)).astype(dtype)
        order = np.argsort(edges)
        want = np.searchsorted(edges[order], x, side)
        same(st.searchsorted(st.tensor(edges[order]), st.tensor(x), side=side), want)
        if n:
            found = st.searchsorted(st.tensor(edges), st.tensor(x), side=side, sorter=st.tensor(order))
            same(found, want)


def test_nan_comes_after_all_numbers():
    edges, x = np.array([1, 2, np.nan, np.nan], np.float32), np.array([np.nan, 2, np.inf], np.float32)
    for side in ("left", "right"):
        same(st.searchsorted(st.tensor(edges), st.tensor(x), side=side), np.searchsorted(edges, x, side))


def test_rows_have_edges_of_their_own():
    edges, x = np.sort(np.random.default_rng(0).random((3, 5)), axis=-1), np.full((3, 2), 0.5)
    want = [np.searchsorted(e, v) for e, v in zip(edges, x, strict=True)]
    same(st.searchsorted(st.tensor(edges), st.tensor(x)), want)
    with pytest.raises(ShapeError, match="rows"):
        st.searchsorted(st.tensor(edges), st.tensor(x[:2]))


def test_extremes_and_sorting_answer_in_the_words_they_were_asked():
    x = st.tensor([[1, 4], [3, 2]])
    same(st.max(x, axis=1), [4, 3])
    same(st.max(x, dim=1).indices, [1, 0])
    same(st.min(x, 0).values, [1, 2])
    same(st.sort(x, axis=0), [[1, 2], [3, 4]])
    same(st.sort(x, dim=0).indices, [[0, 1], [1, 0]])
    with pytest.raises(AttributeValueError, match="dims"):
        st.max(x, dims=1)


# -- shapes --------------------------------------------------------------------------------------------------
def test_an_axis_to_squeeze_must_have_size_one_unless_it_is_a_dim():
    x = st.ones(1, 3)
    assert st.squeeze(x, axis=0).shape == x.squeeze(0).shape == st.squeeze(x).shape == (3,)
    assert st.squeeze(x, dim=1).shape == x.squeeze(1).shape == (1, 3)
    with pytest.raises(ShapeError, match="size 1"):
        st.squeeze(x, axis=1)


def test_each_element_repeats_as_often_as_told():
    x = np.array([[1, 2], [3, 4]])
    same(st.repeat(st.tensor(x), st.tensor([2, 0]), axis=0), np.repeat(x, [2, 0], 0))
    same(st.repeat(st.tensor(x), 2), np.repeat(x, 2))
    for bad in (st.tensor([1, 2, 3]), st.tensor([[1, 2]]), st.tensor([0.5, 1])):
        with pytest.raises(ShapeError, match="count"):
            st.repeat(st.tensor(x), bad, axis=0)
    with pytest.raises(AttributeValueError, match="negative"):
        st.repeat(st.tensor(x), -1)


# -- neighbours ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_differences_are_numpys(axis, n):
    x = np.random.default_rng(0).standard_normal((3, 4))
    same(st.diff(st.tensor(x), axis=axis, n=n), np.diff(x, n, axis))
    row = np.ones_like(x).take([0], axis)
    got = st.diff(st.tensor(x), axis=axis, n=n, prepend=0.0, append=st.tensor(row))
    same(got, np.diff(x, n, axis, prepend=0.0, append=row))


def test_bools_differ_or_not():
    same(st.diff(st.tensor([True, False, False])), [True, False])


@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes_and_areas_are_numpys(edge_order):
    y, x = np.random.default_rng(0).random((4, 5)), np.array([0.0, 1.0, 1.5, 3.0, 7.0])
    for got, want in zip(
        st.gradient(st.tensor(y), edge_order=edge_order), np.gradient(y, edge_order=edge_order), strict=True
    ):
        np.testing.assert_allclose(np.asarray(got), want, 1e-12)
    got = st.gradient(st.tensor(y), spacing=st.tensor(x), axis=1, edge_order=edge_order)
    np.testing.assert_allclose(np.asarray(got), np.gradient(y, x, axis=1, edge_order=edge_order), 1e-12)
    area = np.trapezoid if hasattr(np, "trapezoid") else np.trapz
    np.testing.assert_allclose(np.asarray(st.trapezoid(st.tensor(y), st.tensor(x))), area(y, x), 1e-12)
    np.testing.assert_allclose(
        np.asarray(st.cumulative_trapezoid(st.tensor(y), dx=2.0))[:, -1], area(y, dx=2.0), 1e-12
    )


# -- masks and updates ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("mask", [True, False])
def test_masks_without_axes_add_one(mask):
    x = st.tensor(A)
    for ours in (mask, st.tensor(mask), np.bool_(mask)):
        same(x[ours], A[mask])
        same(x[:, ours, 1:], A[:, mask, 1:])
        same(x[0, ours], A[0, mask])


WRITES = [
    (np.array([True, False]), 5.0), (np.array([True, False]), np.array([1, 2, 3], np.float32)),
    (np.array([True, True]), np.array([[1, 2, 3]], np.float32)), (A > 1, np.array([9, 8], np.float32)),
    (A > 1, 3.0), (True, 4.0), (False, 4.0), (np.array(True), np.array([1, 2, 3], np.float32)),
]  # fmt: skip


@pytest.mark.parametrize("index, value", WRITES)
def test_writing_at_masks_is_numpys(index, value):
    want, x = A.copy(), st.tensor(A)
    want[index] = value
    x[st.tensor(index) if isinstance(index, np.ndarray) else index] = st.tensor(value)
    same(x, want)


def test_masks_can_be_written_at_while_a_function_is_captured():
    @st.compile
    def clear(x):
        x[x[:, 0] > 0] = 0.0
        return x

    same(clear(st.tensor([[1.0, 2.0], [-1.0, 2.0]])), [[0, 0], [-1, 2]])


def test_functional_updates_leave_the_tensor_alone():
    a = np.arange(6.0).reshape(2, 3)
    x, rows = st.tensor(a), st.tensor([0, 1, 0])
    same(x.at[0].set(7.0), [[7, 7, 7], [3, 4, 5]])
    same(x.at[:, 1].add(st.tensor([1.0, 2.0])), [[0, 2, 2], [3, 6, 5]])
    same(x.at[rows, 2].add(1.0), [[0, 1, 4], [3, 4, 6]])
    same(x.at[rows].subtract(1.0), [[-2, -1, 0], [2, 3, 4]])
    same(x.at[rows, rows].max(3.0), [[3, 1, 2], [3, 4, 5]])
    same(x.at[x > 3].min(0.0), [[0, 1, 2], [3, 0, 0]])
    same(x.at[0].multiply(2), [[0, 2, 4], [3, 4, 5]])
    same(x.at[1, ::2].divide(st.tensor([3.0, 5.0])), [[0, 1, 2], [1, 4, 1]])
    same(x.at[..., -1].power(2), [[0, 1, 4], [3, 4, 25]])
    same(x.at[rows].apply(lambda v: v + 1), a + 1)
    same(x.at[1].get(), a[1])
    same(x, a)
    with pytest.raises(AttributeValueError, match="twice"):
        x.at[rows].multiply(2)


def test_functional_updates_have_gradients():
    rows = st.tensor([0, 1, 0])
    x, v = np.random.default_rng(0).random((2, 3)), np.random.default_rng(1).random((3, 3))
    assert st.check_grad(lambda x, v: x.at[rows].add(v), [x, v], order=2)
    assert st.check_grad(lambda x, v: x.at[0].set(v[0]), [x, v], order=2)


def test_large_integers_are_not_rounded():
    data = [0, 2**63 + 1]
    same(st.tensor(data, dtype=st.uint64), np.array(data, np.uint64))
    with pytest.raises(DTypeError, match="fit"):
        st.tensor([-1, 2**63 + 1], dtype=st.uint64)


def test_edges_the_standard_names():
    assert st.ones(1)[st.zeros(0, dtype=st.bool)].shape == (0,)
    assert st.linalg.diagonal(st.ones(1, 1), offset=2).shape == (0,)
    assert st.eye(0, k=2**63).shape == (0, 0)
    same(st.eye(2, k=-(2**70)), np.zeros((2, 2)))
    same(st.round(st.tensor([1.5 - 0.4j])), [2 - 0j])
    same(st.any(st.tensor([0j, 1j])), True)
    same(st.all(st.tensor([0j, 1j])), False)
    inf, nan = np.inf, np.nan
    parts = [(0, 0), (-0.0, 0), (inf, 0), (-inf, inf), (inf, nan), (nan, 0), (800, 0)]
    got = st.expm1(st.tensor([complex(*p) for p in parts], dtype=st.complex128)).numpy()
    same(got.real, [0, 0, inf, -1, inf, nan, inf])
    same(got.imag, [0, 0, 0, 0, nan, 0, 0])
    assert not np.signbit(got.real[:2]).any()
    same(st.expm1(st.tensor([3e-20 - 4e-20j], dtype=st.complex128)), [3e-20 - 4e-20j])
    for kind in (IndexError, ValueError):
        with pytest.raises(kind, match="axis"):
            st.expand_dims(st.ones(2), axis=2)
