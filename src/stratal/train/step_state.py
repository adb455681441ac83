"""What a captured step updates, and what of it a checkpoint has.

A capture shows all state that a step reads and changes: tensors that are written, gradients that are added
to, numbers of Python's, schedules and metrics that are stepped. A run that goes on from a checkpoint has the
bits of the one that was not interrupted only where all of it is held by the net's state dict, the optimizer,
a callback with `state_dict`, a metric of the trainer, or the default generator.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import uint64
from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.base.types import TensorType
from stratal.graph.node import topological
from stratal.nn.module import Module
from stratal.optim import Optimizer
from stratal.optim.grad_scaler import GradScaler
from stratal.optim.group import ParamGroup
from stratal.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.capture.locations import Location
from stratal.tensor.capture.replay import Entry, FromArgument, FromGrad, FromHandle, FromLocation
from stratal.tensor.capture.replayed_calls import CallMethod
from stratal.tensor.functions.random import default_generator
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.handle import Handle
from stratal.train.provenance import compiled_parts

_MOST: Final = 4  # names in a message
_PARTS: Final = 100  # of a container that is looked into: more are data
_NUMBERED: Final = re.compile(r"x\d+")  # inputs without a name
_OF_STATE: Final = re.compile(r"\.state\[.*")  # of which an optimizer has many
_KEY: Final = TensorType(uint64)  # the state of a generator


class Held:
    """What the state dicts of some objects have: tensors, and the objects that these are found in, by id.

    Of a module its parameters and persistent buffers; of an optimizer its state and rates, not the
    parameters; of others all that their attributes lead to.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._seen: dict[int, Any] = {}  # which keeps them alive: ids stay theirs
        for root in roots:
            self._add(root)

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._seen

    def _add(self, value: Any) -> None:
        waiting = [value]
        while waiting:
            found = waiting.pop()
            if id(found) not in self._seen and not isinstance(found, _NO_STATE):
                self._seen[id(found)] = found
                waiting += self._parts(found)

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Module):
            yield from value.state_dict(keep_vars=True).values()
            own = [p for p in value.modules() if type(p).get_extra_state is not Module.get_extra_state]
            yield from (vars(part) for part in own)
        elif isinstance(value, ParamGroup):
            yield from (x for key, x in value.items() if key != "params")
            yield from value.cells()
        elif isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from value
        elif not isinstance(value, Tensor):
            if isinstance(fields := getattr(value, "__dict__", None), dict):
                yield fields
            slots = (name for kind in type(value).__mro__ for name in _slots(kind))
            yield from (getattr(value, name, None) for name in slots)


_NO_STATE: Final = (
    type, str, bytes, int, float, np.ndarray, ModuleType, FunctionType, MethodType, BuiltinFunctionType,
    Compiled, type(None),
)  # fmt: skip


def _slots(kind: type) -> list[str]:
    names = kind.__dict__.get("__slots__", ())
    return [n for n in ([names] if isinstance(names, str) else names) if n not in ("__dict__", "__weakref__")]


def refuse_unheld_state(step: Any, roots: Iterable[Any]) -> None:
    """Raises: AttributeValueError where a step was captured to what updates more than `roots` have."""
    held = Held([*roots, default_generator()])
    entries = [c._last for c in compiled_parts(step).values() if c._last is not None]
    _refuse([name for entry in entries for name in _unheld(entry, held, step)])


def refuse_unheld_parts(step: Any, roots: Iterable[Any]) -> None:
    """Raises: AttributeValueError where a step that is not captured reaches an optimizer, a scaler or a
    schedule that `roots` do not have: what it does with them is not seen.
    """
    if not compiled_parts(step) and not hasattr(step, "pending"):
        held = Held(roots)
        _refuse([name for name, part in _reached(step) if part not in held])


def _refuse(found: Iterable[str]) -> None:
    names = list(dict.fromkeys(_OF_STATE.sub(".state", name) for name in found))
    if names:
        raise AttributeValueError(
            "fit: the step updates what no checkpoint has, so a run that is resumed would differ",
            got=f"{', '.join(names[:_MOST])}{', ..' * (len(names) > _MOST)}",
            hint="optimizer= takes one optimizer, modules can be attributes of the net; a callback that has "
            "state_dict and load_state_dict holds what else there is",
        )  # fmt: skip


