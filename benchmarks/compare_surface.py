"""Every public function at two sizes beside NumPy and PyTorch eager: one warm call, as a user makes it.

A plain call finds the program made before, by what it is given, and runs it when its value is asked for;
under `st.compile` it only runs it. Each system returns tensors of its own with their values. Ratios are of
the quicker of the two; those of plain calls stand beside them, and what the first call took, compilation
included, apart. Systems take turns in one process, on as many threads each.
"""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import stratal as st
from benchmarks.surface.draws import Call, Draws
from benchmarks.surface.entries import Entry, entries
from benchmarks.surface.facts import facts_of
from benchmarks.surface.layers import call_of
from benchmarks.surface.twins import SPACES, arrays, difference, twins
from stratal.base import settings, tree
from stratal.base.errors import StratalError
from stratal.tensor.lazy import flushing

SIZES = (1_000, 1_000_000)
SLOW = 3.0  # times the better of the two
SHARE_OWED = 0.02
COMPILED = "compiled"
_TURNS, _CALLS, _MOST_CALLS = 3, 3, 300
_PAUSE_S = 0.004
_FIXED_US = 60.0  # a call of ours that takes less at the small size has no more than its fixed cost
Row = dict[str, Any]


def chosen(only: Sequence[str], families: Sequence[str]) -> list[Entry]:
    """Return the functions to time: of some families, whose name contains one of `only`."""
    return [
        e for e in entries(tuple(families) or tuple(SPACES)) if not only or any(w in e.path for w in only)
    ]


def measure(
    chosen_entries: Sequence[Entry],
    sizes: Sequence[int],
    threads: int,
    seconds: float,
    say: Callable[[str], None],
) -> list[Row]:
    """Return a row per function and size; each function of each system is given `seconds` at most."""
    torch = _limited(threads)
    rows = []
    with settings.threads(threads):
        for entry in chosen_entries:
            facts = facts_of(entry)
            for n in sizes:
                row = _row(entry, n, seconds, torch)
                row |= {"host": facts.host, "at_once": facts.kind == "at once", "ops": len(facts.records)}
                rows.append(row)
                say(_line(row))
    return rows


def _limited(threads: int) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def _row(entry: Entry, n: int, seconds: float, torch: Any) -> Row:
    row: Row = {"name": entry.path, "n": n}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            call = call_of(entry, Draws(n))
            if call is None:
                return row | {"error": "no call is known"}
            tensors = call.mapped(st.tensor)
            runs: dict[str, Callable[[], Any]] = {"ours": lambda: _computed(tensors.of(entry.value))}
            started = time.perf_counter()
            ours = _realised(runs["ours"]())
            row["first_ms"] = 1e3 * (time.perf_counter() - started)
            row["differs"] = ""
            compiled = _compiled(entry.value, tensors)
            if compiled is not None:
                runs["compiled"] = compiled
            for space, twin in twins(entry, call):
                try:
                    theirs = arrays(twin())
                except Exception:  # it takes other arguments
                    continue
                row["view"] = row.get("view", False) or _shares(theirs, twin.func.__self__)
                runs["torch" if space.startswith("torch") else "numpy"] = _without_gradients(twin, torch)
                row["differs"] = row["differs"] or difference(ours, theirs)
                if compiled is not None:
                    row["differs"] = row["differs"] or difference(_realised(compiled()), theirs)
            row |= _timed(runs, seconds)
    except Exception as error:
        return row | {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
    peers = [row[name] for name in ("numpy", "torch") if name in row]
    if peers:
        row["plain_ratio"] = row["ours"] / min(peers)
        row["ratio"] = min(row["ours"], row.get("compiled", row["ours"])) / min(peers)
    return row


def _compiled(function: Callable[..., Any], call: Call) -> Callable[[], Any] | None:
    """Return a call under `st.compile`; None where it takes no tensor, or Python needs a value inside."""
    leaves, structure = tree.flatten((call.args, dict(call.kwargs)))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, st.Tensor)]
    if not places:
        return None

    def of(*tensors: Any) -> Any:
        given = list(leaves)
        for k, tensor in zip(places, tensors, strict=True):
            given[k] = tensor
        args, kwargs = tree.unflatten(structure, given)
        return function(*args, **kwargs)

    compiled = st.compile(of, dynamic=False)
    tensors = [leaves[k] for k in places]
    try:
        _computed(compiled(*tensors))
    except StratalError:
        return None
    return lambda: _computed(compiled(*tensors))


def _shares(results: list[Any], call: Call) -> bool:
    """Return whether results lie in the memory of what was given."""
    leaves = tree.leaves((call.args, dict(call.kwargs)))
    given = [np.asarray(a) for a in leaves if hasattr(a, "__array__") and hasattr(a, "shape")]
    return any(np.shares_memory(a, b) for a in results for b in given)


