"""Templates: what a replay returns and writes, to be filled with the outputs of a program.

template := output of the program | argument of the call, or what stands in one | value from before the call
          | gradient of a tensor | copy of numbers | object made anew of templates
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stratal.base.types import TensorType
from stratal.graph.op import Op
from stratal.ops.views.in_memory import Layout
from stratal.tensor.api.display import text_of
from stratal.tensor.capture.locations import Location
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.binding import become_leaf, take_value
from stratal.tensor.values.handle import attach, invalidate, view_of_itself
from stratal.tensor.values.memory import Memory, View
from stratal.tensor.values.view_ops import sized

Path = tuple[Any, ...]  # from (args, kwargs) to something in an argument


class Bindings:
    """The values of one call: its arguments, and a handle for each output that somebody gets."""

    __slots__ = ("_groups", "_handle", "_made", "_memories", "_sizes", "args", "kwargs")

    def __init__(
        self, args: Sequence[Any], kwargs: dict[str, Any], handle: Callable[[Output], Tensor],
        sizes: dict[str, int],
    ) -> None:  # fmt: skip
        self.args, self.kwargs = args, kwargs
        self._handle, self._sizes = handle, sizes
        self._made: dict[int, Any] = {}
        self._memories: dict[int, Memory] = {}
        self._groups: dict[int, object] = {}

    def fill(self, template: Template) -> Any:
        """Return the value of a template, the same one each time."""
        if id(template) not in self._made:
            template.make(self, self._made)
        return self._made[id(template)]

    def put(self, template: Template, value: Any) -> None:
        """Let a template be a value that is known."""
        self._made[id(template)] = value

    def show(self, tensor: Tensor, shown: Shown) -> None:
        """Let an output be a view of what it was one of when it was captured."""
        parent, memory = None, None
        if shown.base is None:
            memory = self._memories.setdefault(shown.memory, Memory(shown.type))
        else:
            base = self.fill(shown.base)
            parent = base._view or view_of_itself(base)
            invalidate(base)  # what writes that memory later must look who shows it
        ops = tuple(sized(op, self._sizes) for op in shown.ops) if self._sizes else shown.ops
        group = None if shown.group is None else self._groups.setdefault(shown.group, object())
        attach(tensor, View(memory, parent, ops, tensor.type, group, shown.layout))


class Shown(NamedTuple):
    """The memory that an output shows: that of a tensor from before the call, or one that the call makes."""

    base: Template | None
    memory: int
    type: TensorType  # of the origin
    ops: tuple[Op, ...]
    group: int | None  # None: the base's
    layout: Layout | None


class Output(NamedTuple):
    """An output of the program; `track` is what its tensor is to gradients."""

    number: int
    track: int
    shown: Shown | None = None

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = tensor = bindings._handle(self)
        if self.shown is not None:
            bindings.show(tensor, self.shown)


class Leaf(NamedTuple):
    """An output that is more than a value: a parameter, a leaf, a tensor with a gradient or attributes."""

    output: Output
    kind: type[Tensor]
    leaf: bool
    grad: Template | None
    fields: dict[str, Template]

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        tensor = bindings.fill(self.output)
        if self.kind is not Tensor:
            take_value(found := self.kind.__new__(self.kind), tensor)
            tensor = found
        made[id(self)] = tensor
        if self.leaf:
            become_leaf(tensor)
        if self.grad is not None:
            tensor.grad = bindings.fill(self.grad)
        for name, field in self.fields.items():
            setattr(tensor, name, bindings.fill(field))


def at(given: Any, path: Path) -> Any:
    """Return what stands at a path from the arguments of a call."""
    value: Any = (given.args, given.kwargs)
    for key in path:
        value = value[key]
    return value


class Argument(NamedTuple):
    """An argument of the call, or what is found in one along a path."""

    path: Path

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = at(bindings, self.path)


class Value(NamedTuple):
    """A value that is the same in each call."""

    value: Any

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = self.value


class PriorTensor:
    """A tensor from before the run; where each call finds another one in a place, or as the gradient of a
    tensor, that one.
    """

    __slots__ = ("gradient", "location", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.location: Location | None = None
        self.gradient: Any = None  # how it is read, before the program runs

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = self.tensor if self.location is None else self.location.read()


class Gradient(NamedTuple):
    """The gradient that a tensor has after the program has run."""

    owner: Template

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = bindings.fill(self.owner).grad


class Text(NamedTuple):
    """Text with values in it, each with how it is shown."""

    parts: list[str | tuple[Template, str, str, str]]

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = "".join(x if isinstance(x, str) else _shown(bindings, *x) for x in self.parts)


def _shown(bindings: Bindings, value: Template, spec: str | None, name: str, gradient: str) -> str:
    tensor = bindings.fill(value)
    return text_of(tensor, name, gradient) if spec is None else format(tensor, spec)


class Copied(NamedTuple):
    """A new array of numbers or bytes."""

    array: Any

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        made[id(self)] = copy.copy(self.array)


class Made(NamedTuple):
    """A new object: built of its parts, then given what may be, or hold, the object itself."""

    kind: type
    build: Callable[[list[Any]], Any]
    parts: list[Template]
    put: Callable[[Any, list[Any]], Any]
    contents: list[Template]
    fields: dict[str, Template]

    def make(self, bindings: Bindings, made: dict[int, Any]) -> None:
        parts = [bindings.fill(part) for part in self.parts]
        if id(self) in made:  # one of its parts holds it
            return
        made[id(self)] = value = self.build(parts)
        if self.contents:
            self.put(value, [bindings.fill(part) for part in self.contents])
        for name, field in self.fields.items():
            object.__setattr__(value, name, bindings.fill(field))


Template = Output | Leaf | Gradient | Argument | Value | PriorTensor | Text | Copied | Made
