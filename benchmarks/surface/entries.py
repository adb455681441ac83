"""Every public name, by family; a second name of the same thing is an alias and counts once."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Family(NamedTuple):
    """Names of one kind: where they stand, which of them count, and how many are owed."""

    spaces: tuple[str, ...]
    takes: str  # function | class | any
    owed: int = 0
    base: str = ""  # classes only: what they all are, by module and name
    only: str = ""  # these names alone, with spaces between


FAMILIES: dict[str, Family] = {
    "math": Family(("stratal",), "function", 130),
    "special": Family(("stratal.special",), "function", 25),
    "linalg": Family(("stratal.linalg",), "function", 20),
    "fft": Family(("stratal.fft",), "function"),
    "random": Family(("stratal",), "function", only="bernoulli multinomial normal rand rand_like randint "
                     "randn randn_like randperm"),
    "transforms": Family(("stratal",), "function", only="associative_scan checkpoint cond custom_jvp "
                         "custom_vjp fori_loop grad hessian jacfwd jacobian jacrev jvp linearize map scan "
                         "switch value_and_grad vjp vmap while_loop"),
    "functional": Family(("stratal.nn.functional",), "function", 80),
    "layers": Family(("stratal.nn",), "class", 100, "stratal.nn.module.Module"),
    "optimizers": Family(("stratal.optim",), "class", 14, "stratal.optim.optimizer.Optimizer"),
    "schedules": Family(("stratal.optim.lr_scheduler",), "class"),
    "distributions": Family(("stratal.distributions",), "any", 12),
    "metrics": Family(("stratal.metrics",), "any"),
    "models": Family(("stratal.models",), "any", 20),
}  # fmt: skip
_ROOTS = {"Module", "Optimizer", "LRScheduler", "Distribution", "Metric"}  # what others are made of
_OF_OTHER_FAMILIES = {name for f in FAMILIES.values() for name in f.only.split()}


@dataclass(frozen=True)
class Entry:
    """One public thing: its first name in its family, what it is, and its other names."""

    family: str
    name: str
    value: Any
    aliases: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The name as users write it, `linalg.solve`."""
        space = FAMILIES[self.family].spaces[0].removeprefix("stratal").lstrip(".")
        return f"{space}.{self.name}" if space else self.name


def entries(families: tuple[str, ...] = tuple(FAMILIES)) -> Iterator[Entry]:
    """Yield every public entry by family and name. A family whose package is not there has none."""
    for family in families:
        found: dict[Any, list[str]] = {}
        for name, value in _named(FAMILIES[family]):
            found.setdefault(id(inspect.unwrap(value)), []).append(name)
        for names in found.values():
            own = {n: getattr(_value(FAMILIES[family], n), "__name__", n) for n in names}
            first = min(names, key=lambda n: (n != own[n], names.index(n)))
            others = tuple(n for n in names if n != first)
            yield Entry(family, first, _value(FAMILIES[family], first), others)


def _value(family: Family, name: str) -> Any:
    return getattr(importlib.import_module(family.spaces[0]), name)


def _named(family: Family) -> Iterator[tuple[str, Any]]:
    for space in family.spaces:
        try:
            module = importlib.import_module(space)
        except ModuleNotFoundError:
            continue
        for name in _names(module, family):
            value = getattr(module, name)
            if name not in _ROOTS and _counts(value, family):
                yield name, value


def _names(module: Any, family: Family) -> list[str]:
    if family.only:
        return family.only.split()
    if module.__name__ == "stratal":
        return sorted(importlib.import_module("stratal.tensor.api.functions").FUNCTIONS)
    return sorted(n for n in getattr(module, "__all__", None) or dir(module) if not n.startswith("_"))


def _counts(value: Any, family: Family) -> bool:
    if not str(getattr(value, "__module__", "")).startswith("stratal."):
        return False
    if inspect.isfunction(value):
        first = next(iter(inspect.signature(value).parameters), "")
        return family.takes != "class" and first != "dims"  # those that take the rank first are for layers
    if not inspect.isclass(value) or family.takes == "function":
        return False
    if not family.base:
        return not issubclass(value, Exception)
    module, _, name = family.base.rpartition(".")
    return issubclass(value, getattr(importlib.import_module(module), name))
