"""The deferred style: graphs of placeholders and variables, run in parts by sessions."""

import numpy as np
import pytest

import stratal as st
import stratal.deferred as sd
from stratal.base.errors import StratalError, UndecidedError
from stratal.graph.node import Const, Input
from stratal.tensor.api.functions import FUNCTIONS


@pytest.fixture(autouse=True)
def _own_graph():
    sd.reset_default_graph()
    yield
    sd.reset_default_graph()


def _rows(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _here(offset=0):
    """Return this line of the test as errors name it."""
    import sys

    return f"test_deferred.py:{sys._getframe(1).f_lineno + offset}"


# -- only what is needed -------------------------------------------------------------------------------------
def _ancestors(node, found=None):
    found = set() if found is None else found
    if node not in found:
        found.add(node)
        for i in node.inputs:
            _ancestors(i, found)
    return found


def _ops(nodes):
    return sum(not isinstance(n.op, (Input, Const)) for n in nodes)


@pytest.mark.quick
@pytest.mark.row("A3")
def test_a_run_executes_as_many_ops_as_the_fetch_has_ancestors():
    x = sd.placeholder(sd.float32, (4, 4))
    w = sd.Variable(_rows(4, 4))
    a = sd.exp(sd.matmul(x, w))
    b = sd.sin(x) * 2.0 + a
    loss = sd.square(b).sum()
    step = sd.GradientDescentOptimizer(0.1).minimize(loss)
    session = sd.Session()
    session.run(w.initializer)
    for fetch in (a, b, loss, [a, loss], x + 1.0):
        session.run(fetch, {x: _rows(4, 4)})
        together = set()
        for t in fetch if isinstance(fetch, list) else [fetch]:
            _ancestors(t._node, together)
        assert _ops(session.last.graph.nodes) == _ops(together) > 0
    assert _ops(_ancestors(a._node)) < _ops(_ancestors(b._node)) < _ops(_ancestors(loss._node))
    session.run(step, {x: _rows(4, 4)})
    assert _ops(session.last.graph.nodes) > _ops(_ancestors(loss._node))


@pytest.mark.row("A3")
def test_functions_beside_the_fetch_are_not_called():
    calls = []

    def note(name):
        def function(a):
            calls.append(name)
            return a + 1

        return function

    x = sd.placeholder(sd.float32, (3,))
    like = st.spec((3,), st.float32)
    left = sd.host_call(note("left"), like, x)
    right = sd.host_call(note("right"), like, x)
    session = sd.Session()
    np.testing.assert_array_equal(session.run(left * 2.0, {x: np.ones(3)}), [4, 4, 4])
    assert calls == ["left"]
    session.run([right, left], {x: np.ones(3)})
    assert sorted(calls) == ["left", "left", "right"]


def test_nothing_is_computed_while_a_graph_is_built():
    calls = []
    x = sd.placeholder(sd.float32, (2,))
    y = sd.host_call(lambda a: calls.append(1) or a, st.spec((2,), st.float32), x)
    assert "deferred" in repr(y * 2)
    assert calls == []


# -- values --------------------------------------------------------------------------------------------------
@pytest.mark.quick
def test_operators_methods_functions_and_open_graphs_build_the_same_values():
    x = sd.placeholder(sd.float32, (3, 4))
    graph = x.graph
    with graph:
        inside = [
            st.matmul(x, x.T),
            st.nn.functional.softmax(x, dim=-1),
            st.cond(x.sum() > 0, lambda: x, lambda: -x),
        ]
    outside = [
        x @ x.mT,
        2.0 - x,
        _rows(3, 4) * x,
        sd.where(x > 0, x, 0.0),
        x[1:, ::2],
        x.mean(axis=0),
        abs(x),
        -x,
    ]
    data = _rows(3, 4)
    got = sd.Session().run([*inside, *outside], {x: data})
    e = np.exp(data - data.max(-1, keepdims=True))
    expected = [
        data @ data.T, e / e.sum(-1, keepdims=True), data if data.sum() > 0 else -data,
        data @ data.T, 2 - data, data * data, np.where(data > 0, data, 0), data[1:, ::2],
        data.mean(0), abs(data), -data,
    ]  # fmt: skip
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [4, None])
def test_every_function_of_one_matrix_gives_what_it_gives_at_once(size):
    data = np.random.default_rng(0).uniform(0.1, 0.9, (4, 4)).astype(np.float32)
    x = sd.placeholder(sd.float32, (size, 4))
    expected, built = {}, {}
    for name in sorted(FUNCTIONS):
        if name.startswith(("empty", "unique")) or name in ("argwhere", "flatnonzero"):
            continue  # no values, or sizes that are data
        try:
            value = FUNCTIONS[name](st.tensor(data))
        except (StratalError, TypeError):
            continue  # takes something else
        if not isinstance(value, st.Tensor):
            continue
        try:
            built[name] = getattr(sd, name)(x)
        except (StratalError, TypeError):
            assert size is None, name  # needs the size
            continue
        expected[name] = value.numpy()
    assert len(built) > 120
    got = sd.Session().run(built, {x: data})
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_session_runs_inside_of_its_open_graph():
    with sd.Graph() as graph:
        x = sd.placeholder(sd.float32, (2, 3))
        cube = st.grad(lambda v: (v**3).sum())(x)
        rows = st.vmap(lambda v: v.sum())(x)
        with sd.Session() as s:
            got = s.run([cube, rows, sd.gradients(cube, x)[0]], {x: np.full((2, 3), 2.0)})
        assert s.graph is graph
    for a, b in zip(got, [np.full((2, 3), 12.0), [6.0, 6.0], np.full((2, 3), 12.0)], strict=True):
        np.testing.assert_allclose(a, b)


