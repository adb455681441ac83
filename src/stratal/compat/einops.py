"""einops on tensors: once this is imported, `rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack`
take `st.Tensor`, in compiled functions too.

einops looks for a tensor's backend among the subclasses of its `AbstractBackend`; here is one. Its
layers are modules of other libraries: `rearrange` in a `forward` does what they do.
Raises: MissingExtraError where einops is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import MissingExtraError, NotGivenError
from stratal.nn.parameter import Parameter
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.linear import einsum
from stratal.tensor.functions.shapes import concat, expand_dims, permute_dims, stack, tile
from stratal.tensor.tensor import Tensor, tensor

try:
    from einops._backends import AbstractBackend, get_backend
except ImportError as error:
    raise MissingExtraError(
        "stratal.compat.einops: needs einops", got=str(error), hint="pip install 'einops>=0.6'"
    ) from None


class StratalBackend(AbstractBackend):  # type: ignore[misc]
    """What einops asks of an array library."""

    framework_name = "stratal"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return tensor(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return arange(start, stop)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return permute_dims(x, axes)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        name = {"min": "amin", "max": "amax"}.get(operation, operation)
        return getattr(x, name)(axis=tuple(axes))  # type: ignore[no-any-return]

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return stack(tensors)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        return concat(tensors, axis=axis)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return expand_dims(x, axis=new_position)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return tile(x, tuple(repeats))

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_float

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return einsum(pattern, *x)

    def layers(self) -> Any:
        raise NotGivenError(
            "einops: its layers are not for Stratal",
            got="layers()",
            hint="call rearrange in forward",
        )


for _kind in (Tensor, Parameter):
    get_backend(_kind.__new__(_kind))  # it is remembered by class; a capture cannot look through subclasses
