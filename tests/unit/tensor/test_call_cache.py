"""Public calls keep their graphs: the third call of a kind builds no op, and means what it meant."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import stratal as st
from stratal import nn
from stratal.base.session import SESSION
from stratal.nn import functional as F
from stratal.tensor.calls import call_cache
from stratal.tensor.lazy import program_cache
from stratal.tensor.values.deferred import Deferred

ROW = np.array([0.5, -1.0, 2.0, -0.25], np.float32)


def promised(result: st.Tensor) -> bool:
    return isinstance(result._ir, Deferred) and result._ir.call._nodes is None


def thrice(call: Callable[[], Any]) -> Any:
    call(), call()
    return call()


def test_the_third_call_is_a_promise_and_builds_no_node() -> None:
    x = st.tensor(ROW)
    y = thrice(lambda: st.tanh(x))
    assert promised(y)
    np.testing.assert_allclose(y.tolist(), np.tanh(ROW), rtol=1e-6)
    assert not promised(y)


def test_a_promise_becomes_nodes_where_another_op_reads_it() -> None:
    SESSION.reset()  # no test before has called the product
    x = st.tensor(ROW)
    y = thrice(lambda: st.relu(x))
    z = y * 2.0
    assert not promised(y)
    np.testing.assert_array_equal(z.numpy(), np.maximum(ROW, 0) * 2)
    np.testing.assert_array_equal(y.numpy(), np.maximum(ROW, 0))


@pytest.mark.parametrize("first, other", [
    (0.0, -0.0), (1, 1.0), (1, True), (2.0, 3.0), (float("nan"), 1.0), (float("inf"), float("-inf")),
])  # fmt: skip
def test_python_numbers_that_mean_something_else_are_other_calls(first: Any, other: Any) -> None:
    x = st.tensor(np.array([0.0, 4.0], np.float32))
    for number in (first, other, first, other, first, other):
        with np.errstate(all="ignore"):
            want = np.copysign(x.numpy(), np.float32(number))
        got = st.copysign(x, number)
        np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(want))
        got = st.multiply(st.tensor([2, 3]), number)
        assert got.dtype is (st.float32 if isinstance(number, float) else st.int64)


def test_one_tensor_twice_is_another_call_than_two() -> None:
    x, y = st.tensor(ROW), st.tensor(ROW[::-1].copy())
    for a, b in ((x, x), (x, y), (x, x), (x, y), (y, x), (y, y)):
        np.testing.assert_array_equal(st.subtract(a, b).numpy(), a.numpy() - b.numpy())


def test_types_shapes_and_containers_are_told_apart() -> None:
    for _ in range(3):
        assert st.sum(st.ones(2, 3), 0).shape == (3,)
        assert st.sum(st.ones(2, 3), (0, 1)).shape == ()
        assert st.sum(st.ones(4, 3), 0).tolist() == [4.0] * 3
        assert st.sum(st.ones(2, 3, dtype="int32"), 0).dtype is st.int64
        assert st.concat([st.ones(1), st.zeros(2)]).tolist() == [1.0, 0.0, 0.0]
        assert st.concat([st.ones(1), st.zeros(2), st.ones(1)]).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_promise_holds_the_value_its_argument_had() -> None:
    x = st.tensor(ROW)
    for _ in range(4):
        before = x.numpy().copy()
        y = st.square(x)
        x.add_(1.0)
        np.testing.assert_array_equal(y.numpy(), before**2)


def test_a_parameter_that_is_updated_is_read_before() -> None:
    w = st.tensor(ROW, requires_grad=True)
    for _ in range(4):
        before = w.detach().numpy().copy()
        y = st.square(w)
        with st.no_grad():
            w.mul_(0.5)
        np.testing.assert_allclose(y.detach().numpy(), before**2)


def test_gradients_flow_through_promises() -> None:
    for _ in range(4):
        x = st.tensor(ROW, requires_grad=True)
        F.huber_loss(st.relu(x), st.zeros(4), reduction="sum").backward()
        np.testing.assert_allclose(x.grad.numpy(), np.clip(np.maximum(ROW, 0), 0, 1))  # type: ignore[union-attr]


def test_what_takes_gradients_is_as_it_would_be() -> None:
    x, c = st.tensor(ROW, requires_grad=True), st.tensor(ROW)
    for _ in range(4):
        assert st.exp(x).requires_grad
        assert not st.exp(c).requires_grad
        assert not st.argmax(x).requires_grad
        with st.no_grad():
            assert not st.exp(x).requires_grad
        values, places = st.max(x, dim=0)
        assert values.requires_grad and not places.requires_grad
        stopped = st.exp(x).detach()
        (st.multiply(x, stopped)).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.exp(ROW), rtol=1e-6)  # type: ignore[union-attr]
        x.grad = None


def test_one_result_of_several_is_computed_alone_or_with_the_others() -> None:
    x = st.tensor(ROW)
    for _ in range(3):
        assert st.max(x, dim=0)[0].item() == 2.0
        assert st.max(x, dim=0)[1].item() == 2
        both = st.max(x, dim=0)
        assert both.indices.item() == 2 and both.values.item() == 2.0
        assert [p.tolist() for p in st.split(x, 2)] == [ROW[:2].tolist(), ROW[2:].tolist()]


def test_random_numbers_are_those_of_calls_that_are_not_kept() -> None:
    p = st.full((64,), 0.5)

    def drawn() -> list[Any]:
        st.manual_seed(3)
        return [st.bernoulli(p).tolist() for _ in range(5)]

    first = drawn()
    assert drawn() == first
    assert len({tuple(row) for row in first}) == 5
    dropped = st.stack([F.dropout(p, 0.5) for _ in range(5)])
    assert len({tuple(row) for row in dropped.tolist()}) == 5


def test_calls_that_write_are_not_kept() -> None:
    mean, spread = st.zeros(3), st.ones(3)
    for k in range(5):
        F.batch_norm(st.full((4, 3), 2.0), mean, spread, training=True, momentum=0.5)
        np.testing.assert_allclose(mean.numpy(), 2 - 2 * 0.5 ** (k + 1))


def test_calls_that_ask_for_values_are_not_kept() -> None:
    for value in (ROW, ROW * 0, ROW, ROW):
        found = st.nonzero(st.tensor(value))[0].tolist()
        assert found == np.nonzero(value)[0].tolist()


def test_an_error_of_a_run_names_the_line_of_this_call() -> None:
    x, places = st.tensor(ROW), st.tensor([1, 2])
    thrice(lambda: st.take(x, places).numpy())
    with pytest.raises(st.StratalError) as caught:
        st.take(x, st.tensor([1, 9])).numpy()  # here
    lines = Path(__file__).read_text().split("\n")
    assert "# here" in lines[caught.value.where[0].line - 1]


def test_nodes_stand_at_the_line_of_their_call_under_its_scopes() -> None:
    x = st.tensor(ROW)
    plain = st.softmax(x, -1)._node
    again = thrice(lambda: st.softmax(st.tensor(ROW), -1))
    assert promised(again)
    assert plain is not None and again._node is not None
    assert again._node.where[0].scope == plain.where[0].scope
    assert again._node.where[0].line > plain.where[0].line


def test_a_failed_call_fails_each_time() -> None:
    for _ in range(4):
        with pytest.raises(st.StratalError):
            st.add(st.ones(2), st.ones(3))


def test_threads_share_templates() -> None:
    x = st.tensor(ROW)

    def work(k: int) -> list[Any]:
        return [(st.square(x) + float(n % 7)).tolist() for n in range(40 * k, 40 * k + 40)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(8)))
    assert found == [work(k) for k in range(8)]


@pytest.mark.sampled(5)
def test_templates_are_bounded() -> None:
    x = st.tensor(ROW)
    for k in range(call_cache._CAPACITY + 20):
        thrice(lambda k=k: x[k % 4 : 4] + float(k))
    assert len(call_cache._TEMPLATES) <= call_cache._CAPACITY
    assert len(call_cache._SEEN) <= call_cache._MOST_KEYS


CALLS: dict[str, Callable[[st.Tensor, st.Tensor], st.Tensor]] = {
    "add": lambda x, y: x + y, "half": lambda x, y: 0.5 * x, "relu": lambda x, y: st.relu(x),
    "softmax": lambda x, y: st.softmax(x, -1), "clip": lambda x, y: st.clip(x, -1.0, 1.0),
    "turn": lambda x, y: x.T, "norm": lambda x, y: F.layer_norm(x, (3,)), "in place": lambda x, y: x.add_(y),
    "where": lambda x, y: st.where(x > y, x, y), "product": lambda x, y: x @ y, "flat": lambda x, y: x[::-1],
}  # fmt: skip


STEPS = some.tuples(some.sampled_from(sorted(CALLS)), some.integers(0, 3), some.booleans())


@pytest.mark.sampled(4)
@settings(max_examples=60, deadline=None)
@given(some.lists(STEPS, max_size=12))
def test_chains_of_kept_calls_compute_what_eager_ones_do(steps: list[tuple[str, int, bool]]) -> None:
    def run() -> list[Any]:
        made = [st.tensor(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3) + k) for k in range(4)]
        for k, (name, which, look) in enumerate(steps):
            made[(which + k) % 4] = CALLS[name](made[which], made[(which + 1) % 4])
            if look:
                made[which].numpy()
        return [t.numpy().copy() for t in made]

    with st.eager():
        want = run()
    for _ in range(3):
        for got, right in zip(run(), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)


# -- numbers that change -------------------------------------------------------------------------------------
NUMBERS = [2.0, 0.5, -1.5, 0.0, -0.0, 1.0, 3.0, 1e-40, 0.1, float("inf"), float("nan")]
WITH_NUMBERS: dict[str, Callable[[Any, float], Any]] = {
    "mul": lambda x, v: x * v, "rmul": lambda x, v: v * x, "add": lambda x, v: x + v,
    "sub": lambda x, v: x - v, "rsub": lambda x, v: v - x, "div": lambda x, v: x / v,
    "rdiv": lambda x, v: v / x, "pow": lambda x, v: x**v, "rpow": lambda x, v: v**x,
    "floordiv": lambda x, v: x // v, "mod": lambda x, v: x % v, "greater": lambda x, v: x > v,
    "equal": lambda x, v: x == v, "where": lambda x, v: st.where(x > 0, x, v),
    "clamp": lambda x, v: x.clamp(v, 2.5), "clip": lambda x, v: st.clip(x, max=v),
    "maximum": lambda x, v: st.maximum(x, v), "copysign": lambda x, v: st.copysign(x, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v), "full_like": lambda x, v: st.full_like(x, v),
    "nan_to_num": lambda x, v: st.nan_to_num(x, nan=v), "lerp": lambda x, v: st.lerp(x * 1.0, x + 1.0, v),
    "addcmul": lambda x, v: st.addcmul(x * 1.0, x * 1.0, x * 1.0, value=v),
    "isclose": lambda x, v: st.isclose(x, x, atol=v), "leaky_relu": lambda x, v: F.leaky_relu(x * 1.0, v),
    "elu": lambda x, v: F.elu(x * 1.0, v), "softplus": lambda x, v: F.softplus(x * 1.0, v),
    "threshold": lambda x, v: F.threshold(x, 0.5, v),
    "huber": lambda x, v: F.huber_loss(x * 1.0, x * 0.0, delta=v),
    "layer_norm": lambda x, v: F.layer_norm(x * 1.0, (4,), eps=v),
    "normalize": lambda x, v: F.normalize(x * 1.0, p=v), "quantile": lambda x, v: st.quantile(x * 1.0, v),
    "norm": lambda x, v: st.norm(x * 1.0, v), "sum": lambda x, v: st.sum(x * v, 0),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v), "list": lambda x, v: x * st.tensor([v, v, v, v]),
}  # fmt: skip


ROUNDED = ("pow", "rpow", "norm", "normalize", "softplus", "elu", "layer_norm")  # not to the bit


def outcome(call: Callable[[], Any]) -> Any:
    try:
        result = call()
        return result.dtype, result.numpy()
    except st.StratalError as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.sampled(42)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool"])
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_that_change_give_what_the_interpreter_gives(name: str, dtype: str) -> None:
    x = st.tensor(ROW.astype(dtype))
    call = WITH_NUMBERS[name]
    with np.errstate(all="ignore"):
        for number in [*NUMBERS, *NUMBERS, *reversed(NUMBERS)]:
            got = outcome(lambda: call(x, number))  # noqa: B023
            with st.eager():
                kind, wanted = outcome(lambda: call(x, number))  # noqa: B023
            assert got[0] is kind, (number, got, wanted)
            if isinstance(wanted, str):
                assert got[1] == wanted
            else:
                ulp = 4 if name in ROUNDED else 1
                tolerance = {"rtol": ulp * np.finfo(wanted.dtype).eps} if wanted.dtype.kind == "f" else {}
                np.testing.assert_allclose(got[1], wanted, **tolerance, err_msg=str(number))
                signs = [np.where(np.isnan(a), False, np.signbit(a)) for a in (got[1], wanted)]
                np.testing.assert_array_equal(*signs, err_msg=str(number))


def test_a_number_that_changes_is_an_operand_and_is_compiled_once() -> None:
    SESSION.reset()
    x = st.tensor(ROW).requires_grad_(True)
    program_cache.COMPILED[0] = 0
    for k in range(40):
        rate = 0.1 / (1 + k)
        loss = ((x - rate) ** 2 * rate).sum()
        loss.backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * (ROW - np.float32(rate)) * np.float32(rate), rtol=1e-5)
        x.grad = None
    assert program_cache.COMPILED[0] <= 4


def test_layers_with_different_numbers_at_one_line_are_kept() -> None:
    SESSION.reset()
    drops = [nn.Dropout(p) for p in (0.1, 0.2, 0.3, 0.4, 0.5)]
    for _ in range(4):
        y = st.ones(50)
        for drop in drops:
            y = drop(y)
    assert promised(y)


def test_batches_cut_from_data_are_found_again() -> None:
    SESSION.reset()
    data, weight = st.arange(4000).reshape(1000, 4) * 1.0, st.ones(4)
    order = st.tensor(np.random.default_rng(0).permutation(1000))
    data.numpy(), weight.numpy()
    program_cache.COMPILED[0] = 0
    for begin in range(0, 1000, 10):
        end = begin + 10
        picked = order[begin:end]
        got = (data[begin:end] * weight).sum() + data[picked].sum() + data[begin, 2]
        wanted = data.numpy()[begin:end].sum() + data.numpy()[picked.numpy()].sum() + data.numpy()[begin, 2]
        assert got.item() == wanted
    assert program_cache.COMPILED[0] <= 8


def test_what_is_copied_at_once_is_still_a_view() -> None:
    SESSION.reset()
    data = st.zeros(100, 2)
    data.numpy()
    views = []
    for k in range(20):
        row = data[k]
        row += k
        views.append(data[2 * k : 2 * k + 3, 1])
    assert data[:20, 0].tolist() == [float(k) for k in range(20)]
    data.mul_(2.0)
    data[5, 1] = -1.0
    array = data.numpy()
    for k, view in enumerate(views):
        np.testing.assert_array_equal(view.numpy(), array[2 * k : 2 * k + 3, 1])
    views[1][0] = 7.0
    assert data[2, 1].item() == 7.0


def test_whole_numbers_beside_floats_that_change_are_told_apart() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    calls = [(1, 0, 0.0), (2, 1, 0.5), (3, -1, 0.25), (1, 1, 1.0), (2, 0, 0.0), (2, 1, 2.0)]
    for n, axis, value in calls * 2:
        got = st.diff(st.tensor(x), n=n, axis=axis, prepend=value)
        np.testing.assert_allclose(got.numpy(), np.diff(x, n, axis, prepend=value))
        got = st.quantile(st.tensor(x), value / 2, dim=axis, keepdim=n == 1)
        np.testing.assert_allclose(got.numpy(), np.quantile(x, value / 2, axis=axis, keepdims=n == 1))
