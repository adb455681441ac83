"""The contracts every op record keeps, generated from the record's own samples and rejects."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from lowered import evaluate_lowered
from record_samples import NAMES, Array, called, inputs, results, results_of, samples
from tolerance import GRADIENT_ATOL, GRADIENT_RTOL, STRIDED_ULP, disagreement

from stratal.autodiff import check_grad, jvp_graph, vjp_graph
from stratal.base.dims import Dim, Sym
from stratal.base.dtypes import complex64, complex128, float64
from stratal.base.errors import NotDifferentiableError, ShapeError, StratalError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, graph_to_text, verify
from stratal.graph.interpret import apply, interpret
from stratal.graph.json_form import graph_from_json, graph_to_json
from stratal.graph.node import graph_input, items, make
from stratal.graph.op import REGISTRY, Op, Sample
from stratal.graph.text import parse_graph
from stratal.loops.compute import Nest, Region, SameBytes
from stratal.ops.families import Elementwise

EXEMPT = {"input", "const", "item"}  # no op of its own: graph input, stored value, result of another op
RECORDS = [name for name in NAMES if name not in EXEMPT]
every_record = pytest.mark.parametrize("name", RECORDS)


def check_samples(name: str, wanted: Iterable[Sample], check: Callable[[Sample], str | None]) -> int:
    """Run a check on samples; fail with one line per sample that breaks it. Return how many were checked."""
    broken, count = [], 0
    for sample in wanted:
        count += 1
        try:
            fault = check(sample)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            broken.append(f"{called(sample)}: {fault}")
    if broken:
        pytest.fail(f"{name}: {len(broken)} of {count} samples\n" + "\n".join(broken[:8]), pytrace=False)
    return count


def graph_of(op: Op, types: Sequence[TensorType]) -> Graph:
    """Return the graph of one call of an op."""
    nodes = [graph_input(f"x{k}", t) for k, t in enumerate(types)]
    return Graph(nodes, items(make(op, *nodes)), name=op.name)


# -- what a record must have ---------------------------------------------------------------------------------


@every_record
def test_a_record_is_described_sampled_and_refuses_something(name: str) -> None:
    record = REGISTRY[name]
    assert record.__doc__ and record.__doc__.split("\n")[0].endswith((".", ":")), f"{name}: needs a docstring"
    assert any(True for _ in record.samples()), f"{name}: has no samples"
    if record.arity != 0 and name not in ACCEPTS_ALL:
        assert any(True for _ in record.rejects()), f"{name}: has no rejects"
    if not record.not_differentiable:
        assert record.vjp is not Op.vjp and record.jvp is not Op.jvp, f"{name}: no derivative and no reason"
    if not record.not_lowered:
        assert record.lower is not Op.lower, f"{name}: no lowering and no reason"


ACCEPTS_ALL = {"stop_gradient"}  # takes any one operand


@every_record
def test_the_reference_returns_the_promised_type(name: str) -> None:
    def check(sample: Sample) -> str | None:
        for promised, got in zip(
            results_of(sample.op, sample.types), results(apply(sample.op, *inputs(sample))), strict=True
        ):
            if not isinstance(got, np.ndarray):
                return f"returned {type(got).__name__}"
            if (got.dtype, got.shape) != (promised.dtype.np, promised.shape):
                return f"returned {got.dtype}{list(got.shape)}, promised {promised}"
        return None

    check_samples(name, samples(name), check)


@every_record
def test_bad_calls_are_refused_by_rule_and_reason(name: str) -> None:
    for reject in REGISTRY[name].rejects():
        call = f"{reject.op} of ({', '.join(map(str, reject.types))})"
        try:
            reject.op.check_arity(len(reject.types))
            out = reject.op.infer(*reject.types)
        except StratalError as error:
            assert reject.says in str(error), f"{call}: says {error}"
            assert name in error.rule, f"{call}: the rule does not name the op: {error.rule}"
        else:
            pytest.fail(f"{call}: accepted as {out}", pytrace=False)


# -- sizes nobody knows yet ----------------------------------------------------------------------------------


@every_record
def test_the_type_rule_holds_for_opaque_sizes(name: str) -> None:
    """Every size above 1 becomes a symbol; the result, at the sample's sizes, is the concrete result."""
    accepted, tried = 0, 0

    def check(sample: Sample) -> str | None:
        nonlocal accepted, tried
        op, types, values = opaque(sample)
        if not values or op is None:
            return None
        tried += 1
        try:
            found = results_of(op, types)
        except ShapeError as error:
            return None if "\n  got:" in str(error) or "dims" in error.rule else f"unclear refusal: {error}"
        accepted += 1
        for symbolic, concrete in zip(found, results_of(sample.op, sample.types), strict=True):
            sizes = tuple(concretely(n, values) for n in symbolic.shape)
            if sizes != concrete.shape or symbolic.dtype is not concrete.dtype:
                return f"gives {symbolic} for opaque sizes, {concrete} for known ones"
        return None

    check_samples(name, samples(name), check)
    assert accepted or not tried or name in KNOWN_SIZES, f"{name}: refuses every sample with opaque sizes"


