"""How products are cut: a single row in long pieces, deep reductions over several panels, last axes as one;
and what normalised rows are stored for the gradient.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base import settings
from stratal.base.artifact import Launch, flat
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.loops import index
from stratal.loops.expr import Buffer, Var
from stratal.plan.host import current_target
from stratal.runtime.storage import Storage
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem, watched_problems
from stratal.schedule.tactics import contract
from stratal.schedule.tactics.common import CHUNK_WORK, chunk_size
from stratal.schedule.tactics.contract import COPIES
from stratal.schedule.tactics.product import Grid, Product
from stratal.schedule.tactics.tiles import Tiling

F = nn.functional


def chosen(m: int, k: int, n: int) -> dict[str, int]:
    """Return the parameters of the product that is chosen for [m, k] x [k, n], which must be right."""
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    with watched_problems() as found:
        product = st.compile(lambda a, b: a @ b)(st.tensor(a), st.tensor(b)).numpy()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    (candidate,) = [c for _, c in found]
    return dict(candidate.parameters)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Any) -> Any:
    with settings.cache_dir(tmp_path):
        yield


def test_a_single_row_reads_long_pieces_of_a_large_matrix() -> None:
    taken = chosen(1, 300, 1500)
    assert taken["rows"] == 1 and taken["vectors"] > 4


def linear(m: int, k: int, n: int) -> dict[str, int]:
    """Return the parameters of the product that is chosen for [m, k] and weights [n, k]; it must be right."""
    rng = np.random.default_rng(m)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (n, k)))
    with watched_problems() as found:
        product = st.compile(lambda x, w: F.linear(x, w))(st.tensor(x), st.tensor(w)).numpy()
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    (candidate,) = [c for _, c in found]
    return {"dots": candidate.algorithm == "dots", **dict(candidate.parameters)}


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize(("m", "k"), [(1, 768), (1, 771), (2, 300), (1, 2048)])
def test_a_weight_that_memory_holds_is_read_row_after_row(m: int, k: int, target: str) -> None:
    with settings.target(target):
        columns = 2 * current_target().l2_bytes // (4 * k) + 5
        taken = linear(m, k, columns)
    assert taken["dots"] and {taken["rows"], taken["columns"]} == {1, m} and taken["vectors"] == 2 // m


@pytest.mark.parametrize(("m", "k", "caches"), [(1, 768, 1), (1, 3900, 8), (6, 768, 8)])
def test_tiles_have_several_columns_where_a_cache_holds_the_weight_or_rows_fill_it(
    m: int, k: int, caches: int
) -> None:
    taken = linear(m, k, caches * current_target().l2_bytes // (4 * k))
    assert taken["dots"] and taken["rows"] * taken["columns"] > m and taken["vectors"] == 1


def test_a_deep_product_runs_over_several_panels_that_share_a_block_of_rows() -> None:
    taken = chosen(640, 1400, 200)
    assert taken["depth"] > 0 and taken["run_columns"] > 1


def computed(spec: str, *shapes: tuple[int, ...], target: str) -> list[Candidate]:
    """Return what is chosen for a contraction, which must be right."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape, np.float32) for shape in shapes]
    nodes = [graph_input(f"x{k}", TensorType(float32, shape)) for k, shape in enumerate(shapes)]
    graph = Graph(nodes, [Builder(()).contract(*nodes, spec=spec)])
    with settings.target(target), watched_problems() as found:
        stored = [Storage.copy_of(v, n.aval) for v, n in zip(values, nodes, strict=True)]
        (made,) = compile_graph(graph).run(stored)
    exact = np.einsum(spec, *[v.astype(np.float64) for v in values])
    np.testing.assert_allclose(made.array, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    return [candidate for _, candidate in found]


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("columns", [1864, 2835, 4096])
def test_two_threads_share_a_single_row_evenly(columns: int, target: str) -> None:
    (candidate,) = computed("mk,kn->mn", (1, 467), (467, columns), target=target)
    with settings.target(target):
        width = dict(candidate.parameters)["vectors"] * current_target().lanes(4)
    assert -(-columns // (2 * width)) * width <= 0.52 * columns


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 4096), (16, 4096), (7, 3000), (3, 2000)])
def test_few_rows_read_whole_lines_of_a_large_matrix_in_runs_that_two_threads_share(
    rows: int, columns: int, target: str
) -> None:
    (candidate,) = computed("mk,kn->mn", (rows, 270), (270, columns), target=target)
    taken = dict(candidate.parameters)
    with settings.target(target):
        width = taken["vectors"] * current_target().lanes(4)
        assert width * 4 % current_target().cacheline_bytes == 0
    run = taken["run_columns"] * width
    share = -(-columns // run) // 2 * run
    assert taken["run_rows"] * taken["rows"] >= rows
    assert max(share, columns - share) <= 0.52 * columns


def test_panels_take_turns_over_rows_whose_lines_come_from_memory() -> None:
    for extra, shared in ((64, True), (-64, False)):
        rows = current_target().l3_bytes // (4 * 128) + extra
        (candidate,) = computed("km,kn->mn", (128, rows), (128, 256), target="host")
        taken = dict(candidate.parameters)
        assert (taken["run_columns"] > 1 and taken["run_rows"] > 1) == shared and not taken["depth"]


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("sizes", [(400, 130, 2), (113, 1302, 4), (250, 129, 2), (33, 49, 1)], ids=str)
def test_few_columns_become_dot_products_with_the_narrow_side_turned(
    sizes: tuple[int, int, int], target: str
) -> None:
    m, k, n = sizes
    (candidate,) = computed("mk,kn->mn", (m, k), (k, n), target=target)
    assert candidate.algorithm == ("dots" if n == 1 else "dots, one operand transposed")


@pytest.mark.parametrize("target", ["host", "haswell"])
def test_each_matrix_of_a_batch_is_copied_where_its_tiles_run(target: str) -> None:
    for queries, keys, depth in ((62, 92, 57), (41, 35, 9), (20, 50, 130)):
        shapes = (6, 5, queries, depth), (6, 5, keys, depth)
        (candidate,) = computed("bhqd,bhkd->bhqk", *shapes, target=target)
        assert candidate.algorithm != "tiles" or dict(candidate.parameters)["copy_b"] == 2  # inside


def contracted(spec: str, *shapes: tuple[int, ...]) -> list[tuple[Problem, Candidate]]:
    """Compile a product of random operands, which must be right; return what was scheduled how."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    with watched_problems() as found:
        made = st.compile(lambda a, b: st.einsum(spec, a, b))(st.tensor(a), st.tensor(b)).numpy()
    exact = np.einsum(spec, a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(made, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    return found


@pytest.mark.parametrize(("m", "k", "n"), [(25, 678, 185), (64, 300, 1000), (600, 100, 78)])
def test_rows_that_lie_side_by_side_are_read_where_they_are(m: int, k: int, n: int) -> None:
    assert chosen(m, k, n)["copy_b"] == 0


@pytest.mark.parametrize(("sizes", "copied"), [((403, 27, 232), "inside"), ((98, 10, 15), "before")])
def test_an_operand_across_the_vectors_is_copied_by_who_reads_it_where_there_are_enough_panels(
    sizes: tuple[int, int, int], copied: str
) -> None:
    m, k, n = sizes
    ((_, candidate),) = contracted("mk,kn->nm", (m, k), (k, n))
    assert COPIES[dict(candidate.parameters)["copy_b"]] == copied


def test_blocks_of_a_copy_that_fours_do_not_fill_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps of the reduction are a block: what is copied four at a time must not reach the next."""
    tiling = Tiling(rows=5, vectors=2, depth=5, run_rows=3, copy_b="inside")
    monkeypatch.setattr(contract, "choose_tiling", lambda p: tiling)
    ((_, candidate),) = contracted("mk,kn->nm", (403, 10), (10, 15))
    assert dict(candidate.parameters)["depth"] == 5


def test_only_the_last_panel_of_a_copy_asks_where_it_ends() -> None:
    """A condition in all panels would make gathers of them, which take twenty times as long."""
    ((problem, candidate),) = contracted("mk,kn->nm", (100, 10), (10, 15))
    (copy,) = problem.schedule(candidate).before
    conditions = [line for line in str(copy.kernel).splitlines() if "guard(" in line or "if " in line]
    assert conditions and not any("p" in line for line in conditions)


@pytest.mark.parametrize(("count", "size"), [(29, 3), (26, 4), (64, 8), (30, 3), (1000, 125)])
def test_few_chunks_are_shared_evenly(count: int, size: int) -> None:
    assert chunk_size(8 * CHUNK_WORK, count) == size


@pytest.mark.parametrize(("m", "n"), [(25, 6), (150, 16), (5, 16)])
def test_two_threads_share_few_rows_of_tiles_of_dot_products_evenly(m: int, n: int) -> None:
    ((_, candidate),) = contracted("mk,nk->mn", (m, 4000), (n, 4000))
    if candidate.algorithm != "dots":
        assert current_target().lanes(4) < 16  # tiles along shorter vectors may be faster
        return
    cut = dict(candidate.parameters)
    runs = -(-n // (cut["columns"] * cut["run_columns"]))
    assert runs * -(-m // cut["rows"]) % 2 == 0


def test_short_rows_are_dot_products_too() -> None:
    """A batch of matrices with short rows times vectors copies nothing."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((9, 50, 25), np.float32), rng.standard_normal((9, 25), np.float32)
    with watched_problems() as found:
        made = st.compile(lambda a, b: st.einsum("bmk,bk->bm", a, b))(st.tensor(a), st.tensor(b)).numpy()
    np.testing.assert_allclose(made, np.einsum("bmk,bk->bm", a, b), rtol=0, atol=1e-5 * np.abs(made).max())
    assert [c.algorithm for _, c in found] == ["dots"]


JOINED: dict[str, tuple[Any, list[tuple[int, ...]], bool]] = {
    "1x1 convolution": (lambda x, w: F.conv2d(x, w), [(2, 9, 7, 11), (6, 9, 1, 1)], True),
    "with a residual": (
        lambda x, w, r: st.relu(F.conv2d(x, w) + r),
        [(2, 9, 7, 11), (6, 9, 1, 1), (2, 6, 7, 11)],
        True,
    ),
    "two free axes": (lambda a, b: st.einsum("abk,kcd->abcd", a, b), [(5, 3, 10), (10, 7, 3)], True),
    "scaled by column": (lambda x, w, r: F.conv2d(x, w) * r, [(2, 9, 7, 11), (6, 9, 1, 1), (11,)], False),
    "windows": (lambda x, w: F.conv2d(x, w), [(2, 9, 7, 11), (6, 9, 2, 2)], False),
    "padded": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 9, 5, 9), (6, 9, 1, 1)], True),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2), [(2, 9, 7, 11), (6, 9, 1, 1)], False),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=3), [(2, 9, 7, 11), (6, 3, 1, 1)], True),
    "turned": (lambda a, b: st.einsum("abk,kcd->abdc", a, b), [(5, 3, 10), (10, 7, 3)], False),
}


@pytest.mark.parametrize("case", JOINED)
def test_last_axes_that_all_accesses_walk_as_one_are_one_loop(case: str) -> None:
    function, shapes, joined = JOINED[case]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    with watched_problems() as found:
        made = st.compile(function)(*map(st.tensor, inputs)).numpy()
    with st.eager():
        expected = function(*(st.tensor(x.astype(np.float64)) for x in inputs)).numpy()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
    products = [Product(p.expressions(), current_target()) for p, _ in found if p.group.kind == "contract"]
    assert products
    assert any(p.axes[-1].extent == math.prod(made.shape[-2:]) for p in products) is joined


@pytest.mark.parametrize(("strides", "evenly"), [((1, 1600, 320, 64), True), ((1, 1700, 320, 64), False)])
def test_an_axis_read_through_views_is_one_loop_where_it_lies_evenly(
    strides: tuple[int, ...], evenly: bool
) -> None:
    m, n, k = Var("m", 120), Var("n", 400), Var("k", 64)
    images = Buffer("x", float32, (64, 16, 5, 5), strides)
    terms = [Buffer("g", float32, (64, 120))[k, m], images[k, *index.unflatten(n, (16, 5, 5))]]
    assert (Grid([m, n], terms, Buffer("y", float32, (120, 400))[m, n]).axes == [m, n]) == evenly


def test_normalised_rows_are_stored_once_for_the_gradient() -> None:
    norm, head = nn.LayerNorm(64), nn.Linear(64, 64)

    @st.compile
    def step(x: Any) -> Any:
        loss = head(norm(x)).square().sum()
        loss.backward()
        return loss

    step(st.ones((512, 64), requires_grad=True))
    values = step.program.executable.values
    wide = [v.label for v in values if v.home == "arena" and v.type.ints == (512, 64)]
    assert wide.count("sub") == 1 and wide.count("mul") == 1, wide  # that one is the gradient of the square


@pytest.mark.parametrize("geometry", [
    {"padding": 1}, {"padding": (2, 0), "stride": 2}, {"padding": (1, 3), "dilation": (1, 2)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [st.float32, st.bfloat16], ids=str)
def test_depthwise_convolutions_read_images_with_channels_last_without_a_padded_copy(
    geometry: dict[str, Any], dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in ((2, 9, 11, 50), (100, 1, 3, 5)))

    def function(x: Any, w: Any) -> Any:
        images = st.moveaxis(x, -1, 1)
        return st.moveaxis(F.conv2d(images, w, groups=50, **geometry), 1, -1)

    compiled = st.compile(function)
    given = [st.tensor(v).astype(dtype) for v in (x, w)]
    made = compiled(*given).astype(st.float32).numpy()
    with st.eager():
        expected = function(*(v.astype(st.float64) for v in given)).numpy()
    tolerance = 1e-5 if dtype == st.float32 else 0.05
    np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance)
    launched = [
        launch.label for launch in flat(compiled.program.draft.commands) if isinstance(launch, Launch)
    ]
    assert not any(label.startswith("pad") for label in launched), launched
