"""Families of programs that compiled functions once got wrong without a word: right, or refused, in each."""

from __future__ import annotations

import collections
import functools
import gc
import io
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError, NotDifferentiableError

pytestmark = [
    pytest.mark.filterwarnings("ignore::stratal.tensor.capture.recaptures.RecompileWarning"),
    pytest.mark.filterwarnings("error::stratal.tensor.capture.audit.AuditWarning"),
]
compiled = functools.partial(st.compile, audit=False)
WAYS = [lambda f: f, compiled]


def one(k: float) -> st.Tensor:
    return st.full((1,), float(k))


# -- iterators from outside ----------------------------------------------------------------------------------
ITERATORS = {
    "iter": lambda: iter([1.0, 2.0, 3.0]),
    "reversed": lambda: reversed([1.0, 2.0, 3.0]),
    "zip": lambda: zip([1.0, 2.0], [3.0, 4.0], strict=True),
    "map": lambda: map(float, [1, 2, 3]),
    "filter": lambda: filter(None, [1.0, 2.0]),
    "enumerate": lambda: enumerate([1.0, 2.0]),
    "chain": lambda: itertools.chain([1.0], [2.0]),
    "islice": lambda: itertools.islice([1.0, 2.0], 2),
    "generator": lambda: (float(k) for k in range(3)),
    "dict": lambda: iter({1.0: 2.0}),
    "groupby": lambda: itertools.groupby([1.0, 1.0]),
}
CONSUMED = {
    "next": lambda it: next(it),
    "next with a default": lambda it: next(it, None),
    "list": lambda it: list(it),
    "star": lambda it: [*it],
    "for": lambda it: [None for _ in it],
    "unpacked": lambda it: (lambda first, *rest: first)(*it),
    "sum": lambda it: len(tuple(it)),
    "any": lambda it: any(it),
    "zip": lambda it: list(zip(it, [1.0], strict=False)),
    "map": lambda it: list(map(str, it)),
    "yield from": lambda it: list(_passed_on(it)),
    "method": lambda it: it.__next__(),
    "sorted": lambda it: len(sorted(it, key=str)),
}


def _passed_on(it: Any) -> Any:
    yield from it


@pytest.mark.parametrize("way", CONSUMED)
@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_from_outside_is_refused_however_it_is_used(kind: str, way: str) -> None:
    kept, box = ITERATORS[kind](), [ITERATORS[kind]()]
    for read in (lambda: kept, lambda: box[0]):
        f = compiled(lambda x, read=read: (CONSUMED[way](read()), x * 1)[1])
        with pytest.raises(CaptureError, match="iterator from outside"):
            f(one(1))
    assert len(list(kept)) == len(list(ITERATORS[kind]())), "the refused call has taken an item"


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_bound_next_of_an_iterator_from_outside_is_refused(kind: str) -> None:
    it = ITERATORS[kind]()
    for take in (it.__next__, functools.partial(next, it)):
        f = compiled(lambda x, take=take: (take(), x * 1)[1])
        with pytest.raises(CaptureError, match="iterator from outside"):
            f(one(1))


