"""Numbers that vary under every operator, method and builtin that they have: compiled is uncompiled.

Each case is compiled by itself: one that takes the number itself would hide what another one leaves symbolic.
"""

from __future__ import annotations

import builtins
import copy
import decimal
import fractions
import functools
import itertools
import json
import math
import operator
import statistics
import struct
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import CaptureError

Case = Callable[[Any], Any]
BOX = types.SimpleNamespace(n=0.0, seen=None)
GLOBAL: Any = 0.0
STORED: Any = None
VALUES: dict[str, list[Any]] = {  # the first two make a float, or a size, vary
    "float": [1.5, 2.5, 0.0, -1.0, 1.0, 2.0, 0.5, -0.0, 1e200, math.nan, math.inf, -math.inf, 5e-324],
    "int": [2, 3, 0, -1, 1, 2**70],
    "bool": [True, False],
    "size": [4, 5, 6, 1, 7, 2, 3, 1024],
}
_ENDLESS = (  # of a large int
    "**", "<<", "pow", "shift", "factorial", "perm", "comb", "bytes", "long", "range", "partial",
)  # fmt: skip


# -- the cases -----------------------------------------------------------------------------------------------
SYMBOLIC = (
    "n + 2", "2 - n", "n * n", "n * 0.5", "n - True", "n + 0.1 + 0.2", "0.1 * n * n - n", "-n", "+n", "n / 4",
    "n * 1e200", "n * 1e200 * 1e200", "n * 0 - 0.0", "sum([n, n])", "(lambda *a: a[1])(1, n)",
)  # fmt: skip
_OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "@", "<", "<=", ">", ">=", "==", "!=",
    "is", "in", "and", "or",
)  # fmt: skip
_OPERANDS = "n {} 2", "2 {} n", "n {} n", "n {} 0", "0 {} n", "n {} 0.5", "n {} -1", "n {} None"
_UNLIKE = frozenset({  # constructors, places in memory, and what stops, asks or reads more than numbers
    "__class_getitem__", "__delattr__", "__doc__", "__getattribute__", "__init__", "__init_subclass__",
    "__new__", "__setattr__", "__setformat__", "__sizeof__", "__subclasshook__", "__build_class__",
    "__import__", "aiter", "anext", "breakpoint", "compile", "copyright", "credits", "delattr", "dir", "eval",
    "exec", "exit", "getattr", "globals", "hasattr", "help", "id", "input", "license", "locals", "memoryview",
    "object", "open", "print", "quit", "setattr", "super", "vars",
})  # fmt: skip


def _public(module: Any) -> Iterator[str]:
    for name in sorted(dir(module)):
        made = getattr(module, name)
        error = isinstance(made, type) and issubclass(made, BaseException)
        if callable(made) and not error and not name.startswith("__") and name not in _UNLIKE:
            yield name


def _expressions(kind: type) -> Iterator[str]:
    for op, operands in itertools.product(_OPERATORS, _OPERANDS):
        yield operands.format(op)
    yield from ("~n", "not n", "n if n else 7", "1 < n < 3", "n == n == 2", "n is 2.0", "n is True")
    for name in sorted({*dir(kind), "__index__", "bit_length", "hex"} - _UNLIKE):
        if not callable(getattr(kind, name, None)):
            yield f"n.{name}"
            continue
        for args in ("", "2", "n", "0.5"):
            yield f"n.{name}({args})"
    for module in (operator, math):
        for name in _public(module):
            for args in ("n", "n, 2", "2, n", "[n, 2.0]"):
                yield f"{module.__name__}.{name}({args})"
    for name in _public(builtins):
        for args in ("n", "n, 2", "2, n", "[n, 3]"):
            yield f"{name}({args})"


