"""The same call in NumPy, SciPy and PyTorch: where a function of the same name takes the same arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.surface.draws import Call
from benchmarks.surface.entries import Entry
from stratal.base.errors import StratalError

SPACES: dict[str, tuple[str, ...]] = {
    "math": ("numpy", "torch"),
    "special": ("scipy.special", "torch.special"),
    "fft": ("numpy.fft", "torch.fft"),
    "linalg": ("numpy.linalg", "torch.linalg"),
    "functional": ("torch.nn.functional",),
}
Array = np.ndarray[Any, Any]
# The same name, another function (or one whose result is by chance, or one of many): with these libraries.
_NUMPYS = "empty empty_like fill_diagonal median put put_along_axis select split transpose"
_TORCHS = "cov empty empty_like equal from_numpy histogram nonzero norm sort std var"
_DRAWN = "dropout dropout1d dropout2d dropout3d fractional_max_pool2d fractional_max_pool3d gumbel_softmax"
OTHERS: dict[str, set[str]] = {
    "numpy": {*_NUMPYS.split(), "broadcast_shapes", "tril_indices", "triu_indices"},
    "torch": {*_TORCHS.split(), "broadcast_shapes"},
    "numpy.linalg": {"eig", "eigh", "eigvals", "svd", "cond", "lstsq"},
    "torch.linalg": {"eig", "eigh", "eigvals", "svd", "lstsq", "lu_factor", "lu_solve", "cond"},
    "torch.special": {"round"},
    "torch.nn.functional": set(_DRAWN.split()),
}


def twins(entry: Entry, call: Call) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the libraries that may make the same call, and the call; whether they take it,
    calling it says."""
    for space in SPACES.get(entry.family, ()):
        for name in (entry.name, *entry.aliases):
            if name not in OTHERS.get(space, ()) and (function := _function(space, name)) is not None:
                theirs = call.mapped(_tensor if space.startswith("torch") else np.copy)
                yield space, partial(theirs.of, function)
                break


def compared(entry: Entry) -> bool:
    """Return whether a library that is installed has the function, so that tests compare with it."""
    spaces, names = SPACES.get(entry.family, ()), (entry.name, *entry.aliases)
    return any(n not in OTHERS.get(s, ()) and _function(s, n) is not None for s in spaces for n in names)


def _function(space: str, name: str) -> Callable[..., Any] | None:
    try:
        found = getattr(importlib.import_module(space), name, None)
    except ImportError:
        return None
    return found if callable(found) else None


def _tensor(array: Array) -> Any:
    return importlib.import_module("torch").from_numpy(array.copy())  # near in no cache because of another


def arrays(result: Any) -> list[Array]:
    """Return the arrays of any library's result. Raises: StratalError for what holds none."""
    if isinstance(result, (tuple, list)):
        return [a for part in result for a in arrays(part)]
    result = result.detach() if hasattr(result, "detach") else result
    if not hasattr(result, "__array__"):
        if isinstance(result, (bool, int, float, complex)):
            return [np.asarray(result)]
        raise StratalError("twins: no arrays among the results", got=type(result).__name__)
    return [np.asarray(result)]


def difference(ours: list[Array], theirs: list[Array], tolerance: float = 2e-3) -> str:
    """Return how results differ beyond a tolerance of the largest value; empty where they do not."""
    if [a.shape for a in ours] != [a.shape for a in theirs]:
        return f"shapes {[a.shape for a in ours]} for {[a.shape for a in theirs]}"
    for a, b in zip(ours, theirs, strict=True):
        wide = np.result_type(a.dtype, b.dtype, np.float64)
        x, y = a.astype(wide), b.astype(wide)
        scale = float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y)))
        if not np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"differs by {np.nanmax(np.abs(x - y)):.2e} of {scale:.2e}"
    return ""
