"""Hooks of optimizers: functions called around steps and state dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn.hooks import HookHandle, Hooks, in_order, register

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Hooked:
    """What registers hooks of an optimizer and calls them; every `register_` method returns a handle that
    removes the hook.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, Hooks] = {
            "before step": {}, "after step": {}, "before state": {}, "after state": {}, "before load": {},
            "after load": {},
        }  # fmt: skip

    def _register(self, when: str, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        return register(self._hooks[when], hook, False, prepend)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(optimizer, args, kwargs)` before each step, `args` with the optimizer in front; what it
        returns, unless None, is the (args, kwargs) of the step.
        """
        return self._register("before step", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return self._register("after step", hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(optimizer)` before a state dict is made."""
        return self._register("before state", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(optimizer, state_dict)` on every state dict made; what it returns, unless None, replaces
        it.
        """
        return self._register("after state", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer, state_dict)` on a copy of every state dict before it is loaded; what it
        returns, unless None, replaces it.
        """
        return self._register("before load", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(optimizer)` after a state dict was loaded."""
        return self._register("after load", hook, prepend)

    def _hooks_steps(self) -> bool:
        return bool(self._hooks["before step"] or self._hooks["after step"])

    def _told(self, when: str) -> None:
        for hook in in_order(self._hooks[when]):
            hook.function(self)

    def _passed(self, when: str, value: Any) -> Any:
        """Return a value after the hooks that may replace it."""
        for hook in in_order(self._hooks[when]):
            found = hook.function(self, value)
            value = value if found is None else found
        return value

    def _before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        for hook in in_order(self._hooks["before step"]):
            found = hook.function(self, args, kwargs)
            if found is None:
                continue
            if not isinstance(found, tuple) or len(found) != 2:
                raise AttributeValueError(
                    f"{type(self).__name__}: a hook before steps returns None or (args, kwargs)",
                    got=type(found).__name__,
                )
            args, kwargs = found
        return args, kwargs

    def _after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for hook in in_order(self._hooks["after step"]):
            hook.function(self, args, kwargs)
