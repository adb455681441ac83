"""Winograd's algorithm: exact matrices, agreement with the reference within its bound, where it is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import stratal as tensors
from stratal.base import settings
from stratal.base.artifact import Copy, Launch, flat
from stratal.base.dtypes import DType, bfloat16, float16, float32, float64
from stratal.base.target import Target
from stratal.base.types import TensorType
from stratal.compiler import Program, compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.graph.op import REGISTRY
from stratal.loops.expr import Buffer, Call, Expr, walk
from stratal.loops.interpret import evaluate
from stratal.loops.stmt import For, If, Prefetch, Seq, Stmt, statements
from stratal.plan.host import current_target
from stratal.runtime.storage import Storage
from stratal.schedule import select
from stratal.schedule.result import Candidate
from stratal.schedule.tactics.winograd_stages import LINE, TAPS, tile_scratch
from stratal.schedule.winograd_matrices import outputs, product, transposed, winograd_matrices

pytestmark = pytest.mark.row("D14")

Array = np.ndarray[Any, Any]
BOUND = {2: 3e-6, 4: 1e-5}  # of the largest result: what the documentation promises up to 1024 channels
WAYS = ("by tiles", "by filters", "by prepared filters")
PLAIN = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": 1}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """What is forced here must not be found by others."""
    with settings.cache_dir(None):
        yield


def convolution(
    x: tuple[int, ...],
    filters: int,
    padding: int = 1,
    dtype: Any = float32,
    *,
    follow: bool = True,
    frozen: bool = False,
    **given: Any,
) -> Graph:
    """Return conv(x, w) + bias with a relu, written as channels last; w may be frozen."""
    groups = given.get("groups", 1)
    types = [x, (filters, x[1] // groups, 3, 3), (filters,)]
    values = [
        graph_input(n, TensorType(dtype, t), frozen=frozen and n == "w")
        for n, t in zip(("x", "w", "b"), types, strict=True)
    ]
    b = Builder(())
    pads = ((padding, padding), (padding, padding))
    out = b.conv(values[0], values[1], padding=pads, **(PLAIN | given))
    if follow:
        bias = b.broadcast(values[2], shape=out.shape, axes=(1,))
        out = b.max(b.add(out, bias), b.full(out.aval, 0))
    return Graph(values, [out], name="convolution")


def channels_last(x: tuple[int, ...], filters: int) -> Graph:
    """Return a convolution of images, and of filters, whose channels lie together, as its results' do."""
    types = x, (filters, 3, 3, x[3])
    values = [graph_input(n, TensorType(float32, t)) for n, t in zip("xw", types, strict=True)]
    b = Builder(())
    images, weights = (b.permute(v, perm=(0, 3, 1, 2)) for v in values)
    conv = b.conv(images, weights, padding=((1, 1), (1, 1)), **PLAIN)
    return Graph(values, [b.permute(conv, perm=(0, 2, 3, 1))], name="channels last")


def arrays(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n.shape).astype(n.dtype.np) for n in graph.inputs]


def run(graph: Graph, values: list[Array]) -> tuple[Program, list[Array]]:
    program = compile_graph(graph)
    given_ = [Storage.copy_of(a, n.aval) for a, n in zip(values, graph.inputs, strict=True)]
    return program, [np.array(s.array) for s in program.run(given_)]


def wanted(values: list[Array], padding: int) -> Array:
    x, w, bias = (v.astype(np.float64) for v in values)
    conv = REGISTRY["conv"](padding=((padding, padding),) * 2, **PLAIN)
    return np.maximum(np.asarray(conv.ref(x, w)) + bias[:, None, None], 0)


def tactics(program: Program) -> set[str]:
    return {s.tactic for s in program.draft.kernels.values()}


def only(way: str, m: int) -> Callable[..., list[Candidate]]:
    """Return `candidates` that offers one way alone, where there is it."""
    known = select.candidates

    def offered(kind: str, x: Any, target: Target) -> list[Candidate]:
        found = list(known(kind, x, target))
        wished = [c for c in found if c.algorithm == f"winograd {way}" and dict(c.parameters)["m"] == m]
        return wished or found

    return offered


