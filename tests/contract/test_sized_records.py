"""Every record in symbolic sizes, generated from its samples: right at the true sizes, or refused.

For each sample, each set of axes that its type rule lets change together gets a symbol, given as one axis and
as a product of factors (as after a reshape). What lies beyond the true sizes is NaN or an absurd number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from record_samples import Array, called, inputs, results, results_of, samples
from test_records import RECORDS, concretely

from stratal.base.dims import Dim, Sym, product, same_shape
from stratal.base.errors import ShapeError, StratalError
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import apply, interpret
from stratal.graph.node import graph_input, items, make
from stratal.graph.op import REGISTRY, Op, Sample
from stratal.optimize.sized import bounded
from stratal.optimize.sized.values import NEEDS_KNOWN_SIZES, RULES

SPARE = 2  # how much room there is beyond a size
MOST_AXES = 6  # of a sample that change, in all ways


class Symbolic(NamedTuple):
    """A call of an op with symbols, the factors operands are factored in, and each symbol's value."""

    op: Op
    shapes: tuple[tuple[Dim, ...], ...]
    factored: tuple[tuple[tuple[Dim, ...], ...], ...]
    values: dict[str, int]


def symbol(name: str, size: int) -> Sym:
    return Sym.named(name, 1, size + SPARE)


def factors(size: int) -> Iterator[tuple[tuple[Dim, ...], dict[str, int]]]:
    """Yield the ways to hold an axis of a changing size: as one, and as products where it is one."""
    yield (symbol("n", size),), {"n": size}
    for p in range(2, size):
        if size % p == 0:
            q = size // p
            n, m = symbol("n", p), symbol("m", q)
            yield (n, q), {"n": p}
            yield (p, m), {"m": q}
            yield (n, m), {"n": p, "m": q}


def symbolic(sample: Sample) -> Iterator[Symbolic]:
    """Yield the sample with symbols for one axis, and for axes whose sizes are equal or multiples."""
    places: list[tuple[Any, ...]] = [
        (k, a) for k, t in enumerate(sample.types) for a in range(t.ndim)
    ]
    fields = {f: sample.op.attributes[f] for f in sample.op.dim_attributes}
    places += [(f, a) for f, sizes in fields.items() for a in range(len(sizes))]
    sizes = {p: (sample.types[p[0]].shape if isinstance(p[0], int) else fields[p[0]])[p[1]] for p in places}
    seen = set()
    for size in sorted({n for n in sizes.values() if isinstance(n, int) and n > 1}):
        alike = [p for p in places if sizes[p] == size][:MOST_AXES]
        larger = [p for p in places if sizes[p] != size and sizes[p] % size == 0 and sizes[p]][:2]
        for factored, values in factors(size):
            for chosen in subsets(alike):
                for more in subsets(larger):
                    made = replaced(sample, sizes, factored, values, set(chosen), set(more), size)
                    if made is not None and made[:3] not in seen:
                        seen.add(made[:3])
                        yield made


