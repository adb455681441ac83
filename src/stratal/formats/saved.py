"""`save` and `load`: checkpoints, models' weights, and what a model computes as a graph that runs without its
class.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.errors import AttributeValueError, CaptureError, FormatError, ShapeError
from stratal.base.interrupts import block
from stratal.formats.artifact import frozen_of
from stratal.formats.container import read_container
from stratal.formats.document import NAME as CHECKPOINT
from stratal.formats.document import checkpoint_of, write_checkpoint
from stratal.formats.model import ModelFile, model_of, write_model
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node, constant, graph_input, topological
from stratal.tensor.device import check_device
from stratal.tensor.lazy import programs
from stratal.tensor.tensor import Tensor, hold, tensor
from stratal.tensor.values import values
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.handles import node_of
from stratal.tensor.values.state import ModeBlock, no_grad, tracing
from stratal.tensor.values.trace import Trace


def save(
    model: Any, path: str | Path, *, inputs: Any = None, optimizer: Any = None,
    options: Mapping[str, Any] | None = None
) -> None:
    """Write a module or a checkpoint to a folder, or to one file where `path` ends in `.stratal`.

    A checkpoint is any nest of dicts, lists and tuples of tensors, numbers, text and None, such as
    `net.state_dict()` or `{"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}`: `load`
    returns it again.

    Of a model, with example `inputs` (a tensor or a tuple of them), the graph of `model(*inputs)` in
    evaluation mode is saved too, and `load` gives a model that computes it without the class. `optimizer`
    saves its state, `options` any training options of plain values. What stood at `path` is replaced whole
    or stays whole.

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
        write_checkpoint(path, model)
        return
    state = _state_of(model)
    arrays = {name: np.asarray(_detached(value)) for name, value in state.items()}
    graph = model.graph if isinstance(model, SavedModel) else None
    if inputs is not None:
        examples = inputs if isinstance(inputs, tuple) else (inputs,)
        with evaluating(model):
            graph = graph_of(model, examples, state)
    saved = None if optimizer is None else optimizer.state_dict()
    write_model(path, ModelFile(graph, arrays, saved, options or {}))


def _state_of(model: Any) -> dict[str, Any]:
    """Return the tensors of a module by name, or say why there are none."""
    if not hasattr(model, "state_dict"):
        raise FormatError(
            "save: a module, a state dict or a checkpoint",
            got=type(model).__name__,
            hint="save(net, path, optimizer=opt), or a dict of tensors, numbers and text",
        )
    return dict(model.state_dict(keep_vars=True))


