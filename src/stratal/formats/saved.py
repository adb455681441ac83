"""`save` and `load`: checkpoints, models' weights, and what a model computes as a graph that runs without its
class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, FormatError, ShapeError
from stratal.formats.artifact import frozen_of
from stratal.formats.container import TORCH_MEMBERS, read_container_or_zip
from stratal.formats.document import NAME as CHECKPOINT
from stratal.formats.document import checkpoint_of, write_checkpoint
from stratal.formats.model import ModelFile, model_of, write_model
from stratal.formats.torch_file import read_torch
from stratal.formats.traced import DynamicBatch, batch_of, detached, evaluating, graph_of, graphs_by_batch
from stratal.graph.graph import Graph
from stratal.graph.node import Node, label_of
from stratal.tensor.device import check_device
from stratal.tensor.lazy import program_cache
from stratal.tensor.tensor import Tensor, hold, tensor


def save(
    model: Any, path: str | Path | BinaryIO, *, inputs: Any = None, optimizer: Any = None,
    options: Mapping[str, Any] | None = None, dynamic_batch: bool = True, shard_bytes: int | None = None
) -> None:
    """Write a module or a checkpoint to a folder, or to one file where `path` ends in `.stratal` or is open.

    A checkpoint is any nest of dicts, lists and tuples of tensors, numbers, text and None, such as
    `net.state_dict()` or `{"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}`: `load`
    returns it again. With `shard_bytes` its tensors go to several files of a folder, each of at most so many
    bytes unless one tensor is larger.

    Of a model, with example `inputs` (a tensor or a tuple of them), the graph of `model(*inputs)` in
    evaluation mode is saved too, and `load` gives a model that computes it without the class, for any size of
    axis 0, the batch, of all inputs; with `dynamic_batch=False`, or where the model's Python asks for that
    size, for the shapes of `inputs` alone. `optimizer` saves its state, `options` any training options of
    plain values. What stood at `path` is replaced whole or stays whole.

    Raises: FormatError naming where in a nest stands what files do not hold, FileWriteError.
    """
    nest = isinstance(model, Mapping | list | tuple) and not isinstance(model, SavedModel)
    if inputs is not None and (nest or not callable(model)):
        name = type(model).__name__
        raise FormatError("save: only a module has a graph", got=name, hint="leave inputs out")
    if nest:
        if optimizer is not None or options is not None:
            raise FormatError(
                "save: a checkpoint holds all there is to save", got=type(model).__name__,
                hint="put the optimizer's state and the options into it, or save the module",
            )  # fmt: skip
        write_checkpoint(path, model, shard_bytes)
        return
    if shard_bytes is not None:
        raise AttributeValueError(
            "save: shards are those of a checkpoint", got=type(model).__name__,
            hint="save(net.state_dict(), path, shard_bytes=..)",
        )  # fmt: skip
    state = _state_of(model)
    arrays = {name: np.asarray(detached(value)) for name, value in state.items()}
    graph, batches = (model.graph, model.batches) if isinstance(model, SavedModel) else (None, {})
    if inputs is not None:
        types = [tensor(x).type for x in (inputs if isinstance(inputs, tuple) else (inputs,))]
        with evaluating(model):
            graph = graph_of(model, types, state)
            batches = graphs_by_batch(model, types, state) if dynamic_batch else {}
    saved = None if optimizer is None else optimizer.state_dict()
    write_model(path, ModelFile(graph, arrays, saved, options or {}, batches))


def _state_of(model: Any) -> dict[str, Any]:
    """Return the tensors of a module by name, or say why there are none."""
    if not hasattr(model, "state_dict"):
        raise FormatError(
            "save: a module, a state dict or a checkpoint",
            got=type(model).__name__,
            hint="save(net, path, optimizer=opt), or a dict of tensors, numbers and text",
        )
    return dict(model.state_dict(keep_vars=True))


def load(
    path: str | Path | BinaryIO, map_location: Any = None, *, weights_only: bool = True, mmap: bool = False
) -> Any:
    """Return what `save` wrote to a folder or file: a checkpoint as it was, a model as a SavedModel; and of
    what a FrozenModel wrote, that one. `path` may be a file opened for reading as binary, such as a BytesIO.

    Files of `torch.save` (PyTorch 1.6 and newer) are read, too: tensors, numbers, text, and lists, tuples and
    dicts of these. Nothing in a file is imported or called; one that names anything else is refused.
    `map_location` is the CPU; files hold data alone, whatever PyTorch's `weights_only` and `mmap` say.

    Raises: FormatError for anything else; where there is no such file, one that is a FileNotFoundError too.
    """
    if not (isinstance(path, (str, os.PathLike)) or hasattr(path, "read")):
        raise DTypeError("load: takes a path or an open file", got=type(path).__name__)
    if callable(map_location) or isinstance(map_location, Mapping):
        raise AttributeValueError(
            "load: map_location is a device", got=type(map_location).__name__, hint="only the CPU is here"
        )
    check_device(map_location)
    files = read_container_or_zip(path, TORCH_MEMBERS)
    if not isinstance(files, dict):
        return read_torch(files)
    if "artifact.json" in files:
        return frozen_of(files)
    return checkpoint_of(files, tensor) if f"{CHECKPOINT}.json" in files else SavedModel(model_of(files))


class SavedModel(Mapping[str, Tensor]):
    """A model from a file: a mapping of names to tensors that `load_state_dict` takes; called, it computes
    its graph.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # a mapping's own would compare tensors

    def __init__(self, file: ModelFile) -> None:
        self.graph = file.graph
        self.batches = file.batches  # graphs for other batch sizes
        self.options = dict(file.options)
        self.optimizer = file.optimizer
        self._weights = {name: tensor(array) for name, array in file.weights.items()}
        self._dynamic: DynamicBatch | None = None
        if file.graph is not None and file.batches:
            own = batch_of([n.aval for n in file.graph.inputs if label_of(n) not in self._weights])
            if own is None or own in file.batches or len(file.batches) < 2 - (own > 1):
                raise FormatError("batches.json: not graphs for other batch sizes", got=str(own))
            self._dynamic = DynamicBatch({own: file.graph, **file.batches})

    def state_dict(self, keep_vars: bool = False) -> dict[str, Tensor]:
        """Return parameters and buffers by name; they have no history to keep."""
        return dict(self._weights)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __call__(self, *inputs: Any) -> Any:
        """Compute the saved graph, compiled on first use, on inputs of the saved dtypes and shapes, and of
        any batch size where it was saved for that. Arrays in float64, and tables of numbers, become what the
        graph takes where those are floats, as in a Trainer; tensors stay as they are.
        """
        if self.graph is None:
            raise FormatError("load: this file holds weights without a graph", hint="save with inputs=...")
        own = [n.aval.dtype for n in self.graph.inputs if label_of(n) not in self._weights]
        tensors = [_as_tensor(x, own[k] if k < len(own) else None) for k, x in enumerate(inputs)]
        graph = self._graph_for(tensors)
        given = iter(tensors)
        storages = []
        for node in graph.inputs:
            held = self._weights.get(label_of(node))
            value = held if held is not None else _fitting(next(given, None), node, tensors)
            storages.append(value._value("running a saved model"))
        if next(given, None) is not None:
            raise ShapeError(f"{graph.name}: takes fewer inputs", got=str(len(inputs)))
        outputs = [hold(s) for s in program_cache.run(program_cache.compiled(graph), storages)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _graph_for(self, inputs: Sequence[Tensor]) -> Graph:
        """Return the graph for the batch size of inputs; where they have none, that of the sample's."""
        assert self.graph is not None
        if self._dynamic is None:
            return self.graph
        batch = batch_of([x.type for x in inputs])
        return self.graph if batch is None else self._dynamic.graph(batch)

    def __repr__(self) -> str:
        shown = "no graph" if self.graph is None else repr(self.graph)
        return f"<SavedModel: {len(self._weights)} weights, {shown}>"


def _as_tensor(given: Any, dtype: Any) -> Tensor:
    """Return an input as a tensor; what is none and has float64 gets the dtype, where that is a float's."""
    if isinstance(given, Tensor):
        return given
    array = np.asarray(given)
    whole = dtype is None or not dtype.is_float or array.dtype != np.float64
    return tensor(array) if whole else tensor(array, dtype=dtype)


def _fitting(value: Tensor | None, node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Return an input that is of the type a graph takes. Raises: ShapeError."""
    if value is None or value.type != node.type:
        got = ", ".join(str(x.type) for x in inputs) or "nothing"
        raise ShapeError(
            f"saved model: {label_of(node)} is {node.type}",
            got=got,
            hint=f'st.tensor(x, dtype="{node.aval.dtype.name}")'
            if value is not None and value.type.shape == node.aval.shape
            else "save it with such inputs; any batch does where the model's Python does not ask its size",
        )
    return value
