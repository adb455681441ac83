"""From ops to rules: enumerate, pair, prove, generalise, prune; anytime.

A pair follows from the rules there are if they make something smaller of its larger side: what they make has
the same value, and is met in a pair of its own, or reduced further.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stratal.discover.enumerate import Enumeration, Pair, Types, signatures
from stratal.discover.generalise import generalised
from stratal.discover.matching import matches
from stratal.discover.prove import prove
from stratal.discover.rules import FoundRule, build
from stratal.graph.graph import substitute
from stratal.graph.node import Node, topological
from stratal.graph.op import Op

MOST_STEPS = 60  # graphs that a pair is followed through, before it counts as a rule of its own
Progress = Callable[["Discovery"], None]


@dataclass
class Discovery:
    """What a discovery found, and how far it came.

    `graphs` were built; of the `pairs` that agree, `derived` follow from other rules, `tested` agree in every
    draw without a proof, `local` were proved at their own sizes only and `dropped` differ in further draws.
    """

    rules: list[FoundRule] = field(default_factory=list)
    tested: list[Pair] = field(default_factory=list)
    graphs: int = 0
    pairs: int = 0
    proved: int = 0
    derived: int = 0
    local: int = 0
    dropped: int = 0
    finished: bool = True

    def add(self, other: Discovery) -> None:
        """Add what another search found."""
        self.rules += other.rules
        self.tested += other.tested
        self.finished &= other.finished
        for name in ("graphs", "pairs", "proved", "derived", "local", "dropped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def counts(self) -> dict[str, int]:
        """The numbers, by name."""
        return {
            "graphs": self.graphs, "pairs": self.pairs, "derived": self.derived,
            "proved": self.proved, "local": self.local, "rules": len(self.rules),
            "tested": len(self.tested), "dropped": self.dropped,
        }  # fmt: skip


def discover(
    ops: Sequence[type[Op]], size: int = 3, *, inputs: int = 3, seconds: float = math.inf,
    once: Collection[str] = (), known: Iterable[FoundRule] = (), types: Sequence[Types] | None = None,
    progress: Progress | None = None,
) -> Discovery:  # fmt: skip
    """Return the rules between graphs of up to `size` ops on up to `inputs` inputs.

    `types` lists the types of inputs to search on; without it they come from the records' samples. `known`
    rules are not found again; ops named in `once` do not stand on themselves. After `seconds` what was found
    by then is returned: every choice of types gets an equal share of the time that is left.
    """
    result = Discovery()
    rules = list(known)
    end = time.monotonic() + seconds
    left = signatures(ops, inputs) if types is None else types
    for k, each in enumerate(left):
        now = time.monotonic()
        until = now + (end - now) / (len(left) - k)
        search = Enumeration(ops, each, size, once)
        seen = result.graphs
        for pair in search.pairs(until):
            result.graphs = seen + search.seen
            _judge(pair, search, result, rules)
            if progress is not None:
                progress(result)
        result.graphs = seen + search.seen
        result.finished &= time.monotonic() < until
    result.rules = independent(result.rules)
    return result


def _judge(pair: Pair, search: Enumeration, result: Discovery, rules: list[FoundRule]) -> None:
    result.pairs += 1
    if follows(pair, rules):
        result.derived += 1
        return
    if not prove(pair.larger, pair.smaller, pair.inputs).proved:
        if search.confirmed(pair):
            result.tested.append(pair)
        else:
            result.dropped += 1
        return
    result.proved += 1
    rule = generalised(pair.larger, pair.smaller, pair.inputs)
    if rule is None:
        result.local += 1
    else:
        rules.append(rule)
        result.rules.append(rule)


def follows(pair: Pair, rules: Sequence[FoundRule]) -> bool:
    """Return whether rules make something smaller of the larger side, or the smaller side itself.

    They are tried in both directions and anywhere in the graph, one after another, within bounds.
    """
    names = {x: f"x{k}" for k, x in enumerate(pair.inputs)}
    order, wanted = _order(pair.larger, names), _order(pair.smaller, names)
    reached = {order}
    waiting = [pair.larger]
    for graph in waiting:
        for made in _steps(graph, rules):
            found = _order(made, names)
            if found == wanted or found < order:
                return True
            if found not in reached and found[0] <= order[0] and len(reached) < MOST_STEPS:
                reached.add(found)
                waiting.append(made)
    return False


def _steps(graph: Node, rules: Iterable[FoundRule]) -> Iterator[Node]:
    """Yield what one application of a rule, anywhere, makes of a graph."""
    for below in reversed(topological([graph])):
        for rule in rules:
            for forward in (True, False):
                side = rule.lhs if forward else rule.rhs
                if isinstance(side, str) or side.op != below.op.name:
                    continue
                for _, made in matches(rule, below, forward=forward):
                    if made is not below and made.type == below.type:
                        yield substitute([graph], {below: made})[0]


def _order(node: Node, names: Mapping[Node, str]) -> tuple[int, str]:
    """Return what graphs are ordered by: how many ops they have, then their text.

    Operands of commutative ops are sorted, so that one order of them stands for all.
    """
    known = {x: (0, name) for x, name in names.items()}
    for below in topological([node]):
        if below not in known:
            operands = [known[x] for x in below.inputs]
            if below.op.commutative:
                operands.sort()
            text = f"{below.op}({', '.join(t for _, t in operands)})"
            known[below] = 1 + sum(n for n, _ in operands), text
    return known[node]


def independent(rules: Sequence[FoundRule]) -> list[FoundRule]:
    """Return the rules that do not follow from others: special cases are often found before general ones."""
    left = list(rules)
    for rule in rules:
        lhs, rhs, inputs = build(rule, rule.sizes, {n: v[0] for n, v in rule.attributes.items()})
        others = [r for r in left if r is not rule]
        if follows(Pair(lhs, rhs, inputs), others):
            left = others
    return left
