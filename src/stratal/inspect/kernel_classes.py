"""The three classes of work in a network: contraction, normalisation, element-wise.

The classes of Ivanov et al., "Data Movement Is All You Need" (MLSys 2021): contractions hold nearly all
operations of a Transformer and much less of its time. An op is of the class of its record; a kernel is of the
first class among its members, so that what is fused into a product counts as part of that product's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from stratal.graph.node import Node
from stratal.ops.linear.window import Windowed

KernelClass = Literal["contraction", "normalisation", "element-wise"]
CLASSES: Final[tuple[KernelClass, ...]] = ("contraction", "normalisation", "element-wise")
MEANING: Final[dict[KernelClass, str]] = {
    "contraction": "sums of products: matrix products and convolutions",
    "normalisation": "reductions and what is fused with them: norms, softmax, pooling, losses",
    "element-wise": "activations, residuals, updates, and all that only moves data",
}


class ClassShare(NamedTuple):
    """One class of a program: kernels, operations, seconds, and its share of both."""

    name: KernelClass
    num_kernels: int
    flops: float
    seconds: float
    flops_share: float
    time_share: float


def class_of_op(node: Node) -> KernelClass:
    """Return the class of a node, by where its record stands and what it is made of."""
    folder = type(node.op).__module__.removeprefix("stratal.ops.").split(".")[0]
    if folder == "reduce" or isinstance(node.op, Windowed):
        return "normalisation"
    return "contraction" if folder == "linear" else "element-wise"


def class_of_kernel(members: Iterable[Node], tactic: str) -> KernelClass:
    """Return the class of a kernel; what packs an operand works for the product that reads it."""
    found = {class_of_op(m) for m in members}
    if tactic == "pack":
        return "contraction"
    return next((c for c in CLASSES if c in found), "element-wise")


def shares(rows: Sequence[tuple[KernelClass, dict[KernelClass, float], float]]) -> list[ClassShare]:
    """Return the table of classes from kernels given as (class, operations by class, seconds)."""
    total_flops = sum(sum(flops.values()) for _, flops, _ in rows)
    total_seconds = sum(seconds for _, _, seconds in rows)
    table = []
    for name in CLASSES:
        flops = sum(f.get(name, 0.0) for _, f, _ in rows)
        seconds = sum(s for c, _, s in rows if c == name)
        count = sum(c == name for c, _, _ in rows)
        table.append(
            ClassShare(
                name, count, flops, seconds,
                flops / total_flops if total_flops else 0.0,
                seconds / total_seconds if total_seconds else 0.0,
            )
        )  # fmt: skip
    return table
