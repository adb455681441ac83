"""What people call a kernel: the layers it computes, the states it updates, how it is scheduled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.artifact import Value
from stratal.graph.node import Node
from stratal.schedule.result import Scheduled

MOST_PARTS = 4


def kernel_name(label: str, members: Sequence[Node], updated: Sequence[Value]) -> str:
    """Return a short name: composites and single ops in order, then the states written."""
    parts = list(dict.fromkeys(_part(m) for m in members)) or [label or "kernel"]
    if updated and len(parts) > 1:
        parts = [p for p, m in _scoped(members).items() if m] or parts[:1]
    shown = (
        parts
        if len(parts) <= MOST_PARTS
        else [*parts[: MOST_PARTS - 1], f"{len(parts) - MOST_PARTS + 1} more"]
    )
    return "+".join(shown) + _updates(updated)


def _part(node: Node) -> str:
    """Return the outermost composite a node was built in, or its op."""
    return next((line.scope[0] for line in node.where if line.scope), node.op.name)


def _scoped(members: Iterable[Node]) -> dict[str, bool]:
    """Return the parts of a name and whether each is a composite."""
    return {_part(m): any(line.scope for line in m.where) for m in members}


def _updates(updated: Sequence[Value]) -> str:
    if not updated:
        return ""
    plain = [v.label for v in updated if v.label and "[" not in v.label and v.label != "grad"]
    first = plain[0] if plain else updated[0].label or "state"
    rest = f" +{len(updated) - 1}" if len(updated) > 1 else ""
    return f" -> {first}{rest}"


def tactic_name(scheduled: Scheduled, members: Sequence[Node]) -> str:
    """Return the tactic with its parameters; of a contraction, the anchor op and the register tile."""
    kernel = scheduled.kernel
    if scheduled.tactic == "contract":
        tile = next((b for b in kernel.local if b.name == "acc"), None)
        sizes = [str(n) for n in tile.shape if n > 1] if tile is not None else []
        anchor = members[0].op.name if members else "contract"
        return f"{anchor} {'x'.join(sizes) or '1'}"
    for step in reversed(scheduled.steps):
        if step.startswith("lanes("):
            return f"{scheduled.tactic} {step.removeprefix('lanes(').replace(')', '')}"
        if step.startswith("kept axis in "):
            return f"{scheduled.tactic} {step.removeprefix('kept axis in ')}"
    return scheduled.tactic
