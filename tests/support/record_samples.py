"""Values for the samples of records, always the same for the same sample."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import stratal.distributed.records
import stratal.ops  # noqa: F401  fills the registry
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.op import REGISTRY, Op, Sample

Array = np.ndarray[Any, Any]
NAMES = sorted(REGISTRY)


def samples(name: str) -> Iterator[Sample]:
    yield from REGISTRY[name].samples()


def called(sample: Sample) -> str:
    """Return the sample as a call, for messages."""
    shown = {
        k: f"<{v.name} {v.digest[:6]}>" if isinstance(v, Graph) else v
        for k, v in sample.op.attributes.items()
    }
    attributes = ", ".join(f"{k}={v}" for k, v in shown.items())
    return f"{sample.op.name}({attributes}) of ({', '.join(map(str, sample.types))})"


def inputs(sample: Sample) -> list[Array]:
    """Return the operands of a sample."""
    rng = np.random.default_rng(zlib.crc32(called(sample).encode()))
    if sample.draw is not None:
        return [np.asarray(a) for a in sample.draw(rng)]
    number = sum(2 * int(np.prod(t.ints)) for t in sample.types if t.dtype.is_inexact)
    floats = iter(_apart(rng, number, sample.domain))
    return [_values(rng, t, floats) for t in sample.types]


def _apart(rng: np.random.Generator, number: int, domain: tuple[float, float]) -> Array:
    """Return numbers all over the domain, none near another: finite differences must not meet a tie."""
    low, high = domain
    places = (rng.permutation(number) + rng.uniform(0.3, 0.7, number)) / max(number, 1)
    return low + (high - low) * places


def _values(rng: np.random.Generator, type_: TensorType, floats: Iterator[float]) -> Array:
    shape, dtype = type_.ints, type_.dtype
    count = int(np.prod(shape))
    if dtype.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -4, 5, shape)).astype(dtype.np)
    values: Array = np.fromiter(floats, np.float64, count)
    if dtype.is_complex:
        values = values + 1j * np.fromiter(floats, np.float64, count)
    return values.reshape(shape).astype(dtype.np)


def results(value: Any) -> tuple[Array, ...]:
    """Return the results of a reference as a tuple, also where there is one."""
    return value if isinstance(value, tuple) else (value,)


def results_of(op: Op, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Return the result types of an op as a tuple."""
    out = op.infer(*types)
    return (out,) if isinstance(out, TensorType) else out.elements
