"""Types of values: a tensor's dtype and shape, or a tuple of types for ops with several results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn, Union, final

from stratal.base.dims import Dim, Shape, as_int, product, upper_bound
from stratal.base.dtypes import DType
from stratal.base.errors import DTypeError, ShapeError

MOST_AXES = 64  # NumPy's limit


@final
class TensorType:
    """dtype and shape; printed as `f32[64,10]`."""

    __slots__ = ("_hash", "_ints", "dtype", "shape")

    def __init__(self, dtype: DType, shape: Iterable[Dim] = ()) -> None:
        self.dtype: Final = dtype
        self.shape: Final[Shape] = tuple(shape)
        if len(self.shape) > MOST_AXES:
            raise ShapeError("shape: more axes than tensors have", got=f"{len(self.shape)} axes",
                             hint=f"up to {MOST_AXES}")  # fmt: skip
        self._hash: Final = hash((dtype.name, self.shape))

    def __call__(self, *_: object) -> NoReturn:
        """Refuse `x.type(dtype)`, PyTorch's other name of `x.to(dtype)`: here `x.type` is the type itself."""
        raise DTypeError(
            "type: is an attribute",
            got=f"a call of the type {self}",
            hint="x.to(dtype) converts x, x.dtype names its dtype",
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def ints(self) -> tuple[int, ...]:
        """The shape where it must be concrete. Raises: ShapeError for a symbolic size."""
        try:
            return self._ints
        except AttributeError:
            self._ints: tuple[int, ...] = tuple(map(as_int, self.shape))
        return self._ints

    @property
    def nbytes(self) -> int:
        """Bytes of a dense buffer that holds any value of this type."""
        return upper_bound(self.size) * self.dtype.itemsize

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, TensorType)
            and self._hash == other._hash  # else symbols would be asked whether they are other sizes
            and self.dtype is other.dtype
            and self.shape == other.shape
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


@final
class TupleType:
    """The type of an op with several results; `item(k)` takes one out."""

    __slots__ = ("elements",)

    def __init__(self, elements: Iterable[TensorType]) -> None:
        self.elements: Final = tuple(elements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TupleType) and self.elements == other.elements

    def __hash__(self) -> int:
        return hash(self.elements)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"

    __repr__ = __str__


Type = Union[TensorType, TupleType]
