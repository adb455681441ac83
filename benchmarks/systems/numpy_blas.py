"""NumPy with the BLAS it ships: matrix products only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.cases import Case, as_product
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


def build_case(case: Case, variant: str) -> Job:
    """Return a random contraction that is a product of views, into an array that is there already."""
    found = as_product(case.spec) if case.spec else None
    if found is None or case.dtype != "float32":
        raise UnsupportedError("NumPy has a fast kernel for float32 products only")
    x, w = case.inputs()
    x, w = x.transpose(found.left), w.transpose(found.right)
    out = np.empty(np.matmul(x, w).shape, np.float32)
    return Job(lambda: np.matmul(x, w, out=out), lambda result: [result.transpose(found.out)])