def _reached(step: Any) -> Iterator[tuple[str, Any]]:
    """Yield what changes state of what a function's variables lead to, with the variable's name; functions
    that it calls are followed.
    """
    waiting, seen = [("step", step)], set[int]()
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Optimizer | GradScaler | LRScheduler | ReduceLROnPlateau):
            yield name, value
        elif isinstance(value, FunctionType):
            waiting += _variables(value)
        elif isinstance(value, MethodType):
            waiting += [("step", value.__func__), *vars(value.__self__).items()]
        elif isinstance(value, dict | list | tuple):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{name}[{key!r}]", x) for key, x in items] if len(value) <= _PARTS else []
        elif not isinstance(value, (*_NO_STATE, Tensor, Module)) and _is_users(type(value)):
            waiting += [(f"{name}.{key}", x) for key, x in getattr(value, "__dict__", {}).items()]


def _variables(function: FunctionType) -> list[tuple[str, Any]]:
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return []
    return [*found.nonlocals.items(), *found.globals.items()] if _is_users(function) else []


def _is_users(value: Any) -> bool:
    return not str(value.__module__).startswith("stratal.")


def refuse_idle_step(step: Any, net: Module, *, whole_epoch: bool = False) -> None:
    """Raises: CallOrderError where a step has no capture that updates state of the net. One that makes
    gradients may do so in a later batch, until an epoch is over.
    """
    entries = [e for c in compiled_parts(step).values() for found in c._entries.values() for e in found]
    own = {id(x) for x in net.state_dict(keep_vars=True).values()}
    own |= {id(x) for x in (*net.parameters(), *net.buffers())}
    for entry in entries:
        if entry.calls_back or (entry.grads and not whole_epoch):
            return
        if own & {id(x) for _, x in _written(entry)}:
            return
    others = list(dict.fromkeys(name for entry in entries for name, _ in _written(entry)))
    if entries:
        names = f"{', '.join(others[:_MOST])}{', ..' * (len(others) > _MOST)}"
        raise CallOrderError(
            "fit: the step updates nothing of the net, so nothing would be trained",
            got=f"a step that updates {names}" if others else "a step that only computes",
            hint="the Trainer takes the net that is trained" if others
            else "it calls optimizer.zero_grad(), loss.backward() and optimizer.step(); loss= and optimizer= "
            "in place of step= do so, too",
        )  # fmt: skip


def _written(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a call writes and that outlive it, with their names; no gradients."""
    for k in entry.written:
        read: Any = entry.reads[k]
        if not isinstance(read, FromArgument | FromGrad):
            yield _label(entry, k), read.tensor(())
    for found in entry.reads:
        if isinstance(found, FromLocation):
            yield found.location.name, found.tensor(())


def _unheld(entry: Entry, held: Held, step: Any) -> Iterator[str]:
    """Yield the names of what a call has read and changed and is not held. What a TrainingStep accumulates is
    used up when a checkpoint is written.
    """
    accumulates, own = hasattr(step, "pending"), getattr(step, "__dict__", None)
    gradients = {entry.graph.inputs[k] for k, r in enumerate(entry.reads) if isinstance(r, FromGrad)}
    updated = [value for node, value in entry.graph.updates if node not in gradients]
    read = {*topological([*entry.graph.outputs, *updated])}  # gradients: for more than their own sums
    for k in entry.written:
        owner: Any = entry.reads[k]
        if entry.graph.inputs[k] not in read or isinstance(owner, FromArgument):
            continue
        if not isinstance(owner, FromGrad):
            if owner.tensor(()) not in held:
                yield _label(entry, k)
        elif not accumulates and not isinstance(owner.owner, FromArgument):
            tensor: Any = owner.owner.tensor(())
            if tensor._grad is not None and np.asarray(tensor._grad).any():
                yield f"the gradient of {_label_of(entry, tensor)}"
    for place in (r.location for r in entry.reads if isinstance(r, FromLocation)):
        if place.read() not in held:
            yield place.name
    for guard in entry.guards.always:
        holder = _holder(guard.location)
        if not guard.holds() and holder is not own and holder not in held:
            yield guard.location.name
    calls: list[Any] = [*entry.prelude, *(e for e in entry.effects if isinstance(e, CallMethod))]
    yield from (type(call.owner).__name__ for call in calls if call.owner not in held)


def _holder(location: Location) -> Any:
    found = location.holder
    while isinstance(found, Location):
        found = found.holder
    return found


def _label(entry: Entry, position: int) -> str:
    """Return the name of an input; of one that no attribute or variable leads to, what it is."""
    node: Any = entry.graph.inputs[position]
    label = str(getattr(node.op, "label", ""))
    if label and not _NUMBERED.fullmatch(label):
        return label
    return "a generator" if node.aval == _KEY else f"a tensor {node.aval}"


def _label_of(entry: Entry, owner: Handle) -> str:
    found = (k for k, r in enumerate(entry.reads) if isinstance(r, FromHandle) and r.handle is owner)
    return next((_label(entry, k) for k in found), "a tensor")
