"""Small calls on values that are there are computed at once, with the bits, types and views of a program."""

from __future__ import annotations

import contextlib
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from benchmarks.surface.draws import Draws
from benchmarks.surface.entries import FAMILIES, entries
from benchmarks.surface.layers import call_of

import stratal as st
from stratal.base.errors import IndexOutOfRangeError, ShapeError, StratalError
from stratal.tensor.calls import direct
from stratal.tensor.lazy import program_cache
from stratal.tensor.lazy.flushing import lazily
from stratal.tensor.tensor import Tensor
from stratal.tensor.values import immediate_values

FUNCTIONS = {e.path: e for family in FAMILIES if family != "layers" for e in entries((family,))}
RNG = np.random.default_rng(5)
EDGES = {
    "f": [0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-42, 3.4e38, 7.0, -7.0, 2e9, 1e20],
    "i": [0, 1, -1, 2, 3, -3, 7, -8, 100, -100, 127, -128, 5, -5, 64, 6],
    "u": [0, 1, 2, 3, 5, 7, 8, 16, 31, 100, 127, 128, 200, 254, 255, 64],
    "b": [False, True] * 8,
}  # fmt: skip
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool")
UNARY = ("abs", "ceil", "floor", "round", "trunc", "sign", "negative", "sqrt", "isnan", "isinf", "isfinite",
         "bitwise_invert", "logical_not", "square", "reciprocal")  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "maximum", "minimum",
          "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "bitwise_and", "bitwise_or",
          "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "logical_and", "copysign")  # fmt: skip


def bits(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return [bits(x) for x in found]
    if not isinstance(found, Tensor):
        return repr(found)
    array = np.asarray(found._value("test").array)
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array
    signs = np.signbit(wide[~np.isnan(wide)]).tolist() if wide.dtype.kind == "f" else None
    return str(found.type), found.requires_grad, repr(wide.tolist()), signs


def outcome(call: Any) -> Any:
    try:
        return bits(call())
    except StratalError as error:
        return type(error).__name__, error.rule


def check_same(call: Any) -> None:
    with lazily():
        want = outcome(call)
    for turn in range(6):  # plain, recorded, then known: by NumPy, and by a program
        assert outcome(call) == want, f"call {turn}"


@pytest.fixture(autouse=True)
def soon_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_OFTEN", 2)  # calls by NumPy, before a program is compiled


# -- the bits of a program -----------------------------------------------------------------------------------
@pytest.mark.sampled(13)
@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_gives_what_it_gives_lazily(path: str) -> None:
    entry = FUNCTIONS[path]
    call = call_of(entry, Draws(40))
    if call is None or "seed" in entry.name or "rng_state" in entry.name:
        pytest.skip("takes no tensors")
    given = call.mapped(st.tensor)

    def once() -> Any:
        st.manual_seed(3)
        return given.of(entry.value)

    check_same(once)
    with st.no_grad():
        check_same(once)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_edges_of_exact_functions_have_the_bits_of_a_kernel(name: str, dtype: str) -> None:
    kind = "b" if dtype == "bool" else "u" if dtype[0] == "u" else "i" if dtype[0] == "i" else "f"
    with np.errstate(all="ignore"):
        x = np.array(EDGES[kind]).astype(getattr(st, dtype).np)
    a, b = st.tensor(np.repeat(x, len(x))), st.tensor(np.tile(x, len(x)))
    if "shift" in name:
        b = st.remainder(b, 7) if dtype != "bool" else b
    function = getattr(st, name)
    check_same((lambda: function(a)) if name in UNARY else (lambda: function(a, b)))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_have_the_bits_of_a_kernel(dtype: str, to: str) -> None:
    kind = "b" if dtype == "bool" else "u" if dtype[0] == "u" else "i" if dtype[0] == "i" else "f"
    with np.errstate(all="ignore"):
        x = st.tensor(np.array(EDGES[kind]).astype(getattr(st, dtype).np))
    check_same(lambda: x.astype(getattr(st, to)))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "greater"])
def test_constants_of_a_call_stand_where_the_call_has_them(name: str) -> None:
    function, x = getattr(st, name), st.tensor([3.0, -2.0])
    for call in (lambda: function(x, 4), lambda: function(4, x), lambda: function(x, x)):
        check_same(call)


