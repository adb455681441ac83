"""The host-side random generator initialisers draw from: one stream per draw, split off a generator's key."""

from __future__ import annotations

import numpy as np

from stratal.tensor import random

Source = random.Generator | None  # None for the default generator


def numbers(source: Source = None) -> np.random.Generator:
    """Return a generator of its own stream: of the default generator, `st.manual_seed` decides every draw."""
    key = random.next_host_key() if source is None else source.next_host_key()
    return np.random.Generator(np.random.Philox(key=key))
