"""The files of `torch.save`, read without PyTorch and without running what they name.

    file     := zip of PREFIX/data.pkl, PREFIX/byteorder, PREFIX/data/KEY for each storage; not compressed
    data.pkl := a pickle of the value; a storage is a persistent id ("storage", TYPE, KEY, device, count)

Tensors are made of a storage, an offset, a shape and strides. They are copied out: two that shared memory do
not any more, and none takes gradients. Sizes are checked against the storage, and against the file, before
memory is allocated. Files of PyTorch before 1.6, which are no zip, are refused.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import Any, Final

import numpy as np

from stratal.base import dtypes
from stratal.base.dtypes import DType
from stratal.base.errors import FormatError
from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.formats.pickled import Made, Named, Operand, called, checked_key, read_pickle, refuse
from stratal.tensor.tensor import Tensor, tensor

_MOST_AXES: Final = 32
_COPIES: Final = 16  # bytes of tensors for one of the file, where strides repeat elements; and a megabyte
_LOCAL: Final = struct.Struct("<4s22xHH")  # of a local header: signature, lengths of name and extra field
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, OSError, EOFError, OverflowError,
    RuntimeError, struct.error,
)  # fmt: skip

_DTYPES: Final = {
    dtype.name: dtype
    for dtype in (
        dtypes.bool_, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16,
        dtypes.uint32, dtypes.uint64, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
        dtypes.complex64, dtypes.complex128,
    )
}  # fmt: skip
_STORAGES: Final = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexDouble": "complex128", "ComplexFloat": "complex64",
}  # fmt: skip
_STORAGE_TYPES: Final[dict[str, DType | None]] = {
    **{f"torch.{name}Storage": _DTYPES[dtype] for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": None,  # of bytes; the dtype is the tensor's
}


class _Storage(Operand):
    """Bytes of a storage and what they are; None where the tensors say so."""

    __slots__ = ("data", "dtype")

    def __init__(self, name: str, data: memoryview, dtype: DType | None) -> None:
        super().__init__(name)
        self.data: Final = data
        self.dtype: Final = dtype


def read_torch(data: memoryview) -> Any:
    """Return what `torch.save` wrote, its tensors as tensors here. Raises: FormatError."""
    archive = _Archive(data)
    if "byteorder" in archive and bytes(archive.member("byteorder")) != b"little":
        refuse("written by a machine of another byte order", bytes(archive.member("byteorder"))[:12])
    values = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
    reader = _Tensors(archive, _COPIES * len(data) + (1 << 20))
    return read_pickle(archive.member("data.pkl"), reader.table(), values, reader.storage)


class _Archive:
    """The members of a zip file, where they stand in its bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        try:
            with UNINTERRUPTIBLE, zipfile.ZipFile(BytesIO(data)) as archive:
                entries = archive.infolist()
        except _ZIP_ERRORS as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise FormatError("torch file: no zip, or damaged", got=str(error)[:120]) from None
        found = [e.filename for e in entries if e.filename.endswith("/data.pkl")]
        self._prefix = found[0].removesuffix("data.pkl") if found else ""
        self._entries = {e.filename.removeprefix(self._prefix): e for e in entries}
        if not found or len(self._entries) != len(entries):
            refuse("no data.pkl in it, or two members of one name")
        self._left = len(data)  # bytes of members that are still to be read: they do not overlap

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def member(self, name: str) -> memoryview:
        """Return the bytes of a member, their checksum compared. Raises: FormatError."""
        entry = self._entries.get(name)
        if entry is None:
            refuse("a member is missing", name)
        at, size = entry.header_offset, entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != size or entry.flag_bits & 1:
            refuse("a member is compressed", name)
        if not 0 <= at <= len(self._data) - _LOCAL.size - 4:
            refuse("a member lies outside the file", name)
        signature, name_bytes, extra_bytes = _LOCAL.unpack_from(self._data, at)
        begin = at + _LOCAL.size + name_bytes + extra_bytes
        self._left -= size
        if signature != b"PK\3\4" or not 0 <= size <= len(self._data) - begin or self._left < 0:
            refuse("a member lies outside the file, or over another", name)
        found = self._data[begin : begin + size]
        if zlib.crc32(found) != entry.CRC:
            refuse("a member is damaged", name)
        return found


