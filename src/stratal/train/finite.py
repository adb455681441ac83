"""Checks that losses and gradients are finite, and the error that names what was not first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.errors import StratalError
from stratal.nn.module import Module
from stratal.optim import Optimizer
from stratal.tensor.functions.elementwise import isfinite, where
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad
from stratal.train.origin import origin

Forward = Callable[[Any, Any], tuple[Tensor, Any]]


class NonFiniteError(StratalError, ArithmeticError):
    """A loss or gradient that is NaN or infinite."""

    advice = "a smaller rate, clip_norm=1.0, or a loss that takes scores in place of probabilities"


def finite_gradients(trained: Mapping[str, Tensor], loss: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return whether the loss and all gradients are finite, and that of each gradient by its name."""
    with no_grad():
        each = {name: isfinite(p.grad).all() for name, p in trained.items() if p.grad is not None}
        whole = isfinite(loss)
        for flag in each.values():
            whole = whole & flag
    return whole, each


def step_where(condition: Tensor, optimizer: Optimizer) -> None:
    """Let the optimizer step; where the scalar `condition` is False, all that it changes keeps its value."""
    with no_grad():
        cells = optimizer.changed_by_step()
        before = [cell.clone() for cell in cells]
        optimizer.step()
        for cell, old in zip(cells, before, strict=True):
            cell.copy_(where(condition, cell, old))


def non_finite_loss(loss: float, batch: Sequence[Any]) -> NonFiniteError:
    """Return the error for a loss whose step was taken: nothing but the batch is as it was."""
    return NonFiniteError(
        f"fit: {non_finite_input(batch) or 'the loss is not finite'}", got=f"a loss of {loss}",
        hint='check_finite="gradients" names the first module or gradient, and keeps the weights',
    )  # fmt: skip


def non_finite_step(
    net: Module, forward: Forward, batch: Sequence[Any], loss: float, flags: Mapping[str, bool]
) -> NonFiniteError:
    """Return the error for a step that was not taken, naming the first thing that was not finite: an input, a
    parameter, a module's output, the loss, or the gradient that the backward pass came to first; and the op
    that made it, with its line. `forward` returns the loss of a batch, and outputs; `flags` say which
    gradients are finite, in the order of the forward pass.
    """
    wrong = [name for name, flag in flags.items() if not flag]
    if found := non_finite_input(batch) or _non_finite_parameter(net) or first_module(net, batch[0]):
        rule = found
    elif not np.isfinite(loss):
        rule = "the loss is the first that is not finite: all modules' outputs are"
    else:
        rule = f"the gradient of {wrong[-1]} is the first that is not finite"
    others = f"; gradients not finite: {', '.join(wrong[-4:])}{', ...' * (len(wrong) > 4)}" if wrong else ""
    made_by = origin(net, forward, batch)
    by = "" if made_by is None else f"first made by {made_by}; "
    return NonFiniteError(
        f"fit: {rule}", got=f"{by}a loss of {loss}{others}; weights are those before the step",
        where=() if made_by is None else made_by.where,
    )  # fmt: skip


def non_finite_input(batch: Sequence[Any]) -> str:
    """Return what to say of a batch that is not finite; nothing where it is."""
    for name, part in zip(("inputs", "targets"), batch, strict=False):
        for leaf in tree.leaves(part):
            values = np.asarray(leaf)
            if values.dtype.kind not in "iub" and (bad := np.argwhere(~np.isfinite(values))).size:
                return f"the batch's {name} are not finite, first at {bad[0].tolist()}"
    return ""


def _non_finite_parameter(net: Module) -> str:
    for name, p in net.named_parameters():
        if not np.isfinite(np.asarray(p.detach())).all():
            return f"the parameter {name} is not finite"
    return ""


def first_module(net: Module, inputs: Any) -> str:
    """Return what to say of the first module whose output is not finite, nothing where all are.

    The net is run once more, without gradients; its buffers keep their values.
    """
    found: list[str] = []
    with _hooked(net, found), no_grad():
        buffers = {name: b.clone() for name, b in net.named_buffers()}
        try:
            called(net, inputs)
        finally:
            for name, b in net.named_buffers():
                b.copy_(buffers[name])
    return found[0] if found else ""


@contextmanager
def _hooked(net: Module, found: list[str]) -> Iterator[None]:
    def hook(name: str) -> Any:
        def look(module: Module, _: Any, outputs: Any) -> None:
            if any(not np.isfinite(np.asarray(x)).all() for x in tree.leaves(outputs)):
                found.append(f"the output of {name or 'the net'} ({type(module).__name__}) is not finite")

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in net.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def called(net: Any, inputs: Any) -> Any:
    """Return a net's outputs: a tuple or list of inputs are its arguments, a mapping those with names."""
    if isinstance(inputs, Mapping):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)
