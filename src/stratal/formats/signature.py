"""Signatures: names, dtypes and shapes of what a frozen model takes and returns, batched or not."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import DTypeError, FormatError, ShapeError, StratalError
from stratal.base.types import TensorType

Array = np.ndarray[Any, Any]
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MAX_DIM: Final = 1 << 48
_SPEC_KEYS: Final = {"name", "dtype", "shape"}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. `shape` is that of a row where the signature is batched, else the whole shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    batched: bool = True

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape with -1 for the batch axis, as KServe's metadata says it."""
        return (-1, *self.shape) if self.batched else self.shape

    @property
    def row_bytes(self) -> int:
        """The bytes of a row; of the whole tensor where it is not batched."""
        return math.prod(self.shape) * self.dtype.itemsize

    def type_at(self, size: int) -> TensorType:
        """Return the tensor's type at a batch size."""
        return TensorType(self.dtype, (size, *self.shape) if self.batched else self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.name}{list(self.full_shape)}"


@dataclass(frozen=True)
class Signature:
    """What a frozen model takes and returns; axis 0 of every tensor counts rows where it is `batched`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool

    def checked(self, arrays: Sequence[Array]) -> list[Array]:
        """Return arrays that fit the inputs, with one number of rows. Raises: ShapeError, DTypeError."""
        if len(arrays) != len(self.inputs):
            raise ShapeError(
                f"frozen model: takes {len(self.inputs)} inputs", got=str(len(arrays)),
                hint=", ".join(map(str, self.inputs)),
            )  # fmt: skip
        for spec, array in zip(self.inputs, arrays, strict=True):
            fits = array.ndim == len(spec.full_shape) and all(
                n in (-1, m) for n, m in zip(spec.full_shape, array.shape, strict=True)
            )
            if not fits or (spec.batched and not len(array)):
                raise ShapeError(f"frozen model: {spec}", got=str(list(array.shape)))
            if array.dtype != spec.dtype.np:
                raise DTypeError(f"frozen model: {spec}", got=str(array.dtype))
        if self.batched and len({len(a) for a in arrays}) > 1:
            raise ShapeError("frozen model: inputs have different numbers of rows",
                             got=", ".join(str(len(a)) for a in arrays))  # fmt: skip
        return list(arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `signature_from_json` reads."""
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        return {"batched": self.batched} | {
            side: [{"name": s.name, "dtype": s.dtype.name, "shape": list(s.full_shape)} for s in specs]
            for side, specs in sides.items()
        }

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"


def signature_from_json(data: object) -> Signature:
    """Return the signature of its JSON form. Raises: FormatError."""
    if not isinstance(data, dict) or set(data) != {"batched", "inputs", "outputs"}:
        raise FormatError("signature: not inputs, outputs and batched", got=repr(data)[:80])
    batched = data["batched"]
    if not isinstance(batched, bool):
        raise FormatError("signature: batched must be true or false", got=repr(batched)[:80])
    inputs, outputs = (_specs(data[side], batched) for side in ("inputs", "outputs"))
    return Signature(inputs, outputs, batched)


def _specs(data: object, batched: bool) -> tuple[TensorSpec, ...]:
    if not isinstance(data, list) or not data:
        raise FormatError("signature: a side must be a list of tensors", got=repr(data)[:80])
    specs = tuple(_spec(row, batched) for row in data)
    if len({s.name for s in specs}) != len(specs):
        raise FormatError("signature: two tensors have one name", got=", ".join(s.name for s in specs)[:80])
    return specs


def _spec(row: object, batched: bool) -> TensorSpec:
    if not isinstance(row, dict) or set(row) != _SPEC_KEYS:
        raise FormatError("signature: a tensor has name, dtype and shape", got=repr(row)[:80])
    name, dtype, shape = row["name"], row["dtype"], row["shape"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise FormatError("signature: not a tensor's name", got=repr(name)[:80])
    if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > 32:
        raise FormatError("signature: not a dtype and a shape", got=repr(row)[:80])
    if batched and (not shape or shape[0] != -1):
        raise FormatError("signature: a batched tensor's first axis is -1", got=repr(shape)[:80])
    rest = shape[1:] if batched else shape
    if not all(type(n) is int and 0 <= n < _MAX_DIM for n in rest):
        raise FormatError("signature: a size that is no size", got=repr(shape)[:80])
    try:
        return TensorSpec(name, as_dtype(dtype), tuple(rest), batched)
    except StratalError as error:
        raise FormatError("signature: a dtype that is not known", got=dtype[:40]) from error
