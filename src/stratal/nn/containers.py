"""Modules that hold other modules: in a row, by number, by name."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError, IndexOutOfRangeError
from stratal.nn.module import Module

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


class ModuleDict(Module):
    """A dict of modules that is found when walking the tree."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        super().__init__()
        self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules by name."""
        for name, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[name] = module

    def __getitem__(self, key: str) -> Module:
        module: Module = self._modules[key]
        return module

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        if key not in self._modules:
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Take all modules out."""
        for key in list(self._modules):
            del self[key]

    def pop(self, key: str) -> Module:
        """Take a module out and return it."""
        module = self[key]
        del self[key]
        return module

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        return self._modules.items()
