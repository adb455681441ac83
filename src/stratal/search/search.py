"""Cost-based search: proved rules applied to a graph wherever prices say that it pays.

    search(graph, rules, price)  ->  Found(graph, applied, rejected, prices)

What only a slice reads is computed from slices. Then, from the results towards the inputs, each node is a
site whose expression is rewritten step by step: the expression that computes least so far is taken further,
through ones that compute a little more, and none is looked at twice (backtracking with a memo and a bound, as
TASO, Jia et al., 2019). The best few get a price, and the cheapest replaces the site if it costs less. Then
results of one kind that read one value are computed as one, where that is cheaper. That is repeated until
nothing changes. Equal expressions, such as those of equal blocks, are searched and priced once. The result
depends on graph, rules and prices, unless its time ends a search.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from stratal.discover.rules import FoundRule
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Item, Node, topological
from stratal.optimize.rewrite import with_roots
from stratal.search.found import (
    REWRITTEN,
    Found,
    LocalPrice,
    Replaced,
    Rewrite,
    Step,
    Verdicts,
    WholePrice,
    boundary,
    piece_of,
    rewritten,
    structure,
)
from stratal.search.joins import joins
from stratal.search.moves import Context, Effort, Region, effort, next_terms
from stratal.search.rule_set import Match, RuleSet
from stratal.search.slices import pushed_slices

MARGIN: Final = 1e-6  # a rewrite pays if it saves this share of what stands around it,
JOIN_MARGIN: Final = 0.005  # or this, where as much is computed: estimates are not closer
EQUAL: Final = 1e-3  # of two that pay and differ by less, the one with less to compute is better
SURE: Final = 0.1  # what saves this share of what stands around it is not weighed against the whole
NEARLY: Final = 0.02  # estimates that differ by less say little against a measurement
BOUND: Final = 1.25  # what computes so much more than a site's expression is not taken further
MOST_WEIGHED: Final = 3  # expressions of a site that get a price
DEPTH: Final = 6  # steps from an expression to what replaces it
ROUNDS: Final = 4
USUAL: Final = 32  # expressions of a site that are looked at
MOST_REJECTED: Final = 20
Ways = list[tuple[Replaced, tuple[Step, ...]]]


class Limit(NamedTuple):
    """How far a search goes: expressions priced in all, looked at per site, and seconds of a processor."""

    priced: int = 2000
    of_site: int = USUAL
    seconds: float = float("inf")


def no_verdict(key: str) -> None:
    """Know of no measurement."""


def search(
    graph: Graph, rules: Sequence[FoundRule], price: WholePrice, limit: Limit | None = None, *,
    real: bool = True, compare: LocalPrice | None = None, verdicts: Verdicts = no_verdict
) -> Found:  # fmt: skip
    """Return a graph of the same value that costs less, and why.

    `real` allows rules of real arithmetic beside those that hold to the bit. `compare` prices what stands
    around nodes that are replaced, the whole graph where it is None. What `verdicts` says was measured of a
    rewrite decides, whatever its prices are.
    """
    started = _Search(RuleSet(rules, real=real), price, limit or Limit(), compare, verdicts)
    return started.run(graph)


class _Search:
    def __init__(
        self, rules: RuleSet, price: WholePrice, limit: Limit, compare: LocalPrice | None, verdicts: Verdicts
    ) -> None:
        self.rules, self.price, self.limit, self.verdicts = rules, price, limit, verdicts
        self.compare = compare or self.whole
        self.deadline = time.thread_time() + limit.seconds
        self.priced = 0
        self.applied: list[Rewrite] = []
        self.rejected: dict[frozenset[Node], Rewrite] = {}  # by what they would replace, the cheapest of each
        self.first = True  # of the rounds: later ones mostly weigh the ways back
        self._terms: dict[object, tuple[list[Node], list[tuple[Node, tuple[Step, ...]]]]] = {}
        self._weighed: dict[object, tuple[Rewrite, float]] = {}

    def whole(self, graph: Graph, replaced: Replaced) -> tuple[float, float]:
        """Price a graph as a whole, before and after."""
        return self.price(graph), self.price(with_roots(graph, substitute(graph.roots, replaced)))

    @property
    def spent(self) -> bool:
        return self.priced >= self.limit.priced or time.thread_time() >= self.deadline

    def run(self, graph: Graph) -> Found:
        for number in range(ROUNDS):
            self.first = number == 0
            start = graph
            for kind in (self.sliced, self.sites, self.joined):
                graph = self.applied_to(graph, kind(Context(graph)))
            if graph is start or self.spent:
                break
        taken = {node for r in self.applied for node in r.replaced}
        rejected = {_kind(r): r for r in self.rejected.values() if taken.isdisjoint(r.replaced)}
        left = sorted(rejected.values(), key=_loss)
        return Found(graph, tuple(self.applied), tuple(left[:MOST_REJECTED]), self.priced, not self.spent)

    def applied_to(self, graph: Graph, chosen: Sequence[Rewrite]) -> Graph:
        """Return a graph rewritten; of two that touch, what saves more is applied.

        Unless each by itself saves much, together they must make the whole cheaper; where they do not, those
        of each kind must by themselves.
        """
        ordered = sorted(chosen, key=_loss)
        moved, applied = rewritten(graph, ordered)
        sure = all(r.measured or r.seconds < (1 - SURE) * r.before_seconds for r in applied)
        if sure or self.price(moved) < (known := self.price(graph)):
            self.applied += applied
            return moved
        kept: list[Rewrite] = []
        for _, alike in itertools.groupby(sorted(ordered, key=_kind), _kind):
            some = list(alike)
            moved, applied = rewritten(graph, [*kept, *some])
            cost = self.price(moved)
            if cost < known:
                kept, known = applied, cost
            else:
                self.note(some[0]._replace(refused="the whole graph is not cheaper"))
        self.applied += kept
        return rewritten(graph, kept)[0]

    # -- parts ---------------------------------------------------------------------------------------------
    def sliced(self, context: Context) -> list[Rewrite]:
        """Return the slices that pay where they are computed from slices."""
        found = (self.best(context, [way]) for way in pushed_slices(context, self.rules.axes))
        return [best for best in found if best is not None]

    # -- one expression ------------------------------------------------------------------------------------
    def sites(self, context: Context) -> list[Rewrite]:
        """Return the rewrites of single values that pay; none reaches into another."""
        found: list[Rewrite] = []
        covered: set[Node] = set()
        for node in reversed(context.graph.nodes):
            if self.spent:
                break
            if node in covered or isinstance(node.op, (Input, Const, Item)) or node in context.frozen:
                continue
            region = context.region(node)
            if not self.first and sum(map(context.starts_kernel, region.nodes)) < 2:
                continue  # what belongs to one kernel was taken as far as that goes
            best = self.best_of(node, region, context)
            if best is not None:
                found.append(best)
            done = best is not None or region.whole  # all steps within it were tried, else the near ones
            covered.update(region.ordered[: None if done else len(region.ordered) // 2])
        return found

    def best_of(self, site: Node, region: Region, context: Context) -> Rewrite | None:
        """Return the first rewrite of a site that pays; what was found for an equal expression serves it."""

        def ends(node: Node) -> bool:  # rules look through what only moves elements
            return node not in region.nodes and (isinstance(node.op, Input) or not context.moves(node))

        inside = [n for n in topological([site], stop=ends) if not ends(n)]
        below = dict.fromkeys(i for n in inside for i in n.inputs)
        leaves = [n for n in below if ends(n) and not isinstance(n.op, Const)]
        key = structure([site], leaves), tuple(map(context.is_decided, leaves)), region.whole
        known = self._terms.get(key)
        if known is None:
            known = self._terms[key] = leaves, self.least_effort(site, region.nodes, context)
        first, ways = known
        terms = substitute([made for made, _ in ways], dict(zip(first, leaves, strict=True)))
        found = zip(terms, (steps for _, steps in ways), strict=True)
        return self.best(context, [({site: made}, steps) for made, steps in found], first=True)

    def least_effort(
        self, site: Node, region: frozenset[Node], context: Context
    ) -> list[tuple[Node, tuple[Step, ...]]]:
        """Return the expressions that are worth a price: those that compute least, or in fewer kernels."""
        start = effort(site, region, context)
        count = itertools.count()
        queue: list[tuple[Effort, int, Node, tuple[Match, ...]]] = [(start, next(count), site, ())]
        known: set[Node] = {site}
        made: list[tuple[Effort, Node, tuple[Match, ...]]] = []
        while queue and len(known) <= self.limit.of_site and not self.spent:
            at, _, term, matches = heapq.heappop(queue)
            if at < start or at.kernels < start.kernels:
                made.append((at, term, matches))
            if at.flops > BOUND * start.flops or len(matches) == DEPTH:
                continue
            for new, match in next_terms(term, region, context, self.rules):
                if new not in known:
                    known.add(new)
                    entry = effort(new, region, context), next(count), new, (*matches, match)
                    heapq.heappush(queue, entry)
        found = []
        for _, term, matches in sorted(made, key=lambda m: m[0])[:MOST_WEIGHED]:
            steps = tuple(map(self.rules.proved, matches))
            if None not in steps:
                found.append((term, cast("tuple[Step, ...]", steps)))
        return found

    def best(
        self, context: Context, ways: Ways, *, first: bool = False, margin: float = MARGIN
    ) -> Rewrite | None:
        """Return the best of some ways that pays, or the first; what differs little from one that was
        measured and lost has lost, too.
        """
        weighed: list[Rewrite] = []
        lost = float("inf")  # the estimate of the cheapest loser
        for replaced, steps in ways:
            if self.spent:
                break
            made, estimate = self.weighed(context, replaced, steps, margin)
            if made.refused and made.measured:
                lost = min(lost, estimate)
            weighed.append(made)
            if first and not made.refused and made.seconds < lost * (1 - NEARLY):
                break
        best: Rewrite | None = None
        for made in weighed:
            if not made.refused and not made.measured and made.seconds > lost * (1 - NEARLY):
                made = made._replace(refused="it is nearly one that was measured to be slower")
            if made.refused:
                self.note(made)
            elif best is None or _is_better(made, best):
                best = made
        return best

    def weighed(
        self, context: Context, replaced: Replaced, steps: tuple[Step, ...], margin: float
    ) -> tuple[Rewrite, float]:
        """Return a rewrite with its prices, refused where it does not pay or was measured not to, and the
        estimate of what it costs. An equal one has the same prices.
        """
        leaves = boundary(context.nodes, replaced)
        key = (
            structure([*replaced, *replaced.values()], leaves),
            tuple(n in context.frozen for n in leaves), tuple(n in context.roots for n in replaced),
        )  # fmt: skip
        where = tuple(dict.fromkeys(line for node in replaced for line in node.where))
        if key not in self._weighed:
            self._weighed[key] = self.first_weighed(context, replaced, steps, leaves, margin)
        made, estimate = self._weighed[key]
        return made._replace(replaced=replaced, where=where), estimate

    def first_weighed(
        self, context: Context, replaced: Replaced, steps: tuple[Step, ...], leaves: Sequence[Node],
        margin: float,
    ) -> tuple[Rewrite, float]:  # fmt: skip
        self.priced += 1
        before, after = self.compare(context.graph, replaced)
        estimate = after
        piece = piece_of(leaves, context.frozen, replaced)
        record = self.verdicts(piece.key) if self.verdicts is not no_verdict else None
        refused = "" if after < before * (1 - margin) else "it is not cheaper"
        if record is not None:
            won = record.algorithm == REWRITTEN
            before, after = (record.default_seconds, record.seconds)[:: 1 if won else -1]
            refused = "" if won else "it was measured to be slower"
        return Rewrite(replaced, steps, before, after, (), piece, record is not None, refused), estimate

    def note(self, refused: Rewrite) -> None:
        """Keep a rewrite that is rejected: for the same values one that was measured, else the cheapest."""
        at = frozenset(refused.replaced)
        known = self.rejected.get(at)
        key = not refused.measured, _loss(refused)
        if self.first and (known is None or key < (not known.measured, _loss(known))):
            self.rejected[at] = refused

    # -- several results -----------------------------------------------------------------------------------
    def joined(self, context: Context) -> list[Rewrite]:
        """Return the joins that pay, of each value the best one."""
        found = []
        for ways in joins(context, self.rules, pairs=self.limit.of_site > USUAL):
            if self.spent:
                break
            best = self.best(context, ways, margin=JOIN_MARGIN)
            if best is not None:
                found.append(best)
        return found


def _is_better(one: Rewrite, other: Rewrite) -> bool:
    """Return whether a rewrite alone is measured, or costs less, or computes less at the same cost."""
    if one.measured != other.measured:
        return one.measured
    if abs(one.seconds - other.seconds) <= EQUAL * other.seconds:
        return one.work < other.work
    return one.seconds < other.seconds


def _loss(rewrite: Rewrite) -> float:
    return rewrite.seconds - rewrite.before_seconds


def _kind(rewrite: Rewrite) -> tuple[float, str]:
    """Return what equal rewrites have in common, what saves more first."""
    return _loss(rewrite), str(rewrite.subject)
