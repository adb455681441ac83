"""The JSON form of graphs: the exchange format's readable half.

    graph     := {"format": "stratal-graph", "version": 1, "name": text,
                  "inputs": [input ...], "nodes": [node ...], "outputs": [value ...],
                  "updates": [[value of a state input, its new value] ...]}
    input     := {"type": "f32[2,3]", "label": text}
    node      := {"op": text, "inputs": [value ...], "attributes": {text: attribute ...},
                  "type": "f32[3]" | ["f32[3]", ...], "where": [[file, line, function] ...]}
    value     := number: the graph's inputs first, then its nodes, counted from 0
    attribute := text as `graph.literal` prints it | {"tensor": name} | graph | [attribute ...]

"attributes" and "where" are left out where empty. {"tensor": name} stands for a large constant that is kept
beside the graph, in the binary half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import PurePath
from typing import Any, Final, NoReturn, get_args, get_origin, get_type_hints

from stratal.base.errors import FormatError, StratalError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType, TupleType, Type
from stratal.graph.graph import Graph, verify
from stratal.graph.literal import Literal, Tokens, parse_type, parse_value, show
from stratal.graph.node import Node, graph_input, is_frozen, label_of, make, take_item
from stratal.graph.op import REGISTRY, Array

FORMAT: Final = "stratal-graph"
VERSION: Final = 1
EXTERNAL_BYTES: Final = 1024  # constants from here up go to the binary half where there is one
_GRAPH_KEYS: Final = frozenset(("format", "version", "name", "inputs", "nodes", "outputs", "updates"))
_NODE_KEYS: Final = frozenset(("op", "inputs", "attributes", "type", "where"))
_MAX_DIM: Final = 1 << 48


def graph_to_json(graph: Graph, tensors: MutableMapping[str, Array] | None = None) -> dict[str, Any]:
    """Return the JSON form. Constants of a kilobyte and more go to `tensors` where given, by fresh names."""
    number: dict[Node, int] = {node: k for k, node in enumerate(graph.inputs)}
    rows = []
    for node in graph.nodes:
        if node not in number:
            number[node] = len(number)
            rows.append(_node_to_json(node, number, tensors))
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "inputs": [
            {"type": str(n.type), "label": label_of(n)} | ({"held": True} if is_frozen(n) else {})
            for n in graph.inputs
        ],
        "nodes": rows,
        "outputs": [number[o] for o in graph.outputs],
        "updates": [[number[s], number[v]] for s, v in graph.updates],
    }


def _node_to_json(
    node: Node, number: Mapping[Node, int], tensors: MutableMapping[str, Array] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"op": node.op.name, "inputs": [number[i] for i in node.inputs]}
    attributes = {k: _attribute_to_json(v, tensors) for k, v in node.op.attributes.items()}
    if attributes:
        row["attributes"] = attributes
    multiple = isinstance(node.type, TupleType)
    row["type"] = [str(t) for t in node.type.elements] if multiple else str(node.type)  # type: ignore[union-attr]
    if node.where:
        row["where"] = [[PurePath(w.file).name, w.line, w.function] for w in node.where]
    return row


def _attribute_to_json(value: Any, tensors: MutableMapping[str, Array] | None) -> Any:
    if isinstance(value, Graph):
        return graph_to_json(value, tensors)
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return [_attribute_to_json(v, tensors) for v in value]
    if tensors is not None and isinstance(value, Literal) and value.array.nbytes >= EXTERNAL_BYTES:
        name = f"constant.{len(tensors)}"
        tensors[name] = value.array
        return {"tensor": name}
    return show(value)


def graph_from_json(data: object, tensors: Mapping[str, Array] | None = None) -> Graph:
    """Return the graph of a JSON form, verified; `tensors` holds the constants kept beside it.

    Raises: FormatError, whatever the data is.
    """
    try:
        return verify(_graph(data, tensors or {}))
    except FormatError:
        raise
    except StratalError as error:
        raise FormatError(
            "graph file: the graph breaks a rule", got=str(error.rule), hint=error.got
        ) from error
    except RecursionError:
        raise FormatError("graph file: regions are nested too deep") from None


def _refuse(what: str, got: object) -> NoReturn:
    raise FormatError(f"graph file: {what}", got=repr(got)[:80])


def _dict(data: object, keys: frozenset[str], what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        _refuse(f"{what} must be an object", data)
    if not set(data) <= keys:
        _refuse(f"{what} has a key that is not in the schema", sorted(set(data) - keys)[0])
    return data


def _list(data: object, what: str) -> list[Any]:
    if not isinstance(data, list):
        _refuse(f"{what} must be a list", data)
    return data


def _text(data: object, what: str) -> str:
    if not isinstance(data, str):
        _refuse(f"{what} must be text", data)
    return data


def _graph(data: object, tensors: Mapping[str, Array]) -> Graph:
    form = _dict(data, _GRAPH_KEYS, "a graph")
    if form.get("format") != FORMAT:
        _refuse(f'"format" must be "{FORMAT}"', form.get("format"))
    if form.get("version") != VERSION or isinstance(form["version"], bool):
        _refuse(f"only version {VERSION} is known", form.get("version"))
    inputs = []
    for row in _list(form.get("inputs"), '"inputs"'):
        row = _dict(row, frozenset(("type", "label", "held")), "an input")
        label, frozen = _text(row.get("label"), "a label"), row.get("held", False)
        if not isinstance(frozen, bool):
            _refuse('"held" is true or false', frozen)
        inputs.append(graph_input(label, _tensor_type(row.get("type")), frozen=frozen))
    values = list(inputs)
    for row in _list(form.get("nodes"), '"nodes"'):
        values.append(_node(_dict(row, _NODE_KEYS, "a node"), values, tensors))
    outputs = [_value(v, values) for v in _list(form.get("outputs"), '"outputs"')]
    updates = []
    for pair in _list(form.get("updates"), '"updates"'):
        if len(_list(pair, "an update")) != 2:
            _refuse("an update is a pair of values", pair)
        updates.append((_value(pair[0], values), _value(pair[1], values)))
    return Graph(inputs, outputs, updates, _text(form.get("name"), '"name"'))


def _value(number: object, values: list[Node]) -> Node:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(values):
        _refuse("no value has this number yet", number)
    return values[number]


def _node(row: dict[str, Any], values: list[Node], tensors: Mapping[str, Array]) -> Node:
    name = _text(row.get("op"), "an op name")
    if name not in REGISTRY or name == "input":
        _refuse("no op has this name", name)
    operands = [_value(v, values) for v in _list(row.get("inputs"), "a node's inputs")]
    given = row.get("attributes", {})
    if not isinstance(given, dict):
        _refuse('"attributes" must be an object', given)
    attributes = {key: _attribute(value, tensors) for key, value in given.items()}
    where = tuple(_line(line) for line in _list(row.get("where", []), '"where"'))
    node = _made(name, operands, attributes, where)
    if node.type != _type(row.get("type")):
        _refuse(f"{name} has another type than its rule gives, {node.type}", row.get("type"))
    return node


def _made(name: str, operands: list[Node], attributes: dict[str, Any], where: tuple[SourceLine, ...]) -> Node:
    """Return the node, with any way a foreign attribute value can break a record's rule as a FormatError."""
    try:
        if name == "item":
            if set(attributes) != {"index"} or attributes["index"] not in range(_results(operands)):
                _refuse("item takes the index of a result", attributes)
            return take_item(operands[0], attributes["index"])
        if any(isinstance(o.type, TupleType) for o in operands):
            _refuse(f"{name} takes single results", [str(o.type) for o in operands])
        hints = _hints(REGISTRY[name]) if attributes else {}
        for key, value in attributes.items():
            if not _fits(value, hints.get(key)):
                _refuse(f"{name} takes another kind of {key}", value)
        return make(REGISTRY[name](**attributes), *operands, where=where)
    except StratalError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise FormatError(
            f"graph file: {name} does not take these attributes", got=str(error)[:80]
        ) from error


