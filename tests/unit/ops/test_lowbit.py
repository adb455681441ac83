"""Products of 8-bit integers are exact, whatever the target has for them; 16-bit floats sum in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import stratal
from stratal import nn, optim
from stratal.base import settings
from stratal.base.dtypes import DType, bfloat16, float16, float32, int8, int32, uint8
from stratal.base.errors import DTypeError, VerifyError
from stratal.base.target import TARGETS, Target
from stratal.base.types import TensorType
from stratal.codegen.assemble import emit_assembly
from stratal.codegen.module import kernel_module
from stratal.compiler import Program, compile_graph, decided
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.loops.exact import apply
from stratal.loops.expr import Buffer, call
from stratal.plan.host import current_target, host_target
from stratal.runtime.storage import Storage
from stratal.schedule import select

pytestmark = pytest.mark.row("D12")

F = nn.functional
Array = np.ndarray[Any, Any]
BYTES = (int8, uint8)
KINDS = [(a, b) for a in BYTES for b in BYTES]
SPECS = {
    spec: tuple(spec.split("->")[0].split(","))
    for spec in (
        "mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm", "bmk,bkn->bmn", "bmk,nk->bmn",
        "mjk,jkn->mn", "mk,k->m",
    )
}  # fmt: skip
HOST = host_target()
MACHINES = ("host", *(m for m in ("avx512", "haswell") if TARGETS[m].runs_on(HOST.arch, HOST.features)))
needs_pairs = pytest.mark.skipif(
    not host_target().instructions.bfloat16_dots, reason="this machine has no products of pairs of bfloat16"
)


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """What is forced here must not be found by others."""
    with settings.cache_dir(None):
        yield


def product(spec: str, sizes: dict[str, int], kinds: tuple[DType, DType]) -> Graph:
    left, right = SPECS[spec]
    x, y = (
        graph_input(name, TensorType(d, tuple(sizes[c] for c in letters)))
        for name, d, letters in (("x", kinds[0], left), ("y", kinds[1], right))
    )
    return Graph([x, y], [Builder(()).contract(x, y, spec=spec, dtype=int32)], name="product")


def drawn(graph: Graph, seed: int, extremes: bool = False) -> list[Array]:
    """Return operands: any bytes, or only the least and the largest."""
    rng = np.random.default_rng(seed)
    found = []
    for node in graph.inputs:
        ends = np.iinfo(node.dtype.np)
        any_ = rng.integers(ends.min, ends.max + 1, node.shape)
        found.append(
            np.asarray(np.where(any_ < any_.mean(), ends.min, ends.max) if extremes else any_, node.dtype.np)
        )
    return found


def run(graph: Graph, values: list[Array]) -> Array:
    program: Program = compile_graph(graph)
    stored = [Storage.copy_of(a, n.aval) for a, n in zip(values, graph.inputs, strict=True)]
    return np.array(program.run(stored)[0].array)


def wanted(spec: str, values: list[Array]) -> Array:
    """Sum in 64 bits; int32 is what is left of that."""
    return np.asarray(np.einsum(spec, *[v.astype(np.int64) for v in values])).astype(np.int32)


def tactics(graph: Graph, target: Target) -> list[str]:
    return [k.tactic for k in decided(graph, target).draft.kernels.values()]


@pytest.fixture
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the product over words wherever there is one."""
    every = select.candidates

    def chosen(kind: str, x: Any, target: Target) -> Any:
        found = list(every(kind, x, target))
        return [c for c in found if c.algorithm == "words"] or found

    monkeypatch.setattr(select, "candidates", chosen)


def check(machine: str, spec: str, kinds: tuple[DType, DType], size: int) -> None:
    graph = product(spec, {"b": 3, "m": size + 1, "k": size, "n": size + 19, "j": 3}, kinds)
    with settings.target(machine):
        assert "words" in tactics(graph, current_target())
        for extremes in (False, True):
            values = drawn(graph, size, extremes)
            np.testing.assert_array_equal(run(graph, values), wanted(spec, values))


@pytest.mark.sampled(15)
@pytest.mark.parametrize(("k", "spec"), list(enumerate(SPECS)))
def test_products_of_bytes_equal_the_sum_in_wide_integers(k: int, spec: str, words_only: None) -> None:
    check("host", spec, KINDS[k % 4], 37)
    check("haswell", spec, KINDS[(k + 1) % 4], 22)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("machine", MACHINES)