def faults(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], filters: int, padding: int, way: str, m: int
) -> str:
    """Run one convolution by one way; return what is wrong."""
    graph = convolution(x, filters, padding, frozen=way == "by prepared filters")
    values = arrays(graph)
    with monkeypatch.context() as patch:
        patch.setattr(select, "candidates", only(way, m))
        program, (got,) = run(graph, values)
    want = wanted(values, padding)
    error = np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1.0)
    if "winograd" not in tactics(program):
        return f"{x} {filters}: ran by {tactics(program)}"
    return "" if error <= BOUND[m] else f"{x} {filters} padding {padding} F({m}) {way}: error {error:.1e}"


# -- matrices ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("m", "taps"), [(m, taps) for taps in TAPS for m in outputs(taps)])
def test_the_matrices_filter_exactly(m: int, taps: int) -> None:
    given_, weights, output = winograd_matrices(m, taps)
    d = [Fraction(3 * k * k - 7, k + 2) for k in range(m + taps - 1)]
    g = [Fraction(5, 3), Fraction(-1, 7), Fraction(2), Fraction(-3, 5), Fraction(1, 2)][:taps]

    def times(matrix: tuple[tuple[Fraction, ...], ...], v: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(times(given_, d), times(weights, g), strict=True)]
    assert times(output, products) == [sum(g[j] * d[k + j] for j in range(taps)) for k in range(m)]


def test_transforms_share_sums_and_differences_of_paired_points() -> None:
    """Row by row, the matrices of F(4, 3) take 16, 12 and 17 operations, the transposed weights 14."""
    counts = []
    for matrix in (*winograd_matrices(4), transposed(winograd_matrices(4).weights)):
        d = Buffer("d", float32, (len(matrix[0]),))
        values = product(matrix, [d[k] for k in range(len(matrix[0]))])
        counts.append(sum(isinstance(e, Call) for e in walk(values)))
    assert counts == [12, 8, 12, 10]


# -- results -----------------------------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("m", outputs(3))
def test_odd_shapes_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, m: int, way: str, target: str
) -> None:
    """Channels and filters that fill no vector, images that end within a tile, tiles that fill no block."""
    shapes = [((1, 1, 1, 1), 1, 1), ((2, 19, 7, 9), 35, 1), ((3, 66, 5, 4), 17, 2), ((1, 5, 3, 14), 67, 0)]
    with settings.target(target):
        found = [faults(monkeypatch, x, k, p, way, m) for x, k, p in shapes]
    assert not any(found), "\n".join(filter(None, found))


@given(
    n=st.integers(1, 5), c=st.integers(1, 40), k=st.integers(1, 40), height=st.integers(1, 13),
    width=st.integers(1, 13), padding=st.integers(0, 2), way=st.sampled_from(WAYS), m=st.sampled_from((2, 4)),
)  # fmt: skip
@hypothesis_settings(max_examples=12)
def test_any_shape_agrees_with_the_reference(
    n: int, c: int, k: int, height: int, width: int, padding: int, way: str, m: int
) -> None:
    low = max(1, 3 - 2 * padding)
    with settings.cache_dir(None), pytest.MonkeyPatch.context() as patch:
        assert not faults(patch, (n, c, max(height, low), max(width, low)), k, padding, way, m)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("way", WAYS)
def test_operands_of_16_bits_sum_in_float32_and_round_once(
    monkeypatch: pytest.MonkeyPatch, way: str, dtype: DType
) -> None:
    graph = convolution((2, 19, 7, 9), 35, 1, dtype, follow=False, frozen=way == "by prepared filters")
    values = arrays(graph)
    with monkeypatch.context() as patch:
        patch.setattr(select, "candidates", only(way, 4))
        program, (got,) = run(graph, values)
    assert "winograd" in tactics(program)
    want = np.asarray(graph.outputs[0].op.ref(*(v.astype(np.float64) for v in values[:2])))
    half_a_place = {bfloat16: 2.0**-8, float16: 2.0**-11}[dtype] * np.abs(want)
    assert np.all(np.abs(got.astype(np.float64) - want) <= half_a_place + BOUND[4] * np.abs(want).max())


