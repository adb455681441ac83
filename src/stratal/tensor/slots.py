"""Containers of tensors among other things, taken apart for functions that become regions of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.tensor.build import as_tensor
from stratal.tensor.tensor import Tensor


class Slots:
    """A container whose tensors are taken out; the rest of it, numbers and strings, stays where it is."""

    def __init__(self, value: Any) -> None:
        self.leaves, self.structure = tree.flatten(value)
        self.at = [k for k, x in enumerate(self.leaves) if isinstance(x, (Tensor, np.ndarray))]
        self.tensors = [as_tensor(self.leaves[k]) for k in self.at]
        self.types = [t.type for t in self.tensors]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return the container with other tensors."""
        leaves = list(self.leaves)
        for k, t in zip(self.at, tensors, strict=True):
            leaves[k] = t
        return tree.unflatten(self.structure, leaves)
