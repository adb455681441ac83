"""Arguments of the right kind whose sizes or values no call takes: refused where PyTorch refuses them."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import AttributeValueError, IndexOutOfRangeError, ShapeError

F = st.nn.functional
SIZES = """\
L.nn.functional.cross_entropy(L.zeros(2, 3), L.tensor([0, 1]), weight=L.ones(2))
L.nn.functional.cross_entropy(L.zeros(2, 3), L.tensor([0, 1]), weight=L.ones(4))
L.nn.functional.cross_entropy(L.zeros(2, 3), L.tensor([0, 1]), weight=L.ones(1))
L.nn.functional.cross_entropy(L.zeros(3), L.tensor(1), weight=L.ones(2))
L.nn.functional.cross_entropy(L.zeros(2, 3), L.ones(2, 3) / 3, weight=L.ones(2))
L.nn.CrossEntropyLoss(weight=L.ones(5))(L.zeros(2, 3), L.tensor([0, 1]))
L.nn.functional.nll_loss(L.zeros(2, 3), L.tensor([0, 1]), weight=L.ones(2))
L.nn.NLLLoss(weight=L.ones(1))(L.zeros(2, 3, 4), L.zeros(2, 4, dtype=L.int64))
L.nn.functional.multi_margin_loss(L.zeros(2, 3), L.tensor([0, 1]), weight=L.ones(2))
L.nn.functional.layer_norm(L.ones(2, 3), (3,), weight=L.ones(1))
L.nn.functional.layer_norm(L.ones(2, 3), (3,), weight=L.ones(3), bias=L.ones(1))
L.nn.functional.layer_norm(L.ones(2, 3), (3,), bias=L.ones(1))
L.nn.functional.rms_norm(L.ones(2, 3), (3,), weight=L.ones(1))
L.nn.functional.group_norm(L.ones(2, 4), 2, weight=L.ones(1))
L.nn.functional.instance_norm(L.ones(2, 3, 4), weight=L.ones(1))
L.nn.functional.instance_norm(L.ones(2, 3, 4), bias=L.ones(1))
L.nn.functional.batch_norm(L.ones(2, 3), L.zeros(1), L.ones(1))
L.nn.functional.batch_norm(L.ones(2, 3), L.zeros(1), L.ones(1), training=True)
L.nn.functional.batch_norm(L.ones(2, 3), L.zeros(3), L.ones(3), L.ones(1))
L.nn.functional.conv1d(L.ones(1, 1, 3), L.ones(2, 1, 3), L.ones(1))
L.nn.functional.conv2d(L.ones(1, 1, 3, 3), L.ones(2, 1, 3, 3), L.ones(1))
L.nn.functional.conv_transpose2d(L.ones(1, 1, 3, 3), L.ones(1, 2, 3, 3), L.ones(1))
""".splitlines()
VALUES = """\
L.nn.functional.one_hot(L.tensor([0, 5]), 3)
L.nn.functional.one_hot(L.tensor([0, -1]), 3)
L.nn.functional.one_hot(L.tensor([0, -1]))
L.nn.functional.binary_cross_entropy(L.tensor([.5]), L.tensor([2.]))
L.nn.functional.binary_cross_entropy(L.tensor([1.5]), L.tensor([1.]))
L.nn.BCELoss()(L.tensor([-.5]), L.tensor([1.]))
L.nn.functional.ctc_loss(L.zeros(4, 1, 3), L.tensor([[1, 2, 1]]), L.tensor([9]), L.tensor([3]))
L.nn.functional.ctc_loss(L.zeros(4, 1, 3), L.tensor([[1, 2, 1]]), L.tensor([4]), L.tensor([5]))
L.nn.functional.gaussian_nll_loss(L.zeros(2), L.zeros(2), -L.ones(2))
L.bernoulli(L.tensor([2.0, -1.]))
L.normal(L.zeros(2), L.tensor([-1., 1.]))
L.normal(0.0, -1.0, (2,))
L.zeros(3).gather(0, L.tensor([-1]))
L.gather(L.zeros(2, 3), 1, L.tensor([[3], [0]]))
L.zeros(3).index_select(0, L.tensor([-1]))
L.index_add(L.zeros(3), 0, L.tensor([-1]), L.ones(1))
L.zeros(3).index_copy(0, L.tensor([-1]), L.ones(1))
L.zeros(3).scatter(0, L.tensor([-1]), 1.0)
L.zeros(3).scatter_add(0, L.tensor([-1]), L.ones(1))
L.scatter_reduce(L.zeros(3), 0, L.tensor([-1]), L.ones(1), "sum")
""".splitlines()


def called(call: str, library: object) -> object:
    return eval(call, {"L": library})  # noqa: S307


def lines_of(error: Exception) -> list[str]:
    """Return what the lines after the first say."""
    return [line.split(":")[0].strip() for line in str(error).splitlines()[1:]]


def ran(call: str, library: object) -> object:
    result = called(call, library)
    return result.detach().numpy()  # what is lazy, too


@pytest.mark.torch
@pytest.mark.parametrize("call", SIZES)
def test_sizes_that_do_not_fit_are_refused_at_the_call(call: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((RuntimeError, ValueError)):
        ran(call, torch)
    with pytest.raises(ShapeError) as caught:
        called(call, st)
    assert lines_of(caught.value) == ["got", "where", "hint"]


@pytest.mark.torch
@pytest.mark.parametrize("call", VALUES)
def test_values_that_do_not_fit_end_the_computation(call: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        ran(call, torch)
    for _ in range(3):  # uncompiled, the second and third go other ways
        with pytest.raises((AttributeValueError, IndexOutOfRangeError)) as caught:
            ran(call, st)
    assert lines_of(caught.value) == ["got", "where", "hint"]
    name = call.split("(")[0].split(".")[-1]
    assert name in ("BCELoss", "scatter_add", "scatter_reduce", "zeros") or (
        str(caught.value).startswith(name)
    )
    with st.eager(), pytest.raises((AttributeValueError, IndexOutOfRangeError)):
        ran(call, st)


COMPILED = [
    (lambda x: F.one_hot(x, 4), [0, 2], [0, 4], "one_hot: class out of range for 4 classes"),
    (lambda x: F.one_hot(x, 5), [0, 2], [-1, 2], "one_hot: class out of range for 5 classes"),
    (lambda x: F.binary_cross_entropy(x, x), [0.0, 1.0], [0.0, 1.5], "input and target lie in"),
    (lambda x: F.binary_cross_entropy(st.sigmoid(x), x), [0.0, 1.0], [0.0, -1.0], "input and target lie in"),
    (lambda x: F.gaussian_nll_loss(x, x, x), [0.0, 1.0], [0.0, -1.0], "variance is not negative"),
    (lambda x: st.bernoulli(x), [0.0, 1.0], [0.0, 1.5], "probability lies in"),
    (lambda x: st.normal(x, x), [0.0, 1.0], [0.0, -1.0], "deviation is not negative"),
    (lambda x: F.ctc_loss(st.zeros(4, 2, 3), st.ones(2, 3, dtype=st.int64), x, x), [3, 3], [4, 4], "lies in"),
    (lambda x: st.zeros(3).gather(0, x), [0, 2], [0, -1], "gather: index out of range"),
    (lambda x: st.zeros(3).index_select(0, x), [0, 2], [0, -1], "index_select: index out of range"),
    (lambda x: F.nll_loss(st.zeros(2, 3), x), [0, 2], [0, 3], "nll_loss: index out of range"),
]


@pytest.mark.parametrize("case", COMPILED, ids=[c[3] + str(k) for k, c in enumerate(COMPILED)])
def test_a_compiled_function_looks_at_values_too(case) -> None:
    function, good, bad, says = case
    compiled = st.compile(function)
    given = np.asarray(good, np.float32 if isinstance(good[0], float) else np.int64)
    for _ in range(2):
        compiled(st.tensor(given)).numpy()
    with pytest.raises(st.StratalError, match=says) as caught:
        compiled(st.tensor(np.asarray(bad, given.dtype))).numpy()
    assert "test_values_refused.py" in str(caught.value)
    assert compiled.captures == 1


def test_a_step_with_a_bad_value_changes_no_weight() -> None:
    net = nn.Linear(2, 1)
    opt = st.optim.SGD(net.parameters(), lr=0.1)

    @st.compile
    def step(x, y):
        loss = F.binary_cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    before = net.weight.numpy().copy()
    with pytest.raises(AttributeValueError, match="lie in"):
        step(100 * st.ones(3, 2), st.ones(3, 1)).item()
    np.testing.assert_array_equal(before, net.weight.numpy())


def test_what_comes_of_a_sigmoid_is_not_looked_at() -> None:
    compiled = st.compile(lambda x, y: F.binary_cross_entropy(st.sigmoid(x), y.sigmoid()))
    compiled(st.randn(3), st.randn(3)).item()
    assert "index check" not in str(compiled.plan)


def test_names_of_numpy_count_from_the_end() -> None:
    x = st.arange(3.0)
    assert st.take(x, st.tensor([-1])).tolist() == st.take_along_axis(x, st.tensor([-1]), 0).tolist() == [2.0]
    assert x.index_fill(0, st.tensor([-1]), 7.0).tolist() == [0.0, 1.0, 7.0]
    assert x.put(st.tensor([-1]), st.tensor([7.0]), accumulate=True).tolist() == [0.0, 1.0, 9.0]
