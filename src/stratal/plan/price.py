"""The price of a graph: fused and scheduled as a compilation would, without loops, code or a plan of memory.

    price(graph, target)                 seconds, bytes and kernels of one run

    pricer = Pricer(target)              for a search: what was priced once is looked up
    pricer(graph)                        the same
    pricer.compare(graph, {old: new})    the kernels around some nodes, before and after others replace them

Kernels of equal structure are priced once, and so are equal graphs. A comparison cuts a graph of a few dozen
nodes out of the whole: it costs a millisecond where the whole takes a hundred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from stratal.base import fallback, settings
from stratal.base.log import collect
from stratal.base.price import KernelPrice, Price
from stratal.base.target import Target
from stratal.base.types import TensorType, TupleType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Item, Node, graph_input, is_frozen, items, owner
from stratal.graph.partition import Group
from stratal.loops.compute import Compute, Region
from stratal.optimize.layout import Order, choose_orders
from stratal.optimize.prologue import decided_alone, hoist
from stratal.plan.partitioning import Lowerings, cut_into_kernels
from stratal.schedule.invariants import made_of
from stratal.schedule.pricing import copy_price, host_price, is_cold, kernel_price
from stratal.schedule.program import Planned
from stratal.schedule.select import Problem

REACH: Final = 16  # nodes around replaced ones that a comparison looks at, towards operands and towards users


def price(graph: Graph, target: Target) -> Price:
    """Return what a graph costs on a target, with the settings and tuning records in force.

    Takes what `compiler.prepare` returns, or any graph a rewrite makes of that: ops are priced as they stand.
    """
    return Pricer(target)(graph)


class Comparison(NamedTuple):
    """The kernels around some nodes, before and after others replace them."""

    before: Price
    after: Price

    @property
    def saved_seconds(self) -> float:
        return self.before.seconds - self.after.seconds

    def __str__(self) -> str:
        return f"before: {self.before}\nafter: {self.after}"


class Pricer:
    """Prices graphs for one target, and remembers what it priced."""

    def __init__(self, target: Target, threads: int | None = None) -> None:
        self.target: Final = target
        self.threads: Final = threads or settings.threads.value
        self.lower_of: Final = Lowerings()
        self._kernels: dict[object, KernelPrice] = {}
        self._graphs: dict[object, tuple[Price, bool]] = {}
        self._around: tuple[Graph, Surroundings] | None = None

    def __call__(self, graph: Graph) -> Price:
        """Return the price of one run of a graph; what frozen inputs decide alone is computed before.

        Where the graph touches less than caches hold, kernels find their operands there.
        """
        return self._priced(graph, {})[0]

    def compare(self, graph: Graph, replaced: Mapping[Node, Node]) -> Comparison:
        """Return the prices around nodes of a graph, and with others in their places.

        The new nodes are over nodes of the graph. What is further away than `REACH` nodes stays as it is.
        """
        if self._around is None or self._around[0] is not graph:
            with collect():
                cold = self._is_cold(self._cut(graph, {}))
            self._around = graph, Surroundings(graph, self.lower_of, self.target, cold)
        cut, cold = self._around[1].cut(replaced), self._around[1].cold
        before, after = (self._priced(g, cut.orders, cold)[0] for g in (cut.before, cut.after))
        return Comparison(before, after)

    def _priced(
        self, graph: Graph, orders: Mapping[Node, Order], cold: bool | None = None
    ) -> tuple[Price, bool]:
        """Return the price of a graph, and whether it touches more than caches hold, unless that is known of
        the whole that it is a piece of.
        """
        key = _structure(graph, orders), cold
        found = self._graphs.get(key)
        if found is None:
            with collect():
                found = self._graphs[key] = self._of_graph(graph, orders, cold)
        return found

    def _of_graph(
        self, graph: Graph, orders: Mapping[Node, Order], cold: bool | None
    ) -> tuple[Price, bool]:
        planned = self._cut(graph, orders)
        states = {state for state, _ in planned.graph.updates}
        inputs = frozenset(n for n in planned.graph.inputs if is_frozen(n) and n not in states)
        frozen = made_of(inputs, planned.graph, planned.partition)
        if cold is None:
            cold = self._is_cold(planned)
        groups = planned.partition.groups
        return Price.of(k for g in groups for k in self._of_group(g, planned, frozen, cold)), cold

    def _cut(self, graph: Graph, orders: Mapping[Node, Order]) -> Planned:
        """Return the kernels of a graph, without what frozen inputs decide alone."""
        rest = hoist(graph, self.lower_of).rest if any(map(is_frozen, graph.inputs)) else graph
        given = dict(zip(rest.inputs, [orders.get(i) for i in graph.inputs], strict=False))
        return cut_into_kernels(
            rest, self.lower_of, self.target, given={i: order for i, order in given.items() if order}
        )

    def _is_cold(self, planned: Planned) -> bool:
        stored = (n for n in planned.partition.stored if isinstance(n.type, TensorType))
        return is_cold(self.target, sum(n.aval.nbytes for n in (*planned.graph.inputs, *stored)))

    def _of_group(
        self, group: Group, planned: Planned, frozen: frozenset[Node], cold: bool
    ) -> Sequence[KernelPrice]:
        node = group.members[0]
        if group.kind == "bytes":
            return ()
        if group.kind == "alias":
            return (copy_price(node, self.target, self.threads),)
        if group.kind == "host":
            return (host_price(node),)
        if group.kind == "region":
            return self._of_region(node, cold)
        if frozen and frozen.issuperset(group.members):
            return ()
        stored = planned.partition.stored.__contains__
        problem = Problem(group, self.lower_of, planned.strides, stored, self.target, frozen)
        held = tuple(i in frozen for member in group.members for i in member.inputs) if frozen else ()
        key = problem.structure()[0], fallback.scalar(group.members), cold, held
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = kernel_price(problem, self.threads, cold=cold)
        return (found,)

    def _of_region(self, node: Node, cold: bool) -> Sequence[KernelPrice]:
        """Return the kernels of control flow: of arms the dearest, of a loop as often as it turns at most."""
        lowered = self.lower_of(node)
        assert isinstance(lowered, Region)
        regions = [g for g in node.op.attributes.values() if isinstance(g, Graph)]
        bodies = [self._priced(g, {}, cold)[0] for g in regions]
        if lowered.kind == "cond":
            return max(bodies, key=lambda p: p.seconds).why
        turns = node.op.attributes.get("length", 1)
        return [k for body in bodies for k in body.times(turns).why]


def _structure(graph: Graph, orders: Mapping[Node, Order]) -> object:
    """Return what decides the price of a graph: ops and types, not which inputs and whose lines."""
    number: dict[Node, int] = {}
    rows: list[object] = []
    for node in (*graph.inputs, *graph.nodes):
        if node in number:
            continue
        number[node] = len(number)
        if isinstance(node.op, Input):
            rows.append((node.type, is_frozen(node), orders.get(node)))
        else:
            rows.append((node.op, *(number[i] for i in node.inputs)))
    rows.append(tuple(number[r] for r in graph.roots))
    rows.append(tuple(number[s] for s, _ in graph.updates))
    return tuple(rows)


def _operands(node: Node) -> tuple[Node, ...]:
    return node.inputs


class Cut(NamedTuple):
    """A piece of a graph before and after a replacement; `orders` are those of inputs not row-major."""

    before: Graph
    after: Graph
    orders: Mapping[Node, Order]


class Surroundings:
    """A graph with what stands around each node: users, axis orders, what frozen inputs decide."""

    def __init__(self, graph: Graph, lower_of: Lowerings, target: Target, cold: bool) -> None:
        self.graph = graph
        self.cold = cold
        self.lower_of = lower_of
        self.target = target
        self.nodes = frozenset(graph.nodes)
        self.roots = frozenset(graph.roots)
        self.users: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for operand in dict.fromkeys(node.inputs):
                self.users.setdefault(operand, []).append(node)

    @cached_property
    def orders(self) -> Mapping[Node, Order]:
        """The axis orders of values that are not row-major."""
        with collect():
            return choose_orders(self.graph, self.lower_of, self.target)

    @cached_property
    def frozen(self) -> set[Node]:
        """The values that frozen inputs decide alone."""
        return decided_alone(self.graph) if any(map(is_frozen, self.graph.inputs)) else set()

    def cut(self, replaced: Mapping[Node, Node]) -> Cut:
        """Return the piece around nodes that are replaced."""
        new = self._new(replaced.values())
        operands = {i for node in new for i in node.inputs if i in self.nodes}
        operands.update(n for n in replaced.values() if n in self.nodes)
        dying = self._dying(replaced, operands)
        old = self._reached(dying, _operands, operands, lambda n: True)
        plain = [n for n in operands if self._is_plain(n)]
        near = [*operands, *self._reached(plain, _operands, (), self._is_plain)]
        users = self._reached([*replaced, *old], lambda n: self.users.get(n, ()), (), self._is_plain)
        inside = {n for n in self._whole({*old, *near, *users}) if not isinstance(n.op, Input)}
        fresh: dict[Node, Node] = {}
        orders: dict[Node, Order] = {}
        read = (i for node in [*self._sorted(inside), *new] for i in node.inputs)
        for node in dict.fromkeys(read):
            if node in inside or node not in self.nodes or isinstance(node.op, Const):
                continue
            fresh[node] = made = graph_input("x", node.aval, frozen=node in self.frozen)
            if node in self.orders:
                orders[made] = self.orders[node]
        results = [n for n in self._sorted(inside) if self._leaves(n, inside)]
        roots = substitute(results, fresh)
        images = dict(zip(replaced, substitute(replaced.values(), fresh), strict=True))
        inputs = list(fresh.values())
        return Cut(Graph(inputs, roots), Graph(inputs, substitute(results, {**fresh, **images})), orders)

    def _dying(self, replaced: Iterable[Node], kept: Container[Node]) -> list[Node]:
        """Return nodes that are replaced, but for those kept, and what nothing but them needs."""
        found = dict.fromkeys(n for n in replaced if n not in kept)
        pending = {i for n in found for i in n.inputs}
        while pending:
            node = max(pending, key=self._number.__getitem__)  # after all that reads it
            pending.remove(node)
            needed = node in self.roots or any(u not in found for u in self.users[node])
            if node not in found and node not in kept and not needed and not isinstance(node.op, Input):
                found[node] = None
                pending.update(node.inputs)
        return list(found)

    def _leaves(self, node: Node, inside: set[Node]) -> bool:
        """Return whether a value of a piece is read by others than the piece."""
        if isinstance(node.type, TupleType) or isinstance(node.op, Const):
            return False
        return node in self.roots or any(u not in inside for u in self.users.get(node, ()))

    def _sorted(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self._number.__getitem__)

    @cached_property
    def _number(self) -> Mapping[Node, int]:
        return {node: k for k, node in enumerate(self.graph.nodes)}

    def _new(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that are not in the graph, operands last."""
        found: dict[Node, None] = {}
        stack = [n for n in nodes if n not in self.nodes]
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = None
                stack += [i for i in node.inputs if i not in self.nodes]
        return list(found)

    def _reached(
        self, start: Iterable[Node], following: Callable[[Node], Iterable[Node]], stop: Container[Node],
        through: Callable[[Node], bool],
    ) -> list[Node]:  # fmt: skip
        """Return some nodes and up to `REACH` others that are reached from them, past those let `through`."""
        found = dict.fromkeys(start)
        pending = deque(found)
        most = len(found) + REACH
        while pending:
            for other in following(pending.popleft()):
                if other not in found and other not in stop and len(found) < most:
                    found[other] = None
                    if through(other):
                        pending.append(other)
        return list(found)

    def _is_plain(self, node: Node) -> bool:
        """Return whether kernels reach through a node: it computes element by element."""
        if isinstance(node.op, (Input, Const, Item)):
            return False
        lowered = self.lower_of(node)
        return isinstance(lowered, Compute) and lowered.combiner is None

    def _whole(self, nodes: set[Node]) -> set[Node]:
        """Return a piece with all results of the nodes that have several."""
        makers = {owner(n) for n in nodes if isinstance(n.op, Item) or isinstance(n.type, TupleType)}
        more = {item for maker in makers for item in items(maker) if item in self.nodes}
        return nodes | makers | more
