"""Tensors that follow from a distribution's parameters, such as its moments, each by its formula."""

from __future__ import annotations

from typing import Any

from stratal.tensor.tensor import Tensor


class derived(property):  # named as a decorator: `mean = derived(lambda d: d.loc)`
    """A property of a distribution `d`: a tensor, computed whenever it is read."""

    def __get__(self, instance: Any, owner: type | None = None) -> Tensor:  # type: ignore[override]
        return super().__get__(instance, owner)  # type: ignore[no-any-return]
