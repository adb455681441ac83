"""The state of all generators a training run may draw from: Stratal's default one, Python's, NumPy's, and
PyTorch's where the program has imported it, for its loaders.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from stratal.tensor.functions.random import get_rng_state, set_rng_state


def random_state() -> dict[str, Any]:
    """Return the generators' state as plain values and arrays."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()
    torch: Any = sys.modules.get("torch")
    return {
        **({} if torch is None else {"torch": torch.get_rng_state().numpy().copy()}),
        "stratal": get_rng_state(),
        "python": [version, np.array(words, np.uint64), gauss],
        "numpy": [kind, np.asarray(key), int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Let all generators go on from a state."""
    version, words, gauss = state["python"]
    kind, key, *rest = state["numpy"]
    set_rng_state(np.asarray(state["stratal"]))
    random.setstate((version, tuple(np.asarray(words).tolist()), gauss))
    np.random.set_state((kind, np.asarray(key), *rest))
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
