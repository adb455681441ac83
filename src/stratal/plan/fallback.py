"""What was compiled with less ambition: warnings, files that reproduce the failures, rows of the plan."""

from __future__ import annotations

import warnings
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.fallback import HOST, LEVELS, Failure, Fallbacks
from stratal.base.faults import failure_folder
from stratal.base.session import SESSION
from stratal.base.source import SourceLine, user_line
from stratal.graph.graph import Graph, graph_to_text
from stratal.graph.node import Node

MOST_LINES: Final = 4
MOST_OPS: Final = 8
_LOCAL: Final = frozenset(("cache_dir", "cache_limit", "dump", "override", "strict", "verify"))
_WARNED: Final = SESSION.cache(set[tuple[str, str, str]]())  # graph, stage, error


class FallbackWarning(UserWarning):
    """Part of the compiler failed, and part of a program is compiled more simply: right, but slower."""


class Fallback(NamedTuple):
    """One failure and what was done about it, as the plan shows it."""

    stage: str
    error: str
    outcome: str
    where: tuple[SourceLine, ...]


def report(graph: Graph, fallbacks: Fallbacks) -> tuple[Fallback, ...]:
    """Warn of each failure of a compilation, once per graph and process; return those that the plan shows."""
    found = [(f, Fallback(*f[:2], _outcome(f, fallbacks), f.where)) for f in fallbacks.failures]
    for _, row in found:
        key = graph.digest, row.stage, row.error
        if key not in _WARNED:
            _WARNED.add(key)
            at = user_line()
            warning = FallbackWarning(_words(graph, row))
            warnings.warn_explicit(warning, FallbackWarning, *(at[:2] if at else ("stratal", 0)))
    return tuple(row for failure, row in found if failure in fallbacks.lasting)


def _outcome(failure: Failure, fallbacks: Fallbacks) -> str:
    """Return what runs how because of a failure."""
    nodes = [node for node, cause in fallbacks.cause.items() if cause == failure]
    if failure == fallbacks.whole:
        return f"every op {_ran(fallbacks.floor)}"
    ops: dict[int, dict[str, None]] = {}
    for node in nodes:
        if isinstance(node, Node):
            ops.setdefault(fallbacks.level(node), {})[node.op.name] = None
    parts = [f"{_listed(list(ops[level]))} {_ran(level)}" for level in sorted(ops)]
    return "; ".join(parts) or ("left out" if failure in fallbacks.lasting else "done without")


def _ran(level: int) -> str:
    return f"{'run' if level == HOST else 'compiled'} {LEVELS[level]}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_OPS} more" if len(names) > MOST_OPS else ""
    return ", ".join(names[:MOST_OPS]) + more


def _words(graph: Graph, row: Fallback) -> str:
    where = ", ".join(list(dict.fromkeys(map(str, row.where)))[:MOST_LINES]) or str(user_line() or graph.name)
    return (
        f"compiler: {row.stage} failed in {graph.name!r}; {row.outcome}\n"
        f"  got:   {row.error}\n"
        f"  where: {where}\n"
        f"  hint:  results are right; {_reproduced(graph, row)}, STRATAL_STRICT=1 raises it"
    )


def _reproduced(graph: Graph, row: Fallback) -> str:
    """Write the graph, the settings and the failure to a file; return how to reproduce it."""
    asked = [s for s in settings.SETTINGS.values() if s.origin != "default" and s.name not in _LOCAL]
    words = "".join(f"{s.variable}={settings.as_text(s.value)} " for s in asked)
    head = (f"{row.stage} failed: {row.error}", row.outcome, f"{words}stratal explain THIS_FILE")
    try:
        base = settings.dump.value or failure_folder()
        path = base / f"fallback-{graph.digest[:8]}.graph"
        base.mkdir(parents=True, exist_ok=True)
        text = "".join(f"# {line}\n" for line in head) + graph_to_text(graph) + "\n"
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"what reproduces it could not be written ({error})"
    return f"`{words}stratal explain {path}` reproduces it"