def test_the_error_is_a_small_multiple_of_a_direct_sum() -> None:
    graph = convolution((1, 512, 12, 12), 256)
    values = arrays(graph)
    values[1] /= 68.0
    want = wanted(values, 1)
    program, (fast,) = run(graph, values)
    with settings.winograd(False):
        other, (direct,) = run(graph, values)
    assert "winograd" in tactics(program) and "winograd" not in tactics(other)
    errors = [np.sqrt(np.mean((a - want) ** 2)) for a in (fast, direct)]
    assert errors[0] <= 6 * errors[1]
    assert np.max(np.abs(fast - want)) <= BOUND[4] * np.max(np.abs(want))


@pytest.mark.row("B1")
def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "candidates", only("by tiles", 4))  # a target may have a faster way
    graph = convolution((4, 64, 13, 13), 64)
    values = arrays(graph)
    results = []
    for threads in (1, 2, 4):
        with settings.threads(threads):
            program, (got,) = run(graph, values)
        assert "winograd" in tactics(program)
        results.append(got.tobytes())
    assert len(set(results)) == 1


@pytest.mark.torch
def test_the_gradient_of_the_input_is_such_a_convolution_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "candidates", only("by tiles", 4))
    torch = pytest.importorskip("torch")
    graph = convolution((2, 64, 16, 16), 64, follow=False)
    x, w, _ = graph.inputs
    seed = graph_input("seed", graph.outputs[0].aval)
    (dx, _) = graph.outputs[0].op.vjp(Builder(needs=(True, False)), seed, graph.outputs[0], x, w)
    whole = Graph([x, w, seed], [dx], name="backward")
    values = arrays(whole)
    program, (got,) = run(whole, values)
    assert "winograd" in tactics(program)
    a, b, ct = (torch.tensor(v, dtype=torch.float64) for v in values)
    want = torch.nn.grad.conv2d_input(a.shape, b, ct, padding=1).numpy()
    assert np.max(np.abs(got - want)) <= BOUND[4] * np.max(np.abs(want))


def gradient_of_filters(x: tuple[int, ...], filters: int, padding: int) -> Graph:
    """Return the gradient of conv(x, w) by w for a cotangent with channels last, as one of a network has."""
    graph = convolution(x, filters, padding, follow=False)
    (out,) = graph.outputs
    seed = graph_input("seed", out.aval)
    b = Builder(needs=(False, True))
    ct = b.add(out, seed)
    return Graph([*graph.inputs[:2], seed], [out.op.vjp(b, ct, out, *graph.inputs[:2])[1]], name="gradient")


def gradient_faults(patch: pytest.MonkeyPatch, x: tuple[int, ...], filters: int, padding: int, m: int) -> str:
    graph = gradient_of_filters(x, filters, padding)
    values = arrays(graph)
    values[1] /= np.sqrt(np.float32(9 * x[1]))
    patch.setattr(select, "candidates", only("of weights", m))
    program, (got,) = run(graph, values)
    if not any("order t" in step for s in program.draft.kernels.values() for step in s.steps):
        return f"{x} {filters}: ran by {tactics(program)}"
    wide = [a.astype(np.float64) for a in values]
    (want,), _ = interpret(Graph(*_in_float64(graph), name="wide"), wide)
    error = np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1.0)
    return "" if error <= BOUND[m] else f"{x} {filters} padding {padding} F({m}): error {error:.1e}"


def _in_float64(graph: Graph) -> tuple[list[Node], list[Node]]:
    """Return inputs and outputs of the same graph over float64."""
    new: dict[Node, Node] = {}
    b = Builder(())
    for node in graph.inputs:
        new[node] = graph_input(str(getattr(node.op, "label", "")), node.aval.with_dtype(float64))
    for node in graph.nodes:
        if node not in new:
            new[node] = b.op(node.op.name, *(new[i] for i in node.inputs), **node.op.attributes)
    return [new[n] for n in graph.inputs], [new[n] for n in graph.outputs]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("m", outputs(3))
def test_gradients_of_filters_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, m: int, target: str
) -> None:
    """One part and several; channels and filters that fill no block, tiles that fill none either."""
    shapes = [
        ((1, 67, 7, 9), 35, 1),
        ((3, 33, 13, 5), 17, 0),
        ((2, 20, 22, 21), 70, 2),
        ((40, 5, 9, 9), 3, 1),
    ]
    with settings.target(target):
        found = [gradient_faults(monkeypatch, x, k, p, m) for x, k, p in shapes]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize(("size", "copies"), [(16, 1), (24, 0)])
