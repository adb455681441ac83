"""What users hold: tensors, functions on them, random numbers, gradients, capture.

The package shares its name with the function `st.tensor`, so the module itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import stratal.ops  # noqa: F401  fills the registry that functions are generated from
from stratal.tensor.api import methods  # noqa: F401  gives tensors their methods
from stratal.tensor.api.functions import FUNCTIONS


class _CallableModule(ModuleType):
    def __call__(self, data: Any, dtype: Any = None, **options: Any) -> Any:
        """Return a tensor with a copy of data: a number, nested lists, an array, a tensor."""
        return FUNCTIONS["tensor"](data, dtype, **options)


sys.modules[__name__].__class__ = _CallableModule
