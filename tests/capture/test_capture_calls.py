"""What is passed to a compiled function, returned and written by it is what an uncompiled call gives."""

import collections
import contextlib
import dataclasses
import decimal
import functools
import io
import itertools
import operator
import random
import time

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError
from stratal.metrics import MeanSquaredError
from stratal.tensor.capture.audit import AuditWarning

pytestmark = pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning")


def one(k):
    return st.full((1,), float(k))


class Config:
    def __init__(self, k):
        self.k = k


@dataclasses.dataclass
class Pair:
    a: object
    b: object = 0


# -- passed --------------------------------------------------------------------------------------------------
def layer(k):
    made = nn.Linear(1, 1, bias=False)
    with st.no_grad():
        made.weight.fill_(float(k))
    return made


PASSED = {
    "object": (Config, lambda c: c.k),
    "dataclass": (Pair, lambda c: c.a),
    "lambda": (lambda k: lambda: k, lambda c: c()),
    "slice": (lambda k: slice(0, k), lambda c: c.stop),
    "set": (lambda k: {k}, max),
    "frozenset": (lambda k: frozenset({k}), max),
    "deque": (lambda k: collections.deque([k]), lambda c: c[0]),
    "NumPy scalar": (np.int64, int),
    "Decimal": (decimal.Decimal, float),
    "float": (float, float),
    "int": (int, int),
    "text": (str, float),
    "range": (lambda k: range(k), len),
    "list": (lambda k: [k, [k]], lambda c: c[1][0]),
    "dict": (lambda k: {"a": {"k": k}}, lambda c: c["a"]["k"]),
    "bound method": (lambda k: Config(k).__getattribute__, lambda c: c("k")),
    "array": (lambda k: np.full(1, float(k)), lambda c: c),
    "tensor": (one, lambda c: c),
    "module": (layer, lambda c: c(one(1))),
}


@pytest.mark.parametrize("kind", PASSED)
def test_each_argument_is_taken_for_what_it_is(kind):
    make, use = PASSED[kind]
    f = st.compile(lambda x, c: x * use(c))
    for k in [0, 1, 2, 1, *range(12)]:
        assert f(one(3), make(k)).tolist() == [3.0 * k]


def test_a_used_up_argument_is_refused():
    f = st.compile(lambda x, items: x * next(items))
    with pytest.raises(CaptureError, match="iterator from outside"):
        f(one(1), iter([1, 2]))


def test_dicts_in_another_order_are_other_arguments():
    f = st.compile(lambda d: {k: v * 2 for k, v in d.items()})
    for keys in ("ab", "ba", "ab", "ba"):
        assert list(f({k: one(1) for k in keys})) == list(keys)


def test_keyword_and_variable_arguments():
    f = st.compile(lambda x, *rest, **named: x * named["s"] + len(rest))
    assert [f(one(1), s=2.0).item(), f(one(1), 1, 2, s=3.0).item(), f(one(1), s=4.0).item()] == [2, 5, 4]


# -- aliases -------------------------------------------------------------------------------------------------
def test_the_same_tensor_twice_and_two_tensors():
    f = st.compile(lambda x, y: x - y)
    a, b = one(1), one(2)
    assert [f(*p).item() for p in ((a, a), (a, a), (a, b), (b, a), (a, a))] == [0, 0, -1, 1, 0]


def test_an_argument_that_is_also_read_elsewhere():
    h = one(5)
    f = st.compile(lambda x: x - h)
    assert [f(x).item() for x in (h, h, one(7), h, one(8), h)] == [0, 0, 2, 0, 3, 0]
    net = layer(2)
    g = st.compile(lambda x: net(x))
    assert [g(x).item() for x in (net.weight, st.full((1, 1), 3.0), net.weight)] == [4, 6, 4]


def test_an_argument_that_is_written_and_also_read_elsewhere():
    h = one(5)

    @st.compile
    def f(x):
        x.add_(1)
        return h * 1

    assert [f(x).item() for x in (one(7), h, one(1), h)] == [5, 6, 6, 7]