REGIONS = ("blockwise", "checkpoint", "cond", "custom_jvp", "custom_vjp", "scan", "watched", "while")
KNOWN_SIZES = dict.fromkeys(REGIONS, "a region is a graph of fixed types") | {
    "expression": "its text names sizes",
    "view_as_complex": "the last axis has two places",
    "dft": "its stages follow from the length",
}


def opaque(sample: Sample) -> tuple[Op | None, tuple[TensorType, ...], dict[str, int]]:
    """Return a sample with each distinct size above 1 replaced by a symbol, and the values of the symbols."""
    values: dict[str, int] = {}

    def hide(size: Dim) -> Dim:
        if not isinstance(size, int) or size < 2:
            return size
        values[f"n{size}"] = size
        return Sym.named(f"n{size}", 2)

    types = tuple(t.with_shape(map(hide, t.shape)) for t in sample.types)
    attributes = dict(sample.op.attributes)
    for field in sample.op.dim_attributes:
        attributes[field] = tuple(map(hide, attributes[field]))
    try:
        return type(sample.op)(**attributes), types, values
    except StratalError:
        return None, types, values


def concretely(size: Dim, values: dict[str, int]) -> int:
    """Return a size at given values of its symbols."""

    def value(tree: ast.expr) -> int:
        if isinstance(tree, ast.Constant):
            return int(tree.value)  # type: ignore[arg-type]
        if isinstance(tree, ast.Name):
            return values[tree.id]
        if isinstance(tree, ast.UnaryOp):
            return -value(tree.operand)
        if isinstance(tree, ast.Call):  # floor(a/b)
            ratio = tree.args[0]
            assert isinstance(ratio, ast.BinOp)
            return value(ratio.left) // value(ratio.right)
        assert isinstance(tree, ast.BinOp)
        left, right = value(tree.left), value(tree.right)
        return left + right if isinstance(tree.op, ast.Add) else left * right

    return size if isinstance(size, int) else value(ast.parse(str(size), mode="eval").body)


# -- lowered equals reference --------------------------------------------------------------------------------


@pytest.mark.sampled(45)
@every_record
def test_the_lowered_form_equals_the_reference(name: str) -> None:

    def check(sample: Sample) -> str | None:
        if sample.op.host_reason(*sample.types):
            return None
        lowered = sample.op.lower(*sample.types)
        if isinstance(lowered, (Region, Nest, SameBytes)):
            return None  # graphs of records with lowerings of their own; loops that a tactic writes; nothing
        arrays = inputs(sample)
        promised = [(t.dtype, t.ints) for t in results_of(sample.op, sample.types)]
        for got, want in zip(
            evaluate_lowered(lowered, arrays, promised), results(apply(sample.op, *arrays)), strict=True
        ):
            if fault := disagreement(sample.op, got, np.asarray(want)):
                return fault
        return None

    check_samples(name, samples(name), check)


# -- derivatives ---------------------------------------------------------------------------------------------


def doubled(sample: Sample) -> Sample:
    """Return a sample with its floats in double precision."""

    def wide(t: TensorType) -> TensorType:
        if t.dtype is complex64:
            return t.with_dtype(complex128)
        return t.with_dtype(float64) if t.dtype.is_float else t

    return sample._replace(types=tuple(map(wide, sample.types)))


def elements(sample: Sample) -> int:
    return sum(int(np.prod(t.ints)) for t in sample.types)


def differentiable(name: str) -> list[Sample]:
    """Return the distinct samples, in double precision, whose derivative finite differences can check."""
    found: dict[object, Sample] = {}
    for sample in samples(name):
        wide = doubled(sample)
        if not sample.smooth or not any(t.dtype.is_inexact for t in wide.types):
            continue
        if elements(wide) > 150:
            continue  # the same rule as on the smaller samples, a thousand times the cost
        try:
            out = results_of(wide.op, wide.types)
        except StratalError:
            continue  # an attribute fixes a lower precision
        inexact = [t for t in out if t.dtype.is_inexact]
        if inexact and all(t.dtype in (float64, complex128) for t in inexact):
            found[wide.op, wide.types] = wide._replace(draw=sample.draw)
    return list(found.values())


