"""Numbers that vary where they stand, read by code that is not written in Python: compiled is uncompiled."""

from __future__ import annotations

import array
import bisect
import collections
import contextlib
import copy
import dataclasses
import functools
import heapq
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


@dataclasses.dataclass
class Config:
    k: float = 1.5
    m: float = 1.0


class Slots:
    __slots__ = ("k",)


class Holder:
    k = 1.5

    def __init__(self) -> None:
        self._k = 1.5

    @property
    def read(self) -> float:
        return self._k

    @functools.cached_property
    def kept(self) -> float:
        return self._k * 2


Pair = collections.namedtuple("Pair", "a b")
TABLE, LIST, NUMBER = {"k": 1.5, "m": 1.0}, [1.5, 1.0], 1.5
BOX, CONFIG, SLOTS, HOLDER = types.SimpleNamespace(k=1.5), Config(), Slots(), Holder()


@functools.cache
def cached() -> float:
    return TABLE["k"]


@functools.lru_cache(maxsize=4)
def cached_list() -> list[float]:
    return [TABLE["k"], 2]


def numbers() -> Iterator[float]:
    yield TABLE["k"]
    yield BOX.k


def put(value: float) -> None:
    """Let the number be another one wherever it stands."""
    global NUMBER
    TABLE["k"] = BOX.k = CONFIG.k = SLOTS.k = HOLDER._k = Holder.k = LIST[0] = NUMBER = value
    HOLDER.__dict__.pop("kept", None)
    cached.cache_clear()
    cached_list.cache_clear()


