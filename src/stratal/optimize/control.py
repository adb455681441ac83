"""Passes over control flow: calls end, loops that do the same work become one, results nobody reads go."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stratal.base.source import merge
from stratal.base.types import TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, inline, substitute
from stratal.graph.node import Const, Item, Node, items, make, rebuild, take_item, topological
from stratal.ops.control.call import Call
from stratal.ops.control.cond import Cond
from stratal.ops.control.scan import Scan
from stratal.ops.control.while_ import While
from stratal.optimize.rewrite import with_roots


# -- known at compile time -----------------------------------------------------------------------------------
def resolve_item(node: Node) -> tuple[str, Node] | None:
    """Return the value of one result where the control flow is known: a constant predicate, no steps, one."""
    producer = node.inputs[0]
    op = producer.op
    if isinstance(op, Cond) and isinstance(producer.inputs[0].op, Const):
        taken = op.then if bool(producer.inputs[0].op.value.array) else op.otherwise
        return "cond_known", inline(taken, producer.inputs[1:])[node.op.index]  # type: ignore[attr-defined]
    if isinstance(op, Scan) and op.length == 0:
        return "scan_of_nothing", _unstarted(op, producer, node)
    if isinstance(op, Scan) and op.length == 1 and not op.dynamic_length and not op.effects:
        return "scan_of_one", _single_step(op, producer, node)
    return None


def _unstarted(op: Scan, producer: Node, node: Node) -> Node:
    index: int = node.op.index  # type: ignore[attr-defined]
    if index < op.num_carries:
        return producer.inputs[index]
    return Builder(node.where).full(node.aval, 0)


def _single_step(op: Scan, producer: Node, node: Node) -> Node:
    b = Builder(producer.where)
    parts = op.parts(producer.inputs)
    rows = [b.reshape(x, shape=x.shape[1:]) for x in parts.xs]
    zero = b.const(0, op.body.inputs[-1].dtype)
    index: int = node.op.index  # type: ignore[attr-defined]
    value = substitute(
        [op.body.outputs[index]],
        dict(zip(op.body.inputs, [*parts.carries, *rows, *parts.consts, zero], strict=True)),
    )[0]
    return value if index < op.num_carries else b.reshape(value, shape=node.shape)


# -- calls ---------------------------------------------------------------------------------------------------
def inline_calls(graph: Graph) -> Graph:
    """Put the body of every call in its place, those within bodies too: derivatives have been taken."""
    while any(isinstance(n.op, Call) for n in graph.nodes):
        found: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            inputs = [found[i][0] for i in node.inputs] if not isinstance(node.op, Item) else []
            if isinstance(node.op, Item):
                found[node] = [found[node.inputs[0]][node.op.index]]
            elif isinstance(node.op, Call):
                found[node] = inline(node.op.body, inputs)
            else:
                found[node] = items(rebuild(node, inputs))
        graph = with_roots(graph, [found[r][0] for r in graph.roots])
    return graph


# -- merging -------------------------------------------------------------------------------------------------
def merge_twins(graph: Graph, counts: Counter[str] | None = None) -> Graph:
    """Make one node of scans, conds and whiles that do the same work.

    before:  a = scan(body; c, x, k)        b = scan(body + more results; c, x, k)        (what reverse mode
    leaves) after:   b = scan(body + more results; c, x, k), and every result of a is one of b

    Also where the operands of one are a leading part of the other's, by role: that is what forward mode
    leaves. Merging never makes a node depend on itself: the longer one must not need the shorter one's
    results.
    """
    while True:
        replaced = _one_round(graph)
        if not replaced:
            return graph
        if counts is not None:
            counts["merge_twins"] += len(replaced)
        items_of = (n for n in graph.nodes if isinstance(n.op, Item) and n.inputs[0] in replaced)
        by_item = {n: replaced[n.inputs[0]][n.op.index] for n in items_of}  # type: ignore[attr-defined]
        graph = with_roots(graph, substitute(graph.roots, by_item))


def _one_round(graph: Graph) -> dict[Node, list[Node]]:
    """Return for some nodes the results that replace theirs. One pair per group of like nodes."""
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        key = _kind(node)
        if key is not None:
            groups.setdefault(key, []).append(node)
    for members in groups.values():
        ordered = sorted(members, key=_size)
        for k, short in enumerate(ordered):
            for long in reversed(ordered[k + 1 :]):
                found = _merged(short, long)
                if found is not None and (short.inputs == long.inputs or not _needs(long, short)):
                    return found
    return {}


def _size(node: Node) -> tuple[int, int]:
    return len(node.inputs), len(node.type.elements) if isinstance(node.type, TupleType) else 1


def _kind(node: Node) -> Any:
    """Return what two nodes must share to be worth comparing, or None for other ops."""
    op = node.op
    if isinstance(op, Scan):
        return "scan", op.length, op.reverse, node.inputs[-1] if op.dynamic_length else None
    if isinstance(op, Cond):
        return "cond", node.inputs[0]
    return ("while",) if isinstance(op, While) else None


def _needs(node: Node, other: Node) -> bool:
    return other in topological([node], stop=lambda n: n is other)


def _merged(short: Node, long: Node) -> dict[Node, list[Node]] | None:
    if isinstance(short.op, Scan):
        return _merged_scans(short, long)
    if isinstance(short.op, Cond):
        return _merged_conds(short, long)
    return _merged_whiles(short, long)


def _is_prefix(short: Sequence[Node], long: Sequence[Node]) -> bool:
    return len(short) <= len(long) and all(a is b for a, b in zip(short, long, strict=False))


def _merged_scans(short: Node, long: Node) -> dict[Node, list[Node]] | None:
    a, b = short.op, long.op
    assert isinstance(a, Scan) and isinstance(b, Scan)
    mine, theirs = a.parts(short.inputs), b.parts(long.inputs)
    if not all(map(_is_prefix, mine, theirs)):
        return None
    given = b.parts(b.body.inputs)
    arguments = [n for own, part in zip(mine, given, strict=True) for n in part[: len(own)]]
    outputs = inline(a.body, [*arguments, b.body.inputs[-1]])
    if outputs[: a.num_carries] != list(b.body.outputs[: a.num_carries]):
        return None
    rows = list(b.body.outputs[b.num_carries :])
    extra = list(dict.fromkeys(y for y in outputs[a.num_carries :] if y not in rows))
    both = long
    if extra:
        body = Graph(b.body.inputs, [*b.body.outputs, *extra], name=b.body.name)
        both = make(dataclasses.replace(b, body=body), *long.inputs, where=merge(long.where, short.where))
    rows += extra
    results = items(both)
    at = [*range(a.num_carries), *(b.num_carries + rows.index(y) for y in outputs[a.num_carries :])]
    found = {short: [results[k] for k in at]}
    if both is not long:
        found[long] = results[: len(b.body.outputs)]
    return found


def _merged_conds(short: Node, long: Node) -> dict[Node, list[Node]] | None:
    a, b = short.op, long.op
    assert isinstance(a, Cond) and isinstance(b, Cond)
    if not _is_prefix(short.inputs, long.inputs):
        return None
    count = len(short.inputs) - 1
    matched = zip(_sides(a), _sides(b), strict=True)
    mine = list(zip(*(inline(r, s.inputs[:count]) for r, s in matched), strict=True))
    pairs = list(zip(b.then.outputs, b.otherwise.outputs, strict=True))
    extra = list(dict.fromkeys(p for p in mine if p not in pairs))
    both = long
    if extra:
        sides = [
            Graph(r.inputs, [*r.outputs, *(pair[k] for pair in extra)], name=r.name)
            for k, r in enumerate(_sides(b))
        ]
        both = make(Cond(*sides), *long.inputs, where=merge(long.where, short.where))
    pairs += extra
    results = items(both)
    found = {short: [results[pairs.index(p)] for p in mine]}
    if both is not long:
        found[long] = results[: len(b.then.outputs)]
    return found


def _sides(op: Cond) -> tuple[Graph, Graph]:
    return op.then, op.otherwise


def _merged_whiles(short: Node, long: Node) -> dict[Node, list[Node]] | None:
    a, b = short.op, long.op
    assert isinstance(a, While) and isinstance(b, While)
    n, c = a.num_carries, b.num_carries
    if not _is_prefix(short.inputs[:n], long.inputs[:c]) or not _is_prefix(short.inputs[n:], long.inputs[c:]):
        return None

    def shared(inputs: Sequence[Node]) -> list[Node]:
        return [*inputs[:n], *inputs[c : c + len(short.inputs) - n]]

    if inline(a.condition, shared(b.condition.inputs)) != list(b.condition.outputs):
        return None
    if inline(a.body, shared(b.body.inputs)) != list(b.body.outputs[:n]):
        return None
    return {short: items(long)[:n]}


# -- trimming ------------------------------------------------------------------------------------------------
def trim_control(graph: Graph, counts: Counter[str] | None = None) -> Graph:
    """Remove results nobody reads from control flow, and then the operands nothing needs any more.

    before:  (c1, c2, y1, y2) = scan(...), of which y2 is read     after:  (c1, y2) = scan(...), if y2 needs
    c1 only

    A region with effects keeps all its results.
    """
    read: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Item):
            read.setdefault(node.inputs[0], set()).add(node.op.index)
    new: dict[Node, Node] = {}
    trimmed = 0
    for node, indices in read.items():
        if _kind(node) is None or node.op.effects:
            continue
        found = _trimmed(node, indices)
        if found is not None:
            trimmed += 1
            new |= {take_item(node, k): value for k, value in found.items()}
    if not new:
        return graph
    if counts is not None:
        counts["trim_control"] += trimmed
    return with_roots(graph, _substitute_in_order(graph, new))


def _substitute_in_order(graph: Graph, new: dict[Node, Node]) -> list[Node]:
    """Replace items; replacements may themselves stand on nodes that are replaced."""
    final: dict[Node, Node] = {}

    def moved(root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in final:
                stack.pop()
                continue
            source = new.get(node)
            needs = (source,) if source is not None else node.inputs
            waiting = [i for i in needs if i not in final]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            inputs = [final[i] for i in needs]
            final[node] = inputs[0] if source is not None else rebuild(node, inputs)
            stack.pop()
        return final[root]

    return [moved(root) for root in graph.roots]


def _trimmed(node: Node, indices: set[int]) -> dict[int, Node] | None:
    """Return the values that replace the results in `indices`, or None where nothing is to be gained."""
    if isinstance(node.op, Scan):
        return _trimmed_scan(node, node.op, indices)
    if isinstance(node.op, Cond):
        return _trimmed_cond(node, node.op, indices)
    return None


def _read_by(outputs: Iterable[Node]) -> set[Node]:
    return set(topological(outputs))


def _trimmed_scan(node: Node, op: Scan, indices: set[int]) -> dict[int, Node] | None:
    body, c = op.body, op.num_carries
    own = op.parts(body.inputs)
    fixed = {k for k in range(c) if body.outputs[k] is own.carries[k]}  # a carry that never changes
    kept = set(indices)
    while True:  # a carry stays if its value, or what its next value feeds, is read
        needed = _read_by(body.outputs[k] for k in kept)
        grown = kept | {k for k in range(c) if own.carries[k] in needed}
        if grown == kept:
            break
        kept = grown
    carries = [k for k in range(c) if k in kept and k not in fixed]
    outputs = [k for k in range(c, len(body.outputs)) if k in kept]
    xs = [k for k, n in enumerate(own.xs) if n in needed]
    consts = [k for k, n in enumerate(own.consts) if n in needed]
    still = [k for k in sorted(fixed) if own.carries[k] in needed]
    before = (c, len(body.outputs) - c, op.num_xs, len(own.consts))
    if before == tuple(map(len, (carries, outputs, xs, consts))):
        return None
    new_body = Graph(
        [
            *(own.carries[k] for k in carries), *(own.xs[k] for k in xs),
            *(own.carries[k] for k in still), *(own.consts[k] for k in consts), body.inputs[-1],
        ],
        [body.outputs[k] for k in (*carries, *outputs)],
        name=body.name,
    )  # fmt: skip
    given = op.parts(node.inputs)
    operands = [
        *(given.carries[k] for k in carries), *(given.xs[k] for k in xs),
        *(given.carries[k] for k in still), *(given.consts[k] for k in consts),
        *node.inputs[len(body.inputs) - 1 :],
    ]  # fmt: skip
    new = Scan(new_body, op.length, len(carries), len(xs), op.reverse, op.dynamic_length)
    results = dict(zip((*carries, *outputs), items(make(new, *operands, where=node.where)), strict=True))
    results |= {k: given.carries[k] for k in fixed}
    return {k: results[k] for k in indices}


def _trimmed_cond(node: Node, op: Cond, indices: set[int]) -> dict[int, Node] | None:
    kept = sorted(indices)
    outputs = [[r.outputs[k] for k in kept] for r in _sides(op)]
    needed = [_read_by(found) for found in outputs]
    count = len(op.then.inputs)
    used = [k for k in range(count) if any(r.inputs[k] in n for r, n in zip(_sides(op), needed, strict=True))]
    if len(kept) == len(op.then.outputs) and len(used) == count:
        return None
    sides = [
        Graph([r.inputs[k] for k in used], found, name=r.name)
        for r, found in zip(_sides(op), outputs, strict=True)
    ]
    operands = [node.inputs[k + 1] for k in used]
    results = items(make(Cond(*sides), node.inputs[0], *operands, where=node.where))
    return dict(zip(kept, results, strict=True))