def test_a_convolution_and_the_gradient_of_its_filters_share_a_padded_copy_or_need_none(
    size: int, copies: int
) -> None:
    """Direct sums may be better for few tiles, and want a copy; many tiles read the image where it lies."""
    values = [(4, 64, size, size), (64, 64, 3, 3), (4, 64, size, size)]
    x, w, seed = (graph_input(n, TensorType(float32, t)) for n, t in zip("xws", values, strict=True))
    b = Builder(needs=(False, True))
    image = b.conv(x, w, padding=((1, 1), (1, 1)), **PLAIN)  # has its channels last
    out = b.conv(image, w, padding=((1, 1), (1, 1)), **PLAIN)
    gradient = out.op.vjp(b, b.add(out, seed), out, image, w)[1]
    graph = Graph([x, w, seed], [gradient], name="gradient")
    given_ = arrays(graph)
    given_[1] /= np.float32(24)
    program, (got,) = run(graph, given_)
    labels = [c.label for c in flat(program.executable.commands) if isinstance(c, Launch)]
    assert sum(label == "pad" for label in labels) == 1 + copies  # x has its channels apart
    assert [d.choice.split("(")[0] for d in program.log.of("tactic")] == [
        "winograd by tiles",
        "winograd by tiles",
        "winograd of weights",
    ]
    (want,), _ = interpret(Graph(*_in_float64(graph), name="wide"), [a.astype(np.float64) for a in given_])
    assert np.max(np.abs(got - want)) <= BOUND[4] * np.max(np.abs(want))


@pytest.mark.parametrize(("side", "questions"), [(20, 1), (18, 3)])
def test_tiles_that_fill_no_block_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, side: int, questions: int
) -> None:
    """Whether there is a tile is one question; whether it ends within the image, and which of its results
    do, are others, where not all do. What is only fetched depends on how the target cuts products.
    """
    monkeypatch.setattr(select, "candidates", only("by tiles", 4))
    program = compile_graph(channels_last((3, side, side, 64), 64))
    (made,) = [s.kernel for s in program.draft.kernels.values() if s.tactic == "winograd"]
    asking = [s for s in statements(made.body) if isinstance(s, If)]
    found = [s.condition for s in asking if not any(isinstance(t, Prefetch) for t in statements(s.then))]
    assert len(found) == len(set(found)) == questions


# -- choices -----------------------------------------------------------------------------------------------
def test_it_is_chosen_where_channels_are_many_and_not_where_they_are_few() -> None:
    chosen = {c: tactics(compile_graph(convolution((2, c, 24, 24), 64))) for c in (1, 64)}
    assert "winograd" in chosen[64]
    assert "winograd" not in chosen[1]


