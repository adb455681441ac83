"""What only the extras `[serve]` and `[grpc]` bring, imported where it is used."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any, Final

from stratal.base.errors import MissingExtraError

clock: Final = time.monotonic  # uvloop's own is that of its last wake-up, in milliseconds


def required(module: str, extra: str = "serve") -> Any:
    """Return a module of an extra. Raises: MissingExtraError naming the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install 'stratal[{extra}]'"
        raise MissingExtraError(f"serve: needs {module.split('.')[0]}", got=str(error), hint=hint) from error


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's where it is installed: reading and writing sockets takes it a third of the time."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