def operands(sample: Sample) -> list[Array]:
    return [np.asarray(a).astype(t.dtype.np) for a, t in zip(inputs(sample), sample.types, strict=True)]


@pytest.mark.sampled(53)
@every_record
def test_both_derivatives_agree_with_finite_differences_to_second_order(name: str) -> None:
    record = REGISTRY[name]
    wanted = differentiable(name)
    if record.not_differentiable:
        assert len(record.not_differentiable) > 10, f"{name}: the reason is a sentence"
        return

    small = [s for s in wanted if elements(s) <= 50]
    twice = small or wanted  # the second order costs most: small samples stand for all, where there are any

    def check(sample: Sample) -> str | None:
        order = 2 if sample in twice else 1
        graph = graph_of(sample.op, sample.types)
        report = check_grad(graph, operands(sample), order=order, rtol=GRADIENT_RTOL, atol=GRADIENT_ATOL)
        return None if report.ok else str(report)

    count = check_samples(name, wanted, check)
    assert count or not any(s.smooth for s in samples(name)), f"{name}: no sample checks the derivative"


@pytest.mark.parametrize("name", [name for name in RECORDS if REGISTRY[name].not_differentiable])
def test_what_is_not_differentiable_says_why(name: str) -> None:
    record = REGISTRY[name]
    sample = next(iter(samples(name)))
    nodes = [graph_input(f"x{k}", t) for k, t in enumerate(sample.types)]
    out = make(sample.op, *nodes)
    ct: Any = items(out) if len(items(out)) > 1 else out
    with pytest.raises(NotDifferentiableError, match=name) as caught:
        sample.op.vjp(Builder((), vjp_graph, jvp_graph), ct, out, *nodes)
    assert record.not_differentiable in str(caught.value)


# -- text and JSON -------------------------------------------------------------------------------------------


@every_record
def test_a_call_survives_the_text_form(name: str) -> None:
    def check(sample: Sample) -> str | None:
        graph = verify(graph_of(sample.op, sample.types))
        text = graph_to_text(graph)
        again = parse_graph(text)
        if again != graph or graph_to_text(again) != text:
            return f"comes back as\n{again}"
        return None

    check_samples(name, samples(name), check)


@every_record
def test_a_call_survives_the_json_form(name: str) -> None:
    def check(sample: Sample) -> str | None:
        graph = graph_of(sample.op, sample.types)
        again = graph_from_json(json.loads(json.dumps(graph_to_json(graph))))
        return None if again == graph else f"comes back as\n{again}"

    check_samples(name, samples(name), check)


# -- strides -------------------------------------------------------------------------------------------------


def strided(array: Array) -> list[Array]:
    """Return equal arrays in other memory: reversed, transposed, every other element of a larger one."""
    backwards, every_other = (slice(None, None, -1),) * array.ndim, (slice(None, None, 2),) * array.ndim
    turned = np.array(array[backwards], order="C")[backwards]
    sparse = np.zeros(tuple(2 * n for n in array.shape), array.dtype)[every_other]
    transposed = np.array(array, order="F")
    sparse, turned = np.asarray(sparse), np.asarray(turned)
    sparse[...] = array
    return [turned, transposed, sparse]


@every_record
def test_the_reference_does_not_depend_on_strides_and_changes_no_operand(name: str) -> None:
    def check(sample: Sample) -> str | None:
        arrays = inputs(sample)
        want = results(apply(sample.op, *arrays))
        for variant in zip(*map(strided, arrays), strict=True):
            before = [a.copy() for a in variant]
            got = results(apply(sample.op, *variant))
            for g, w in zip(got, want, strict=True):
                if fault := disagreement(sample.op, np.asarray(g), np.asarray(w), STRIDED_ULP):
                    return f"with other strides: {fault}"
            if any(a.tobytes() != b.tobytes() for a, b in zip(variant, before, strict=True)):
                return "changed an operand"
        return None

    check_samples(name, samples(name), check)


@every_record
def test_the_interpreter_runs_the_call_as_a_graph(name: str) -> None:
    def check(sample: Sample) -> str | None:
        arrays = inputs(sample)
        got, _ = interpret(graph_of(sample.op, sample.types), arrays)
        for g, w in zip(got, results(apply(sample.op, *arrays)), strict=True):
            if g.tobytes() != w.tobytes():
                return "differs from the reference"
        return None

    check_samples(name, samples(name), check)


