"""Applied: layers that are a function and what it is called with. And what layers print of themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor


class Applied(Module):
    """A layer that calls a function with its inputs and, behind them, its attributes named in `_options`.

    It prints these, or those named in `_shown`.
    """

    _function: ClassVar[Callable[..., Any]]
    _options: ClassVar[tuple[str, ...]] = ()
    _shown: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, function: Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if function is not None:
            cls._function = staticmethod(function)

    def forward(self, input: Tensor) -> Any:
        return self._applied(input)

    def _applied(self, *inputs: Any) -> Any:
        """Return what the function gives for inputs."""
        return self._function(*inputs, *[getattr(self, name) for name in self._options])

    def extra_repr(self) -> str:
        names = self._options if self._shown is None else self._shown
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def changed(layer: Module, **defaults: Any) -> list[str]:
    """Return the attributes of a layer that are not what they are by default, as `name=value`."""
    values = {name: getattr(layer, name) for name in defaults}
    return [f"{name}={value}" for name, value in values.items() if value != defaults[name]]
