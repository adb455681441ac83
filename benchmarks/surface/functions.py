"""A call of every function of `st`, `st.special`, `st.linalg` and `st.fft`, by family and name.

Functions of one or two tensors need no line unless their domain is a part of the numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.surface.draws import Array, Call, Draws, call

Maker = Callable[[Draws], Call]

# Where operands lie; around 0 if not said.
DOMAINS: dict[str, str] = {
    "positive": "log log2 log10 lgamma digamma rsqrt sqrt gammaln gamma loggamma psi factorial heaviside",
    "inside": "acos asin atanh erfinv erfcinv logit ndtri entr log1p",
    "holes": "nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum "
    "nanvar isnan nan_to_num",
    "whole": "bitwise_and bitwise_invert bitwise_or bitwise_xor gcd lcm",
    "mask": "logical_and logical_not logical_or logical_xor",
    "complexes": "angle conj imag real view_as_real",
    "line": "argwhere dot flatnonzero msort nonzero unique unique_all unique_consecutive unique_counts "
    "unique_inverse unique_values vdot",
    "vector": "combinations convolve ger meshgrid outer",
}  # fmt: skip
_DOMAIN_OF = {name: domain for domain, names in DOMAINS.items() for name in names.split()}
_DRAWN: dict[str, Callable[[Draws], Array]] = {
    "positive": lambda d: d.positive(),
    "inside": lambda d: d.inside(),
    "holes": lambda d: d.holes(),
    "whole": lambda d: d.whole(1, 9),
    "mask": lambda d: d.mask(),
    "complexes": lambda d: d.complexes(),
    "line": lambda d: d.x(d.n),
    "vector": lambda d: d.row(),
    "": lambda d: d.x(),
}


def by_name(table: dict[str, Maker]) -> dict[str, Maker]:
    """Return the rows of a table by name; each row has the names of those that take the same call."""
    return {name: make for names, make in table.items() for name in names.split()}


def _small(d: Draws) -> Array:
    """Return three matrices whose products have as many elements as `x()`."""
    k = max(2, round(d.n ** (1 / 3)))
    return d.x(k, k, k)


def _places(d: Draws, *shape: int) -> Array:
    return d.whole(0, d.r, *shape)


MATH = by_name({
    "acosh": lambda d: call(d.between(1.1, 5.0)),
    "addbmm": lambda d: call(_small(d)[0], _small(d), _small(d)),
    "addmv": lambda d: call(d.row(), d.x(), d.row()),
    "addr": lambda d: call(d.x(), d.row(), d.row()),
    "arange bartlett blackman hamming hanning bartlett_window blackman_window hamming_window "
    "hann_window kaiser_window": lambda d: call(d.n),
    "argsort": lambda d: call(d.x(), stable=True),
    "array_split chunk tensor_split": lambda d: call(d.x(), 4),
    "astype cast": lambda d: call(d.x(), np.dtype("float64")),
    "baddbmm": lambda d: call(_small(d), _small(d), _small(d)),
    "bincount": lambda d: call(d.whole(0, 100, d.n)),
    "bitwise_left_shift bitwise_right_shift": lambda d: call(d.whole(1, 9), d.whole(1, 9)),
    "block_diag": lambda d: call(d.x(d.r // 2, d.r // 2), d.x(d.r // 2, d.r // 2)),
    "bmm": lambda d: call(_small(d), _small(d)),
    "broadcast_arrays": lambda d: call(d.x(d.r, 1), d.row()),
    "broadcast_shapes": lambda d: call((3, 1), (1, 4)),
    "broadcast_to": lambda d: call(d.row(), (d.r, d.r)),
    "bucketize digitize": lambda d: call(d.x(), np.sort(d.x(64))),
    "cartesian_prod": lambda d: call(d.row(), d.row()),
    "clamp_max clamp_min": lambda d: call(d.x(), 0.5),
    "clip": lambda d: call(d.x(), -0.5, 0.5),
    "column_stack concat dstack hstack stack vstack": lambda d: call([d.x(), d.x()]),
    "correlate": lambda d: call(d.x(d.n), d.x(max(2, d.r // 16))),
    "cross": lambda d: call(d.x(d.n // 3, 3), d.x(d.n // 3, 3)),
    "cummax cummin cumsum logcumsumexp log_softmax logsumexp softmax": lambda d: call(d.x(), 1),
    "cumprod": lambda d: call(d.between(0.9, 1.1), 1),
    "cumulative_prod": lambda d: call(d.between(0.9, 1.1), axis=1),
    "cumulative_sum": lambda d: call(d.x(), axis=1),
    "diag diagflat": lambda d: call(d.row()),
    "diag_embed": lambda d: call(_small(d)[0]),
    "diagonal_scatter mv": lambda d: call(d.x(), d.row()),
    "dsplit": lambda d: call(d.images(4, 1), 2),
    "einsum": lambda d: call("ij,jk->ik", d.x(), d.x()),
    "empty ones zeros": lambda d: call((d.r, d.r)),
    "expand": lambda d: call(d.row(), d.r, d.r),
    "expand_dims": lambda d: call(d.x(), 0),
    "eye identity tri": lambda d: call(d.r),
    "fill_diagonal full_like": lambda d: call(d.x(), 2.0),
    "float_power polar pow": lambda d: call(d.positive(), d.x()),
    "fmod remainder divmod floor_divide": lambda d: call(d.x(), d.positive()),
    "full": lambda d: call((d.r, d.r), 2.0),
    "gather": lambda d: call(d.x(), 0, _places(d)),
    "geomspace": lambda d: call(1.0, 100.0, d.n),
    "gradient": lambda d: call(d.x(d.n)),
    "heaviside": lambda d: call(d.x(), d.x()),
    "histc histogram histogram_bin_edges": lambda d: call(d.x(), 20),
    "hsplit": lambda d: call(d.x(d.r, 4 * (d.r // 4)), 4),
    "index_add index_copy": lambda d: call(d.x(), 0, d.order(), d.x()),
    "index_fill": lambda d: call(d.x(), 0, d.order(), 2.0),
    "index_put": lambda d: call(d.x(), (d.order(),), d.x()),
    "index_select": lambda d: call(d.x(), 0, d.order()),
    "indices": lambda d: call((d.r, d.r // 2)),
    "interp": lambda d: call(d.x(), np.sort(d.x(64)), d.x(64)),
    "isin": lambda d: call(d.whole(0, 99), d.whole(0, 99, 9)),
    "kron": lambda d: call(_small(d)[0][:4, :4], d.x(d.r // 4 or 1, d.r // 4 or 1)),
    "kthvalue": lambda d: call(d.x(), 3),
    "ldexp": lambda d: call(d.x(), d.whole(-3, 4)),
    "lerp": lambda d: call(d.x(), d.x(), 0.3),
    "linspace": lambda d: call(0.0, 1.0, d.n),
    "logspace": lambda d: call(0.0, 2.0, d.n),
    "masked_fill": lambda d: call(d.x(), d.mask(), 2.0),
    "masked_scatter": lambda d: call(d.x(), d.mask(), d.x()),
    "masked_select": lambda d: call(d.x(), d.mask()),
    "meshgrid": lambda d: call(d.row(), d.row(), indexing="ij"),
    "mode": lambda d: call(d.rng.permutation(d.r * d.r).reshape(d.r, d.r)),  # no ties
    "moveaxis": lambda d: call(d.images(), 1, 3),
    "narrow": lambda d: call(d.x(), 0, 1, d.r // 2),
    "pad": lambda d: call(d.x(), ((1, 2), (3, 0))),
    "percentile": lambda d: call(d.x(), 30.0),
    "nanpercentile": lambda d: call(d.holes(), 30.0),
    "permute_dims": lambda d: call(d.images(), (0, 2, 3, 1)),
    "polyval": lambda d: call(d.x(5), d.x()),
    "prod": lambda d: call(d.between(0.99, 1.01)),
    "put": lambda d: call(d.x(), d.rng.permutation(d.r * d.r)[: d.r], d.row()),
    "put_along_axis": lambda d: call(d.x(), d.whole(0, d.r, d.r, 1), d.x(d.r, 1), axis=1),
    "quantile": lambda d: call(d.x(), 0.3),
    "nanquantile": lambda d: call(d.holes(), 0.3),
    "ravel_multi_index": lambda d: call((_places(d), _places(d)), (d.r, d.r)),
    "renorm": lambda d: call(d.x(), 2.0, 0, 1.0),
    "repeat_interleave": lambda d: call(d.x(d.r // 2, d.r), 2, 0),
    "reshape": lambda d: call(d.v(), (2, d.n // 2)),
    "roll": lambda d: call(d.x(), 3, 1),
    "scatter scatter_add": lambda d: call(d.x(), 0, _places(d), d.x()),
    "scatter_reduce": lambda d: call(d.x(), 0, _places(d), d.x(), "sum"),
    "searchsorted": lambda d: call(np.sort(d.x(64)), d.x()),
    "select": lambda d: call(d.images(), 1, 2),
    "select_scatter": lambda d: call(d.x(), d.row(), 0, 1),
    "slice_scatter": lambda d: call(d.x(), d.x(d.r // 2, d.r), 0, 0, d.r // 2),
    "split": lambda d: call(d.x(), max(1, d.r // 4)),
    "squeeze": lambda d: call(d.x(1, d.r, d.r), 0),
    "take": lambda d: call(d.x(), d.order(), axis=0),
    "take_along_axis": lambda d: call(d.x(), _places(d), axis=1),
    "tensordot": lambda d: call(d.x(), d.x(), 1),
    "threshold": lambda d: call(d.x(), 0.1, 2.0),
    "tile": lambda d: call(d.x(d.r // 2, d.r // 2), (2, 2)),
    "topk": lambda d: call(d.x(), 5),
    "transpose": lambda d: call(d.x(), 0, 1),
    "tril_indices triu_indices": lambda d: call(d.r, d.r),
    "unflatten": lambda d: call(d.x(d.r, 4 * (d.r // 4)), 1, (4, d.r // 4)),
    "unravel_index": lambda d: call(d.whole(0, d.n), (d.n, 1)),
    "unstack": lambda d: call(d.x(4, d.n // 4)),
    "vander": lambda d: call(d.between(-1, 1, d.r), 8),
    "view_as_complex": lambda d: call(d.x(d.n // 2, 2)),
    "vsplit": lambda d: call(d.x(4 * (d.r // 4), d.r), 4),
    "unfold": lambda d: call(d.x(), 1, 4, 2),
    "where": lambda d: call(d.mask(), d.x(), d.x()),
    "kaiser": lambda d: call(d.n, 12.0),
})  # fmt: skip

SPECIAL = by_name({
    "beta betaln gammainc gammaincc kl_div rel_entr xlogy xlog1py":
        lambda d: call(d.positive(), d.positive()),
    "betainc": lambda d: call(d.positive(), d.positive(), d.inside()),
    "binom comb perm": lambda d: call(d.between(5, 9), d.between(1, 4)),
    "log_softmax logsumexp softmax": lambda d: call(d.x(), 1),
    "multigammaln": lambda d: call(d.between(3, 9), 2),
    "polygamma": lambda d: call(2, d.positive()),
    "zeta": lambda d: call(d.between(1.5, 5), d.positive()),
})  # fmt: skip

LINALG = by_name({
    "cholesky eigh eigvalsh": lambda d: call(d.definite()),
    "cond det eig eigvals inv lu lu_factor matrix_exp matrix_norm matrix_rank pinv qr slogdet svd "
    "svdvals trace norm": lambda d: call(d.stack()),
    "cholesky_inverse": lambda d: call(d.triangular()),
    "cholesky_solve": lambda d: call(d.column(), d.triangular()),
    "cross": MATH["cross"],
    "householder_product": lambda d: call(d.stack(), d.x(*d.stack().shape[:2])),
    "lstsq solve": lambda d: call(d.stack(), d.column()),
    "lu_solve": lambda d: call(d.stack(), _identity_order(d), d.column()),
    "matrix_power": lambda d: call(d.stack(), 3),
    "multi_dot": lambda d: call([d.x(), d.x(), d.x()]),
    "solve_triangular": lambda d: call(d.triangular(), d.column(), upper=False),
    "tensordot": lambda d: call(d.x(), d.x(), axes=1),
    "tensorinv": lambda d: call(np.eye(4, dtype=d.dtype).reshape(4, 2, 2), ind=1),
    "tensorsolve": lambda d: call(np.eye(4, dtype=d.dtype).reshape(2, 2, 4), d.x(2, 2)),
    "vander": lambda d: call(d.between(-1, 1, d.r), N=8),
})  # fmt: skip


def _identity_order(d: Draws) -> Array:
    s = d.stack().shape
    return np.broadcast_to(np.arange(s[1]), s[:2]).copy()


FFT = by_name({
    "fftfreq rfftfreq": lambda d: call(d.n),
    "ifft ifft2 ifftn hfft irfft irfft2 irfftn": lambda d: call(d.complexes()),
})  # fmt: skip

RANDOM: dict[str, Maker] = {
    "bernoulli": lambda d: call(d.inside()),
    "multinomial": lambda d: call(d.positive(), 3),
    "normal": lambda d: call(0.0, 1.0, (d.r, d.r)),
    "rand": lambda d: call(d.r, d.r),
    "randint": lambda d: call(0, 9, (d.r, d.r)),
    "randn": lambda d: call(d.r, d.r),
    "randperm": lambda d: call(d.n),
}


def by_signature(name: str, function: Any, d: Draws) -> Call | None:
    """Return a call with one tensor per argument the function must have; None where that says too little."""
    draw = _DRAWN[_DOMAIN_OF.get(name, "")]
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return call(draw(d))
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return call(*(draw(d) for _ in needed)) if needed else None