# -- indices, shifts and joins of data -----------------------------------------------------------------------
INDICES = (
    3, -1, 0, slice(None), slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(4, 1, -2),
    Ellipsis, (1, 2), (-1, slice(1, None)), (slice(None), 0), (..., -1), (None, 2), (1, ..., 2), slice(2, 2),
    (slice(0, 2), None, slice(None, None, -1)), (slice(5, 9), 1),
)  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_what_an_index_takes_is_a_view(index: Any, grad: bool) -> None:
    array = np.arange(60.0, dtype=np.float32).reshape(5, 4, 3)
    x = st.tensor(array)
    with contextlib.nullcontext() if grad else st.no_grad():
        part = x[index]
        assert part.tolist() == array[index].tolist()
        x += 100.0
        array += 100.0
        assert part.tolist() == array[index].tolist()
        part *= 2.0
        array[index] *= 2.0
        assert x.tolist() == array.tolist()
        x[0] = -1.0
        array[0] = -1.0
        assert part.tolist() == array[index].tolist()


def test_what_an_index_takes_of_memory_that_numpy_sees_is_that_memory() -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for x in (st.from_numpy(array), st.tensor(array)):
        seen = array if x.numpy() is array or np.shares_memory(x.numpy(), array) else x.numpy()
        row, column = x[1], x[:, 2]
        seen[1] = 7.0
        assert row.tolist() == [7.0] * 4
        assert column.tolist()[1] == 7.0
        row += 1.0
        assert x[1].tolist() == [8.0] * 4
        assert column.tolist()[1] == 8.0
        assert st.stack([x[1], x[1]])[1].tolist() == [8.0] * 4
        assert st.roll(x, 1, 0)[2].tolist() == [8.0] * 4


VIEWS = {
    "reshape": lambda x: x.reshape(4, 3), "T": lambda x: x.T, "transpose": lambda x: st.transpose(x, 0, 1),
    "unsqueeze": lambda x: x.unsqueeze(0), "flatten": lambda x: st.flatten(x),
    "unbind": lambda x: st.unbind(x)[1], "split": lambda x: st.split(x, 2)[0],
    "narrow": lambda x: st.narrow(x, 1, 1, 2), "diagonal": lambda x: st.diagonal(x),
    "detach": lambda x: x.detach(), "select": lambda x: st.select(x, 0, 1), "view": lambda x: x.view(12),
    "chunk": lambda x: st.chunk(x, 2, 1)[1], "movedim": lambda x: st.movedim(x, 0, 1),
    "permute": lambda x: x.permute(1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_came_before_is_one_still(name: str) -> None:
    """Writes through the tensor show in the view and the other way round, in each of the ways of a call."""
    for _ in range(5):
        x, model = st.tensor(np.arange(12.0).reshape(3, 4)), st.tensor(np.arange(12.0).reshape(3, 4))
        view = VIEWS[name](x)
        with lazily():
            other = VIEWS[name](model)
            model.mul_(2.0)
            other.add_(100.0)
        x.mul_(2.0)
        view.add_(100.0)
        assert view.tolist() == other.tolist()
        assert x.tolist() == model.tolist()


def test_indices_that_change_compile_nothing() -> None:
    x = st.tensor(RNG.standard_normal((50, 3, 4)).astype(np.float32))
    before = program_cache.COMPILED[0]
    for k in range(50):
        assert x[k]._storage is not None
        assert x[k : k + 3]._storage is not None
        moved = np.roll(x[k].numpy(), (k % 3, -k), (0, 1))
        assert st.roll(x[k], (k % 3, -k), (0, 1)).tolist() == moved.tolist()
    assert program_cache.COMPILED[0] == before


def test_errors_of_indices_are_those_of_programs() -> None:
    x = st.zeros(3, 4)
    x.tolist()
    for index in (3, -4, (0, 4)):
        with pytest.raises(IndexOutOfRangeError, match="out of range"):
            x[index]
    with pytest.raises(IndexOutOfRangeError, match="more indices than axes"):
        x[0, 0, 0]


def test_joins_of_other_shapes_are_shape_errors() -> None:
    shapes = (3,), (2,), (2, 3), (2, 4), (1, 2, 3)
    arrays = [st.ones(shape) for shape in shapes]
    for first, second in permutations(arrays, 2):
        with pytest.raises(ShapeError):
            st.stack([first, second])
        for axis in range(first.ndim):
            try:
                np.concatenate([first.numpy(), second.numpy()], axis)
            except ValueError:
                with pytest.raises(ShapeError):
                    st.concat([first, second], axis=axis)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0), (1, 4, 2)])
