"""Weak references: captures keep nothing alive by them, and see at once when an object died."""

import collections
import gc
import itertools
import operator
import weakref

import pytest
from capture_ways import GUARDS_NOTICE, WAYS

import stratal as st
from stratal.base.errors import CaptureError

pytestmark = GUARDS_NOTICE
compiled = WAYS["not audited"]


def one(k):
    return st.full((1,), float(k))


class Thing:
    def __init__(self, k):
        self.k = k


@pytest.mark.parametrize("held", [dict, collections.UserDict, collections.OrderedDict])
def test_captures_keep_no_object_alive_that_they_were_asked_of_weakly(held):
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


def test_a_weakly_held_object_that_is_gone_is_not_every_none_that_is_read():
    weak, nothing = weakref.ref(Thing(2.0)), None
    f = compiled(lambda x: x * (7.0 if weak() is None and nothing is None else 1.0))
    assert [f(one(1)).item(), f(one(1)).item()] == [7, 7]


WAYS_TO_ASK = {
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
def test_that_a_weakly_held_object_has_died_is_seen_at_once(way, kind):
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
    def double(self): ...


@pytest.mark.parametrize("held", [lambda: one(3.0), lambda: st.nn.Linear(1, 1)])
def test_a_program_computes_with_no_tensor_that_it_asks_of_a_weak_reference(held):
    thing = held()
    weak = weakref.ref(thing)
    f = compiled(lambda x: x * (weak() if isinstance(thing, st.Tensor) else weak().weight))
    with pytest.raises(CaptureError, match="keep alive"):
        f(one(1))


class Valued:
    v = 2.0

    def doubled(self):
        return self.v * 2

    @property
    def halved(self):
        return self.v / 2


READ_WEAKLY = {
    "of the class": lambda o: o.v, "method": lambda o: o.doubled(), "property": lambda o: o.halved,
    "class": lambda o: type(o).v, "isinstance": lambda o: 2.0 * isinstance(o, Valued),
    "vars": lambda o: vars(o).get("v", 5.0), "attribute": lambda o: o.own, "nothing": lambda o: 1.0,
    "getattr": lambda o: getattr(o, "missing", 4.0), "written": lambda o: (setattr(o, "n", 1.0), o.n)[1],
}  # fmt: skip


@pytest.mark.parametrize("read", READ_WEAKLY)
def test_objects_that_are_asked_of_weakly_die_when_nobody_else_holds_them(read):
    for way in (compiled, st.compile):
        held = Valued()
        held.own = 3.0
        weak = weakref.ref(held)

        def f(x, weak=weak):
            o = weak()
            return x * (100.0 if o is None else READ_WEAKLY[read](o))

        g = way(f)
        for k in range(8):
            assert g(one(1)).item() == f(one(1)).item()
            if k == 3:
                del held  # and no collector has to find it
                assert weak() is None
