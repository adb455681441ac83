"""The JSON form of graphs: every record's samples come back equal; malformed forms are refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
import re
from typing import Any, get_type_hints

import numpy as np
import pytest

import stratal.ops  # noqa: F401  (fills the registry)
from stratal.base.dtypes import float32
from stratal.base.errors import FormatError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.json_form import graph_from_json, graph_to_json
from stratal.graph.node import constant, graph_input, items, make
from stratal.graph.op import REGISTRY

LINE = SourceLine("/home/somebody/train.py", 12, "step")


def example() -> Graph:
    x = graph_input("x", TensorType(float32, (2, 3)))
    state = graph_input("state", TensorType(float32, (2, 3)))
    total = make(REGISTRY["add"](), x, state, where=(LINE,))
    return Graph([x, state], [total, constant(np.float32(2))], [(state, total)], "counter")


def through_json(graph: Graph) -> Graph:
    tensors: dict[str, Any] = {}
    return graph_from_json(json.loads(json.dumps(graph_to_json(graph, tensors))), tensors)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_sample_of_every_record_comes_back_equal(name: str) -> None:
    for sample in REGISTRY[name].samples():
        inputs = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
        graph = Graph(inputs, items(make(sample.op, *inputs)), name=name)
        assert through_json(graph) == graph


NUMBER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_an_attribute_of_another_kind_is_refused(name: str) -> None:
    """A whole number that becomes 1.5, true or text: in a float's place the first is another float."""
    hints = get_type_hints(REGISTRY[name])
    for sample in REGISTRY[name].samples():
        inputs = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
        form = graph_to_json(Graph(inputs, items(make(sample.op, *inputs)), name=name))
        for row in form["nodes"]:
            for key, text in row.get("attributes", {}).items() if row["op"] == name else ():
                if not isinstance(text, str) or "{" in text or '"' in text:
                    continue
                for found, put in itertools.product(NUMBER.finditer(text), ("1.5", "true", '"x"')):
                    row["attributes"][key] = text[: found.start()] + put + text[found.end() :]
                    if put != "1.5" or hints[key] is not float:
                        with pytest.raises(FormatError):
                            graph_from_json(form)
                row["attributes"][key] = text


def test_updates_names_and_source_lines_come_back_and_paths_stay_private() -> None:
    graph = through_json(example())
    assert graph == example()
    assert graph.name == "counter"
    (total,) = (n for n in graph.nodes if n.op.name == "add")
    assert SourceLine("train.py", 12, "step") in total.where
    assert "somebody" not in json.dumps(graph_to_json(example()))


def test_a_large_constant_is_kept_beside_the_graph() -> None:
    graph = Graph([], [constant(np.arange(1000.0))])
    tensors: dict[str, Any] = {}
    form = graph_to_json(graph, tensors)
    assert list(tensors) == ["constant.0"]
    assert graph_from_json(form, tensors) == graph
    with pytest.raises(FormatError, match="missing from the tensors"):
        graph_from_json(form)


def changed(path: list[Any], value: Any) -> Any:
    form = copy.deepcopy(graph_to_json(example()))
    place: Any = form
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return form


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        (changed(["format"], "other"), "must be"),
        (changed(["version"], 2), "only version"),
        (changed(["extra"], 2), "not in the schema"),
        (changed(["name"], 2), "must be text"),
        (changed(["inputs"], {}), "must be a list"),
        (changed(["inputs", 0, "type"], "f33[2]"), "not a dtype"),
        (changed(["inputs", 0, "type"], "f32[2"), "text"),
        (changed(["inputs", 0, "type"], "f32[-2]"), "beyond any memory"),
        (changed(["inputs", 0, "type"], "f32[99999999999999999999]"), "beyond any memory"),
        (changed(["inputs", 0, "type"], "f32[2] x"), "more text"),
        (changed(["nodes", 0, "op"], "launch_missiles"), "no op"),
        (changed(["nodes", 0, "op"], "input"), "no op"),
        (changed(["nodes", 0, "inputs"], [0, 2]), "no value has this number"),
        (changed(["nodes", 0, "inputs"], [0, -1]), "no value has this number"),
        (changed(["nodes", 0, "inputs"], [0, True]), "no value has this number"),
        (changed(["nodes", 0, "inputs"], [0]), "breaks a rule"),
        (changed(["nodes", 0, "type"], "f32[3]"), "another type"),
        (changed(["nodes", 0, "attributes"], {"axis": "1"}), "does not take these attributes"),
        (changed(["nodes", 0, "attributes"], {"axis": "__import__('os')"}), "text form"),
        (changed(["nodes", 0, "where"], [["train.py", "12", "f"]]), "a source line"),
        (changed(["nodes", 1, "attributes", "value"], "f32[3]{1.0}"), "wrong size"),
        (changed(["nodes", 1, "attributes", "value"], "f32[9999999999]{}"), "wrong size"),
        (changed(["outputs"], [9]), "no value has this number"),
        (changed(["updates"], [[1]]), "pair of values"),
        (changed(["updates"], [[0, 3]]), "breaks a rule"),
    ],
)
def test_a_malformed_form_is_refused_in_words(form: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        graph_from_json(form)


def test_random_damage_is_refused_or_harmless_but_never_breaks() -> None:
    rng = random.Random(0)
    junk = [None, -1, 10**30, "", "x", "(1,", [], {}, [[]], "none", "f32[2]", True, {"tensor": "t"}]
    for name in sorted(REGISTRY):
        for sample in list(REGISTRY[name].samples())[:2]:
            inputs = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
            form = graph_to_json(Graph(inputs, items(make(sample.op, *inputs))))
            for _ in range(10):
                bad = copy.deepcopy(form)
                node = rng.choice(bad["nodes"])
                place = node["attributes"] if "attributes" in node and rng.random() < 0.6 else node
                place[rng.choice(sorted(place))] = rng.choice(junk)
                with contextlib.suppress(FormatError):
                    graph_from_json(bad)
