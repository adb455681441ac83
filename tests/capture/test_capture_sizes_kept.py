"""Sizes that end in Python's state, in results and in texts are numbers there."""

import collections
import contextlib
import dataclasses
import functools
import io
import operator
import types
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from capture_ways import SIZED_WAYS, WAYS, each_sized_way

import stratal as st
from stratal.base.types import TensorType

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit


class Box:
    """Attributes of any name."""


def _three(a, b, c):
    return a, b, c


# -- sizes that end in Python's state ------------------------------------------------------------------------
class Pair(NamedTuple):
    first: Any
    second: Any


class Sizes(tuple[Any, ...]):
    """A tuple with attributes."""


@dataclasses.dataclass(frozen=True)
class Record:
    n: Any
    shape: Any


class Slotted:
    __slots__ = ("n", "shape")


def _filled(box, x):
    box.n, box.shape = x.shape[0], x.shape
    return box


def _defaults(x):
    def f(n=x.shape, *, m=x.shape[0]):
        return n, m

    return f


def _closure(x):
    n, shape = x.shape[0], (x.shape,)
    return lambda: (n, shape)


def _shared_cell(x):
    n = x.shape

    def change():
        nonlocal n
        n = n[::-1]

    change()
    return lambda: n


def _attributed(x):
    def f():
        return f.n, f.shape

    return _filled(f, x)


class _Sized:
    def __init__(self, n):
        self.n = n

    def get(self):
        return self.n


def _cyclic(x):
    found = [x.shape]
    found.append((found, x.shape))
    return found


