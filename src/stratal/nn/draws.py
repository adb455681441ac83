"""The host-side random generator initialisers draw from: one stream per draw, split off the default key."""

from __future__ import annotations

import numpy as np

from stratal.tensor import random


def generator() -> np.random.Generator:
    """Return a generator of its own stream: the next of the default key, so `st.manual_seed` decides every
    draw.
    """
    return np.random.Generator(np.random.Philox(key=random.next_host_key()))
