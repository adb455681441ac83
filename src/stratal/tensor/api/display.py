"""How a tensor prints."""

from __future__ import annotations

from html import escape
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import as_dtype, bool_, int64
from stratal.base.errors import StratalError
from stratal.base.markup import table, titled
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE

MOST_SHOWN: Final = 12  # rows and columns of a table
MOST_PRINTED: Final = 64  # elements of a tensor of three axes or more that is printed whole


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


def show_html(tensor: Tensor) -> str:
    """Return a table of a tensor for notebooks, of more than two axes the first matrix; or what prints."""
    trace = MODE.trace
    traced = tensor._trace is not None or (trace is not None and trace.reads(tensor))
    printed = tensor.ndim == 0 or (tensor.ndim > 2 and tensor.numel() <= MOST_PRINTED)
    if traced or printed or not tensor.numel():
        return f"<pre>{escape(show(tensor))}</pre>"
    try:
        array = tensor._value("print").array
    except StratalError:
        return f"<pre>{escape(show(tensor))}</pre>"
    outer = (0,) * (tensor.ndim - 2)
    rows = array[None] if tensor.ndim == 1 else array[outer]
    shown = [_shortened(row) for row in (rows if len(rows) <= MOST_SHOWN else rows[:MOST_SHOWN])]
    if len(rows) > MOST_SHOWN:
        shown.append(["⋮"] * len(shown[0]))
    part = f", its part {list(outer)}" if outer else ""
    gradient = f", {_gradient(tensor)}" if _gradient(tensor) else ""
    return titled(f"{tensor.type}{gradient}{part}", table((), shown))


def _shortened(row: np.ndarray[Any, Any]) -> list[str]:
    cells = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in row[:MOST_SHOWN].tolist()]
    return cells if len(row) <= MOST_SHOWN else [*cells, "…"]


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
