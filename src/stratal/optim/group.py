"""Parameter groups: hyper-parameters by name, the numeric ones as runtime inputs of compiled steps.

And what updates of several optimizers read of them: betas that may vary, and weight decay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from stratal.base.dtypes import float64
from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.base.interrupts import deferring
from stratal.tensor.capture import note_mutation
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor, set_number, tensor
from stratal.tensor.values.state import MODE


class ParamGroup(dict[str, Any]):
    """A dict of hyper-parameters, and `params`.

    The names in `runtime` are read by compiled steps from float64 scalar cells, so writing another number
    never recompiles. Every other entry, and whether a runtime one is zero, is frozen at capture: changing it
    captures again. `betas` become runtime ones the first time they change: schedules may cycle them.
    """

    shards: list[Tensor] | None = None  # of the parameters: what this rank updates in their place
    has_params: bool = True  # whether a rank with shards also has the parameters, whole

    def __init__(self, entries: Mapping[str, Any], runtime: Iterable[str]) -> None:
        super().__init__()
        self._cells: dict[str, Tensor] = {}
        self._betas: list[Tensor] = []
        self._runtime = frozenset(runtime)
        for name, value in entries.items():
            self[name] = value

    @deferring
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
        if isinstance(value, Tensor):  # read where it stands, whatever is written to it
            super().__setitem__(name, value)
            self._cells[name] = value
            note_mutation()
            return
        number = float(value)
        old = self.get(name)
        super().__setitem__(name, number)
        if name in self._cells and not isinstance(old, Tensor):
            set_number(self._cells[name], number)
        else:
            self._cells[name] = tensor(number, dtype="float64")
        if old is None or isinstance(old, Tensor) or (old == 0) != (number == 0):
            note_mutation()

    def as_numbers(self) -> dict[str, Any]:
        """Return what the group holds but its parameters, numbers as numbers: a capture freezes those."""
        if MODE.trace is not None:
            MODE.trace.reads_items(self, [name for name in self if name in self._runtime or name == "betas"])
        items = {name: value for name, value in self.items() if name != "params"}
        return {k: v.ask() if type(v) is RuntimeScalar else v for k, v in items.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        if self.shards is not None:
            raise CallOrderError(
                "optimizer: one that is sharded over ranks is neither copied nor pickled", got="a shard",
                hint="state_dict(), called on every rank, gathers its state",
            )  # fmt: skip
        return _restored, ({**self, **self.as_numbers()}, sorted(self._runtime), bool(self._betas))

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._cells.pop(name, None)
        note_mutation()

    def __ior__(self, other: Any) -> ParamGroup:  # type: ignore[override,misc]
        self.update(other)
        return self

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self:
            return super().pop(name, *default)
        value = self[name]
        del self[name]
        return value

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
        """Return the betas that are cells, and 1 minus each, as scalars of a step."""
        named = [(f"beta{k + 1}", f"rest{k + 1}", cell) for k, cell in enumerate(self._betas)]
        return {k: v for beta, rest, cell in named for k, v in ((beta, cell), (rest, 1.0 - cell))}

    def scalar(self, name: str) -> Tensor:
        """Return the float64 cell that holds a runtime hyper-parameter."""
        return self._cells[name].to(float64)

    def cells(self) -> list[Tensor]:
        """Return the cells of runtime hyper-parameters."""
        return [*self._cells.values(), *self._betas]

    def frozen(self) -> Any:
        """Return what a captured step relies on besides its cells; None where that is no plain data."""
        found: list[Any] = [len(self._betas)]
        for name, value in self.items():
            if name in ("params", "param_names"):
                continue
            if name in self._cells:
                found.append((name, isinstance(value, Tensor) or value == 0))
            elif name == "betas" and self._betas:
                continue
            elif value.__class__ in _PLAIN:
                found.append((name, repr(value)))
            else:
                return None
        return tuple(found)


def updated(group: Mapping[str, Any]) -> list[Tensor]:
    """Return what steps of a group update and have state for: its parameters, or this rank's shards."""
    shards: list[Tensor] | None = getattr(group, "shards", None)
    return group["params"] if shards is None else shards


