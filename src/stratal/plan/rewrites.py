"""Rewrites that are searched: what a compilation chooses, what it says of that, and what it would gain.

`settings.math` says which proofs count. With "exact", programs have the bits of what was written, and nothing
is searched: what the exact rules find, simplification and fusion have done. With "real", whatever is equal
over the real numbers may be computed where it is estimated, or was measured, to take less time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from stratal.base import settings, tuning
from stratal.base.fallback import skippable, unchanged
from stratal.base.log import Alternative, collect, decide, duration
from stratal.base.target import Target
from stratal.discover.rules import FoundRule
from stratal.discover.rules_file import read_rules
from stratal.graph.graph import Graph, verify
from stratal.optimize.online import use_online_forms
from stratal.optimize.simplify import simplify
from stratal.plan.price import Pricer
from stratal.plan.text import shorten
from stratal.search.found import AS_WRITTEN, REWRITTEN, Found, Replaced, Rewrite
from stratal.search.search import Limit, no_verdict, search

STAGE: Final = "search"
LEAST_PRICED: Final = 100  # expressions, while a program compiles; one more for each
NODES_A_PRICE: Final = 40
LONG: Final = 200  # characters of a normal form
MOST_SHOWN: Final = 5  # of the rewrites that were rejected
MOST_LINES: Final = 4  # of the user's, that one rewrite is about


@lru_cache(maxsize=1)
def shipped_rules() -> Sequence[FoundRule]:
    """Return the rules that ship."""
    return tuple(read_rules()[0])


def usual_limit(graph: Graph) -> Limit:
    """Return how far a compilation searches: by a count, not a clock, so that it finds the same again."""
    return Limit(LEAST_PRICED + len(graph.nodes) // NODES_A_PRICE)


def searched(graph: Graph, target: Target, limit: Limit | None = None, *, real: bool = True) -> Found:
    """Return what a search finds in a simplified graph, at a target's prices, by the records in force."""
    pricer = Pricer(target)
    records = tuning.in_force()

    def compare(whole: Graph, replaced: Replaced) -> tuple[float, float]:
        found = pricer.compare(whole, replaced)
        return found.before.seconds, found.after.seconds

    return search(
        graph, shipped_rules(), lambda whole: pricer(whole).seconds, limit or usual_limit(graph), real=real,
        compare=compare, verdicts=records.find if len(records) else no_verdict,
    )  # fmt: skip


@skippable(unchanged)
def rewritten_where_it_pays(graph: Graph, target: Target) -> Graph:
    """Return a simplified graph rewritten by what a search over the real numbers finds."""
    found = searched(graph, target)
    report(found)
    return simplify(verify(found.graph)) if found.applied else graph


def report(found: Found) -> None:
    """Tell the running compilation's log which rewrites were chosen and rejected."""
    for rewrite in found.applied:
        _decide(rewrite, REWRITTEN, Alternative(AS_WRITTEN, rewrite.before_seconds))
    for rewrite in found.rejected:
        _decide(rewrite, AS_WRITTEN, Alternative(REWRITTEN, rewrite.seconds))
    if not found.complete:
        decide(STAGE, "the whole", "ended", f"its limit was reached after {found.priced} prices")


def _decide(rewrite: Rewrite, choice: str, other: Alternative) -> None:
    seconds = rewrite.seconds if choice == REWRITTEN else rewrite.before_seconds
    why = f"{_rules(rewrite)}; {_proof(rewrite)}" + (f"; {rewrite.refused}" if rewrite.refused else "")
    decide(STAGE, rewrite.subject, choice, why, alternatives=[other], seconds=seconds,
           basis="measured" if rewrite.measured else "estimated", where=rewrite.where)  # fmt: skip


def _rules(rewrite: Rewrite) -> str:
    return ", then ".join(step.rule for step in rewrite.steps)


def _proof(rewrite: Rewrite) -> str:
    return "proved to the bit" if rewrite.exact else "proved over the real numbers"


# -- explaining ----------------------------------------------------------------------------------------------
def explain_rewrites(graph: Graph, target: Target, math: str) -> Iterator[str]:
    """Yield lines: which rewrites a program chose; of an exact one, what real arithmetic would gain."""
    with collect():
        simple = simplify(verify(graph))
        found = searched(simple, target)
        price = Pricer(target)
        prices = [price(g).seconds for g in (simple, found.graph)]
    if math == "exact":
        yield "exact: the program has the bits of what was written; nothing was searched"
        gained = prices[0] - prices[1]
        share = gained / prices[0] if prices[0] else 0.0
        whole = f"{duration(gained)} of {duration(prices[0])} ({share:.0%})"
        yield f'math="real" would gain {f"{whole}, estimated" if found.applied else "nothing"}'
    else:
        before, after = map(duration, prices)
        yield f"real: {before} as written, {after} rewritten, estimated"
    blocks = _in_blocks(found.graph)
    yield from (f'math="real" would compute {line}' if math == "exact" else line for line in blocks)
    for title, rewrites in (("chosen", found.applied), ("rejected", found.rejected[:MOST_SHOWN])):
        for rewrite in rewrites:
            yield ""
            yield from _lines("would be chosen" if title == "chosen" and math == "exact" else title, rewrite)
    if len(found.rejected) > MOST_SHOWN:
        yield f"  .. and {len(found.rejected) - MOST_SHOWN} more rejected"


def _in_blocks(graph: Graph) -> list[str]:
    """Return what real arithmetic computes in blocks, rather than to store it."""
    with settings.math("real"), collect() as log:
        use_online_forms(graph)
    return [f"{d.subject} in {d.choice}" for d in log.of("online") if d.choice != "stored"]


def lines_of(rewrite: Rewrite) -> list[str]:
    """Return the user's lines that a rewrite is about, those of what it replaces first."""
    below = [line for node in reversed(rewrite.piece.before.nodes) for line in node.where[:1]]
    return list(dict.fromkeys(map(str, (*rewrite.where, *below))))


def _lines(title: str, rewrite: Rewrite) -> Iterator[str]:
    lines = ", ".join(lines_of(rewrite)[:MOST_LINES])
    yield f"{title}: {rewrite.subject}" + (f"  [{lines}]" if lines else "")
    basis = "measured" if rewrite.measured else "estimated"
    yield f"    as written {duration(rewrite.before_seconds)}, rewritten {duration(rewrite.seconds)}, {basis}"
    if rewrite.refused:
        yield f"    {rewrite.refused}"
    for step in rewrite.steps:
        yield f"    {step.rule} ({step.proof}): {step.text}"
    yield f"    {_proof(rewrite)}; normal form: {shorten(rewrite.steps[-1].certificate, LONG)}"
