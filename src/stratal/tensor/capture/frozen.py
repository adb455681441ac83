"""Values taken once per capture, on the user's word that they need no guard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from stratal.tensor.values.state import MODE

T = TypeVar("T")


def frozen(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Return `function(*args, **kwargs)`; in a compiled function, as it was when that was captured.

    For what a compiled function cannot watch and does not have to: a random seed, the time, a file's text,
    the next item of an iterator. Nothing that the call reads is guarded, nothing it writes is replayed, and
    each capture calls it once.

    Example::

        scale = st.frozen(random.uniform, 0.5, 2.0)
    """
    trace = MODE.trace
    return function(*args, **kwargs) if trace is None else trace.frozen(lambda: function(*args, **kwargs))


def unobserved(function: Callable[[], T]) -> T:
    """Return what a function returns, with the tracing function of this thread off."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        return function()
    finally:
        sys.settrace(before)
