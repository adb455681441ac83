"""Numbers that vary: Python floats that each call of a captured program reads anew.

    read := a float in the arguments, or at a location | the size of an axis | op(read or Python number, ..)
    op   := + | - | * | -x | / by what is not zero

What Python computes with such numbers is a formula, and each call evaluates it in Python itself: rounding,
overflow, NaN and the signs of zeros are those of the uncompiled function. Where a number meets a tensor, its
value is an input of the program. All else that Python asks (a comparison, a power, text, a key, ..) takes
what the number is now: it refuses the capture, and the next one has that number frozen, guarded by equality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from stratal.base.dims import NUMBERS, Sym, atoms_of, evaluate, undecided
from stratal.base.dtypes import DType, as_element
from stratal.base.errors import CaptureError
from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.state import MODE
from stratal.tensor.values.trace import Trace

_LARGEST: Final = 64  # formula, in numbers and operators: longer ones cost calls more than they save


# -- what each call evaluates --------------------------------------------------------------------------------
class FromFloat(NamedTuple):
    """A float: an argument, or what stands at a location."""

    position: int
    location: Any
    name: str

    def now(self, arguments: Sequence[Any]) -> float:
        found: float = arguments[self.position] if self.location is None else self.location.read()
        return found


class FromSizes(NamedTuple):
    """A symbolic size; `axes` has an argument's number and one of its axes for each symbol."""

    size: Sym
    axes: Mapping[str, tuple[int, int]]

    def now(self, arguments: Sequence[Any]) -> int:
        return evaluate(self.size, {name: arguments[k].shape[a] for name, (k, a) in self.axes.items()})


class Formula(NamedTuple):
    """What Python computes of such numbers and others."""

    op: Callable[..., float]
    parts: tuple[Any, ...]

    def now(self, arguments: Sequence[Any]) -> float:
        return self.op(*(x.now(arguments) if isinstance(x, _READS) else x for x in self.parts))


Read = FromFloat | FromSizes | Formula
_READS: Final = (FromFloat, FromSizes, Formula)


class FromNumber(NamedTuple):
    """A number that varies, as an input of a program."""

    read: Read
    dtype: DType

    def storage(self, arguments: Sequence[Any]) -> Storage:
        value = as_element("number", self.read.now(arguments), self.dtype)
        return Storage.copy_of(value, TensorType(self.dtype))


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, Formula):
        for x in part.parts:
            yield from _leaves(x)
    else:
        yield part


def _length(part: Any) -> int:
    return 1 + sum(map(_length, part.parts)) if isinstance(part, Formula) else 1


def _key(part: Any) -> Any:
    """Return what is equal for reads of one number; of Python's, 1 is not 1.0, and zeros have signs."""
    if isinstance(part, Formula):
        return (part.op, *map(_key, part.parts))
    if isinstance(part, FromFloat):
        return (part.position, part.name)
    return ("size", str(part.size)) if isinstance(part, FromSizes) else repr(part)


# -- what Python sees ----------------------------------------------------------------------------------------
class RuntimeScalar:
    """A number that varies, in the user's Python: a float to `isinstance`, and to tensors that it meets."""

    __slots__ = ("_read", "_trace", "value")
    __array_ufunc__ = None

    def __init__(self, trace: Trace, value: float, read: Read) -> None:
        self._trace, self.value, self._read = trace, value, read

    __class__ = property(lambda self: float)

    def __pos__(self) -> RuntimeScalar:
        return self

    def __neg__(self) -> RuntimeScalar:
        return _formula(operator.neg, self)

    def ask(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse the capture, since Python needs the number. Raises: CaptureError, UndecidedError."""
        found = [*_leaves(self._read)]
        floats = [x for x in found if isinstance(x, FromFloat)]
        self._trace.asked += floats  # code not written in Python may drop the error
        if floats:
            names = ", ".join(dict.fromkeys(x.name for x in floats))
            raise CaptureError("capture: Python needs a number that varies", got=names)
        size = next(x.size for x in found if isinstance(x, FromSizes))
        raise undecided(size, "capture: Python needs to know a size")

    def element(self, dtype: DType) -> Node:
        """Return the input of the program that has its value in a dtype, rounded as constants are."""
        if not dtype.is_inexact:
            self.ask()  # whether it fits depends on it
        key = _key(self._read), dtype
        known = self._trace.numbers
        if key not in known:
            label = self._read.name if isinstance(self._read, FromFloat) else ""
            node = node_values.placeholder(label, TensorType(dtype), self._trace.name)
            known[key] = node, FromNumber(self._read, dtype)
        return known[key][0]

    @property
    def is_nonzero(self) -> bool:
        """Whether it is known not to be zero in any call."""
        if not isinstance(self._read, FromSizes):
            return False
        low, high = self._read.size.range()
        return low > 0 or high < 0


_PLAIN: Final = (RuntimeScalar, float, int, bool)


def _formula(op: Callable[..., float], *parts: Any) -> RuntimeScalar:
    numbers = [x for x in parts if type(x) is RuntimeScalar]
    read = Formula(op, tuple(x._read if type(x) is RuntimeScalar else x for x in parts))
    if _length(read) > _LARGEST:
        numbers[0].ask()
    value = op(*(x.value if type(x) is RuntimeScalar else x for x in parts))
    return RuntimeScalar(numbers[0]._trace, value, read)


def _arithmetic(op: Callable[..., float], swapped: bool) -> Callable[[RuntimeScalar, Any], Any]:
    def method(self: RuntimeScalar, other: Any) -> Any:
        if isinstance(other, Handle):
            return NotImplemented  # a tensor's own operator takes the number
        if type(other) is Sym:
            other = of_size(other)
        divisor = self if swapped else other
        if type(other) not in _PLAIN or (op is operator.truediv and not _is_nonzero(divisor)):
            self.ask()
        return _formula(op, other, self) if swapped else _formula(op, self, other)

    return method


def _is_nonzero(x: Any) -> bool:
    return x.is_nonzero if type(x) is RuntimeScalar else bool(x)


def _with_tensors(self: RuntimeScalar, other: Any, *_: Any) -> Any:
    if isinstance(other, Handle):
        return NotImplemented
    return self.ask()


_UNCHANGED: Final = frozenset({
    "__delattr__", "__getattribute__", "__init_subclass__", "__new__", "__setattr__", "__subclasshook__",
})  # fmt: skip
_OF_TENSORS: Final = frozenset({"floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"})
for _name in {*dir(float), "__array__"} - _UNCHANGED - vars(RuntimeScalar).keys():
    _of_two = _name.strip("_").removeprefix("r") in _OF_TENSORS
    setattr(RuntimeScalar, _name, _with_tensors if _of_two else RuntimeScalar.ask)
for _name in ("real", "imag"):
    setattr(RuntimeScalar, _name, property(RuntimeScalar.ask))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(RuntimeScalar, f"__{_name}__", _arithmetic(getattr(operator, _name), False))
    setattr(RuntimeScalar, f"__r{_name}__", _arithmetic(getattr(operator, _name), True))


def of_size(size: Sym) -> RuntimeScalar:
    """Return a symbolic size as a number that varies, for arithmetic that leaves the ints."""
    trace = MODE.trace
    while trace is not None and trace.parent is not None:
        trace = trace.parent
    known = None if trace is None else trace.symbolic
    if trace is None or known is None:
        raise undecided(size, f"dims: the size {size} is symbolic where a number is needed")
    axes = {name: known.names[name] for name in atoms_of(size)}
    return RuntimeScalar(trace, evaluate(size, known.values), FromSizes(size, axes))


NUMBERS.append(of_size)