def test_modules_made_before_the_graph_run_inside_of_it():
    model = st.nn.Sequential(st.nn.Linear(4, 5), st.nn.ReLU(), st.nn.Linear(5, 2))
    x = sd.placeholder(sd.float32, (None, 4))
    with x.graph:
        y = model(x)
    data = _rows(3, 4)
    np.testing.assert_allclose(
        sd.Session().run(y, {x: data}), model(st.tensor(data)).detach().numpy(), rtol=1e-6
    )


def test_fetches_keep_their_containers_and_scalars_are_numbers():
    x = sd.placeholder(sd.float32, ())
    session = sd.Session()
    got = session.run({"a": [x, x * 2], "b": (x + 1, {"c": x})}, {x: 3})
    assert got == {"a": [3.0, 6.0], "b": (4.0, {"c": 3.0})}
    assert isinstance(got["b"][0], np.float32)
    assert session.run([]) == []


def test_any_tensor_can_be_fed():
    x = sd.placeholder(sd.float32, (2,))
    y = sd.exp(x)
    z = y + 1.0
    np.testing.assert_array_equal(sd.Session().run(z, {y: [1.0, 2.0]}), [2.0, 3.0])


def test_variables_are_of_a_session():
    v = sd.Variable(1.0)
    add = sd.assign_add(v, 2.0)
    first, second = sd.Session(), sd.Session()
    for s in (first, second):
        s.run(sd.global_variables_initializer())
    assert first.run(add) == 3.0 and first.run(add) == 5.0
    assert (first.run(v), second.run(v)) == (5.0, 1.0)


def test_a_run_sees_variables_as_they_were_before_it():
    a, b = sd.Variable(1.0), sd.Variable(2.0)
    swap = sd.group(sd.assign(a, b), sd.assign(b, a))
    with sd.Session() as s:
        s.run(sd.global_variables_initializer())
        assert s.run([a, swap, b]) == [1.0, None, 2.0]
        assert s.run([a, b]) == [2.0, 1.0]
        assert a.eval() == 2.0
        swap.run()
        assert a.eval() == 1.0


def test_what_a_run_returned_does_not_change_later():
    v = sd.Variable(np.zeros(5, np.float32))
    with sd.Session() as s:
        s.run(v.initializer)
        before = s.run(v)
        s.run(sd.assign_add(v, np.ones(5, np.float32)))
        np.testing.assert_array_equal(before, np.zeros(5))


