"""What `weights` of a model's constructor means: None, or a file. None are offered for download."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from stratal.base.errors import AttributeValueError
from stratal.formats.safetensors import load_tensors

Weights = str | os.PathLike[str] | None
Model = TypeVar("Model", bound=Any)


def loaded(model: Model, weights: Weights) -> Model:
    """Return the model; with a path, with the values of that safetensors file in it, which must fit exactly.

    Raises: AttributeValueError where `weights` is no file, FormatError, StateDictError.
    """
    if weights is None:
        return model
    if not isinstance(weights, (str, os.PathLike)) or not Path(weights).is_file():
        raise AttributeValueError(
            f"{type(model).__name__}: weights is None or the path of a safetensors file",
            got=repr(weights),
            hint="no weights are offered for download; safetensors.torch.save_file(model.state_dict(), path) "
            "writes those of PyTorch's model",
        )
    model.load_state_dict(load_tensors(weights))
    return model
