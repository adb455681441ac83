"""Reading and writing at indices, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st

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
    (ROWS, 1), (1, ROWS), (0, slice(None), ROWS), (ROWS, slice(1, 3)), (GRID, ROWS[:2]), (None, ROWS),
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
