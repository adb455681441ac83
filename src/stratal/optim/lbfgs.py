"""LBFGS: steps along the gradient times an inverse Hessian that is guessed from the last changes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stratal.base.errors import AttributeValueError, CaptureError, ShapeError
from stratal.optim.group import ParamGroup
from stratal.optim.line_search import Point, strong_wolfe
from stratal.optim.optimizer import Optimizer
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE, enable_grad, no_grad

Array = np.ndarray[Any, Any]
_LISTS = ("old_dirs", "old_stps", "ro")


class LBFGS(Optimizer):
    """Limited-memory BFGS, for losses without noise: `step(closure)` calls a function that computes the loss
    and its gradients up to `max_eval` times, by default 5/4 of `max_iter`.

    Parameters are one vector x, with one group: x <- x + t d, d from the last `history_size` changes of x and
    of its gradient, t the rate or, with `line_search_fn="strong_wolfe"`, found by a line search. A step ends
    early where no gradient exceeds `tolerance_grad`, or x or the loss changes by less than
    `tolerance_change`. What is done next depends on values: directions are computed by NumPy, and a step
    cannot be compiled; the closure can.

    Source: Liu & Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.
    """

    runtime = ("lr",)
    nonnegative: ClassVar[tuple[str, ...]] = ("lr", "max_iter", "tolerance_grad", "tolerance_change")
    counts_steps = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None
    ) -> None:
        defaults = {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)

    def check(self, group: ParamGroup) -> None:
        super().check(group)
        if self.param_groups:
            raise AttributeValueError("LBFGS: has one group of parameters", got="a second one")
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise AttributeValueError(
                "LBFGS: line_search_fn is None or 'strong_wolfe'", got=repr(group["line_search_fn"])
            )
        if group["history_size"] < 1:
            raise AttributeValueError("LBFGS: history_size is at least 1", got=str(group["history_size"]))
        for p in group["params"]:
            if not p.dtype.is_float:
                raise AttributeValueError("LBFGS: parameters are real floats", got=str(p.type))

    # -- the step ----------------------------------------------------------------------------------
    def _run(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` steps; return the loss before them."""
        if closure is None:
            raise AttributeValueError(
                "LBFGS: step takes a closure", got="none",
                hint="a function that zeroes gradients, computes the loss, calls backward and returns it",
            )  # fmt: skip
        if MODE.trace is not None:
            raise CaptureError(
                "LBFGS: a step depends on values, so it cannot be compiled", hint="compile the closure"
            )
        with no_grad():
            return self._steps(self.param_groups[0], enable_grad()(closure))

    def _steps(self, group: ParamGroup, closure: Callable[[], Any]) -> Any:
        state: dict[str, Any] = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        result = closure()
        loss, grad, evals = float(result), self._gradient(), 1
        state["func_evals"] += 1
        if not _exceeds(grad, group["tolerance_grad"]):
            return result
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = _direction(state, grad, group["history_size"])
            t = group["lr"] * (min(1.0, 1.0 / float(abs(grad).sum())) if state["n_iter"] == 1 else 1.0)
            slope = float(grad @ direction)
            before = loss
            state |= {"d": direction, "t": t, "prev_flat_grad": grad, "prev_loss": before}
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                start = Point(0.0, loss, grad, slope)
                found, tried = self._search(group, closure, start, t, direction, group["max_eval"] - evals)
                loss, grad, t = found.loss, found.grad, found.t
                state["t"] = t
                self._place(self._values() + t * direction)
            else:
                self._place(self._values() + t * direction)
                tried = int(iteration != group["max_iter"])  # nobody would read the last one
                if tried:
                    loss, grad = float(closure()), self._gradient()
            evals += tried
            state["func_evals"] += tried
            if (
                evals >= group["max_eval"]
                or not _exceeds(grad, group["tolerance_grad"])
                or not _exceeds(t * direction, group["tolerance_change"])
                or abs(loss - before) < group["tolerance_change"]
            ):
                break
        return result

    def _search(
        self, group: ParamGroup, closure: Callable[[], Any], start: Point, t: float, direction: Array,
        max_evals: int,
    ) -> tuple[Point, int]:  # fmt: skip
        """Search along a direction, and leave the parameters where they were."""
        here = self._values()

        def evaluate(t: float) -> tuple[float, Array]:
            self._place(here + t * direction)
            return float(closure()), self._gradient()

        try:
            return strong_wolfe(evaluate, start, t, direction, group["tolerance_change"], max_evals)
        finally:
            self._place(here)

    # -- parameters as one vector ------------------------------------------------------------------
    def _values(self) -> Array:
        return _flat([p.detach() for p in self._all_params()])

    def _gradient(self) -> Array:
        """Return the gradient; zeros where a parameter has none. Raises: ShapeError."""
        grads = []
        for p in self._all_params():
            if p.grad is not None and tuple(p.grad.shape) != tuple(p.shape):
                raise ShapeError("LBFGS: gradient and parameter differ in shape",
                                 got=f"{list(p.grad.shape)} for {list(p.shape)}")  # fmt: skip
            grads.append(np.zeros(p.shape, p.dtype.np) if p.grad is None else p.grad.detach())
        return _flat(grads)

    def _place(self, vector: Array) -> None:
        """Give every parameter its part of a vector."""
        begin = 0
        for p in self._all_params():
            end = begin + p.numel()
            p.copy_(vector[begin:end].reshape(p.shape).astype(p.dtype.np))
            begin = end

    @property
    def state_bytes(self) -> int:
        state = self.state[self._all_params()[0]].values()
        arrays = [x for value in state for x in (value if isinstance(value, list) else [value])]
        return sum(getattr(x, "nbytes", 0) for x in arrays)

    # -- state dicts -------------------------------------------------------------------------------
    def _saved(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _map(value, tensor) for name, value in state.items()}

    def _check_state(self, given: Mapping[Tensor, Mapping[str, Any]], saved: Sequence[Any]) -> None:
        size = sum(p.numel() for p in self._all_params())
        for state in given.values():
            vectors = [state.get("d"), state.get("prev_flat_grad")]
            vectors += [*(state.get("old_dirs") or ()), *(state.get("old_stps") or ())]
            wrong = [list(x.shape) for x in vectors if x is not None and tuple(x.shape) != (size,)]
            if wrong:
                raise ShapeError(
                    "LBFGS: the state dict has other shapes", got=f"{wrong[0]} for [{size}]",
                    hint="it is of an optimizer of other parameters",
                )  # fmt: skip

    def _load_state(self, given: Mapping[Tensor, Mapping[str, Any]]) -> None:
        self.state.clear()
        for p, entries in given.items():  # PyTorch's has numbers as tensors, and `al`, which is no state
            state = {name: _map(value, _copied) for name, value in entries.items() if name != "al"}
            for name in ("t", "H_diag", "prev_loss", "ro"):
                if state.get(name) is not None:
                    state[name] = [float(x) for x in state[name]] if name == "ro" else float(state[name])
            self.state[p] = state


