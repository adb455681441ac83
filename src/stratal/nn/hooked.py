"""Hooked: the methods of a module that register hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.nn.hooks import HookHandle, Hooks, register

TABLES = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_state_dict_pre_hooks",
    "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


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
