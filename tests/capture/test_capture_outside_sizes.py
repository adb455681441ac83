"""Sizes that change, in programs by people who knew the documentation alone: errors that functions catch, and
sizes that end in Python's state.
"""

from __future__ import annotations

import ast
import bisect
import collections
import contextlib
import copy
import dataclasses
import decimal
import fractions
import functools
import io
import itertools
import json
import math
import operator
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from capture_ways import WAYS as TWO_WAYS

import stratal as st
from stratal.base.types import TensorType

WAYS = TWO_WAYS | {"for all sizes": functools.partial(st.compile, audit=False, dynamic=True)}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    """A guard notices, not an audit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Box:
    """Attributes of any name."""


# -- errors that a function catches --------------------------------------------------------------------------
# Each fits some of the sizes, and no bounds say which.
FITS: dict[str, Callable[[Any], Any]] = {
    "x @ ones(3)": lambda x: (x @ st.ones(3)).sum(),
    "ones(2, 3) @ x": lambda x: (st.ones(2, 3) @ x).sum(),
    "x + ones(3)": lambda x: (x + st.ones(3)).sum(),
    "x.add_(ones(3))": lambda x: (x * 1).add_(st.ones(3)).sum(),
    "view(-1, 2)": lambda x: x.view(-1, 2).sum(),
    "reshape(3, -1)": lambda x: x.reshape(3, -1).sum(),
    "reshape(2, 3)": lambda x: x.reshape(2, 3).sum(),
    "y[0:3] = x": lambda x: st.zeros(5).__setitem__(slice(0, 3), x) or x.sum(),
    "copy_": lambda x: st.zeros(3).copy_(x).sum(),
    "stack": lambda x: st.stack([x, st.ones(3)]).sum(),
    "cat": lambda x: st.cat([x.reshape(1, -1), st.ones(1, 3)]).sum(),
    "expand": lambda x: x.expand(4, 3).sum(),
    "broadcast_to": lambda x: st.broadcast_to(x, (2, 3)).sum(),
    "split": lambda x: st.split(x, [1, 2])[0].sum(),
    "chunk": lambda x: st.chunk(x, 3)[2].sum(),
    "unflatten": lambda x: x.unflatten(0, (3, -1)).sum(),
    "x[4]": lambda x: x[4] + x.sum(),
    "x[-4]": lambda x: x[-4] + x.sum(),
    "narrow": lambda x: x.narrow(0, 1, 3).sum(),
    "squeeze": lambda x: x.squeeze(0) * st.ones(2, 1, 1),
    "where": lambda x: st.where(x > 0, st.ones(3), st.zeros(3)).sum(),
    "einsum": lambda x: st.einsum("i,i->", x, st.ones(3)),
    "dot": lambda x: st.dot(x, st.ones(3)),
    "outer and add": lambda x: (st.outer(x, x) + st.ones(3, 3)).sum(),
    "mse_loss": lambda x: st.nn.functional.mse_loss(x, st.zeros(3), reduction="sum") * 3,
    "linear": lambda x: st.nn.functional.linear(x, st.ones(1, 3)).sum(),
    "layer_norm": lambda x: st.nn.functional.layer_norm(x, (3,)).sum() + x.sum(),
    "topk": lambda x: st.topk(x, 3)[0].sum(),
    "unfold": lambda x: x.unfold(0, 4, 1).sum(),
    "list of that length": lambda x: x.sum() * [1, 2, 3, 4, 5][x.shape[0]],
    "bytes of that length": lambda x: x.sum() * len(bytes(4 - x.shape[0])),
    "a method of ints": lambda x: x.sum() * x.shape[0].bit_length(),
    "an operator of ints": lambda x: x.sum() * (x.shape[0] & 1),
    "1 divided by it": lambda x: x.sum() * (1 // (x.shape[0] - 3)),
    "unpacked": lambda x: sum((k * y for k, y in enumerate(_three(*x))), st.zeros(())),
    "a number": lambda x: x.sum() * int(x.shape[0] == 3),
    "range": lambda x: sum((x[k] for k in range(x.shape[0])), st.zeros(())),
}  # fmt: skip
SIZES = (2, 3, 4, 6, 3, 5, 3, 8, 1, 2)


def _three(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return a, b, c


def _excepts(op: Callable[..., Any], x: Any) -> Any:
    try:
        return op(x)
    except Exception:
        return x.sum() * 100


def _suppressed(op: Callable[..., Any], x: Any) -> Any:
    y = x.sum() * 100
    with contextlib.suppress(Exception):
        y = op(x)
    return y


def _returned(op: Callable[..., Any], x: Any) -> Any:
    y = x.sum() * 100
    try:
        y = op(x)
    finally:
        return y  # noqa: B012


class _Swallowing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> bool:
        return True


def _in_a_block(op: Callable[..., Any], x: Any) -> Any:
    with _Swallowing():
        return op(x)
    return x.sum() * 100


def _in_another_function(op: Callable[..., Any], x: Any) -> Any:
    def inner() -> Any:
        try:
            return op(x)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise KeyError from error

    try:
        return inner()
    except KeyError:
        return x.sum() * 100


def _in_a_generator(op: Callable[..., Any], x: Any) -> Any:
    def each() -> Iterator[Any]:
        try:
            yield op(x)
        except Exception:
            yield x.sum() * 100

    return next(each())


def _mapped(op: Callable[..., Any], x: Any) -> Any:
    try:
        return next(iter(map(op, [x])))
    except Exception:
        return x.sum() * 100


CATCHES = (_excepts, _suppressed, _returned, _in_a_block, _in_another_function, _in_a_generator, _mapped)


def _counted(op: Callable[..., Any], catch: Callable[..., Any], compile_: Callable[..., Any]) -> list[Any]:
    count, box = st.zeros(1), Box()

    def f(x: Any) -> Any:
        y = catch(op, x)
        count.add_(1)
        box.last = y  # type: ignore[attr-defined]
        return y + count.sum()

    compiled = compile_(f)
    found = []
    for n in SIZES:
        made = compiled(st.arange(1.0, n + 1))
        found.append((made.tolist(), box.last.tolist(), count.tolist()))  # type: ignore[attr-defined]
    return found


@each_way
@pytest.mark.parametrize("op", FITS)
def test_an_error_that_is_caught_holds_for_its_size_alone(op: str, way: str) -> None:
    assert _counted(FITS[op], _excepts, WAYS[way]) == _counted(FITS[op], _excepts, lambda f: f)


SOME = ("x @ ones(3)", "view(-1, 2)", "x[4]", "a method of ints", "range", "1 divided by it")


@pytest.mark.parametrize("op", SOME)
@pytest.mark.parametrize("catch", CATCHES)
def test_however_it_is_caught(catch: Callable[..., Any], op: str) -> None:
    assert _counted(FITS[op], catch, st.compile) == _counted(FITS[op], catch, lambda f: f)


def test_what_a_function_does_once_it_caught_an_error_is_taken_back() -> None:
    log: list[Any] = []

    @st.compile
    def f(x: Any) -> Any:
        try:
            return x.sum() * isinstance(x.shape[0], int)
        except Exception as error:
            log.append(error)
            return x.sum() * 100

    for n in SIZES:
        assert f(st.ones(n)).item() == n
    assert not log


def _caught_of_its_own(x: Any) -> Any:
    try:
        if x.ndim == 1:
            raise ValueError
    except ValueError:
        return x * 2
    return x


def _caught_look_ups(x: Any) -> Any:
    found = 0
    for look in (lambda: {}["a"], lambda: Box().none, lambda: [][0], lambda: next(iter(()))):
        try:
            look()
        except (LookupError, AttributeError, StopIteration):
            found += 1
    return x * found


@pytest.mark.parametrize("f", [_caught_of_its_own, _caught_look_ups])
def test_errors_that_no_size_decides_cost_no_capture(f: Callable[..., Any]) -> None:
    compiled = st.compile(f)
    for n in range(2, 12):
        assert compiled(st.ones(n)).tolist() == f(st.ones(n)).tolist()
    assert compiled.captures == 2


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


def _filled(box: Any, x: Any) -> Any:
    box.n, box.shape = x.shape[0], x.shape
    return box


def _defaults(x: Any) -> Any:
    def f(n: Any = x.shape, *, m: Any = x.shape[0]) -> Any:
        return n, m

    return f


def _closure(x: Any) -> Any:
    n, shape = x.shape[0], (x.shape,)
    return lambda: (n, shape)


def _shared_cell(x: Any) -> Any:
    n = x.shape

    def change() -> Any:
        nonlocal n
        n = n[::-1]

    change()
    return lambda: n


def _attributed(x: Any) -> Any:
    def f() -> Any:
        return f.n, f.shape  # type: ignore[attr-defined]

    return _filled(f, x)


class _Sized:
    def __init__(self, n: Any) -> None:
        self.n = n

    def get(self) -> Any:
        return self.n


def _cyclic(x: Any) -> Any:
    found: list[Any] = [x.shape]
    found.append((found, x.shape))
    return found


VALUES: dict[str, Callable[[Any], Any]] = {
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


def _seen(value: Any, depth: int = 6) -> Any:
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

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.table: dict[Any, Any] = {}
        self.module = st.nn.Module()
        self.tensor = st.ones(1)
        self.deque: collections.deque[Any] = collections.deque(maxlen=2)
        self.array = np.array([None], dtype=object)


def _cell_of(value: Any) -> None:
    def write(v: Any) -> None:
        nonlocal value
        value = v

    write(value)


HELD = (0,)


def _global(kept: Kept, v: Any) -> None:
    global HELD
    HELD = v


SINKS: dict[str, Callable[[Kept, Any], Any]] = {
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


def _leaks(value: Callable[..., Any], sink: Callable[..., Any], way: Callable[..., Any]) -> list[Any]:
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
def test_sizes_are_numbers_once_they_are_returned_or_kept(value: str) -> None:
    make = VALUES[value]
    for sink in ("returned", "append", "attribute"):
        assert _leaks(make, SINKS[sink], WAYS["audited"]) == _leaks(make, SINKS[sink], lambda f: f), sink


@each_way
@pytest.mark.parametrize("value", ["x.shape", "type", "closure", "partial", "slice"])
@pytest.mark.parametrize("sink", SINKS)
def test_wherever_they_are_kept(sink: str, value: str, way: str) -> None:
    make, keep = VALUES[value], SINKS[sink]
    assert _leaks(make, keep, WAYS[way]) == _leaks(make, keep, lambda f: f)


# -- what a function asks of sizes ---------------------------------------------------------------------------
TABLE: dict[Any, float] = {(4, 2): 2.0, 4: 3.0, ((4,),): 4.0, "(4, 2)": 5.0, frozenset([4]): 6.0, "4": 7.0}


def _matched(x: Any) -> float:
    match x.shape:
        case (4, _):
            return 2.0
        case (3 as n, int()):
            return n / 2
    return 3.0


def _in_a_class(x: Any) -> float:
    class Held:
        n = x.shape

    return 2.0 if Held.n == (4, 2) else 3.0


@functools.lru_cache
def _remembered(shape: Any) -> float:
    return 2.0 if shape == (4, 2) else 3.0


class _Equal:
    def __eq__(self, other: object) -> bool:
        return repr(other) == "4"

    __hash__ = None  # type: ignore[assignment]


ASKED: dict[str, Callable[[Any], float]] = {
    "get": lambda x: TABLE.get(x.shape, 1.0), "get a size": lambda x: TABLE.get(x.shape[0], 1.0),
    "nested": lambda x: TABLE.get((x.shape[:1],), 1.0),
    "frozenset": lambda x: TABLE.get(frozenset(x.shape[:1]), 1.0),
    "in keys": lambda x: (x.shape in TABLE) + 1.0, "in a list": lambda x: ((4, 2) in [x.shape]) + 1.0,
    "in a view": lambda x: (x.shape in TABLE.keys()) + 1.0,  # noqa: SIM118
    "contains": lambda x: TABLE.__contains__(x.shape) + 1.0, "text": lambda x: TABLE.get(str(x.shape), 1.0),
    "text of a size": lambda x: TABLE.get(f"{x.shape[0]}", 1.0),
    "mapped text": lambda x: TABLE.get("".join(map(str, x.shape[:1])), 1.0),
    "text of a type": lambda x: len(f"{x.type}") + 0.0,
    "text of types": lambda x: hash(str(x.type)) % 7 + 1.0,
    "a type in a set": lambda x: (x.type in {st.ones(4, 2).type}) + 1.0,
    "a type that is equal": lambda x: (x.type == st.ones(4, 2).type) + 1.0,
    "equal": lambda x: (x.shape == (4, 2)) + 1.0, "unequal": lambda x: (x.shape != (4, 2)) + 1.0,
    "NumPy's 4": lambda x: (x.shape[0] == np.int64(4)) + 1.0, "4j": lambda x: (x.shape[0] == 4 + 0j) + 1.0,
    "from the right": lambda x: (np.int64(4) == x.shape[0]) + 1.0,
    "NaN": lambda x: (x.shape[0] == math.nan) + 1.0,
    "of fractions": lambda x: (x.shape[0] == fractions.Fraction(4)) + 1.0,
    "of decimals": lambda x: (x.shape[0] == decimal.Decimal(4)) + 1.0,
    "less than NumPy's": lambda x: (x.shape[0] < np.int64(4)) + (x.shape[0] >= np.float32(3.5)) + 1.0,
    "less than a fraction": lambda x: (x.shape[0] < fractions.Fraction(7, 2)) + 1.0,
    "plus NumPy's": lambda x: float(x.shape[0] + np.int64(4)) + float(np.float32(1.5) * x.shape[0]),
    "as a dict": lambda x: float({**dict(zip(x.shape, "ab", strict=True))}.get(4) == "a") + 1.0,
    "in a set of an iterator": lambda x: (4 in {*iter(x.shape)}) + 1.0,
    "a set": lambda x: (4 in set(iter(x.shape))) + 1.0,
    "a frozenset": lambda x: (4 in frozenset(iter(x.shape))) + 1.0,
    "united": lambda x: (4 in {1} | {*x.shape}) + 1.0,
    "a set that is updated": lambda x: (s := {1}, s.update(iter(x.shape)), (4 in s) + 1.0)[2],
    "compared sets": lambda x: ({*x.shape} == {4, 2}) + 1.0, "subset": lambda x: ({4} <= {*x.shape}) + 1.0,
    "less": lambda x: (x.shape < (4, 2)) + 1.0, "operator": lambda x: operator.eq(x.shape[0], 4) + 1.0,
    "method": lambda x: x.shape[0].__eq__(4) + 1.0, "of a class": lambda x: (x.shape[0] == _Equal()) + 1.0,
    "hash": lambda x: hash(x.shape) % 7 + 1.0, "index": lambda x: x.shape.index(2) + 1.0,
    "count": lambda x: x.shape.count(4) + 1.0, "any": lambda x: any(n == 4 for n in x.shape) + 1.0,
    "matched": _matched, "class": _in_a_class, "remembered": lambda x: _remembered(x.shape),
    "isinstance": lambda x: isinstance(x.shape[0], int) + 1.0,
    "type": lambda x: (type(x.shape[0]) is int) + 1.0,
    "__class__": lambda x: (x.shape[0].__class__ is int) + 1.0,
    "hasattr": lambda x: hasattr(x.shape[0], "bit_length") + 1.0,
    "getattr": lambda x: getattr(x.shape[0], "real", 1) + 1.0,
    "attribute": lambda x: x.shape[0].numerator + 1.0, "callable": lambda x: callable(x.shape[0]) + 1.0,
    "dir": lambda x: ("bit_count" in dir(x.shape[0])) + 1.0,
    "min": lambda x: min(x.shape[0], 4) + 1.0, "sorted": lambda x: sorted([4, *x.shape])[1] + 1.0,
    "divmod": lambda x: divmod(x.shape[0], 3)[1] + 1.0, "round": lambda x: round(x.shape[0]) + 1.0,
    "abs": lambda x: abs(x.shape[0] - 5) + 1.0, "not": lambda x: (not x.shape[0] - 4) + 1.0,
    "or": lambda x: (x.shape[0] - 4 or 9) + 1.0, "plus": lambda x: +x.shape[0] + 1.0,
    "bits": lambda x: (x.shape[0] | 8) + 1.0, "power": lambda x: 2 ** x.shape[0] + 1.0,
    "complex": lambda x: complex(x.shape[0]).real + 1.0, "int": lambda x: int(x.shape[0]) + 1.0,
    "float": lambda x: float(x.shape[0]) + 1.0, "bool": lambda x: bool(x.shape[0] - 4) + 1.0,
    "math": lambda x: math.gcd(x.shape[0], 4) + math.sqrt(x.shape[0]) + math.prod(x.shape) + 1.0,
    "NumPy": lambda x: float(np.sum(x.shape)) + float(np.prod(x.shape)) + 1.0,
    "an array": lambda x: float(np.array(x.shape).max() + np.zeros(x.shape).size),
    "isin": lambda x: float(np.isin(4, x.shape)) + 1.0, "scalars": lambda x: float(np.float32(x.shape[0])),
    "nbytes": lambda x: x.nbytes + 1.0, "size": lambda x: x.size + 1.0, "numel": lambda x: x.numel() + 1.0,
    "json": lambda x: len(json.dumps(x.shape)) + 0.0,
    "dumped": lambda x: json.loads(json.dumps(x.shape))[0] + 1.0,
    "format": lambda x: float(f"{x.shape[0]:03d}"), "%": lambda x: float("%d" % x.shape[0]),  # noqa: UP031
    "parsed": lambda x: float(ast.literal_eval(repr(x.shape))[0]),
    "copied": lambda x: copy.deepcopy(x.shape)[0] + 1.0,
    "bisect": lambda x: bisect.bisect([1, 4, 9], x.shape[0]) + 1.0,
    "fraction": lambda x: float(fractions.Fraction(x.shape[0], 2)),
    "decimal": lambda x: float(decimal.Decimal(x.shape[0])),
    "reduce": lambda x: functools.reduce(operator.mul, x.shape) + 1.0,
    "itertools": lambda x: len([*itertools.product(*map(range, x.shape))]) + 1.0,
    "groupby": lambda x: len([*itertools.groupby([*x.shape, 4])]) + 1.0,
    "chained": lambda x: dict(itertools.zip_longest(x.shape, x.shape)).get(4, 9) + 1.0,
    "Counter": lambda x: collections.Counter([*x.shape, 4])[4] + 1.0,
    "attrgetter": lambda x: operator.itemgetter(0)(x.shape) + 1.0,
    "index()": lambda x: operator.index(x.shape[0]) + 1.0,
    "string times": lambda x: len("a" * x.shape[0]) + 1.0,
    "list times": lambda x: len([1] * x.shape[0]) + 1.0,
    "frozen": lambda x: st.frozen(float, x.shape[0]),
    "frozen list": lambda x: st.frozen(max, [*x.shape, 4]) + 0.0,
    "slices": lambda x: sum([1.0, 2.0, 3.0, 4.0, 5.0][: x.shape[0]]),
    "dict of sizes": lambda x: len(dict.fromkeys((*x.shape, 4), 1)) + 0.0,
    "set of sizes": lambda x: len({*x.shape, 4}) + 0.0,
    "as arguments": lambda x: len(set(range(*x.shape[:1]))) + 1.0,
}  # fmt: skip


@pytest.mark.parametrize("ask", ASKED)
def test_sizes_are_numbers_to_whoever_asks(ask: str) -> None:
    def f(x: Any) -> Any:
        return x.sum() * ASKED[ask](x)

    for way, make in WAYS.items():
        compiled = make(f)
        for n in (5, 3, 4, 7, 4, 2, 4):
            x = st.ones(n, 2)
            assert compiled(x).item() == pytest.approx(f(x).item()), (way, n)


SAID: dict[str, Callable[[Any], Any]] = {
    "a size": lambda x: x.shape[0], "a shape": lambda x: x.shape, "a type": lambda x: x.type,
    "in a list": lambda x: [(x.shape,)], "text": lambda x: f"{x.shape[0]:>4}", "a tensor": lambda x: x * 1,
    "joined": lambda x: "x".join(map(str, x.shape)),
    "a tensor and a size": lambda x: f"{x.sum()} of {len(x)}",
}  # fmt: skip


@each_way
@pytest.mark.parametrize("value", SAID)
def test_sizes_are_numbers_where_they_are_said(value: str, way: str) -> None:
    def f(x: Any) -> Any:
        print(SAID[value](x))
        print("size", SAID[value](x), sep=":", end=";\n")
        return x * 2

    def said(g: Callable[..., Any]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for n in (4, 3, 7, 5, 3):
                g(st.ones(n, 2))
        return out.getvalue()

    assert said(WAYS[way](f)) == said(f)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("value", ["a size", "a shape", "a type", "text", "joined"])
def test_sizes_are_numbers_in_warnings_and_errors(value: str) -> None:
    def warns(x: Any) -> Any:
        warnings.warn(UserWarning(SAID[value](x)), stacklevel=1)
        return x * 2

    def raises(x: Any) -> Any:
        raise ValueError(SAID[value](x))

    def said(f: Callable[..., Any], x: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                f(x)
            except ValueError as error:
                return error.args
        return [(str(w.message), w.message.args) for w in caught]  # type: ignore[union-attr]

    for f in (warns, raises):
        compiled = st.compile(f)
        for n in (4, 3, 7, 5, 3):
            assert said(compiled, st.ones(n, 2)) == said(f, st.ones(n, 2))


def test_sizes_in_an_array_of_objects_are_numbers() -> None:
    items = np.empty(3, object)

    @st.compile
    def f(x: Any) -> Any:
        items[0], items[1:] = x.shape, x.shape
        return x * 2

    for n in (4, 3, 7, 5, 3):
        f(st.ones(n, 2))
        assert repr(items.tolist()) == repr([(n, 2), n, 2])


FREE: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda x: st.zeros(x.shape) + x, "zeros of sizes": lambda x: st.zeros(*x.shape) + x,
    "view": lambda x: x.view(x.shape) * 2, "reshape": lambda x: x.reshape(len(x.shape), -1).sum() * 1,
    "math.prod": lambda x: x.sum() / math.prod(x.shape),
    "max": lambda x: x * (x.shape[0] + x.shape[1]), "tuple": lambda x: st.ones(tuple(x.shape)) + x,
    "list": lambda x: st.ones([*x.shape]) + x,
    "unpacked": lambda x: (lambda a, b: st.ones(a, b) + x)(*x.shape),
    "starred": lambda x: st.ones((1, *x.shape)) + x,
    "zip": lambda x: st.ones([n for n, _ in zip(x.shape, "ab", strict=True)]) + x,
    "isinstance": lambda x: x * isinstance(x.shape, tuple), "len": lambda x: x * len(x.shape),
    "kept inside": lambda x: st.ones({"shape": [x.shape]}["shape"][0]) + x,
    "an attribute": lambda x: st.ones(_filled(Box(), x).shape) + x,
    "in a closure": lambda x: st.ones(_closure(x)()[0]),
    "partial": lambda x: functools.partial(st.ones, x.shape)() + x,
    "expand": lambda x: x[:1].expand(x.shape) + x,
    "interpolated": lambda x: x[: x.shape[0] - 1] * 2, "shape of a type": lambda x: st.ones(x.type.shape) + x,
    "numel": lambda x: x.reshape(x.numel()), "nbytes": lambda x: x.sum() * (x.nbytes // 4),
}  # fmt: skip


@pytest.mark.parametrize("use", FREE)
def test_sizes_that_stay_inside_cost_no_capture(use: str) -> None:
    compiled = st.compile(FREE[use])
    for n in (4, 6, 3, 7, 9, 5):
        assert compiled(st.ones(n, 2)).tolist() == FREE[use](st.ones(n, 2)).tolist()
    assert compiled.captures == 2, compiled.reasons
