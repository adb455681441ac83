"""Linear algebra: the array API's `linalg`, and what users of PyTorch and NumPy expect beside it.

Functions take stacks of matrices: [..., m, n], of float32, float64, complex64 or complex128; integers become
float32, and 16-bit floats are refused, as LAPACK has none. Factorisations run on the host, by LAPACK; what is
made of their results is compiled with the rest. Everything is differentiable to any order where a derivative
exists. What LAPACK refuses is a `LinAlgError` (NumPy's class, too), raised when the value is computed, with
the line that asked for it.
"""

from __future__ import annotations

from stratal.base.errors import LinAlgError
from stratal.linalg.factor import cholesky, eig, eigh, eigvals, eigvalsh, lu, lu_factor, qr, svd, svdvals
from stratal.linalg.norms import cond, matrix_norm, norm, vector_norm
from stratal.linalg.products import diagonal, householder_product, multi_dot, trace, vander
from stratal.linalg.rank import lstsq, matrix_rank, pinv
from stratal.linalg.solve import (
    cholesky_inverse,
    cholesky_solve,
    det,
    inv,
    lu_solve,
    matrix_exp,
    matrix_power,
    slogdet,
    solve,
    solve_triangular,
    tensorinv,
    tensorsolve,
)
from stratal.tensor.api.explained import explain_all
from stratal.tensor.composites.matrices import cross
from stratal.tensor.functions.linear import matmul, outer, tensordot, vecdot
from stratal.tensor.functions.shapes import matrix_transpose

__all__ = [
    "LinAlgError", "cholesky", "cholesky_inverse", "cholesky_solve", "cond", "cross", "det", "diagonal",
    "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "inv", "lstsq", "lu", "lu_factor",
    "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose",
    "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals",
    "tensordot", "tensorinv", "tensorsolve", "trace", "vander", "vecdot", "vector_norm",
]  # fmt: skip

explain_all(globals())
