"""What is compared of two runs of a program: values as plain data, and their first difference.

A value is looked at when it is observed, so later writes do not show. Objects met before are named by their
number: two results that are one object look different from two equal ones.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import math
import numbers
import pathlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

TOLERANCE = {"float64": 3e-7, "complex128": 3e-7, "float32": 2e-4, "complex64": 2e-4, "float16": 2e-2}
TOLERANCE["bfloat16"] = 5e-2
_PLAIN = (bool, int, float, complex, str, bytes, type(None), numbers.Number, range, slice)
_DEEPEST = 12
STATE = "state of "  # an optimiser: PyTorch may lack entries that are ours
NAME = "fuzzed_program"  # the module of every program


class Look:
    """One observation: numbers objects as they are met; `known` ones have names."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.met: dict[int, str] = {id(value): name for name, value in known.items() if not _plain(value)}
        self.keep = list(known.values())

    def at(self, value: Any, depth: int = 0) -> Any:
        """Return a value as nested tuples of plain data and arrays."""
        kind = type(value).__name__
        if _plain(value):
            return (kind, value if type(value).__module__ != NAME else repr(value), *self.extra(value, depth))
        again = self.met.get(id(value), "")
        if not again:
            self.met[id(value)] = f"object {len(self.met)}"
            self.keep.append(value)
        if _is_tensor(value):
            return ("tensor", again, bool(value.requires_grad), _array(value))
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype == object:
                return ("array", again, [self.at(v, depth + 1) for v in np.ravel(value)])
            return ("array", again, np.array(value))
        if again.startswith("object") or depth > _DEEPEST:
            return (kind, again)
        return (kind, again, *self.inside(value, depth + 1))

    def extra(self, value: Any, depth: int) -> Iterator[Any]:
        """Yield what a program's own kind of number or text holds beside its value."""
        if type(value).__module__ == NAME and not isinstance(value, enum.Enum):
            yield [(k, self.at(v, depth + 1)) for k, v in vars(value).items()]

    def inside(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)):
            yield value.__name__.split(".")[-1]
        elif isinstance(value, pathlib.PurePath):  # beside it stands what it remembers of itself
            yield str(value)
        elif isinstance(value, (list, tuple, collections.deque, collections.UserList)):
            yield [self.at(v, depth) for v in value]
        elif isinstance(value, (set, frozenset)):
            yield sorted((self.at(v, depth) for v in value), key=repr)
        elif isinstance(value, Mapping):
            yield [(self.at(k, depth), self.at(v, depth)) for k, v in value.items()]
        elif hasattr(type(value), "named_parameters"):
            yield value.training
            yield [(name, self.at(t, depth)) for name, t in value.state_dict().items()]
        else:
            yield [(k, self.at(v, depth)) for k, v in _fields(value).items() if not k.startswith("__")]


def _fields(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, as stored."""
    try:
        fields = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        fields = {}
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and base.__module__ != "builtins":
                with contextlib.suppress(AttributeError):
                    fields[name] = slot.__get__(value)
    return fields


def look(*values: Any, **known: Any) -> Any:
    """Return what is seen of values, and of objects with names."""
    eye = Look(known)
    seen = [eye.at(v) for v in values]
    eye.met = {}  # named objects are looked into once more: the results may be them
    return [*seen, *((name, eye.at(value)) for name, value in known.items())]


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) and not isinstance(value, np.generic)


def _is_tensor(value: Any) -> bool:
    kind = type(value)  # not the value: what it says of its attributes is the program's
    return hasattr(kind, "requires_grad") and hasattr(kind, "detach") and hasattr(kind, "numpy")


def _array(value: Any) -> np.ndarray[Any, Any]:
    value = value.detach()
    if "bfloat16" in str(value.dtype):
        value = value.float()
    return np.array(value.numpy())


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """Return where two observations differ first, and how; None where they agree."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _array_difference(a, b, path)
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            x, y = a.get(key, "nothing"), b.get(key, "nothing")
            if STATE in str(key):  # rounding may be nothing but noise in one of them
                x = np.zeros_like(y) if key not in a else x
                y = np.zeros_like(x) if key not in b else y
            found = difference(x, y, f"{path}.{key}")
            if found:
                return found
        return None
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} parts, but {len(b)}: {_short(a)}, but {_short(b)}"
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            name = x[0] if isinstance(x, tuple) and x and type(x[0]) is str and len(x) == 2 else str(k)
            found = difference(x, y, f"{path}.{name}")
            if found:
                return found
        return None
    if type(a) is float and type(b) is float:
        same = (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
        return None if same or abs(a - b) <= 1e-5 * abs(a) else f"{path}: {a}, but {b}"
    return None if type(a) is type(b) and a == b else f"{path}: {_short(a)}, but {_short(b)}"


def _array_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], path: str) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{path}: {a.dtype}{list(a.shape)}, but {b.dtype}{list(b.shape)}"
    if a.dtype.kind not in "fc":
        return None if np.array_equal(a, b) else f"{path}: {_short(a)}, but {_short(b)}"
    special = np.isnan(a) | np.isinf(a) | np.isnan(b) | np.isinf(b)
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return f"{path}: {_short(a)}, but {_short(b)}"
    gap = np.abs(a[~special] - b[~special])
    scale = 1e-2 + np.max(np.abs(a[~special]), initial=0.0)
    worst = float(np.max(gap, initial=0.0) / scale)
    if worst <= TOLERANCE[str(a.dtype)]:
        return None
    return f"{path}: off by {worst:.1e}: {_short(a)}, but {_short(b)}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = np.array2string(value, precision=6, threshold=6, separator=",").replace("\n", "")
    text = str(value)
    return text if len(text) <= 110 else text[:107] + "..."


def facts(**named: Any) -> dict[str, Any]:
    """Return what modules, optimisers, tensors and Python values hold, by name."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        if hasattr(value, "named_parameters"):
            for key, p in value.named_parameters():
                found[f"{name}.{key}"] = _array(p)
                found[f"{name}.{key}.grad"] = None if p.grad is None else _array(p.grad)
            found.update({f"{name}.{key}": _array(b) for key, b in value.named_buffers()})
            found[f"{name}.training"] = value.training
        elif hasattr(value, "param_groups"):
            state = value.state_dict()
            for k, group in enumerate(state["param_groups"]):
                found[f"{name}.lr {k}"] = float(group["lr"])
            for k, entries in state["state"].items():
                found.update(_entries(f"{STATE}{name}.{k}", entries))
        elif isinstance(value, dict):
            found.update(facts(**{f"{name}.{key}": entry for key, entry in value.items()}))
        elif isinstance(value, (list, tuple)):
            found.update(facts(**{f"{name}.{k}": entry for k, entry in enumerate(value)}))
        else:
            found[name] = _array(value) if _is_tensor(value) else value
    return found


def _entries(name: str, entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the state of one parameter; zeros are as good as none, and a count as good as a tensor of it."""
    for key, value in entries.items():
        if _is_tensor(value) or isinstance(value, (int, float)):
            array = np.asarray(_array(value) if _is_tensor(value) else value, np.float64)
            if array.any():
                yield f"{name}.{key}", array
