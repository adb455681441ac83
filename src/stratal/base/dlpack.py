"""DLPack capsules of bfloat16 arrays, a dtype DLPack has and NumPy has not.

NumPy makes and reads the capsules; where the elements are bfloat16 it takes them for uint16, and the dtype
that the capsule names is changed on the way. A capsule has its own descriptor, so no other reader sees that.
See: the C structures of DLPack 1.0, `dlpack.h`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

_UINT16: Final = (1, 16, 1)  # code, bits, lanes
_BFLOAT16: Final = (4, 16, 1)


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _DType), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    )  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _renamed(capsule: Any, old: tuple[int, int, int], new: tuple[int, int, int]) -> bool:
    """Let an unused capsule name a dtype in place of another; return whether it named that one."""
    if _is_valid(capsule, b"dltensor_versioned"):
        held = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if held.major != 1:  # another layout
            return False
        dtype = held.tensor.dtype
    elif _is_valid(capsule, b"dltensor"):
        dtype = _DLTensor.from_address(_pointer(capsule, b"dltensor")).dtype
    else:
        return False
    if (dtype.code, dtype.bits, dtype.lanes) != old:
        return False
    dtype.code, dtype.bits, dtype.lanes = new
    return True


def capsule_of(array: Array, options: dict[str, Any]) -> Any:
    """Return the capsule of an array, also of bfloat16. Raises: BufferError for what NumPy refuses."""
    if array.dtype != ml_dtypes.bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    if not _renamed(capsule, _UINT16, _BFLOAT16):
        raise BufferError("NumPy's capsule has a layout that is not known here")
    return capsule


class _Producer:
    """Another library's array whose bfloat16 elements NumPy reads as uint16."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.is_bfloat16 = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.x.__dlpack__(**options)
        self.is_bfloat16 = _renamed(capsule, _BFLOAT16, _UINT16)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def read_dlpack(x: Any) -> Array:
    """Return an array over the memory of another library's. Raises: what NumPy and that library raise."""
    producer = _Producer(x)
    array: Array = np.from_dlpack(producer)
    return array.view(ml_dtypes.bfloat16) if producer.is_bfloat16 else array
