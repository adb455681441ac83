"""How a tensor prints."""

from __future__ import annotations

import numpy as np

from stratal.base.dtypes import as_dtype, bool_, int64
from stratal.base.errors import StratalError
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE


def show(tensor: Tensor) -> str:
    """Return the value with dtype where it is not a default; a traced tensor shows its type and where it was
    made.
    """
    of_module = any(kind.__name__ == "Parameter" for kind in type(tensor).__mro__)
    name = "Parameter containing:\n" if of_module else ""
    trace = MODE.trace
    if tensor._trace is not None or (trace is not None and trace.reads(tensor)):  # there is no value yet
        later = None if trace is None else trace.text(tensor, None, name, _gradient(tensor))
        node = tensor._node
        where = f" from {node.where[0]}" if node is not None and node.where else ""
        return later or f"{name}<traced {tensor.type}{where}>"
    return text_of(tensor, name, _gradient(tensor))


def _gradient(tensor: Tensor) -> str:
    if not tensor.requires_grad:
        return ""
    return "requires_grad=True" if tensor.is_leaf else f"grad_fn=<{tensor.grad_fn}>"


def text_of(tensor: Tensor, name: str, gradient: str) -> str:
    """Return how a value prints; `name` and `gradient` say what it is to gradients."""
    try:
        array = tensor._value("print").array
    except StratalError as error:
        return f"{name}<{tensor.type} without a value: {error.rule}>"
    if tensor.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    body = np.array2string(
        array, separator=", ", prefix="tensor(", precision=4, suppress_small=False, threshold=1000
    )
    notes = []
    if tensor.dtype not in (as_dtype(float), int64, bool_):
        notes.append(f"dtype={tensor.dtype.name}")
    if not tensor.numel():
        notes.append(f"shape={list(tensor.shape)}")
    if gradient:
        notes.append(gradient)
    return f"{name}tensor({', '.join([body, *notes])})"
