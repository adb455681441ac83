"""The price of one kernel: what its tactic says it takes, or what a tuning record says it took.

No loops are built for it. Tactics that choose among ways estimate the seconds of each on one core; where
there is one way, operations are counted from the members' expressions. Bytes are those of values in memory,
each touched once. Arithmetic and traffic overlap, less so where both take as long:

    seconds = start + latency of the members + (compute^4 + memory^4)^(1/4)

Constants are those that fit `python -m benchmarks price` best, on one machine of the class `avx512`; what
differs between machines comes from the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from stratal.base import tuning
from stratal.base.cost import Cost
from stratal.base.log import collect
from stratal.base.price import Bound, KernelPrice
from stratal.base.target import Target
from stratal.base.types import TupleType
from stratal.graph.node import Const, Input, Item, Node, items
from stratal.graph.partition import Group
from stratal.loops import index
from stratal.loops.compute import Compute, fresh_axes
from stratal.loops.expr import Load, Var, loads, walk
from stratal.loops.lowering import is_contraction
from stratal.schedule.expressions import work
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem, choose
from stratal.schedule.tactics.common import CHUNK_WORK

HOST_SECONDS: Final = 20e-6  # a call of Python, its operands wrapped
NEST_SHARE: Final = 0.55  # of the peak: what loops of attention and of transforms reach
PER_CYCLE: Final = 2  # vector operations of element-wise code
SCATTERED: Final = 3  # cycles of an element that is read apart from its neighbours
FEW: Final = 1 << 10  # elements that stay in the first cache, scattered or not
OVERLAP: Final = 4
FEW_COLUMNS: Final = 1 << 12
TILED: Final = 4  # float32 operations a lane does in a cycle, as estimates of register tiles assume
WEIGHTS: Final = 1.3  # of their estimate is what gradients of filters by tiles take, and
DIRECT: Final = 1.15  # of theirs what register tiles take: the last of the threads ends later


class Caches(NamedTuple):
    """What a kernel finds in caches: `start_seconds` until its code runs and the addresses of its operands
    are there, `latency` in cycles per operation of the first element, `hold_all` whether operands are there,
    `in_pieces` whether threads read a few lines of memory here and there.
    """

    start_seconds: float
    latency: float
    hold_all: bool = False
    in_pieces: bool = False


COLD: Final = Caches(0.6e-6, 16.0)
WARM: Final = Caches(0.1e-6, 2.0, hold_all=True)


def is_cold(target: Target, touched: float) -> bool:
    """Return whether caches hold less than the bytes that a program touches, with what others leave there."""
    return touched > target.l3_bytes / 2


def kernel_price(problem: Problem, threads: int, *, cold: bool = True) -> KernelPrice:
    """Return what the kernel of a group costs in one call, packing of operands included.

    The candidate is the one a compilation chooses. Decisions are not logged: nothing is compiled. A kernel is
    `cold` in a program that touches more than caches hold (`is_cold`): its code and operands are fetched.
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
    taken = compute_seconds(problem, chosen)
    latency = latency_seconds(problem, COLD.latency if cold else WARM.latency)
    if not cold:
        return _estimated(name, str(chosen), target, cost, taken, threads, latency, WARM)
    where = COLD._replace(in_pieces=_reads_in_pieces(group))
    return _estimated(name, str(chosen), target, cost, taken, threads, latency, where)


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
    name: str, tactic: str, target: Target, cost: Cost, compute: float, threads: int, latency: float = 0.0,
    caches: Caches = COLD,
) -> KernelPrice:  # fmt: skip
    if compute * target.ghz * 1e9 * target.lanes(4) < 2 * CHUNK_WORK:
        threads = 1  # less than two chunks' worth of work
    compute /= threads
    memory = memory_seconds(target, cost, threads, caches)
    taken = latency + (compute**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    bound: Bound = "compute" if compute >= memory else "memory"
    if taken < caches.start_seconds or latency > max(compute, memory):
        bound = "latency"
    return KernelPrice(name, tactic, bound, caches.start_seconds + taken, cost.bytes)


def memory_seconds(target: Target, cost: Cost, threads: int, caches: Caches) -> float:
    """Return the seconds that a kernel's traffic takes.

    What fits the caches of its threads comes from there. Of more, the part of what is read that the shared
    cache holds was made not long before; what is written goes to memory. Where each thread reads a few lines
    of memory here and there, the shared cache is no faster than memory.
    """
    cached = target.cache_gbps * 1e9 * threads / 2
    if caches.hold_all or cost.bytes <= target.l2_bytes * threads / 2:
        return cost.bytes / cached
    share = 0.0 if caches.in_pieces else max(0.0, 1 - cost.read_bytes / target.l3_bytes)
    memory = max(target.memory_gbps, target.core_gbps) * 1e9
    return cost.read_bytes * (share / cached + (1 - share) / memory) + cost.written_bytes / memory


def compute_seconds(problem: Problem, candidate: Candidate) -> float:
    """Return the seconds a candidate computes on one core.

    A sum of products, and reductions along rows, are priced by their tactics, all else by its operations.
    """
    group, target = problem.group, problem.target
    cycles = float(SCATTERED * scattered_elements(problem))
    for node in group.members:
        compute = problem.lower_of(node)
        if not isinstance(compute, Compute):
            cycles += _flops(node) / (target.flops_per_cycle * NEST_SHARE)
        elif not _is_priced(problem, compute):
            vectors = max(1.0, _iterations(compute) / target.lanes(node.aval.dtype.itemsize))
            cycles += vectors * _operations(compute) / PER_CYCLE
    return _by_tactic(problem, candidate) + cycles / (target.ghz * 1e9)


def _by_tactic(problem: Problem, candidate: Candidate) -> float:
    """Return what a tactic estimates, its products at the target's rate."""
    target = problem.target
    if problem.group.kind != "contract":
        return candidate.seconds
    assumed = TILED * target.lanes(4) * target.ghz * 1e9
    slower = max(0.0, 1 / target.peak_flops() - 1 / assumed)
    taken = candidate.seconds + slower * candidate.operations
    if candidate.algorithm == "winograd of weights":
        return WEIGHTS * taken
    return taken if candidate.algorithm.startswith("winograd") else DIRECT * taken


def latency_seconds(problem: Problem, cycles: float) -> float:
    """Return the seconds in which the first element of a group goes through all of its operations."""
    computes = (problem.lower_of(m) for m in problem.group.members)
    chain = sum(
        _operations(c)
        for c in computes
        if isinstance(c, Compute) and not (problem.group.kind == "contract" and is_contraction(c))
    )
    return cycles * chain / (problem.target.ghz * 1e9)


def _reads_in_pieces(group: Group) -> bool:
    """Return whether a kernel sums down to a few columns: each thread reads its own piece of every row."""
    kept = math.prod(n for k, n in enumerate(group.space) if k not in group.reduced)
    return group.kind == "columns" and 0 in group.reduced and kept < FEW_COLUMNS


def _is_priced(problem: Problem, compute: Compute) -> bool:
    return problem.group.kind == "rows" or (problem.group.kind == "contract" and is_contraction(compute))


def _operations(compute: Compute) -> int:
    return work(list(compute.terms)) + (compute.combiner is not None)


def scattered_elements(problem: Problem) -> int:
    """Return how many elements an element-wise group reads apart from their neighbours: those that lie next
    to each other in a result lie further apart in an operand, as in a transpose.
    """
    if problem.group.kind != "pointwise":
        return 0
    x, found = problem.expressions(), set[Load]()
    for result in x.results:
        axes = fresh_axes(result.aval.ints)
        steps = problem.strides_of(result)
        inner = min((k for k, v in enumerate(axes) if v.extent > 1), key=steps.__getitem__, default=None)
        if inner is not None:
            read = loads([x.at(result, tuple(axes))])
            found.update(e for e in read if index.stride_of(index.offset(e), axes[inner]) not in (0, 1))
    large = (e for e in found if e.buffer.size >= FEW)
    return sum(min(e.buffer.size, math.prod(v.extent for v in _axes_of(e))) for e in large)


def _axes_of(load: Load) -> set[Var]:
    return {e for e in walk(load.indices) if isinstance(e, Var)}


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
