"""Hooks: functions called around a module's forward pass and its state dicts, and their removal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stratal.tensor.capture import note_mutation


class Hook(NamedTuple):
    """A function, and whether it takes the keyword arguments of the call too."""

    function: Callable[..., Any]
    with_kwargs: bool = False


Hooks = dict[int, Hook]


class HookHandle(NamedTuple):
    """What registering a hook returns; `remove()`, or the end of a `with` block, takes the hook away."""

    hooks: Hooks
    key: int

    def remove(self) -> None:
        self.hooks.pop(self.key, None)
        note_mutation()

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def register(hooks: Hooks, function: Callable[..., Any], with_kwargs: bool, prepend: bool) -> HookHandle:
    """Add a hook behind the others, or before them."""
    key = min(hooks, default=0) - 1 if prepend else max(hooks, default=-1) + 1
    hooks[key] = Hook(function, with_kwargs)
    note_mutation()
    return HookHandle(hooks, key)


def in_order(hooks: Hooks) -> list[Hook]:
    """Return the hooks in the order in which they are called."""
    return [hooks[key] for key in sorted(hooks)]


def run_before(hooks: Hooks, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call after all hooks; what a hook returns, unless None, replaces them."""
    for hook in in_order(hooks):
        if hook.with_kwargs:
            changed = hook.function(module, args, kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            changed = hook.function(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs


def run_after(hooks: Hooks, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Return the result of a call after all hooks; what a hook returns, unless None, replaces it."""
    for hook in in_order(hooks):
        given = (args, kwargs, result) if hook.with_kwargs else (args, result)
        changed = hook.function(module, *given)
        result = result if changed is None else changed
    return result
