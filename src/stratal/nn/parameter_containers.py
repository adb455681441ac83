"""Modules that hold parameters: by number, by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stratal.base.errors import AttributeValueError, IndexOutOfRangeError
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """A list of parameters that is found when walking the tree."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__()
        for value in values:
            self.append(value)

    def append(self, value: Any) -> ParameterList:
        """Add a parameter (or what one can be made of) and return self."""
        parameter = _parameter(value)
        self.register_parameter(str(len(self)), parameter)
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters and return self."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(list(self._parameters.values()))

    def __getitem__(self, index: int) -> Parameter:
        size, position = len(self), operator.index(index)
        if not -size <= position < size:
            raise IndexOutOfRangeError(f"ParameterList: has {size} parameters", got=f"index {position}")
        parameter: Parameter = self._parameters[str(position % size)]
        return parameter

    def __setitem__(self, index: int, value: Any) -> None:
        size, position = len(self), operator.index(index)
        if not -size <= position < size:
            raise AttributeValueError(f"ParameterList: has {size} parameters", got=f"index {position}")
        setattr(self, str(position % size), _parameter(value))

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {p.dtype} {list(p.shape)}" for k, p in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters that is found when walking the tree. Other tensors become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self.update(parameters)

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add or replace parameters by name."""
        for name, value in parameters.items() if isinstance(parameters, Mapping) else parameters:
            self[name] = value

    def __getitem__(self, key: str) -> Parameter:
        if key not in self._parameters:
            raise KeyError(key)
        parameter: Parameter = self._parameters[key]
        return parameter

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        if key not in self._parameters:
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def __contains__(self, key: str) -> bool:
        return key in self._parameters

    def __or__(self, other: Mapping[str, Any]) -> ParameterDict:
        return ParameterDict([*self.items(), *other.items()])

    def __ior__(self, other: Mapping[str, Any]) -> ParameterDict:
        self.update(other)
        return self

    def get(self, key: str, default: Any = None) -> Any:
        """Return a parameter, or `default` where there is none of that name."""
        return self._parameters.get(key, default)

    def setdefault(self, key: str, default: Any) -> Parameter:
        """Return a parameter; where there is none of that name, add one first."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str) -> Parameter:
        """Take a parameter out and return it."""
        parameter = self[key]
        del self[key]
        return parameter

    def clear(self) -> None:
        """Take all parameters out."""
        for key in list(self):
            del self[key]

    def keys(self) -> Iterable[str]:
        return self._parameters.keys()

    def values(self) -> Iterable[Parameter]:
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Parameter]]:
        return self._parameters.items()

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {p.dtype} {list(p.shape)}" for k, p in self.items())
