"""The loops an algorithm starts with: per tensor one nest in the order of its axes, reductions innermost."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Expr, cast, index_const, load, unlike
from stratal.loops.stmt import Stmt, Store
from stratal.loops.te.algorithm import Algorithm, axis_names
from stratal.loops.te.tensor import Tensor, lower_tensor
from stratal.schedule.language.nest import Nest, with_distinct_names
from stratal.schedule.primitives import sequence
from stratal.schedule.tactics.common import nest


def default_nest(algorithm: Algorithm) -> Nest:
    """Return the plain loops of an algorithm. Tensors between placeholders and results are workspaces."""
    buffers: dict[Tensor, Buffer] = {
        t: Buffer(algorithm.names[t], t.dtype, t.shape) for t in algorithm.tensors
    }
    taken = set(algorithm.names.values())
    local: list[Buffer] = []
    stages: list[Stmt] = []
    for t in algorithm.stages:
        names = axis_names(t, taken)
        taken |= set(names.values())
        compute = lower_tensor(t, buffers, names)
        if t not in algorithm.results:
            local.append(buffers[t])
        total = _accumulator(compute, buffers[t], taken)
        if total is not buffers[t]:
            taken.add(total.name)
            local.append(total)
        stages.append(compute_nest(compute, buffers[t], total))
    return Nest(
        tuple(buffers[p] for p in algorithm.placeholders),
        tuple(buffers[r] for r in algorithm.results),
        with_distinct_names(sequence(*stages)),
        tuple(local),
    )


def _accumulator(compute: Compute, out: Buffer, taken: Iterable[str]) -> Buffer:
    """Return where a reduction adds up: the result itself, or a tensor of the wider dtype it runs in."""
    if compute.combiner is None or compute.state_dtypes[0] is out.dtype:
        return out
    return Buffer(unlike(f"{out.name}_acc", taken), compute.state_dtypes[0], out.shape)


def compute_nest(compute: Compute, out: Buffer, total: Buffer) -> Stmt:
    """Return the loops of one tensor; a reduction sets `total`, adds to it, and rounds it to `out`."""
    here: tuple[Expr, ...] = tuple(v if v.extent != 1 else index_const(0) for v in compute.axes)
    if compute.combiner is None:
        return nest(compute.axes, Store(out, here, cast(compute.terms[0], compute.dtype)))
    (start,) = compute.combiner.identity(compute.state_dtypes)
    stmts: list[Stmt] = [Store(total, here, start), update_nest(compute, total)]
    if total is not out:
        stmts.append(Store(out, here, cast(load(total, here), out.dtype)))
    return nest(compute.axes, sequence(*stmts))


def update_nest(compute: Compute, total: Buffer) -> Stmt:
    """Return the loops over the reduce axes that add one element's terms to `total`."""
    assert compute.combiner is not None
    here: tuple[Expr, ...] = tuple(v if v.extent != 1 else index_const(0) for v in compute.axes)
    (value,) = compute.combiner.combine((load(total, here),), compute.terms)
    return nest(compute.reduce, Store(total, here, value))
