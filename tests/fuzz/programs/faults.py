"""Faults planted in capture, which the fuzzers must find.

A row names the function a fault stands in (the first of its places that exists) and makes a worse one of
it. A row whose function is gone is reported, and is to be pointed at what took its place.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CAPTURE = "stratal.tensor.capture"
Worse = Callable[[Any], Any]


class Gone(LookupError):
    """No place of a fault exists any more."""


@dataclass(frozen=True)
class Fault:
    """`places` are `module:Class.function`; `worse` makes the faulty function of the right one."""

    name: str
    places: tuple[str, ...]
    worse: Worse

    def plant(self) -> None:
        owner, name = self.found()
        setattr(owner, name, self.worse(getattr(owner, name)))

    def found(self) -> tuple[Any, str]:
        """Return what the function is an attribute of, and its name there."""
        for place in self.places:
            module, _, path = place.partition(":")
            *owners, name = path.split(".")
            try:
                owner = functools.reduce(getattr, owners, importlib.import_module(f"{CAPTURE}.{module}"))
                getattr(owner, name)
            except (ImportError, AttributeError):
                continue
            return owner, name
        raise Gone(f"{self.name}: none of {', '.join(self.places)} exists")


def _gives(value: Any) -> Worse:
    return lambda original: lambda *args, **kwargs: value


def _first(original: Any) -> Any:
    """Give what the first call with this object gave."""
    kept: dict[int, Any] = {}

    def worse(self: Any, *args: Any) -> Any:
        if id(self) not in kept:
            kept[id(self)] = self, original(self, *args)
        return kept[id(self)][1]

    return worse


def _kept_result(original: Any) -> Any:
    """Make what the first call made."""
    kept: dict[int, Any] = {}

    def worse(self: Any, filling: Any, made: dict[int, Any]) -> None:
        original(self, filling, made)
        made[id(self)] = kept.setdefault(id(self), made[id(self)])

    return worse


def _key(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Worse:
    """Weaken signatures: (structure, layout, modes, parts)."""
    return lambda original: lambda *args: change(original(*args))


def _parts(change: Callable[[Any], Any]) -> Worse:
    return _key(lambda key: (*key[:3], tuple(change(part) for part in key[3])))


def _is_tensor(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 4


def _is_object(part: Any) -> bool:
    return isinstance(part, tuple) and type(part[1]).__name__ == "ByIdentity"


def _unguarded(original: Any) -> Any:
    return lambda self, expected: (lambda at: expected, None, expected)


def _reversed(original: Any) -> Any:
    return lambda entry, outputs, *args: original(entry, outputs[::-1], *args)


def _stale_handles(original: Any) -> Any:
    """Give what tensors from outside held when they were first read."""
    kept: dict[int, Any] = {}

    def worse(self: Any, arguments: Any) -> Any:
        tensors, inputs = original(self, arguments)
        if id(self) not in kept:
            kept[id(self)] = self, [type(s).copy_of(s.array, s.type) for s in inputs]
        handles = {k for k, h in enumerate(self.handles) if hasattr(h, "detach")}
        first = [type(s).copy_of(s.array, s.type) for s in kept[id(self)][1]]
        return tensors, [first[k] if k in handles else s for k, s in enumerate(inputs)]

    return worse


def _only_guards(original: Any) -> Any:
    return lambda self, arguments: self.guards.failed()


def _equal(original: Any) -> Any:
    return lambda self: self.place.read() == self.expected


def _half(original: Any) -> Any:
    def worse(effects: Any, filling: Any) -> Any:
        return original(list(effects)[:-1], filling)

    return worse


_SIGNATURE = ("compiled:Compiled._signature",)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("guards are not compared", ("guards:Guards.failed",), _gives(None)),
        Fault("announced guards are not compared", ("guards:Guards._failed_since",), _gives(None)),
        Fault("a guard that fails at a glance holds", ("guards:Guard.holds",), _gives(True)),
        Fault("a guard compares by ==", ("guards:Guard.holds",), _equal),
        Fault("closure cells are not guarded", ("locations:Cell.quick",), _unguarded),
        Fault("items of dicts are not guarded", ("locations:Item.quick",), _unguarded),
        Fault("elements of lists are not guarded", ("locations:Element.quick",), _unguarded),
        Fault("class attributes are not guarded", ("locations:ClassAttribute.quick",), _unguarded),
        Fault("slots are not guarded", ("locations:Slot.quick",), _unguarded),
        Fault(
            "lengths and keys are not guarded",
            ("locations:Measured.quick", "locations:Location.quick"), _unguarded
        ),
        Fault(
            "signature without values",
            _SIGNATURE,
            _parts(lambda p: p if _is_tensor(p) or p is float else p[0]),
        ),
        Fault(
            "signature without types of values",
            _SIGNATURE,
            _parts(lambda p: p if _is_tensor(p) or p is float else p[1]),
        ),
        Fault(
            "signature without the alias pattern", _SIGNATURE, _parts(lambda p: p[:3] if _is_tensor(p) else p)
        ),
        Fault(
            "signature without which arguments take gradients",
            _SIGNATURE,
            _parts(lambda p: (p[0], False, False, p[3]) if _is_tensor(p) else p),
        ),
        Fault("signature without modes", _SIGNATURE, _key(lambda key: (*key[:2], (), key[3]))),
        Fault("signature without the order of dicts", _SIGNATURE, _key(lambda key: (key[0], None, *key[2:]))),
        Fault("objects by their type", _SIGNATURE, _parts(lambda p: p[0] if _is_object(p) else p)),
        Fault("outputs in reverse", ("replay:results",), _reversed),
        Fault("results of the first call", ("results:Argument.make",), _kept_result),
        Fault("updates are lost", ("assembly:Run.written",), lambda original: property(lambda self: [])),
        Fault("tensors that outlive the call are lost", ("replay:leave_trace",), _gives(None)),
        Fault("gradients are lost", ("assembly:Run.grads",), lambda original: property(lambda self: [])),
        Fault("effects are lost", ("replay:apply_effects", "results:apply_effects"), _gives(None)),
        Fault("the last effect is lost", ("replay:apply_effects", "results:apply_effects"), _half),
        Fault("attributes keep their value", ("effects:SetLocation.apply",), _gives(None)),
        Fault("carried calls are lost", ("effects:CallMethods.apply",), _gives(None)),
        Fault("aliases of arguments are ignored", ("replay:Alias.failed",), _gives(None)),
        Fault("gradients that were there before are ignored", ("replay:Entry.failed",), _only_guards),
        Fault("tensors of the closure are frozen", ("replay:Gather.__call__",), _stale_handles),
        Fault("floats are frozen", ("replay:FromFloat.storage",), _first),
        Fault("arrays are frozen", ("replay:FromArray.storage",), _first),
        Fault("tensors that are put in places are frozen", ("replay:FromLocation.tensor",), _first),
        Fault("sizes are frozen", ("replay:FromSize.storage",), _first),
    )
}
