"""Tensor expressions as functions of tensors: ops nobody has seen, compiled and differentiated like all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.errors import DTypeError, ShapeError
from stratal.graph.op import REGISTRY
from stratal.loops.te.algorithm import Algorithm
from stratal.loops.te.tensor import Computed, placeholder, reading
from stratal.loops.te.tensor import Tensor as Written
from stratal.tensor.build import apply, as_tensor
from stratal.tensor.tensor import Tensor


def function(*results: Computed) -> Callable[..., Any]:
    """Return the function of tensors that an algorithm describes: one argument per placeholder, in order.

    It returns a tensor, or a tuple for several results, and is like any function of `st`: it can be
    differentiated (sums and element-wise terms), captured by `st.compile` and fused with what is around it.
    """
    algorithm = Algorithm(*results)

    def call(*values: Any) -> Any:
        wanted = algorithm.placeholders
        if len(values) != len(wanted):
            raise ShapeError(
                "te.function: one tensor per placeholder", got=f"{len(values)} for {len(wanted)}"
            )
        held: dict[Written, Tensor] = {}
        for p, value in zip(wanted, values, strict=True):
            t = as_tensor(value, "te.function")
            if t.shape != p.shape:
                raise ShapeError(
                    f"te.function: {algorithm.names[p]} has another shape", got=f"{t.type} for {p.type}"
                )
            if t.dtype is not p.dtype:
                raise DTypeError(
                    f"te.function: {algorithm.names[p]} has another dtype", got=f"{t.type} for {p.type}"
                )
            held[p] = t
        for stage in algorithm.stages:
            held[stage] = _stage(stage, held)
        found = tuple(held[r] for r in algorithm.results)
        return found[0] if len(found) == 1 else found

    call.__doc__ = f"Compute\n\n{algorithm}"
    return call


def _stage(stage: Computed, held: dict[Written, Tensor]) -> Tensor:
    """Return one computed tensor, as one op on the tensors it reads."""
    alone = reading(stage, {t: placeholder(t.shape, t.dtype) for t in stage.reads})
    op = REGISTRY["expression"](str(Algorithm(alone)))  # type: ignore[call-arg]
    made: Tensor = apply(op, *(held[t] for t in stage.reads))
    return made
