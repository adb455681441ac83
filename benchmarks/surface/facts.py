"""What a call of an entry is made of: records, derivatives, what runs on the host; found by making it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.surface.draws import Call, Draws
from benchmarks.surface.entries import Entry
from benchmarks.surface.layers import call_of, made_and_called
from stratal.base import tree
from stratal.base.errors import StratalError
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, topological
from stratal.optimize.in_reals import use_reals
from stratal.tensor.build import call as call_op
from stratal.tensor.lazy.flushing import lazily
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.transformations.gradients import grad
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.state import no_grad

_PLAIN = {"cast", "broadcast", "reshape"}  # what makes operands alike is not what a function is
_KINDS = {
    "layers": "layer", "optimizers": "optimizer", "schedules": "schedule", "distributions": "distribution",
    "metrics": "metric", "models": "model", "transforms": "transform",
}  # fmt: skip
_SMALL = 36


@dataclass(frozen=True)
class Facts:
    """What the manifest says of an entry."""

    name: str
    family: str
    aliases: tuple[str, ...]
    kind: str  # record | composite | at once | layer | optimizer | ...
    records: tuple[str, ...] = ()
    differentiable: str = ""  # yes, or why not; empty where the question makes no sense
    host: str = ""  # what runs on the host, and why; empty for what is compiled
    tests: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)


def facts_of(entry: Entry, tests: Sequence[str] = ()) -> Facts:
    """Make a small call of an entry and say what it was made of."""
    kind, records, differentiable, host = _KINDS.get(entry.family, ""), (), "", ""
    prepared = _prepared(entry)
    if prepared is not None:
        function, call = prepared
        nodes, given = _work(function, call)
        names = dict.fromkeys(n.op.name for n in nodes)
        records = tuple(names)
        telling = [name for name in names if name not in _PLAIN] or names
        kind = kind or ("at once" if not telling else "record" if len(telling) == 1 else "composite")
        host = _host(nodes) if nodes else "" if given else "its result is made when it is called"
        differentiable = _differentiable(function, call)
    kind = kind or "function"
    return Facts(entry.path, entry.family, entry.aliases, kind, records, differentiable, host, tuple(tests))


def _prepared(entry: Entry) -> tuple[Any, Call] | None:
    if entry.family == "layers":
        return made_and_called(entry, Draws(64))
    call = call_of(entry, Draws(_SMALL))
    return None if call is None else (entry.value, call)


def _tensors(result: Any) -> list[Tensor]:
    return [t for t in tree.leaves(result) if isinstance(t, Tensor)]


def _work(function: Any, call: Call) -> tuple[list[Node], bool]:
    """Return the nodes of the results that are ops; and whether the results need none: nothing was given, or
    nothing changes.
    """
    with no_grad(), lazily():
        tensors = call.mapped(tensor)
        given = {node_of(t) for t in _tensors((tensors.args, dict(tensors.kwargs)))}
        roots = [node_of(t) for t in _tensors(tensors.of(function))]
    marks = (Input, Const, Item)
    nodes = [n for n in topological(roots) if not isinstance(n.op, marks)]
    return nodes, not given or given.issuperset(roots)


def _host(nodes: Sequence[Node]) -> str:
    """Return the host calls among nodes, once they are written in real numbers, each with its reason."""
    found = {}
    inputs = [n for n in topological(nodes) if isinstance(n.op, Input)]
    for node in use_reals(Graph(inputs, nodes)).nodes:
        if isinstance(node.op, (Input, Const, Item)):
            continue
        reason = node.op.host_reason(*(i.aval for i in node.inputs))
        if reason:
            found[node.op.name] = reason
    return "; ".join(f"{name}: {reason}" for name, reason in found.items())


def _differentiable(function: Any, call: Call) -> str:
    """Return "yes", or why the first operand of floats has no gradient."""
    tensors = call.mapped(tensor)
    floats = (k for k, a in enumerate(tensors.args) if isinstance(a, Tensor) and a.dtype.is_inexact)
    place = next(floats, None)
    if place is None:
        return "no: takes no tensor of floats"

    def total(x: Tensor) -> Tensor:
        args = (*tensors.args[:place], x, *tensors.args[place + 1 :])
        parts = [t for t in _tensors(function(*args, **tensors.kwargs)) if t.dtype.is_inexact]
        if not parts:
            raise StratalError("its results are not floats")
        sums = [call_op("real", t).sum() if t.dtype.is_complex else t.sum() for t in parts]
        return sum(sums[1:], sums[0].astype("float32"))

    try:
        gradient = node_of(grad(total)(tensors.args[place]))
    except StratalError as error:
        return f"no: {error.rule}"
    if all(isinstance(n.op, Const) or n.op.name in _PLAIN for n in topological([gradient])):
        values = [np.asarray(n.op.value.array) for n in topological([gradient]) if isinstance(n.op, Const)]
        if not any(v.any() for v in values):
            return "no: zero everywhere"
    return "yes"