def test_products_of_all_kinds_of_bytes_are_exact(
    machine: str, spec: str, kinds: tuple[DType, DType], words_only: None
) -> None:
    for size in (4, 37, 70):
        check(machine, spec, kinds, size)


@pytest.mark.sampled(4)
@given(
    spec=st.sampled_from(sorted(SPECS)), kinds=st.sampled_from(KINDS), machine=st.sampled_from(MACHINES),
    sizes=st.fixed_dictionaries({c: st.integers(0, 40) for c in "mkn"}), extremes=st.booleans(),
)  # fmt: skip
@hypothesis_settings(max_examples=12, deadline=None)
def test_products_of_bytes_are_exact_at_any_size(
    spec: str, kinds: tuple[DType, DType], machine: str, sizes: dict[str, int], extremes: bool
) -> None:
    graph = product(spec, {**sizes, "b": 2, "j": 2}, kinds)
    values = drawn(graph, sum(sizes.values()), extremes and all(sizes.values()))
    with settings.target(machine), settings.cache_dir(None):
        np.testing.assert_array_equal(run(graph, values), wanted(spec, values))


def test_long_sums_wrap_like_the_reference() -> None:
    """66,000 products of 255 and -128 do not fit 31 bits: the sums wrap."""
    graph = product("mk,nk->mn", {"m": 3, "k": 132_000, "n": 18}, (uint8, int8))
    values = [np.full((3, 132_000), 255, np.uint8), np.full((18, 132_000), -128, np.int8)]
    exact = wanted("mk,nk->mn", values)
    assert exact[0, 0] == (132_000 * 255 * -128 + (1 << 31)) % (1 << 32) - (1 << 31)
    np.testing.assert_array_equal(run(graph, values), exact)


def test_products_without_instructions_of_their_own_are_exact(
    monkeypatch: pytest.MonkeyPatch, words_only: None
) -> None:
    monkeypatch.setattr(Target, "byte_dots", property(lambda _: "arithmetic"))
    graph = product("mk,kn->mn", {"m": 20, "k": 50, "n": 35}, (int8, int8))
    values = drawn(graph, 5)
    np.testing.assert_array_equal(run(graph, values), wanted("mk,kn->mn", values))


def test_large_products_take_words_where_the_machine_multiplies_bytes() -> None:
    vnni = dataclasses.replace(TARGETS["avx512"], features="+avx512vnni")
    graph = product("mk,kn->mn", {"m": 256, "k": 256, "n": 256}, (int8, int8))
    for target, instruction in (
        (vnni, "vpdpbusd"), (TARGETS["avx512"], "vpmaddwd"), (TARGETS["haswell"], "vpmaddwd"),
    ):  # fmt: skip
        (kernel,) = [k for k in decided(graph, target).draft.kernels.values() if k.tactic == "words"]
        text = emit_assembly(kernel_module(kernel.kernel, target), target)
        assert text.count(instruction) >= 32, target.name
    assert "words" not in tactics(graph, TARGETS["neon"])


