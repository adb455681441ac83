"""Optimizer: parameter groups, per-parameter state, and the step that joins the graph.

As in PyTorch, a parameter has state from its first step with a gradient on. It is made outside of captures
(`optimizer_state`), so that a captured step only ever updates tensors that exist.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, ClassVar

import numpy as np

from stratal.base.dtypes import as_dtype, float32, float64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError, not_given
from stratal.base.interrupts import ATOMIC, DEFERRED, deferring
from stratal.nn.state import as_array
from stratal.optim.group import ParamGroup, Scalars, decay_scalars, parameters_of, updated
from stratal.optim.hooked import Hooked
from stratal.optim.optimizer_state import Count, ParamState, StateTable, saved
from stratal.tensor.api.explained import explain_methods, shown
from stratal.tensor.calls.step_cache import cached_update
from stratal.tensor.capture import note_mutation
from stratal.tensor.lazy.flushing import end_step, undo_step
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.notifying import Row
from stratal.tensor.values.state import MODE, NOW
from stratal.tensor.values.trace import Trace

State = dict[str, Tensor]
Step = tuple[Tensor, State]  # the new parameter and the state that changed
Shape = tuple[int, ...]
Counted = Sequence[tuple[Count | None, list[Tensor]]]

_ALSO_CALLED = {"learning_rate": "lr", "l2": "weight_decay", "beta1": "betas", "epsilon": "eps"}
_NO_EFFECT = {"foreach", "fused", "capturable"}  # how PyTorch runs a step; here each is one sweep, compiled
_OF_ANY_KIND = _NO_EFFECT | {  # what groups of any kind may hold or lack: newer names, those of schedules
    "params", "param_names", "maximize", "differentiable", "decoupled_weight_decay", "initial_lr", "max_lr",
    "min_lr", "max_momentum", "base_momentum", "swa_lr",
}  # fmt: skip
_OF_ANY_STATE = {"step", "master_param"}


_FIELDS = 5  # of an optimizer that nobody gave others


def _instead_of(unknown: Sequence[str], names: Sequence[str]) -> str:
    """Return a hint for the first of some options that there are not."""
    if not unknown:
        return "to differentiate through updates, write them as expressions and use st.grad"
    near = [_ALSO_CALLED.get(unknown[0], ""), *get_close_matches(unknown[0], names, 1)]
    found = next((name for name in near if name in names), None)
    return f"did you mean {found}?" if found else f"there are {', '.join(dict.fromkeys(names))}"


class Optimizer(Hooked):
    """Base of every optimizer.

    A subclass gives `runtime` (the hyper-parameters that are runtime inputs), `slots` (its state for one
    parameter), `prelude` (scalars computed once per step) and `update` (the new parameter and the new
    state); or a `step` of its own, as in PyTorch, which keeps what it likes in the dict `state[p]`.

    Options of every optimizer: with `master_weights`, a parameter of a 16-bit float dtype is accumulated in a
    float32 copy, and its state is float32 too. PyTorch's `foreach`, `fused` and `capturable`, which choose
    among implementations of one result, are taken and change nothing.
    """

    runtime: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    nonnegative: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "eps", "momentum")
    counts_steps: ClassVar[bool] = True
    shows_steps: ClassVar[bool] = True  # the count is part of the state
    zero_slots: ClassVar[tuple[str, ...]] = ()
    scalar_slots: ClassVar[tuple[str, ...]] = ()  # slots of one number, in float32 at least
    state_from_start: ClassVar[bool] = False  # the parameters an optimizer is made with have state at once

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "step")

    def __init__(
        self,
        params: Iterable[Any],
        defaults: Mapping[str, Any],
        *,
        master_weights: bool = False,
        differentiable: bool = False,
        **options: Any,
    ) -> None:
        unknown = sorted(set(options) - _NO_EFFECT)
        if unknown or differentiable:
            raise AttributeValueError(
                f"{type(self).__name__}: an option it does not have",
                got=", ".join(unknown) or "differentiable=True",
                hint=_instead_of(unknown, (*defaults, "lr")),
            )
        super().__init__()
        self.defaults = dict(defaults)
        self.master_weights = master_weights
        self.param_groups: list[ParamGroup] = Row()
        self.state: Any = defaultdict(dict)
        if hasattr(params, "parameters"):
            raise DTypeError(
                f"{type(self).__name__}: takes parameters, not their module", got=type(params).__name__,
                hint="pass net.parameters()",
            )  # fmt: skip
        if callable(params) and not isinstance(params, Iterable):
            raise DTypeError(
                f"{type(self).__name__}: takes parameters, not what gives them",
                got=getattr(params, "__qualname__", type(params).__name__), hint="call it: net.parameters()",
            )  # fmt: skip
        entries: list[Any] = [params] if isinstance(params, Tensor) else list(params)
        if not entries:
            raise AttributeValueError(
                f"{type(self).__name__}: got no parameters",
                got="nothing to update",
                hint="does the module register its parameters?",
            )
        if not isinstance(entries[0], Mapping):
            entries = [{"params": entries}]
        for entry in entries:
            self.add_param_group(entry)
        if self.state_from_start:
            for group in self.param_groups:
                self._make_state(group, group["params"], tentative=False)

    @property
    def _managed(self) -> bool:
        """Whether updates are taken here; a subclass with a `step` of its own keeps plain dicts as state."""
        return type(self).update is not Optimizer.update

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state" and self._managed and not isinstance(value, StateTable):
            value = StateTable(value, like=self.__dict__.get("state"))
        super().__setattr__(name, value)
        note_mutation()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the hooks, as PyTorch's."""
        return {k: v for k, v in self.__dict__.items() if k != "_hooks"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        self.__dict__.update(state)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.as_numbers().items())]
        return "\n".join([*lines, ")"])

    # -- what a subclass defines -----------------------------------------------------------------------------
    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        """Return the state a parameter of a shape has: names and the value each starts filled with.

        Unless overridden: `zero_slots`, which start at 0.
        """
        return dict.fromkeys(self.zero_slots, 0.0)

    def slot_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape of one slot of a parameter: the parameter's own, unless a subclass says else."""
        return () if name in self.scalar_slots else shape

    def counts(self, group: ParamGroup) -> bool:
        """Return whether the steps of a group's parameters are counted."""
        return self.counts_steps

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        """Return float64 scalars that every parameter's update shares; `count` is the number of this step,
        from 1. Unless overridden: the runtime hyper-parameters that are not zero, and `decay`.
        """
        given = [name for name in self.runtime if name in group and name != "weight_decay"]
        names = [name for name in given if name == "lr" or group[name]]
        return {**decay_scalars(group), **{name: group.scalar(name) for name in names}}

    def update(self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars) -> Step:
        """Return the new parameter and its new state, of every slot; all tensors and scalars have the
        parameter's dtype.
        """
        raise NotImplementedError

    def check(self, group: ParamGroup) -> None:
        """Refuse hyper-parameters out of their range."""
        for name in self.nonnegative:
            if name in group and not group[name] >= 0:
                raise AttributeValueError(
                    f"{type(self).__name__}: {name} must not be negative", got=str(group[name])
                )
        if not all(0 <= beta < 1 for beta in group.get("betas", ())):
            raise AttributeValueError(
                f"{type(self).__name__}: betas must lie in [0, 1)", got=str(group["betas"])
            )

    # -- groups and state --------------------------------------------------------------------------
    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own; what a group leaves out is the default."""
        known = {p for group in self.param_groups for p in group["params"]}
        params, names = parameters_of(param_group["params"], known, type(self).__name__)
        entries = {"params": Row(params), **self.defaults, **_without_params(param_group)}
        group = ParamGroup({**entries, "param_names": names} if names else entries, self.runtime)
        self.check(group)
        self.param_groups.append(group)
        note_mutation()

    def _make_state(self, group: ParamGroup, params: list[Tensor], tentative: bool = True) -> None:
        """Make the state that parameters lack, and bring what they have to their dtype, all of it or none."""
        lacking = [p for p in params if not self._has_state(group, p)]
        if lacking:
            starts: dict[float, Count] = {}  # counts that begin now are shared
            with ATOMIC:
                for p in lacking:
                    self._complete_state(group, p, starts, tentative)

    def _has_state(self, group: ParamGroup, p: Tensor) -> bool:
        state = self.state[p]
        for name in self.slots(group, p.shape):
            held = state.entries.get(name)
            if held is None or held.dtype is not self._slot_dtype(p, name):
                return False
        stored = self._work_dtype(p) is p.dtype or "master_param" in state.entries
        return stored and (state.count is not None or not self.counts(group))

    def _complete_state(
        self, group: ParamGroup, p: Tensor, starts: dict[float, Count], tentative: bool
    ) -> None:
        state, work, slots = self.state[p], self._work_dtype(p), self.slots(group, p.shape)
        entries = dict(state.entries)
        for name, fill in slots.items():
            held, dtype = entries.get(name), self._slot_dtype(p, name)
            if held is None:
                entries[name] = self.state.filled(self.slot_shape(name, p.shape), fill, dtype, p)
            elif held.dtype is not dtype:
                entries[name] = self.state.copied(held, dtype)
        if work is not p.dtype and "master_param" not in entries:
            entries["master_param"] = self.state.copied(p, work)
        state.tentative |= tentative and not state
        if self.counts(group) and state.count is None:
            had_slots = not slots.keys().isdisjoint(state.entries)
            self.state.begin_count(state, entries.pop("step", None), starts, self.shows_steps, had_slots)
        state.entries = entries
        self.state.changed()

    def _work_dtype(self, p: Tensor) -> Any:
        return float32 if self.master_weights and p.dtype.itemsize == 2 else p.dtype

    def _slot_dtype(self, p: Tensor, name: str) -> Any:
        work = self._work_dtype(p)
        return float32 if name in self.scalar_slots and work.itemsize < 4 else work

    @property
    def state_bytes(self) -> int:
        """Bytes of per-element state once all parameters have stepped, with the float32 master copies; step
        counts are not counted. Of an optimizer that is sharded over ranks: this rank's.
        """
        if not self._managed:
            return sum(x.nbytes for s in self.state.values() for x in s.values() if isinstance(x, Tensor))
        total = 0
        for group in self.param_groups:
            for p in updated(group):
                work = self._work_dtype(p)
                shapes = [self.slot_shape(name, p.shape) for name in self.slots(group, p.shape)]
                shapes += [p.shape] if work is not p.dtype else []
                total += sum(int(np.prod(shape)) for shape in shapes) * work.itemsize
        return total

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                p.zero_grad(set_to_none)

    # -- the step ----------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure`, called first, returns."""
        if not self._hooks_steps():
            return self._run(closure)
        (_, *given), named = args, kwargs = self._before_step((self, closure) if closure else (self,), {})
        result = self._run(*given, **named)
        self._after_step(args, kwargs)
        return result

    def _run(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, between the hooks."""
        if not self._managed:
            hint = "define update(self, group, param, grad, state, scalars), or step(self) as in PyTorch"
            raise not_given(self, "update", hint)
        loss = closure() if closure is not None else None
        with DEFERRED:
            self._step()
        return loss

    def _step(self) -> None:
        before = MODE.__dict__  # no `with`: two of them take 5 us
        try:
            MODE.grad, MODE.step = False, {}
            for group in self.param_groups:
                if type(group) is not ParamGroup:
                    raise AttributeValueError(
                        f"{type(self).__name__}: param_groups holds a group that the optimizer did not make",
                        got=f"a {type(group).__name__} of {', '.join(map(str, group))}",
                        hint="opt.add_param_group({'params': .., 'lr': ..}) fills in what it does not name",
                    )
                moving, counted = self._ready(group)
                cells = self._cells(group, moving, counted)
                like = self._like(group, moving, counted)
                cached_update(partial(self._step_group, group, moving, counted), like, cells)
            end_step()
        except BaseException:
            undo_step()
            raise
        finally:
            NOW.set(before)

    def _ready(self, group: ParamGroup) -> tuple[list[Tensor], Counted]:
        """Return the parameters of a group that step now, and by count, after making the state they lack."""
        moving = [p for p in updated(group) if p.grad is not None]
        for p, grad in ((p, p.grad) for p in moving):
            if grad is not None and tuple(grad.shape) != tuple(p.shape):
                raise ShapeError(f"{type(self).__name__}: gradient and parameter differ in shape",
                                 got=f"{list(grad.shape)} for {list(p.shape)}")  # fmt: skip
        return moving, self._stated(group, moving)

    def _stated(self, group: ParamGroup, moving: list[Tensor]) -> Counted:
        """Return parameters by count, after making the state they lack."""
        self._make_state(group, moving)
        counted = self.state.by_count(moving) if self.counts(group) else [(None, moving)] if moving else []
        if MODE.trace is not None:
            self._label(moving, MODE.trace)
        return counted

    def _cells(self, group: ParamGroup, moving: list[Tensor], counted: Counted) -> list[Tensor]:
        """Return all that the step of a group reads and writes."""
        found = [count.cell for count, _ in counted if count is not None] + group.cells()
        for p in moving:
            found += (p, p.grad, *self.state[p].entries.values())  # type: ignore[arg-type]
        return found

    def _like(self, group: ParamGroup, moving: list[Tensor], counted: Counted) -> Any:
        """Return what steps with equal graphs have in common besides the types of their cells; None where it
        is not known.
        """
        options = group.frozen()
        own = type(self).__module__.startswith("stratal.optim.") and len(vars(self)) <= _FIELDS
        if options is None or not own:
            return None
        place = {p: k for k, p in enumerate(moving)}
        shared = tuple([(count is None, tuple([place[p] for p in ps])) for count, ps in counted])
        states = tuple([tuple(self.state[p].entries) for p in moving])
        return type(self), self.master_weights, options, as_dtype(float), shared, states

    def _label(self, params: list[Tensor], trace: Trace) -> None:
        """Name the inputs of a capture that are state by the parameter's number, as a state dict does."""
        number = {p: k for k, p in enumerate(self._all_params())}
        for p in params:
            state = self.state[p]
            counted = {} if state.count is None else {"step": state.count.cell}
            for name, cell in {**counted, **state.entries}.items():
                if isinstance(cell, Tensor) and cell._trace is None:
                    trace.enter(cell, f"{type(self).__name__}.state[{number[p]}][{name!r}]")

    def changed_by_step(self) -> list[Tensor]:
        """Return the tensors that a step would change now, each once: parameters with gradients and state."""
        found: dict[int, Tensor] = {}
        for group in self.param_groups:
            if group.shards is None:
                moving, counted = self._ready(group)
            else:  # which get their gradients when the step begins
                moving, counted = list(group.shards), self._stated(group, list(group.shards))
                found.update((id(p), p) for p in group["params"] if group.has_params)
            found.update((id(c.cell), c.cell) for c, _ in counted if c is not None)
            for p in moving:
                found.update((id(x), x) for x in (p, *self.state[p].entries.values()))
        return list(found.values())

    def _step_group(self, group: ParamGroup, moving: list[Tensor], counted: Counted) -> None:
        preludes: dict[Tensor, Scalars] = {}
        for count, sharers in counted:
            number = None
            if count is not None:
                number = count.cell.to(float64) + 1.0
                count.cell.copy_(number)
            scalars = {**self.prelude(group, number), **group.varying()}
            preludes.update(dict.fromkeys(sharers, scalars))
        for p in moving:
            self._step_parameter(group, p, preludes[p])

    def _step_parameter(self, group: ParamGroup, p: Tensor, scalars: Scalars) -> None:
        """Update a parameter and its state: of 16-bit floats in float32, rounded once, when stored."""
        state: Any = self.state[p].entries
        dtype = self._work_dtype(p).compute
        stored = state.get("master_param", p)
        work = stored.to(dtype)
        grad: Any = p.grad.to(dtype)  # type: ignore[union-attr]  # only those with a gradient are stepped
        if group.get("maximize"):
            grad = -grad
        cast = {name: value.to(dtype) for name, value in scalars.items()}
        slots = {name: state[name].to(state[name].dtype.compute) for name in self.slots(group, p.shape)}
        result = self.update(group, work, grad, {**state, **slots}, cast)
        new, changed = self._checked(result, work, slots)
        for name, value in changed.items():
            state[name].copy_(value.to(state[name].dtype))
        stored.copy_(new.to(stored.dtype))
        if stored is not p:
            p.copy_(new.to(p.dtype))

    def _checked(self, result: Any, param: Tensor, slots: State) -> tuple[Tensor, State]:
        """Return what `update` returned. Raises: where it is no new value of a parameter and its state."""
        who = f"{type(self).__name__}.update"
        new, changed = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
        if not isinstance(new, Tensor) or not isinstance(changed, Mapping):
            raise DTypeError(
                f"{who}: returns a pair, the new parameter and its new state, a dict",
                got=shown(result), hint="return param - step, {name: value of each slot}",
            )  # fmt: skip
        if set(slots) - set(changed) or set(changed) - {*slots, "master_param"}:
            raise AttributeValueError(
                f"{who}: the new state is of the slots {', '.join(slots) or '(none)'}",
                got=", ".join(map(str, changed)) or "none", hint="a slot that stays is returned as it is",
            )  # fmt: skip
        for name, value, old in (("parameter", new, param), *((n, changed[n], slots[n]) for n in slots)):
            shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
            wider = bool(self.scalar_slots)  # in float32: what is computed with them is rounded when stored
            if shape != old.shape or (dtype is not old.dtype and not wider):
                kind = ShapeError if shape != old.shape else DTypeError
                raise kind(
                    f"{who}: the new {name} has the shape and dtype of the old one",
                    got=f"{shown(value)} for {old.type}",
                )
        return new, dict(changed)

    # -- state dicts -------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return `{"state": {index: {...}}, "param_groups": [...]}`, parameters numbered in the order of the
        groups.
        """
        self._told("before state")
        number = {p: k for k, p in enumerate(self._all_params())}
        state = {number.get(p, p): self._saved(s) for p, s in self.state.items() if s}
        groups = [
            {**g.as_numbers(), "params": [number[p] for p in updated(g)]} for g in self.param_groups
        ]
        return self._passed("after state", {"state": state, "param_groups": groups})

    def _saved(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of one parameter as a state dict holds it."""
        return saved(state)

    @deferring
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over hyper-parameters and state from a state dict of the same optimizer, ours or PyTorch's."""
        state_dict = self._passed("before load", dict(state_dict))
        saved_groups = state_dict["param_groups"]
        check_groups(self, saved_groups, [len(updated(g)) for g in self.param_groups])
        index_of = [k for g in saved_groups for k in g["params"]]
        states = dict(state_dict["state"])
        given = {p: states.pop(k) for k, p in zip(index_of, self._all_params(), strict=True) if k in states}
        self._check_state(given, saved_groups)
        for group, found in zip(self.param_groups, saved_groups, strict=True):
            entries = copy.deepcopy(_without_params(found))
            for name in [k for k in _without_params(group) if k not in entries and k not in self.defaults]:
                if name != "param_names":
                    del group[name]
            group.update(entries)
        self._load_state(given)
        for k, entries in states.items():  # of no parameter
            self.state[k] = dict(entries)
        self._told("after load")

    def _check_state(self, given: Mapping[Tensor, Mapping[str, Any]], saved: Sequence[Any]) -> None:
        """Refuse the state of other parameters, or of another kind of optimizer, before anything is taken
        over. Raises: ShapeError, AttributeValueError.
        """
        wrong = []
        number = {p: k for k, p in enumerate(self._all_params())}
        for group, found in zip(self.param_groups, saved, strict=True):
            loaded: Any = {**group, **_without_params(found)}
            for p in (p for p in updated(group) if p in given):
                slots = self.slots(loaded, p.shape).keys()
                names = {name for name, value in given[p].items() if hasattr(value, "shape")} - _OF_ANY_STATE
                if self._managed and names and not slots <= given[p].keys():
                    raise AttributeValueError(
                        f"{type(self).__name__}: the state dict is of another kind of optimizer",
                        got=f"{', '.join(sorted(names))} for {', '.join(sorted(slots))}",
                        hint="load it into an optimizer of the class that saved it",
                    )
                for name in (*self.slots(group, p.shape), "master_param"):
                    value, shape = given[p].get(name), tuple(self.slot_shape(name, p.shape))
                    if value is not None and tuple(value.shape) != shape:
                        found = f"{list(value.shape)} for {list(shape)}"
                        wrong.append(f"{name} of parameter {number[p]}: {found}")
        if wrong:
            raise ShapeError(
                f"{type(self).__name__}: the state dict has other shapes", got="; ".join(wrong),
                hint="it is of an optimizer of other parameters",
            )  # fmt: skip

    def _load_state(self, given: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Replace the state by copies of saved values; parameters of a group with equal counts share one."""
        if not self._managed:
            self.state = defaultdict(dict)
            for p, entries in given.items():
                self.state[p] = {k: self._loaded(p, k, v) for k, v in entries.items()}
            return
        table = StateTable(like=self.state)
        for group in self.param_groups:
            counts: dict[float, Count] = {}
            for p in updated(group):
                if p not in given:
                    continue
                entries = {k: self._loaded(p, k, v) for k, v in given[p].items()}
                state = table.states[p] = ParamState(table, entries, self.shows_steps)
                if self.counts(group) and entries.get("step") is not None:
                    step = state.entries.pop("step")
                    if table.home is not None and isinstance(step, Tensor):  # its value is not known here
                        state.count = Count(step.to(float64), 1)
                        continue
                    number = float(step)
                    state.count = counts.setdefault(number, Count(table.filled((), number, float64)))
                    state.count.sharers += 1
        self.state = table

    def _loaded(self, p: Tensor, name: str, value: Any) -> Any:
        """Return a value of a state dict as the state of a parameter has it: copied, in the right dtype."""
        if not hasattr(value, "shape"):
            return copy.deepcopy(value)
        made = tensor(value if isinstance(value, Tensor) else as_array(value))
        return made if name == "step" or not p.dtype.is_float else made.to(self._slot_dtype(p, name))

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in updated(group)]


def check_groups(optimizer: Optimizer, saved: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> None:
    """Refuse the groups of a state dict that have not as many parameters. Raises: AttributeValueError."""
    found = [len(group["params"]) for group in saved]
    if found != list(counts):
        raise AttributeValueError(
            f"{type(optimizer).__name__}: the state dict has other groups",
            got=f"{found} parameters for {list(counts)}",
        )
    own = optimizer.defaults.keys() - _OF_ANY_KIND
    for group in saved:
        lacking, strange = own - group.keys(), group.keys() - own - _OF_ANY_KIND
        if lacking and strange:
            raise AttributeValueError(
                f"{type(optimizer).__name__}: the state dict is of another kind of optimizer",
                got=f"{', '.join(sorted(strange))} without {', '.join(sorted(lacking))}",
                hint="load it into an optimizer of the class that saved it",
            )


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k != "params"}


explain_methods(Optimizer, "step", "load_state_dict", "add_param_group")
