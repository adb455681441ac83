"""OpenVINO on the CPU: a model file compiled for latency, pinned to float32."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.export import inputs_of
from benchmarks.systems import Job
from benchmarks.task import Task


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the model of a task, compiled into the cache of the run."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    return job(model_file, inputs_of(task), threads, {"CACHE_DIR": os.environ["OPENVINO_CACHE"]})


def job(
    model_file: Path, inputs: Sequence[np.ndarray[Any, Any]], threads: int,
    more: Mapping[str, str] | None = None
) -> Job:
    """Return a model file on inputs, with `more` settings; the first call compiles it."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads), **(more or {}),
    }  # fmt: skip
    requests: list[Any] = []

    def call() -> Any:
        if not requests:
            compiled = ov.Core().compile_model(str(model_file), "CPU", settings)
            request = compiled.create_infer_request()
            for index, array in enumerate(inputs):
                request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
            requests.append(request)
        requests[0].infer()
        return requests[0]

    def outputs(request: Any) -> list[Any]:
        return [np.array(tensor.data) for tensor in request.output_tensors]

    return Job(call, outputs)
