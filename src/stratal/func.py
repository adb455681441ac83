"""Transformations of functions under the names of `torch.func`; `st.vmap` and the others are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.nn.stateless import functional_call, stack_module_state
from stratal.tensor.api.explained import explained
from stratal.tensor.transformations.gradients import grad, jvp, linearize, value_and_grad, vjp
from stratal.tensor.transformations.jacobians import Argnums, hessian, jacfwd, jacrev
from stratal.tensor.transformations.mapping import vmap as vmap_

vmap = explained(vmap_)  # takes in_dims and out_dims


def grad_and_value(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns (gradient, value): `st.value_and_grad` the other way round."""
    both = value_and_grad(function, argnums, has_aux)

    def turned(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return gradient, value

    return turned


__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "vjp", "vmap",
]  # fmt: skip
