"""Reading and writing at indices, against NumPy."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import ShapeError

A = np.arange(60, dtype=np.float64).reshape(3, 4, 5)
ROWS = np.array([2, 0, 2])
NEGATIVE = np.array([-1, 0, -3])
GRID = np.array([[0, 1], [2, 0]])

READS = [
    0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2),
    slice(5, 1), ...,
    None, (0, 1), (0, 1, 2), (slice(None), 1), (..., 1), (1, ...), (None, 0), (0, None), (..., None),
    (slice(None), None, 2),
    (slice(0, 2), slice(1, 4, 2), slice(None, None, -1)), (slice(0, 0),), (-1, slice(-2, None)),
    (slice(4, 1, -1), 0),
    ROWS, NEGATIVE, GRID, (slice(None), ROWS), (..., ROWS), (ROWS, ROWS), (ROWS, slice(None), ROWS),
    (slice(None), ROWS, ROWS),
    (ROWS, 1), (1, ROWS), (ROWS, slice(1, 3)), (GRID, ROWS[:2]), (None, ROWS),
    (ROWS, None),
    (slice(None), ROWS, None), (ROWS[:, None], ROWS), ([0, 2],), (slice(None), [1, 1]),
]  # fmt: skip


def as_index(index):
    parts = index if isinstance(index, tuple) else (index,)
    made = tuple(st.tensor(p) if isinstance(p, np.ndarray) else p for p in parts)
    return made if isinstance(index, tuple) else made[0]


@pytest.mark.parametrize("index", READS, ids=str)
def test_reading_agrees_with_numpy(index):
    got = np.asarray(st.tensor(A)[as_index(index)])
    want = A[index]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "index", [i for i in READS if not isinstance(i, np.ndarray) or len(set(i.ravel() % 3)) == i.size], ids=str
)
def test_writing_agrees_with_numpy(index):
    want = A.copy()
    value = np.random.default_rng(1).standard_normal(want[index].shape)
    want[index] = value
    x = st.tensor(A)
    x[as_index(index)] = st.tensor(value)
    np.testing.assert_array_equal(np.asarray(x), want)


@pytest.mark.parametrize("index", READS, ids=str)
def test_writing_a_number_agrees_with_numpy(index):
    want = A.copy()
    want[index] = -1
    x = st.tensor(A)
    x[as_index(index)] = -1
    np.testing.assert_array_equal(np.asarray(x), want)


def test_masks_read_and_write():
    x = st.tensor(A)
    np.testing.assert_array_equal(np.asarray(x[x > 30]), A[A > 30])
    np.testing.assert_array_equal(np.asarray(x[st.tensor([True, False, True])]), A[[True, False, True]])
    x[x > 30] = 0.0
    np.testing.assert_array_equal(np.asarray(x), np.where(A > 30, 0, A))


def test_rows_written_from_a_smaller_value_broadcast():
    x = st.zeros(3, 4)
    x[1] = st.arange(4)
    x[:, 0] = 7
    x[2:] = st.ones((1, 4))
    assert x.tolist() == [[7, 0, 0, 0], [7, 1, 2, 3], [1, 1, 1, 1]]
    x[0] += 1
    assert x[0].tolist() == [8, 1, 1, 1]


def test_gradients_flow_through_reads_and_writes():
    x = st.tensor(A, requires_grad=True)
    y = x * 1.0
    y[0] = 0.0
    (y[:, 1:3].sum() + y[st.tensor([1, 1])].sum()).backward()
    want = np.zeros_like(A)
    want[1:, 1:3] += 1
    want[1] += 2
    np.testing.assert_array_equal(np.asarray(x.grad), want)


def test_a_scattered_number_may_be_called_value():
    x, index = st.zeros((2, 3)), st.tensor([[0, 1]])
    for call in (st.Tensor.scatter, st.Tensor.scatter_):
        assert call(x.clone(), 0, index, value=2.5).tolist() == [[2.5, 0, 0], [0, 2.5, 0]]
        for arguments in ({}, {"src": x, "value": 1.0}):
            with pytest.raises(st.StratalError, match="takes src or value"):
                call(x.clone(), 0, index, **arguments)


def test_gather_scatter_and_friends_agree_with_the_definition():
    x = np.random.default_rng(2).standard_normal((3, 4))
    index = np.array([[0, 3, 1], [2, 2, 0]])
    np.testing.assert_array_equal(
        np.asarray(st.tensor(x).gather(1, st.tensor(index))), np.take_along_axis(x[:2], index, 1)
    )
    source = np.random.default_rng(3).standard_normal((2, 4))
    rows = np.array([[0, 0, 2, 1], [2, 0, 2, 1]])
    want = np.zeros((3, 4))
    for i in range(2):
        for j in range(4):
            want[rows[i, j], j] += source[i, j]
    got = st.zeros(3, 4, dtype="float64").scatter_add(0, st.tensor(rows), st.tensor(source))
    np.testing.assert_allclose(np.asarray(got), want)
    np.testing.assert_array_equal(np.asarray(st.tensor(x).index_select(1, st.tensor([3, 0]))), x[:, [3, 0]])
    added = st.zeros(3, 4, dtype="float64").index_add(0, st.tensor([2, 2, 0]), st.tensor(x))
    np.testing.assert_allclose(np.asarray(added), np.stack([x[2], np.zeros(4), x[0] + x[1]]))
    np.testing.assert_array_equal(np.asarray(st.take_along_axis(st.tensor(x), st.tensor(index[:1]), axis=1)),
                                  np.take_along_axis(x, np.broadcast_to(index[:1], (3, 3)), 1))  # fmt: skip


def test_an_index_out_of_range_inside_a_kernel_is_an_error():
    with pytest.raises(IndexError):
        st.ones(3)[st.tensor([0, 5])].numpy()
    with pytest.raises(IndexError):
        st.ones(3, 3)[st.tensor([0, 1]), st.tensor([0, 7])].numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(0,), (7,), (4, 5), (3, 0, 2), (20, 30, 2)])
def test_a_mask_of_all_elements_selects_in_row_major_order(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, mask = rng.integers(0, 9, shape), rng.random(shape) < 0.5
    given = st.tensor(x).astype(dtype)
    expected = np.asarray(given)[mask]
    turned = st.permute_dims(given, tuple(range(given.ndim))[::-1])
    assert st.masked_select(given, mask).dtype is given.dtype
    np.testing.assert_array_equal(st.masked_select(given, mask), expected)
    np.testing.assert_array_equal(given[st.tensor(mask)], expected)
    np.testing.assert_array_equal(turned[st.tensor(mask.T)], np.asarray(given).T[mask.T])


def test_a_mask_selects_of_what_takes_a_gradient_and_of_what_is_not_computed_yet() -> None:
    x = st.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x * 2)[x > 1.5].sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 2, 2])
    lazy = st.tensor([1.0, 2.0, 3.0]) * 2
    np.testing.assert_array_equal(lazy[lazy > 3], [4, 6])
    with pytest.raises(st.StratalError, match="data"):
        st.compile(lambda v: v[v > 1])(lazy)


PARTS = {
    "int": 1, "slice": slice(None), "none": None, "array": np.array([2, 0]), "scalar": np.array(1),
    "mask": np.array([True, False, True]),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("parts", itertools.product(PARTS, repeat=3), ids="-".join)
def test_reads_writes_and_gradients_at_mixed_indices_agree_with_torch(parts):
    torch = pytest.importorskip("torch")
    base = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(np.float32)

    def run(library, index):
        index = tuple(library.tensor(p) if isinstance(p, np.ndarray) else p for p in index)
        x = library.tensor(base, requires_grad=True)
        found = x[index]
        written = x * 1.0
        shape = tuple(found.shape)
        written[index] = library.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        (found * found.detach() + found.sum()).sum().backward()
        return [np.asarray(v.detach()) for v in (found, written, x.grad)]

    index = tuple(PARTS[p] for p in parts)
    for got, want in zip(run(st, index), run(torch, index), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)
    given = tuple(st.tensor(p) if isinstance(p, np.ndarray) else p for p in index)
    want = st.tensor(base)[given]
    np.testing.assert_array_equal(st.tensor(base).at[given].get(), want)
    np.testing.assert_array_equal(st.tensor(base).at[given].set(want), base)


MANY = {
    "zeros": lambda: st.zeros((1,) * 65),
    "tensor": lambda: st.tensor(functools.reduce(lambda x, _: [x], range(65), 1.0)),
    "unsqueeze": lambda: st.zeros((1,) * 64).unsqueeze(0),
    "None": lambda: st.zeros((1,) * 64)[None],
    "stack": lambda: st.stack([st.zeros((1,) * 64)] * 2),
    "reshape": lambda: st.zeros(1).reshape((1,) * 65),
    "expand": lambda: st.zeros(1).expand((1,) * 65),
    "gather": lambda: st.zeros((1,) * 40)[st.zeros((1,) * 30, dtype=st.int64)],
    "tensordot": lambda: st.tensordot(st.zeros((1,) * 40), st.zeros((1,) * 40), 0),
    "jacobian": lambda: st.jacrev(lambda x: x * 2)(st.zeros((1,) * 40)),
}


@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_results_of_more_axes_than_tensors_have_are_refused_where_they_are_made(make):
    with pytest.raises(ShapeError, match="axes"):
        make()
    with pytest.raises(ShapeError, match="axes"):
        st.compile(make)()


@pytest.mark.torch
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("index", [(), (0,), (slice(None), 1), ([1],), (None,)], ids=str)
@pytest.mark.parametrize("plain", [True, False], ids=["bool", "tensor"])
def test_a_mask_without_axes_is_written_through_as_in_torch(held, index, plain):
    torch = pytest.importorskip("torch")

    def run(library):
        condition = held if plain else library.tensor(held)
        at = (*index, condition) if index else condition
        x = library.tensor(A[0, :2, :2], requires_grad=True)
        added, replaced, constant = x * 1, x * 1, x * 1
        added[at] += 1
        replaced[at] = x[at] * 3
        constant[at] = 7
        (added + 2 * replaced + 3 * constant).sum().backward()
        return [np.asarray(v.detach()) for v in (x[at], added, replaced, constant, x.grad)]

    for got, want in zip(run(st), run(torch), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)


LONG = np.arange(300.0)
READERS = {
    "[]": lambda x, i: x[i],
    "[:]": lambda x, i: st.stack([x, x])[:, i][0],
    "two": lambda x, i: st.stack([x] * 300)[i, i],
    "take": st.take,
    "index_select": lambda x, i: st.index_select(x, 0, i),
    "gather": lambda x, i: st.gather(x, 0, i),
    "take_along_axis": lambda x, i: st.take_along_axis(x, i, 0),
    "at": lambda x, i: x.at[i].add(x).at[i].get()[:2] if i.shape == x.shape else x.at[i].get(),
    "index_add": lambda x, i: x.index_add(0, i, st.ones(i.shape, dtype=x.dtype))[i.to(st.int64)] - 1,
    "scatter": lambda x, i: st.where(x.scatter(0, i, -1.0) < 0, x, 0).sort()[0].flip(0)[:2],
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("known", [True, False])
def test_an_index_of_any_integer_dtype_reads_an_axis_of_any_length(dtype, read, known):
    last = 100 if dtype.startswith("u") else -1
    index = st.tensor([last, 5], dtype=dtype) if known else st.tensor([last - 1, 4], dtype=dtype) + 1
    name = next(n for n, reader in READERS.items() if reader is read)
    as_torch = last < 0 and name in ("index_select", "gather", "index_add", "scatter")
    if as_torch or (dtype == "uint8" and name in ("[]", "[:]", "two", "at")):  # a mask there
        with pytest.raises(st.StratalError):
            read(st.tensor(LONG), index).numpy()
        return
    np.testing.assert_array_equal(read(st.tensor(LONG), index), LONG[[last, 5]])
    np.testing.assert_array_equal(st.compile(read)(st.tensor(LONG), index), LONG[[last, 5]])


@pytest.mark.parametrize("value", [2**64 - 1, 2**63 + 5, 300])
@pytest.mark.parametrize("read", [READERS[n] for n in ("[]", "take", "gather", "index_add")])
def test_an_unsigned_index_out_of_range_is_named_as_it_is(read, value):
    with pytest.raises(IndexError, match=f"index {value};"):
        read(st.tensor(LONG), st.tensor([value], dtype=st.uint64)).numpy()