class _Tensors:
    """The functions that the pickle of a file may name, and the storages it reads."""

    def __init__(self, archive: _Archive, most_bytes: int) -> None:
        self._archive, self._left = archive, most_bytes
        self._storages: dict[str, memoryview] = {}

    def table(self) -> Mapping[str, Made | None]:
        """Return by name what makes a value of arguments; None where a name is only an argument."""
        return {
            "collections.OrderedDict": _ordered_dict,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor_of_dtype,
            "torch._utils._rebuild_parameter": _parameter,
            "torch._utils._rebuild_parameter_with_state": _parameter,
            "torch._tensor._rebuild_from_type_v2": self._of_type,
            "torch.Size": _size,
            "torch.device": _device,
            "__builtin__.complex": _complex, "builtins.complex": _complex,
            **dict.fromkeys((*_STORAGE_TYPES, "torch.Tensor", "torch.nn.parameter.Parameter")),
        }  # fmt: skip

    def storage(self, given: Any) -> _Storage:
        """Return the storage of a persistent id. Raises: FormatError."""
        match given:
            case ("storage", Named(name=type_), str(key), str(), int(count)) if type_ in _STORAGE_TYPES:
                dtype = _STORAGE_TYPES[type_]
            case _:
                refuse("not the id of a storage", type(given).__name__)
        if key not in self._storages:
            self._storages[key] = self._archive.member(f"data/{key}")
        data = self._storages[key]
        if len(data) != count * (1 if dtype is None else dtype.itemsize):
            refuse("a storage is not as long as it says", f"{count} elements in {len(data)} bytes")
        return _Storage(f"storage {key}", data, dtype)

    def _tensor(
        self, storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any = False,
        hooks: Any = None, bits: Any = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(storage, _Storage) or storage.dtype is None:
            refuse("a tensor without a typed storage", type(storage).__name__)
        return self._made(storage.data, storage.dtype, offset, shape, strides, bits)

    def _tensor_of_dtype(
        self, storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any, dtype: Any,
        bits: Any = None,
    ) -> Tensor:  # fmt: skip
        if not isinstance(storage, _Storage) or storage.dtype is not None or not isinstance(dtype, DType):
            refuse("a tensor without storage and dtype", type(dtype).__name__)
        return self._made(storage.data, dtype, offset, shape, strides, bits)

    def _of_type(self, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
        """Return a tensor that had attributes of its own, which are left out."""
        made = self.table().get(function.name) if isinstance(function, Named) else None
        plain = isinstance(kind, Named) and kind.name in ("torch.Tensor", "torch.nn.parameter.Parameter")
        if made is None or made == self._of_type or type(arguments) is not tuple or not plain:
            refuse("a tensor of a class of its own", getattr(kind, "name", type(kind).__name__))
        return called(made, function.name, arguments)

    def _made(
        self, data: memoryview, dtype: DType, offset: Any, shape: Any, strides: Any, bits: Any
    ) -> Tensor:
        """Return a copy of the elements that an offset, a shape and strides choose. Raises: FormatError."""
        sizes = (offset, *shape, *strides) if type(shape) is type(strides) is tuple else (None,)
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in sizes):
            refuse("a tensor with a size that is no size", f"{shape}, {strides}"[:80])
        if len(shape) != len(strides) or len(shape) > _MOST_AXES:
            refuse("a tensor with other strides than axes, or too many", f"{len(shape)}, {len(strides)}")
        if bits:
            refuse("a tensor that is to be conjugated or negated", "a view", "save x.resolve_conj()")
        count, last = prod(shape), offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if count and last >= len(data) // dtype.itemsize:
            refuse("a tensor reaches beyond its storage", f"element {last} of {len(data) // dtype.itemsize}")
        self._left -= count * dtype.itemsize
        if self._left < 0:
            refuse("tensors that are far larger than the file", f"{dtype}{list(shape)}")
        try:
            if not count:
                return tensor(np.empty(shape, dtype.np))
            flat = np.frombuffer(data[offset * dtype.itemsize : (last + 1) * dtype.itemsize], np.uint8)
            if flat.ctypes.data % dtype.itemsize:
                flat = flat.copy()
            if dtype is dtypes.bool_ and flat.max() > 1:
                refuse("a bool is neither 0 nor 1", int(flat.max()))
            steps = [s * dtype.itemsize for s in strides]
            return tensor(np.lib.stride_tricks.as_strided(flat.view(dtype.np), shape, steps, writeable=False))
        except (ValueError, OverflowError) as error:
            if isinstance(error, FormatError):
                raise
            refuse("a tensor of a shape that is too large", f"{list(shape)}: {error}")


def _parameter(data: Any, requires_grad: Any, hooks: Any, state: Any = None) -> Tensor:
    if not isinstance(data, Tensor):
        refuse("a parameter without a tensor", type(data).__name__)
    return data


def _ordered_dict(pairs: Any = ()) -> OrderedDict[Any, Any]:
    if type(pairs) not in (list, tuple) or not all(type(p) in (list, tuple) and len(p) == 2 for p in pairs):
        refuse("an OrderedDict of what are no pairs", type(pairs).__name__)
    return OrderedDict((checked_key(key), value) for key, value in pairs)


def _size(sizes: Any) -> tuple[int, ...]:
    if type(sizes) is not tuple or not all(type(n) is int for n in sizes):
        refuse("a shape of what are no sizes", type(sizes).__name__)
    return sizes


def _device(name: Any, index: Any = None) -> str:
    """Return the name of a device that was in a value: there is none like it here."""
    if type(name) is not str or type(index) not in (int, type(None)):
        refuse("a device that is no name", type(name).__name__)
    return name if index is None else f"{name}:{index}"


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        refuse("a complex number of what are no floats", type(real).__name__)
    return complex(real, imaginary)
