"""Parameter: a tensor that a module finds and an optimizer trains."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.types import TensorType
from stratal.nn.unallocated import region_in_force
from stratal.tensor.tensor import Tensor, tensor


class Parameter(Tensor):
    """A leaf tensor that takes gradients. Setting one as an attribute of a module registers it there.

    Takes a tensor or anything one can be made of; the data is copied.
    """

    __slots__ = ("__dict__",)

    def __init__(self, data: Any = (), requires_grad: bool = True, *, dtype: Any = None) -> None:
        region = region_in_force()
        if region is not None:
            data, dtype = region.tensor(_type_of(data, dtype)), None
        super().__init__(data.detach() if isinstance(data, Tensor) else data, dtype, requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Return a parameter with the same value, and without a gradient."""
        region = region_in_force()
        if region is None:
            return self._twin(memo)  # type: ignore[return-value]
        made = memo[id(self)] = type(self).__new__(type(self))
        Tensor.__init__(made, region.tensor(self.type), None, self.requires_grad)
        return made


def _type_of(data: Any, dtype: Any) -> TensorType:
    """Return the type of the parameter that data make."""
    if not isinstance(data, (Tensor, np.ndarray)):
        data = tensor(data, dtype=float)
    return TensorType(as_dtype(data.dtype if dtype is None else dtype), data.shape)


def empty_parameter(shape: tuple[int, ...], dtype: Any = None) -> Parameter:
    """Return a parameter of zeros for an initialiser to fill, of the default dtype unless told."""
    return Parameter(np.zeros(shape, as_dtype(float if dtype is None else dtype).np))
