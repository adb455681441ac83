"""Tensors against NumPy: functions, operators, promotion, in-place operators, conversions, errors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, DTypeError, NotDifferentiableError, ShapeError

RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 4)).astype(np.float32)
B = RNG.standard_normal((3, 4)).astype(np.float32)
INTS = RNG.integers(-5, 6, (3, 4))


def same(got: st.Tensor, want: object, rtol: float = 2e-6) -> None:
    array = np.asarray(got)
    expected = np.asarray(want)
    assert array.shape == expected.shape
    np.testing.assert_allclose(array.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=1e-6)


UNARY = [
    "abs",
    "cos",
    "exp",
    "expm1",
    "floor",
    "ceil",
    "negative",
    "sign",
    "sin",
    "square",
    "tanh",
    "trunc",
    "round",
]
POSITIVE = ["log", "log1p", "log2", "log10", "sqrt", "reciprocal"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "logaddexp", "atan2"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_agree_with_numpy(name):
    same(getattr(st, name)(st.tensor(A)), getattr(np, name)(A))


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers_agree_with_numpy(name):
    x = np.abs(A) + 0.1
    same(getattr(st, name)(st.tensor(x)), getattr(np, name)(x), 1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_agree_with_numpy_and_broadcast(name):
    numpy_name = {"atan2": "arctan2"}.get(name, name)
    same(getattr(st, name)(st.tensor(A), st.tensor(B[0])), getattr(np, numpy_name)(A, B[0]), 1e-5)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_agree_with_numpy(name):
    got = getattr(st, name)(st.tensor(INTS), st.tensor(INTS[::-1].copy()))
    assert got.dtype is st.bool_
    same(got, getattr(np, name)(INTS, INTS[::-1]))


def test_integer_arithmetic_follows_python():
    x, y = st.tensor(INTS), st.tensor(np.where(INTS == 0, 1, INTS)[::-1].copy())
    same(x // y, np.asarray(x) // np.asarray(y))
    same(x % y, np.asarray(x) % np.asarray(y))
    assert (x / y).dtype is st.float32
    assert (x & 3).dtype is st.int64
    same((x << 2) ^ (x | 1), (INTS << 2) ^ (INTS | 1))


def test_a_python_scalar_gives_way_to_the_tensor():
    half = st.ones(3, dtype="bfloat16")
    assert (half * 2.5).dtype is st.bfloat16
    assert (st.tensor([1, 2], dtype="int8") + 1).dtype is st.int8
    assert (st.tensor([1, 2]) * 0.5).dtype is st.float32
    assert (1 - st.tensor([1.0], dtype="float64")).dtype is st.float64
    assert (np.float64(2) * st.ones(2)).dtype is st.float32
    assert (st.tensor([True]) + 1).dtype is st.int64


def test_tensors_promote_as_the_array_api_says():
    assert (st.ones(2, dtype="float16") + st.ones(2, dtype="float32")).dtype is st.float32
    assert (st.ones(2, dtype="int32") + st.ones(2, dtype="uint8")).dtype is st.int32
    assert (st.ones(2, dtype="int64") * st.ones(2, dtype="float32")).dtype is st.float32
    with pytest.raises(DTypeError, match="no dtype holds both"):
        st.ones(2, dtype="uint64") + st.ones(2, dtype="int64")


def test_a_python_number_out_of_range_is_refused():
    with pytest.raises(DTypeError, match="does not fit"):
        st.tensor([1], dtype="uint8") + 300


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), ()])
def test_reductions_agree_with_numpy(axis):
    x = st.tensor(A)
    same(st.sum(x, axis=axis), A.sum(axis=axis), 1e-5)
    same(st.mean(x, axis=axis, keepdims=True), A.mean(axis=axis, keepdims=True), 1e-5)
    same(st.var(x, axis=axis), A.var(axis=axis), 1e-5)
    same(st.amax(x, axis=axis), A.max(axis=axis))
    same(st.any(x > 0, axis=axis), (A > 0).any(axis=axis))


def test_methods_take_pytorch_names_and_defaults():
    x = st.tensor(A)
    same(x.sum(dim=1, keepdim=True), A.sum(1, keepdims=True), 1e-5)
    same(x.std(), A.std(ddof=1), 1e-5)
    same(x.var(0, unbiased=False), A.var(0), 1e-5)
    values, indices = x.max(1)
    same(values, A.max(1))
    same(indices, A.argmax(1))
    assert x.min(dim=0).indices.dtype is st.int64
    same(st.max(x, st.tensor(B)), np.maximum(A, B))
    same(st.max(x, axis=0), A.max(0))
    same(x.norm(), np.linalg.norm(A), 1e-5)
    same(x.logsumexp(1), np.log(np.exp(A).sum(1)), 1e-5)


def test_integers_sum_in_int64_and_bools_count():
    assert st.tensor([200, 100], dtype="uint8").sum().item() == 300
    assert (st.tensor(A) > 0).sum().item() == int((A > 0).sum())


@pytest.mark.parametrize(
    ("x", "y"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)),
     ((5, 1, 2, 3), (7, 3, 4)), ((2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((4, 2, 3), (3,))],
)  # fmt: skip
def test_matmul_agrees_with_numpy(x, y):
    a, b = RNG.standard_normal(x), RNG.standard_normal(y)
    same(st.tensor(a) @ st.tensor(b), a @ b, 1e-10)


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [("ij,jk->ik", [(2, 3), (3, 4)]), ("ij->ji", [(2, 3)]), ("ii->i", [(3, 3)]), ("ii", [(3, 3)]),
    ("ij->", [(2, 3)]),
     ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]), ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 4)]),
     ("i,j->ij", [(2,), (3,)]),
     ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]), ("ij,kj->ik", [(2, 3), (4, 3)]),
     ("ij,ij->j", [(2, 3), (2, 3)]),
     ("ijk,k", [(2, 3, 4), (4,)])],
)  # fmt: skip
def test_einsum_agrees_with_numpy(spec, shapes):
    arrays = [RNG.standard_normal(s) for s in shapes]
    same(st.einsum(spec, *[st.tensor(a) for a in arrays]), np.einsum(spec, *arrays), 1e-10)


def test_tensordot_outer_trace_and_diagonal_agree_with_numpy():
    a, b = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((4, 3, 5))
    same(
        st.tensordot(st.tensor(a), st.tensor(b), axes=([1, 2], [1, 0])),
        np.tensordot(a, b, ([1, 2], [1, 0])),
        1e-10,
    )
    same(st.outer(st.tensor(a[0, 0]), st.tensor(b[0, 0])), np.outer(a[0, 0], b[0, 0]), 1e-10)
    m = RNG.standard_normal((3, 5))
    for k in (-2, -1, 0, 1, 4):
        same(st.diagonal(st.tensor(m), k), np.diagonal(m, k), 1e-10)
    same(st.trace(st.tensor(m)), np.trace(m), 1e-10)


def test_shape_functions_agree_with_numpy():
    a = RNG.standard_normal((2, 3, 4))
    x = st.tensor(a)
    same(x.reshape(4, -1), a.reshape(4, -1))
    same(x.view((6, 4)), a.reshape(6, 4))
    same(x.permute(2, 0, 1), a.transpose(2, 0, 1))
    same(x.transpose(0, 2), a.swapaxes(0, 2))
    same(x.mT, a.swapaxes(-1, -2))
    same(x.flatten(1), a.reshape(2, 12))
    same(x.unsqueeze(1).squeeze(1), a)
    same(x[:, :1].expand(-1, 5, -1), np.broadcast_to(a[:, :1], (2, 5, 4)))
    same(st.concat([x, x], axis=1), np.concatenate([a, a], 1))
    same(st.stack([x, x], axis=-1), np.stack([a, a], -1))
    same(st.roll(x, 2, 1), np.roll(a, 2, 1))
    same(st.flip(x, axis=(0, 2)), np.flip(a, (0, 2)))
    same(st.tile(x, (2, 1, 3)), np.tile(a, (2, 1, 3)))
    same(x.repeat_interleave(2, dim=1), np.repeat(a, 2, 1))
    same(st.moveaxis(x, 0, -1), np.moveaxis(a, 0, -1))
    for got, want in zip(x.split(2, dim=1), np.split(a, [2], 1), strict=True):
        same(got, want)
    assert [t.shape for t in x.chunk(3, dim=2)] == [(2, 3, 2), (2, 3, 2)]
    assert [t.shape for t in x.unbind(1)] == [(2, 4)] * 3


def test_creation_functions_agree_with_numpy():
    same(st.arange(5), np.arange(5))
    same(st.arange(1, 10, 3), np.arange(1, 10, 3))
    same(st.arange(0, 1, 0.25), np.arange(0, 1, 0.25))
    same(st.linspace(0, 1, 5), np.linspace(0, 1, 5))
    same(st.eye(3, 4, k=1), np.eye(3, 4, 1))
    same(st.tril(st.ones((3, 3)), k=-1), np.tril(np.ones((3, 3)), -1))
    same(st.triu(st.tensor(A), diagonal=1), np.triu(A, 1))
    same(st.full((2, 2), 7), np.full((2, 2), 7))
    assert st.zeros(2, 3).dtype is st.float32
    assert st.full((2,), True).dtype is st.bool_
    assert st.ones_like(st.tensor(INTS)).dtype is st.int64
    for got, want in zip(
        st.meshgrid(st.arange(2), st.arange(3)), np.meshgrid(range(2), range(3)), strict=True
    ):
        same(got, want)


def test_where_clip_and_masks():
    x = st.tensor(A)
    same(st.where(x > 0, x, 0.0), np.where(A > 0, A, 0))
    same(x.clamp(-0.5, 0.5), A.clip(-0.5, 0.5))
    same(x.clamp(min=0), A.clip(0))
    same(x.masked_fill(x < 0, -1e9), np.where(A < 0, -1e9, A))


def test_data_keeps_or_gets_its_dtype():
    assert st.tensor([1.0, 2.0]).dtype is st.float32
    assert st.tensor([1, 2]).dtype is st.int64
    assert st.tensor(3.0).dtype is st.float32
    assert st.tensor([True]).dtype is st.bool_
    assert st.tensor(np.zeros(2)).dtype is st.float64
    assert st.tensor([[1, 2], [3, 4]], dtype="float16").dtype is st.float16
    assert st.tensor([st.tensor(1.0), st.tensor(2.0)]).shape == (2,)
    with pytest.raises(ShapeError, match="rectangular"):
        st.tensor([[1, 2], [3]])
    with pytest.raises(DTypeError, match="must be numbers"):
        st.tensor(["a"])


def test_conversions_to_python_and_numpy():
    x = st.tensor([[1.5, 2.5]])
    assert x.tolist() == [[1.5, 2.5]]
    assert x.sum().item() == 4.0
    assert float(x[0, 0]) == 1.5
    assert int(st.tensor(3)) == 3
    assert bool(st.tensor(1.0))
    assert [v.item() for v in st.arange(3)] == [0, 1, 2]
    assert len(x) == 1
    assert x.size == 2
    assert x.size(1) == 2
    assert x.numel() == 2
    assert f"{st.tensor(1.25):.1f}" in ("1.2", "1.3")
    assert list(range(5))[st.tensor(2)] == 2
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(AttributeValueError, match="one element"):
        bool(x)


def test_asarray_of_a_tensor_copies_nothing():
    x = st.tensor(A)
    first, second = np.asarray(x), np.asarray(x)
    assert np.shares_memory(first, second)
    assert np.shares_memory(x.numpy(), first)


def test_casts():
    x = st.tensor([1.7, -1.7])
    assert x.int().dtype is st.int32
    assert x.long().tolist() == [1, -1]
    assert x.to("float16").dtype is st.float16
    assert x.to(st.tensor([1], dtype="int8")).dtype is st.int8
    assert x.to("cpu") is x
    assert x.half().float().dtype is st.float32
    assert x.bool().tolist() == [True, True]
    with pytest.raises(st.StratalError, match="only the CPU"):
        x.to("cuda")


def test_in_place_operators_show_in_views():
    x = st.tensor([1.0, 2.0])
    alias, row = x.detach(), x[:1]
    x += 1
    x.mul_(2).add_(1, alpha=3)
    x[0] = 0.0
    assert x.tolist() == [0.0, 9.0]
    assert alias.tolist() == [0.0, 9.0]
    assert row.tolist() == [0.0]


def test_in_place_operators_keep_type_and_shape():
    x = st.tensor([1, 2])
    with pytest.raises(DTypeError, match="does not fit"):
        x += 0.5
    with pytest.raises(ShapeError):
        x += st.ones((2, 2), dtype="int64")
    assert x.tolist() == [1, 2]
    half = st.ones(2, dtype="float16")
    half += st.ones(2)
    assert half.dtype is st.float16


def test_fill_zero_copy_and_friends():
    x = st.tensor(A)
    assert x.clone().zero_().abs().sum().item() == 0
    assert x.clone().fill_(3).mean().item() == 3
    y = st.zeros(3, 4)
    y.copy_(A[0])
    same(y, np.broadcast_to(A[0], (3, 4)))
    y.clamp_(min=0)
    assert y.min().item() >= 0
    y.masked_fill_(y == 0, 1.0)
    assert y.min().item() > 0


def test_tensors_copy_and_pickle():
    x = st.tensor(A, requires_grad=True)
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):  # noqa: S301
        same(other, A)
        assert other.requires_grad
        assert other.is_leaf
        assert other is not x


def test_printing_shows_values_dtype_and_history():
    assert repr(st.tensor([1.0, 2.0])) == "tensor([1., 2.])"
    assert repr(st.tensor([1, 2], dtype="int8")) == "tensor([1, 2], dtype=int8)"
    x = st.tensor([1.0], requires_grad=True)
    assert "requires_grad=True" in repr(x)
    assert "grad_fn=<mul>" in repr(x * 3.0)
    assert "bfloat16" in repr(st.ones(2, dtype="bfloat16"))


def test_errors_have_four_lines_and_name_the_users_line():
    x, y = st.ones(128, 784), st.ones(512, 10)
    with pytest.raises(ShapeError) as caught:
        x @ y
    lines = str(caught.value).split("\n")
    assert lines[0] == "matmul: inner sizes differ"
    assert lines[1] == "  got:   f32[128,784] @ f32[512,10]"
    assert lines[2].startswith("  where: test_tensor.py:")
    assert lines[3] == "  hint:  the second operand should have 784 rows"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: st.ones(2) + st.ones(3), "do not broadcast"),
        (lambda: st.ones(2, 3).reshape(4, -1), "-1"),
        (lambda: st.ones(2, 3).sum(2), "out of range"),
        (lambda: st.ones(2, 3).sum((0, 0)), "named twice"),
        (lambda: st.ones(2)[5], "out of range"),
        (lambda: st.ones(2)[0, 0], "more indices"),
        (lambda: st.ones(2)[1.5], "takes ints"),
        (lambda: st.ones(2).permute(0, 0), "named twice"),
        (lambda: st.concat([]), "at least one"),
        (lambda: st.einsum("ij,jk", st.ones(2, 2)), "one term per operand"),
        (lambda: st.tensor([1]).requires_grad_(), "only floats"),
        (lambda: st.ones(2).backward(), "takes a gradient"),
        (lambda: len(st.tensor(1.0)), "no length"),
        (lambda: st.ones(2, 2) & 1, "integers or bools"),
    ],
)
def test_wrong_calls_are_refused_in_words(call, says):
    with pytest.raises(st.StratalError, match=says) as caught:
        call()
    assert "test_tensor.py" in str(caught.value)


def test_shape_and_dtype_errors_are_also_pythons_own():
    with pytest.raises(ValueError, match="broadcast"):
        st.ones(2) + st.ones(3)
    with pytest.raises(IndexError):
        st.ones(2)[5]
    with pytest.raises(NotDifferentiableError):
        x = st.ones(2, requires_grad=True)
        x += 1


def test_eager_mode_runs_each_op_at_once():
    with st.eager():
        x = st.tensor([2.0], requires_grad=True)
        y = x * 3.0
        assert y._storage is not None
        y.sum().backward()
        assert x.grad.item() == 3.0


def test_importing_the_package_loads_almost_nothing():
    import subprocess
    import sys

    loaded = "sum(m.startswith('stratal.') for m in sys.modules)"
    code = f"import sys, stratal; print({loaded}, 'numpy' in sys.modules)"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    assert out.split() == ["0", "False"]


def test_public_names_resolve():
    for name in dir(st):
        if name not in ("data", "formats", "inspect", "train", "load", "save"):
            getattr(st, name)


def test_sorting_agrees_with_numpy():
    x = st.tensor(A)
    same(st.sort(x), np.sort(A))
    same(st.sort(x, axis=0, descending=True), -np.sort(-A, 0))
    values, indices = x.sort(0)
    same(values, np.sort(A, 0))
    same(indices, np.argsort(A, 0))
    values, indices = x.topk(2, dim=1)
    same(values, -np.sort(-A, 1)[:, :2])
    same(indices, np.argsort(-A, 1)[:, :2])
    assert st.tensor([3.0, 1.0, 2.0, 4.0]).median().item() == 2.0
    same(st.searchsorted(st.tensor([1.0, 2.0, 3.0]), st.tensor([0.5, 2.0, 9.0])), [0, 1, 3])


def test_running_functions_and_softmax_agree_with_numpy():
    x = st.tensor(A)
    same(x.cumsum(1), A.cumsum(1), 1e-5)
    same(st.cumulative_sum(x, axis=0, include_initial=True), np.vstack([np.zeros((1, 4)), A.cumsum(0)]), 1e-5)
    same(x.cumprod(0), A.cumprod(0), 1e-5)
    e = np.exp(A - A.max(1, keepdims=True))
    same(x.softmax(dim=1), e / e.sum(1, keepdims=True), 1e-5)
    same(st.log_softmax(x, axis=1), np.log(e / e.sum(1, keepdims=True)), 1e-5)


def test_functional_derivatives_nest():
    def f(x, y):
        return (x**3 * y).sum()

    x, y = st.tensor([1.0, 2.0]), st.tensor([3.0, 4.0])
    value, (gx, gy) = st.value_and_grad(f, argnums=(0, 1))(x, y)
    assert value.item() == 35.0
    assert gx.tolist() == [9.0, 48.0]
    assert gy.tolist() == [1.0, 8.0]
    second = st.grad(lambda v: st.grad(f)(v, y).sum())(x)
    assert second.tolist() == [18.0, 48.0]
    out, tangent = st.jvp(lambda v: v * v, (x,), (st.ones(2),))
    assert tangent.tolist() == [2.0, 4.0]
    out, pullback = st.vjp(lambda p: {"a": p["w"] * 2.0, "b": p["w"].sum()}, {"w": x})
    assert out["b"].item() == 3.0
    assert pullback({"a": st.ones(2), "b": st.tensor(1.0)})[0]["w"].tolist() == [3.0, 3.0]


def test_functional_derivatives_treat_equal_arguments_apart_and_see_printing():
    x = st.tensor([2.0])

    def f(a, b):
        repr(a * 1.0)
        return (a * b * x).sum()

    assert st.grad(f)(x, x).item() == 4.0
    assert st.grad(f, argnums=1)(x, x).item() == 4.0
    w = st.tensor([3.0], requires_grad=True)
    inner = st.grad(lambda v: (v * v * w).sum())(x)
    inner.sum().backward()
    assert w.grad.item() == 4.0


def test_functional_derivatives_work_inside_a_compiled_function():
    f = st.compile(lambda x: st.grad(lambda v: (v**3).sum())(x))
    assert f(st.tensor([2.0])).tolist() == [12.0]


@pytest.mark.row("A6")
def test_check_grad_accepts_right_and_refuses_wrong_derivatives():
    w = st.tensor(A)
    st.check_grad(lambda x: (x @ w.T.double()).tanh().sum(), [A.astype(np.float64)])
    st.check_grad(lambda x, y: x * y.exp(), [A.astype(np.float64), B.astype(np.float64)], order=2)
    with pytest.raises(st.StratalError, match="finite differences"):
        st.check_grad(lambda x: x * x.detach(), [A.astype(np.float64)])


@pytest.mark.parametrize("a, b", [
    ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((3,), (5, 1, 3, 4)), ((0,), (0, 0, 0)), ((3,), (2, 3, 0)),
    ((3,), (3, 4)), ((4, 3), (3,)), ((2, 1, 4, 3), (5, 3, 2)), ((0, 4, 3), (3,)),
])  # fmt: skip
def test_vectors_and_stacks_of_matrices_are_multiplied_as_numpy_does(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    x, y = (np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in (a, b))
    got = st.tensor(x) @ st.tensor(y)
    np.testing.assert_array_equal(got.numpy(), x @ y)
    assert got.shape == (x @ y).shape


@pytest.mark.parametrize("compiled", [False, True])
def test_a_tensor_without_axes_is_formatted_as_its_number(compiled, capsys):
    def show(x):
        print(f"{x.sum()} {x.sum():.1f} {x.sum()!r} {x}", f"{(x > 0).all()}")

    (st.compile(show) if compiled else show)(st.tensor([0.5, 0.25]))
    assert capsys.readouterr().out == "0.75 0.8 tensor(0.75) tensor([0.5 , 0.25]) True\n"
