"""Python's numbers as elements: what an integer dtype does not reach is an error wherever it is given."""

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import DTypeError


def _set(index, number):
    x = st.zeros(3, dtype=st.int8)
    x[index] = number
    return x


def _zeros():
    return st.zeros(3, dtype=st.int8)


WAYS = {
    "tensor": lambda v: st.tensor(v, dtype=st.int8),
    "list": lambda v: st.tensor([[1, v]], dtype=st.int8),
    "asarray": lambda v: st.asarray((v,), dtype=st.int8),
    "Tensor": lambda v: st.Tensor([v], dtype=st.int8),
    "new_tensor": lambda v: _zeros().new_tensor(v),
    "full": lambda v: st.full((2,), v, dtype=st.int8),
    "full_like": lambda v: st.full_like(_zeros(), v),
    "fill_": lambda v: _zeros().fill_(v),
    "copy_": lambda v: _zeros().copy_(v),
    "constant_": lambda v: st.nn.init.constant_(_zeros(), v),
    "set int": lambda v: _set(0, v),
    "set slice": lambda v: _set(slice(2), v),
    "set array": lambda v: _set([0, 0], v),
    "set mask": lambda v: _set(st.tensor([True, False, True]), v),
    "at": lambda v: _zeros().at[0].set(v),
    "at subtract": lambda v: _zeros().at[0].subtract(v),
    "scatter": lambda v: st.scatter(_zeros(), 0, st.tensor([0]), v),
    "index_fill": lambda v: _zeros().index_fill(0, st.tensor([0]), v),
    "masked_fill": lambda v: _zeros().masked_fill(st.tensor(True), v),
    "fill_diagonal": lambda v: st.fill_diagonal(st.zeros((2, 2), dtype=st.int8), v),
    "threshold": lambda v: st.threshold(_zeros(), 1, v),
    "put": lambda v: st.put_along_axis(_zeros(), st.tensor([0]), v, 0),
}
BAD = [300, -129, float("nan"), float("inf"), 1e10, -1e300, 2**63, 2**70, 10**400, 1j]
BAD += [np.int64(300), np.float32(300)]


@pytest.mark.parametrize("number", BAD, ids=lambda v: f"{type(v).__name__} {str(v)[:9]}")
@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_does_not_fit_is_refused(way, number):
    for run in (WAYS[way], st.compile(WAYS[way])):
        with pytest.raises(DTypeError, match="does not fit"):
            run(number)


@pytest.mark.parametrize("number", [127, -128, 127.9, -128.9, True, 3 + 0j, np.int64(5), np.float64(-1.5)])
@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_fits_loses_its_fraction(way, number):
    want = int(np.real(number))
    made = WAYS[way](number)
    assert np.array(-want if way == "at subtract" else want).astype(np.int8) in made.numpy()


def test_numbers_beyond_int64_are_uint64_alone_and_in_lists():
    for given in (2**63, [2**63], [2**64 - 1, 1], (0, 2**63)):
        made = st.tensor(given)
        assert made.dtype is st.uint64
        assert made.tolist() == (given if isinstance(given, int) else list(given))
    assert st.tensor(-(2**63)).item() == -(2**63)
    for given in (2**64, [2**64], [2**63, -1], -(2**63) - 1):
        with pytest.raises(DTypeError, match="does not fit"):
            st.tensor(given)
    assert st.tensor(2**70, dtype=st.float32).item() == st.tensor([2**70], dtype=st.float32).item() == 2.0**70


def test_arrays_are_cast():
    assert st.tensor(np.array([300, 5]), dtype=st.int8).tolist() == [44, 5]
    x = _zeros()
    x[0] = st.tensor(300)
    assert x.tolist() == [44, 0, 0]


@pytest.mark.parametrize("bounds", [(0, 129), (-129, 0), (0, 300), (-(2**63), 2**63)])
def test_bounds_of_random_integers_lie_in_the_dtype(bounds):
    with pytest.raises(DTypeError, match="does not fit"):
        st.randint(*bounds, (3,), dtype=st.int8)


