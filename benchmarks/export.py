"""A task of the forward table as an ONNX model file, written by PyTorch for the systems that run such files.

python -m benchmarks.export TASK FILE
"""

from __future__ import annotations

import hashlib
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.functions import CHAIN, FUNCTIONS
from benchmarks.inference import INFERENCE
from benchmarks.task import Task
from benchmarks.tasks import TASKS

OPSET = 18


def inputs_of(task: Task) -> list[np.ndarray[Any, Any]]:
    """Return the inputs of a task in the order of the model file's."""
    if task.name in INFERENCE:
        return list(INFERENCE[task.name].inputs(np.random.default_rng(0)))
    return list(FUNCTIONS[task.name].inputs())


def digest() -> str:
    """Return a digest of what the models are: what was kept for other ones is not used."""
    names = ("export", "inference", "functions", "models", "structure")
    parts = [Path(__file__).parent / f"{name}.py" for name in names]
    return hashlib.blake2b(b"".join(p.read_bytes() for p in parts), digest_size=6).hexdigest()


def write(task: Task, file: Path) -> None:
    """Write the model file."""
    if task.name == "softmax_chain":
        _write_chain(file)
        return
    import torch

    from benchmarks.systems import torch_eager

    if task.name in INFERENCE:
        model, inputs = torch_eager.inference(task.name, "contiguous")
    else:
        inputs = [torch.from_numpy(x) for x in FUNCTIONS[task.name].inputs()]
        model = _Wrapped(torch_eager.written(FUNCTIONS[task.name]))
    with torch.no_grad():
        torch.onnx.export(model, tuple(inputs), str(file), dynamo=True, opset_version=OPSET, verbose=False)


def _Wrapped(function: Any) -> Any:
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    return Wrapped()


def _write_chain(file: Path) -> None:
    """Write the chain node by node: exporters take minutes over it."""
    import onnx
    from onnx import TensorProto, helper

    names = ["x", *(f"y{k}" for k in range(CHAIN))]
    nodes = [helper.make_node("Softmax", [a], [b], axis=-1) for a, b in pairwise(names)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1000]) for n in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), str(file)
    )


if __name__ == "__main__":
    write(TASKS[sys.argv[1]], Path(sys.argv[2]))