def _direction(state: dict[str, Any], grad: Array, history_size: int) -> Array:
    """Return minus the gradient times the inverse Hessian, after taking the last step into the history."""
    if state["n_iter"] == 1 or "d" not in state:
        state |= {"old_dirs": [], "old_stps": [], "ro": [], "H_diag": 1.0}
        return -grad
    change, step = grad - state["prev_flat_grad"], state["d"] * state["t"]
    product = float(change @ step)
    if product > 1e-10:
        state["H_diag"] = product / float(change @ change)
        for name, value in zip(_LISTS, (change, step, 1.0 / product), strict=True):
            state[name] = [*state[name], value][-history_size:]
    history = list(zip(*(state[name] for name in _LISTS), strict=True))
    found = -grad
    weights = []
    for change, step, inverse in reversed(history):
        weights.append(float(step @ found) * inverse)
        found -= weights[-1] * change
    found *= state["H_diag"]
    for (change, step, inverse), weight in zip(history, reversed(weights), strict=True):
        found += (weight - float(change @ found) * inverse) * step
    return found


def _exceeds(vector: Array, bound: float) -> bool:
    return not bool((abs(vector) <= bound).all())  # NaNs exceed, no element does not


def _flat(parts: Iterable[Any]) -> Array:
    """Return tensors as one vector, of float32 at least."""
    vectors = [np.asarray(x).reshape(-1) for x in parts]
    return np.concatenate([x.astype(np.float32) if x.dtype.itemsize < 4 else x for x in vectors])


def _copied(vector: Any) -> Array:
    return np.asarray(vector).copy()  # the optimizer it is of may go on to change it


def _map(value: Any, to: Callable[[Any], Any]) -> Any:
    """Return a value of the state with `to` of its vectors."""
    if isinstance(value, list):
        return [_map(item, to) for item in value]
    return to(value.detach() if hasattr(value, "detach") else value) if hasattr(value, "shape") else value
