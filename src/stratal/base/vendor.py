"""The library of matrix products others wrote that kernels may call: the OpenBLAS NumPy's wheels bring along.

Which file it is, is known here, so that schedules may name it; `runtime.vendor` loads it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from stratal.base.dtypes import DType, float32, float64

FUNCTIONS: Final[dict[DType, str]] = {float32: "sgemm", float64: "dgemm"}
"""A product of row-major matrices of one dtype: functions of CBLAS with 64-bit sizes."""
ROW_MAJOR: Final = 101  # as CBLAS names things
NOT_TRANSPOSED: Final = 111
TRANSPOSED: Final = 112

_NAME: Final = "libscipy_openblas64_*"  # the 64 says that its integers have as many bits
_PREFIX: Final = "stratal_vendor_"


class Vendor(NamedTuple):
    """A library on this machine. `version` differs where its results may."""

    path: Path
    version: int

    def __str__(self) -> str:
        return f"OpenBLAS ({self.path.name})"


def symbol(dtype: DType) -> str:
    """Return what kernels call the function of a dtype; a loader gives that name its address."""
    return _PREFIX + FUNCTIONS[dtype]


@cache
def vendor() -> Vendor | None:
    """Return the library, or None where NumPy came without it."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob(_NAME)):
            about = f"{path.name} {path.stat().st_size}"  # the name of a wheel's library holds a hash of it
            return Vendor(path, int.from_bytes(hashlib.blake2b(about.encode(), digest_size=4).digest()))
    return None
