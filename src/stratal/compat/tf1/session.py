"""Sessions with TensorFlow's arguments, and its seed."""

from __future__ import annotations

from typing import Any

from stratal import deferred
from stratal.tensor.functions import random
from stratal.tensor.values.state import tracing


class Session(deferred.Session):
    """A session; `target` and `config` name devices, of which there is one."""

    def __init__(self, target: str = "", graph: deferred.Graph | None = None, config: Any = None) -> None:
        super().__init__(graph)


class InteractiveSession(deferred.InteractiveSession):
    """A session that is the default one from the start."""

    def __init__(self, target: str = "", graph: deferred.Graph | None = None, config: Any = None) -> None:
        super().__init__(graph)


def set_random_seed(seed: int) -> None:
    """Start the random generator again from a seed, for all that is drawn in runs from now on."""
    with tracing(None):
        random.manual_seed(seed)
