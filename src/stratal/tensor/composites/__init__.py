"""Functions NumPy and PyTorch users reach for that are made of other functions, by theme."""

from __future__ import annotations

from typing import Any

from stratal.tensor.composites import (
    arithmetic,
    complexes,
    histograms,
    joining,
    matrices,
    nans,
    padding,
    quantiles,
    running,
    signals,
    statistics,
    windows,
    writing,
)

_MODULES = (
    arithmetic, complexes, histograms, joining, matrices, nans, padding, quantiles, running, signals,
    statistics, windows, writing,
)  # fmt: skip
FUNCTIONS: dict[str, Any] = {name: getattr(module, name) for module in _MODULES for name in module.__all__}

# What PyTorch's tensors have as methods.
METHODS = (
    "addbmm", "addcdiv", "addcmul", "addmv", "addr", "allclose", "aminmax", "baddbmm", "bincount",
    "clamp_max", "clamp_min", "corrcoef", "cov", "cross", "cummax", "cummin", "deg2rad", "diag", "diag_embed",
    "diagflat", "diagonal_scatter", "dist", "dsplit", "fix", "fliplr", "flipud", "float_power", "fmax",
    "fmin", "frac", "frexp", "gcd", "heaviside", "histc", "histogram", "hsplit", "index_copy", "index_fill",
    "index_put", "inner", "isclose", "isneginf", "isposinf", "isreal", "kron", "kthvalue", "lcm", "ldexp",
    "logaddexp2", "logcumsumexp", "masked_scatter", "mode", "msort", "nanmean", "nanmedian", "nanquantile",
    "nansum", "put", "quantile", "rad2deg", "renorm", "rot90", "scatter_reduce", "select", "select_scatter",
    "sgn", "slice_scatter", "tensor_split", "unfold", "vdot", "vsplit",
)  # fmt: skip
IN_PLACE = (
    "addcdiv", "addcmul", "clamp_max", "clamp_min", "deg2rad", "fix", "frac", "index_copy", "index_fill",
    "index_put", "ldexp", "masked_scatter", "put", "rad2deg", "renorm", "scatter_reduce", "sgn",
)  # fmt: skip