def test_random_tensors_are_drawn_anew_in_each_run_and_follow_the_seed():
    a, b = sd.rand(8), sd.randn(8)
    session = sd.Session()

    def draws():
        st.manual_seed(3)
        return [session.run(a), session.run([a, b])[1], session.run(a)]

    first, again = draws(), draws()
    for x, y in zip(first, again, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(first[0], first[2])
    both = session.run([a, a * 1.0, sd.rand(8)])
    np.testing.assert_array_equal(both[0], both[1])
    assert not np.array_equal(both[0], both[2])


def test_what_is_drawn_later_in_a_graph_leaves_earlier_runs_as_they_are():
    x = sd.placeholder(sd.float32, [None])
    with x.graph:
        noisy = x + st.rand(1)
    session = sd.Session()
    seen = [session.run(noisy, {x: np.zeros(2)})[0]]
    later = sd.rand(1)
    for n in (3, 4, 5):
        got = session.run([noisy, later], {x: np.zeros(n)})
        seen += [session.run(noisy, {x: np.zeros(n)})[0], got[0][0], got[1][0]]
    assert len(set(seen)) == len(seen)


def test_tensors_from_outside_are_read_at_each_run():
    scale = st.tensor([2.0, 3.0])
    x = sd.placeholder(sd.float32, (2,))
    y = x * scale
    session = sd.Session()
    np.testing.assert_array_equal(session.run(y, {x: [1, 1]}), [2, 3])
    scale.copy_(st.tensor([5.0, 7.0]))
    np.testing.assert_array_equal(session.run(y, {x: [1, 1]}), [5, 7])


# -- open sizes ----------------------------------------------------------------------------------------------
def test_one_program_serves_all_sizes_from_the_second_on():
    x, y = sd.placeholder(sd.float32, [None, 3]), sd.placeholder(sd.float32, [None])
    error = sd.square(x.sum(axis=1) - y).mean()
    gradient = sd.gradients(error, x)[0]
    flat = x.reshape(-1, 1)
    session = sd.Session()
    for n in range(1, 13):
        a, b = _rows(n, 3, seed=n), _rows(n, seed=99)
        got = session.run([error, gradient, flat], {x: a, y: b})
        gap = a.sum(1) - b
        np.testing.assert_allclose(got[0], (gap**2).mean(), rtol=1e-5)
        np.testing.assert_allclose(got[1], np.repeat((2 * gap / n)[:, None], 3, 1), rtol=1e-5, atol=1e-6)
        assert got[2].shape == (3 * n, 1)
    assert session.last.captures <= 3


def test_named_sizes_are_sizes_of_their_own():
    q, k = sd.placeholder(sd.float32, ["queries", 4]), sd.placeholder(sd.float32, ["keys", 4])
    scores = q @ k.mT
    session = sd.Session()
    for m, n in ((2, 3), (5, 1), (4, 4)):
        a, b = _rows(m, 4), _rows(n, 4)
        np.testing.assert_allclose(session.run(scores, {q: a, k: b}), a @ b.T, rtol=1e-5)


def test_a_size_is_taken_from_any_placeholder_that_was_fed():
    sd.placeholder(sd.float32, [None, 7])
    y = sd.placeholder(sd.float32, [None])
    assert sd.Session().run(y.mean(), {y: [1, 2, 6]}) == 3.0


def test_loops_and_branches_over_open_sizes_run():
    x = sd.placeholder(sd.float32, [None, 3])
    with x.graph:
        y = st.fori_loop(0, 3, lambda k, c: c - c.mean(0) * 0.5, x)
        z = st.cond(x.sum() > 0, lambda: x.mean(), lambda: x.sum())
    session = sd.Session()
    for n in (2, 5, 6, 3):
        data = _rows(n, 3, seed=n)
        moved = data
        for _ in range(3):
            moved = moved - moved.mean(0) * 0.5
        got = session.run([y, z], {x: data})
        np.testing.assert_allclose(got[0], moved, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[1], data.mean() if data.sum() > 0 else data.sum(), rtol=1e-4)
    assert session.last.captures == 2


@pytest.mark.parametrize(
    "dtype, value, fits",
    [
        ("uint8", [1, 255], True), ("uint8", [1, 256], False), ("uint8", [-1, 0], False),
        ("int32", [1 << 40, 0], False), ("int32", [1.0, 2.0], False), ("bool", [1, 0], False),
        ("bool", [True, False], True), ("float32", [1, 2], True), ("bfloat16", [1.5, 2.0], True),
        ("complex64", [1.0, 2.5], True), ("float32", [1e300, 0.0], True), ("float32", [1j, 0.0], False),
        ("uint64", [(1 << 64) - 1] * 2, True), ("int64", np.array([1 << 63, 0], np.uint64), False),
    ],
)  # fmt: skip
def test_what_is_fed_is_converted_where_no_whole_number_changes(dtype, value, fits):
    x = sd.placeholder(dtype, (2,))
    y = sd.where(x == x, x, x)
    if not fits:
        with pytest.raises(StratalError, match="dtype of what is fed"):
            sd.Session().run(y, {x: value})
        return
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(sd.Session().run(y, {x: value}), np.asarray(value).astype(x.dtype.np))


def test_dropout_draws_another_mask_in_each_run():
    x = sd.placeholder(sd.float32, (100,))
    with x.graph:
        y = st.nn.functional.dropout(x, 0.5)
    session = sd.Session()
    first, second = (session.run(y, {x: np.ones(100)}) for _ in range(2))
    assert set(first) == {0.0, 2.0} and not np.array_equal(first, second)


# -- gradients and optimizers --------------------------------------------------------------------------------
def test_gradients_follow_paths_and_stop_where_told():
    x, w = sd.placeholder(sd.float32, (3,)), sd.Variable(_rows(3))
    unused = sd.Variable(1.0)
    y = (x * w) * (w.detach() + 1.0)
    dx, dw, none = sd.gradients(y, [x, w, unused])
    assert none is None
    assert sd.gradients(w.detach() * 2.0, [w]) == [None]
    second = sd.gradients(sd.gradients((w * w * w).sum(), w)[0], w)[0]
    with sd.Session() as s:
        s.run(sd.global_variables_initializer())
        a, b = _rows(3, seed=1), _rows(3)
        got = s.run([dx, dw, second], {x: a})
        for g, e in zip(got, [b * (b + 1), a * (b + 1), 6 * b], strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-5)


RULES = {
    "GradientDescent": (lambda: sd.GradientDescentOptimizer(0.05), "SGD", {"lr": 0.05}),
    "Momentum": (lambda: sd.MomentumOptimizer(0.05, 0.9), "SGD", {"lr": 0.05, "momentum": 0.9}),
    "Nesterov": (
        lambda: sd.MomentumOptimizer(0.05, 0.9, use_nesterov=True), "SGD",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    ),
    "Adagrad": (
        lambda: sd.AdagradOptimizer(0.1), "Adagrad",
        {"lr": 0.1, "initial_accumulator_value": 0.1, "eps": 0.0},
    ),
    "Adam": (lambda: sd.AdamOptimizer(0.01, epsilon=1e-14), "Adam", {"lr": 0.01, "eps": 1e-14}),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("rule", RULES)
def test_optimizers_agree_with_pytorch_where_their_constants_do(rule):
    torch = pytest.importorskip("torch")
    ours, theirs, options = RULES[rule]
    start, data = _rows(4, 2).astype(np.float64), _rows(6, 4, seed=2).astype(np.float64)
    x, w = sd.placeholder(sd.float64, [None, 4]), sd.Variable(start)
    count = sd.Variable(0, trainable=False)
    step = ours().minimize(sd.square(sd.tanh(x @ w)).sum(), global_step=count)
    p = torch.tensor(start, requires_grad=True)
    optimizer = getattr(torch.optim, theirs)([p], **options)
    with sd.Session() as s:
        s.run(sd.global_variables_initializer())
        for _ in range(6):
            s.run(step, {x: data})
            optimizer.zero_grad()
            ((torch.tensor(data) @ p).tanh() ** 2).sum().backward()
            optimizer.step()
        np.testing.assert_allclose(s.run(w), p.detach().numpy(), rtol=1e-9, atol=1e-11)
        assert s.run(count) == 6


def test_adam_adds_epsilon_where_tensorflow_does():
    w = sd.Variable(np.array([1.0, -2.0]))
    step = sd.AdamOptimizer(0.1, epsilon=0.1).minimize(sd.square(w).sum())
    value, mean, square = np.array([1.0, -2.0]), 0.0, 0.0
    with sd.Session() as s:
        s.run(sd.global_variables_initializer())
        for t in range(1, 6):
            s.run(step)
            g = 2 * value
            mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
            rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            value = value - rate * mean / (np.sqrt(square) + 0.1)
        np.testing.assert_allclose(s.run(w), value, rtol=1e-12)


def test_a_learning_rate_can_be_fed():
    rate, w = sd.placeholder(sd.float32, ()), sd.Variable([1.0, 2.0])
    step = sd.GradientDescentOptimizer(rate).minimize(w.sum())
    with sd.Session() as s:
        s.run(w.initializer)
        for r in (0.5, 0.25):
            s.run(step, {rate: r})
        np.testing.assert_allclose(s.run(w), [0.25, 1.25])
        assert s.last.captures == 1


@pytest.mark.row("A10")
def test_logistic_regression_by_hand_deferred_and_eager_give_equal_weights():
    images, labels = st.data.digits()
    x_all = images.reshape(len(images), 64).astype(np.float64)
    y_all = np.eye(10)[labels]
    rate, steps, size = 0.5 / 100, 40, 100
    batches = [slice(k * size % 1700, k * size % 1700 + size) for k in range(steps)]

    w = np.zeros((64, 10))  # NumPy: gradients by hand
    for at in batches:
        scores = x_all[at] @ w
        e = np.exp(scores - scores.max(1, keepdims=True))
        y_grad = e / e.sum(1, keepdims=True) - y_all[at]
        w -= rate * (x_all[at].T @ y_grad)

    x, y = sd.placeholder(sd.float64, [None, 64]), sd.placeholder(sd.float64, [None, 10])
    variable = sd.Variable(np.zeros((64, 10)))
    loss = -(y * sd.log(sd.softmax(sd.matmul(x, variable), dim=1))).sum()
    step = sd.GradientDescentOptimizer(rate).minimize(loss)
    with sd.Session() as session:
        session.run(sd.global_variables_initializer())
        losses = [session.run([loss, step], {x: x_all[at], y: y_all[at]})[0] for at in batches]
        deferred = session.run(variable)

    eager = st.zeros((64, 10), dtype=st.float64).requires_grad_()
    optimizer = st.optim.SGD([eager], lr=rate)
    for at in batches:
        optimizer.zero_grad()
        scores = st.tensor(x_all[at]) @ eager
        (-(st.tensor(y_all[at]) * st.log(st.softmax(scores, dim=1))).sum()).backward()
        optimizer.step()

    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(deferred, w, rtol=0, atol=1e-6)
    np.testing.assert_allclose(eager.detach().numpy(), w, rtol=0, atol=1e-6)
    assert abs(w).max() > 0.1


# -- errors --------------------------------------------------------------------------------------------------
@pytest.mark.row("B3")
def test_an_error_inside_a_run_names_the_line_that_built_the_node():
    table, at = sd.placeholder(sd.float32, (4, 2)), sd.placeholder(sd.int64, [None])
    line, rows = _here(), table[at]
    result = sd.exp(rows) * 2.0
    session = sd.Session()
    with pytest.raises(st.StratalError) as caught:
        session.run(result, {table: _rows(4, 2), at: [0, 9]})
    assert line in str(caught.value)
    with st.eager(), pytest.raises(st.StratalError) as caught:
        session.run(result, {table: _rows(4, 2), at: [0, 9]})
    assert line in str(caught.value)


@pytest.mark.row("B3")
def test_what_open_sizes_do_not_answer_names_its_line_and_the_way_out():
    x = sd.placeholder(sd.float32, [None, 2])
    for build in (lambda: x[:4], lambda: len(x), lambda: x.reshape(3, 5)):
        with pytest.raises(st.StratalError, match=r"where: test_deferred\.py"):
            build()
    with pytest.raises(st.StratalError, match="in place of None"):
        x[:4]
    with pytest.raises(st.StratalError, match="in place of None"), x.graph:
        st.split(x, 2)


@pytest.mark.row("B3")
def test_an_error_while_building_names_the_line_at_once():
    x = sd.placeholder(sd.float32, (2, 3))
    line = _here(2)
    with pytest.raises(st.StratalError) as caught:
        sd.matmul(x, x)
    assert line in str(caught.value)


def _two_values_at_once(s, x, v):
    s.run([sd.assign(v, x), sd.assign(v, x + 1)], {x: np.ones(3)})


def _in_place(s, x, v):
    v += 1.0


def _in_another_graph(s, x, v):
    with sd.Graph():
        st.exp(x)


def _after_close(s, x, v):
    s.close()
    s.run(x, {x: np.ones(3)})


def _parameter_inside(s, x, v):
    with x.graph:
        st.nn.Linear(3, 3)


def _empty_batch(s, x, v):
    y = sd.placeholder(sd.float32, [None])
    s.run(y.sum(), {y: []})


BAD = {
    "no feed": (lambda s, x, v: s.run(x * 2), "not fed"),
    "shape": (lambda s, x, v: s.run(x, {x: np.ones(4)}), "another shape"),
    "rank": (lambda s, x, v: s.run(x, {x: np.ones((3, 1))}), "another rank"),
    "dtype": (lambda s, x, v: s.run(x, {x: np.ones(3, np.complex64)}), "dtype"),
    "text": (lambda s, x, v: s.run(x, {x: "abc"}), "dtype"),
    "ragged": (lambda s, x, v: s.run(x, {x: [[1], [1, 2], 3]}), "no array"),
    "deferred feed": (lambda s, x, v: s.run(x, {x: x + 1}), "no value to feed"),
    "feed key": (lambda s, x, v: s.run(x, {"x": np.ones(3)}), "cannot feed"),
    "fetch": (lambda s, x, v: s.run("x"), "cannot fetch"),
    "eager fetch": (lambda s, x, v: s.run(st.ones(3)), "cannot fetch"),
    "no value": (lambda s, x, v: s.run(v), "no value yet"),
    "other graph": (lambda s, x, v: sd.Session(sd.Graph()).run(x, {x: np.ones(3)}), "another graph"),
    "other operation": (lambda s, x, v: sd.Session(sd.Graph()).run(v.initializer), "another graph"),
    "mixed graphs": (_in_another_graph, "another graph"),
    "two values": (_two_values_at_once, "two values at once"),
    "assign shape": (lambda s, x, v: sd.assign(v, np.ones(2, np.float32)), "another shape"),
    "assign dtype": (lambda s, x, v: sd.assign(v, np.ones(3, np.complex64)), "does not fit"),
    "assign tensor": (lambda s, x, v: sd.assign(x, 1.0), "only a Variable"),
    "in place": (_in_place, "in place"),
    "float()": (lambda s, x, v: float(x.sum()), "exists only where a session runs"),
    "bool()": (lambda s, x, v: bool(x.sum() > 0), "exists only where a session runs"),
    "numpy()": (lambda s, x, v: x.numpy(), "exists only where a session runs"),
    "closed graph": (lambda s, x, v: st.exp(x), "is not open"),
    "backward": (lambda s, x, v: x.sum().backward(), "no gradient to add"),
    "requires_grad": (lambda s, x, v: sd.ones(3).requires_grad_(), "Variable"),
    "no gradient": (lambda s, x, v: sd.GradientDescentOptimizer(0.1).minimize(x.sum()), "no variable"),
    "open variable": (lambda s, x, v: sd.Variable(sd.placeholder(sd.float32, [None]) * 1.0), "must be known"),
    "no shape": (lambda s, x, v: sd.placeholder(sd.float32), "and a shape"),
    "shape is a number": (lambda s, x, v: sd.placeholder(sd.float32, 3), "and a shape"),
    "no dtype": (lambda s, x, v: sd.placeholder(None, [2]), "needs a dtype"),
    "bad size": (lambda s, x, v: sd.placeholder(sd.float32, [-3]), "a size is"),
    "eval": (lambda s, x, v: x.eval(), "no default session"),
    "closed": (_after_close, "closed"),
    "module": (_parameter_inside, "Variable"),
    "rate": (lambda s, x, v: sd.AdagradOptimizer(0.1, 0.0), "positive"),
    "empty batch": (_empty_batch, "at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_is_wrong_and_where(case):
    call, words = BAD[case]
    x, v = sd.placeholder(sd.float32, (3,)), sd.Variable(np.zeros(3, np.float32))
    with pytest.raises(StratalError) as caught:
        call(sd.Session(), x, v)
    assert words in str(caught.value)
    assert caught.value.got or case in ("no shape", "eval", "closed", "no gradient"), str(caught.value)
    assert "where: test_deferred.py:" in str(caught.value)
    assert caught.value.hint


def test_a_failed_run_leaves_variables_without_a_value():
    v = sd.Variable(np.zeros(3, np.float32))
    at = sd.placeholder(sd.int64, ())
    bad = sd.assign(v, sd.Variable(np.ones((2, 3), np.float32))[at])
    with sd.Session() as s:
        s.run(sd.global_variables()[1].initializer)
        with pytest.raises(StratalError):
            s.run(bad, {at: 7})
        with pytest.raises(StratalError, match="no value yet"):
            s.run(v)


def test_programs_are_kept_per_fetches_and_types_of_feeds():
    x = sd.placeholder(sd.float32, [None, 2])
    y = x * 2.0
    s = sd.Session()
    for _ in range(3):
        s.run(y, {x: _rows(4, 2)})
    assert s.last.captures == 1
    run = s.last
    s.run([y, x], {x: _rows(4, 2)})
    assert s.last is not run
    s.run(y, {x: _rows(4, 2)})
    assert s.last is run and run.captures == 1
    assert "kernel" in str(run.plan).lower()


def test_eager_code_beside_a_graph_stays_eager():
    x = sd.placeholder(sd.float32, (3,))
    y = x + 1.0
    eager = st.ones(3) * 2.0
    np.testing.assert_array_equal(eager.numpy(), [2, 2, 2])
    assert type(eager) is st.Tensor and type(y) is sd.Deferred


@pytest.mark.parametrize("size", [2, 5])
def test_statistics_of_open_sizes_are_those_of_numpy(size):
    x = sd.placeholder(sd.float32, (None, 4))
    with sd.get_default_graph():
        fetches = [
            st.average(x, axis=0),
            st.average(x, returned=True)[1],
            st.cov(x, rowvar=False),
            st.corrcoef(x.T),
            st.corrcoef(x, rowvar=False),
        ]
    a = _rows(size, 4)
    want = [
        np.average(a, axis=0),
        np.float32(a.size),
        np.cov(a, rowvar=False),
        np.corrcoef(a.T),
        np.corrcoef(a, rowvar=False),
    ]
    for ours, theirs in zip(sd.Session().run(fetches, {x: a}), want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_result_whose_rank_follows_from_an_open_size_is_refused():
    x = sd.placeholder(sd.float32, (None, 4))
    with pytest.raises(UndecidedError, match="== 1"), sd.get_default_graph():
        st.corrcoef(x)  # a number for one row, a matrix for more
    with pytest.raises(UndecidedError, match="== 1"), sd.get_default_graph():
        x.squeeze()
