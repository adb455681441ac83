"""Optimizer: parameter groups, per-parameter state, and the step that joins the graph.

State is made when the optimizer is, so that a captured step only ever updates cells that exist. Step counts
are scalar cells shared by the parameters that have always stepped together: one count for a whole model, not
one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from stratal.base.dtypes import float32
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.optim.group import ParamGroup
from stratal.optim.hooked import Hooked
from stratal.tensor.capture import note_mutation
from stratal.tensor.creation import full
from stratal.tensor.explained import explain_methods
from stratal.tensor.lazy import end_step
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, tensor

Scalars = dict[str, Tensor]
State = dict[str, Tensor]
Shape = tuple[int, ...]

_NO_EFFECT = {"foreach", "fused", "capturable"}  # how PyTorch runs a step; here each is one sweep, compiled


class Optimizer(Hooked):
    """Base of every optimizer.

    A subclass gives `runtime` (the hyper-parameters that are runtime inputs), `slots` (its state for one
    parameter), `prelude` (scalars computed once per step) and `update` (the new parameter and the new
    state).

    Options of every optimizer: with `master_weights`, a parameter of a 16-bit float dtype is accumulated in a
    float32 copy, and its state is float32 too. PyTorch's `foreach`, `fused` and `capturable`, which choose
    among implementations of one result, are taken and change nothing.
    """

    runtime: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    nonnegative: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "eps", "momentum")
    counts_steps: ClassVar[bool] = True

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
                hint="to differentiate through updates, write them as expressions and use st.grad",
            )
        super().__init__()
        self.defaults = dict(defaults)
        self.master_weights = master_weights
        self.param_groups: list[ParamGroup] = []
        self.state: dict[Tensor, State] = {}
        self._spare_counts: dict[Tensor, Tensor] = {}
        if hasattr(params, "parameters"):
            raise DTypeError(
                f"{type(self).__name__}: takes parameters, not their module", got=type(params).__name__,
                hint="pass net.parameters()",
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

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join([*lines, ")"])

    # -- what a subclass defines -----------------------------------------------------------------------------
    def slots(self, group: ParamGroup, shape: Shape) -> dict[str, float]:
        """Return the state a parameter of a shape has: names and the value each starts filled with."""
        raise NotImplementedError

    def slot_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape of one slot of a parameter: the parameter's own, unless a subclass says else."""
        return shape

    def prelude(self, group: ParamGroup, count: Tensor | None) -> Scalars:
        """Return float64 scalars that every parameter's update shares; `count` is the number of this step,
        from 1. Unless overridden: the runtime hyper-parameters that are not zero, and `decay`.
        """
        names = [name for name in self.runtime if name != "weight_decay" and (group[name] or name == "lr")]
        return {**decay_scalars(group), **{name: group.scalar(name) for name in names}}

    def update(
        self, group: ParamGroup, param: Tensor, grad: Tensor, state: State, scalars: Scalars
    ) -> tuple[Tensor, State]:
        """Return the new parameter and the state that changed; all tensors and scalars have the parameter's
        dtype.
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
        given = param_group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        if params and isinstance(params[0], tuple):  # named_parameters()
            params = [p for _, p in params]
        known = {p for group in self.param_groups for p in group["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise AttributeValueError(
                    f"{type(self).__name__}: can only optimise tensors", got=type(p).__name__
                )
            if p in known:
                raise AttributeValueError(f"{type(self).__name__}: a parameter stands in more than one group")
        if len(set(params)) != len(params):
            raise AttributeValueError(f"{type(self).__name__}: a parameter stands twice in one group")
        group = ParamGroup({"params": params, **self.defaults, **_without_params(param_group)}, self.runtime)
        self.check(group)
        self.param_groups.append(group)
        self._prepare(group)
        note_mutation()

    def _prepare(self, group: ParamGroup) -> None:
        """Make the state that the group's parameters lack."""
        shared: Tensor | None = None
        for p in group["params"]:
            state = self.state.setdefault(p, {})
            dtype = self._work_dtype(p)
            for name, fill in self.slots(group, p.shape).items():
                if name not in state:
                    state[name] = full(self.slot_shape(name, p.shape), fill, dtype=dtype)
            if dtype is not p.dtype and "master_param" not in state:
                state["master_param"] = p.detach().astype(dtype)
            if self.counts_steps and "step" not in state:
                shared = tensor(0.0, dtype="float64") if shared is None else shared
                state["step"] = shared
                self._spare_counts[p] = tensor(0.0, dtype="float64")

    def _work_dtype(self, p: Tensor) -> Any:
        return float32 if self.master_weights and p.dtype.itemsize == 2 else p.dtype

    @property
    def state_bytes(self) -> int:
        """Bytes of per-element state, with the float32 master copies; step counts are not counted."""
        cells = (v for state in self.state.values() for k, v in state.items() if k != "step")
        return sum(int(np.prod(v.shape)) * v.dtype.itemsize for v in cells)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                p.zero_grad(set_to_none)

    # -- the step ----------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure`, called first, returns."""
        if not (self._hooks["before step"] or self._hooks["after step"]):
            return self._run(closure)
        (_, *given), named = args, kwargs = self._before_step((self, closure) if closure else (self,), {})
        result = self._run(*given, **named)
        self._after_step(args, kwargs)
        return result

    def _run(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, between the hooks."""
        loss = closure() if closure is not None else None
        before, MODE.grad = MODE.grad, False  # no `with`: Ctrl-C can prevent the call of its exit
        try:
            for group in self.param_groups:
                self._prepare(group)
                self._step_group(group)
        finally:
            MODE.grad = before
        end_step()
        return loss

    def _step_group(self, group: ParamGroup) -> None:
        moving = [p for p in group["params"] if p.grad is not None]
        for p in moving:
            if tuple(p.grad.shape) != tuple(p.shape):
                raise ShapeError(f"{type(self).__name__}: gradient and parameter differ in shape",
                                 got=f"{list(p.grad.shape)} for {list(p.shape)}")  # fmt: skip
        preludes: dict[int, Scalars] = {}
        for old, sharers in self._by_count(moving):
            count = None
            if old is not None:
                count = old + 1.0
                self.state[sharers[0]]["step"].copy_(count)
            scalars = {**self.prelude(group, count), **group.varying()}
            preludes.update(dict.fromkeys(map(id, sharers), scalars))
        for p in moving:
            self._step_parameter(group, p, preludes[id(p)])

    def _by_count(self, moving: list[Tensor]) -> list[tuple[Tensor | None, list[Tensor]]]:
        """Group parameters by the step count they share; where only some sharers move, give these a count of
        their own.
        """
        if not self.counts_steps:
            return [(None, moving)] if moving else []
        classes: dict[int, list[Tensor]] = {}
        for p in moving:
            classes.setdefault(id(self.state[p]["step"]), []).append(p)
        result: list[tuple[Tensor | None, list[Tensor]]] = []
        for sharers in classes.values():
            old = self.state[sharers[0]]["step"]
            if sum(s.get("step") is old for s in self.state.values()) > len(sharers):
                own = self._spare_counts[sharers[0]]
                for p in sharers:
                    self.state[p]["step"] = own
            result.append((old, sharers))
        return result

    def _step_parameter(self, group: ParamGroup, p: Tensor, scalars: Scalars) -> None:
        state = self.state[p]
        dtype = self._work_dtype(p)
        work = state.get("master_param", p)
        grad: Any = p.grad  # only those with a gradient are stepped
        grad = grad if grad.dtype is dtype else grad.astype(dtype)
        if group.get("maximize"):
            grad = -grad
        cast = {name: value.astype(dtype) for name, value in scalars.items()}
        new, changed = self.update(group, work, grad, state, cast)
        for name, value in changed.items():
            state[name].copy_(value)
        work.copy_(new)
        if work is not p:
            p.copy_(new.astype(p.dtype))

    # -- state dicts -------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return `{"state": {index: {...}}, "param_groups": [...]}`, parameters numbered in the order of the
        groups.
        """
        self._told("before state")
        number = {p: k for k, p in enumerate(self._all_params())}
        state = {number[p]: self._saved(entries) for p, entries in self.state.items() if entries}
        groups = [
            {**_without_params(g), "params": [number[p] for p in g["params"]]} for g in self.param_groups
        ]
        made: dict[str, Any] = self._passed("after state", {"state": state, "param_groups": groups})
        return made

    def _saved(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of one parameter as a state dict holds it."""
        return {k: v.detach() for k, v in entries.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over hyper-parameters and state from a state dict of the same optimizer, ours or PyTorch's."""
        state_dict = self._passed("before load", dict(state_dict))
        saved_groups = state_dict["param_groups"]
        if [len(g["params"]) for g in saved_groups] != [len(g["params"]) for g in self.param_groups]:
            raise AttributeValueError(
                f"{type(self).__name__}: the state dict has other groups",
                got=f"{[len(g['params']) for g in saved_groups]} parameters"
                f" for {[len(g['params']) for g in self.param_groups]}",
            )  # fmt: skip
        index_of = [k for g in saved_groups for k in g["params"]]
        saved = {p: state_dict["state"].get(k, {}) for k, p in zip(index_of, self._all_params(), strict=True)}
        self._check_state(saved)
        for group, found in zip(self.param_groups, saved_groups, strict=True):
            group.update({k: v for k, v in _without_params(found).items() if k in group or k == "initial_lr"})
            self._prepare(group)
        self._load_state(saved)
        note_mutation()
        self._told("after load")

    def _check_state(self, saved: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Refuse the state of other parameters, before anything is taken over. Raises: ShapeError."""
        wrong = [
            f"{name} of parameter {k}: {list(value.shape)} for {list(shape)}"
            for k, (p, entries) in enumerate(saved.items())
            for name, value in entries.items()
            if name != "step" and value is not None
            and tuple(value.shape) != (shape := tuple(self.slot_shape(name, p.shape)))
        ]  # fmt: skip
        if wrong:
            raise ShapeError(
                f"{type(self).__name__}: the state dict has other shapes", got="; ".join(wrong),
                hint="it is of an optimizer of other parameters",
            )  # fmt: skip

    def _load_state(self, saved: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Write saved values into the state, parameters of equal counts sharing one cell again."""
        for p, entries in saved.items():
            for name, value in entries.items():
                if name in self.state[p] and name != "step" and value is not None:
                    self.state[p][name].copy_(_array(value))
        self._load_counts(saved)

    def _load_counts(self, saved: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Write the step counts, parameters of equal counts sharing one cell again."""
        if not self.counts_steps:
            return
        cells: dict[float, Tensor] = {}
        for p, entries in saved.items():
            count = float(entries.get("step", 0.0))
            if count not in cells:
                cells[count] = tensor(count, dtype="float64")
            self.state[p]["step"] = cells[count]

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def betas(group: ParamGroup, scalars: Scalars) -> tuple[Any, Any]:
    """Return the two betas an update works with: numbers, or scalars of its dtype where they vary."""
    beta1, beta2 = group["betas"]
    return scalars.get("beta1", beta1), scalars.get("beta2", beta2)


def decay_scalars(group: ParamGroup) -> Scalars:
    """Return `decay` where the group decays weights: the factor on a parameter, or what is added of it to the
    gradient.
    """
    if not group["weight_decay"]:
        return {}
    decay = group.scalar("weight_decay")
    decoupled = group.get("decoupled_weight_decay", False)
    return {"decay": 1.0 - group.scalar("lr") * decay if decoupled else decay}


def decayed(group: ParamGroup, param: Tensor, grad: Tensor, scalars: Scalars) -> tuple[Tensor, Tensor]:
    """Return the parameter and the gradient after weight decay, decoupled or (L2) through the gradient."""
    if not group["weight_decay"]:
        return param, grad
    if group.get("decoupled_weight_decay", False):
        return param * scalars["decay"], grad
    return param, grad + scalars["decay"] * param


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k != "params"}


def _array(value: Any) -> Any:
    return value if isinstance(value, Tensor) else np.asarray(value)


explain_methods(Optimizer, "step", "load_state_dict", "add_param_group")
