"""The training sample of an artefact: numbers drawn from the training data, to compare requests with.

An input whose row has at most `MOST_FEATURES` numbers is watched number by number: `input[3]`, `input[0,2]`.
A larger one (an image, a sound) is watched by three numbers of a row, which are all that is stored of it:
`input.mean`, `input.std` and `input.largest`, the largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.signature import Signature, TensorSpec

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]  # input name: float64 [rows, features]
MOST_FEATURES: Final = 64
MOST_ROWS: Final = 1000
LEAST_ROWS: Final = 50
_SUMMARIES: Final = ("mean", "std", "largest")


def feature_names(spec: TensorSpec) -> tuple[str, ...]:
    """Return the names of an input's features, in the order of `features`."""
    if prod(spec.shape) > MOST_FEATURES:
        return tuple(f"{spec.name}.{name}" for name in _SUMMARIES)
    positions = product(*map(range, spec.shape))
    return tuple(f"{spec.name}[{','.join(map(str, at))}]" if at else spec.name for at in positions)


def features(rows: Array, spec: TensorSpec) -> Array:
    """Return the features of some rows of an input, float64 [rows, features]."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    if flat.shape[1] <= MOST_FEATURES:
        return flat
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are values to notice
        return np.stack([flat.mean(1), flat.std(1), np.abs(flat).max(1)], 1)


def training_sample(arrays: Sequence[Array], signature: Signature) -> Sample:
    """Return the features of rows drawn from the training data, at most `MOST_ROWS`, the same each time.

    Raises: AttributeValueError where inputs are not batched, or complex, or rows are few; ShapeError,
    DTypeError.
    """
    if not signature.batched or any(spec.dtype.is_complex for spec in signature.inputs):
        raise AttributeValueError(
            "freeze: a training sample is of real inputs with a batch axis", got=str(signature)
        )
    checked = signature.checked(arrays)
    count = len(checked[0])
    if count < LEAST_ROWS:
        raise AttributeValueError(f"freeze: a training sample has at least {LEAST_ROWS} rows", got=str(count))
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:MOST_ROWS])
    return {spec.name: features(x[chosen], spec) for spec, x in zip(signature.inputs, checked, strict=True)}


def check_sample(sample: Mapping[str, Array], signature: Signature) -> None:
    """Return where arrays of a file are a training sample. Raises: FormatError."""
    wanted = {spec.name: len(feature_names(spec)) for spec in signature.inputs}
    fine = signature.batched and set(sample) == set(wanted) and all(
        x.dtype == np.float64 and x.ndim == 2 and x.shape[1] == wanted[name] for name, x in sample.items()
    )  # fmt: skip
    if not fine or {len(x) for x in sample.values()} - set(range(LEAST_ROWS, MOST_ROWS + 1)):
        shapes = ", ".join(f"{name[:40]} {list(x.shape)}" for name, x in sample.items())
        raise FormatError("artefact: the training sample does not fit the signature", got=shapes[:120])
