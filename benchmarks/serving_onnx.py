"""The models of the serving benchmarks in onnxruntime: exported by PyTorch, run by the same server's workers.

python -m benchmarks.serving_onnx export FOLDER NAME ...    writes NAME.onnx, with Stratal's weights

Otherwise it is the server's zygote: `stratal.serve.zygote` with other models. A session has one thread, as
Stratal's workers have, all optimisations, and takes batches of any size as they are.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.serve import zygote

Array = np.ndarray[Any, Any]
OPSET: Final = 17
NEEDED: Final = ("onnxruntime", "onnx", "torch")


def missing() -> list[str]:
    """Return the packages that are not installed of those the row needs."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def export(folder: Path, names: Sequence[str]) -> None:
    """Write models as ONNX files with a free number of rows: PyTorch's exporter, our weights."""
    import torch

    from benchmarks.serving_models import KINDS, ROWS, module

    torch.backends.mha.set_fastpath_enabled(False)  # one operator that ONNX does not have
    for name in names:
        net = KINDS[name].build(torch.nn)
        weights = {k: torch.from_numpy(np.array(v)) for k, v in module(name).state_dict().items()}
        net.load_state_dict(weights)
        sample = torch.from_numpy(KINDS[name].rows(ROWS))
        with torch.no_grad():
            torch.onnx.export(
                net.eval(), (sample,), str(folder / f"{name}.onnx"), dynamo=False, opset_version=OPSET,
                input_names=["input"], output_names=["output"],
                dynamic_axes={"input": {0: "rows"}, "output": {0: "rows"}},
            )  # fmt: skip


class OnnxModel:
    """A session in the place of a frozen model, whose signature it has."""

    def __init__(self, frozen: Any, file: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads, so it can be forked
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._names = [about.name for about in self._session.get_inputs()]
        self.name, self.signature, self.origin = frozen.name, frozen.signature, frozen.origin
        self.batch_sizes, self.weight_bytes, self.training = frozen.batch_sizes, frozen.weight_bytes, {}

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs."""
        found: list[Array] = self._session.run(None, dict(zip(self._names, arrays, strict=True)))
        return found

    def run_size(self, size: int, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for so many rows."""
        return self.run(arrays)


def _load_model(path: str) -> Any:
    return OnnxModel(_load_frozen(path), Path(path).with_suffix(".onnx"))


_load_frozen = zygote.load_model

if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(Path(sys.argv[2]), sys.argv[3:])
    else:
        zygote.load_model = _load_model  # type: ignore[assignment]
        zygote.main()
