"""The demo's second half, in a process of its own: load the model, predict, take a first training step.

    python -m stratal.cli.fresh_process MODEL

Prints one JSON object: a digest of the scores, their accuracy, and how long the first results took.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import numpy as np

from stratal.base.errors import StratalError


def score_digest(scores: Any) -> str:
    """Return a hash of scores, bit for bit."""
    array = np.ascontiguousarray(np.asarray(scores))
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def main(path: str) -> dict[str, Any]:
    """Return what the process found out."""
    from stratal.cli.examples.digits import Training
    from stratal.data import digits_split
    from stratal.formats import load

    images, labels = digits_split()[1].arrays
    started = time.perf_counter()
    model = load(path)
    scores = np.asarray(model(images))
    loaded = time.perf_counter()
    training = Training()
    x, y = next(iter(training.loader))
    begun = time.perf_counter()
    float(training.step(x, y)[0])
    return {
        "digest": score_digest(scores),
        "accuracy": float((scores.argmax(1) == labels).mean()),
        "load_and_predict_seconds": loaded - started,
        "first_step_seconds": time.perf_counter() - begun,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1])))
    except StratalError as error:
        sys.exit(f"stratal: {error}")
