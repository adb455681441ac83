"""Capture: trace a function once per signature and replay it with one program call.

signature := structure of the arguments, their types, Python arguments, gradient mode
capture   := graph + where each input is read + what is done with each output + guards on frozen Python values
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.collector import collector_paused
from stratal.base.errors import CaptureError, UndecidedError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.plan.host import expect_host
from stratal.tensor.alike import UNLIKE, Alike
from stratal.tensor.dynamic import Sizes, Symbolic
from stratal.tensor.guards import Guard
from stratal.tensor.handles import TRACKED
from stratal.tensor.recaptures import Reasons
from stratal.tensor.recording import HASHED, Recording, labels
from stratal.tensor.replay import (
    Entry,
    run,
)
from stratal.tensor.state import LOCK, MODE
from stratal.tensor.state import note_mutation as note_mutation
from stratal.tensor.tensor import Tensor, tensor

_MOST_QUESTIONS = 32  # about sizes, before a function is captured for those at hand
_MOST_CAPTURES = 64  # per function; the one used longest ago goes first


class Compiled:
    """A function that is captured once per signature; what `st.compile` returns.

    `captures` counts captures and `reasons` says why each was needed; `graph`, `program`, `plan` and
    `explain()` show the capture used last.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, dynamic: bool | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self._dynamic = dynamic
        self._sizes: dict[Any, Sizes] = {}  # by all of a signature but sizes
        self._function = function
        self._name: str = name or getattr(function, "__name__", "") or type(function).__name__
        self._entries: dict[Any, list[Entry]] = {}
        self._last: Entry | None = None
        self._alike: Alike | None = None  # calls that need no key; of the capture used last
        self._floats: dict[Any, set[int]] = {}  # positions of float arguments seen to vary
        self._frozen: set[Any] = set()  # structures of arguments whose floats Python needs
        self._varying: dict[str, bool] = {}  # names of frozen floats seen to vary: False where that failed
        self._bound: weakref.WeakKeyDictionary[Any, Compiled] = weakref.WeakKeyDictionary()
        self.captures = 0
        self.reasons = Reasons()

    # -- looking at it ---------------------------------------------------------------------------------------
    def _shown(self) -> Entry:
        if self._last is None:
            raise CaptureError(f"{self._name}: nothing was captured yet", hint="call it once first")
        return self._last

    @property
    def graph(self) -> Graph:
        """The graph of the capture used last."""
        return self._shown().graph

    @property
    def program(self) -> Any:
        """The program of the capture used last."""
        return self._shown().program

    @property
    def plan(self) -> Any:
        """The plan of the program used last: kernels, memory and cost."""
        return self.program.plan

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decisions behind the program used last."""
        return self.program.explain(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<compiled {self._name}: {self.captures} captures>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if instance not in self._bound:
            self._bound[instance] = Compiled(
                self._function.__get__(instance, owner), self._name, self._dynamic
            )
        return self._bound[instance]

    # -- calling it ------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode = MODE.__dict__  # once: each attribute of it takes as long as a small function
        if mode["trace"] is not None or mode["eager"] is not None:
            return self._function(*args, **kwargs)
        alike = self._alike
        if (
            alike is not None
            and not kwargs
            and alike.grad is mode["grad"]
            and alike.autocast is mode["autocast"]
        ):
            try:
                LOCK.acquire()  # inside: Ctrl-C may come as soon as it is held. Twice as fast as `with`
                made = alike.run(args)
            finally:
                try:  # noqa: SIM105 (takes longer)
                    LOCK.release()
                except RuntimeError:  # Ctrl-C ended the wait for it
                    pass
            if made is not UNLIKE:
                return made
        with LOCK:
            leaves, structure = _flatten(args, kwargs)
            key = self._signature(leaves, structure, bool(kwargs))
            entry, reason = self._find(key)
            sizes = None
            if entry is None:
                sizes = self._family(key)
                if sizes is not None:
                    entry, reason = self._find_sized(key, sizes, reason)
            if entry is None:
                grad, precision = MODE.grad, MODE.autocast
                reason = reason or self._novelty(key)  # only now: it takes longer than a small program runs
                try:
                    return self._capture(key, leaves, structure, bool(kwargs), reason, sizes)
                finally:  # Ctrl-C can prevent the exit of a `with` inside from being called
                    MODE.trace, MODE.grad, MODE.autocast = None, grad, precision
            self._last = entry
            made = run(entry, leaves)
            self._alike = None if kwargs else Alike.of(entry, args)
            return made

    def _signature(self, leaves: list[Any], structure: tree.Structure, has_kwargs: bool) -> Any:
        """Return what decides which capture fits; arrays among the leaves become tensors."""
        varying = self._floats.get((structure, has_kwargs), ()) if self._floats else ()
        parts: list[Any] = []
        first: dict[int, int] = {}
        for k, x in enumerate(leaves):
            if isinstance(x, np.ndarray):
                x = leaves[k] = tensor(x)
            if isinstance(x, Tensor):
                parts.append((x.type, x._leaf, x._track == TRACKED, first.setdefault(id(x), k)))
            elif type(x) is float and k in varying:
                parts.append(float)
            else:
                parts.append((type(x), x if isinstance(x, HASHED) else id(x)))
        return (structure, has_kwargs, (MODE.grad, MODE.autocast), tuple(parts))

    def _family(self, key: Any) -> Sizes | None:
        """Return what is known of the sizes of calls like this one; None where each is captured by itself."""
        if self._dynamic is False:
            return None
        parts = tuple(_rank(p) for p in key[3])
        family = (*key[:3], parts)
        found = self._sizes.get(family)
        if found is None:
            found = self._sizes[family] = Sizes(self._dynamic)
        return found

    def _find(self, key: Any) -> tuple[Entry | None, str]:
        entries = self._entries.get(key)
        if entries is None:
            return None, ""
        reason = ""
        for k, entry in enumerate(entries):
            failure = entry.failed()
            if failure is None:
                if k:
                    entries.insert(0, entries.pop(k))
                return entry, ""
            reason = reason or failure
        return None, reason

    def _find_sized(self, key: Any, sizes: Sizes, reason: str) -> tuple[Entry | None, str]:
        """Return a capture whose sizes have room for a call, or why there is none."""
        for symbolic in sizes.fitting(_types(key)):
            entry, failure = self._find(_with_types(key, symbolic.types))
            if entry is not None:
                return entry, ""
            reason = failure or reason
        return None, reason

    def _novelty(self, key: Any) -> str:
        """Return which argument differs from the signature nearest to a new one."""
        alike = [old for old in reversed(list(self._entries)) if old[0] == key[0]]
        alike.sort(key=lambda old: sum(a != b for a, b in zip(old[3], key[3], strict=True)))
        for old in alike:
            for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)):
                if a != b:
                    label = labels(self._function, key[0], key[3], key[1])[k]
                    return f"argument {label!r} changed from {_part(a)} to {_part(b)}"
            if old[2] != key[2]:
                grad, precision = key[2]
                return f"gradients are {'on' if grad else 'off'}, autocast is {precision or 'off'}"
        return "first call" if not self._entries else "arguments of another structure"

    # -- capturing -------------------------------------------------------------------------------------------
    def _capture(
        self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool, reason: str,
        sizes: Sizes | None,
    ) -> Any:  # fmt: skip
        plain = self._learn_floats(key, leaves, structure, has_kwargs)
        self._learn_sources(plain)
        expect_host()
        with collector_paused():  # until the first run has compiled it
            if sizes is None:
                key, entry = self._trace(plain, leaves, structure, has_kwargs)
            else:
                sizes.note(_types(plain))
                key, entry = self._trace_sized(plain, leaves, structure, has_kwargs, sizes)
            self.captures += 1
            self.reasons.add(self._name, reason)
            entries = self._entries.setdefault(key, [])
            entries[:] = [e for e in entries if not e.once]
            entries.insert(0, entry)
            self._bound_size()
            self._last, self._alike = entry, None
            return run(entry, leaves)

    def _bound_size(self) -> None:
        while sum(map(len, self._entries.values())) > _MOST_CAPTURES:
            oldest = next(iter(self._entries))
            self._entries[oldest].pop()
            if not self._entries[oldest]:
                del self._entries[oldest]

    def _learn_floats(self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool) -> Any:
        """Make a float argument an input when only its value differs from an earlier call's."""
        group = (structure, has_kwargs)
        if key in self._entries or group in self._frozen:
            return key
        for old in self._entries:
            if old[:3] != key[:3]:
                continue
            differing = [k for k, (a, b) in enumerate(zip(old[3], key[3], strict=True)) if a != b]
            if differing and all(type(leaves[k]) is float and _was_float(old[3][k]) for k in differing):
                self._floats.setdefault(group, set()).update(differing)
                return self._signature(leaves, structure, has_kwargs)
        return key

    def _learn_sources(self, key: Any) -> None:
        """Note which frozen floats are the reason why no capture fits."""
        for entry in self._entries.get(key, ()):
            for guard in entry.guards.floats():
                if not guard.holds() and type(guard.source.read()) is float:
                    self._varying.setdefault(guard.source.name, True)

    def _trace_sized(
        self, plain: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool, sizes: Sizes
    ) -> tuple[Any, Entry]:
        """Return the capture for as many sizes as the function allows, and its key.

        What it asks of sizes is answered for those at hand, and it is captured again.
        """
        for _ in range(_MOST_QUESTIONS):
            symbolic = sizes.symbolic(_types(plain))
            if not symbolic:
                break
            key = _with_types(plain, symbolic.types)
            try:
                made = self._trace(key, leaves, structure, has_kwargs, symbolic)
                sizes.keep(symbolic)
                return made
            except UndecidedError as error:
                sizes.learn(error, symbolic.names, symbolic.values)
            except Exception:  # Python may need an int in a hundred ways; the same call without symbols tells
                found = self._trace(plain, leaves, structure, has_kwargs)
                sizes.fix_all()
                return found
        return self._trace(plain, leaves, structure, has_kwargs)

    def _trace(
        self, key: Any, leaves: list[Any], structure: tree.Structure, has_kwargs: bool,
        symbolic: Symbolic | None = None,
    ) -> tuple[Any, Entry]:  # fmt: skip
        """Return the capture and its key; where Python needs a number that was made an input, freeze that
        number after all.
        """
        capture = Recording(self._function, self._name, leaves, structure, has_kwargs, key, symbolic)
        try:
            return key, capture.run(self._varying)
        except CaptureError:
            if not capture.scalars:
                raise
            self._frozen.add((structure, has_kwargs))
            self._floats.pop((structure, has_kwargs), None)
            self._varying.update(dict.fromkeys(capture.floats_used, False))
            key = self._signature(leaves, structure, has_kwargs)
            key = key if symbolic is None else _with_types(key, symbolic.types)
            again = Recording(self._function, self._name, leaves, structure, has_kwargs, key, symbolic)
            return key, again.run(self._varying)