def other_filters(x: tuple[int, ...], filters: int, taps: int, stride: int) -> Graph:
    """Return a padded convolution with square filters of any size and any stride."""
    types = [x, (filters, x[1], taps, taps)]
    values = [graph_input(n, TensorType(float32, t)) for n, t in zip("xw", types, strict=True)]
    pads = ((taps // 2, taps // 2),) * 2
    conv = Builder(()).conv(*values, padding=pads, **(PLAIN | {"strides": (stride, stride)}))
    return Graph(values, [conv], name="convolution")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize(
    ("x", "filters", "taps", "stride"),
    [
        ((2, 3, 37, 41), 19, 7, 2),
        ((1, 3, 32, 70), 64, 7, 2),
        ((2, 5, 19, 23), 33, 5, 2),
        ((2, 18, 13, 11), 35, 5, 1),
        ((2, 17, 9, 12), 16, 4, 1),
        ((1, 2, 64, 40), 20, 11, 4),
    ],
)
def test_longer_filters_and_strides_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, x: tuple[int, ...], filters: int, taps: int, stride: int, target: str
) -> None:
    """A convolution with strides runs over the phases of its image, side by side as channels."""
    graph = other_filters(x, filters, taps, stride)
    values = arrays(graph)
    (want,), _ = interpret(Graph(*_in_float64(graph), name="wide"), [a.astype(np.float64) for a in values])
    with settings.target(target):
        monkeypatch.setattr(select, "candidates", only("by tiles", outputs(-(-taps // stride))[-1]))
        program, (got,) = run(graph, values)
    assert "winograd" in tactics(program)
    assert np.max(np.abs(got - want)) <= BOUND[4] * np.max(np.abs(want))


def test_the_first_convolution_of_a_network_runs_over_phases() -> None:
    """They are laid out from the image as it is, with nothing between."""
    program = compile_graph(other_filters((1, 3, 224, 224), 64, 7, 2))
    assert {"phases", "winograd"} <= tactics(program)
    assert not any(c.label == "pad" for c in flat(program.executable.commands) if isinstance(c, Launch))


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize(
    ("x", "filters", "low", "high"),
    [
        ((2, 33, 29, 37), 35, (1, 1), (1, 1)),
        ((9, 64, 15, 14), 64, (2, 0), (0, 3)),
        ((150, 33, 4, 2), 40, (1, 1), (1, 2)),
        ((40, 32, 3, 5), 32, (5, 5), (6, 0)),
    ],
)
def test_images_are_read_without_their_padded_copy(
    x: tuple[int, ...], filters: int, low: tuple[int, int], high: tuple[int, int], target: str
) -> None:
    """Padding may be uneven, and wider than a tile or the image."""
    n, channels, height, width = x
    types = (n, height, width, channels), (filters, channels, 3, 3)
    image, w = (graph_input(name, TensorType(float32, t)) for name, t in zip("xw", types, strict=True))
    b = Builder(())
    pads = tuple(zip(low, high, strict=True))
    conv = b.conv(b.permute(image, perm=(0, 3, 1, 2)), w, padding=pads, **PLAIN)
    graph = Graph([image, w], [conv], name="channels last")
    values = arrays(graph)
    with settings.target(target):
        program, (got,) = run(graph, values)
    labels = [c.label for c in flat(program.executable.commands) if isinstance(c, Launch)]
    assert "winograd" in tactics(program)
    assert "pad" not in labels
    (want,), _ = interpret(Graph(*_in_float64(graph), name="wide"), [a.astype(np.float64) for a in values])
    assert np.max(np.abs(got - want)) <= BOUND[4] * np.max(np.abs(want))


def test_few_pixels_and_many_filters_keep_transformed_filters_in_the_cache() -> None:
    choices = {
        x: next(d.choice for d in compile_graph(convolution(x, x[1])).log.of("tactic"))
        for x in ((8, 64, 32, 32), (8, 512, 4, 4))
    }
    assert choices[(8, 64, 32, 32)].startswith("winograd by tiles(m=4")
    assert choices[(8, 512, 4, 4)].startswith("winograd by filters(m=4")


@pytest.mark.parametrize(
    "given_", [{"strides": (2, 1)}, {"rhs_dilation": (1, 2)}, {"groups": 2}, {"dtype": float64}], ids=str
)
def test_other_convolutions_stay_direct(given_: dict[str, Any]) -> None:
    assert "winograd" not in tactics(compile_graph(convolution((2, 64, 16, 16), 64, **given_)))


def test_the_setting_is_part_of_what_a_kept_program_is(tmp_path: Any) -> None:
    graph = convolution((1, 64, 12, 12), 64)
    with settings.cache_dir(tmp_path):
        for allowed in (True, False, True):
            with settings.winograd(allowed):
                program = compile_graph(graph)
            assert ("winograd" in tactics(program)) is allowed


def test_the_setting_decides_in_one_process_too() -> None:
    x, w = tensors.ones((1, 64, 12, 12)), tensors.ones((64, 64, 3, 3))
    found = []
    for allowed in (True, False):
        with settings.winograd(allowed):
            function = tensors.compile(lambda x, w: tensors.nn.functional.conv2d(x, w, padding=1))
            function(x, w)
            found.append("winograd" in tactics(function.program))
    assert found == [True, False]


def test_images_returned_as_they_lie_are_made_where_the_result_is() -> None:
    """With channels last, the result's axes are a view of the convolution's: no copy is left."""
    graph = channels_last((2, 16, 16, 32), 24)
    values = arrays(graph)
    program, (got,) = run(graph, values)
    assert not any(isinstance(c, Copy) or c.label == "permute" for c in flat(program.executable.commands))
    (want,), _ = interpret(graph, values)
    assert np.max(np.abs(got - want)) <= BOUND[4] * np.max(np.abs(want))


# -- what is fetched ---------------------------------------------------------------------------------------
def unpadded(x: tuple[int, ...], filters: int = 64) -> Graph:
    """Return a convolution without padding of images whose channels lie together."""
    n, channels, height, width = x
    types = (n, height, width, channels), (filters, channels, 3, 3)
    image, w = (graph_input(name, TensorType(float32, t)) for name, t in zip("xw", types, strict=True))
    b = Builder(())
    images, none = b.permute(image, perm=(0, 3, 1, 2)), ((0, 0), (0, 0))
    return Graph([image, w], [b.conv(images, w, padding=none, **PLAIN)], name="conv")


def fetched(program: Program) -> set[tuple[int, ...]]:
    """Return the indices of all that the first block of tiles fetches."""
    found: set[tuple[int, ...]] = set()

    def visit(stmt: Stmt, values: dict[Expr, Array]) -> None:
        if not any(isinstance(s, Prefetch) for s in statements(stmt)):
            return
        if isinstance(stmt, Seq):
            for s in stmt.body:
                visit(s, values)
        elif isinstance(stmt, For):
            for i in range(1 if stmt.kind == "parallel" else stmt.var.extent):
                visit(stmt.body, {**values, stmt.var: np.asarray(i, np.int64)})
        elif isinstance(stmt, If):
            if evaluate((stmt.condition,), values, {})[0]:
                visit(stmt.then, values)
        elif isinstance(stmt, Prefetch):
            found.add(tuple(int(i) for i in evaluate(stmt.indices, values, {})))

    (scheduled,) = (s for s in program.draft.kernels.values() if s.tactic == "winograd")
    visit(scheduled.kernel.body, {})
    return found


def test_what_the_next_block_reads_is_fetched_while_products_are_summed() -> None:
    channels, height, width = 72, 24, 23
    batch = 9 + current_target().l2_bytes // (4 * channels * height * width)  # more than that cache holds
    shape = batch, channels, height, width
    program = compile_graph(unpadded(shape))
    choice = next(d.choice for d in program.log.of("tactic"))
    given_ = dict(re.findall(r"(\w+)=(\d+)", choice))
    m, block = int(given_["m"]), int(given_["tiles"])
    rows, columns = -(-(height - 2) // m), -(-(width - 2) // m)
    want = set()
    for n, row, column in list(np.ndindex(batch, rows, columns))[block : 2 * block]:
        for i, j in np.ndindex(m, m):  # past the two lines that the tiles above and to the left read
            y, x = row * m + 2 + i, column * m + 2 + j
            want |= {(n, y, x, c) for c in range(0, channels, 16) if y < height and x < width}
    assert fetched(program) == want


def test_nothing_is_fetched_of_images_that_a_core_keeps_or_whose_channels_lie_apart() -> None:
    assert not fetched(compile_graph(unpadded((1, 64, 24, 24))))
    assert fetched(compile_graph(unpadded((16, 64, 24, 24))))
    assert not fetched(compile_graph(convolution((16, 64, 24, 24), 64, 0)))


def test_places_of_tiles_share_no_cache_sets() -> None:
    for rows, columns in ((24, 64), (36, 16), (7, 24), (32, 128)):
        step = tile_scratch("tiles", 36, rows, columns).strides[0]
        assert step % LINE == 0
        assert (step // LINE) % 2 == 1
        assert step >= rows * columns


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_without_winograd_an_output_depends_on_its_window_alone(value: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 16, 16, 16)).astype(np.float32)
    w = tensors.tensor(rng.standard_normal((16, 16, 3, 3)).astype(np.float32))
    other = x.copy()
    other[0, 3, 8, 8] = value

    def convolved(images: tensors.Tensor) -> tensors.Tensor:
        return tensors.nn.functional.conv2d(images, w, padding=1)

    touched = {}
    for fast in (True, False):
        with settings.winograd(fast):
            compiled = tensors.compile(convolved)
            before, after = (compiled(tensors.tensor(images)).numpy() for images in (x, other))
        touched[fast] = np.argwhere((before.view(np.int32) != after.view(np.int32)).any((0, 1)))
    assert len(touched[False]) == 9
    assert touched[False].min() == 7
    assert touched[False].max() == 9
    assert len(touched[True]) > 9
