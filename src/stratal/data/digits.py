"""The handwritten digits that come with the package: real data for the demo, the tests and first steps."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from importlib import resources
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import FormatError
from stratal.data.datasets import TensorDataset
from stratal.data.shuffle import stratified_split

Array = np.ndarray[Any, Any]
SPLIT: Final = "stratified-80-20-seed-0"
"""Name of the split `digits_split` returns, for reports."""

ATTRIBUTION: Final = (
    "Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, "
    "UCI Machine Learning Repository, CC BY 4.0"
)
_COUNT: Final = 1797
_SHA256: Final = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


class Digits(NamedTuple):
    """float32 images [1797, 1, 8, 8] between 0 and 1, int64 labels [1797]."""

    images: Array
    labels: Array


def digits() -> Digits:
    """Return the 1,797 handwritten digits. Raises: FormatError when the package file is damaged."""
    packed = resources.files("stratal.data").joinpath("digits.gz").read_bytes()
    try:
        raw = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError("digits: the package file is damaged", got=str(error)) from None
    if hashlib.sha256(raw).hexdigest() != _SHA256:
        raise FormatError("digits: the package file is damaged", got="another checksum", hint="install again")
    values = np.frombuffer(raw, np.uint8)
    images = values[: _COUNT * 64].reshape(_COUNT, 1, 8, 8).astype(np.float32) / np.float32(16)
    return Digits(images, values[_COUNT * 64 :].astype(np.int64))


def digits_split() -> tuple[TensorDataset, TensorDataset]:
    """Return (training, test) data sets of (image, label): four fifths and one fifth, always the same."""
    images, labels = digits()
    train, test = stratified_split(labels, test_share=0.2, seed=0)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])