# -- derivatives at special values ---------------------------------------------------------------------------
POINTS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 30.0, -30.0, 800.0, 1e8, -1e160)
POINTS += (np.inf, -np.inf, np.nan)
UNDEFINED = {("pow", 1): "the logarithm of a negative base"}  # derivatives of finite values that are NaN
DIFFERENTIABLE = [name for name in RECORDS if not REGISTRY[name].not_differentiable]
POINTWISE = [n for n in DIFFERENTIABLE if issubclass(REGISTRY[n], Elementwise) and n != "complex"]
POINTWISE = [n for n in POINTWISE if "f" in REGISTRY[n].kinds]


def _derivatives(op: Op, arrays: Sequence[Array], k: int) -> list[Array]:
    """Return an element-wise result and its derivative by operand `k`, in forward and in reverse mode."""
    graph = graph_of(op, [TensorType(float64, a.shape) for a in arrays])
    given, marks = [*arrays, np.ones(arrays[0].shape)], [j == k for j in range(len(arrays))]
    return [*interpret(jvp_graph(graph, marks), given)[0], *interpret(vjp_graph(graph, marks), given)[0]]


@pytest.mark.parametrize("name", POINTWISE)
def test_derivatives_at_special_values_agree_with_each_other_and_with_differences(name: str) -> None:
    op = REGISTRY[name]()
    grids = np.meshgrid(*[np.array(POINTS)] * (op.arity or 1), indexing="ij")
    arrays = [np.ascontiguousarray(g.ravel()) for g in grids]
    for k in range(len(arrays)):
        with np.errstate(all="ignore"):
            y, forward, reverse = _derivatives(op, arrays, k)
            np.testing.assert_allclose(forward, reverse, rtol=1e-9, err_msg=f"modes, by operand {k}")
            numbers = np.isfinite(y) & np.all(np.isfinite(arrays), axis=0)
            assert (name, k) in UNDEFINED or not np.isnan(reverse[numbers]).any()
            step = 1e-6
            before, behind = (
                (_derivatives(op, [a + s if j == k else a for j, a in enumerate(arrays)], k)[0] - y) / s
                for s in (-step, step)
            )
        low, high = np.minimum(before, behind), np.maximum(before, behind)
        near = numbers & (np.max(np.abs(arrays), axis=0) <= 30) & np.isfinite(reverse)
        near &= (np.abs(low) < 1e3) & (np.abs(high) < 1e3) & (np.abs(y) < 1e4)  # neither jump nor pole
        slack = 1e-4 + 1e-4 * np.abs(high)
        between = (reverse >= low - slack) & (reverse <= high + slack)
        wrong = near & ~between
        assert not wrong.any(), f"by operand {k}: {reverse[wrong]} outside of {low[wrong]}, {high[wrong]}"


def _random(rng: np.random.Generator, type_: TensorType) -> Array:
    found = rng.standard_normal(type_.ints)
    return found + 1j * rng.standard_normal(type_.ints) if type_.dtype.is_complex else found


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_both_modes_are_adjoint_at_zeros_ties_and_large_numbers(name: str) -> None:
    """<ct, jvp(t)> = <vjp(ct), t> holds at kinks, too: both modes make the same choice."""
    rng = np.random.default_rng(0)
    small = [s for s in differentiable(name) if elements(s) <= 50 and s.draw is None][:4]
    for sample in small:
        arrays, graph = operands(sample), graph_of(sample.op, sample.types)
        marks = [a.dtype.kind in "fc" for a in arrays]
        for a in arrays:
            if a.dtype.kind in "fc":
                a[...] = rng.choice([0.0, -0.0, 1.0, 1.0, -1.0, 2.0, -30.0, 1e8], a.shape)
        ins, outs = sample.types, results_of(sample.op, sample.types)
        tangents, seeds = ([_random(rng, t) for t in ts if t.dtype.is_inexact] for ts in (ins, outs))
        with np.errstate(all="ignore"):
            moved = interpret(jvp_graph(graph, marks), [*arrays, *tangents])[0][-len(seeds) :]
            turned = interpret(vjp_graph(graph, marks), [*arrays, *seeds])[0]
            pairs = [*zip(seeds, moved, strict=True)], [*zip(tangents, turned, strict=True)]
            terms = [np.concatenate([np.real(np.conj(a) * b).ravel() for a, b in p]) for p in pairs]
            scale = sum(np.abs(t).sum() for t in terms)
        if np.isfinite(scale):
            assert abs(terms[0].sum() - terms[1].sum()) <= 1e-9 * scale, called(sample)
