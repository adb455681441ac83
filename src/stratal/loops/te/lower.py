"""From terms to the loop language: one computed tensor becomes a `Compute` over buffers."""

from __future__ import annotations

from collections.abc import Mapping

from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Var
from stratal.loops.te.lower_term import lower_term
from stratal.loops.te.tensor import Computed, Tensor
from stratal.loops.te.term import Access, Apply, Axis, Reduction, Term


def lower_tensor(
    tensor: Computed, buffers: Mapping[Tensor, Buffer], names: Mapping[Axis, str] | None = None
) -> Compute:
    """Return what a tensor computes, over buffers for the tensors it reads.

    16-bit floats compute in float32 and are rounded once, at the end. A sum of products of two elements is
    a `dot`.
    """
    labels = names or {}
    reduce = tensor.reduced
    variables = {a: Var(labels.get(a, a.name), a.extent) for a in (*tensor.axes, *reduce)}
    roots = [tensor.term]
    combiner = tensor.body.combiner if isinstance(tensor.body, Reduction) else None
    if combiner == "sum" and _is_product(tensor.term):
        roots, combiner = list(tensor.term.parts), "dot"
    terms = [lower_term(r, variables, buffers) for r in roots]
    return Compute(
        [buffers[t] for t in tensor.reads],
        [variables[a] for a in tensor.axes],
        tensor.dtype,
        terms,
        reduce=[variables[a] for a in reduce],
        combiner=combiner,
    )


def _is_product(term: Term) -> bool:
    """Return whether a term is the product of two elements, converted or not."""
    return isinstance(term, Apply) and term.fn == "mul" and all(_is_element(a) for a in term.args)


def _is_element(t: Term) -> bool:
    while isinstance(t, Apply) and t.fn == "cast":
        t = t.args[0]
    return isinstance(t, Access)
