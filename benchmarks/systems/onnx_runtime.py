"""onnxruntime: a model file at all optimisations, inputs and outputs bound to memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.export import inputs_of
from benchmarks.systems import Job
from benchmarks.task import Task


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the model of a task."""
    return job(model_file, inputs_of(task), int(os.environ["OMP_NUM_THREADS"]))


def job(model_file: Path, inputs: Sequence[np.ndarray[Any, Any]], threads: int) -> Job:
    """Return a model file on inputs; the first call makes the session, which is where it is compiled."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    bound: list[tuple[Any, Any]] = []

    def call() -> Any:
        if not bound:
            session = ort.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
            binding = session.io_binding()
            for about, array in zip(session.get_inputs(), inputs, strict=True):
                binding.bind_ortvalue_input(about.name, ort.OrtValue.ortvalue_from_numpy(array))
            for about in session.get_outputs():
                binding.bind_output(about.name)
            bound.append((session, binding))
        session, binding = bound[0]
        session.run_with_iobinding(binding)
        return binding

    return Job(call, lambda binding: [np.array(x) for x in binding.copy_outputs_to_cpu()])
