"""What a tensor was taken of: in-place operators on a view write to that tensor, too.

Tensors are values. `row = x[0]` holds what stood there, and goes on holding it when `x` changes; but an
in-place change of `row` is one of `x`, as in NumPy and PyTorch, for as long as somebody holds `x`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from stratal.tensor.handles import look, rebind
from stratal.tensor.state import no_grad

if TYPE_CHECKING:
    from stratal.tensor.tensor import Tensor


class Step(NamedTuple):
    """A call that took a part of a value; `put(value, part, step)` is the value with that part replaced."""

    function: Callable[..., Any]
    put: Callable[[Tensor, Tensor, Step], Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: int | None  # which of several results

    def take(self, value: Tensor) -> Tensor:
        made = self.function(value, *self.args, **self.kwargs)
        return made if self.place is None else made[self.place]  # type: ignore[no-any-return]


class View:
    """The tensor a view was taken of, by which steps, and how often it had been written then."""

    __slots__ = ("apart", "root", "seen", "steps")

    def __init__(self, root: weakref.ref[Tensor], steps: tuple[Step, ...], seen: int, apart: bool) -> None:
        self.root, self.steps, self.seen = root, steps, seen
        self.apart = apart  # from history: x.data, x.detach()

    def mode(self) -> AbstractContextManager[Any]:
        return no_grad() if self.apart else nullcontext()

    def is_at(self, index: Any) -> bool:
        """Return whether this is x[index], for the very object `index`."""
        if not self.steps:
            return False
        step = self.steps[0]
        return len(self.steps) == 1 and step.function.__name__ == "getitem" and step.args[0] is index

    def before(self, root: Tensor) -> list[Tensor]:
        """Return the root's value and what each step takes of the one before."""
        values = [root]
        for step in self.steps:
            values.append(step.take(values[-1]))
        return values


def taken(made: Tensor, base: Tensor, step: Step | None) -> Tensor:
    """Note that `made` was taken of `base` by a step, or all of it without its history; return `made`."""
    if made is not base:
        steps = () if step is None else (step,)
        before = base._view
        if before is None:
            made._view = View(weakref.ref(base), steps, base._writes, step is None)
        else:
            made._view = View(before.root, before.steps + steps, before.seen, before.apart or step is None)
    return made


def refreshed(tensor: Tensor) -> Tensor:
    """Return a tensor that is about to be changed; a view whose root was written since is taken again."""
    view = tensor._view
    root = None if view is None else view.root()
    if view is not None and root is not None and root._writes != view.seen:
        value = view.before(root)[-1]
        if value.type != tensor.type:
            tensor._view = None  # the root was given a value of another type: they have parted
        else:
            with view.mode():
                rebind(tensor, *look(value))
            view.seen = root._writes
    return tensor


def assign(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor a value of its type, and put it into what the tensor is a view of."""
    view = tensor._view
    root = None if view is None else view.root()
    if view is None or root is None:
        rebind(tensor, *look(value))
        return
    whole = value
    for step, before in zip(reversed(view.steps), reversed(view.before(root)[:-1]), strict=True):
        whole = step.put(before, whole, step)
    with view.mode():
        rebind(root, *look(whole))
        rebind(tensor, *look(value))
    view.seen = root._writes