def _hints(record: Any) -> dict[str, Any]:
    try:
        return get_type_hints(record)
    except NameError:  # of a user's, annotated with names of a function
        return {}


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value is what a record's field is annotated with; True where it has no such field."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts  # type: ignore[arg-type]
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if parts:  # one of several
        return any(_fits(value, part) for part in parts)
    if hint in (int, float):
        return type(value) is hint or (hint is float and type(value) is int)
    return hint is None or isinstance(value, hint)


def _results(operands: list[Node]) -> int:
    if len(operands) != 1:
        return 0
    type_ = operands[0].type
    return len(type_.elements) if isinstance(type_, TupleType) else 0


def _attribute(value: object, tensors: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return tuple(_attribute(v, tensors) for v in value)
    if isinstance(value, dict) and set(value) == {"tensor"}:
        name = _text(value["tensor"], "a tensor's name")
        if name not in tensors:
            _refuse("a constant is missing from the tensors", name)
        return Literal(tensors[name])
    if isinstance(value, dict):
        return _graph(value, tensors)
    return _parsed(value, lambda tokens: parse_value(tokens, _no_region))


def _no_region(tokens: Tokens) -> NoReturn:
    _refuse("a region is an object, not text", tokens.peek())


def _parsed(data: object, parse: Callable[[Tokens], Any]) -> Any:
    """Parse all of a text with a rule of `graph.literal`."""
    tokens = Tokens(_text(data, "a type or attribute"))
    try:
        value = parse(tokens)
    except FormatError:
        raise
    except (ValueError, TypeError, ArithmeticError) as error:  # say a number that does not fit its dtype
        raise FormatError("graph file: text that does not parse", got=repr(data)[:80]) from error
    if tokens.peek():
        _refuse("more text after a value", data)
    return value


def _tensor_type(data: object) -> TensorType:
    type_ = _parsed(data, parse_type)
    assert isinstance(type_, TensorType)
    if any(not 0 <= n < _MAX_DIM for n in type_.ints) or math.prod(type_.ints) >= _MAX_DIM:
        _refuse("a size is beyond any memory", data)
    return type_


def _type(data: object) -> Type:
    if isinstance(data, list):
        return TupleType([_tensor_type(t) for t in data])
    return _tensor_type(data)


def _line(data: object) -> SourceLine:
    match data:
        case [str(file), int(line), str(function)]:
            return SourceLine(file, line, function)
    _refuse("a source line is [file, line, function]", data)
