"""Hooks: functions called around a module's forward pass and its state dicts, added and taken away."""

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


class Hooked:
    """What registers hooks in the tables of a module; every method returns a handle that removes the hook."""

    _forward_pre_hooks: Hooks
    _forward_hooks: Hooks
    _backward_pre_hooks: Hooks
    _backward_hooks: Hooks
    _state_dict_pre_hooks: Hooks
    _state_dict_hooks: Hooks
    _load_state_dict_pre_hooks: Hooks
    _load_state_dict_post_hooks: Hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args)` before forward; what it returns, unless None, replaces the arguments.

        With `with_kwargs` it is called with (module, args, kwargs) and returns (args, kwargs) or None.
        """
        return register(self._forward_pre_hooks, hook, with_kwargs, prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args, result)` after forward, or, with `with_kwargs`, (module, args, kwargs,
        result); what it returns, unless None, replaces the result.
        """
        return register(self._forward_hooks, hook, with_kwargs, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(module, grad_output)` when the gradients of the results of a call are known; what it
        returns, unless None, replaces them. Without a gradient an entry of `grad_output` is None.
        """
        return register(self._backward_pre_hooks, hook, False, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the positional arguments of a
        call are known; what it returns, unless None, replaces `grad_input`.

        Hooks run while the gradient is built: in a compiled function once, when it is captured, so that what
        they compute is part of it. One that keeps a tensor makes each call capture again. Not under vmap.
        """
        return register(self._backward_hooks, hook, False, prepend)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, prefix, keep_vars)` before a state dict is made."""
        return register(self._state_dict_pre_hooks, hook, False, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, state_dict, prefix, {})` on every state dict made; it may change the dict."""
        return register(self._state_dict_hooks, hook, False, False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, state_dict, prefix, {}, strict, [], [], [])` on a copy of every state dict
        before it is loaded; it may rename keys.
        """
        return register(self._load_state_dict_pre_hooks, hook, False, False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, result)` after a state dict was loaded."""
        return register(self._load_state_dict_post_hooks, hook, False, False)


TABLES = tuple(Hooked.__annotations__)