def test_the_gradient_of_a_parameter_as_an_argument():
    w = nn.Parameter(one(2))
    f = st.compile(lambda g: g + w.grad)
    for k in (1, 2):
        w.grad = one(k)
        assert [f(w.grad).item(), f(one(10)).item(), f(w.grad).item()] == [2 * k, 10 + k, 2 * k]


@pytest.mark.parametrize("first", ["whole", "view"])
def test_a_view_that_is_written_writes_to_its_own_base(first):
    f = st.compile(lambda x: x.add_(1))
    b1, b2 = st.zeros(2), st.zeros(2)
    if first == "whole":
        f(st.zeros(1))
    for view in (b1[:1], b2[:1], b2[:1], b2[1:]):
        f(view)
    assert (b1.tolist(), b2.tolist()) == ([1, 0], [2, 1])


# -- returned ------------------------------------------------------------------------------------------------
def extended(batch):
    batch["loss"] = batch["x"] * 2
    return batch


def grown(items):
    items.append(items[0] + 1)
    return items


RETURNED = {
    "result and argument": (lambda x: (x + 1, x), one),
    "argument changed in place": (lambda x: x.add_(1), one),
    "argument alone": (lambda x: x, one),
    "dict extended": (extended, lambda k: {"x": one(k)}),
    "dict in a dict": (lambda b: {"a": extended(b), "n": len(b)}, lambda k: {"x": one(k)}),
    "list extended": (grown, lambda k: [one(k)]),
    "nn.Identity": (nn.Identity(), one),
    "Dropout in eval": (nn.Dropout().eval(), one),
    "float()": (lambda x: x.float(), one),
    "contiguous()": (lambda x: x.contiguous(), one),
    "nested": (lambda x: [x, [x, x + 1]], one),
    "nothing": (lambda x: None, one),
    "named tuple": (lambda x: collections.namedtuple("N", "a b")(x, x * 2), one),
    "a result twice": (lambda x: [x * 2] * 2, one),
}


def alike(got, want, arguments):
    """Return whether two results agree; tensors and containers passed must be returned themselves."""
    if any(want is b for _, b in arguments):
        return got is next(a for a, b in arguments if want is b)
    if isinstance(want, st.Tensor):
        return got.tolist() == want.tolist()
    if isinstance(want, dict):
        return list(got) == list(want) and all(alike(got[k], want[k], arguments) for k in want)
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(
            alike(a, b, arguments) for a, b in zip(got, want, strict=True)
        )
    return got == want


@pytest.mark.parametrize("kind", RETURNED)
def test_results_are_the_calls_own(kind):
    function, make = RETURNED[kind]
    f = st.compile(function)
    for k in range(1, 7):
        a, b = make(k), make(k)
        arguments = [(a, b)]
        if isinstance(a, dict):
            arguments += [(a[k], b[k]) for k in list(a)]
        elif isinstance(a, list):
            arguments += list(zip(a, b, strict=True))
        assert alike(f(a), function(b), arguments)


def test_new_objects_are_made_by_each_call():
    f = st.compile(lambda x: Pair(x * 2, [x]))
    made = [f(one(k)) for k in range(6)]
    assert [p.a.item() for p in made] == [0, 2, 4, 6, 8, 10]
    assert len({id(p) for p in made}) == 6


def test_parameters_are_returned_themselves():
    net = layer(2)
    f = st.compile(lambda x: (net(x), net.weight))
    assert all(f(st.ones(1, 1))[1] is net.weight for _ in range(4))


# -- written -------------------------------------------------------------------------------------------------
class Writer:
    def __init__(self):
        self.k, self.odd, self.h, self.log, self.table, self.seen = 0, False, one(0), [], {}, set()
        self.recent = collections.deque(maxlen=2)


def count(o, x):
    o.k += 1
    return x * o.k


def toggle(o, x):
    o.odd = not o.odd
    return x if o.odd else -x


def carry(o, x):
    o.h = o.h * 0.5 + x
    return o.h


def cache(o, x):
    if "w" not in o.table:
        o.table["w"] = x * 2
    return o.table["w"] + x


def first(o, x):
    o.h = x if o.k == 0 else o.h + x
    o.k = 1
    return o.h * 1