@pytest.mark.parametrize("dtype", [st.int8, st.uint8, st.int64, st.uint64])
def test_random_integers_reach_the_bounds_of_the_dtype(dtype):
    info = np.iinfo(dtype.np)
    drawn = st.randint(info.min, info.max + 1, (4000,), dtype=dtype).numpy().astype(np.float64)
    width = float(info.max) - float(info.min)
    assert drawn.min() < info.min + 0.01 * width and drawn.max() > info.max - 0.01 * width
    assert abs((drawn - info.min).mean() / width - 0.5) < 0.05


NAN, INF = float("nan"), float("inf")
REFUSED = {
    "multinomial": ([1.0, NAN], [1.0, INF], [1.0, -1.0], [0.0, 0.0], [[0.0, 0.0], [1.0, 1.0]]),
    "histc": ([1.0, NAN], [1.0, INF], [-INF, 1.0]),
    "histogram": ([1.0, NAN], [1.0, INF], [-INF, 1.0]),
}
RANGES = {
    "histc": ({"min": NAN, "max": 1}, {"min": 0, "max": INF}, {"min": 3, "max": 2}, {"min": NAN, "max": NAN}),
    "histogram": ({"range": (NAN, 1.0)}, {"range": (0.0, INF)}, {"range": (3.0, 2.0)}),
    "multinomial": ({"num_samples": 0}, {"num_samples": 3}),
}
CASES = [(name, data, {}) for name, found in REFUSED.items() for data in found]
CASES += [(name, [1.0, 2.0], options) for name, found in RANGES.items() for options in found]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "data", "options"), CASES, ids=str)
def test_weights_and_ranges_that_are_no_numbers_are_refused_as_by_torch(name, data, options):
    torch = pytest.importorskip("torch")
    options = options if name == "multinomial" and options else {"bins": 2, **options}
    options = {"num_samples": 1} if name == "multinomial" and "bins" in options else options
    with pytest.raises(RuntimeError):
        getattr(torch, name)(torch.tensor(data), **options)
    for dtype in (st.float32, st.float64, st.bfloat16) * 3:
        with pytest.raises(st.StratalError):
            getattr(st, name)(st.tensor(data, dtype=dtype), **options)


def test_elements_that_are_no_numbers_are_not_counted_in_a_range():
    x = st.tensor([1.0, NAN, INF, -INF])
    assert st.histc(x, 2, min=0, max=2).tolist() == [0, 1]
    assert st.histogram(x, 2, range=(0.0, 2.0)).hist.tolist() == [0, 1]
    for _ in range(3):  # also where such a call came before
        with pytest.raises(st.StratalError, match="edges go up"):
            st.histogram(st.ones(2), st.tensor([0.0, NAN, 1.0]))
        assert st.bincount(st.tensor([1, 1]), minlength=3).tolist() == [0, 2, 0]
    with pytest.raises(st.StratalError, match="from 0 on"):
        st.bincount(st.tensor([1, -1]), minlength=3)


@pytest.mark.torch
@pytest.mark.parametrize("call", ["topk", "sort", "argsort", "kthvalue", "mode"])
@pytest.mark.parametrize("dim", [None, 0, -1, 1, -2])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_orders_of_a_single_number_are_those_of_torch(call, dim, k):
    torch = pytest.importorskip("torch")
    if (call, k) == ("topk", 0) or (k != 1 and call not in ("topk", "kthvalue")):
        return  # torch returns an element too many; others take no number
    options = {"k": k} if call in ("topk", "kthvalue") else {}
    options |= {} if dim is None else {"dim": dim}

    def run(library):
        try:
            found = getattr(library.tensor(3.0), call)(**options)
        except (RuntimeError, IndexError, ValueError):
            return "refused"
        return [(tuple(v.shape), v.item()) for v in (found if isinstance(found, tuple) else (found,))]

    assert run(st) == run(torch)
    if call == "sort" and dim is not None:
        assert (run(st) == "refused") == (dim not in (0, -1))
        for option in ("axis", "dim"):
            if dim in (1, -2):
                with pytest.raises(IndexError):
                    st.sort(st.tensor(3.0), **{option: dim})
