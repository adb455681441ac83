"""Parsing the text form of graphs, which `graph.graph_to_text` prints.

graph NAME(%0: f32[2,3], %1: f32[3] frozen = "bias") {
  %2 = sum(%0) axes=(0,) : f32[3]          # train.py:12
  %3 = add(%2, %1) : f32[3]
  return %3
  update %1 <- %3
}
"""

from __future__ import annotations

from stratal.base.errors import FormatError
from stratal.graph.graph import Graph, verify
from stratal.graph.literal import Tokens, parse_type, parse_value
from stratal.graph.node import Node, graph_input, make, take_item
from stratal.graph.op import REGISTRY


def parse_graph(text: str) -> Graph:
    """Parse the text form and verify the result. Raises: FormatError naming the line, VerifyError."""
    tokens = Tokens(text)
    graph = _parse(tokens)
    if tokens.peek():
        raise FormatError("text form: more text after the graph", got=repr(tokens.peek()))
    return verify(graph)


def _parse(tokens: Tokens) -> Graph:
    tokens.take("graph")
    name = parse_value(tokens, _parse)
    values: dict[str, Node] = {}
    inputs = []
    tokens.take("(")
    while not tokens.accept(")"):
        key = tokens.take()
        tokens.take(":")
        type_ = parse_type(tokens)
        frozen = tokens.accept("frozen")
        label = parse_value(tokens, _parse) if tokens.accept("=") else ""
        values[key] = graph_input(label, type_, frozen=frozen)
        inputs.append(values[key])
        tokens.accept(",")
    tokens.take("{")
    outputs: list[Node] = []
    updates: list[tuple[Node, Node]] = []
    while not tokens.accept("}"):
        if tokens.accept("return"):
            while tokens.peek().startswith("%"):
                outputs.append(_value(values, tokens.take()))
                tokens.accept(",")
        elif tokens.accept("update"):
            state = _value(values, tokens.take())
            tokens.take("<-")
            updates.append((state, _value(values, tokens.take())))
        else:
            key = tokens.take()
            values[key] = _parse_node(tokens, values)
    return Graph(inputs, outputs, updates, name)


def _value(values: dict[str, Node], key: str) -> Node:
    if key not in values:
        raise FormatError("text form: a value is used before it is defined", got=key)
    return values[key]


def _parse_node(tokens: Tokens, values: dict[str, Node]) -> Node:
    tokens.take("=")
    name = tokens.take()
    if name not in REGISTRY:
        raise FormatError("text form: no op has this name", got=repr(name))
    tokens.take("(")
    operands = []
    while not tokens.accept(")"):
        operands.append(_value(values, tokens.take()))
        tokens.accept(",")
    attributes = {}
    while not tokens.accept(":"):
        key = tokens.take()
        tokens.take("=")
        attributes[key] = parse_value(tokens, _parse)
    _skip_type(tokens)
    if name == "item":
        return take_item(operands[0], attributes["index"])
    try:
        op = REGISTRY[name](**attributes)
    except TypeError as error:
        raise FormatError(f"text form: {name} does not take these attributes", got=str(error)) from None
    return make(op, *operands)


def _skip_type(tokens: Tokens) -> None:
    if tokens.accept("("):
        while not tokens.accept(")"):
            parse_type(tokens)
            tokens.accept(",")
    else:
        parse_type(tokens)
