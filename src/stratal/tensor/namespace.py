"""What the array API standard asks of a namespace besides functions: what it can do, by its own words.

See https://data-apis.org/array-api/2024.12/API_specification/inspection.html
"""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import AttributeValueError
from stratal.tensor.device import CPU, check_device, device
from stratal.tensor.info import isdtype

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_DEFAULTS = {
    "real floating": "float32", "complex floating": "complex64", "integral": "int64", "indexing": "int64",
}  # fmt: skip


class NamespaceInfo:
    """What `__array_namespace_info__()` returns: devices, dtypes and capabilities."""

    def capabilities(self) -> dict[str, Any]:
        """Return what is possible: indexing by masks and results whose size is data, outside of a capture;
        as many axes as NumPy has.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> device:
        """Return the device tensors are made on."""
        return CPU

    def devices(self) -> list[device]:
        """Return all devices."""
        return [CPU]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtype of Python numbers, of each kind."""
        check_device(device)
        return {kind: as_dtype(name) for kind, name in _DEFAULTS.items()}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name; `kind` is one of `isdtype`'s words, or several."""
        check_device(device)
        found = {name: as_dtype(name) for name in _DTYPES}
        return {name: d for name, d in found.items() if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Return what this implementation of the array API can do."""
    return NamespaceInfo()


def check_version(api_version: str | None) -> None:
    """Refuse a version of the standard this is not. Raises: AttributeValueError."""
    if api_version is not None and api_version not in API_VERSIONS:
        raise AttributeValueError(
            "__array_namespace__: this version of the array API is not here", got=repr(api_version),
            hint="one of " + ", ".join(API_VERSIONS),
        )  # fmt: skip
