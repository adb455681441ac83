"""Mixed precision: which ops take 16-bit operands inside `autocast`, and which float32 ones.

The table below is applied where an op is put into the graph. What precision each op has is written there as
casts: derivatives, rewrites, fusion and memory planning see a graph like any other, casts of one weight that
several ops read are one, and a cast is part of the kernel that makes its operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from stratal.base.dtypes import DType, as_dtype, bfloat16, float16, float32
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE, ModeBlock

_Function = TypeVar("_Function", bound=Callable[..., Any])

SHORT: Final = frozenset({
    "attention", "attention_weights", "contract", "conv", "convolution", "linear", "matmul", "prelu",
    "scaled_dot_product_attention", "transposed_convolution",
})  # fmt: skip
"""Sums of products, and what weighs them: 16-bit operands, sums in float32, results rounded once."""

FULL: Final = frozenset({
    "acos", "asin", "batch_norm", "batch_norm_inference", "bce_with_logits", "cosh", "cross_entropy",
    "cumprod", "cumsum", "digamma", "erfinv", "exp", "exp2", "expm1", "group_norm", "layer_norm", "lgamma",
    "linear_recurrence", "log", "log1p", "log2", "log_softmax", "logsigmoid", "logsumexp", "mean", "nll",
    "pow", "prod", "rms_norm", "rsqrt", "segment_sum", "sinh", "softmax", "softplus", "squared_error", "sum",
    "tan", "variance",
})  # fmt: skip
"""What loses digits or range at once: sums of many, powers, losses, norms."""


class autocast(ModeBlock):
    """Let products and convolutions in a `with` block, or a function it decorates, run in 16 bits.

    Their float32 operands are rounded to `dtype` (bfloat16 or float16) and so are their results; they sum in
    float32. Sums of many elements, powers, norms, softmax and losses run in float32, everything else in the
    dtype its operands have. Weights stay float32, and so do their gradients: the copies in 16 bits are values
    of the graph. float64 is left alone. Leave the block before `backward()`: gradients have the precision of
    the ops they belong to wherever they are asked for. float16 needs `st.amp.GradScaler` beside it.

    The arguments are PyTorch's (`torch.autocast`); `cache_enabled` changes nothing: equal casts are one.

    See: Micikevicius et al. 2018, "Mixed Precision Training".
    Raises: AttributeValueError (another device), DTypeError (another dtype).
    """

    def __init__(
        self, device_type: str = "cpu", dtype: Any = None, enabled: bool = True, cache_enabled: bool = True
    ) -> None:
        if not isinstance(device_type, str) or device_type != "cpu":
            raise AttributeValueError(
                "autocast: the first argument is a device, and there is only the CPU", got=repr(device_type),
                hint='st.autocast("cpu", dtype=st.bfloat16), or st.autocast(dtype=st.bfloat16)',
            )  # fmt: skip
        found = bfloat16 if dtype is None else as_dtype(dtype)
        if enabled and found not in (bfloat16, float16):
            raise DTypeError("autocast: runs products in bfloat16 or float16", got=str(found))
        super().__init__("autocast", found if enabled else None)


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Return whether ops are under `autocast` in this task or thread."""
    return MODE.autocast is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """Return the dtype products have under `autocast` in this task or thread; bfloat16 outside of it."""
    return MODE.autocast or bfloat16


def operand_dtypes(name: str, dtypes: Sequence[DType]) -> list[DType]:
    """Return what operands of these dtypes are cast to before the op or composite called `name`.

    Where the table does not name it, floats of different widths become the widest among them.
    """
    floats = {d for d in dtypes if d.is_float and d.bits <= 32}
    wanted: DType | None = None
    if name in SHORT:
        wanted = MODE.autocast
    elif name in FULL or len(floats) > 1:
        wanted = float32
    return [wanted if wanted is not None and d in floats else d for d in dtypes]


def full_precision(function: _Function) -> _Function:
    """Let a function run in float32 under `autocast`, 16-bit operands too: losses, distances."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if MODE.autocast is None:
            return function(*args, **kwargs)
        with ModeBlock("autocast", None):
            return function(*map(_full, args), **{name: _full(x) for name, x in kwargs.items()})

    return run  # type: ignore[return-value]


def _full(x: Any) -> Any:
    return x.astype(float32) if isinstance(x, Tensor) and x.dtype in (bfloat16, float16) else x


__all__ = ["autocast", "get_autocast_dtype", "is_autocast_enabled"]
