"""Host call: a Python function on NumPy arrays in the middle of a program."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Self

import numpy as np

from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, NotDifferentiableError, StratalError
from stratal.base.interrupts import Block
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, items, make
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.control import regions
from stratal.ops.families import or_zeros

HOST_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions host calls name. An entry stays for good: a program may outlive whoever registered it."""


def register_host_function(function: Callable[..., Any], name: str = "") -> str:
    """Return the name under which host calls reach a function; the same function always gets the same one."""
    wanted = name or getattr(function, "__qualname__", type(function).__name__)
    name, count = wanted, 1
    while HOST_FUNCTIONS.setdefault(name, function) is not function:
        count += 1
        name = f"{wanted}#{count}"
    return name


_FIRST: dict[Any, Callable[..., Any]] = {}


def first_alike(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the first function met that nobody can tell from this one: each turn of a loop makes a lambda
    anew, each look at a method another object.
    """
    if isinstance(function, types.MethodType):
        key: Any = function.__func__, id(function.__self__)
    elif isinstance(function, types.FunctionType) and not vars(function):
        held = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        variables = (*(function.__closure__ or ()), function.__globals__, *held)
        key = function.__code__, tuple(map(id, variables)), tuple(function.__kwdefaults__ or ())
    else:
        return function
    return _FIRST.setdefault(key, function)  # which keeps alive what is named by its address


class Log(Block):
    """What the impure calls of one run gave, or raised, in their order; and that once more, without calling.

    In a `with` block, calls of this thread are noted; after `replayed`, those that were are not made again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread, self._replays = threading.get_ident(), False
        self._calls: list[tuple[str, Any, BaseException | None]] = []

    def during(self) -> Generator[Self]:
        try:
            _LOGS.append(self)
            yield self
        finally:
            _LOGS.remove(self)

    def raised(self, error: BaseException) -> bool:
        """Return whether an error is of the last call."""
        return bool(self._calls) and self._calls[-1][2] is error

    def replayed(self) -> Log:
        """Return self, to be entered again."""
        self._replays = True
        return self

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """Return what a function returned then, or now; `name` tells it from others."""
        name = name.partition("#")[0]  # functions made anew get another number
        known = next((c for c in self._calls if c[0] == name), None) if self._replays else None
        if known is not None:
            self._calls.remove(known)
        elif self._replays:
            return function()
        else:
            try:
                known = name, function(), None
            except BaseException as error:
                known = name, None, error
            self._calls.append(known)
        if known[2] is not None:
            raise known[2]
        return known[1]

    @staticmethod
    def current() -> Log | None:
        """Return the innermost log of this thread."""
        thread = threading.get_ident()
        return next((log for log in reversed(_LOGS) if log._thread == thread), None)


_LOGS: list[Log] = []


@record
class HostCall(Op):
    """Call the function registered as `function` on the operands' arrays, for arrays of types `results`.

    Unless `pure`, the call is kept, not merged and not repeated. `derivative` names a pure function
    (operands..., results..., cotangents of inexact results...) -> cotangents of inexact operands.
    Results: always a tuple.
    """

    function: str
    results: tuple[TensorType, ...]
    pure: bool = False
    derivative: str = ""
    name = "host_call"
    not_differentiable = (
        "Python code has no derivative unless one is registered with it, and that only in reverse mode"
    )
    not_lowered = "it runs Python"
    not_batched = "Python code is written for one example: it is called once for each, in order"
    foldable = False

    @property
    def effects(self) -> bool:  # type: ignore[override]
        return not self.pure

    def infer(self, *types: TensorType) -> TupleType:
        for name in filter(None, (self.function, self.derivative)):
            if name not in HOST_FUNCTIONS:
                raise AttributeValueError(
                    "host_call: no function is registered under this name", got=repr(name),
                    hint="register it first: a program names its functions, it does not hold them",
                )  # fmt: skip
        return TupleType(self.results)

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        """Operands are handed over read-only."""
        views = [a.view() for a in arrays]
        for view in views:
            view.flags.writeable = False
        log = None if self.pure else Log.current()
        return self._called(views) if log is None else log.call(self.function, lambda: self._called(views))

    def _called(self, views: Sequence[Array]) -> tuple[Array, ...]:
        found = HOST_FUNCTIONS[self.function](*views)
        values = found if isinstance(found, (tuple, list)) else (found,)
        if len(values) != len(self.results):
            raise StratalError(
                f"host_call: {self.function} returned {len(values)} results", got=f"declared {self.results}"
            )
        return tuple(self._checked(np.asarray(v), t) for v, t in zip(values, self.results, strict=True))

    def _checked(self, value: Array, promised: TensorType) -> Array:
        if value.dtype != promised.dtype.np or value.shape != promised.shape:
            raise StratalError(
                f"host_call: {self.function} returned another type than it declared",
                got=f"{value.dtype}{list(value.shape)} for {promised}",
            )
        return np.array(value)

    def no_derivative(self) -> StratalError:
        return NotDifferentiableError(
            f"host_call: {self.function} is not differentiable", got=self.not_differentiable,
            hint="register a derivative with it, or put stop_gradient around its operands",
        )  # fmt: skip

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        if not self.derivative:
            raise self.no_derivative()
        values = items(out)
        cotangents = [t for t in or_zeros(b, ct, values) if t.dtype.is_inexact]
        moved = [x.dtype.is_inexact for x in inputs]
        types = tuple(x.aval for x, is_active in zip(inputs, moved, strict=True) if is_active)
        call = HostCall(self.derivative, types, pure=True)
        return regions.unpick(items(make(call, *inputs, *values, *cotangents, where=b.where)), moved)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            row = TensorType(dtype, (3,))
            call = cls(register_host_function(_halve), (row, TensorType(dtype, ())), True)
            yield Sample(call, (row,), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls("never registered", ()), (TensorType(float32, (3,)),), "registered")


def _halve(x: Array) -> tuple[Array, Array]:
    """The samples' function."""
    return x / 2, x.sum(dtype=x.dtype)
