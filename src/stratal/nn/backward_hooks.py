"""Backward hooks: functions called with the gradients of a module's results and inputs, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.hooks import Hooks, in_order
from stratal.tensor.tensor import Tensor
from stratal.tensor.transformations.gradients import Gradients, tracked, watched


class WatchedCall:
    """One call of a module whose backward hooks run when gradients pass it.

    Inputs and results are seen as they enter and leave: `inputs` before forward, `results` after it. Of the
    inputs those in a positional argument of their own are watched. Hooks are those of the time of the call.
    """

    def __init__(self, module: Any, before: Hooks, after: Hooks) -> None:
        self.module, self.before, self.after = module, in_order(before), in_order(after)
        self.label = type(module).__name__
        self.seen: tuple[Tensor | None, ...] = ()  # the gradients of the results
        self.num_inputs = 0
        self.takes_gradients = False

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the call, those that take gradients watched."""
        self.num_inputs = len(args)
        places = [k for k, x in enumerate(args) if tracked(x)]
        self.takes_gradients = bool(places and self.after)
        return self._watch(args, places, self._at_inputs) if self.takes_gradients else args

    def results(self, result: Any) -> Any:
        """Return the result of the call, watched.

        Raises: AttributeValueError for what is neither a tensor nor a tuple with tensors.
        """
        parts = result if isinstance(result, tuple) else (result,)
        if not any(isinstance(x, Tensor) for x in parts):
            raise AttributeValueError(
                f"{self.label}: backward hooks need a result that is a tensor or a tuple of tensors",
                got=type(result).__name__, hint="register the hook on the module that makes the tensor",
            )  # fmt: skip
        places = [k for k, x in enumerate(parts) if tracked(x)]
        if not places:
            return result
        made = self._watch(parts, places, self._at_results)
        if not isinstance(result, tuple):
            return made[0]
        return type(result)(*made) if hasattr(result, "_fields") else made

    def _watch(
        self, parts: tuple[Any, ...], places: list[int], then: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """Return values, those in some places watched: `then` is called with a gradient for each value."""

        count = len(parts)  # the tensors themselves must not live as long as the graph

        def watcher(gradients: Gradients) -> Gradients:
            every: list[Tensor | None] = [None] * count
            for k, gradient in zip(places, gradients, strict=True):
                every[k] = gradient
            found = then(tuple(every))
            return [found[k] for k in places]

        fresh = iter(watched(f"{self.label}: backward hook", [parts[k] for k in places], watcher))
        return tuple(next(fresh) if k in places else x for k, x in enumerate(parts))

    def _at_results(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.before:
            gradients = self._replaced(gradients, hook.function(self.module, gradients))
        if self.takes_gradients:
            self.seen = gradients
        else:
            for hook in self.after:
                found = hook.function(self.module, (None,) * self.num_inputs, gradients)
                if found is not None and any(x is not None for x in _as_tuple(found)):
                    raise AttributeValueError(
                        f"{self.label}: no input takes a gradient that a hook could replace",
                        got=f"{len(_as_tuple(found))} gradients", hint="return None from the hook",
                    )  # fmt: skip
        return gradients

    def _at_inputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        seen, self.seen = self.seen, ()  # the graph holds this call longer than anybody needs them
        for hook in self.after:
            gradients = self._replaced(gradients, hook.function(self.module, gradients, seen))
        return gradients

    def _replaced(self, gradients: tuple[Any, ...], found: Any) -> tuple[Any, ...]:
        """Return what a hook returned in place of gradients; None leaves them."""
        if found is None:
            return gradients
        new = _as_tuple(found)
        if len(new) != len(gradients) or not all(x is None or isinstance(x, Tensor) for x in new):
            raise ShapeError(
                f"{self.label}: a backward hook returns None or a gradient for each it was given",
                got=f"({', '.join(type(x).__name__ for x in new)}) for {len(gradients)}",
            )
        return new


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, Sequence) else (found,)
