"""What only the extra `[serve]` brings, imported where it is used."""

from __future__ import annotations

import importlib
from typing import Any

from stratal.base.errors import MissingExtraError


def required(module: str) -> Any:
    """Return a module of the extra. Raises: MissingExtraError naming the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = "pip install 'stratal[serve]'"
        raise MissingExtraError(f"serve: needs {module.split('.')[0]}", got=str(error), hint=hint) from error
