"""st.compile: what is captured, when it is captured again, what state it writes, what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting import joined

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError
from stratal.tensor.lazy import program_cache

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 8)
SCALE = 2.0
SETTINGS = {"scale": 2.0, "flags": ["a"]}


def model(seed: int = 0):
    st.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def train(net, opt, compiled: bool, steps: int = 5, schedule=None):
    def step(x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    step = st.compile(step) if compiled else step
    losses = []
    for _ in range(steps):
        losses.append(step(st.tensor(X), st.tensor(Y)).item())
        if schedule is not None:
            schedule.step()
    return losses, step


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: optim.Adam(p, lr=0.01),
        lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
        lambda p: optim.Adagrad(p, lr=0.1),
    ],
)
def test_a_compiled_step_trains_like_an_uncompiled_one(make):
    first, second = model(), model()
    expected, _ = train(first, make(first.parameters()), compiled=False)
    got, step = train(second, make(second.parameters()), compiled=True)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert step.captures == 1


def test_a_schedule_never_captures_again():
    net = model()
    opt = optim.SGD(net.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 30)
    _, step = train(net, opt, compiled=True, steps=30, schedule=schedule)
    assert step.captures == 1
    assert opt.param_groups[0]["lr"] < 1e-3


@pytest.mark.row("A2")
def test_train_and_eval_and_accumulation_need_three_programs():
    net = model()
    net.append(nn.Dropout(0.2))
    opt = optim.Adam(net.parameters(), lr=0.01)

    @st.compile
    def accumulate(x, y):
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    @st.compile
    def update():
        opt.step()
        opt.zero_grad(set_to_none=False)

    @st.compile
    def predict(x):
        return net(x).argmax(1)

    for p in net.parameters():
        p.grad = st.zeros_like(p)
    before = program_cache.COMPILED[0]
    for _ in range(20):
        net.train()
        accumulate(X, Y)
        accumulate(X, Y)
        update()
        net.eval()
        with st.no_grad():
            predict(X)
    assert program_cache.COMPILED[0] - before <= 3
    assert (accumulate.captures, update.captures, predict.captures) == (1, 1, 1)


def test_a_changed_signature_captures_again_and_says_why():
    @st.compile
    def f(x, flag=True, scale=2):
        return x * scale if flag else x

    x = st.ones(3)
    f(x)
    f(x)
    assert f.captures == 1
    f(st.ones(4))
    f(x, flag=False)
    f(x, True, 3)
    assert f.captures == 4
    assert f.reasons[0] == "first call"
    assert f.reasons[1] == "argument 'x' changed from f32[3] to f32[4]"
    assert f(x, flag=False).tolist() == [1, 1, 1]
    assert f.captures == 4


def test_training_flags_read_through_modules_are_part_of_the_capture():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    f = st.compile(lambda x: net(x))
    with st.no_grad():
        for _ in range(3):
            net.train()
            noisy = f(X)
            net.eval()
            quiet = f(X)
    assert f.captures == 2
    assert "training changed from True to False" in f.reasons[1]
    np.testing.assert_allclose(quiet.numpy(), net(st.tensor(X)).numpy(), rtol=1e-5)
    assert (noisy.numpy() == 0).any()


def test_frozen_python_values_are_guarded():
    global SCALE
    factor = 2

    def f(x):
        return x * SETTINGS["scale"] * factor + len(SETTINGS["flags"])

    g = st.compile(f)
    x = st.ones(2)
    assert g(x).tolist() == [5, 5]
    SETTINGS["scale"] = 3.0
    assert g(x).tolist() == [7, 7]
    assert "SETTINGS['scale'] changed from 2.0 to 3.0" in g.reasons[-1]
    SETTINGS["flags"].append("b")
    assert g(x).tolist() == [8, 8]
    factor = 3
    assert g(x).tolist() == [11, 11]
    assert "factor changed from 2 to 3" in g.reasons[-1]
    SETTINGS["scale"], SETTINGS["flags"] = 2.0, ["a"]


def test_a_global_number_that_keeps_changing_becomes_an_input():
    global SCALE

    @st.compile
    def f(x):
        return x * SCALE + SCALE * 0.5

    x = st.ones(2)
    for k in range(6):
        SCALE = 2.0 + k
        np.testing.assert_allclose(f(x).numpy(), [SCALE * 1.5] * 2, rtol=1e-6)
    assert f.captures == 2
    SCALE = 2.0


def test_a_float_argument_that_changes_becomes_an_input_that_promotes_like_a_float():
    @st.compile
    def f(x, rate):
        return x * rate, x * (1.0 - 2 * rate)

    x = st.ones(2, dtype="bfloat16")
    for k in range(5):
        a, b = f(x, 0.5 * k)
        assert a.dtype is b.dtype is st.bfloat16
        assert a.tolist() == [0.5 * k] * 2
        assert b.tolist() == [1 - k] * 2
    assert f.captures == 2


def test_a_changing_number_that_python_needs_is_frozen_instead():
    import math

    @st.compile
    def f(x, rate):
        return x * math.sqrt(rate) if rate > 0 else x

    x = st.ones(2)
    for rate in (1.0, 4.0, 9.0):
        np.testing.assert_allclose(f(x, rate).numpy(), [math.sqrt(rate)] * 2)


def test_containers_go_in_and_out():
    @st.compile
    def f(batch, *, extra):
        return {"sum": batch["x"] + batch["y"][0], "rest": (extra, 3, None)}

    out = f({"x": st.ones(2), "y": [st.ones(2) * 2.0]}, extra=st.zeros(1))
    assert out["sum"].tolist() == [3, 3]
    assert out["rest"][0].tolist() == [0]
    assert out["rest"][1:] == (3, None)
    assert list(out) == ["sum", "rest"]


def test_state_read_through_closures_is_written_back():
    counter = st.zeros(1)
    average = st.zeros(2)

    @st.compile
    def f(x):
        counter.add_(1)
        average.mul_(0.5).add_(x, alpha=0.5)
        return average * 1.0

    for _ in range(3):
        out = f(st.ones(2))
    assert counter.tolist() == [3]
    assert average.tolist() == out.tolist() == [0.875, 0.875]


def test_arguments_changed_in_place_are_changed_for_the_caller():
    @st.compile
    def f(x):
        x += 1
        return x

    x = st.zeros(2)
    assert f(x) is x
    f(x)
    assert x.tolist() == [2, 2]
    assert f.captures == 1


@pytest.mark.filterwarnings("error")  # a view that lives beside the state is no reason to capture
def test_old_outputs_keep_their_values_and_views_do_not():
    p = st.tensor([1.0, 2.0])

    @st.compile
    def f():
        p.mul_(2.0)
        return p + 0.0

    lazy_reader = p * 10.0
    first, view, alias = f(), np.asarray(p), p.detach()
    second = f()
    assert lazy_reader.tolist() == [10, 20]
    assert first.tolist() == view.tolist() == [2, 4]
    assert second.tolist() == p.tolist() == alias.tolist() == [4, 8]


def test_gradients_held_by_the_user_are_not_overwritten():
    net = model()
    opt = optim.SGD(net.parameters(), lr=0.1)
    _, step = train(net, opt, compiled=True, steps=2)
    held = net[0].weight.grad
    values = held.tolist()
    step(st.tensor(X), st.tensor(Y))
    assert held.tolist() == values
    assert net[0].weight.grad is not held
    reused = net[0].weight.grad._storage
    del held
    step(st.tensor(X), st.tensor(Y))
    assert net[0].weight.grad._storage is reused


def test_a_compiled_forward_lets_gradients_through():
    net = model()
    compiled = st.compile(net)
    x = st.tensor(X)
    nn.functional.cross_entropy(compiled(x), st.tensor(Y)).backward()
    got = [p.grad.numpy().copy() for p in compiled.parameters()]
    for p in net.parameters():
        p.grad = None
    nn.functional.cross_entropy(net(x), st.tensor(Y)).backward()
    for g, p in zip(got, net.parameters(), strict=True):
        np.testing.assert_allclose(g, p.grad.numpy(), rtol=1e-5, atol=1e-7)
    compiled(x)
    assert compiled.captures == 1


def test_methods_can_be_compiled():
    class Scaler:
        def __init__(self, by):
            self.by = by

        @st.compile
        def scale(self, x):
            return x * self.by

    one, two = Scaler(2), Scaler(3)
    assert one.scale(st.ones(1)).item() == 2
    assert two.scale(st.ones(1)).item() == 3
    assert one.scale.captures == 1
    one.by = 5
    assert one.scale(st.ones(1)).item() == 5


def test_random_numbers_differ_between_calls_and_repeat_with_the_seed():
    f = st.compile(lambda: st.rand(3))
    st.manual_seed(3)
    a, b = f().tolist(), f().tolist()
    st.manual_seed(3)
    assert f().tolist() == a != b
    st.manual_seed(3)
    assert st.rand(3).tolist() == a
    assert f.captures == 1


def use_if(x):
    if x.sum() > 0:
        return x
    return -x


def use_item(x):
    return x * x.sum().item()


def use_index(x):
    return list(range(10))[x.argmax()]


def use_numpy(x):
    return np.sin(x.numpy())


def use_mask(x):
    return x[x > 0]


@pytest.mark.parametrize(
    ("function", "hint"),
    [(use_if, "st.where or st.cond"), (use_item, "st.host_call"), (use_index, "gathers"),
    (use_numpy, "host_call"),
     (use_mask, "st.where")],
)  # fmt: skip
def test_python_that_needs_a_value_is_refused_in_four_lines(function, hint):
    with pytest.raises(CaptureError) as caught:
        st.compile(function)(st.ones(3))
    lines = str(caught.value).split("\n")
    assert len(lines) == 4
    assert lines[1].startswith("  got: ")
    assert lines[2] == f"  where: test_capture.py:{function.__code__.co_firstlineno + 1}"
    assert hint in lines[3]


def test_a_failed_capture_leaves_everything_as_it_was():
    p = st.tensor([1.0], requires_grad=True)

    @st.compile
    def f(x):
        with st.no_grad():
            p.add_(1.0)
        (p * x).sum().backward()
        return float(x)

    with pytest.raises(CaptureError, match="a value"):
        f(st.ones(1))
    assert p.tolist() == [1.0]
    assert p.grad is None


def test_tensors_stored_outside_become_real_once():
    state = {}

    @st.compile
    def f(x):
        if "mean" not in state:
            state["mean"] = st.zeros_like(x)
        state["mean"].mul_(0.5).add_(x)
        return state["mean"].sum()

    assert [f(st.ones(2)).item() for _ in range(4)] == [2.0, 3.0, 3.5, 3.75]
    assert state["mean"].tolist() == [1.875, 1.875]
    assert f.captures == 2


def test_a_capture_that_fails_leaves_nothing_behind():
    leaked, state, count = [], {"calls": 0}, 0

    @st.compile
    def f(x):
        nonlocal count
        leaked.append(x * 2.0)
        state["calls"] += 1
        count += 1
        if refused:
            float(x)
        raise RuntimeError("stop")

    refused = True
    with pytest.raises(CaptureError):
        f(st.ones(1))
    assert (leaked, state, count) == ([], {"calls": 0}, 0)


def test_a_function_that_raises_has_done_what_it_does_uncompiled():
    def program(compiled):
        p = st.tensor([1.0], requires_grad=True)
        optimizer = optim.SGD([p], lr=0.5)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        done, count = [], 0

        @compiled
        def f(x, k):
            nonlocal count
            (p * x).sum().backward()
            optimizer.step()
            schedule.step()
            done.append((x * 2.0).sum())
            count += 1
            if k in (0, 2, 5):
                raise RuntimeError(f"stop {k}")
            return p * 1.0

        for k in range(7):
            try:
                yield f(st.ones(1), k).tolist()
            except RuntimeError as error:
                yield str(error)
            yield p.tolist(), p.grad.tolist(), optimizer.param_groups[0]["lr"]
            yield [d.tolist() for d in done], count

    assert list(program(st.compile)) == list(program(lambda f: f))


def test_printing_inside_a_compiled_function_shows_the_value(capsys):
    @st.compile
    def f(x):
        print(x * 2.0)
        return x

    f(st.ones(2))
    f(st.zeros(2))
    assert capsys.readouterr().out == "tensor([2., 2.])\ntensor([0., 0.])\n"


def test_compiled_functions_nest():
    inner = st.compile(lambda x: x * 2.0)
    outer = st.compile(lambda x: inner(x) + 1.0)
    assert outer(st.ones(1)).item() == 3.0
    assert inner.captures == 0


def test_two_threads_calling_one_function_queue_up():
    total = st.zeros(1)

    @st.compile
    def f(x):
        total.add_(x)
        return total * 1.0

    f(st.zeros(1))
    failures = []

    def work():
        try:
            for _ in range(50):
                f(st.ones(1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    joined(*threads)
    assert not failures
    assert total.tolist() == [200]
    assert f.captures == 1


def test_control_flow_in_a_compiled_function():
    @st.compile
    def f(x, n):
        positive = st.cond(x.sum() > 0, lambda v: v * 2.0, lambda v: -v, x)
        doubled = st.while_loop(lambda s: s.sum() < 100, lambda s: s * 2.0, positive)
        last, rows = st.scan(lambda c, row: (c + row, c), st.zeros(()), doubled, length=n)
        return last, rows, st.fori_loop(0, 3, lambda i, v: v + i, x)

    last, rows, looped = f(st.ones(4), st.tensor(2))
    assert last.item() == 64
    assert rows.tolist() == [0, 32, 0, 0]
    assert looped.tolist() == [4] * 4
    assert f(-2 * st.ones(4), st.tensor(4))[0].item() == 128
    assert f.captures == 1


@pytest.mark.row("A4")
def test_a_scan_with_dropout_inside_differentiates_and_repeats():
    w = st.tensor(RNG.standard_normal((3, 3)).astype(np.float32), requires_grad=True)

    def step(h, x):
        h = st.tanh(h @ w + nn.functional.dropout(x, 0.5))
        return h, h.sum()

    def loss(xs):
        last, ys = st.scan(step, st.zeros(3), xs)
        return last.sum() + ys.sum()

    def unrolled(xs):
        h, total = st.zeros(3), 0.0
        for k in range(4):
            h, y = step(h, xs[k])
            total = total + y
        return h.sum() + total

    xs = st.tensor(RNG.standard_normal((4, 3)).astype(np.float32))
    results = []
    for function in (loss, unrolled, st.compile(loss)):
        st.manual_seed(5)
        w.grad = None
        value = function(xs)
        value.backward()
        results.append((value.item(), w.grad.numpy().copy(), st.rand(1).item()))
    for value, gradient, after in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-5)
        np.testing.assert_allclose(gradient, results[0][1], rtol=1e-4, atol=1e-6)
        assert after == results[0][2]


def test_a_graph_can_be_looked_at():
    f = st.compile(lambda x: (x * 2.0).sum())
    with pytest.raises(CaptureError, match="nothing was captured"):
        _ = f.graph
    f(st.ones(3))
    assert "mul" in str(f.graph)
    assert "test_capture.py" in str(f.graph)
    assert f.graph.inputs[0].op.label == "x"


@pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")
def test_many_recaptures_are_bounded():
    f = st.compile(lambda x, k: x * k)
    for k in range(100):
        assert f(st.ones(1), k).item() == k
    assert sum(map(len, f._entries.values())) <= 64


def test_a_tensor_kept_outside_does_not_stop_gradients_of_the_call() -> None:
    kept: list[st.Tensor] = []

    def function(x: st.Tensor) -> st.Tensor:
        y = x * 3
        kept.append(y)
        return (y * y).sum()

    x = st.tensor([1.0, 2.0], requires_grad=True)
    compiled = st.compile(function)
    compiled(x).backward()
    assert np.asarray(x.grad).tolist() == [18.0, 36.0]
    assert np.asarray(st.grad(compiled)(x.detach())).tolist() == [18.0, 36.0]
    assert np.asarray(kept[0].detach()).tolist() == [3.0, 6.0]
    kept[0].sum().backward()
    assert np.asarray(x.grad).tolist() == [21.0, 39.0]


def test_a_buffer_that_an_update_by_index_replaces_is_captured_once():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("row", st.zeros(3))

        def forward(self, value):
            self.row = self.row.at[1].add(value)
            return self.row * 2

    net, places = Last(), [0]
    step = st.compile(net)
    assert [step(st.tensor(v)).tolist()[1] for v in (1.0, 2.0, 3.0)] == [2, 6, 12] and step.captures == 1
    outside = st.zeros(2).at[places]
    add = st.compile(lambda v: outside.add(v), audit=False)
    found = [add(st.tensor(1.0)).tolist()]
    places[0] = 1  # which elements an index names is guarded still
    assert [*found, add(st.tensor(1.0)).tolist()] == [[1, 0], [0, 1]]


def test_finalizers_that_the_collector_runs_for_a_capture_compute():
    class Noisy:
        def __init__(self):
            self.me, self.value = self, st.ones(3)

        def __del__(self):
            totals.append(self.value.sum().item())

    totals = []
    for size in (1, 2, 3):
        for _ in range(4):
            Noisy()
        assert st.compile(lambda x: x.tanh().sum())(st.zeros(size)).item() == 0
    assert totals == [3.0] * 12