WRITTEN = {
    "counter": count,
    "toggle": toggle,
    "carried tensor": carry,
    "cache": cache,
    "None at first": first,
    "append": lambda o, x: (o.log.append(x * 2), x)[1],
    "append and look": lambda o, x: (o.log.append(x * 2), o.log[-1] + len(o.log))[1],
    "append numbers": lambda o, x: (o.log.append(1), x * len(o.log))[1],
    "key": lambda o, x: (o.table.update(loss=x * 2), x)[1],
    "item": lambda o, x: (o.table.__setitem__("loss", x * 2), x)[1],
    "set": lambda o, x: (o.seen.add(o.k), x)[1],
    "deque": lambda o, x: (o.recent.append(x + 1), x)[1],
    "deque, looked at": lambda o, x: (o.recent.append(x + 1), sum(o.recent))[1],
    "pop": lambda o, x: (o.log.append(x), o.log.append(x + 1), o.log.pop(0))[2],
    "clear": lambda o, x: (o.log.clear(), o.log.append(x), x)[2],
    "setattr": lambda o, x: (setattr(o, "new", x * 3), x)[1],
    "deleted": lambda o, x: (setattr(o, "new", 1), delattr(o, "new"), x)[2],
}


def state(value):
    if isinstance(value, st.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: state(v) for k, v in value.items()}
    if isinstance(value, (list, collections.deque)):
        return [state(v) for v in value]
    return value


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_a_function_writes_each_call_writes(kind):
    step = WRITTEN[kind]
    plain, compiled = Writer(), Writer()
    f = st.compile(lambda x: step(compiled, x), audit=False)
    for k in range(7):
        assert f(one(k)).tolist() == step(plain, one(k)).tolist()
        assert state(vars(compiled)) == state(vars(plain))
    if kind in ("append", "carried tensor", "key", "item", "deque", "clear", "setattr"):
        assert f.captures <= 2  # replays write, too


def test_nonlocal_and_global_variables_are_written():
    k = 0

    @st.compile
    def f(x):
        nonlocal k
        k += 1
        return x * k

    assert [f(one(1)).item() for _ in range(4)] == [1, 2, 3, 4]
    assert k == 4