_PLAIN = frozenset({bool, int, float, str, tuple, type(None)})


_TUPLES = ("betas", "etas", "step_sizes", "ns_coefficients")  # hyper-parameters that are several numbers


def hyperparameters(given: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the defaults of groups, from the locals of an optimizer's constructor, and others."""
    own = {k: v for k, v in given.items() if k not in ("self", "params", "options", "__class__")}
    return {k: tuple(v) if k in _TUPLES else v for k, v in own.items()} | others


def parameters_of(given: Any, known: Collection[Tensor], owner: str) -> tuple[list[Tensor], list[str]]:
    """Return the parameters that a group was given, and their names where these came along.

    `known` are the parameters of other groups, `owner` names the optimizer in errors.
    """
    if isinstance(given, (set, frozenset)):
        raise AttributeValueError(f"{owner}: parameters need an order", got="a set")
    params = [given] if isinstance(given, Tensor) else list(given)
    names = [p[0] for p in params if isinstance(p, tuple)]  # named_parameters()
    if names and len(names) != len(params):
        raise AttributeValueError(f"{owner}: all parameters have names, or none")
    params = [p for _, p in params] if names else params
    for p in params:
        if not isinstance(p, Tensor):
            raise AttributeValueError(f"{owner}: can only optimise tensors", got=type(p).__name__)
        tuple(p.shape)  # a lazy layer's parameter has none yet: it says so
        if not (p.is_leaf or p._retains):
            raise AttributeValueError(
                f"{owner}: can only optimise leaves", got=f"{p.type} from {p.grad_fn}",
                hint="did you mean p.detach().requires_grad_()?",
            )  # fmt: skip
        if p in known:
            raise AttributeValueError(f"{owner}: a parameter stands in more than one group")
    if len(set(params)) != len(params):
        raise AttributeValueError(f"{owner}: a parameter stands twice in one group")
    return params, names


def _restored(entries: Mapping[str, Any], runtime: Iterable[str], varies: bool) -> ParamGroup:
    """Return a pickled or copied group."""
    made = ParamGroup(entries, runtime)
    if varies:
        made._vary_betas(made["betas"])
    return made


Scalars = dict[str, Tensor]
"""Numbers that all updates of a step share, by name."""


def betas(group: ParamGroup, scalars: Scalars) -> tuple[Any, Any, Any, Any]:
    """Return the two betas an update works with, and 1 minus each: numbers, or scalars of its dtype where
    they vary. All are rounded once, so that betas that vary give the same bits as those that do not.
    """
    beta1, beta2 = group["betas"]
    numbers = {"beta1": beta1, "beta2": beta2, "rest1": 1.0 - beta1, "rest2": 1.0 - beta2}
    beta1, beta2, rest1, rest2 = (scalars.get(name, number) for name, number in numbers.items())
    return beta1, beta2, rest1, rest2


def decay_scalars(group: ParamGroup) -> Scalars:
    """Return `decay` where the group decays weights: the factor on a parameter, or what is added of it to the
    gradient.
    """
    if not group.get("weight_decay"):
        return {}
    decay = group.scalar("weight_decay")
    decoupled = group.get("decoupled_weight_decay", False)
    return {"decay": 1.0 - group.scalar("lr") * decay if decoupled else decay}


def decayed(group: ParamGroup, param: Tensor, grad: Tensor, scalars: Scalars) -> tuple[Tensor, Tensor]:
    """Return the parameter and the gradient after weight decay, decoupled or (L2) through the gradient."""
    if not group.get("weight_decay"):
        return param, grad
    if group.get("decoupled_weight_decay", False):
        return param * scalars["decay"], grad
    return param, grad + scalars["decay"] * param
