"""What is promised of a model: a file beside its artefact, `models/NAME.toml`. All of it may be left out.

sla_ms = 50                    # of requests without a timeout of their own; else the server's --sla
objective = 0.99               # share of requests that are answered within it
variants = ["digits-small"]    # cheaper models, the best first, that answer where this one would refuse
drift_psi = 0.25               # PSI of a feature above which inputs have drifted
least_accuracy = 0.9           # on labelled feedback, for classes
most_error = 0.5               # mean absolute error on it, for numbers
"""

from __future__ import annotations

import math
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratal.serve.drift import PSI
from stratal.serve.protocol import RequestError

_NUMBERS = {
    "sla_ms": (0.0, math.inf), "objective": (0.0, 1.0), "drift_psi": (0.0, math.inf),
    "least_accuracy": (0.0, 1.0), "most_error": (0.0, math.inf),
}  # fmt: skip
MOST_VARIANTS = 8
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class ModelConfig:
    """What a model's file says. `sla` in seconds; None where it says nothing."""

    sla: float | None = None
    objective: float = 0.99
    variants: tuple[str, ...] = ()
    drift_psi: float = PSI
    least_accuracy: float | None = None
    most_error: float | None = None


def read_config(folder: Path, name: str) -> ModelConfig:
    """Return the config of a model that is in a folder. Raises: RequestError naming what is odd."""
    path = folder / f"{name}.toml"
    try:
        with open(path, "rb") as file:
            data = tomllib.loads(file.read(MOST_BYTES).decode())
    except FileNotFoundError:
        return ModelConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(400, f"{path.name}: cannot be read", got=str(error)) from None
    known = {*_NUMBERS, "variants"}
    if unknown := sorted(set(data) - known):
        raise RequestError(400, f"{path.name}: it has {', '.join(sorted(known))}", got=unknown[0])
    numbers = {key: _number(path.name, key, value) for key, value in data.items() if key in _NUMBERS}
    sla = numbers.pop("sla_ms", None)
    variants = _variants(path.name, name, data.get("variants", []))
    return ModelConfig(None if sla is None else sla / 1e3, variants=variants, **numbers)


def _number(file: str, key: str, value: Any) -> float:
    low, high = _NUMBERS[key]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low < value < high or value > sys.float_info.max:
        bounds = f"above {low:g}" + ("" if math.isinf(high) else f" and below {high:g}")
        raise RequestError(400, f"{file}: {key} is a number {bounds}", got=repr(value)[:80])
    return float(value)


def _variants(file: str, name: str, value: Any) -> tuple[str, ...]:
    fine = (
        isinstance(value, list) and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)
    )
    if not fine or name in value or len(value) > MOST_VARIANTS:
        raise RequestError(
            400, f"{file}: variants is a list of at most {MOST_VARIANTS} other models", got=repr(value)[:80]
        )
    return tuple(value)