READS: dict[str, Callable[[], Any]] = {
    "json": lambda: json.dumps(TABLE), "vars": lambda: json.dumps(vars(BOX)),
    "deepcopy": lambda: copy.deepcopy(CONFIG).k, "asdict": lambda: dataclasses.asdict(CONFIG),
    "astuple": lambda: dataclasses.astuple(CONFIG), "replace": lambda: dataclasses.replace(CONFIG, m=2.0).k,
    "data": lambda: Config(2.5) == CONFIG, "shown": lambda: repr(CONFIG),
    "values": lambda: list(TABLE.values()),
    "dict": lambda: dict(TABLE), "sorted": lambda: sorted(TABLE.values()), "max": lambda: max(TABLE.values()),
    "max by": lambda: max(TABLE, key=TABLE.get), "format": lambda: "{k:.2f}".format(**TABLE),
    "equal": lambda: TABLE == {"k": 2.5, "m": 1.0}, "pair": lambda: Pair(TABLE["k"], 1) == (2.5, 1),
    "hashed": lambda: hash(Pair(TABLE["k"], 1)),
    "reduce": lambda: functools.reduce(operator.mul, TABLE.values()),
    "array": lambda: np.array(list(TABLE.values())).tolist(),
    "tensor": lambda: st.tensor(list(TABLE.values())),
    "accumulated": lambda: list(itertools.accumulate(TABLE.values())),
    "identity": lambda: operator.itemgetter("k")(TABLE) is LIST[0], "cached": lambda: cached(),
    "cached factor": lambda: st.ones(2) * cached(), "cached list": lambda: cached_list(),
    "cached property": lambda: HOLDER.kept, "its factor": lambda: st.ones(2) * HOLDER.kept,
    "property": lambda: HOLDER.read > 2, "generator": lambda: list(numbers()), "sum": lambda: sum(numbers()),
    "frozenset": lambda: frozenset(TABLE.items()), "hash": lambda: hash(tuple(TABLE.values())),
    "fsum": lambda: math.fsum(TABLE.values()), "deviation": lambda: statistics.pstdev(TABLE.values()),
    "sorted by": lambda: sorted(TABLE, key=TABLE.get), "get": lambda: TABLE.get("k") == 2.5,
    "merged": lambda: TABLE | {}, "counted": lambda: collections.Counter(TABLE.values()),
    "bisect": lambda: bisect.bisect([1, 2, 3], TABLE["k"]),
    "heap": lambda: heapq.nsmallest(1, TABLE.values()),
    "packed": lambda: array.array("d", TABLE.values()).tolist(), "bytes": lambda: struct.pack("2d", *LIST),
    "index": lambda: LIST.index(2.5) if 2.5 in LIST else -1, "count": lambda: LIST.count(1.0),
    "lists": lambda: LIST == [2.5, 1.0], "slice": lambda: LIST[:], "tuple": lambda: tuple(LIST) < (2,),
    "slot": lambda: SLOTS.k**2, "class": lambda: Holder.k > 2, "class vars": lambda: dict(vars(Holder))["k"],
    "getattr": lambda: getattr(BOX, "k"),  # noqa: B009
    "attrgetter": lambda: operator.attrgetter("k")(BOX) > 2,
    "namespace": lambda: str(BOX), "namespaces": lambda: types.SimpleNamespace(k=2.5) == BOX,
    "globals": lambda: globals()["NUMBER"] > 2, "set": lambda: {v for v in TABLE.values()},  # noqa: C416
    "swapped": lambda: {v: k for k, v in TABLE.items()}, "zip": lambda: list(zip(LIST, LIST, strict=True)),
    "named": lambda: (lambda **k: k["k"])(**TABLE) > 2, "map": lambda: list(map(math.atan, TABLE.values())),
    "filter": lambda: list(filter(None, LIST)), "any": lambda: any(LIST),
    "enumerate": lambda: list(enumerate(LIST)),
    "join": lambda: ",".join(map(str, LIST)), "percent": lambda: "%s" % TABLE,  # noqa: UP031
    "text": lambda: f"{TABLE}",
    "truth": lambda: bool(TABLE["k"]), "starred": lambda: [*LIST, 1],
    "error": lambda: ValueError(TABLE["k"]).args,
    "extended": lambda: (lambda made: (made.extend(LIST), made)[1])([]), "min": lambda: min(LIST[0], 2.0),
    "setdefault": lambda: (lambda made: (made.setdefault("z", TABLE["k"]), made)[1])({}),
    "context": lambda: contextlib.nullcontext(TABLE["k"]).__enter__() > 2,
    "chain": lambda: [*itertools.chain(LIST)],
    "where": lambda: st.where(st.ones(2) > TABLE["k"], 1.0, TABLE["k"]),
    "deque": lambda: collections.deque(LIST)[0],
    "factors": lambda: [st.ones(1) * v for v in LIST],
    "starmap": lambda: [*itertools.starmap(max, [(LIST[0], 2)])],
    "chosen": lambda: st.ones(1) * (TABLE["k"] if TABLE["k"] > 2 else 0.0),
    "partial": lambda: functools.partial(lambda a, b: a * b, TABLE["k"])(2),
    "looked up": lambda: {2.5: "yes"}.get(TABLE["k"], "no"),
    "cosine": lambda: st.ones(2) * math.cos(TABLE["k"]),
    "sum of products": lambda: sum(a * b for a, b in zip(LIST, LIST, strict=True)),
}  # fmt: skip


def outcome(call: Callable[[], Any]) -> str:
    try:
        found = call()
    except CaptureError as error:
        return f"refused: {error}"
    except Exception as error:
        return type(error).__name__
    return f"{type(found).__name__} {found!r}"


@pytest.mark.parametrize("name", READS)
def test_what_is_read_where_a_number_varies_is_what_is_read_uncompiled(name: str) -> None:
    read = READS[name]
    compiled = st.compile(lambda _: read(), audit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (1.5, 2.5, 3.5, -0.0, 0.0, math.nan, 2.5, -1.0):
            put(value)
            expected = outcome(read)
            put(value)
            assert outcome(lambda: compiled(st.ones(2))) == expected, value
            assert type(TABLE["k"]) is type(NUMBER) is type(Holder.k) is type(LIST[0]) is float
            put(value)
            assert outcome(read) == expected