# -- arrays of NumPy's among the arguments -------------------------------------------------------------------
COMPUTED = {
    "method": lambda a: a.std(),
    "function": lambda a: np.mean(a),
    "operator": lambda a: a / 2,
    "between arrays": lambda a: a * a,
    "item": lambda a: a[0],
    "item set": lambda a: a.__setitem__(0, 5.0),
    "in place": lambda a: a.__iadd__(1),
    "float": lambda a: float(a[0]),
    "iteration": lambda a: [None for _ in a],
    "class": lambda a: isinstance(a, np.ndarray),
    "dtype": lambda a: str(a.dtype),
    "identity": lambda a: a is None,
    "truth": lambda a: bool(a.all()),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_numpy_computes_of_an_argument_is_refused(kind: str) -> None:
    f = compiled(lambda x, a: (COMPUTED[kind](a), x * 1)[1])
    a = np.array([1.0, 2.0])
    with pytest.raises(CaptureError, match="array that is an argument"):
        f(one(1), a)
    assert a.tolist() == [1.0, 2.0]


def test_an_array_of_another_shape_is_still_an_array() -> None:
    f = compiled(lambda x, a, b: st.cat([a.reshape(-1), b.ravel()]).sum() + (x * a.flatten()).sum())
    for k in range(3):
        a, b = np.ones((1, 2)) * k, np.ones((2, 1))
        assert f(one(2), a, b).item() == 2 * k + 2 + 4 * k
    with pytest.raises(CaptureError, match="array that is an argument"):
        compiled(lambda x, a: x * a.reshape(-1).std())(one(1), np.ones((1, 2)))


def test_an_array_that_is_an_argument_is_an_input_where_stratal_takes_it() -> None:
    f = compiled(lambda x, a: (x * a + st.tensor(a).std() + a.shape[0], a))
    for k in range(4):
        a = np.array([1.0, 2.0 + k])
        value, same = f(st.ones(2), a)
        assert same is a and np.allclose(value.numpy(), a + a.std(ddof=1) + 2)
    assert f.captures == 1


@pytest.mark.parametrize(
    ("make", "read", "write"),
    [
        (lambda k: np.array([[k]], object), lambda a: a[0, 0], lambda a, k: a.__setitem__((0, 0), k)),
        (lambda k: np.array([(k,)], "f8,"), lambda a: float(a["f0"][0]), lambda a, k: a["f0"].fill(k)),
        (lambda k: np.array([f"{k}"]), lambda a: float(str(a[0])), lambda a, k: a.__setitem__(0, f"{k}")),
    ],
    ids=["objects", "records", "text"],
)
def test_arrays_of_other_things_are_objects(make: Any, read: Any, write: Any) -> None:
    f = compiled(lambda x, a: x * read(a))
    assert [f(one(1), make(float(k))).item() for k in range(3)] == [0, 1, 2]
    a = make(1.0)
    for k in (1.0, 2.0, 2.0, 3.0):
        write(a, k)
        assert f(one(1), a).item() == k


def test_new_arrays_are_new_in_each_call() -> None:
    held = np.zeros(2)
    f = compiled(lambda x: (x * 1, np.ones(2)))
    first, second = f(one(1))[1], f(one(1))[1]
    first[:] = 7
    assert second.tolist() == f(one(1))[1].tolist() == [1, 1]
    with pytest.raises(CaptureError, match="view of an array"):
        compiled(lambda x: (x * 1, held[1:]))(one(1))


@pytest.mark.parametrize(
    "make", [lambda: iter([1]), itertools.count, lambda: (k for k in range(2)), io.StringIO, lambda: Thing],
    ids=["iterator", "count", "generator", "stream", "class"],
)  # fmt: skip
def test_new_objects_that_are_used_up_are_not_shared_by_calls(make: Any) -> None:
    f = compiled(lambda x: (x * 1, make()))
    try:
        found = f(one(1))[1], f(one(1))[1]
    except CaptureError as error:
        assert "new" in error.rule and error.hint
    else:
        made = make()
        assert (found[0] is found[1]) == (found[0] is made), "made anew, but for the same"
        if made is not found[0] and hasattr(made, "__next__"):
            assert [next(x, None) for x in found] == [next(made, None)] * 2


# -- what is equal, and another value ------------------------------------------------------------------------
EQUAL = [(0.0, -0.0), (1, True), (1, 1.0), (0j, complex(0, -0.0)), ((1,), (1.0,)), ((0.0,), (-0.0,))]


@pytest.mark.parametrize("was,now", EQUAL)
@pytest.mark.parametrize("place", ["variable", "attribute", "item", "list"])
def test_an_equal_value_of_another_kind_is_written(place: str, was: Any, now: Any) -> None:
    thing, table, items, variable = type("Thing", (), {})(), {}, [None], None

    def f(x: st.Tensor) -> st.Tensor:
        nonlocal variable
        variable = thing.k = table["k"] = items[0] = now
        return x * 1

    g = compiled(f)
    for _ in range(3):
        variable = thing.k = table["k"] = items[0] = was
        g(one(1))
        found = {"variable": variable, "attribute": thing.k, "item": table["k"], "list": items[0]}[place]
        assert repr(found) == repr(now)


# -- gradients of arguments ----------------------------------------------------------------------------------
GRADIENTS = {
    "made": lambda w, x: (w * x).sum().backward(),
    "made anew": lambda w, x: (setattr(w, "grad", None), (w * x).sum().backward()),
    "assigned": lambda w, x: setattr(w, "grad", x * 2),
    "linked": lambda w, x: setattr(w, "grad", x),
    "removed": lambda w, x: setattr(w, "grad", None),
    "changed in place": lambda w, x: w.grad.mul_(3),
    "read": lambda w, x: x.mul_(w.grad),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_of_arguments_are_those_of_the_call(kind: str) -> None:
    def program(way: Any) -> Any:
        f = way(lambda w, x: (GRADIENTS[kind](w, x), x * 1)[1])
        kept = [one(k + 1).requires_grad_(True) for k in range(2)]
        for k in range(6):
            w = kept[k % 2] if k < 4 else one(k).requires_grad_(True)
            if w.grad is None:
                w.grad = one(10 * k + 1)
            x = one(k + 2)
            yield f(w, x).tolist(), x.tolist(), None if w.grad is None else w.grad.tolist(), w.grad is x

    assert list(program(compiled)) == list(program(lambda f: f))


def test_a_result_that_took_part_in_a_gradient_says_so_and_cannot_lose_its_history() -> None:
    w = nn.Parameter(one(2))

    @compiled
    def step(x: st.Tensor) -> st.Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss

    other = compiled(lambda a: (a * w).sum().backward())
    for k in range(3):
        loss = step(one(k))
        assert loss.requires_grad
        for use in (lambda loss=loss: (loss + w.sum()).backward(), lambda loss=loss: other(loss)):
            with pytest.raises(NotDifferentiableError, match="used up"):
                use()
        assert not loss.detach().requires_grad


# -- warnings ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore"])
def test_warnings_are_given_by_each_call_as_filters_say(action: str) -> None:
    def program(way: Any) -> list[list[tuple[str, str]]]:
        @way
        def f(x: st.Tensor) -> st.Tensor:
            for _ in range(2):
                warnings.warn(f"told {way is compiled}", UserWarning, stacklevel=1)
            return x * 1

        found = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            for k in range(4):
                f(one(k))
                found.append([(w.category.__name__, str(w.message)[:4]) for w in caught])
        return found

    assert program(compiled) == program(lambda f: f)


def test_a_warning_that_is_an_error_is_raised_by_each_call() -> None:
    done = []

    @compiled
    def f(x: st.Tensor) -> st.Tensor:
        done.append(1)
        warnings.warn("told", UserWarning, stacklevel=1)
        done.append(2)
        return x * 1

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        f(one(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(UserWarning, match="told"):
                f(one(1))
    assert done == [1, 2, 1, 1, 1]


# -- weak references -----------------------------------------------------------------------------------------
class Thing:
    def __init__(self, k: float) -> None:
        self.k = k


@pytest.mark.parametrize("held", [dict, collections.UserDict, collections.OrderedDict])
def test_captures_keep_no_object_alive_that_they_were_asked_of_weakly(held: Any) -> None:
    things = held(k=Thing(2.0))
    weak = weakref.ref(things["k"])
    f = compiled(lambda x: x * (7.0 if weak() is None else weak().k))
    assert [f(one(1)).item(), f(one(1)).item()] == [2, 2]
    weak().k = 3.0
    assert f(one(1)).item() == 3
    things.clear()
    gc.collect()
    assert weak() is None and f(one(1)).item() == 7
    things["k"] = Thing(2.0)
    weak = weakref.ref(things["k"])
    strong = compiled(lambda x: x * (things["k"].k + weak().k))
    with pytest.raises(CaptureError, match="weak reference"):
        strong(one(1))


def test_a_weakly_held_object_that_is_gone_is_not_every_none_that_is_read() -> None:
    weak, nothing = weakref.ref(Thing(2.0)), None
    f = compiled(lambda x: x * (7.0 if weak() is None and nothing is None else 1.0))
    assert [f(one(1)).item(), f(one(1)).item()] == [7, 7]


WAYS_TO_ASK: dict[str, Callable[[Any, Any], object]] = {
    "call": lambda r, _: r() is None,
    "method": lambda r, _: r.__call__() is None,
    "of the class": lambda r, _: type(r).__call__(r) is None,
    "operator": lambda r, _: operator.call(r) is None,
    "map": lambda r, _: [*map(operator.call, [r])] == [None],
    "iter": lambda r, _: next(iter(r, 0)) is None,
    "starmap": lambda r, _: [*itertools.starmap(r, [()])] == [None],
    "text": lambda r, _: "dead" in f"{r}",
    "repr": lambda r, _: "dead" in repr(r),
    "equal": lambda r, other: r != other,
    "in": lambda r, other: r not in [other],
}


@pytest.mark.parametrize("way", WAYS_TO_ASK)
@pytest.mark.parametrize("kind", [weakref.ref, weakref.WeakMethod])
def test_that_a_weakly_held_object_has_died_is_seen_at_once(way: str, kind: Any) -> None:
    held = Doubling()
    weak, other = (kind(held if kind is weakref.ref else held.double, callback) for callback in (None, print))
    f = compiled(lambda x: x * (7.0 if WAYS_TO_ASK[way](weak, other) else 2.0))
    expected = [7 if WAYS_TO_ASK[way](weak, other) else 2] * 2
    assert [f(one(1)).item(), f(one(1)).item()] == expected
    del held
    gc.collect()
    assert weak() is None
    assert [f(one(1)).item(), f(one(1)).item()] == [7, 7]


class Doubling:
    def double(self) -> None: ...


@pytest.mark.parametrize("held", [lambda: one(3.0), lambda: st.nn.Linear(1, 1)])
def test_a_program_computes_with_no_tensor_that_it_asks_of_a_weak_reference(held: Any) -> None:
    thing = held()
    weak = weakref.ref(thing)
    f = compiled(lambda x: x * (weak() if isinstance(thing, st.Tensor) else weak().weight))
    with pytest.raises(CaptureError, match="keep alive"):
        f(one(1))


# -- containers that are one ---------------------------------------------------------------------------------
@pytest.mark.parametrize("order", list(itertools.product([True, False], repeat=4)))
@pytest.mark.parametrize("kind", [list, dict])
def test_an_argument_that_is_a_container_found_elsewhere(kind: Any, order: tuple[bool, ...]) -> None:
    def program(way: Any) -> Any:
        items = kind() if kind is list else {}

        @way
        def f(held: Any, x: st.Tensor) -> st.Tensor:
            if kind is list:
                held.append(float(len(items)))
                return x + 10 * len(items) + 100 * sum(held)
            held[len(items)] = 1.0
            return x + 10 * len(items) + 100 * len(held)

        for k, same in enumerate(order):
            items.clear()
            other = kind()
            yield f(items if same else other, one(k)).tolist(), list(items), list(other)

    assert list(program(compiled)) == list(program(lambda f: f))


# -- steps under a condition ---------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [functools.partial(optim.SGD, lr=0.1, momentum=0.9), optim.Adam])
@pytest.mark.parametrize("way", WAYS, ids=["uncompiled", "compiled"])
def test_an_optimizer_steps_in_a_branch(make: Any, way: Any) -> None:
    def program(step: Any, way: Any) -> Any:
        w = nn.Parameter(st.ones(2))
        opt = make([w])

        @way
        def f(x: st.Tensor) -> st.Tensor:
            opt.zero_grad()
            (w * x).sum().backward()
            step(x, opt)
            return w.detach() * 1

        return [f(st.full((2,), v)).tolist() for v in (1.0, 2.0, -1.0, 3.0, -2.0, 1.0)]

    branch = program(lambda x, opt: st.cond(x.sum() > 0, opt.step, lambda: None), way)
    assert branch == program(lambda x, opt: opt.step() if float(x.sum()) > 0 else None, lambda f: f)


@pytest.mark.parametrize("way", ["map", "zip", "loop", "unpacked", "star", "extended", "items"])
def test_arrays_are_handed_on_in_containers_to_functions_of_stratal(way: str) -> None:
    entropy = nn.functional.cross_entropy

    def function(x: st.Tensor, a: np.ndarray, b: np.ndarray) -> st.Tensor:
        if way == "map":
            return sum(map(entropy, (x, x * 2), (a, b)))
        if way == "zip":
            return sum(entropy(u, v) for u, v in zip((x, x * 2), [a, b], strict=True))
        if way == "loop":
            total = 0
            for v in [a, b]:
                total = total + entropy(x, v)
            return total
        if way == "unpacked":
            first, second = (a, b)
            return entropy(x, first) + entropy(x * 2, second)
        if way == "star":
            named = {"input": x * 2, "target": b}
            return entropy(*(x, a)) + entropy(**named)
        if way == "extended":
            return entropy(x, [*[a], b][0]) + entropy(x * 2, {"k": b}["k"])
        return sum(entropy(x * k, v) for k, v in {1: a, 2: b}.items())

    f = compiled(function)
    x = st.tensor([[1.0, 2.0, 0.5], [0.1, 0.2, 3.0]])
    for k in range(4):
        a, b = np.array([k % 3, 1]), np.array([2, k % 2])
        assert f(x, a, b).item() == pytest.approx(function(x, a, b).item())


class Valued:
    v: Any = 2.0

    def doubled(self) -> Any:
        return self.v * 2

    @property
    def halved(self) -> Any:
        return self.v / 2


READ_WEAKLY = {
    "of the class": lambda o: o.v, "method": lambda o: o.doubled(), "property": lambda o: o.halved,
    "class": lambda o: type(o).v, "isinstance": lambda o: 2.0 * isinstance(o, Valued),
    "vars": lambda o: vars(o).get("v", 5.0), "attribute": lambda o: o.own, "nothing": lambda o: 1.0,
    "getattr": lambda o: getattr(o, "missing", 4.0), "written": lambda o: (setattr(o, "n", 1.0), o.n)[1],
}  # fmt: skip


@pytest.mark.parametrize("read", READ_WEAKLY)
def test_objects_that_are_asked_of_weakly_die_when_nobody_else_holds_them(read: str) -> None:
    for way in (compiled, st.compile):
        held = Valued()
        held.own = 3.0
        weak = weakref.ref(held)

        def f(x: st.Tensor, weak: Any = weak) -> st.Tensor:
            o = weak()
            return x * (100.0 if o is None else READ_WEAKLY[read](o))

        g = way(f)
        for k in range(8):
            assert g(one(1)).item() == f(one(1)).item()
            if k == 3:
                del held  # and no collector has to find it
                assert weak() is None