def test_what_is_printed_each_call_prints():
    f = st.compile(lambda x: (print("shape", x.shape), x + 1)[1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for k in range(3):
            f(one(k))
    assert out.getvalue() == "shape (1,)\n" * 3


def test_losses_collected_inside_of_a_step():
    losses, w = [], nn.Parameter(one(1))
    opt = optim.SGD([w], lr=0.1)

    @st.compile
    def step(x):
        loss = ((w * x) ** 2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())

    for _ in range(4):
        step(one(1))
    np.testing.assert_allclose([x.item() for x in losses], [0.8 ** (2 * k) for k in range(4)], rtol=1e-5)
    assert step.captures == 1


def test_arrays_written_in_place():
    a = np.zeros(2)

    @st.compile
    def f(x):
        a[0] += 1
        return x + float(a[0])

    assert [f(one(0)).item() for _ in range(3)] == [1, 2, 3]
    assert a.tolist() == [3, 0]


# -- instances -----------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Scaled:
    k: float
    last: object = None

    @st.compile
    def scale(self, x):
        return x * self.k

    @st.compile
    def keep(self, x):
        self.last = x * 2
        return x + 1


def test_instances_that_compare_equal_have_captures_of_their_own():
    a, b = Scaled(1.0), Scaled(1.0)
    assert [a.scale(one(1)).item(), b.scale(one(1)).item()] == [1, 1]
    b.k = 5.0
    assert [a.scale(one(1)).item(), b.scale(one(1)).item(), a.scale(one(1)).item()] == [1, 5, 1]


def test_values_stored_on_an_object_are_values_at_each_size():
    o = Scaled(1.0)
    for n in (2, 3, 4, 2, 5):
        o.keep(st.ones(n))
        assert (o.last + 1).tolist() == [3.0] * n


def test_a_compiled_function_calls_another():
    o = Config(1.0)
    inner = st.compile(lambda x: x * o.k)
    outer = st.compile(lambda x: inner(x) + 1)
    assert outer(one(1)).item() == 2
    o.k = 3.0
    assert [outer(one(1)).item(), inner(one(1)).item()] == [4, 3]


# -- what is carried -----------------------------------------------------------------------------------------
SCHEDULES = {
    "StepLR": lambda o: optim.lr_scheduler.StepLR(o, 2, 0.5),
    "OneCycleLR": lambda o: optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=30),
    "CosineAnnealingWarmRestarts": lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    "CyclicLR": lambda o: optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "SequentialLR": lambda o: optim.lr_scheduler.SequentialLR(
        o, [optim.lr_scheduler.ConstantLR(o, 0.1, 3), optim.lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: optim.lr_scheduler.ChainedScheduler(
        [optim.lr_scheduler.ConstantLR(o, 0.1, 3), optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
}


def training(name, where):
    w = nn.Parameter(one(1))
    opt = optim.SGD([w], lr=0.1, momentum=0.9)
    schedule = SCHEDULES[name](opt)

    def step(x):
        if where == "before":
            schedule.step()
        loss = ((w * x) ** 2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if where != "before":
            schedule.step(*([loss.detach()] if name == "ReduceLROnPlateau" else []))
        return (loss.detach(), schedule.get_last_lr()) if where == "rates" else loss.detach()

    return step, opt, schedule


PLACES = [
    p for p in itertools.product(SCHEDULES, ("before", "after", "rates")) if p[0] != "ReduceLROnPlateau"
]


@pytest.mark.parametrize("name,where", [*PLACES, ("ReduceLROnPlateau", "after")])
def test_schedules_step_inside_of_a_compiled_step(name, where):
    plain, opt, schedule = training(name, where)
    step, opt2, schedule2 = training(name, where)
    step = st.compile(step)
    for _ in range(10):
        want, got = plain(one(1)), step(one(1))
        if where == "rates":
            assert got[1] == want[1]
            want, got = want[0], got[0]
        assert got.item() == want.item()
        assert opt2.param_groups[0]["lr"] == opt.param_groups[0]["lr"]
        assert schedule2.state_dict() == schedule.state_dict() or "lambdas" in str(schedule.state_dict())
    if where != "rates":
        assert step.captures == 1


def test_metrics_are_updated_by_each_call():
    metric, plain = MeanSquaredError(), MeanSquaredError()
    f = st.compile(lambda x, y: (metric.update(x * 2, y), x)[1])
    for k in range(5):
        f(one(k), one(1))
        plain.update(one(2 * k), one(1))
    assert metric.compute() == plain.compute()
    assert f.captures == 1


# -- frozen values and audits --------------------------------------------------------------------------------
def test_frozen_values_are_taken_once_also_by_audits():
    items = iter(range(100))
    f = st.compile(lambda x: x + st.frozen(next, items) + st.frozen(random.random) * 0)
    assert [f(one(0)).item() for _ in range(12)] == [0.0] * 12
    assert f.audits > 2
    assert next(items) == 1


def test_audits_are_counted_and_can_be_left_out():
    f, g = st.compile(lambda x: x + 1), st.compile(lambda x: x + 1, audit=False)
    for _ in range(20):
        f(one(1))
        g(one(1))
    assert (f.audits, g.audits) == (5, 0)  # calls 2, 3, 5, 9, 17


def test_an_audit_warns_names_the_line_and_gives_the_right_result(monkeypatch):
    monkeypatch.setattr("stratal.tensor.capture.guards.Guards.failed", lambda self: None)
    o = Config(1.0)
    f = st.compile(lambda x: x * o.k)
    assert [f(one(1)).item(), f(one(1)).item()] == [1, 1]
    o.k = 2.0
    with pytest.warns(AuditWarning, match=r"const.*test_capture_calls\.py"):
        assert f(one(1)).item() == 2
    assert f.captures == 2


def test_named_results_of_functions_inside_of_a_capture():
    f = st.compile(lambda x: st.grad(lambda v: v.max(0).values.sum() + v.sort().values[1])(x))
    for k in range(3):
        assert f(st.tensor([3.0 + k, 1.0, 2.0])).tolist() == [1, 0, 1]


# -- refusals that are caught --------------------------------------------------------------------------------
ASKED = {
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "item": lambda x: x.sum().item(),
    "index": lambda x: [0.0, 1.0, 2.0, 3.0][x.sum().astype(st.int64)],
    "list": lambda x: x.tolist(),
    "array": lambda x: np.asarray(x),
    "key of max": lambda x: max([x, x * 2], key=lambda t: float(t.sum())),
    "size that is data": lambda x: st.unique(x),
    "random": lambda x: random.random(),
    "clock": lambda x: time.time(),
}


def _suppressed(ask, x):
    with contextlib.suppress(Exception):
        ask(x)
        return x * 2
    return x * 0


def _narrow(ask, x):
    try:
        ask(x)
    except (TypeError, ValueError, RuntimeError):
        return x * 0
    return x * 2


def _finally(ask, x):
    try:
        ask(x)
        _ = x * 2
    finally:
        return x * 0  # noqa: B012


def _again(ask, x):
    for _ in range(3):
        try:
            ask(x)
            return x * 2
        except Exception:
            continue
    return x * 0


CAUGHT = {"suppress": _suppressed, "narrow": _narrow, "finally": _finally, "again": _again}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("caught", CAUGHT)
def test_a_refusal_that_the_function_catches_is_raised(asked, caught):
    """Uncompiled, what is asked for is there, so what the function does without it is another program."""
    f = st.compile(lambda x: CAUGHT[caught](ASKED[asked], x))
    for _ in range(3):
        with pytest.raises(CaptureError):
            f(one(3))


# -- functions in C that call others -------------------------------------------------------------------------
NAMING = "{.k}"
CALLED_UNSEEN = {
    "map a dict's get": lambda c, d, items: sum(map(d.get, ["k"])),
    "map a list's item": lambda c, d, items: sum(map(items.__getitem__, [0])),
    "map an attribute": lambda c, d, items: sum(map(operator.attrgetter("k"), [c])),
    "map a partial": lambda c, d, items: sum(functools.partial(map, operator.attrgetter("k"))([c])),
    "map getattr": lambda c, d, items: sum(map(getattr, [c], ["k"])),
    "starmap getattr": lambda c, d, items: sum(itertools.starmap(getattr, [(c, "k")])),
    "filter by an attribute": lambda c, d, items: len([*filter(operator.attrgetter("is_three"), [c])]),
    "any item in": lambda c, d, items: float(any(map(d.keys().__contains__, ["is_three"]))),
    "reduce": lambda c, d, items: functools.reduce(dict.get, ["k"], d),
    "format an attribute": lambda c, d, items: float(NAMING.format(c)),
}


@pytest.mark.parametrize("name", CALLED_UNSEEN)
def test_what_functions_read_that_are_called_by_others_in_c_is_guarded(name):
    c, d, items, read = Config(2.0), {"k": 2.0}, [2.0], CALLED_UNSEEN[name]
    c.is_three = False

    def f(x):
        return x * read(c, d, items)

    compiled = st.compile(f, audit=False)
    for k in (2.0, 2.0, 3.0, 3.0):
        c.k, d["k"], items[0], c.is_three = k, k, k, k == 3
        if k == 3:
            d["is_three"] = True
        assert compiled(one(1)).item() == f(one(1)).item()


WRITTEN_UNSEEN = {
    "append": lambda c, d, items, x: any(map(items.append, [1, x])),
    "extend": lambda c, d, items, x: [*map(items.extend, [[x]])],
    "assign an item": lambda c, d, items, x: [*map(d.__setitem__, ["k"], [x])],
    "assign an attribute": lambda c, d, items, x: [*map(setattr, [c], ["k"], [x])],
    "take an attribute away": lambda c, d, items, x: hasattr(c, "k") and [*map(delattr, [c], ["k"])],
}


@pytest.mark.parametrize("name", WRITTEN_UNSEEN)
def test_what_functions_write_that_are_called_by_others_in_c_is_written_by_each_call(name):
    def held(way):
        c, d, items, write = Config(2.0), {}, [], WRITTEN_UNSEEN[name]

        @way
        def f(x):
            write(c, d, items, x)
            return x

        for k in range(4):
            f(one(k))
        return [float(v) for part in (vars(c).values(), d.values(), items) for v in part]

    assert held(lambda f: st.compile(f, audit=False)) == held(lambda f: f)
