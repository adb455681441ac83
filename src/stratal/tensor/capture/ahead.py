"""A capture ahead of any call: what a compiled function would replay, without a run."""

from __future__ import annotations

import sys
from typing import Any

from stratal.base.collector import collector_paused
from stratal.base.interrupts import interruptible
from stratal.tensor.capture import refusals
from stratal.tensor.capture.compiled import Compiled
from stratal.tensor.capture.frames import traces_now
from stratal.tensor.capture.recording import Given
from stratal.tensor.capture.replay import Entry
from stratal.tensor.capture.signature import signature_of, take_apart
from stratal.tensor.values.state import LOCK


def captured_ahead(function: Compiled, *args: Any, **kwargs: Any) -> Entry:
    """Return the capture for one call, with sizes as they are. Nothing is computed, compiled or remembered,
    and no value of an argument is read.

    Raises: CaptureError, and what the function raises.
    """
    if sys.implementation.name == "cpython" and not traces_now():
        raise refusals.TRACED(of=function._name)
    with LOCK, collector_paused(), interruptible():
        leaves, structure = take_apart(args, kwargs)
        given = Given(args, kwargs, leaves, structure)
        return function._trace(signature_of(given, ()), given)[1]
