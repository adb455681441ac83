"""What Stratal's own functions read of modules, optimizers and their like, found by walking over them.

Code of the package is not observed while a function is captured. It reads the attributes of objects of its
own classes; of an object of a user's class made of one, the parts it knows: a module's tables and hooks.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from stratal.tensor.capture.containers import CONTAINERS, contents_of, parts_of, subscript
from stratal.tensor.capture.guards import Guard, Guards
from stratal.tensor.capture.locations import ClassAttribute, Item, Location, Measured, Zero
from stratal.tensor.capture.objects import fields_of, ours, stateful, tables_of
from stratal.tensor.capture.plain import plain
from stratal.tensor.tensor import Tensor

_ANNOUNCING = ("stratal.nn.", "stratal.optim.optimizer", "stratal.optim.group")
_OWN_STATE = ("stratal.tensor.functions.", "stratal.tensor.capture.")
_READ = frozenset({"training", "forward"})  # of modules of a user's class, beside private ones
_UNREAD = frozenset({"_compiled", "_x"})  # what captures keep with a module; what `x.at` is of for good


class _Walk:
    """One walk over objects of Stratal's classes; their guards go to `guards`."""

    def __init__(self, guards: Guards, names: dict[int, str]) -> None:
        self.guards, self.names = guards, names
        self.seen: dict[int, Any] = {}

    def guard(self, location: Location, announced: bool) -> None:
        """Guard what stands in a place now."""
        target = self.guards.announced if announced else self.guards.always
        target.append(Guard(location, location.read()))

    def visit(self, value: Any, name: str, announced: bool) -> None:
        """Guard what is read of a value that stands in a place already guarded."""
        if isinstance(value, Tensor):
            self.guards.names.setdefault(id(value), name)
        elif plain(value) or id(value) in self.seen:
            return
        elif stateful(value):
            self.seen[id(value)] = value
            self.object(value, name)
        elif isinstance(value, (*CONTAINERS, tuple, frozenset)):
            self.seen[id(value)] = value
            self.container(value, name, announced)

    def container(self, value: Any, name: str, announced: bool) -> None:
        if isinstance(value, CONTAINERS):
            self.guard(Measured(value, contents_of, f"what {name} holds"), announced)
        if isinstance(value, dict):
            for key, part in dict.items(value):
                self.visit(part, f"{name}{subscript(key)}", announced)
        else:
            for k, part in enumerate(parts_of(value)):
                self.visit(part, f"{name}[{k}]", announced)

    def object(self, value: Any, name: str) -> None:
        kind = type(value)
        name = self.names.setdefault(id(value), name)
        announced = any(c.__module__.startswith(_ANNOUNCING) for c in kind.__mro__)
        if kind.__module__.startswith(_OWN_STATE):  # generators and compiled functions
            return
        if isinstance(value, dict):
            self.group(value, name, announced)
        fields = fields_of(value)
        if fields is None:
            return
        self.guard(Measured(value, type, f"the class of {name}"), announced)
        whole = ours(kind)
        if not whole:
            self.methods(kind)
        tables = tables_of(value)
        if tables and "forward" not in fields:
            self.guard(Item(fields, "forward", f"{name}.forward"), announced)
        for key, field in list(fields.items()):
            if any(field is table for table in tables):
                self.table(field, key, name, announced)
            elif key not in _UNREAD and (whole or key.startswith("_") or key in _READ):
                self.guard(Item(fields, key, f"{name}.{key}"), announced)
                self.visit(field, f"{name}.{key}", announced)

    def table(self, table: dict[str, Any], key: str, name: str, announced: bool) -> None:
        """Guard a module's parameters, buffers or parts."""
        self.guard(Measured(table, tuple, f"the {key[1:]} of {name}"), announced)
        for child, part in table.items():
            self.guard(Item(table, child, f"{name}.{child}"), announced)
            self.visit(part, f"{name}.{child}", announced)

    def group(self, group: dict[Any, Any], name: str, announced: bool) -> None:
        """Guard hyper-parameters; of those that programs read from cells, whether they are zero."""
        inputs = getattr(group, "_runtime", ())
        self.guard(Measured(group, tuple, f"the keys of {name}"), announced)
        for key, value in dict.items(group):
            label = f"{name}{subscript(key)}"
            if key in inputs and isinstance(value, float):
                self.guard(Zero(group, key, f"whether {label} is 0"), announced)
            elif key != "betas" or not getattr(group, "_betas", ()):  # those are read from cells
                self.guard(Item(group, key, label), announced)
                self.visit(value, label, announced)

    def methods(self, kind: type) -> None:
        """Guard what Stratal's functions call of a user's class."""
        for c in kind.__mro__:
            if ours(c):
                break
            for name in ("forward", "__call__"):
                method = c.__dict__.get(name)
                if isinstance(method, types.FunctionType) and id(method) not in self.seen:
                    self.seen[id(method)] = c
                    self.guard(ClassAttribute(c, name, f"{c.__name__}.{name}"), False)


def guard_stateful(
    guards: Guards, objects: Iterable[Any], names: dict[int, str], replayed: dict[int, Any]
) -> None:
    """Add guards on all that Stratal's functions may read of some objects; `carried` ones may change."""
    walk = _Walk(guards, names)
    walk.seen |= {key: x for key, x in replayed.items() if not isinstance(x, dict)}
    for value in objects:
        walk.visit(value, names.get(id(value), type(value).__name__), False)