def load(path: str | Path, map_location: Any = None, *, weights_only: bool = True, mmap: bool = False) -> Any:
    """Return what `save` wrote to a folder or file: a checkpoint as it was, a model as a SavedModel; and of
    what a FrozenModel wrote, that one.

    `map_location` is the CPU; files hold data alone, whatever PyTorch's `weights_only` and `mmap` say.

    Raises: FormatError for anything else.
    """
    if callable(map_location) or isinstance(map_location, Mapping):
        raise AttributeValueError(
            "load: map_location is a device", got=type(map_location).__name__, hint="only the CPU is here"
        )
    check_device(map_location)
    files = read_container(path)
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
        self.options = dict(file.options)
        self.optimizer = file.optimizer
        self._weights = {name: tensor(array) for name, array in file.weights.items()}

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
        """Compute the saved graph, compiled on first use, on inputs of the saved shapes and dtypes."""
        if self.graph is None:
            raise FormatError("load: this file holds weights without a graph", hint="save with inputs=...")
        given = iter(inputs)
        storages = []
        for node in self.graph.inputs:
            assert isinstance(node.op, Input)
            held = self._weights.get(node.op.label)
            value = held if held is not None else _fitting(next(given, None), node, inputs)
            storages.append(value._value("running a saved model"))
        if next(given, None) is not None:
            raise ShapeError(f"{self.graph.name}: takes fewer inputs", got=str(len(inputs)))
        outputs = [hold(s) for s in programs.run(programs.compiled(self.graph), storages)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def __repr__(self) -> str:
        shown = "no graph" if self.graph is None else repr(self.graph)
        return f"<SavedModel: {len(self._weights)} weights, {shown}>"


def _fitting(value: Any, node: Node, inputs: tuple[Any, ...]) -> Tensor:
    """Return an input as a tensor of the type the graph was saved for. Raises: ShapeError."""
    made = None if value is None else tensor(value)
    if made is None or made.type != node.type:
        got = ", ".join(str(tensor(x).type) for x in inputs) or "nothing"
        assert isinstance(node.op, Input)
        raise ShapeError(
            f"saved model: {node.op.label} is {node.type}",
            got=got,
            hint="save with inputs of the new shape; st.freeze(net, x) serves any number of rows",
        )
    return made


def _detached(value: Any) -> Any:
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


@block
def evaluating(model: Any) -> Generator[None]:
    """Put a module into evaluation mode for a block; every part then goes back to the mode it was in."""
    parts = list(model.modules()) if hasattr(model, "modules") else []
    before = [(vars(part), "training", part.training) for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        any(starmap(dict.__setitem__, before))  # in C: no handler of signals comes before the last


class _ModelTrace(Trace):
    """The trace of a model's call: its inputs, what depends on them, and what the call writes have no value.

    Python may look at weights and buffers, which are what they are where the model is written.
    """

    def __init__(self, name: str, inputs: Sequence[Tensor]) -> None:
        super().__init__(name)
        self._inputs = frozenset(map(id, inputs))

    def reads(self, tensor: Handle) -> bool:
        cell = self.cells.get(id(tensor))
        return id(tensor) in self._inputs or (cell is not None and cell.written)


def graph_of(function: Callable[..., Any], inputs: tuple[Any, ...], named: Mapping[str, Tensor]) -> Graph:
    """Return what a function computes as a graph of its inputs and of the tensors in `named`.

    It is traced: nothing that depends on the inputs has a value meanwhile. Other tensors it reads become
    constants. Raises: CaptureError when it changes a tensor of `named`, when Python asks for a value that
    depends on an input, or when it returns anything but tensors.
    """
    name, examples = type(function).__name__, [tensor(x) for x in inputs]
    trace = _ModelTrace(name, examples)
    cells = {key: trace.enter(value) for key, value in named.items()}
    labels = {cell.placeholder: key for key, cell in cells.items()}
    labels |= {trace.enter(x).placeholder: f"input {k}" for k, x in enumerate(examples)}
    try:
        with no_grad(), ModeBlock("eager", None), tracing(trace):
            results = tree.leaves(function(*examples))
            if not results or not all(isinstance(r, Tensor) for r in results):
                raise CaptureError(
                    "save: the model must return tensors", got=", ".join(type(r).__name__ for r in results)
                )
            roots = [node_of(r) for r in results]
    finally:
        trace.closed = True
    if changed := [key for key, cell in cells.items() if cell.written]:
        raise CaptureError("save: the model changes its own state in evaluation mode", got=", ".join(changed))
    others = [cell for cell in trace.cells.values() if cell.placeholder not in labels]
    known = {cell.placeholder: np.asarray(_detached(cell.tensor)) for cell in others}
    return _closed(roots, labels, known, name)


def _closed(
    roots: list[Node], labels: Mapping[Node, str], known: Mapping[Node, np.ndarray[Any, Any]], name: str
) -> Graph:
    """Return the graph of some values over labelled leaves; others, that have a value, become constants."""
    leaves = [node for node in topological(roots) if isinstance(node.op, Input)]
    fresh = {
        node: graph_input(label, node.aval, frozen=not label.startswith("input "))
        for node, label in labels.items()
    }
    replaced = dict(fresh)
    for leaf in leaves:
        if leaf not in fresh:
            storage = values.finished(leaf)
            if storage is None and leaf not in known:
                raise CaptureError(
                    "save: a value the model reads is not known", got=str(leaf.type), where=leaf.where
                )
            replaced[leaf] = constant(known[leaf] if storage is None else storage.array)
    outputs = substitute(roots, replaced)
    used = set(leaves) | {node for node, label in labels.items() if label.startswith("input ")}
    return Graph([fresh[node] for node in labels if node in used], outputs, name=name)
