"""NumPy with the BLAS it ships: matrix products only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.functions import FUNCTIONS
from benchmarks.systems import Job, UnsupportedError
from benchmarks.task import Task


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the product, into an array that is there already."""
    function = FUNCTIONS[task.name]
    if function.kind != "gemm" or function.dtype != "float32":
        raise UnsupportedError("NumPy has a fast kernel for float32 products only")
    a, b = function.inputs()
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    return Job(lambda: np.matmul(a, b, out=out), lambda result: [result])
