"""Programs by people who knew the documentation alone: what compiled functions got wrong without a word."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import itertools
import operator
import pathlib
import random
import statistics
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from capture_ways import WAYS, each_way
from waiting import joined

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError
from stratal.tensor.lazy import programs


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """A guard notices, not an audit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Box:
    """Attributes of any name."""


# -- what Python looks up by itself --------------------------------------------------------------------------
def _enters(s: Any) -> float:
    with s as value:
        return float(value)


OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "getitem")
SPECIAL: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]] = {
    **{f"__{o}__": (lambda s, k: 3.0, lambda s, k: 9.0, lambda a, o=o: getattr(operator, o)(a, 1))
       for o in OPERATORS},
    **{f"__r{o}__": (lambda s, k: 3.0, lambda s, k: 9.0, lambda a, o=o: getattr(operator, o)(1, a))
       for o in OPERATORS[:7]},
    **{f"__{name}__": (lambda s: 3.0, lambda s: 9.0, use)
       for name, use in {"neg": operator.neg, "pos": operator.pos, "abs": abs, "float": float}.items()},
    **{f"__{name}__": (lambda s: 3, lambda s: 9, use)
       for name, use in {"len": len, "int": int, "index": lambda a: [*range(10)][a], "hash": hash}.items()},
    "__call__": (lambda s: 3.0, lambda s: 9.0, lambda a: a()),
    "__bool__": (lambda s: True, lambda s: False, lambda a: 3.0 if a else 9.0),
    "__eq__": (lambda s, o: True, lambda s, o: False, lambda a: 3.0 if a == 1 else 9.0),
    "__contains__": (lambda s, o: True, lambda s, o: False, lambda a: 3.0 if 1 in a else 9.0),
    "__getattr__": (lambda s, n: 3.0, lambda s, n: 9.0, lambda a: a.anything),
    "__iter__": (lambda s: iter([3.0]), lambda s: iter([9.0]), lambda a: next(x for x in a)),
    "__str__": (lambda s: "3", lambda s: "9", lambda a: float(str(a))),
    "__format__": (lambda s, f: "3", lambda s, f: "9", lambda a: float(f"{a}")),
    "__enter__": (lambda s: 3.0, lambda s: 9.0, _enters),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_methods_that_are_replaced_are_noticed(name: str) -> None:
    old, new, use = SPECIAL[name]
    kind = type("Kind", (), {"__exit__": lambda s, *error: None, name: old})
    a, x = kind(), st.ones(1)
    f = st.compile(lambda x: x * use(a), audit=False)
    for _ in range(3):
        assert f(x).item() == use(a)
    setattr(kind, name, new)
    assert f(x).item() == use(a) == 9


def test_descriptors_and_positional_patterns_are_noticed() -> None:
    class Descriptor:
        def __get__(self, owner: Any, kind: Any) -> float:
            return 3.0

    class Kind:
        __match_args__ = ("a",)
        a, b, d = 3.0, 9.0, Descriptor()

    def matched(s: Any) -> float:
        match s:
            case Kind(first):
                return float(first)
        return 0.0

    k, x = Kind(), st.ones(1)
    reads = [st.compile(lambda x: x * k.d, audit=False), st.compile(lambda x: x * matched(k), audit=False)]
    assert [f(x).item() for f in reads] == [3, 3]
    Descriptor.__get__ = lambda *args: 9.0  # type: ignore[method-assign]
    Kind.__match_args__ = ("b",)
    assert [f(x).item() for f in reads] == [9, 9]


# -- reads ---------------------------------------------------------------------------------------------------
class Slotted:
    __slots__ = ("a",)


class Sized:
    def __len__(self) -> int:
        return 1


class Longer:
    def __len__(self) -> int:
        return 2


class Items(list[Any]):
    def __getitem__(self, key: Any) -> Any:
        return 1.0


def _read_later() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    d, dd, box, error = {"a": 1.0}, collections.defaultdict(lambda: 1.0), Box(), ValueError("1.")
    view, proxy, module = d.keys(), types.MappingProxyType(d), types.ModuleType("made")
    module.__getattr__ = lambda name: 1.0  # type: ignore[method-assign]
    slotted, sized, items, kind = Slotted(), Sized(), Items([5.0]), type("Kind", (), {})
    slotted.a = 1.0
    array, partial = np.zeros((2, 3)), functools.partial(pow, 2.0)
    c = kind()
    return {
        "length of keys": (lambda: len(view), lambda: d.update(b=2.0)),
        "length of a proxy": (lambda: len(proxy), lambda: d.update(c=2.0)),
        "method caller": (lambda: operator.methodcaller("get", "z", 1.0)(d), lambda: d.update(z=5.0)),
        "default factory": (
            lambda: (dd["q"], dd.pop("q"))[0], lambda: setattr(dd, "default_factory", lambda: 2.0)),
        "attributes of a module": (
            lambda: module.v, lambda: setattr(module, "__getattr__", lambda name: 2.0)),
        "slot by its descriptor": (
            lambda: Slotted.a.__get__(slotted), lambda: setattr(slotted, "a", 2.0)),  # type: ignore[attr-defined]
        "callable": (lambda: 2.0 if callable(c) else 1.0, lambda: setattr(kind, "__call__", lambda s: 0)),
        "dir": (lambda: len(dir(c)), lambda: setattr(c, "new", 0)),
        "name of a class": (lambda: len(kind.__name__), lambda: setattr(kind, "__name__", "Longer")),
        "length by another class": (lambda: len(sized), lambda: setattr(sized, "__class__", Longer)),
        "method taken away": (lambda: items[0], lambda: delattr(Items, "__getitem__")),
        "text of an error": (lambda: float(str(error)), lambda: setattr(error, "args", ("2.",))),
        "flat array": (lambda: array.flat[0] + 1, lambda: array.fill(1)),
        "flags": (lambda: 1.0 + array.flags.writeable, lambda: array.setflags(write=False)),
        "partial": (lambda: partial(2.0), lambda: partial.__setstate__((pow, (3.0,), {}, {}))),
        "attribute dict": (lambda: box.__dict__.get("k", 1.0), lambda: setattr(box, "k", 2.0)),
    }  # fmt: skip


class Counting:
    """An iterator written in Python."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.k, self.itself = items, -1, self

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Any:
        self.k += 1
        if self.k == len(self.items):
            raise StopIteration
        return self.items[self.k]


HANDING: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda items: items, "iterator": iter, "generator": lambda items: (x for x in items),
    "generator of another": lambda items: (x for x in (y for y in items)), "written in Python": Counting,
    "chain": lambda items: itertools.chain(iter(items[:1]), (x for x in items[1:])),
    "zip": lambda items: map(operator.itemgetter(0), zip((x for x in items), iter(items), strict=True)),
    "partial": lambda items: map(functools.partial(max, key=bool), iter(items), iter(items)),
}  # fmt: skip
LOOKING: dict[str, Callable[[Any], float]] = {
    "attrgetter": lambda it: sum(map(operator.attrgetter("v"), it)),
    "getattr": lambda it: sum(map(getattr, it, ("v",) * 3)),
    "getattr of one": lambda it: sum(map(functools.partial(getattr, next(it := iter(it))), ["v"])),
    "key": lambda it: max(it, key=operator.attrgetter("v")).v,
    "len": lambda it: sum(map(len, (b.held for b in it))),
    "sum": lambda it: sum(map(sum, map(operator.attrgetter("held"), it))),
    "max": lambda it: max(b.held for b in it)[0],
    "starmap": lambda it: sum(itertools.starmap(getattr, ((b, "v") for b in it))),
    "methodcaller": lambda it: sum(map(operator.methodcaller("get", "v"), map(vars, it))),
    "reduce": lambda it: functools.reduce(operator.add, (b.held for b in it))[-1],
}  # fmt: skip


@pytest.mark.parametrize("handing", HANDING)
@pytest.mark.parametrize("looking", LOOKING)
def test_what_functions_in_c_look_at_in_what_they_are_handed_is_guarded(looking: str, handing: str) -> None:
    boxes = [Box(), Box(), Box()]
    for k, box in enumerate(boxes):
        box.v, box.held = k + 1.0, [k + 1.0]  # type: ignore[attr-defined]

    def read() -> float:
        return LOOKING[looking](HANDING[handing](boxes))

    f = st.compile(lambda x: x * read(), audit=False)
    for call in range(5):
        assert f(st.ones(1)).item() == read()
        box = boxes[2 - call % 3]
        box.v, box.held[0] = box.v + 3, box.held[0] + 2  # type: ignore[attr-defined]


class WithSlots:
    __slots__ = ("v", "w")


@each_way
def test_attributes_of_any_kind_that_functions_in_c_get_and_set_are_noted(way: str) -> None:
    def history(compiled: Callable[..., Any]) -> list[Any]:
        kind, slotted, found = type("Kind", (), {"v": 1.0}), WithSlots(), []
        slotted.v, items = 1.0, [slotted, kind()]  # type: ignore[attr-defined]

        def f(x: Any) -> Any:
            list(map(setattr, iter(items), itertools.repeat("w"), (x, x * 2)))
            return x * sum(map(getattr, (b for b in items), ("v" for _ in items)))

        f = compiled(f)
        for call in range(5):
            found.append([f(st.full((1,), call)).item(), *(b.w.item() for b in items)])
            slotted.v, kind.v = call * 2.0, call % 3.0  # type: ignore[attr-defined]
        return found

    assert history(WAYS[way]) == history(lambda f: f)


def test_what_functions_in_c_look_at_in_parts_of_a_module_is_guarded() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for part in net:
        part.scale = 1.0
    f = st.compile(lambda x: x * sum(map(operator.attrgetter("scale"), net.children())), audit=False)
    for call in range(4):
        assert f(st.ones(1)).item() == 2 + call
        net[call % 2].scale += 1


@pytest.mark.parametrize("name", _read_later())
def test_what_is_read_is_guarded(name: str) -> None:
    read, change = _read_later()[name]
    f, x = st.compile(lambda x: x * read(), audit=False), st.ones(1)
    for _ in range(3):
        assert f(x).item() == read()
    change()
    assert f(x).item() == read()


def test_another_class_of_a_module_is_noticed() -> None:
    class Seven(nn.Linear):
        def forward(self, x: Any) -> Any:
            return x * 7

    net, drop, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Dropout(0.0), st.ones(2)
    f, g = st.compile(lambda x: net(x), audit=False), st.compile(lambda x: drop(x), audit=False)
    for _ in range(3):
        f(x), g(x)
    net[1].__class__, drop.__class__ = Seven, nn.Tanh
    assert f(x).tolist() == net(x).tolist() and g(x).tolist() == drop(x).tolist()


def test_named_arguments_come_in_the_order_of_the_call() -> None:
    def digits(x: Any, **k: float) -> Any:
        for value in k.values():
            x = x * 10 + value
        return x

    f = st.compile(digits)
    x = st.zeros(1)
    assert [f(x, p=1.0, q=2.0).item(), f(x, q=2.0, p=1.0).item()] == [12, 21]
    assert st.compile(lambda **k: list(k))(q=1, p=2) == ["q", "p"]


def test_another_rule_of_derivatives_is_noticed() -> None:
    @st.custom_vjp
    def once(x: Any) -> Any:
        return x * 1

    def rule(k: float) -> None:
        once.defvjp(lambda x: (once(x), None), lambda kept, ct: (ct * k,))

    rule(1.0)
    f = st.compile(lambda x: st.grad(lambda x: once(x).sum())(x), audit=False)
    assert f(st.ones(1)).tolist() == f(st.ones(1)).tolist() == [1]
    rule(10.0)
    assert f(st.ones(1)).tolist() == [10]


# -- writes --------------------------------------------------------------------------------------------------
def _flag(o: Any) -> None:
    o.flag = True


def _item(o: Any) -> None:
    o.d["k"] = 1


def _slice(o: Any) -> None:
    o.l[:] = [7]


def _global(o: Any) -> None:
    global STANDING
    STANDING = 1


def _grads(o: Any) -> None:
    o.t.requires_grad_(False)


STANDING = 1
WRITTEN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "attribute": (_flag, lambda o: setattr(o, "flag", False), lambda o: o.flag),
    "setattr": (lambda o: setattr(o, "flag", 1), lambda o: setattr(o, "flag", 0), lambda o: o.flag),
    "slot": (lambda o: setattr(o.s, "a", 1), lambda o: setattr(o.s, "a", 0), lambda o: o.s.a),
    "global": (_global, lambda o: globals().update(STANDING=5), lambda o: STANDING),
    "item": (_item, lambda o: o.d.update(k=7), lambda o: o.d["k"]),
    "attribute dict": (
        lambda o: o.__dict__.__setitem__("n", 3), lambda o: o.__dict__.update(n=4), lambda o: o.n),
    "clear": (lambda o: o.e.clear(), lambda o: o.e.append(0), lambda o: len(o.e)),
    "clear of a deque": (lambda o: o.q.clear(), lambda o: o.q.append(0), lambda o: len(o.q)),
    "add": (lambda o: o.a.add(1), lambda o: o.a.discard(1), lambda o: len(o.a)),
    "slice": (_slice, lambda o: o.l.append(8), lambda o: [*o.l]),
    "delete": (lambda o: o.e.__delitem__(slice(2, None)), lambda o: o.e.extend("abc"), lambda o: len(o.e)),
    "class attribute": (
        lambda o: setattr(type(o), "c", 1), lambda o: setattr(type(o), "c", 2), lambda o: o.c),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("kind", WRITTEN)
def test_what_stands_there_already_is_written_again(kind: str, way: str) -> None:
    act, disturb, look = WRITTEN[kind]

    def seen(compiled: Callable[..., Any]) -> list[Any]:
        o: Any = type("Kind", (), {"c": 1})()
        o.flag, o.d, o.e, o.q, o.n = True, {"k": 1}, [], collections.deque(), 3
        o.a, o.l, o.s = {1}, [7], Slotted()
        o.s.a = 1
        globals()["STANDING"] = 1

        def f(x: Any) -> Any:
            act(o)
            return x * 2

        f, found = compiled(f), []
        for k in range(9):
            f(st.ones(1))
            found.append(look(o))
            if k in (4, 6):
                disturb(o)
        return found

    assert seen(WAYS[way]) == seen(lambda f: f)


def test_a_write_that_python_refuses_is_none() -> None:
    box = Box()

    def f(x: Any) -> Any:
        try:
            box.__weakref__ = None  # type: ignore[attr-defined]
        except AttributeError:
            return x + 1
        return x

    compiled = st.compile(f)
    assert [compiled(st.ones(1)).item() for _ in range(4)] == [2] * 4


# -- state that is returned ----------------------------------------------------------------------------------
class Holder:
    __slots__ = ("h",)


def _states() -> dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]:
    d: dict[str, Any] = {"h": st.zeros(1)}
    box, held, module = Box(), Holder(), types.ModuleType("made")
    box.h, held.h, module.h = st.zeros(1), st.zeros(1), st.zeros(1)  # type: ignore[attr-defined]
    cell = st.zeros(1)

    def get() -> Any:
        return cell

    def put(value: Any) -> None:
        nonlocal cell
        cell = value

    return {
        "item": (lambda: d["h"], lambda v: d.__setitem__("h", v)),
        "attribute": (lambda: box.h, lambda v: setattr(box, "h", v)),  # type: ignore[attr-defined]
        "slot": (lambda: held.h, lambda v: setattr(held, "h", v)),
        "module": (lambda: module.h, lambda v: setattr(module, "h", v)),
        "closure": (get, put),
    }


@each_way
@pytest.mark.parametrize("stored", [False, True], ids=["returned", "stored"])
@pytest.mark.parametrize("kind", _states())
def test_what_stood_there_before_is_each_calls_own(kind: str, stored: bool, way: str) -> None:
    def run(compiled: Callable[..., Any]) -> list[float]:
        get, put = _states()[kind]
        log: list[Any] = []

        def f(x: Any) -> Any:
            old = get()
            put(old + x)
            if stored:
                log.append(old)
            return old

        f, found = compiled(f), []
        for k in range(8):
            found.append(f(st.full((1,), float(k))).item())
        return found + [x.item() for x in log]

    assert run(WAYS[way]) == run(lambda f: f)


@each_way
@pytest.mark.parametrize("stored", [False, True], ids=["returned", "stored"])
def test_a_gradient_that_is_returned_is_the_tensors_own(stored: bool, way: str) -> None:
    def run(compiled: Callable[..., Any]) -> tuple[Any, ...]:
        p = nn.Parameter(st.ones(1))
        opt, log = optim.SGD([p], lr=1.0), []

        def grads(x: Any) -> Any:
            opt.zero_grad()
            (p * x).sum().backward()
            if stored:
                log.append(p.grad)
            return None if stored else p.grad

        grads, kept = compiled(grads), []
        for k in range(6):
            made = grads(st.full((1,), float(k)))
            kept.append(log[-1] if stored else made)
            kept[-1].mul_(0.1)
            opt.step()
        return p.item(), kept[-1] is p.grad, [g.item() for g in kept]

    assert run(WAYS[way]) == run(lambda f: f)


VIEWED: dict[str, Callable[[Any], Any]] = {
    "slice": lambda t: t[:1], "all": lambda t: t[:], "detach": lambda t: t.detach(),
    "view": lambda t: t.view(2), "data": lambda t: t.data, "transposed": lambda t: t.view(2, 1).T,
}  # fmt: skip


@each_way
@pytest.mark.parametrize("kind", VIEWED)
def test_views_of_state_that_are_returned_show_what_later_calls_write(kind: str, way: str) -> None:
    def run(compiled: Callable[..., Any]) -> list[Any]:
        t = st.zeros(2)

        def f(x: Any) -> Any:
            t.add_(x)
            return VIEWED[kind](t)

        f = compiled(f)
        made = [f(st.ones(2)) for _ in range(4)]
        found = [v.tolist() for v in made]
        made[0].add_(5.0)
        return [*found, t.tolist(), f(st.ones(2)).tolist(), made[1].tolist()]

    assert run(WAYS[way]) == run(lambda f: f)


# -- schedules and optimisers --------------------------------------------------------------------------------
class Momentum(optim.Optimizer):
    """An optimiser with a step of its own, as PyTorch's tutorials write one."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @st.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = st.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad)
                p.add_(state["m"], alpha=-group["lr"])


def _stateful_rate() -> Callable[[int], float]:
    calls: list[int] = []

    def rate(epoch: int) -> float:
        calls.append(epoch)
        return 1 / len(calls)

    return rate


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "lambda": lambda o: optim.lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "lambda with state": lambda o: optim.lr_scheduler.LambdaLR(o, _stateful_rate()),
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cyclic": lambda o: optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}  # fmt: skip
OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "own": lambda p: Momentum(p, 0.05), "SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.05),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("place", ["ahead", "behind"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedules_step_inside_at_no_capture(optimiser: str, schedule: str, place: str, way: str) -> None:
    if (optimiser, schedule) == ("own", "one cycle"):
        pytest.skip("an optimiser without momentum to cycle")
    warnings.simplefilter("ignore")

    def run(compiled: Callable[..., Any]) -> tuple[Any, int]:
        st.manual_seed(0)
        net = nn.Linear(4, 1)
        opt = OPTIMISERS[optimiser](net.parameters())
        sched = SCHEDULES[schedule](opt)

        def step(x: Any) -> Any:
            if place == "ahead":
                sched.step()
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if place == "behind":
                sched.step()
            return loss

        f = compiled(step)
        losses = [f(st.ones(3, 4) * (0.1 * k)).item() for k in range(9)]
        return (losses, opt.param_groups[0]["lr"], net.weight.tolist()), getattr(f, "captures", 0)

    found, captures = run(WAYS[way])
    assert _close(found, run(lambda f: f)[0])
    assert captures <= 3  # the first, one that finds state, one for a number that changes


def _close(a: Any, b: Any) -> bool:
    left, right = (np.hstack([np.ravel(x) for x in found]) for found in (a, b))
    return bool(np.allclose(left, right, rtol=1e-5))


def test_batches_that_are_overlapping_views_are_captured_once() -> None:
    data = st.arange(4 * 400).reshape(4, 400) % 7
    emb, head = nn.Embedding(7, 8), nn.Linear(8, 7)
    opt = optim.SGD([*emb.parameters(), *head.parameters()], lr=0.1)

    @st.compile
    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(head(emb(x)).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for j in range(0, 160, 16):
        step(data[:, j : j + 16], data[:, j + 1 : j + 17])
    assert step.captures == 1


# -- what is refused, and leaves nothing behind --------------------------------------------------------------
def _refused(folder: pathlib.Path) -> dict[str, Callable[[Any], Any]]:
    torch_like = type("Array", (), {"__array__": np.ndarray.__array__})()
    loader = st.data.DataLoader(st.data.TensorDataset(np.ones(6, np.float32)), 2, shuffle=True)
    layer, lock = nn.Linear(2, 2), threading.Lock()

    class Dies:
        def __del__(self) -> None: ...

    return {
        "st.load": lambda x: st.load(folder / "a.stratal")["x"] * x,
        "load_tensors": lambda x: st.formats.load_tensors(folder / "a.safetensors")["x"] * x,
        "st.save": lambda x: st.save({"x": x}, folder / "b.stratal"),
        "np.load": lambda x: st.tensor(np.load(folder / "a.npy")) * x,
        "np.loadtxt": lambda x: x * float(np.loadtxt(folder / "a.txt")),
        "np.fromfile": lambda x: st.tensor(np.fromfile(folder / "a.bin", np.float32)) * x,
        "np.save": lambda x: np.save(folder / "c.npy", np.ones(1)),
        "tofile": lambda x: np.ones(1).tofile(folder / "c.bin"),
        "clock": lambda x: x * (np.datetime64("now", "s") > np.datetime64("2020")),
        "loader": lambda x: [a * x for (a,) in loader],
        "list of a loader": lambda x: list(loader),
        "another library's array": lambda x: x * st.tensor(torch_like),
        "init": lambda x: nn.init.normal_(st.empty(2)) * x,
        "new layer": lambda x: nn.Linear(2, 2)(x),
        "reset layer": lambda x: (layer.reset_parameters(), layer(x))[1],
        "finalizer": lambda x: (Dies(), x)[1],
        "lock": lambda x: x * lock.locked(),
    }  # fmt: skip


@pytest.mark.parametrize("name", _refused(pathlib.Path()))
def test_what_depends_on_more_than_state_is_refused(name: str, tmp_path: pathlib.Path) -> None:
    st.save({"x": st.ones(2), "k": 1}, tmp_path / "a.stratal")
    st.formats.save_tensors(tmp_path / "a.safetensors", {"x": np.ones(2)})
    np.save(tmp_path / "a.npy", np.ones(2))
    np.savetxt(tmp_path / "a.txt", np.ones(1))
    np.ones(2, np.float32).tofile(tmp_path / "a.bin")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CaptureError) as refused:
        st.compile(_refused(tmp_path)[name])(st.ones(2))
    assert refused.value.hint and sorted(tmp_path.iterdir()) == before


def test_a_refused_call_leaves_output_groups_and_generators_as_they_were() -> None:
    net, more, generator = nn.Linear(2, 2), nn.Linear(2, 2), st.Generator()
    opt, out = optim.SGD(net.parameters(), lr=0.1), sys.stdout
    state = generator.get_state().tolist()

    def redirected(x: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return x * random.random()

    def grown(x: Any) -> Any:
        opt.add_param_group({"params": more.parameters()})
        return x * random.random()

    def seeded(x: Any) -> Any:
        generator.manual_seed(4)
        return x * random.random()

    for f in (redirected, grown, seeded):
        with pytest.raises(CaptureError):
            st.compile(f)(st.ones(2))
    assert sys.stdout is out and len(opt.param_groups) == 1 and generator.get_state().tolist() == state


# -- what is right at once, and stays so ---------------------------------------------------------------------
def _plainly() -> dict[str, Callable[[Any], Any]]:
    data, box = np.ones((4, 3), np.float32), Box()
    dq, od = collections.deque([1.0, 2.0]), collections.OrderedDict(a=1.0)
    path, found = pathlib.PurePath("a/b"), set(range(20))
    found.difference_update({*range(20)} - {1, 8})  # a copy has another order
    box.b, box.d = 2.0, {}  # type: ignore[attr-defined]

    def through_vars(x: Any) -> Any:
        p = Box()
        vars(p)["b"] = 2.0
        return x * p.b  # type: ignore[attr-defined]

    def executed(x: Any) -> Any:
        scope: dict[str, Any] = {}
        exec("q = 2.", scope)
        return x * scope["q"]

    def flagged(x: Any) -> Any:
        box.flag = True  # type: ignore[attr-defined]
        return x * 2

    @functools.singledispatch
    def dispatched(o: Any, x: Any) -> Any:
        return x

    @dispatched.register
    def _(o: int, x: Any) -> Any:
        return x * o

    return {
        "slice of an array": lambda x: x * st.asarray(data[0]),
        "operand that is a slice": lambda x: x * data[0],
        "copied object": lambda x: x * copy.copy(box).b,  # type: ignore[attr-defined]
        "attributes of a new object": through_vars, "exec": executed, "flag": flagged,
        "named tuple": lambda x: x * collections.namedtuple("P", "a b")(1.0, 2.0).b,
        "groupby": lambda x: x * len([list(g) for _, g in itertools.groupby([1, 1, 2])]),
        "tee": lambda x: x * next(itertools.tee([2.0])[0]),
        "mean": lambda x: x * statistics.mean([1.0, 3.0]),
        "copied deque": lambda x: x * copy.deepcopy(dq)[0],
        "copied ordered dict": lambda x: x * copy.deepcopy(od)["a"],
        "lerp": lambda x: st.lerp(x, x * 2, 0.05),
        "parts of a path": lambda x: x * len(path.parts) * len(path.with_name("c").name),
        "set": lambda x: x * sum(found),
    }  # fmt: skip


@pytest.mark.parametrize("name", _plainly())
def test_nothing_is_said_where_nothing_changed(name: str) -> None:
    f = _plainly()[name]
    compiled, x = st.compile(f), st.ones(3)
    for _ in range(5):
        assert compiled(x).tolist() == f(x).tolist()
    assert compiled.captures <= 2


def test_a_set_that_is_read_keeps_its_order() -> None:
    found = set(range(20))
    found.difference_update({*range(20)} - {1, 8})
    before = list(found)
    st.compile(lambda x: x * sum(found))(st.ones(1))
    assert list(found) == before != list(set(before))


class Tagged(type(pathlib.PurePath())):  # type: ignore[misc]
    """A path with an attribute of a user's."""


def test_attributes_of_paths_of_a_users_class_are_noticed() -> None:
    path = Tagged("a")
    path.scale = 2.0
    f = st.compile(lambda x: x * path.scale, audit=False)
    assert f(st.ones(1)).item() == 2
    path.scale = 3.0
    assert f(st.ones(1)).item() == 3


BY_HAND: dict[str, Callable[[Any], Any]] = {
    "parameter": lambda net: net._parameters.__setitem__("weight", nn.Parameter(st.zeros(2, 2))),
    "parameter taken away": lambda net: net._parameters.update(bias=None),
    "buffer": lambda net: net._buffers.__setitem__("scale", st.zeros(2)),
    "updated buffers": lambda net: net._buffers.update({"scale": st.zeros(2)}),
    "joined buffers": lambda net: operator.ior(net._buffers, {"scale": st.zeros(2)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BY_HAND)
def test_tables_of_a_module_that_are_written_by_hand_are_noticed(kind: str) -> None:
    net, x = nn.Linear(2, 2), st.ones(2)
    net.register_buffer("scale", st.ones(2))
    f = st.compile(lambda x: net(x) * net.scale, audit=False)
    for _ in range(3):
        f(x)
    BY_HAND[kind](net)
    assert f(x).tolist() == (net(x) * net.scale).tolist()


def test_batches_cut_from_a_data_set_are_not_compiled_one_by_one() -> None:
    data, net = st.randn(500, 8), nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 8))
    opt, rng = optim.Adam(net.parameters()), random.Random(0)

    def step(x: Any) -> float:
        loss = (net(x) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return float(loss)

    def batch() -> Any:
        return st.stack([data[i : i + 16] for i in rng.sample(range(400), 3)])

    for _ in range(4):
        step(batch())
        batch().numpy()
    before = programs.COMPILED[0]
    for _ in range(6):
        step(batch())
        assert batch().shape == (3, 16, 8)
        batch().numpy()
    assert programs.COMPILED[0] == before


def test_slices_that_were_copied_are_what_stands_there_now() -> None:
    data = st.arange(20.0)
    for k in range(6):
        part = data[k : k + 3]
        y = part * 2
        data.mul_(1.5)
        assert y.tolist() == [2 * v for v in (np.arange(20.0) * 1.5**k)[k : k + 3]]
        assert part.tolist() == data.tolist()[k : k + 3]


def test_statistics_that_a_scan_updates_carry_no_history() -> None:
    norm, rows = nn.BatchNorm1d(1), st.arange(6.0).reshape(2, 3)

    def f(x: Any) -> Any:
        return st.scan(lambda c, r: (c + norm(r[:, None]).sum(), c), x.sum(), rows)[0]

    compiled = st.compile(f)
    for k in range(5):
        compiled(st.full((1,), float(k)))
    assert compiled.captures == 1 and norm.running_mean.grad_fn is None
    f(st.ones(1))
    assert norm.running_mean.grad_fn is None


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h, self.k = st.zeros(1), 1.0

    def forward(self, x: Any) -> Any:
        self.h = self.h + x
        return self.h * self.k


def test_an_attribute_of_a_module_that_is_written_and_read_is_kept() -> None:
    plain, net = Mean(), Mean()
    f = st.compile(net, audit=False)
    assert [f(st.ones(1) * k).item() for k in range(6)] == [plain(st.ones(1) * k).item() for k in range(6)]
    assert net.h.item() == plain.h.item() == 15


def _without_first(lists: Any) -> None:
    del lists[0]


BY_HAND_OF_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "pop": lambda o: o.param_groups[0]["params"].pop(),
    "slice": lambda o: o.param_groups[0]["params"].__setitem__(slice(None), o.param_groups[0]["params"][:1]),
    "delete": lambda o: _without_first(o.param_groups[0]["params"]),
    "groups cleared": lambda o: o.param_groups.clear(),
    "no groups": lambda o: operator.imul(o.param_groups, 0),
    "another group": lambda o: operator.iadd(o.param_groups, optim.SGD([st.ones(1)], lr=0.5).param_groups),
    "repeated": lambda o: operator.iadd(o.param_groups[0]["params"], o.param_groups[0]["params"][:1]),
    "reverse": lambda o: o.param_groups[0]["params"].reverse(),
    "step": lambda o: setattr(o, "step", lambda *a: None),
    "zero_grad": lambda o: setattr(o, "zero_grad", lambda *a: None),
}  # fmt: skip


@each_way
@pytest.mark.parametrize("kind", BY_HAND_OF_OPTIMIZERS)
def test_optimizers_that_are_changed_by_hand_are_noticed(kind: str, way: str) -> None:
    def run(compiled: Callable[..., Any]) -> list[float]:
        a, b = nn.Parameter(st.ones(1)), nn.Parameter(st.ones(1))
        opt = optim.SGD([a, b], lr=0.1)

        def f(x: Any) -> None:
            opt.zero_grad()
            ((a + b) * x).sum().backward()
            opt.step()

        f = compiled(f)
        for _ in range(6):
            f(st.ones(1))
        BY_HAND_OF_OPTIMIZERS[kind](opt)
        for _ in range(2):
            f(st.ones(1))
        return [a.item(), b.item()]

    assert run(WAYS[way]) == run(lambda f: f)


def test_hooks_that_are_cleared_are_noticed() -> None:
    net = nn.Identity()
    net.register_forward_hook(lambda m, i, o: o * 2)
    f = st.compile(lambda x: net(x), audit=False)
    assert [f(st.ones(1)).item() for _ in range(3)] == [2, 2, 2]
    net._forward_hooks.clear()
    assert f(st.ones(1)).item() == 1


def _previous(s: Any, prev: Any, x: Any) -> Any:
    old = s["h"]
    s["h"] = old + x
    prev["h"] = old
    return old


def _refilled(s: Any, prev: Any, x: Any) -> Any:
    old = s["l"][0]
    s["l"].clear()
    s["l"].extend([old + x, old])
    return old


@each_way
@pytest.mark.parametrize("act", [_previous, _refilled])
def test_what_stood_in_an_argument_before_is_each_calls_own(act: Callable[..., Any], way: str) -> None:
    def run(compiled: Callable[..., Any]) -> list[Any]:
        s, prev, f = {"h": st.zeros(1), "l": [st.zeros(1)]}, {}, compiled(act)
        found = [f(s, prev, st.ones(1)).item() for _ in range(5)]
        return [found, s["h"].item(), [x.item() for x in s["l"]], [x.item() for x in prev.values()]]

    assert run(WAYS[way]) == run(lambda f: f)


@each_way
def test_attributes_of_a_thread_are_its_own(way: str) -> None:
    def run(compiled: Callable[..., Any]) -> list[Any]:
        local, out = threading.local(), []
        local.h, local.k = st.zeros(1), 1.0

        def f(x: Any) -> Any:
            local.h = local.h + x * local.k
            return local.h

        f = compiled(f)
        found = [f(st.ones(1)).item() for _ in range(5)]

        def work() -> None:
            local.h, local.k = st.ones(1) * 100, 2.0
            out.extend([f(st.ones(1)).item(), local.h.item()])

        thread = threading.Thread(target=work)
        thread.start()
        joined(thread)
        return [found, out, local.h.item()]

    assert run(WAYS[way]) == run(lambda f: f)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", st.zeros(2))

    def forward(self, x: Any) -> Any:
        self.h = self.h + x
        return self.h * 1


@each_way
def test_state_kept_in_a_buffer_is_captured_once(way: str) -> None:
    plain, net = Remembering(), Remembering()
    f = WAYS[way](net)
    for k in range(6):
        assert f(st.ones(2) * k).tolist() == plain(st.ones(2) * k).tolist()
        assert net.h.tolist() == plain.h.tolist()
    assert f.captures <= 2
    net.h = st.ones(2)
    assert f(st.ones(2)).tolist() == [2, 2]


@functools.singledispatch
def _scale(k: Any) -> Any:
    return 1


@_scale.register
def _(k: float) -> Any:
    return k * 2


def test_numbers_that_vary_are_floats_to_whoever_asks() -> None:
    box: Any = Box()
    asks = [
        lambda x: x * _scale(box.k), lambda x: x * (2 if box.k.__class__ is float else 99),
        lambda x: x * (2 if type(box.k) is float else 99),
        lambda x: x * (2 if isinstance(box.k, float) else 99),
    ]  # fmt: skip
    compiled = [st.compile(f) for f in asks]
    for box.k in (1.5, 2.5, 3.5, 4.5):
        assert [f(st.ones(1)).item() for f in compiled] == [2 * box.k, 2, 2, 2]


RAISING: dict[str, Callable[[float], Any]] = {
    "inverse": lambda n: 1 / n, "rest": lambda n: 7.0 % n, "quotient": lambda n: 7.0 // n,
    "negative power": lambda n: n**-1, "root": lambda n: (n**0.5).real, "power of it": lambda n: 2.0**n,
    "of a difference": lambda n: 1 / (2 - n), "of a product": lambda n: 1 / (n * 2), "both": lambda n: n / n,
}  # fmt: skip


@each_way
@pytest.mark.parametrize("argument", [True, False])
@pytest.mark.parametrize("kind", RAISING)
def test_numbers_that_vary_raise_where_floats_do(kind: str, argument: bool, way: str) -> None:
    def history(compiled: Callable[..., Any]) -> list[Any]:
        box, found = Box(), []
        f = compiled(lambda x, n: x * RAISING[kind](n if argument else box.n))  # type: ignore[attr-defined]
        for n in (1.0, 2.0, 3.0, 0.5, 0.0, -0.0, -2.0, 4.0, 5.0, 2.0):
            box.n = n  # type: ignore[attr-defined]
            try:
                found.append(f(st.ones(1), n if argument else 0).item())
            except ZeroDivisionError:
                found.append("division by zero")
        return found

    np.testing.assert_equal(history(WAYS[way]), history(lambda f: f))


QUOTIENTS_OF_SIZES = ("1 / (n - 1)", "n / (n - 1)", "1 / (n - 3.0)", "1 / n", "n**-0.5", "1 / (n / 2)")


@pytest.mark.parametrize("kind", QUOTIENTS_OF_SIZES)
def test_sizes_are_not_divided_by_where_they_make_zero(kind: str) -> None:
    of_size = eval(f"lambda n: {kind}")  # noqa: S307
    f = st.compile(lambda x: x * of_size(x.shape[0]))
    for n in (4, 5, 6, 3, 1, 7):
        try:
            expected = of_size(n)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                f(st.ones(n))
        else:
            np.testing.assert_allclose(f(st.ones(n)).numpy(), np.float32(expected), rtol=1e-6)


def test_complex_constants_differ_by_the_signs_of_their_zeros() -> None:
    found = [(st.ones(1) * complex(zero, 1)).real.item() for zero in (-0.0, 0.0)]
    assert [*map(str, found)] == [str((1 * complex(zero, 1)).real) for zero in (-0.0, 0.0)]


def test_names_put_into_builtins_and_properties_that_come_later_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kind:
        pass

    a: Any = Kind()
    a.k = 1
    f, g = st.compile(lambda x: x * PUT, audit=False), st.compile(lambda x: x * a.k, audit=False)  # type: ignore[name-defined]  # noqa: F821
    for value in (1, 2, 3):
        monkeypatch.setattr("builtins.PUT", value, raising=False)
        assert f(st.ones(1)).item() == value
    assert [g(st.ones(1)).item() for _ in range(3)] == [1, 1, 1]
    Kind.k = property(lambda self: 60)  # type: ignore[attr-defined]
    assert g(st.ones(1)).item() == 60


def test_many_runs_over_slices_end() -> None:
    rng = random.Random(0)
    data = st.randn(40)
    for _ in range(300):
        start = rng.randrange(30)
        part = data[start : start + 5]
        whole = (part, data[start + 1 : start + 6] * 2, st.cat([part, data[:2]]))
        [x.tolist() for x in rng.sample(whole, rng.randrange(1, 4))]


def _victim() -> int:
    return 1


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_captures_inside_a_tracing_function_are_refused(install: Callable[[Any], None]) -> None:
    f, refused = st.compile(lambda x: x * 2), []

    def tracer(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code is _victim.__code__ and event == "call":
            try:
                f(st.ones(1))
            except CaptureError as error:
                refused.append(error)

    before = sys.gettrace(), sys.getprofile()
    install(tracer)
    try:
        _victim()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert len(refused) == 1 and f(st.ones(1)).item() == 2


def test_a_function_that_catches_the_end_of_the_stack_is_refused() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    def f(x: Any) -> Any:
        with contextlib.suppress(RecursionError):
            deeper(0)
        return x * STANDING

    with pytest.raises(CaptureError):
        st.compile(f)(st.ones(1))


def test_what_is_made_and_taken_away_again_leaves_nothing() -> None:
    def caught(x: Any) -> Any:
        global CAUGHT
        try:
            raise ValueError(2)
        except ValueError as CAUGHT:
            return x * CAUGHT.args[0]

    def named(x: Any) -> Any:
        global NAMED
        NAMED = 3
        x = x * NAMED
        del NAMED
        return x

    for f, k in ((caught, 2), (named, 3)):
        compiled = st.compile(f)
        assert [compiled(st.ones(1)).item() for _ in range(4)] == [k] * 4
    assert "CAUGHT" not in globals() and "NAMED" not in globals()


def test_lists_made_of_numbers_that_vary_are_no_reason_to_capture() -> None:
    box: Any = Box()
    f = st.compile(lambda x: x * sum([box.k, box.k] + [box.k]))  # noqa: RUF005
    for box.k in (1.5, 2.5, 3.5, 1.5, 2.5, 1.5, 4.5):
        assert f(st.ones(1)).item() == 3 * box.k
    assert f.captures <= 2


class Unwound:
    """A context manager whose exit writes everywhere, and functions whose `finally:` does."""

    depth, exits = 0, 0

    def __init__(self) -> None:
        self.log: list[int] = []
        self.table: dict[str, Any] = {"inner": {"count": 0}}
        self.box = types.SimpleNamespace(count=0)

    def write(self) -> None:
        global UNWOUND
        UNWOUND += 1
        self.exits += 1
        self.log.append(self.exits)
        self.table["inner"]["count"] += 1
        self.box.count += 1

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        self.write()


UNWOUND = 0


def _with(state: Unwound, refused: Callable[[], Any]) -> None:
    with state:
        refused()


def _finally(state: Unwound, refused: Callable[[], Any]) -> None:
    try:
        refused()
    finally:
        state.write()


def _except(state: Unwound, refused: Callable[[], Any]) -> None:
    try:
        refused()
    except BaseException:
        state.log = [*state.log, 1]
        state.write()
        raise


def _caught(state: Unwound, refused: Callable[[], Any]) -> None:
    try:
        refused()
    except Exception:
        state.exits += 1
    state.write()


def _inner(state: Unwound, refused: Callable[[], Any]) -> None:
    count = 0

    def inner() -> None:
        nonlocal count
        try:
            refused()
        finally:
            count += 1
            inner.count = count  # type: ignore[attr-defined]
            state.write()

    inner()


@pytest.mark.parametrize("block", [_with, _finally, _except, _caught, _inner])
def test_what_blocks_write_while_a_refusal_passes_is_taken_back(block: Callable[..., Any]) -> None:
    iterator, state = iter(range(9)), Unwound()

    def seen() -> Any:
        return UNWOUND, state.depth, state.exits, state.log, state.table, state.box

    before = copy.deepcopy(seen())

    @st.compile
    def f(x: Any) -> Any:
        block(state, lambda: next(iterator))
        return x * 1

    for turn in range(3):
        with pytest.raises(CaptureError, match="iterator"):
            f(st.ones(2))
        assert seen() == before
        assert next(iterator) == turn


# -- counters ------------------------------------------------------------------------------------------------
TABLES: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"a": 1.0},  # the collector does not track it until it holds what a capture puts there
    "ChainMap": lambda: collections.ChainMap({}, {"a": 1.0}),
    "UserDict": lambda: collections.UserDict(a=1.0),
    "OrderedDict": lambda: collections.OrderedDict(a=1.0),
    "defaultdict": lambda: collections.defaultdict(float, a=1.0),
}


def _each_key(table: Any) -> None:
    for key in table:
        table[key] += 1


def _each_item(table: Any) -> None:
    for key, value in list(table.items()):
        table[key] = value + 1


COUNTS: dict[str, Callable[[Any], Any]] = {
    "item": lambda t: operator.setitem(t, "a", t["a"] + 1),
    "get": lambda t: operator.setitem(t, "a", t.get("a") + 1),
    "update": lambda t: t.update(a=t["a"] + 1), "update with a table": lambda t: t.update({"a": t["a"] + 1}),
    "each key": _each_key, "each item": _each_item,
}  # fmt: skip


@each_way
@pytest.mark.parametrize("as_argument", [False, True], ids=["from outside", "argument"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("table", TABLES)
def test_counters_count_each_call(table: str, count: str, as_argument: bool, way: str) -> None:
    counts, box = TABLES[table](), Box()
    box.counts = counts
    if as_argument:
        f = WAYS[way](lambda x, box: (COUNTS[count](box.counts), x * 1.0)[1])
    else:
        f = WAYS[way](lambda x, box: (COUNTS[count](counts), x * 1.0)[1])
    for call in range(5):
        f(st.arange(3.0), box)
        assert dict(counts) == {"a": call + 2.0}


def test_state_that_a_number_that_varies_is_read_beside_is_each_calls_own() -> None:
    """The object a metric is given is made after the collector was first asked what is new."""
    box, metric = Box(), st.metrics.MeanMetric()
    box.k = 2.0  # type: ignore[attr-defined]

    @st.compile
    def f(x: Any) -> Any:
        out = x * box.k  # type: ignore[attr-defined]
        metric.update(x)
        return (out,)

    for call in range(5):
        x = st.arange(3.0) + call
        (found,) = f(x)
        assert found.tolist() == [box.k * (call + j) for j in range(3)]  # type: ignore[attr-defined]
        assert metric.compute() == pytest.approx(1 + call / 2)
        box.k += 1.0  # type: ignore[attr-defined]


class Anything:
    """Answers to any name."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {"k": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self._known[name]


def test_arguments_that_answer_to_any_name_are_no_tensors() -> None:
    shown = st.ones(3)
    f = st.compile(lambda x, a, v, p: (p.mul_(a.k), x + v[0])[1])
    for call in range(3):
        p = st.ones(3)
        assert f(st.arange(3.0) + call, Anything(), shown[1:], p).tolist() == [call + 1, call + 2, call + 3]
        assert p.tolist() == [2, 2, 2]


def test_an_argument_of_another_class_is_captured_anew() -> None:
    class Other(Box):
        pass

    box = Box()
    f = st.compile(lambda x, b: x * (2 if type(b) is Box else 3))
    assert f(st.ones(2), box).tolist() == [2, 2]
    box.__class__ = Other
    assert f(st.ones(2), box).tolist() == [3, 3]


# -- gradients that begin in a compiled call and end outside -------------------------------------------------
def _each(net: Any) -> list[Any]:
    return [p for p in net.parameters() if p.grad is not None]


def _halved(net: Any) -> None:
    for p in _each(net):
        p.grad.mul_(0.5)


def _scaled(net: Any) -> None:
    for p in _each(net):
        p.grad = p.grad * 0.5


def _made(net: Any) -> None:
    for p in net.parameters():
        p.grad = p.detach() * 2


def _decayed(net: Any) -> None:
    with st.no_grad():
        for p in net.parameters():
            p.mul_(0.9)


INSIDE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nothing": lambda net, opt, box: None,
    "zero_grad": lambda net, opt, box: opt.zero_grad(),
    "zero_grad to zeros": lambda net, opt, box: opt.zero_grad(set_to_none=False),
    "zero_grad of the net": lambda net, opt, box: net.zero_grad(),
    "none": lambda net, opt, box: setattr(net[0].weight, "grad", None),
    "halved in place": lambda net, opt, box: _halved(net),
    "halved": lambda net, opt, box: _scaled(net),
    "made": lambda net, opt, box: _made(net),
    "decayed": lambda net, opt, box: _decayed(net),
    "clipped": lambda net, opt, box: nn.utils.clip_grad_norm_(_each(net), 1.0),
    "stepped": lambda net, opt, box: opt.step(),
    "stepped and zeroed": lambda net, opt, box: (opt.step(), opt.zero_grad()),
    "stored": lambda net, opt, box: setattr(box, "last", net[0].weight.detach() * 0.1),
}  # fmt: skip


@pytest.mark.parametrize("step_outside", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.1], ids=["fixed", "varying"])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("act", INSIDE)
def test_losses_that_are_differentiated_outside(
    act: str, batch_norm: bool, factor: float, step_outside: bool
) -> None:
    seen: list[list[Any]] = []
    for way in (lambda f: f, st.compile):
        st.manual_seed(0)
        layers = nn.Linear(3, 4), nn.BatchNorm1d(4) if batch_norm else nn.Tanh(), nn.Linear(4, 1)
        net, box = nn.Sequential(*layers), Box()
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        box.k, box.last = 1.0, st.zeros(1)  # type: ignore[attr-defined]

        def f(x: Any, net: Any = net, opt: Any = opt, box: Any = box) -> Any:
            INSIDE[act](net, opt, box)
            out = net(x) * box.k
            return {"loss": (out**2).mean(), "out": out}

        g, rng = way(f), np.random.default_rng(0)
        seen.append([])
        for call in range(4):
            box.k = 1.0 + factor * call  # type: ignore[attr-defined]
            made = g(st.tensor(rng.standard_normal((5, 3)).astype(np.float32)))
            made["loss"].backward()
            held = [*net.parameters(), *net.buffers(), box.last, *made.values()]  # type: ignore[attr-defined]
            seen[-1] += [x.detach().numpy().copy() for x in held]
            seen[-1] += [None if p.grad is None else p.grad.numpy().copy() for p in net.parameters()]
            if step_outside:
                opt.step()
                opt.zero_grad()
    for a, b in zip(*seen, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# -- what is asked of tensors without computing with them ----------------------------------------------------
def test_whether_tensors_take_gradients_is_guarded_where_nothing_is_computed_of_them() -> None:
    single, net, box = st.ones(1).requires_grad_(), nn.Linear(2, 2), Box()
    box.held = st.ones(1)  # type: ignore[attr-defined]

    def asked() -> list[bool]:
        held = box.held.requires_grad  # type: ignore[attr-defined]
        return [single.requires_grad, any(p.requires_grad for p in net.parameters()), held, net.bias.is_leaf]

    f = st.compile(lambda x: (x * sum(2.0**k for k, yes in enumerate(asked()) if yes)).sum())
    changes = [
        lambda: single.requires_grad_(False), lambda: net.requires_grad_(False),
        lambda: box.held.requires_grad_(), lambda: net.weight.requires_grad_(True),  # type: ignore[attr-defined]
    ]  # fmt: skip
    for change in [*changes, *changes]:
        change()
        for _ in range(2):
            assert f(st.ones(1)).item() == sum(2.0**k for k, yes in enumerate(asked()) if yes)


def test_tensors_in_an_array_of_objects_are_written_there_by_each_call() -> None:
    items = np.empty(2, object)
    items[0] = st.zeros(2)
    f = st.compile(lambda x: items.__setitem__(0, items[0] + x))
    for call in range(4):
        f(st.ones(2))
        assert items[0].tolist() == [call + 1] * 2
        assert items[1] is None


def test_a_cache_that_was_cleared_and_filled_again_is_noticed() -> None:
    value = [0.5]
    cached = functools.lru_cache(lambda: value[0])
    f = st.compile(lambda x: x + cached())
    for call in range(9):
        value[0] = (0.5, 1.5, 0.5, 2.5)[call % 4]
        if call % 3 == 1:
            cached.cache_clear()
        assert f(st.zeros(1)).item() == cached()


def test_metrics_are_given_what_tensors_hold_when_they_are_called() -> None:
    first, second, held = st.metrics.MeanMetric(), st.metrics.MeanMetric(), st.zeros(3)

    def f(x: Any, y: Any) -> Any:
        first.update(x)
        second.update(y * 2)
        x.add_(1)
        first.update(x)
        held.copy_(x)
        second.update(held)
        held.mul_(0)
        return x

    compiled, seen = st.compile(f), []
    for g in (f, compiled):
        first.reset(), second.reset()
        seen.append([])
        for call in range(4):
            g(st.arange(3.0) + call, st.ones(3) * call)
            seen[-1] += [first.compute(), second.compute()]
    np.testing.assert_allclose(*seen)
    assert compiled.captures == 1


# -- false alarms --------------------------------------------------------------------------------------------
MADE: list[str] = []


def _made_number() -> float:
    MADE.append("q")
    return 5.0


class _Filling(dict[str, float]):
    def __missing__(self, key: str) -> float:
        self[key] = _made_number()
        return self[key]


class _Missing(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return _made_number()


class _Ordered(collections.OrderedDict[str, float]):
    def __missing__(self, key: str) -> float:
        return _made_number()


DEFAULTS: dict[str, Callable[[], dict[str, float]]] = {
    "defaultdict": lambda: collections.defaultdict(_made_number), "Counter": collections.Counter,
    "filling": _Filling, "missing": _Missing, "ordered": _Ordered,
}  # fmt: skip


def _looks_up(kind: str, way: Callable[..., Any]) -> list[Any]:
    table, found = DEFAULTS[kind](), []
    MADE.clear()
    f = way(lambda x: x + table["q"])
    for call in range(13):
        found.append((f(st.ones(1)).item(), dict(table), len(MADE)))
        if call in (3, 6):
            table["q"] = float(call)
        elif call % 2 == 0:
            table.pop("q", None)
    return found


@each_way
@pytest.mark.parametrize("kind", DEFAULTS)
def test_guards_do_not_make_the_entries_that_they_look_for(kind: str, way: str) -> None:
    assert _looks_up(kind, WAYS[way]) == _looks_up(kind, lambda f: f)


def test_a_state_dict_of_values_that_a_function_computes_is_refused_by_its_name() -> None:
    net = nn.Linear(2, 2)
    before = net.weight.tolist()

    @st.compile
    def f(x: Any) -> Any:
        net.load_state_dict({"weight": net.weight * x, "bias": net.bias * x})
        return net(x)

    with pytest.raises(CaptureError, match="load_state_dict") as refused:
        f(st.full((2,), 3.0))
    assert "copy_" in refused.value.hint and net.weight.tolist() == before

    @st.compile
    def g(x: Any) -> Any:
        with st.no_grad():
            net.weight.copy_(net.weight * x)
        return net(x).detach()

    g(st.full((2,), 3.0))
    np.testing.assert_array_equal(np.asarray(net.weight), np.float32(3) * np.asarray(before, np.float32))
