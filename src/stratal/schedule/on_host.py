"""A whole graph as one host call: the reference interpreter runs it. That needs no pass and no kernel."""

from __future__ import annotations

from functools import partial

from stratal.base.artifact import Copy, Host
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Input
from stratal.graph.op import Array
from stratal.schedule.draft import Draft


def on_host(graph: Graph) -> Draft:
    """Return the draft that interprets a graph and copies new states over old ones."""
    draft = Draft(calls=[partial(_interpreted, graph)])

    labels = [node.op.label if isinstance(node.op, Input) else "" for node in graph.inputs]
    draft.inputs = tuple(
        draft.value(node.aval, home="input", index=k, label=labels[k], where=node.where)
        for k, node in enumerate(graph.inputs)
    )
    draft.outputs = tuple(
        draft.value(node.aval, home="output", index=k, label=f"output {k}", where=node.where)
        for k, node in enumerate(graph.outputs)
    )
    draft.states = tuple(graph.inputs.index(state) for state, _ in graph.updates)
    new = [draft.value(node.aval, label="new state", where=node.where) for _, node in graph.updates]
    updates = [Copy(n, draft.inputs[s], "update") for n, s in zip(new, draft.states, strict=True)]
    draft.commands = (Host(0, draft.inputs, (*draft.outputs, *new), graph.name, ()), *updates)
    return draft


def _interpreted(graph: Graph, *arrays: Array) -> tuple[Array, ...]:
    outputs, states = interpret(graph, arrays)
    return (*outputs, *states)
