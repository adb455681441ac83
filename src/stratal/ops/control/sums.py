"""Sums over the steps of a loop that one op after the loop can take, given what each step adds as rows.

    total += contract("nm,nk->mk", a, b)   in every step   ->   contract("tnm,tnk->mk", rows of a, rows of b)
    total += sum(a, axes=(0,))             in every step   ->   sum(rows of a, axes=(0, 1))

One long product is faster than many short ones that each read and write the total.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import NamedTuple

from stratal.graph.builder import Builder
from stratal.graph.node import Node, make

Finish = Callable[[Builder, Sequence[Node]], Node]


class Sum(NamedTuple):
    """What every step must keep, and the total made of the kept rows, stacked along a new first axis."""

    rows: list[Node]
    finish: Finish


def taken_at_once(term: Node) -> Sum | None:
    """Return how the sum of a term over all steps is taken after the loop; None where nothing is won."""
    op = term.op
    if op.name in ("permute", "reshape"):
        inner = taken_at_once(term.inputs[0])
        if inner is None:
            return None
        return Sum(inner.rows, lambda b, rows: make(op, inner.finish(b, rows), where=b.where))
    if op.name == "contract":
        return _product(term)
    if op.name == "sum":
        axes = (0, *(axis + 1 for axis in op.attributes["axes"]))
        return Sum(list(term.inputs), lambda b, rows: b.sum(rows[0], axes=axes))
    return None


def _product(term: Node) -> Sum | None:
    spec: str = term.op.attributes["spec"]
    step = next((c for c in ascii_letters if c not in spec), None)
    if step is None:
        return None
    left, right = spec.split("->")[0].split(",")
    longer = f"{step}{left},{step}{right}->{spec.split('->')[1]}"
    dtype = term.op.attributes["dtype"]
    return Sum(list(term.inputs), lambda b, rows: b.contract(*rows, spec=longer, dtype=dtype))
