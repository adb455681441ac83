"""Parameter groups: hyper-parameters by name, the numeric ones as runtime inputs of compiled steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratal.tensor.capture import note_mutation
from stratal.tensor.tensor import Tensor, set_number, tensor


class ParamGroup(dict[str, Any]):
    """A dict of hyper-parameters, and `params`.

    The names in `runtime` are read by compiled steps from float64 scalar cells, so writing another number
    never recompiles. Every other entry, and whether a runtime one is zero, is frozen at capture: changing it
    captures again. `betas` become runtime ones the first time they change: schedules may cycle them.
    """

    def __init__(self, entries: Mapping[str, Any], runtime: Iterable[str]) -> None:
        super().__init__()
        self._cells: dict[str, Tensor] = {}
        self._betas: list[Tensor] = []
        self._runtime = frozenset(runtime)
        for name, value in entries.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "betas":
            value = tuple(float(beta) for beta in value)
            if self.get(name) not in (None, value) and self._vary_betas(value):
                super().__setitem__(name, value)
                return
        if name not in self._runtime or value is None:
            same = name in self and type(self[name]) is type(value) and self[name] is value
            super().__setitem__(name, value)
            if not same:
                note_mutation()
            return
        number = float(value)
        toggles = name not in self or (self[name] == 0) != (number == 0)
        super().__setitem__(name, number)
        if name in self._cells:
            set_number(self._cells[name], number)
        else:
            self._cells[name] = tensor(number, dtype="float64")
        if toggles:
            note_mutation()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._cells.pop(name, None)
        note_mutation()

    def update(self, *others: Any, **entries: Any) -> None:
        for name, value in dict(*others, **entries).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def _vary_betas(self, betas: tuple[float, ...]) -> bool:
        """Write changed betas into cells; return whether compiled steps read them already."""
        known = bool(self._betas)
        for k, beta in enumerate(betas):
            if known:
                set_number(self._betas[k], beta)
            else:
                self._betas.append(tensor(beta, dtype="float64"))
        return known

    def betas(self) -> tuple[Any, ...]:
        """Return the betas: numbers, or float64 cells once they have changed."""
        return tuple(self._betas) or self["betas"]

    def varying(self) -> dict[str, Tensor]:
        """Return the betas that are cells, as scalars of a step."""
        return {f"beta{k + 1}": cell for k, cell in enumerate(self._betas)}

    def scalar(self, name: str) -> Tensor:
        """Return the float64 cell that holds a runtime hyper-parameter."""
        return self._cells[name]