VALUES = {
    "x.shape": lambda x: x.shape, "x.size()": lambda x: x.size(), "tuple": lambda x: tuple(x.shape),
    "list": lambda x: list(x.shape), "unpacked": lambda x: (*x.shape, "a"), "a size": lambda x: x.shape[0],
    "len": len, "numel": lambda x: x.numel(), "nbytes": lambda x: x.nbytes,
    "type": lambda x: x.type, "types": lambda x: [(x.type, "a")], "type of a result": lambda x: (x + 1).type,
    "computed": lambda x: x.shape[0] * 2 + 1, "divided": lambda x: x.shape[0] / 2,
    "floor": lambda x: (x.shape[0] // 2,), "negative": lambda x: (-x.shape[0],),
    "of a result": lambda x: (x @ x.T).shape, "of a view": lambda x: x[1:].shape,
    "of a new tensor": lambda x: st.ones(x.shape[0], 2).shape, "reversed": lambda x: x.shape[::-1],
    "longer": lambda x: operator.add(x.shape, (1,)), "twice": lambda x: x.shape * 2,
    "nested": lambda x: ((1, (x.shape,)),),
    "in a list": lambda x: [(x.shape, 1)], "values": lambda x: {"n": x.shape},
    "keys": lambda x: {x.shape: 1}, "keys of dict()": lambda x: dict(zip([x.shape], [1], strict=True)),
    "fromkeys": lambda x: dict.fromkeys([x.shape, (x.shape[0],)]),
    "a set": lambda x: {x.shape}, "set()": lambda x: set(x.shape),
    "frozenset": lambda x: frozenset([x.shape]),
    "OrderedDict": lambda x: collections.OrderedDict(n=(x.shape,)),
    "Counter": lambda x: collections.Counter([x.shape]),
    "defaultdict": lambda x: collections.defaultdict(lambda: x.shape[0], n=x.shape),
    "deque": lambda x: collections.deque([x.shape], x.shape[0]),
    "MappingProxy": lambda x: types.MappingProxyType({"n": x.shape}),
    "slice": lambda x: slice(0, x.shape[0]), "slices": lambda x: (slice(x.shape[0]), ...),
    "range": lambda x: range(x.shape[0]), "zip": lambda x: [*zip(x.shape, "ab", strict=True)],
    "enumerate": lambda x: [*enumerate(x.shape)], "sorted": lambda x: sorted(x.shape),
    "max": lambda x: max(x.shape), "sum": lambda x: (sum(x.shape), max(x.shape)),
    "text": lambda x: f"{x.shape}", "repr": lambda x: repr(x.shape), "%": lambda x: "%s" % (x.shape,),  # noqa: UP031
    "text of a type": lambda x: f"{x.type}", "str of a type": lambda x: str((x.type, 1)),
    "joined": lambda x: ",".join(map(str, x.shape)), "an array": lambda x: np.array(x.shape),
    "product": lambda x: np.prod(x.shape), "named tuple": lambda x: Pair(x.shape[0], x.shape),
    "of a class": lambda x: Sizes(x.shape), "with attributes": lambda x: _filled(Sizes([1]), x),
    "record": lambda x: Record(x.shape[0], x.shape), "slots": lambda x: _filled(Slotted(), x),
    "attributes": lambda x: _filled(Box(), x), "namespace": lambda x: types.SimpleNamespace(n=(x.shape,)),
    "partial": lambda x: functools.partial(_three, x.shape, b=x.shape[0], c=1),
    "partial of a result": lambda x: functools.partial(_three, 1, 2, (x.T.shape,)),
    "bound": lambda x: _Sized(x.shape).get, "bound to a tuple": lambda x: x.shape.count,
    "defaults": _defaults, "closure": _closure, "cell": _shared_cell, "function": _attributed,
    "error": lambda x: ValueError(x.shape, x.shape[0]), "cyclic": _cyclic,
    "with a tensor": lambda x: (x * 2, x.shape), "weak": lambda x: (s := {x.shape}, weakref.ref(s))[0],
}  # fmt: skip


def _seen(value, depth=6):
    """Return what a value says to whoever looks at it, and of which types that is."""
    if depth == 0:
        return "..."
    if isinstance(value, dict | types.MappingProxyType):
        return type(value), [_seen(pair, depth - 1) for pair in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        rest = vars(value) if hasattr(value, "__dict__") else None
        return type(value), [_seen(x, depth - 1) for x in value], _seen(rest, depth - 1)
    if isinstance(value, set | frozenset):
        return type(value), [_seen(x, depth - 1) for x in sorted(value, key=repr)]
    if isinstance(value, slice):
        return _seen((value.start, value.stop, value.step), depth - 1)
    if isinstance(value, types.BuiltinFunctionType):
        return _seen(value.__self__, depth - 1)
    if callable(value) and not isinstance(value, TensorType):
        return _seen(value(), depth - 1)
    if isinstance(value, st.Tensor):
        return value.tolist(), _seen(vars(value) if hasattr(value, "__dict__") else None, depth - 1)
    if isinstance(value, Record | Slotted):
        return _seen([value.n, value.shape], depth - 1)
    if isinstance(value, BaseException):
        return type(value), _seen(value.args, depth - 1)
    if isinstance(value, Box | types.SimpleNamespace):
        return type(value), _seen(vars(value), depth - 1)
    return type(value), repr(value)


class Kept:
    """All the places there are."""

    shape: Any = None

    def __init__(self):
        self.log = []
        self.table = {}
        self.module = st.nn.Module()
        self.tensor = st.ones(1)
        self.deque = collections.deque(maxlen=2)
        self.array = np.array([None], dtype=object)


def _cell_of(value):
    def write(v):
        nonlocal value
        value = v

    write(value)


HELD = (0,)


def _global(kept, v):
    global HELD
    HELD = v


SINKS = {
    "returned": lambda kept, v: v, "in a tuple": lambda kept, v: (v, 1),
    "in a dict": lambda kept, v: {"v": [v]},
    "append": lambda kept, v: kept.log.append(v), "extend": lambda kept, v: kept.log.extend([v, (v,)]),
    "insert": lambda kept, v: kept.log.insert(0, v),
    "slice": lambda kept, v: kept.log.__setitem__(slice(0), [v]),
    "attribute": lambda kept, v: setattr(kept, "shape", v),
    "of a class": lambda kept, v: setattr(Kept, "shape", v),
    "item": lambda kept, v: kept.table.__setitem__("v", v),
    "setdefault": lambda kept, v: kept.table.setdefault("v", v),
    "update": lambda kept, v: kept.table.update(v=v), "deque": lambda kept, v: kept.deque.append((v, v)),
    "module": lambda kept, v: setattr(kept.module, "v", v), "global": _global,
    "of a new object": lambda kept, v: kept.log.append(Record(v, v)),
}  # fmt: skip


def _leaks(value, sink, way):
    global HELD
    HELD, Kept.shape = (0,), None
    kept, found = Kept(), []
    compiled = way(lambda x: sink(kept, value(x)))
    for n in (4, 3, 7, 5, 3, 4):
        made = compiled(st.ones(n, 2))
        places = vars(kept.module).get("v"), kept.deque, HELD, Kept.shape, vars(kept).get("shape")
        found.append([_seen(v) for v in (made, kept.log, kept.table, *places)])
    return found


@pytest.mark.parametrize("value", VALUES)
def test_sizes_are_numbers_once_they_are_returned_or_kept(value):
    make = VALUES[value]
    for sink in ("returned", "append", "attribute"):
        assert _leaks(make, SINKS[sink], WAYS["audited"]) == _leaks(make, SINKS[sink], lambda f: f), sink


@each_sized_way
@pytest.mark.parametrize("value", ["x.shape", "type", "closure", "partial", "slice"])
@pytest.mark.parametrize("sink", SINKS)
def test_wherever_they_are_kept(sink, value, way):
    make, keep = VALUES[value], SINKS[sink]
    assert _leaks(make, keep, SIZED_WAYS[way]) == _leaks(make, keep, lambda f: f)


# -- sizes that are said ------------------------------------------------------------------------------------
SAID = {
    "a size": lambda x: x.shape[0], "a shape": lambda x: x.shape, "a type": lambda x: x.type,
    "in a list": lambda x: [(x.shape,)], "text": lambda x: f"{x.shape[0]:>4}", "a tensor": lambda x: x * 1,
    "joined": lambda x: "x".join(map(str, x.shape)),
    "a tensor and a size": lambda x: f"{x.sum()} of {len(x)}",
}  # fmt: skip


@each_sized_way
@pytest.mark.parametrize("value", SAID)
def test_sizes_are_numbers_where_they_are_said(value, way):
    def f(x):
        print(SAID[value](x))
        print("size", SAID[value](x), sep=":", end=";\n")
        return x * 2

    def said(g):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for n in (4, 3, 7, 5, 3):
                g(st.ones(n, 2))
        return out.getvalue()

    assert said(SIZED_WAYS[way](f)) == said(f)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("value", ["a size", "a shape", "a type", "text", "joined"])
def test_sizes_are_numbers_in_warnings_and_errors(value):
    def warns(x):
        warnings.warn(UserWarning(SAID[value](x)), stacklevel=1)
        return x * 2

    def raises(x):
        raise ValueError(SAID[value](x))

    def said(f, x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                f(x)
            except ValueError as error:
                return error.args
        return [(str(w.message), w.message.args) for w in caught]

    for f in (warns, raises):
        compiled = st.compile(f)
        for n in (4, 3, 7, 5, 3):
            assert said(compiled, st.ones(n, 2)) == said(f, st.ones(n, 2))


def test_sizes_in_an_array_of_objects_are_numbers():
    items = np.empty(3, object)

    @st.compile
    def f(x):
        items[0], items[1:] = x.shape, x.shape
        return x * 2

    for n in (4, 3, 7, 5, 3):
        f(st.ones(n, 2))
        assert repr(items.tolist()) == repr([(n, 2), n, 2])
