"""Artefacts: frozen models, an inference program for each batch size, as data that can be read and verified.

    artifact.json             name, signature, batch sizes, versions, and the content hash
    graphs.json               {batch size: JSON form of the graph (`graph.json_form`)}; one node a line
    weights.safetensors       parameters and buffers by name, once for all batch sizes
    constants.safetensors     the large constants the graphs refer to
    plans.json                {batch size: the plan the program had where it was saved}, for people and diffs
    training.safetensors      features of training rows, where `freeze` was given some

The content hash covers graphs, weights, constants and signature: equal hashes, equal models, whoever saved
them. Plans, versions and the training sample say how it was made; loading compiles, or finds in the cache,
for this machine. Only data is read: nothing in an artefact is executed before it is verified, none is Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError, ShapeError, StratalError
from stratal.base.version import VERSION as CODE_VERSION
from stratal.codegen.assemble import toolchain_digest
from stratal.formats.container import write_container
from stratal.formats.document import tensors_of
from stratal.formats.files import Bytes
from stratal.formats.model import graphs_text
from stratal.formats.safetensors import encode, parse_json
from stratal.formats.signature import Signature, signature_from_json
from stratal.formats.training_sample import Sample, check_sample
from stratal.graph.graph import Graph
from stratal.graph.json_form import graph_from_json
from stratal.graph.node import label_of
from stratal.runtime.workspace import Workspace
from stratal.tensor.lazy import program_cache
from stratal.tensor.tensor import hold, tensor

Array = np.ndarray[Any, Any]
FORMAT: Final = "stratal-artifact"
VERSION: Final = 1
MAX_BATCH: Final = 1 << 16
MAX_SIZES: Final = 64
_KEYS: Final = {"format", "version", "name", "signature", "batch_sizes", "stratal", "toolchain", "content"}
_HASHED: Final = ("graphs.json", "weights.safetensors", "constants.safetensors")
FILES: Final = {"artifact.json", "plans.json", *_HASHED}
TRAINING: Final = "training.safetensors"
INPUT: Final = "input "  # label of a graph's input k; weights are labelled by their names
RUNNING: Final = "running a frozen model"


@dataclass(frozen=True)
class Origin:
    """Where an artefact comes from: content hash, the versions that wrote it, and the plans it had there."""

    content: str
    stratal: str
    toolchain: str
    plans: Mapping[int, Mapping[str, Any]]


class Given(NamedTuple):
    """What the program of a batch size is given: all weights, and where among them inputs come.

    Kept, so that a run touches no more of a model than it must: each page is a copy in a forked worker.
    """

    weights: list[Any]  # storages; None where an input comes
    inputs: list[tuple[int, int]]  # position, number of the input


def _given(graph: Graph, weights: Mapping[str, Any]) -> Given:
    labels = [label_of(node) for node in graph.inputs]
    storages = [weights[label]._value(RUNNING) if label in weights else None for label in labels]
    inputs = [(at, int(label.removeprefix(INPUT))) for at, label in enumerate(labels) if label not in weights]
    return Given(storages, inputs)


class FrozenModel:
    """An inference program: fixed weights, evaluation mode, no gradients; one compiled graph per batch size.

    Called with tensors or arrays of `signature.inputs`, it returns a tensor, or a tuple of several. A number
    of rows among `batch_sizes` gives the bits of `st.compile(module)` without gradients; any other number is
    cut into pieces of the largest size, the last one filled up to the next size with copies of its last row.

    Raises: ShapeError, DTypeError for other inputs.
    """

    def __init__(
        self, name: str, signature: Signature, graphs: Mapping[int, Graph], weights: Mapping[str, Array],
        origin: Origin | None = None, training: Sample | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.signature = signature
        self.training = training or {}  # features of training rows, by input
        self.origin = origin  # None until it was saved
        self._graphs = dict(sorted(graphs.items()))
        self._weights = {label: tensor(array) for label, array in weights.items()}
        self._programs: dict[int, Any] = {}  # held: the program cache keeps only those used last
        self._given: dict[int, Given] = {}
        self.workspace = Workspace()  # of all its programs, and of other models that are given it

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of rows that have a program of their own, ascending."""
        return tuple(self._graphs)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights as saved; packed copies that programs keep come on top."""
        return sum(np.asarray(w).nbytes for w in self._weights.values())

    def graph(self, size: int) -> Graph:
        """Return the graph for a batch size. Raises: ShapeError for a size without one."""
        if size not in self._graphs:
            known = ", ".join(map(str, self._graphs))
            raise ShapeError(f"{self.name}: no program for this batch size", got=f"{size}; there are {known}")
        return self._graphs[size]

    def program(self, size: int) -> Any:
        """Return the compiled program for a batch size, compiled or loaded on first use, then held."""
        if size not in self._programs:
            self._programs[size] = program_cache.compiled(self.graph(size), self.workspace)
        return self._programs[size]

    def __call__(self, *inputs: Any) -> Any:
        arrays = self.signature.checked([np.asarray(x) for x in inputs])
        outputs = [tensor(y) for y in self.run(arrays)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for arrays that `signature.checked` let through, as read-only arrays."""
        if not self.signature.batched:
            return self.run_size(self.batch_sizes[0], arrays)
        rows, largest = len(arrays[0]), self.batch_sizes[-1]
        if rows in self._graphs:
            return self.run_size(rows, arrays)
        pieces = [self._run_filled([a[k : k + largest] for a in arrays]) for k in range(0, rows, largest)]
        return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

    def size_for(self, rows: int) -> int:
        """Return the smallest batch size that holds `rows`, or the largest there is."""
        return next((size for size in self.batch_sizes if size >= rows), self.batch_sizes[-1])

    def _run_filled(self, arrays: Sequence[Array]) -> list[Array]:
        rows = len(arrays[0])
        size = self.size_for(rows)
        return [y[:rows] for y in self.run_size(size, filled(arrays, size))]

    def run_size(self, size: int, arrays: Sequence[Array]) -> list[Array]:
        """Run the program of one batch size on arrays of exactly its shapes."""
        program = self.program(size)
        if (given := self._given.get(size)) is None:
            given = self._given[size] = _given(self._graphs[size], self._weights)
        storages = list(given.weights)
        for position, k in given.inputs:
            storages[position] = tensor(arrays[k])._value(RUNNING)
        return [np.asarray(hold(s)) for s in program_cache.run(program, storages)]

    def save(self, path: str | Path) -> None:
        """Write the artefact: a folder, or one file where `path` ends in `.stratal`.

        Compiles every batch size, so that its plan is in the artefact. What stood at `path` is replaced whole
        or stays whole. Raises: FormatError, FileWriteError.
        """
        files = _content_files(self._graphs, {k: np.asarray(v) for k, v in self._weights.items()})
        plans = {size: self.program(size).plan.to_json() for size in self.batch_sizes}
        content = content_hash(files, self.signature)
        self.origin = Origin(content, CODE_VERSION, toolchain_digest("program"), plans)
        head = {
            "format": FORMAT, "version": VERSION, "name": self.name, "signature": self.signature.to_json(),
            "batch_sizes": list(self.batch_sizes), "stratal": CODE_VERSION,
            "toolchain": self.origin.toolchain, "content": content,
        }  # fmt: skip
        texts = {"artifact.json": head, "plans.json": {str(size): plan for size, plan in plans.items()}}
        written: dict[str, Iterable[Bytes]] = {
            name: [(json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()]
            for name, value in texts.items()
        }
        if self.training:
            written[TRAINING] = list(encode(self.training))
        write_container(path, written | {name: list(parts) for name, parts in files.items()})

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        return f"<FrozenModel {self.name}: {self.signature}; batch sizes {sizes}>"


def filled(arrays: Sequence[Array], size: int) -> list[Array]:
    """Return arrays of `size` rows: copies of the last row are appended."""
    return [np.concatenate([a, np.repeat(a[-1:], size - len(a), 0)]) if len(a) < size else a for a in arrays]


def _content_files(graphs: Mapping[int, Graph], weights: Mapping[str, Array]) -> dict[str, list[Bytes]]:
    """Return what makes up the model, as the bytes of its files."""
    constants: dict[str, Array] = {}
    return {
        "graphs.json": [graphs_text(graphs, constants)],
        "weights.safetensors": list(encode(weights)),
        "constants.safetensors": list(encode(constants)),
    }


def content_hash(files: Mapping[str, Iterable[Bytes]], signature: Signature) -> str:
    """Return the hash that names a model: of its graphs, weights, constants and signature."""
    whole = hashlib.sha256(json.dumps(signature.to_json(), sort_keys=True).encode())
    for name in _HASHED:
        digest = hashlib.sha256()
        for part in files[name]:
            digest.update(part)
        whole.update(name.encode() + b"\0" + digest.digest())
    return whole.hexdigest()


# -- reading -------------------------------------------------------------------------------------------------


def frozen_of(files: Mapping[str, memoryview]) -> FrozenModel:
    """Return the frozen model in the files of a container. Raises: FormatError for any that is not whole."""
    if set(files) - {TRAINING} != FILES:
        raise FormatError("artefact: not the files of one", got=", ".join(sorted(files)))
    head = parse_json(bytes(files["artifact.json"]), "artifact.json")
    if not isinstance(head, dict) or set(head) != _KEYS:
        raise FormatError("artifact.json: not the keys of an artefact", got=repr(head)[:80])
    if head["format"] != FORMAT or head["version"] != VERSION:
        raise FormatError("artefact: of another format or version", got=f"{head['format']} {head['version']}")
    for key in ("name", "stratal", "toolchain", "content"):
        if not isinstance(head[key], str) or not head[key] or len(head[key]) > 200:
            raise FormatError(f"artifact.json: {key} must be a short text", got=repr(head[key])[:80])
    signature = signature_from_json(head["signature"])
    if content_hash({name: [files[name]] for name in _HASHED}, signature) != head["content"]:
        raise FormatError(
            "artefact: its content is not what its hash names", got=head["content"],
            hint="it was changed after it was saved; restore it, or freeze the module again",
        )  # fmt: skip
    sizes = _sizes(head["batch_sizes"], signature)
    weights = tensors_of(files, "weights.safetensors")
    graphs = _graphs(files, sizes)
    plans = _by_size(parse_json(bytes(files["plans.json"]), "plans.json"), sizes, "plans.json")
    for size, graph in graphs.items():
        _check_graph(graph, size, signature, weights)
    training = tensors_of(files, TRAINING)
    if TRAINING in files:
        check_sample(training, signature)
    origin = Origin(head["content"], head["stratal"], head["toolchain"], plans)
    return FrozenModel(head["name"], signature, graphs, weights, origin, training)


def _sizes(data: object, signature: Signature) -> list[int]:
    fine = isinstance(data, list) and 0 < len(data) <= MAX_SIZES
    if not fine or not all(type(n) is int and 0 < n <= MAX_BATCH for n in data):  # type: ignore[attr-defined]
        raise FormatError("artifact.json: batch_sizes must be a list of counts", got=repr(data)[:80])
    sizes: list[int] = data  # type: ignore[assignment]
    if sizes != sorted(set(sizes)) or (not signature.batched and len(sizes) != 1):
        raise FormatError("artifact.json: batch_sizes must ascend, one if not batched", got=repr(sizes)[:80])
    return sizes


def _by_size(data: object, sizes: Sequence[int], what: str) -> dict[int, Any]:
    if not isinstance(data, dict) or list(data) != [str(size) for size in sizes]:
        raise FormatError(f"{what}: must have one entry per batch size", got=repr(data)[:80])
    if not all(isinstance(value, dict) for value in data.values()):
        raise FormatError(f"{what}: an entry is not an object", got=repr(data)[:80])
    return {int(size): value for size, value in data.items()}


def _graphs(files: Mapping[str, memoryview], sizes: Sequence[int]) -> dict[int, Graph]:
    forms = _by_size(parse_json(bytes(files["graphs.json"]), "graphs.json"), sizes, "graphs.json")
    constants = tensors_of(files, "constants.safetensors")
    return {size: graph_from_json(form, constants) for size, form in forms.items()}


def _check_graph(graph: Graph, size: int, signature: Signature, weights: Mapping[str, Array]) -> None:
    """Refuse a graph that is not of this signature, or whose weights do not fit."""
    given: dict[str, Any] = {}
    for node in graph.inputs:
        label = label_of(node)
        if label in given:
            raise FormatError("artefact: two inputs of a graph have one name", got=repr(label)[:80])
        given[label] = node.aval
    inputs = {label: aval for label, aval in given.items() if label.startswith(INPUT)}
    owed = {f"{INPUT}{k}": spec.type_at(size) for k, spec in enumerate(signature.inputs)}
    outputs = [spec.type_at(size) for spec in signature.outputs]
    if graph.updates or inputs != owed or list(graph.output_types) != outputs:
        raise FormatError(
            f"artefact: the graph for batch size {size} is not of the signature", got=repr(graph)[:120]
        )
    for label in given.keys() - inputs.keys():
        array = weights.get(label)
        if array is None or array.shape != given[label].ints or _dtype(array) is not given[label].dtype:
            raise FormatError(f"artefact: weight {label[:60]!r} is missing or does not fit the graph")
    if any(label.startswith(INPUT) for label in weights):
        raise FormatError("artefact: a weight has the name of an input")


def _dtype(array: Array) -> Any:
    try:
        return as_dtype(array.dtype)
    except StratalError as error:
        raise FormatError(
            "artefact: a weight has a dtype models do not have", got=str(array.dtype)
        ) from error
