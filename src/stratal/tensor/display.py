"""How a tensor prints."""

from __future__ import annotations

import numpy as np

from stratal.base.errors import StratalError
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor


def show(tensor: Tensor) -> str:
    """Return the value with dtype where it is not a default; a traced tensor shows its type and where it was
    made.
    """
    name = "Parameter containing:\n" if type(tensor).__name__ == "Parameter" else ""
    if tensor._trace is not None or (MODE.trace is not None and MODE.trace.reads(tensor)):
        node = tensor._node
        where = f" from {node.where[0]}" if node is not None and node.where else ""
        return f"{name}<traced {tensor.type}{where}>"
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
    if tensor.dtype.name not in ("float32", "int64", "bool"):
        notes.append(f"dtype={tensor.dtype.name}")
    if not tensor.numel():
        notes.append(f"shape={list(tensor.shape)}")
    if tensor.requires_grad:
        notes.append("requires_grad=True" if tensor.is_leaf else f"grad_fn=<{tensor.grad_fn}>")
    return f"{name}tensor({', '.join([body, *notes])})"
