"""Modules that hold other modules or parameters: in a row, by number, by name."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError, IndexOutOfRangeError
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter

Self = TypeVar("Self", bound="_Numbered")


class _Numbered(Module):
    """Children under the names "0", "1", ... in order."""

    def _items(self) -> list[Module]:
        return list(self._modules.values())

    def _renumber(self, modules: Iterable[Module]) -> None:
        for name in list(self._modules):
            delattr(self, name)
        for k, module in enumerate(modules):
            self.add_module(str(k), module)

    def _position(self, index: Any) -> int:
        position = operator.index(index)
        size = len(self._modules)
        if not -size <= position < size:
            raise IndexOutOfRangeError(f"{type(self).__name__}: has {size} modules", got=f"index {position}")
        return position % size

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())

    def __getitem__(self: Self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._like(dict(list(self._modules.items())[index]))
        return self._items()[self._position(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(list(self._modules)[self._position(index)], module)

    def __delitem__(self, index: int | slice) -> None:
        kept = self._items()
        del kept[index if isinstance(index, slice) else self._position(index)]
        self._renumber(kept)

    def _like(self: Self, modules: dict[str, Module]) -> Self:
        raise NotImplementedError

    def append(self: Self, module: Module) -> Self:
        """Add a module at the end and return self."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Add modules at the end and return self."""
        for module in modules:
            self.append(module)
        return self

    def insert(self: Self, index: int, module: Module) -> Self:
        """Put a module before position `index` and return self."""
        items = self._items()
        items.insert(index, module)
        self._renumber(items)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take a module out, by default the last, and return it."""
        module = self._items()[self._position(index)]
        del self[index]
        return module

    def __add__(self: Self, other: Iterable[Module]) -> Self:
        return self._like({str(k): module for k, module in enumerate([*self, *other])})

    def __iadd__(self: Self, other: Iterable[Module]) -> Self:
        return self.extend(other)


class Sequential(_Numbered):
    """Call modules one after another. Takes modules, or one dict of names to modules."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for k, module in enumerate(modules):
                self.add_module(str(k), module)

    def _like(self, modules: dict[str, Module]) -> Sequential:
        return Sequential(modules)

    def __mul__(self, times: int) -> Sequential:
        if not isinstance(times, int) or times < 1:
            raise AttributeValueError("Sequential: is repeated a positive number of times", got=repr(times))
        return Sequential(*(list(self) * times))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules that is found when walking the tree."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _like(self, modules: dict[str, Module]) -> ModuleList:
        return ModuleList(modules.values())

    def _shown_children(self) -> Iterator[tuple[str, str]]:
        """Yield equal neighbours once, with how many there are."""
        first = 0
        for text, equal in itertools.groupby(map(repr, self)):
            count = len(list(equal))
            last = first + count - 1
            yield (str(first), text) if count == 1 else (f"{first}-{last}", f"{count} x {text}")
            first = last + 1


class NamedEntries(Module):
    """A dict whose entries stand in one table of a module, the one that `_entries` returns."""

    def _entries(self) -> dict[str, Any]:
        raise NotImplementedError

    def _put(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        for name, value in entries.items() if isinstance(entries, Mapping) else entries:
            self[name] = value

    def __getitem__(self, key: str) -> Any:
        return self._entries()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        raise NotImplementedError

    def __delitem__(self, key: str) -> None:
        if key not in self._entries():
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries()))

    def __contains__(self, key: str) -> bool:
        return key in self._entries()

    def clear(self) -> None:
        """Take all entries out."""
        for key in list(self):
            del self[key]

    def pop(self, key: str) -> Any:
        """Take an entry out and return it."""
        value = self[key]
        del self[key]
        return value

    def keys(self) -> Iterable[str]:
        return self._entries().keys()

    def values(self) -> Iterable[Any]:
        return self._entries().values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._entries().items()


class ModuleDict(NamedEntries):
    """A dict of modules that is found when walking the tree."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        super().__init__()
        self.update(modules)

    def _entries(self) -> dict[str, Any]:
        return self._modules

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules by name."""
        self._put(modules)

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)


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
        self.register_parameter(str(len(self)), _parameter(value))
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
        return self._parameters[str(position % size)]

    def __setitem__(self, index: int, value: Any) -> None:
        size, position = len(self), operator.index(index)
        if not -size <= position < size:
            raise AttributeValueError(f"ParameterList: has {size} parameters", got=f"index {position}")
        setattr(self, str(position % size), _parameter(value))

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {p.dtype} {list(p.shape)}" for k, p in enumerate(self))


class ParameterDict(NamedEntries):
    """A dict of parameters that is found when walking the tree. Other tensors become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self.update(parameters)

    def _entries(self) -> dict[str, Any]:
        return self._parameters

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add or replace parameters by name."""
        self._put(parameters)

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _parameter(value))

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

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {p.dtype} {list(p.shape)}" for k, p in self.items())