@functools.lru_cache(maxsize=64)
def _flat(count: int) -> tree.Structure:
    return tree.flatten((0,) * count)[1]


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tree.Structure]:
    """Take arguments apart; in one step where they are tensors, arrays and numbers only."""
    if not kwargs:
        for x in args:  # a loop: a generator would take longer than what it yields
            if not isinstance(x, _LEAVES):
                break
        else:
            return list(args), _flat(len(args))
    return tree.flatten((args, kwargs) if kwargs else args)


_LEAVES = (Tensor, np.ndarray, bool, int, float, str)


def _types(key: Any) -> dict[int, TensorType]:
    """Return the types of arguments whose sizes may be symbols: data, which takes no gradient."""
    return {
        k: part[0]
        for k, part in enumerate(key[3])
        if isinstance(part, tuple) and isinstance(part[0], TensorType) and part[0].ndim and not any(part[1:3])
    }


def _with_types(key: Any, types: dict[int, TensorType]) -> Any:
    """Return a signature with other types of some arguments."""
    if not types:
        return key
    parts = tuple((types[k], *part[1:]) if k in types else part for k, part in enumerate(key[3]))
    return (*key[:3], parts)


def _rank(part: Any) -> Any:
    """Return what stays of an argument's part of a signature when sizes do not count."""
    if not isinstance(part, tuple) or not isinstance(part[0], TensorType) or any(part[1:3]):
        return part
    return (part[0].dtype, part[0].ndim, *part[1:])


