"""The price of one kernel: what its tactic says it takes, or what a tuning record says it took.

No loops are built for it. A tactic that chooses among ways estimates the seconds of each on one core; where
there is one way, operations are counted from the members' expressions. Bytes are those of values in memory,
each touched once:

    seconds = launch + max(compute / threads, bytes / bandwidth)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from stratal.base import tuning
from stratal.base.cost import Cost
from stratal.base.log import collect
from stratal.base.price import Bound, KernelPrice
from stratal.base.target import LAUNCH_SECONDS, Target
from stratal.base.types import TupleType
from stratal.graph.node import Const, Input, Item, Node, items
from stratal.graph.partition import Group
from stratal.loops.compute import Compute
from stratal.loops.lowering import is_contraction
from stratal.schedule.expressions import work
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem, choose
from stratal.schedule.tactics.common import CHUNK_WORK

HOST_SECONDS: Final = 20e-6  # a call of Python, its operands wrapped
NEST_SHARE: Final = 0.5  # of the peak: what loops of attention and of transforms reach


def kernel_price(problem: Problem, threads: int) -> KernelPrice:
    """Return what the kernel of a group costs in one call, packing of operands included.

    The candidate is the one a compilation chooses. Decisions are not logged: nothing is compiled.
    """
    group, target = problem.group, problem.target
    name = "+".join(m.op.name for m in group.members[:6])
    cost = Cost(recorded_flops(group), *touched_bytes(problem))
    if group.kind == "body":
        return _estimated(name, "body", target, cost, cost.flops / (target.ghz * 1e9), threads)
    with collect():
        chosen = choose(problem)
    records = tuning.in_force()
    record = records.find(problem.digest) if len(records) else None
    if record is not None and record.algorithm == chosen.algorithm:
        bound = _estimated(name, "", target, cost, record.seconds, 1).bound
        return KernelPrice(name, str(chosen), bound, record.seconds, cost.bytes, basis="measured")
    return _estimated(name, str(chosen), target, cost, compute_seconds(problem, chosen), threads)


def host_price(node: Node) -> KernelPrice:
    """Return what a call of a node's reference costs: its operands and results move through memory."""
    results = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    nbytes = float(sum(i.aval.nbytes for i in node.inputs) + sum(t.nbytes for t in results))
    return KernelPrice(node.op.name, "host", "host", HOST_SECONDS + nbytes / 1e9, nbytes)


def copy_price(node: Node, target: Target, threads: int) -> KernelPrice:
    """Return what a copy of a value costs."""
    cost = Cost(0.0, float(node.aval.nbytes), float(node.aval.nbytes))
    return _estimated("copy", "copy", target, cost, 0.0, threads)


def _estimated(
    name: str, tactic: str, target: Target, cost: Cost, compute: float, threads: int
) -> KernelPrice:
    if compute * target.ghz * 1e9 * target.lanes(4) < 2 * CHUNK_WORK:
        threads = 1  # less than two chunks' worth of work
    compute /= threads
    memory = cost.bytes / target.bandwidth(cost.bytes, threads)
    taken = max(compute, memory)
    bound: Bound = "latency" if taken < LAUNCH_SECONDS else "compute" if compute >= memory else "memory"
    return KernelPrice(name, tactic, bound, LAUNCH_SECONDS + taken, cost.bytes)


def compute_seconds(problem: Problem, candidate: Candidate) -> float:
    """Return the seconds a candidate computes on one core.

    A sum of products is priced by its tactic, and what follows it by its operations.
    """
    members, target = problem.group.members, problem.target
    cycles = 0.0
    for node in members:
        compute = problem.lower_of(node)
        if not isinstance(compute, Compute):
            cycles += _flops(node) / (target.flops_per_cycle * NEST_SHARE)
        elif not (candidate.seconds and (problem.group.kind == "rows" or is_contraction(compute))):
            vectors = _iterations(compute) / target.lanes(node.aval.dtype.itemsize)
            cycles += vectors * work(list(compute.terms))
    return candidate.seconds + cycles / (target.ghz * 1e9)


def recorded_flops(group: Group) -> float:
    """Return the operations of a group, as the records of its members estimate them."""
    return sum(map(_flops, group.members))


def _flops(node: Node) -> float:
    types = [i.type for i in node.inputs]
    if any(isinstance(t, TupleType) for t in types):
        return 0.0
    return float(node.op.cost(*types).flops)  # type: ignore[arg-type]


def _iterations(compute: Compute) -> int:
    return math.prod(v.extent for v in (*compute.axes, *compute.reduce))


def touched_bytes(problem: Problem) -> tuple[float, float]:
    """Return the bytes a group reads of values in memory, and those it writes.

    A value is read as often as it has elements, or less where its readers see fewer: a slice, a gather.
    """
    group, members = problem.group, set(problem.group.members)
    read: dict[Node, int] = {}
    for node in group.members:
        for source, count in _sources(problem, node, members):
            read[source] = read.get(source, 0) + count
    read_bytes = sum(min(n, math.prod(s.aval.ints)) * s.dtype.itemsize for s, n in read.items())
    results = (r for m in group.members if problem.is_stored(m) for r in items(m))
    return float(read_bytes), float(sum(r.aval.nbytes for r in results))


def _sources(problem: Problem, node: Node, members: set[Node]) -> Iterator[tuple[Node, int]]:
    """Yield the values in memory that a member reads, through views, and how many elements of each."""
    lowered = problem.lower_of(node)
    most = _iterations(lowered) if isinstance(lowered, Compute) else None
    stack = [(i, most) for i in node.inputs]
    while stack:
        value, count = stack.pop()
        if value in members:
            continue
        size = math.prod(value.aval.ints)
        count = size if count is None else min(count, size)
        known = isinstance(value.op, (Input, Const, Item)) or problem.is_stored(value)
        view = None if known else problem.lower_of(value)
        if isinstance(view, Compute):
            read = dict.fromkeys(value.inputs[view.args.index(e.buffer)] for e in view.loads)
            stack += [(i, count) for i in read]
        elif value.shape != () or not isinstance(value.op, Const):
            yield value, count