def _tells(name: str, values: list[Any]) -> bool:
    """Return whether an expression has a value: in most combinations there is only one TypeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = _case(name)
        kinds = [outcome(functools.partial(case, v)) for v in values[:4]]
    return not all(k in ("TypeError", "AttributeError") for k in kinds)


@functools.cache
def _case(name: str) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 'is' with a literal
        made: Case = eval(f"lambda n: {name}")  # noqa: S307
    return made


@functools.cache
def _cached(*given: Any) -> Any:
    return [*given]


def _remembered(n: Any) -> Any:
    _cached.cache_clear() if BOX.n is None else None
    return type(_cached.__wrapped__(n)[0]).__name__, _cached(n)[0]


def _matched(n: Any) -> Any:
    match n:
        case 0:
            return "zero"
        case float(real=1.5) | int(real=2):
            return "first"
        case bool():
            return "bool"
        case float() | int():
            return "number"
    return "none"


def _appended(n: Any) -> Any:
    found: list[Any] = []
    found.append(n)
    found += [n, n]
    return found


def _put(n: Any) -> Any:
    table: dict[Any, Any] = {n: "a", 2.0: "b"}
    table[n], table["k"] = "c", n
    return table, n in table, table.get(n), {n, 1}


def _attribute(n: Any) -> Any:
    BOX.seen = n
    return BOX.seen, vars(BOX)["seen"]


def _stored(n: Any) -> Any:
    global STORED
    STORED = n
    return STORED


def _branches(n: Any) -> Any:
    k = 0
    while n > k and k < 5:
        k += 1
    assert isinstance(n, (int, float))
    return k, "yes" if n else "no", [k for k in range(3) if k < n], n > 1 and n < 9


def _swallowed(n: Any) -> Any:
    try:
        return 1 / n
    except Exception as error:
        return type(error).__name__


def _in_a_class(n: Any) -> Any:
    class Made:
        k = n

        def __eq__(self, other: object) -> bool:
            return bool(other == self.k)

        __hash__ = None  # type: ignore[assignment]

    return Made() == n, Made.k == 2.0


def _yielded(n: Any) -> Any:
    def numbers(k: Any = n) -> Iterator[Any]:
        yield k
        yield from (k, n + 1)

    return [*numbers()], max(numbers()), dict.fromkeys(numbers())


def _counted(n: Any) -> Any:
    return "".join(f"{k:>5.1f}|{k!r}" for k in (n, n * 2)), f"{n}", "%r %s" % (n, n), str((n, [n]))  # noqa: UP031


STATEMENTS: dict[str, Case] = {
    f.__name__: f
    for f in (
        _remembered, _matched, _appended, _put, _attribute, _stored, _branches, _swallowed, _in_a_class,
        _yielded, _counted,
    )
} | {
    "decayed": lambda n: 0.1 ** ((n >= 1) + (n >= 2)), "is True": lambda n: (n > 1) is True,
    "type": lambda n: (type(n) is float, type(n), isinstance(n, float), isinstance(n, int), n.__class__),
    "json": lambda n: json.dumps({"n": [n]}),
    "copied": lambda n: (copy.copy(n), copy.deepcopy([n])), "packed": lambda n: struct.pack("d", n),
    "exact": lambda n: (fractions.Fraction(n), decimal.Decimal(n)), "mean": lambda n: statistics.mean([n, 1]),
    "array": lambda n: np.array([n, 1]).dtype.name, "arrays": lambda n: (np.ones(2) * n).tolist(),
    "of numpy": lambda n: (float(np.float64(2) * n), float(np.float32(2) + n), bool(np.isfinite(n))),
    "partial": lambda n: functools.partial(pow, 2)(n), "mapped": lambda n: [*map(str, [n, 1])],
    "mapped identity": lambda n: [*map(operator.is_, [n, n], [n, 2.0])], "starred": lambda n: [*[n], n],
    "sorted": lambda n: sorted([2, n, 1.75]), "default": lambda n: (lambda k=n: k)(),
    "same": lambda n: [n] == [n], "indexed": lambda n: [5, 6, 7, 8][n], "sliced": lambda n: [5, 6, 7, 8][:n],
    "counted": lambda n: [1, n].count(n), "in": lambda n: (n in [1, 2.5], n in {2, 3}, n in (n,)),
    "returned": lambda n: (n, {"n": n}, [n + 1]), "frozen": lambda n: st.frozen(str, n),
    "root of a negative": lambda n: (n - 3) ** 0.5, "long": lambda n: n**20 + n**30,
    "long product": lambda n: n * 2**40 * n * 2**40, "tuple": lambda n: (n, 2) < (2, 3),
    "made int": lambda n: (int(n), round(n), math.floor(n), divmod(n, 2)),
    "walrus": lambda n: (k := n) + (k == n), "key": lambda n: {(1, (n,)): 2},
    "loop": lambda n: functools.reduce(lambda a, _: a * n + 1, range(60), 1.0),
    "signs": lambda n: functools.reduce(lambda a, _: -a, range(999), n * 1.5),
}  # fmt: skip
TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, n: (x * n, n * x, x + n, n - x), "quotient": lambda x, n: (x / n, n / x),
    "decayed rate": lambda x, n: x * 0.1 ** ((n >= 1) + (n >= 2)), "power": lambda x, n: x ** (n * 2),
    "compared": lambda x, n: (x < n, n <= x, x == n), "where": lambda x, n: st.where(x > 1, n, x),
    "clamped": lambda x, n: (x.clamp(max=n), st.maximum(x, st.tensor(n))),
    "full": lambda x, n: st.full((2,), n), "square": lambda x, n: x * n**2,
    "root": lambda x, n: x * (n**0.5).real,
    "inverse": lambda x, n: x * (1 / n), "long": lambda x, n: x * n**20,
    "long product": lambda x, n: x * functools.reduce(operator.mul, [n] * 9),
    "tensor": lambda x, n: (st.tensor(n), st.tensor([n, 1.0]), st.tensor(n, dtype="float64")),
    "alone": lambda x, n: (st.add(n, 1), st.exp(st.tensor(n) * 0)), "filled": lambda x, n: x.clone().fill_(n),
    "halves": lambda x, n: (x.to("bfloat16") * n, x.to("float16") + n, st.ones(2, dtype="int64") * n),
    "loop": lambda x, n: st.fori_loop(0, 3, lambda i, c: c * 0.5 + n, x), "cond": lambda x, n: st.cond(
        x.sum() > 0, lambda y: y * n, lambda y: y - n, x), "masked": lambda x, n: x.masked_fill(x > 1, n),
    "activation": lambda x, n: st.nn.functional.leaky_relu(-x, n), "lerp": lambda x, n: x.lerp(x * 2, n),
    "written": lambda x, n: x.clone().add_(x, alpha=n), "set": lambda x, n: x.at[0].set(n),
    "called": lambda x, n: st.host_call(np.multiply, x, x, st.tensor(n)),
}  # fmt: skip
REFUSED = {"enumerate", "filter", "iter", "map", "reversed", "zip", "property", "staticmethod", "classmethod"}


@functools.cache
def cases(kind: str) -> dict[str, Case]:
    number = {"float": float, "bool": bool}.get(kind, int)
    names = [name for name in dict.fromkeys(_expressions(number)) if _tells(name, VALUES[kind])]
    return {name: _case(name) for name in names} | STATEMENTS


# -- how a function gets its number --------------------------------------------------------------------------
def _argument(finish: Case) -> Callable[[Any, Any], Any]:
    def function(x: Any, n: Any) -> Any:
        return finish(x, n)  # type: ignore[call-arg]

    return function


def _from_attribute(finish: Any) -> Callable[[Any, Any], Any]:
    return lambda x, n: finish(x, BOX.n)


def _from_global(finish: Any) -> Callable[[Any, Any], Any]:
    return lambda x, n: finish(x, GLOBAL)


def _from_closure(finish: Any) -> Callable[[Any, Any], Any]:
    k = 0.0

    def put(value: Any) -> None:
        nonlocal k
        k = value

    def function(x: Any, n: Any) -> Any:
        return finish(x, k)

    function.put = put  # type: ignore[attr-defined]
    return function


def _from_loop(finish: Any) -> Callable[[Any, Any], Any]:
    def function(x: Any, n: Any) -> Any:
        found = None
        for k in BOX.numbers:
            found = finish(x, k)
        return found

    return function


def _from_size(finish: Any) -> Callable[[Any, Any], Any]:
    return lambda x, n: finish(x, x.shape[0])


WAYS = {
    "argument": _argument, "attribute": _from_attribute, "closure": _from_closure, "global": _from_global,
    "loop": _from_loop,
}  # fmt: skip


def shown(value: Any) -> Any:
    """Return what two values have in common that are the same to Python."""
    if isinstance(value, st.Tensor):
        return value.dtype.name, [*value.shape], repr(value.tolist())
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(x) for x in value]
    text = repr(value)
    return type(value).__name__, "" if " at 0x" in text else text


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return shown(call())
    except CaptureError as error:
        return f"refused: {error}"
    except Exception as error:
        return type(error).__name__


def fault(name: str, finish: Callable[[Any, Any], Any], way: str, values: list[Any]) -> str:
    """Return where a compiled function and itself uncompiled differ, or nothing."""
    global GLOBAL
    if any(word in name for word in _ENDLESS):
        values = [n for n in values if type(n) is not int or n < 1000]
    function = (_from_size if way == "size" else WAYS[way])(finish)
    compiled = st.compile(function, audit=False)
    for n in values:
        GLOBAL = BOX.n = n
        BOX.numbers = [n]
        if way == "closure":
            function.put(n)
        x = st.ones(n if way == "size" else 2) + 1
        given = n if way == "argument" else 0
        seen = []
        for f in (function, compiled):
            BOX.seen = STORED_BEFORE
            seen.append((outcome(functools.partial(f, x, given)), shown(BOX.seen)))
        if seen[0] != seen[1]:
            return f"{n!r} gives {seen[1]}, not {seen[0]}"
    return ""


STORED_BEFORE = "nothing"


def faults(kind: str, ways: Any, values: Callable[[int], list[Any]]) -> dict[str, str]:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, (name, case) in enumerate(cases(kind).items()):
            for way in ways(k):
                fails = fault(name, lambda x, n, case=case: _returnable(case(n)), way, values(k))
                if fails and not ("refused" in fails and name.partition("(")[0] in REFUSED):
                    found[f"{name}, {way}"] = fails
    return found


def _returnable(value: Any) -> Any:
    return "NotImplemented" if value is NotImplemented else value


def ways_of(kind: str) -> list[str]:
    return ["size"] if kind == "size" else [*WAYS]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", VALUES)
def test_what_python_makes_of_a_number_is_what_it_makes_uncompiled(kind: str) -> None:
    values, ways = VALUES[kind], ways_of(kind)
    rest, varies = values[2:] or values, kind in ("float", "size")  # others are guarded by value

    def some(k: int) -> list[Any]:
        return [*values[:2], rest[k % len(rest)]] if varies or k % 4 == 0 else []

    assert faults(kind, lambda k: [ways[k % len(ways)]], some) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), [(kind, way) for kind in VALUES for way in ways_of(kind)])
def test_what_python_makes_of_any_number_is_what_it_makes_uncompiled(kind: str, way: str) -> None:
    assert faults(kind, lambda k: [way], lambda k: VALUES[kind]) == {}


def test_sizes_that_vary_are_compared_by_identity_as_numbers_are() -> None:
    for case in (lambda n: operator.is_(n, 2), lambda n: operator.is_not(2, n)):
        assert fault("", lambda x, n, case=case: case(n), "size", VALUES["size"]) == ""


def _in_float64(x: Any, n: Any) -> Any:
    one = st.ones(1, dtype="float64")
    return [one * _case(name)(n) for name in SYMBOLIC]


@pytest.mark.parametrize("way", WAYS)
def test_sums_and_products_of_numbers_that_vary_are_those_of_python_at_no_capture(way: str) -> None:
    found = WAYS[way](_in_float64)
    assert fault("", _in_float64, way, VALUES["float"]) == ""
    compiled = st.compile(found, audit=False)
    if way in ("argument", "attribute"):
        for n in VALUES["float"]:
            BOX.n = n
            compiled(st.ones(1), n if way == "argument" else 0)
        assert compiled.captures == 2


@pytest.mark.parametrize("way", ["argument", pytest.param("attribute", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_meet_numbers_that_vary_as_they_meet_constants(name: str, way: str) -> None:
    assert fault("", TENSORS[name], way, [1.5, 2.5, 0.0, -1.0, 3.5, math.nan, 1e200]) == ""


def test_numbers_that_only_meet_tensors_are_captured_twice() -> None:
    names = ("product", "quotient", "compared", "where", "clamped", "full", "alone", "halves", "loop",
             "cond", "masked", "written", "lerp", "filled", "called")  # fmt: skip
    for name in names:
        compiled = st.compile(lambda x, n, name=name: TENSORS[name](x, n), audit=False)
        for n in (1.5, 2.5, 0.0, -1.0, math.nan):
            compiled(st.ones(2), n)
        assert compiled.captures == 2, f"{name}: {compiled.reasons}"


@pytest.mark.parametrize("name", ["product", "quotient", "compared", "decayed rate", "long", "long product"])
def test_tensors_meet_sizes_as_they_meet_ints(name: str) -> None:
    assert fault("", TENSORS[name], "size", [4, 5, 1, 7, 1000]) == ""
