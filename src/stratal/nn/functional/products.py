"""Products with weights."""

from __future__ import annotations

import numpy as np

from stratal.base.errors import DTypeError, ShapeError
from stratal.tensor.build import call
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE

_LETTERS = "abcdefghijklmn"


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias over the last axis.

    Shapes: x [..., in], weight [out, in] or [in], bias [out].
    """
    features = weight.shape[-1] if weight.ndim in (1, 2) else "the weight's one or two axes'"
    if input.ndim < 1 or input.shape[-1] != features:
        raise ShapeError(
            "linear: inner sizes differ", got=f"input {list(input.shape)}, weight {list(weight.shape)}",
            hint=f"the last axis of the input should have {features} features",
        )  # fmt: skip
    if weight.ndim == 1:
        out: Tensor = input @ weight
        return out if bias is None else out + bias
    return call("linear", *_one_dtype("linear", input, weight, bias))


def _one_dtype(name: str, *tensors: Tensor | None) -> list[Tensor]:
    """Return the tensors that are there.

    Raises: DTypeError where dtypes differ and `autocast` has none for them, rather than promoting a whole
    matrix.
    """
    found = [t for t in tensors if t is not None]
    if not isinstance(found[0], Tensor | np.ndarray):  # a table
        raise DTypeError(f"{name}: 'input' must be a tensor",
                         hint="st.tensor(x) makes a tensor of arrays, lists and numbers")  # fmt: skip
    if MODE.autocast is None and len({t.dtype for t in found}) > 1:
        raise DTypeError(f"{name}: operands differ in dtype", got=", ".join(str(t.type) for t in found),
                         hint="x.float() converts the input; net.to(dtype) the module")  # fmt: skip
    return found


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x1 W_k x2 for every output k. Shapes: x1 [..., i], x2 [..., j], weight [out, i, j]."""
    rows = _LETTERS[: input1.ndim - 1]
    half = call("contract", input1, weight, spec=f"{rows}x,zxy->{rows}zy")
    result: Tensor = call("contract", half, input2, spec=f"{rows}zy,{rows}y->{rows}z")
    return result if bias is None else result + bias