def subsets(places: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    for n in range(len(places) + 1):
        yield from itertools.combinations(places, n)


def replaced(
    sample: Sample, sizes: dict[Any, int], factored: tuple[Dim, ...], values: dict[str, int],
    chosen: set[Any], more: set[Any], size: int,
) -> Symbolic | None:  # fmt: skip
    """Return the call with a size for the chosen places, multiples of it for others; None if not allowed."""
    if not chosen:
        return None

    def ways(p: Any) -> tuple[Dim, ...]:
        if p in chosen:
            return factored
        return (sizes[p] // size, *factored) if p in more else (sizes[p],)

    axes = tuple(tuple(ways((k, a)) for a in range(t.ndim)) for k, t in enumerate(sample.types))
    attributes = dict(sample.op.attributes)
    for f in sample.op.dim_attributes:
        attributes[f] = tuple(product(ways((f, a))) for a in range(len(attributes[f])))
    shapes = tuple(tuple(map(product, x)) for x in axes)
    try:
        op = type(sample.op)(**attributes)
        for promised, found in zip(
            results_of(sample.op, sample.types),
            results_of(op, tuple(t.with_shape(s) for t, s in zip(sample.types, shapes, strict=True))),
            strict=True,
        ):
            if tuple(concretely(n, values) for n in found.shape) != promised.shape:
                return None
    except StratalError:
        return None
    return Symbolic(op, shapes, axes, values)


def fault_of(sample: Sample, case: Symbolic, arrays: Sequence[Array]) -> str | None:
    """Return how a call in room for larger sizes differs from the sample; "refused" where it is."""
    given, nodes = [], []
    for k, (t, shape, axes) in enumerate(zip(sample.types, case.shapes, case.factored, strict=True)):
        flat = tuple(n for x in axes for n in x)
        given.append(graph_input(f"x{k}", t.with_shape(flat)))
        node = given[-1]
        if not same_shape(flat, shape):
            node = Builder().reshape(node, shape=shape)
        nodes.append(node)
    graph = Graph(given, items(make(case.op, *nodes)))
    try:
        made, names = bounded(verify(graph))
    except ShapeError:
        return "refused"
    verify(made)
    rooms = [
        filled(a.reshape([concretely(n, case.values) for n in i.aval.shape]), j.aval.shape)
        for a, i, j in zip(arrays, graph.inputs, made.inputs[len(names) :], strict=True)
    ]
    counts = [np.asarray(case.values[n], np.int64) for n in names]
    got, _ = interpret(made, [*counts, *rooms])
    for g, w in zip(got, results(apply(sample.op, *arrays)), strict=True):
        part = g[tuple(map(slice, w.shape))]
        if part.shape != w.shape or not np.allclose(part, w, 1e-4, 1e-5, equal_nan=True):
            return f"{case.shapes} factored as {case.factored}: {part.ravel()[:4]} instead of {w.ravel()[:4]}"
    return None


def filled(array: Array, shape: Sequence[int]) -> Array:
    """Return an array in room for more, poison in the rest."""
    fill: Any = {"f": np.nan, "c": np.nan, "b": True}.get(array.dtype.kind)
    if fill is None and array.dtype.name.startswith("bfloat"):
        fill = np.nan
    if fill is None:
        fill = np.iinfo(array.dtype).max
    room = np.full(shape, fill, array.dtype)
    room[tuple(map(slice, array.shape))] = array
    return room


@pytest.mark.parametrize("name", RECORDS)
def test_an_op_has_a_rule_for_symbolic_sizes_or_may_say_why_not(name: str) -> None:
    """Without either it is compiled for known sizes, as with a reason."""
    assert not (name in RULES and name in NEEDS_KNOWN_SIZES)
    assert name not in NEEDS_KNOWN_SIZES or len(NEEDS_KNOWN_SIZES[name]) > 20


def test_there_are_no_rules_of_unknown_ops() -> None:
    assert {*RULES, *NEEDS_KNOWN_SIZES} <= {*REGISTRY}


@pytest.mark.parametrize("name", RECORDS)
def test_an_op_in_symbolic_sizes_equals_itself_or_is_refused(name: str) -> None:
    broken, checked, refused = [], 0, 0
    shapes = set()
    for sample in samples(name):
        shape = (str(sample.op), tuple(t.shape for t in sample.types))
        if shape in shapes:
            continue  # another dtype
        shapes.add(shape)
        arrays = inputs(sample)
        for case in symbolic(sample):
            checked += 1
            try:
                fault = fault_of(sample, case, arrays)
            except Exception as error:
                fault = f"{case.shapes} factored as {case.factored}: {type(error).__name__}: {error}"
            if fault == "refused":
                refused += 1
            elif fault:
                broken.append(f"{called(sample)}: {fault}")
    print(f"{name}: {checked} checked, {refused} refused")
    assert not broken, f"{len(broken)} of {checked}\n" + "\n".join(broken[:8])
