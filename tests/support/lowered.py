"""Runs what a record's `lower` returns on the reference interpreter of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import IndexOutOfRangeError, VerifyError
from stratal.base.lowered import Lowered
from stratal.loops.compute import Compute, LoopBody
from stratal.loops.expr import Buffer
from stratal.loops.interpret import evaluate_compute, run_kernel, undefined
from stratal.loops.stmt import Kernel, stored

Array = np.ndarray[Any, Any]


def evaluate_lowered(
    lowered: Lowered, inputs: Sequence[Array], outputs: Sequence[tuple[DType, tuple[int, ...]]]
) -> list[Array]:
    """Run what a record's `lower` returns on arrays. `outputs` names the results' dtypes and shapes."""
    if isinstance(lowered, Compute):
        return [evaluate_compute(lowered, inputs)]
    if not isinstance(lowered, LoopBody):
        raise VerifyError("interpreter: regions are run by the graph interpreter", got=type(lowered).__name__)
    for check in lowered.checks:
        if np.any((inputs[check.arg] < 0) | (inputs[check.arg] >= check.bound)):
            raise IndexOutOfRangeError(check.message)
    args = [Buffer(f"a{k}", as_dtype(x.dtype), x.shape) for k, x in enumerate(inputs)]
    outs = [Buffer(f"o{k}", d, s) for k, (d, s) in enumerate(outputs)]
    results = [undefined(b) for b in outs]
    arrays = dict(zip(args + outs, [*inputs, *results], strict=True))
    body = lowered.build(args, outs)
    if not isinstance(body, list):
        run_kernel(Kernel("body", args, outs, body), arrays)  # type: ignore[arg-type]
        return results
    made: list[Buffer] = []
    for stage in body:
        made += [b for b in stored(stage.body) if b.space == "global" and b not in (*outs, *made)]
        arrays |= {b: undefined(b) for b in made if b not in arrays}
        run_kernel(Kernel("stage", args, [*outs, *made], stage.body, stage.local), arrays)
    return results