def test_widening_bytes_first_is_the_same_product() -> None:
    """`a.astype(int32) @ b.astype(int32)` reads bytes, not four times as much."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (96, 96)).astype(np.int8) for _ in range(2))
    compiled = stratal.compile(lambda x, y: x.astype(stratal.int32) @ y.astype(stratal.int32))
    x, y = stratal.tensor(a), stratal.tensor(b)
    np.testing.assert_array_equal(compiled(x, y).numpy(), wanted("mk,kn->mn", [a, b]))
    assert tactics(compiled.program.graph, current_target())[-1] == "words"


def test_what_follows_a_product_of_bytes_runs_in_its_kernel() -> None:
    """Scales of a quantised layer: int32 sums become float32 where they are made."""
    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(0, 256, (64, 128)).astype(np.uint8),
        rng.integers(-128, 128, (48, 128)).astype(np.int8),
    )
    scale, bias = rng.random(48, np.float32), rng.random(48, np.float32)

    def layer(x: Any, w: Any, s: Any, t: Any) -> Any:
        return stratal.relu(
            (x.astype(stratal.int32) @ w.astype(stratal.int32).T).astype(stratal.float32) * s + t
        )

    compiled = stratal.compile(layer)
    found = compiled(*[stratal.tensor(v) for v in (a, b, scale, bias)]).numpy()
    sums = wanted("mk,nk->mn", [a, b]).astype(np.float32)
    np.testing.assert_array_equal(found, np.maximum(sums * scale + bias, 0))
    assert tactics(compiled.program.graph, current_target()) == ["pack", "words"]


def test_bytes_of_two_kinds_need_a_wider_signed_result() -> None:
    with pytest.raises(DTypeError, match="differ in dtype"):
        Builder(()).contract(
            graph_input("x", TensorType(uint8, (2, 4))),
            graph_input("y", TensorType(int8, (4, 3))),
            spec="mk,kn->mn",
        )


def test_the_functions_of_words_mean_what_they_say() -> None:
    rng = np.random.default_rng(2)
    u, s = rng.integers(0, 256, (4, 50)).astype(np.uint8), rng.integers(-128, 128, (4, 50)).astype(np.int8)
    words = [apply("bytes4", list(v), int32) for v in (u, s)]
    np.testing.assert_array_equal(words[0].view(np.uint8).reshape(50, 4).T, u)
    start = rng.integers(-(1 << 31), 1 << 31, 50).astype(np.int32)
    sums = (start + (u.astype(np.int64) * s).sum(axis=0)).astype(np.int32)
    np.testing.assert_array_equal(apply("dot4", [start, *words], int32), sums)
    floats = Buffer("x", stratal.float32, (4,))
    with pytest.raises(VerifyError, match="bytes4"):
        call("bytes4", *[floats[k] for k in range(4)])
    with pytest.raises(VerifyError, match="dot4 takes i32 and two words"):
        call("dot4", floats[0], floats[1], floats[2])


def test_a_product_of_pairs_adds_the_upper_then_the_lower_and_rounds_each_time() -> None:
    rng = np.random.default_rng(6)
    x, y = (rng.standard_normal((2, 500)).astype(bfloat16.np) for _ in range(2))
    words = [apply("halves2", list(v), int32) for v in (x, y)]
    np.testing.assert_array_equal(words[0].view(np.uint16).reshape(500, 2).T, x.view(np.uint16))
    sums = start = rng.standard_normal(500).astype(np.float32)
    for k in (1, 0):
        sums = apply("fma", [x[k].astype(np.float32), y[k].astype(np.float32), sums], float32)
    np.testing.assert_array_equal(apply("dot2", [start, *words], float32), sums)
    with pytest.raises(VerifyError, match="dot2 takes f32 and two words"):
        call("dot2", *[Buffer("x", int32, (4,))[k] for k in range(3)])


def test_a_product_of_pairs_takes_numbers_below_the_least_normal_one_for_zero() -> None:
    least = 2.0**-126
    for x, y, start, sum_ in (
        (2.0**-130, 2.0**20, 0, 0.0),  # an operand
        (2.0**-63, 2.0**-64, 0, 0.0),  # a product
        (1, 0, -least / 2, 0.0),  # what it is added to
        (2.0**-63, 2.0**-63, -1.5 * least, -0.0),  # a sum
        (-(2.0**-75), 2.0**-76, least, least),  # rounded up to the least normal number
        (-1.5 * 2.0**-75, 2.0**-76, least, 0.0),  # not quite
    ):
        words = [apply("halves2", list(np.array([v, 0], bfloat16.np)), int32) for v in (x, y)]
        found = apply("dot2", [np.float32(start), *words], float32)
        np.testing.assert_array_equal(found, sum_)


# -- 16-bit floats -----------------------------------------------------------------------------------------


def product_of(spec: str, sizes: Mapping[str, int], dtype: DType, result: DType | None = None) -> Graph:
    """Return the graph of a product whose letters have the given sizes."""
    x, y = (
        graph_input(name, TensorType(dtype, tuple(sizes[c] for c in letters)))
        for name, letters in zip("xy", SPECS[spec], strict=True)
    )
    return Graph([x, y], [Builder(()).contract(x, y, spec=spec, dtype=result)], name="product")


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "bmk,bkn->bmn"])
@pytest.mark.parametrize("machine", ["host", "haswell"])
def test_products_of_16_bit_floats_sum_in_float32_and_round_once(
    machine: str, spec: str, dtype: DType
) -> None:
    """Integers of up to 8 bits and their sums here are exact in float32: only the last rounding is left."""
    rng = np.random.default_rng(3)
    sizes = {"b": 2, "m": 70, "k": 90, "n": 110}
    graph = product_of(spec, sizes, dtype)
    values = [rng.integers(-100, 101, n.shape).astype(dtype.np) / dtype.np.type(16) for n in graph.inputs]
    exact = np.einsum(spec, *[v.astype(np.float64) for v in values])
    with settings.target(machine):
        np.testing.assert_array_equal(run(graph, values), exact.astype(np.float32).astype(dtype.np))


def in_pairs(spec: str, left: Array, right: Array) -> Array:
    """Return a product of bfloat16 as sums over pairs, one after the other."""
    (a, b), wide = SPECS[spec], 2 * -(-left.shape[SPECS[spec][0].index("k")] // 2)
    x, y = (
        np.pad(v, [(0, wide - n if c == "k" else 0) for c, n in zip(letters, v.shape, strict=True)])
        for v, letters in ((left, a), (right, b))
    )
    x, y = np.einsum(f"{a}->mk", x), np.einsum(f"{b}->kn", y)
    total = np.zeros((len(x), y.shape[1]), np.float32)
    for k in range(0, wide, 2):
        first = apply("halves2", [x[:, k, None], x[:, k + 1, None]], int32)
        second = apply("halves2", [y[None, k], y[None, k + 1]], int32)
        total = apply("dot2", [total, *np.broadcast_arrays(first, second)], float32)
    return total.T if spec.endswith("nm") else total


@needs_pairs
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm"])
@pytest.mark.parametrize("sizes", [(13, 40, 70), (7, 33, 19), (1, 2, 3), (20, 9, 1)], ids=str)
def test_products_of_bfloat16_sum_pairs_in_order(
    spec: str, sizes: tuple[int, int, int], words_only: None
) -> None:
    """Kernels give the bits of the interpreter, for whole vectors, parts of one and single numbers."""
    graph = product_of(spec, dict(zip("mkn", sizes, strict=True)), bfloat16, float32)
    rng = np.random.default_rng(7)
    values = [rng.standard_normal(n.shape).astype(bfloat16.np) for n in graph.inputs]
    assert "words" in tactics(graph, current_target())
    np.testing.assert_array_equal(run(graph, values), in_pairs(spec, *values))


@needs_pairs
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "bmk,bkn->bmn", "mjk,jkn->mn"])
def test_sums_over_pairs_of_bfloat16_are_as_near_as_float32_is(spec: str, words_only: None) -> None:
    sizes = {"b": 2, "m": 25, "k": 1403, "n": 35, "j": 3}
    graph = product_of(spec, sizes, bfloat16, float32)
    rng = np.random.default_rng(8)
    values = [rng.standard_normal(n.shape).astype(bfloat16.np) for n in graph.inputs]
    wide = [v.astype(np.float64) for v in values]
    error = np.abs(run(graph, values) - np.einsum(spec, *wide))
    depth = sizes["k"] * (sizes["j"] if "j" in spec else 1)
    assert np.all(error <= depth * 2.0**-24 * np.einsum(spec, *map(np.abs, wide)))
    assert error.max() < 64 * 2.0**-24 * np.abs(np.einsum(spec, *wide)).max()  # sums in blocks: far below


WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "channels that fill words": ((2, 6, 9, 8), (5, 6, 3, 3), {}),
    "one channel too few": ((2, 7, 9, 8), (33, 7, 3, 3), {"padding": 1}),
    "groups": ((3, 14, 9, 7), (10, 7, 3, 3), {"groups": 2, "padding": 1}),
    "strides": ((2, 7, 11, 9), (20, 7, 5, 3), {"stride": (2, 1), "dilation": (1, 2)}),
    "the batch innermost": ((16, 5, 6, 7), (3, 5, 3, 3), {"padding": 1}),
    "one axis": ((2, 9, 40), (4, 9, 3), {"stride": 2}),
}


@needs_pairs
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_read_in_words_from_one_copy_of_the_image(
    case: str, last: bool, words_only: None
) -> None:
    shape, filters, geometry = WINDOWS[case]
    convolve = getattr(F, f"conv{len(shape) - 2}d")
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(s).astype(bfloat16.np) for s in (shape, filters))
    x[0, 0, 4] = np.inf  # reaches the windows over it alone, though its neighbours share a word with it

    def function(x: Any, w: Any) -> Any:
        images = stratal.moveaxis(x, -1, 1) if last else x
        made = convolve(images, w, **geometry)
        return stratal.moveaxis(made, 1, -1) if last else made

    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    compiled = stratal.compile(function)
    found = compiled(stratal.tensor(given), stratal.tensor(w)).astype(stratal.float32).numpy()
    with stratal.eager():
        expected = function(*(stratal.tensor(v.astype(np.float64)) for v in (given, w))).numpy()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=0.01, atol=0.05)
    if last:
        kernels = [k.kernel for k in compiled.program.draft.kernels.values() if k.tactic == "words"]
        assert len(kernels) == 1


def test_products_of_bfloat16_take_pairs_where_the_machine_has_an_instruction() -> None:
    machine = dataclasses.replace(TARGETS["avx512"], features="+avx512bf16")
    types = [TensorType(bfloat16, (256, 256))] * 2
    x, y = (graph_input(name, t) for name, t in zip("xy", types, strict=True))
    graph = Graph([x, y], [Builder(()).contract(x, y, spec="mk,kn->mn")], name="product")
    (kernel,) = [k for k in decided(graph, machine).draft.kernels.values() if k.tactic == "words"]
    assert emit_assembly(kernel_module(kernel.kernel, machine), machine).count("vdpbf16ps") >= 32
    for target in (TARGETS["avx512"], TARGETS["haswell"], TARGETS["neon"]):
        assert "words" not in tactics(graph, target)


def test_operands_of_16_bits_are_widened_once_not_for_every_product() -> None:
    types = [TensorType(bfloat16, (512, 512))] * 2
    x, y = (graph_input(name, t) for name, t in zip("xy", types, strict=True))
    graph = Graph([x, y], [Builder(()).contract(x, y, spec="mk,nk->mn")], name="product")
    draft = decided(graph, TARGETS["avx512"]).draft
    main = list(draft.kernels.values())[-1].kernel
    assert {b.dtype for b in main.reads} == {float32}


@needs_pairs
def test_operands_rounded_where_they_are_read_run_over_words_too(words_only: None) -> None:
    rng = np.random.default_rng(8)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((33, 70), (41, 70)))

    @stratal.compile
    def product(x: Any, w: Any) -> Any:
        return x.astype(stratal.bfloat16) @ w.astype(stratal.bfloat16).T

    found = product(stratal.tensor(x), stratal.tensor(w)).astype(stratal.float32).numpy()
    wide = [v.astype(bfloat16.np).astype(np.float64) for v in (x, w)]
    np.testing.assert_allclose(found, wide[0] @ wide[1].T, rtol=2.0**-8, atol=1e-4)
    assert "words" in {k.tactic for k in product.program.draft.kernels.values()}


@needs_pairs
def test_words_made_of_the_weights_of_a_recurrence_cost_nothing() -> None:
    """They are the same in every turn: packed before the first."""
    w = stratal.tensor(np.random.default_rng(9).standard_normal((1024, 256)).astype(np.float32) / 16)

    @stratal.compile
    def last(h: Any) -> Any:
        def turn(h: Any, _: Any) -> Any:
            with stratal.autocast():
                gates = F.linear(h, w)
            return stratal.tanh(gates[:, :256].astype(stratal.float32)), None

        return stratal.scan(turn, h, stratal.zeros(64))[0]

    last(stratal.ones(32, 256))
    assert "words" in {k.tactic for k in last.program.draft.kernels.values()}


def test_a_model_in_bfloat16_trains_like_float32_with_float32_master_weights() -> None:
    """Weights and activations of the model are bfloat16; the optimiser updates float32 weights."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((128, 16)).astype(np.float32)
    wanted_ = np.tanh(x @ rng.standard_normal((16, 4)).astype(np.float32) / 4)
    data = stratal.tensor(x), stratal.tensor(wanted_)

    def losses(low: Any) -> list[float]:
        stratal.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        master = optim.SGD(model.parameters(), lr=0.2)
        first, last = model[0], model[2]

        @stratal.compile
        def step(x: Any, y: Any) -> Any:
            master.zero_grad()
            h = F.relu(F.linear(x.astype(low), first.weight.astype(low), first.bias.astype(low)))
            out = F.linear(h, last.weight.astype(low), last.bias.astype(low))
            loss = F.mse_loss(out.astype(stratal.float32), y)
            loss.backward()
            master.step()
            return loss

        found = [float(step(*data)) for _ in range(60)]
        assert all(p.dtype == stratal.float32 for p in model.parameters())
        return found

    full, mixed = losses(stratal.float32), losses(stratal.bfloat16)
    assert full[-1] < 0.25 * full[0]
    np.testing.assert_allclose(mixed, full, rtol=0.05)
    assert mixed != full
