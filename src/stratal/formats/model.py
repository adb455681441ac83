"""Model files: a readable graph, its weights, and what training needs to go on.

    graph.json              the JSON form of the graph (`graph.json_form`), where there is one
    batches.json            {batch size: the graph for it}, where the model takes any (`formats.traced`)
    constants.safetensors   the large constants the graphs refer to
    weights.safetensors     parameters and buffers by name; a graph input with such a label is that weight
    training.json           options and the optimiser's state, as a document (`formats.document`)
    training.safetensors    the arrays of that document

Only data is read: nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError
from stratal.formats.container import read_container, write_container
from stratal.formats.document import document_files, read_document, tensors_of
from stratal.formats.files import Bytes
from stratal.formats.safetensors import encode, parse_json
from stratal.graph.graph import Graph
from stratal.graph.json_form import graph_from_json, graph_to_json
from stratal.graph.node import Input

Array = np.ndarray[Any, Any]
_FILES = frozenset((
    "graph.json", "batches.json", "constants.safetensors", "weights.safetensors", "training.json",
    "training.safetensors",
))  # fmt: skip


@dataclass
class ModelFile:
    """What a model file holds. Tensors may be written; what is read are arrays."""

    graph: Graph | None = None
    weights: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    batches: Mapping[int, Graph] = field(default_factory=dict)  # for other batch sizes


def write_model(path: str | Path | BinaryIO, model: ModelFile) -> None:
    """Write a model to a folder, or to one file where `path` ends in `.stratal`.

    Raises: FormatError for what files do not hold, FileWriteError where the disk refuses. The old model
    then stays.
    """
    files: dict[str, Iterable[Bytes]] = {"weights.safetensors": encode(model.weights)}
    if model.graph is not None:
        constants: dict[str, Array] = {}
        form = graph_to_json(model.graph, constants)
        files["graph.json"] = [graph_text(form)]
        if model.batches:
            files["batches.json"] = [graphs_text(model.batches, constants)]
        files["constants.safetensors"] = encode(constants)
    training = {"options": dict(model.options), "optimizer": model.optimizer}
    files |= document_files("training", training)
    write_container(path, files)


def graph_text(form: Mapping[str, Any]) -> bytes:
    """Return a graph's JSON for people: one node a line."""
    rows = []
    for key, value in form.items():
        if key in ("nodes", "inputs") and value:
            items = ",\n".join("  " + json.dumps(v, ensure_ascii=False) for v in value)
            rows.append(f" {json.dumps(key)}: [\n{items}\n ]")
        else:
            rows.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode()


def graphs_text(graphs: Mapping[int, Graph], constants: dict[str, Array]) -> bytes:
    """Return the JSON of graphs by size, one node a line; large constants go to `constants`."""
    forms = [b'"%d": %s' % (size, graph_text(graph_to_json(g, constants))) for size, g in graphs.items()]
    return b"{" + b",".join(forms) + b"}\n"


def read_model(path: str | Path) -> ModelFile:
    """Return the model in a folder or file. Raises: FormatError for all that `write_model` did not write."""
    return model_of(read_container(path))


def model_of(files: Mapping[str, memoryview]) -> ModelFile:
    """Return the model in the files of a container. Raises: FormatError."""
    if not set(files) <= _FILES or "weights.safetensors" not in files or "training.json" not in files:
        raise FormatError("model file: not the files of a model", got=", ".join(sorted(files)) or "none")
    weights = tensors_of(files, "weights.safetensors")
    document = read_document("training", files)
    if not isinstance(document, dict) or set(document) != {"options", "optimizer"}:
        raise FormatError("training.json: not the options and optimiser of a model")
    if not isinstance(document["options"], dict):
        raise FormatError("training.json: options must be an object")
    graph, rows = None, {}
    if "graph.json" in files:
        constants = tensors_of(files, "constants.safetensors")
        graph = graph_from_json(parse_json(bytes(files["graph.json"]), "graph.json"), constants)
        rows = _graphs_by_batch(files, constants)
        for found in (graph, *rows.values()):
            _check_weights(found, weights)
    return ModelFile(graph, weights, document["optimizer"], document["options"], rows)


def _graphs_by_batch(files: Mapping[str, memoryview], constants: Mapping[str, Array]) -> dict[int, Graph]:
    forms = parse_json(bytes(files["batches.json"]), "batches.json") if "batches.json" in files else {}
    if not isinstance(forms, dict) or not all(re.fullmatch("[1-9][0-9]{0,8}", key) for key in forms):
        raise FormatError("batches.json: not graphs by number of rows", got=repr(forms)[:80])
    return {int(key): graph_from_json(form, constants) for key, form in forms.items()}


def _check_weights(graph: Graph, weights: Mapping[str, Array]) -> None:
    """Refuse weights that do not fit the graph inputs of their name."""
    for node in graph.inputs:
        assert isinstance(node.op, Input)
        array = weights.get(node.op.label)
        if array is not None and (
            array.shape != node.aval.ints or as_dtype(array.dtype) is not node.aval.dtype
        ):
            raise FormatError(
                f"model file: weight {node.op.label!r} does not fit the graph",
                got=f"{array.dtype}{list(array.shape)} for {node.type}",
            )
