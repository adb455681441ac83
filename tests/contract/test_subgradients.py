"""Gradients where a derivative has a choice, and values at bounds: PyTorch's, without PyTorch at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import stratal as st
import stratal.nn.functional as F

NAN, INF = float("nan"), float("inf")
CASES: dict[str, tuple[Callable[[st.Tensor], st.Tensor], list, list]] = {
    "norm of 0": (lambda x: x.norm(), [0, 0], [0, 0]),
    "3-norm of 0": (lambda x: x.norm(3), [0, 0], [0, 0]),
    "deviation of a constant": (lambda x: x.std(), [2, 2, 2], [0, 0, 0]),
    "atan2 at the origin": (lambda x: st.atan2(x, st.zeros(2)), [0, 1], [0, 0]),
    "huber loss of infinity": (lambda x: F.huber_loss(x, st.zeros(2), "sum"), [INF, 0.5], [1, 0.5]),
    "smooth L1 of infinity": (lambda x: F.smooth_l1_loss(x, st.zeros(2), "sum"), [-INF, 2], [-1, 1]),
    "clamp at its bounds": (lambda x: x.clamp(-1, 1), [-1, 1, 2, NAN], [1, 1, 0, 0]),
    "max along an axis": (lambda x: x.max(0)[0], [1, 3, 3], [0, 1, 0]),
    "min along an axis": (lambda x: x.min(dim=0)[0], [1, 1, 3], [1, 0, 0]),
    "amax": (lambda x: x.amax(0), [1, 3, 3], [0, 0.5, 0.5]),
    "max of all": (lambda x: x.max(), [1, 3, 3], [0, 0.5, 0.5]),
    "median of all": (lambda x: x.median(), [1, 1, 2], [0.5, 0.5, 0]),
    "fmax of equal ones": (lambda x: st.fmax(x, st.tensor([1.0, NAN])), [1, 1], [1, 1]),
    "fmax with the second": (lambda x: st.fmax(st.tensor([1.0, NAN]), x), [1, 1], [0, 1]),
    "x log y at x = 0": (lambda x: st.special.xlogy(x, st.tensor([2.0, 0.0])), [0, 0], [np.log(2), 0]),
    "hardtanh": (lambda x: F.hardtanh(x), [-1, 0, 1, NAN], [0, 1, 0, 0]),
    "relu6": (lambda x: F.relu6(x), [0, 1, 6, NAN], [0, 1, 0, 0]),
    "hardswish of infinity": (lambda x: F.hardswish(x), [INF, 4], [1, 1]),
    "abs": (abs, [0, -2, NAN], [0, -1, 0]),
    "0 to a negative power": (lambda x: st.tensor([0.0, 0.0]) ** x, [-1, 1], [-INF, 0]),
    "renorm of 0": (lambda x: st.renorm(x.reshape(2, 1), 2, 0, 1.0), [0, 0.5], [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_gradient_with_a_choice_is_pytorchs(name: str, compiled: bool) -> None:
    function, at, want = CASES[name]
    x = st.tensor(np.array(at, np.float32)).requires_grad_(True)

    def step(x: st.Tensor) -> st.Tensor:
        return st.grad(lambda v: function(v).sum())(x)

    assert np.allclose((st.compile(step) if compiled else step)(x), want, equal_nan=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_do_not_move_where_every_label_is_ignored(smoothing: float) -> None:
    w = st.ones(3, 4).requires_grad_(True)
    labels = st.tensor([-100, -100])
    loss = F.cross_entropy(st.ones(2, 4) @ w.T, labels, label_smoothing=smoothing)
    loss.backward()
    assert np.isnan(loss.item()) and not np.asarray(w.grad).any()


def test_weights_of_0_make_the_mean_and_its_gradient_nan() -> None:
    w = st.ones(3, 4).requires_grad_(True)
    F.cross_entropy(st.ones(2, 4) @ w.T, st.tensor([1, 1]), st.tensor([1.0, 0.0, 1.0])).backward()
    assert np.isnan(w.grad).all()


@pytest.mark.parametrize("offsets", [None, [0, 2]])
def test_the_first_of_equal_rows_of_a_bag_takes_the_gradient(offsets: list[int] | None) -> None:
    w = st.tensor([[1.0], [1.0], [0.0]]).requires_grad_(True)
    index = st.tensor([[2, 0, 1]] if offsets is None else [0, 1, 2, 1])
    F.embedding_bag(index, w, offsets, mode="max").sum().backward()
    assert np.asarray(w.grad)[:, 0].tolist() == ([1, 0, 0] if offsets is None else [1, 1, 0])


@pytest.mark.parametrize("length", [2, 20])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_query_without_keys_gives_0_and_takes_no_gradient(length: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (st.tensor(rng.standard_normal((2, length, 4))).requires_grad_(True) for _ in range(3))
    keep = np.ones((length, length), bool)
    keep[0] = False
    mask = st.tensor(keep if kind == "bool" else np.where(keep, 0, -INF))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out.sum().backward()
    assert not np.asarray(out)[:, 0].any() and not np.asarray(q.grad)[:, 0].any()
    assert np.asarray(out)[:, 1:].all() and all(np.isfinite(x.grad).all() for x in (q, k, v))


def test_a_margin_does_not_hide_nan() -> None:
    x = st.tensor([NAN, 1.0])
    assert np.isnan(F.margin_ranking_loss(x, x, st.ones(2)).item())


# -- small parts of the interface ----------------------------------------------------------------------------
def test_slices_are_added_times_alpha() -> None:
    x, index, source = st.ones(3), st.tensor([0, 2]), st.tensor([1.0, 2.0])
    assert np.array_equal(x.index_add(0, index, source, alpha=2), [3, 1, 5])
    assert np.array_equal(x.index_add_(0, index, source, alpha=-1), [0, 1, -1])


@pytest.mark.parametrize("axes", [(0, 1), ((0, 1),), (), (None,)])
def test_flip_takes_axes_as_numbers_too(axes: tuple) -> None:
    x = np.arange(6).reshape(2, 3)
    assert np.array_equal(st.tensor(x).flip(*axes), np.flip(x))


NUMPYS = [
    "mean", "sum", "max", "min", "std", "var", "prod", "argmax", "argmin", "round", "transpose", "squeeze",
    "cumsum", "any", "all", "ptp", "sort", "argsort", "ravel", "nonzero", "size", "ndim", "shape", "median",
    "copy", "diagonal", "trace", "unique", "flip", "diff", "count_nonzero",
]  # fmt: skip


@pytest.mark.parametrize("name", NUMPYS)
def test_a_function_of_numpy_reads_a_tensor_as_an_array(name: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got, want = getattr(np, name)(st.tensor(x)), getattr(np, name)(x)
    assert type(got) is type(want) and np.array_equal(got, want)


def test_functions_of_numpy_take_their_keywords_and_lists_of_tensors() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = st.tensor(a)
    words = {"axis": 0, "ddof": 1, "keepdims": True}
    assert np.array_equal(np.std(x, **words), np.std(a, **words))
    assert np.array_equal(np.repeat(x, 2), np.repeat(a, 2))
    assert np.array_equal(np.clip(x, 1, 3), np.clip(a, 1, 3))
    assert np.array_equal(np.concatenate([x, x]), np.concatenate([a, a]))
    assert np.array_equal(np.reshape(x, (3, 2)), a.reshape(3, 2))


@pytest.mark.parametrize("write", [lambda x: np.copyto(x, 1.0), lambda x: np.put(x, [0], [9.0]),
                                   lambda x: np.mean(np.ones((3, 2)), axis=1, out=x)])  # fmt: skip
def test_a_function_of_numpy_does_not_write_to_a_tensor(write: Callable) -> None:
    x = st.zeros(3)
    with pytest.raises((ValueError, TypeError)):
        write(x)
    assert not np.asarray(x).any()


@pytest.mark.parametrize("divide", [lambda x: x // 0, lambda x: x % 0, lambda x: st.fmod(x, 0)])
def test_integers_are_not_divided_by_the_number_0(divide: Callable) -> None:
    with pytest.raises(ZeroDivisionError, match="not divided by 0"):
        divide(st.tensor([1, 2]))
    assert np.asarray(divide(st.tensor([1.0, 2.0]))).shape == (2,)


@pytest.mark.parametrize("style", ["lazy", "compiled", "eager"])
@pytest.mark.parametrize("bad", [11, -1, 1 << 40])
def test_an_index_outside_of_an_embedding_is_named(style: str, bad: int) -> None:
    layer = st.nn.Embedding(10, 3)
    index = st.tensor([[1, 2], [bad, 3]])
    run = st.compile(lambda i: layer(i) * 2) if style == "compiled" else layer
    with pytest.raises(IndexError) as caught:
        if style == "eager":
            with st.eager():
                run(index)
        else:
            run(index).numpy()
    text = str(caught.value)
    assert text.startswith("embedding: index out of range") and str(bad) in text and "10" in text
    assert "test_subgradients.py" in text


def test_an_index_too_far_from_the_end_is_named_as_it_was_given() -> None:
    with pytest.raises(IndexError) as caught:
        np.asarray(st.ones(4)[st.tensor([0, -5])])
    assert "index -5" in str(caught.value)


# -- the default dtype ---------------------------------------------------------------------------------------
@pytest.fixture
def wide() -> object:
    st.set_default_dtype(st.float64)
    yield
    st.set_default_dtype(st.float32)


MADE: dict[str, Callable[[], st.Tensor]] = {
    "a number": lambda: st.tensor(1.5),
    "a list": lambda: st.tensor([1.5]),
    "zeros": lambda: st.zeros(2),
    "draws": lambda: st.rand(2),
    "a parameter": lambda: st.nn.Linear(2, 2).weight,
    "statistics": lambda: st.nn.BatchNorm1d(2).running_mean,
    "an integer times a number": lambda: st.tensor([1]) * 1.5,
    "a root of an integer": lambda: st.tensor([4]).sqrt(),
    "a range": lambda: st.linspace(0, 1, 3),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_python_numbers_has_the_default_dtype(name: str, wide: object) -> None:
    make = MADE[name]
    assert st.get_default_dtype() is st.float64 and all(make().dtype is st.float64 for _ in range(3))
    st.set_default_dtype(st.float32)
    assert all(make().dtype is st.float32 for _ in range(3))


def test_complex_numbers_are_as_wide_and_casts_keep_their_names(wide: object) -> None:
    assert st.tensor(1j).dtype is st.complex128
    assert st.tensor([1]).float().dtype is st.float32
    assert (st.ones(2, dtype="float32") * 1.5).dtype is st.float32


def test_a_compiled_function_is_captured_anew_for_another_default() -> None:
    function = st.compile(lambda x: x * st.ones(2))
    try:
        found = []
        for default in (st.float32, st.float64, st.float32, st.float64):
            st.set_default_dtype(default)
            found += [function(st.tensor([1, 2])).dtype, function(st.tensor([1, 2])).dtype]
    finally:
        st.set_default_dtype(st.float32)
    assert found == [st.float32, st.float32, st.float64, st.float64] * 2 and function.captures == 2


def test_only_floats_are_a_default_and_compiled_functions_do_not_change_it() -> None:
    for wrong in ("int32", "complex64"):
        with pytest.raises(TypeError, match="takes a float dtype"):
            st.set_default_dtype(wrong)
    with pytest.raises(RuntimeError, match="cannot change it"):
        st.compile(lambda x: (st.set_default_dtype("float64"), x)[1])(st.ones(2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc", "sign"])
def test_a_leaf_reached_by_zeros_has_a_gradient_and_others_have_none(name: str, compiled: bool) -> None:
    reached, other, detached = (st.tensor([1.25, -2.5]).requires_grad_(True) for _ in range(3))

    def step() -> st.Tensor:
        loss = (getattr(st, name)(reached) * detached.detach()).sum()
        loss.backward()
        return loss

    for _ in range(3):
        reached.grad = None
        (st.compile(step) if compiled else step)()
        assert reached.grad is not None and reached.grad.tolist() == [0.0, 0.0]
        assert other.grad is None and detached.grad is None
    assert st.gradients(getattr(st, name)(reached).sum(), reached)[0].tolist() == [0.0, 0.0]
