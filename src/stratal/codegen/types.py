"""How dtypes look in LLVM: in memory, in registers, as constants.

bool is i8 in memory and i1 in registers; the 16-bit floats are i16 in both and become float by `cast` alone.
"""

from __future__ import annotations

import math
import struct

from stratal.base.dtypes import DType, bfloat16, float16, float32, float64
from stratal.base.errors import VerifyError

Value = bool | int | float


def register_type(dtype: DType) -> str:
    """Return the LLVM scalar type values of a dtype have in registers."""
    if dtype.is_bool:
        return "i1"
    if dtype.is_integer:
        return f"i{dtype.bits}"
    if dtype is float32:
        return "float"
    if dtype is float64:
        return "double"
    if dtype in (float16, bfloat16):
        return "i16"
    raise VerifyError(f"codegen: no native type for {dtype}")


def memory_type(dtype: DType) -> str:
    """Return the LLVM scalar type of an element in memory."""
    return "i8" if dtype.is_bool else register_type(dtype)


def immediate(value: Value, dtype: DType) -> str:
    """Return a scalar constant as LLVM text, exact to the bit."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        low = -(1 << (dtype.bits - 1))
        return str((int(value) - low) % (1 << dtype.bits) + low)
    if dtype is float16:
        return str(struct.unpack("<h", struct.pack("<e", value))[0])
    if dtype is bfloat16:
        return str(_bfloat_bits(float(value)))
    number = float(value)
    if dtype is float32 and math.isfinite(number):
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    if math.isnan(number):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _bfloat_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return 0x7FC0
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return int(rounded - (1 << 16) if rounded >= 1 << 15 else rounded)