def _part(part: Any) -> str:
    if isinstance(part, tuple) and part and isinstance(part[0], TensorType):
        return str(part[0])
    return repr(part[1]) if isinstance(part, tuple) else "float"


def _was_float(part: Any) -> bool:
    return part is float or (isinstance(part, tuple) and part[0] is float)


# -- the decorator -------------------------------------------------------------------------------------------
class CompiledModule:
    """A module whose call is compiled; every other attribute is the module's."""

    def __init__(self, module: Any, dynamic: bool | None = None) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_compiled", Compiled(module.__call__, type(module).__name__, dynamic))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("captures", "explain", "graph", "plan", "program", "reasons"):
            return getattr(self._compiled, name)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __repr__(self) -> str:
        return f"compiled {self._module!r}"


def compile(function: Any = None, *, name: str | None = None, dynamic: bool | None = None) -> Any:
    """Capture a function, or a module's call, once per signature and replay it with one program call. Also a
    decorator.

    The signature is the types of tensors, Python arguments, and whether gradients are on; Python values read
    through closures, globals, modules and containers are frozen, and captured again when they change. Tensors
    read that way are inputs, and those changed inside are written back.

    Sizes of data that change from call to call do not need a program each: from the second size of an axis on
    (`dynamic=True`: from the first call on) one program serves all sizes up to a bound, with means and
    gradients of the true sizes. `dynamic=False` captures each size by itself.
    """
    if function is None:
        return functools.partial(compile, name=name, dynamic=dynamic)
    if hasattr(function, "forward") and hasattr(function, "named_parameters"):
        return CompiledModule(function, dynamic)
    return Compiled(function, name, dynamic)


__all__ = ["Compiled", "CompiledModule", "Guard", "compile", "note_mutation"]