def test_joins_shifts_and_flips_are_numpys(shape: tuple[int, ...], dtype: str) -> None:
    parts = [RNG.integers(0, 2, shape).astype(getattr(st, dtype).np) for _ in range(5)]
    given = [st.tensor(p) for p in parts]

    def same(found: Any, want: Any) -> None:
        assert found.dtype is getattr(st, dtype)
        np.testing.assert_array_equal(found.numpy().astype(np.float64), np.asarray(want).astype(np.float64))

    same(st.stack(given), np.stack(parts))
    for axis in range(-len(shape), len(shape)):
        same(st.concat(given, axis=axis), np.concatenate(parts, axis))
        same(st.flip(given[0], axis), np.flip(parts[0], axis))
        for shift in (0, 1, -1, 5, -7):
            same(st.roll(given[0], shift, axis), np.roll(parts[0], shift, axis))
    if len(shape) > 1:
        same(st.roll(given[0], (1, -2), (0, 1)), np.roll(parts[0], (1, -2), (0, 1)))
        same(st.flip(given[0], (0, -1)), np.flip(parts[0], (0, -1)))


# -- when it is so -------------------------------------------------------------------------------------------
def test_small_work_never_waits_and_keeps_no_history_of_what_it_was_made_of() -> None:
    total, weight = st.tensor(0.0), st.tensor(RNG.standard_normal(10).astype(np.float32))
    average = st.zeros(10)
    average.tolist()
    for _ in range(50):
        total = total + weight[0]
        average = 0.9 * average + 0.1 * weight
        assert total._storage is not None
        assert average._storage is not None
        assert total._node is None


def test_what_takes_gradients_waits_is_large_or_is_captured_is_not_computed_at_once() -> None:
    x, w = st.tensor(np.ones(3, np.float32)), st.tensor(np.ones(3, np.float32), requires_grad=True)
    large = st.tensor(np.ones(immediate_values.SMALL + 1, np.float32))
    for _ in range(4):
        assert (x + 1.0)._storage is not None
        assert (w + 1.0)._storage is None
        assert (large + 1.0)._storage is None
        waits = x.exp().sin()
        assert waits._storage is None or waits.tolist()
        with lazily():
            assert (x + 1.0)._storage is None
    with st.no_grad():
        assert (w + 1.0)._storage is not None


def test_an_update_in_place_after_work_that_fails_has_not_happened() -> None:
    table, count = st.tensor(np.ones((4, 2), np.float32)), st.tensor(np.zeros((), np.int64))
    for _ in range(3):
        wrong = st.take(table, st.tensor([9]), 0)
        count.add_(1)
        with pytest.raises(IndexError):
            wrong.tolist()
        del wrong
    assert count.item() in (0, 3)


def test_an_update_in_place_keeps_the_memory_that_others_rely_on() -> None:
    x = st.tensor(np.ones(4, np.float32))
    memory = x._storage
    step = st.compile(lambda: x * 2.0)
    for k in range(4):
        assert step().tolist() == [2.0 * (k + 1)] * 4
        x += 1.0
        x.tolist()
        assert x._storage is memory
    seen = x.detach()
    x += 1.0
    assert seen.tolist() == x.tolist()


def test_rows_of_an_iteration_are_views() -> None:
    array = np.arange(140.0, dtype=np.float32).reshape(70, 2)
    for grad in (False, True):
        x = st.tensor(array)
        rows = list(x)
        assert [r.tolist() for r in rows] == array.tolist()
        with contextlib.nullcontext() if grad else st.no_grad():
            rows[3] += 1.0
            rows[66] *= 2.0
            x[5] = -1.0
        want = array.copy()
        want[3] += 1.0
        want[66] *= 2.0
        want[5] = -1.0
        assert x.tolist() == want.tolist()
        assert [r.tolist() for r in rows] == want.tolist()


def test_rows_of_what_takes_gradients_have_them() -> None:
    x = st.tensor(np.ones((3, 2), np.float32), requires_grad=True)
    for _ in range(3):
        x.grad = None
        sum(k * row.sum() for k, row in enumerate(x)).backward()
        assert x.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    with st.no_grad():
        first, *_ = x
        assert not first.requires_grad
        first += 1.0
    assert x.tolist()[0] == [2.0, 2.0]
    with pytest.raises(ShapeError, match="iterate"):
        iter(st.tensor(1.0))