def _computed(result: Any) -> Any:
    """Return a result once its tensors have their values."""
    flushing.flush([t for t in tree.leaves(result) if isinstance(t, st.Tensor) and t._storage is None])
    return result


def _realised(result: Any) -> list[Any]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [np.asarray(part.detach() if isinstance(part, st.Tensor) else part) for part in parts]


def _without_gradients(run: Callable[[], Any], torch: Any) -> Callable[[], Any]:
    if torch is None:
        return run

    def quiet() -> Any:
        with torch.no_grad():
            return run()

    return quiet


def _timed(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median microseconds of each. They take turns of a few calls, the first of which brings its
    data near; before a turn the threads of the system before get the time to stop looking for work.
    """
    took: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_TURNS):
        for name, run in runs.items():
            time.sleep(_PAUSE_S)
            run()
            started = time.perf_counter_ns()
            while len(took[name]) < _CALLS or time.perf_counter_ns() - started < 1e9 * seconds / _TURNS:
                before = time.perf_counter_ns()
                run()
                took[name].append((time.perf_counter_ns() - before) / 1e3)
                if len(took[name]) >= _MOST_CALLS:
                    break
    return {name: statistics.median(times) for name, times in took.items()}


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['name']} {row['n']}: {row['error']}"
    systems = ("ours", "compiled", "numpy", "torch")
    shown = ", ".join(f"{name} {row[name]:.0f}" for name in systems if name in row)
    return f"{row['name']} {row['n']}: {shown} us" + (f", ratio {row['ratio']:.2f}" if "ratio" in row else "")


def slow_share(rows: Sequence[Row]) -> float:
    """Return the share of compiled functions slower than three times the better peer at the largest size."""
    found = [
        row["ratio"] for row in rows if row["n"] == max(SIZES) and "ratio" in row and _class(row) == COMPILED
    ]
    return sum(r > SLOW for r in found) / max(len(found), 1)


def _class(row: Row) -> str:
    """Return what a row is compared as; a peer that returns its operand's memory does no work."""
    if row.get("view"):
        return "views in the peer"
    return "on the host or made at once" if row["host"] or row["at_once"] else COMPILED


def met(rows: Sequence[Row]) -> bool:
    """Return whether every result agrees and few enough functions are slow."""
    return slow_share(rows) <= SHARE_OWED and not any(row.get("differs") or "error" in row for row in rows)


def text(rows: Sequence[Row]) -> str:
    """Return the distribution of ratios, the worst functions with reasons, what runs on the host."""
    lines = []
    for n in sorted({row["n"] for row in rows}):
        for words in (COMPILED, "on the host or made at once", "views in the peer"):
            found = [r for r in rows if r["n"] == n and "ratio" in r and _class(r) == words]
            if found:
                lines.append(f"{n} elements, {words}: {_spread([r['ratio'] for r in found])}")
                lines.append(f"    plain calls: {_spread([r['plain_ratio'] for r in found])}")
    first = sorted(row["first_ms"] for row in rows if "first_ms" in row)
    if first:
        lines.append(f"first calls: median {statistics.median(first):.0f} ms, longest {first[-1]:.0f} ms")
    large = [r for r in rows if "ratio" in r and r["n"] == max(SIZES) and not r.get("view")]
    worst = sorted(large, key=lambda r: -r["ratio"])[:10]
    lines += ["", f"the worst at {max(SIZES)}:", *(f"  {_line(row)}: {_reason(row)}" for row in worst)]
    hosts = {row["name"]: row["host"] for row in rows if row["host"]}
    lines += ["", "on the host:", *(f"  {name}: {reason}" for name, reason in hosts.items())]
    wrong = [row for row in rows if row.get("differs") or "error" in row]
    lines += ["", "wrong:" if wrong else "every result agrees"]
    lines += [f"  {row['name']} {row['n']}: {row.get('error') or row['differs']}" for row in wrong]
    return "\n".join(lines)


def _spread(found: Sequence[float]) -> str:
    """Return how ratios are distributed, and how many are slow."""
    ratios = sorted(found)
    cuts = ", ".join(
        f"{q} % {ratios[min(len(ratios) - 1, len(ratios) * q // 100)]:.2f}" for q in (10, 50, 90, 99)
    )
    slow = sum(r > SLOW for r in ratios)
    return f"ratios {cuts}; above {SLOW:g}: {slow} of {len(ratios)} ({slow / len(ratios):.1%})"


def _reason(row: Row) -> str:
    if row["host"]:
        return f"host ({row['host']})"
    if row["at_once"]:
        return "made by NumPy when it is called"
    if row["ours"] < _FIXED_US:
        return "the fixed cost of a call"
    return "one kernel" if row["ops"] <= 1 else f"{row['ops']} kinds of ops"
