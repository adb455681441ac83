"""Dtypes: names, NumPy counterparts and the array API's promotion rules.

Kinds are ordered bool < unsigned, signed < float < complex. `float32` is the default float and
`int64` the default integer. float16 and bfloat16 arithmetic computes in float32 and rounds once per op.
"""

from __future__ import annotations

from typing import Final, Literal, final

import ml_dtypes
import numpy as np

from stratal.base.errors import DTypeError

Kind = Literal["b", "u", "i", "f", "c"]


@final
class DType:
    """One element type. Compare with `is` or `==`, NumPy's by `==`; its short name is that of `f32[4]`."""

    __slots__ = ("bits", "itemsize", "kind", "name", "np", "short")

    def __init__(self, name: str, short: str, kind: Kind, np_dtype: np.dtype) -> None:
        self.name: Final = name
        self.short: Final = short
        self.kind: Final[Kind] = kind
        self.np: Final = np_dtype
        self.itemsize: Final[int] = np_dtype.itemsize
        self.bits: Final[int] = 1 if kind == "b" else 8 * np_dtype.itemsize

    def __repr__(self) -> str:
        return f"stratal.{self.name}"

    def __str__(self) -> str:
        return self.short

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is DType:
            return self is other
        numpys = isinstance(other, np.dtype) or (isinstance(other, type) and issubclass(other, np.generic))
        return numpys and _LOOKUP.get(other) is self

    __hash__ = object.__hash__

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype: what it asks for where it is given one of ours."""
        return self.np

    def __reduce__(self) -> str | tuple[object, ...]:
        return (as_dtype, (self.name,))

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_integer(self) -> bool:
        return self.kind in "ui"

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_inexact(self) -> bool:
        """Whether values of this dtype have tangents."""
        return self.kind in "fc"

    @property
    def compute(self) -> DType:
        """The dtype arithmetic runs in: float32 for the 16-bit floats, itself otherwise."""
        return float32 if self.kind == "f" and self.itemsize == 2 else self

    @property
    def real(self) -> DType:
        """The dtype of real and imaginary parts; of real numbers their own."""
        return {complex64: float32, complex128: float64}.get(self, self)


bool_ = DType("bool", "bool", "b", np.dtype(np.bool_))
int8 = DType("int8", "i8", "i", np.dtype(np.int8))
int16 = DType("int16", "i16", "i", np.dtype(np.int16))
int32 = DType("int32", "i32", "i", np.dtype(np.int32))
int64 = DType("int64", "i64", "i", np.dtype(np.int64))
uint8 = DType("uint8", "u8", "u", np.dtype(np.uint8))
uint16 = DType("uint16", "u16", "u", np.dtype(np.uint16))
uint32 = DType("uint32", "u32", "u", np.dtype(np.uint32))
uint64 = DType("uint64", "u64", "u", np.dtype(np.uint64))
float16 = DType("float16", "f16", "f", np.dtype(np.float16))
bfloat16 = DType("bfloat16", "bf16", "f", np.dtype(ml_dtypes.bfloat16))
float32 = DType("float32", "f32", "f", np.dtype(np.float32))
float64 = DType("float64", "f64", "f", np.dtype(np.float64))
complex64 = DType("complex64", "c64", "c", np.dtype(np.complex64))
complex128 = DType("complex128", "c128", "c", np.dtype(np.complex128))

ALL: Final = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip

_LOOKUP: dict[object, DType] = {}
for _d in ALL:
    _LOOKUP.update({_d.name: _d, _d.short: _d, _d.np: _d, _d.np.type: _d, _d: _d})
_LOOKUP.update({bool: bool_, int: int64, float: float32, complex: complex64})


def set_default_float(dtype: DType) -> None:
    """Let `as_dtype(float)` be a float dtype from now on, and `as_dtype(complex)` as wide."""
    _LOOKUP[float], _LOOKUP[complex] = dtype, complex128 if dtype is float64 else complex64


def as_dtype(value: object) -> DType:
    """Return the DType that a DType, NumPy dtype, name or Python type stands for."""
    try:
        found = _LOOKUP.get(value)
    except TypeError:
        found = None
    if found is None:
        try:
            found = _LOOKUP.get(np.dtype(value))  # type: ignore[call-overload]
        except (TypeError, ValueError, SyntaxError):  # of text that NumPy cannot parse
            found = None
    if found is None:
        hint = "one of " + ", ".join(d.name for d in ALL)
        if type(value).__module__.partition(".")[0] == "torch":
            hint = "st.float32, or a name; a tensor of PyTorch becomes one of ours by st.from_dlpack(x)"
        raise DTypeError("dtype: not a dtype Stratal knows", got=repr(value), hint=hint)
    return found


def as_element(name: str, value: bool | int | float | complex, dtype: DType) -> np.ndarray:
    """Return a Python number as an array without axes: the one way by which numbers become elements.

    Fractions are dropped for integers, as in casts. Raises: DTypeError for what an integer dtype does not
    reach, NaN among it, for an int beyond all floats, and for an imaginary part where the dtype has none.
    """
    try:
        if dtype.kind in "uif" and not value.imag:
            value = value.real
        if dtype.is_integer:
            value = int(value)  # type: ignore[arg-type]
            low = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
            if not low <= value < low + (1 << dtype.bits):
                raise OverflowError
        elif dtype.is_float:
            value = float(value)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            return np.array(value, dtype.np)
    except (OverflowError, ValueError, TypeError):
        long = isinstance(value, int) and abs(value) >= 1 << 99
        shown = f"an int of {int(value.real).bit_length()} bits" if long else str(value)
        raise DTypeError(
            f"{name}: the Python number does not fit the dtype", got=f"{shown} for {dtype}",
            hint="cast the tensor to a wider dtype first",
        ) from None  # fmt: skip


def promote(a: DType, b: DType) -> DType:
    """Return the dtype of `a op b` (array API, "Type promotion rules").

    Kinds the standard leaves open: integer with float gives the float, bool with anything gives the other.
    Raises: DTypeError for uint64 with a signed integer, which no dtype holds.
    """
    if a is b:
        return a
    if a.kind == b.kind:
        if a.bits == b.bits:  # float16 with bfloat16
            return float32
        return a if a.bits > b.bits else b
    order = "buifc"
    low, high = sorted((a, b), key=lambda d: order.index(d.kind))
    if low.kind == "b":
        return high
    if high.kind == "c":
        return complex128 if float64 in (low, high) or high is complex128 else complex64
    if high.kind == "f":
        return high
    if low.bits < high.bits:  # unsigned fits the signed one
        return high
    if low is uint64:
        raise DTypeError(
            "promotion: no integer dtype holds both", got=f"{a} with {b}", hint="cast one side first"
        )
    return {uint8: int16, uint16: int32, uint32: int64}[low]


def promote_scalar(dtype: DType, value: bool | int | float | complex) -> DType:
    """Return the dtype of `array op python_scalar`: the array's, unless the scalar is of a higher kind."""
    if isinstance(value, bool) or dtype.is_complex:
        return dtype
    if isinstance(value, int):
        return int64 if dtype.is_bool else dtype
    if isinstance(value, float):
        return dtype if dtype.is_inexact else as_dtype(float)
    return (complex128 if dtype is float64 else complex64) if dtype.is_float else as_dtype(complex)
