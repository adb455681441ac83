"""Every primitive of the schedule language: its example, what it refuses, an effect that can be counted."""

from __future__ import annotations

import re

import numpy as np
import pytest
from doc_examples import DOCS
from random_schedules import inputs
from test_te import product

from stratal import te
from stratal.base.dtypes import float32
from stratal.base.errors import ScheduleError
from stratal.codegen.module import kernel_module
from stratal.loops import index
from stratal.loops.expr import Buffer, Load, Var, call, walk
from stratal.loops.stmt import For, If, Seq, Store, expressions, statements
from stratal.plan.host import current_target
from stratal.schedule.language.dependence import private

TILE = """
split(y, 4)
split(x, 4)
reorder(yo, xo, yi, xi)
fission(xi)
fission(yi)
split(k, 4)
reorder(ko, yi_1, xi_1, ki)
"""
STAGES = """
x = placeholder((8, 6), "float32")
t = compute((8, 6), lambda a, b: x[a, b] * x[a, b])
k = reduce_axis(6)
s = compute((8,), lambda r: sum(t[r, k], axis=k))
y = compute((8, 6), lambda i, j: t[i, j] - s[i])
"""


def loads_of(schedule: te.LoopSchedule, name: str) -> int:
    """Return how many elements of a tensor the loops load."""
    return te.traffic(schedule.nest.body)[schedule.nest.buffer(name)][0]


def llvm(schedule: te.LoopSchedule) -> str:
    return "\n".join(kernel_module(k, current_target()) for k in te.kernels_of(schedule))


def check(schedule: te.LoopSchedule) -> None:
    """Check that a schedule gives the bits of the plain loops, interpreted and native."""
    plain = te.schedule(schedule.algorithm)
    arrays = inputs(plain)
    expected = np.asarray(te.interpret(plain, *arrays)).tobytes()
    assert np.asarray(te.interpret(schedule, *arrays)).tobytes() == expected
    assert np.asarray(te.build(schedule)(*arrays)).tobytes() == expected


@pytest.mark.row("D5")
@pytest.mark.parametrize("name", sorted(te.PRIMITIVES))
def test_the_example_of_every_primitive_runs_and_changes_no_bit(name: str) -> None:
    schedule = te.parse(te.PRIMITIVES[name].example)
    assert schedule.steps[-1].name == name
    assert schedule.loops != te.parse(te.PRIMITIVES[name].example.rpartition("\n")[0] + "\n").loops
    check(schedule)


REFUSED = {
    "split": [("", "split(y, 0)", "at least 1"), ("vectorize(x)", "split(x, 2)", "decided")],
    "fuse": [("", "fuse(x, k)", "perfectly nested")],
    "reorder": [
        (TILE, "reorder(ki, ko)", "not perfectly nested|order in which C"),
        ("", "reorder(k, x)", "not perfectly nested"),
        ("fission(x)\nfission(y)\nsplit(k, 4)", "reorder(ki, ko)", "order in which C is combined"),
    ],
    "fission": [("", "fission(k)", "1 statements"), ("", "fission(x, 2)", "2 statements")],
    "merge": [("fission(x)", "merge(x, y)", "merge")],
    "peel": [("unroll(k)", "peel(k)", "decided")],
    "unroll": [("vectorize(x)", "unroll(x)", "serial")],
    "vectorize": [("", "vectorize(k)", "meet in C"), ("vectorize(x)", "vectorize(y)", "inside a vector")],
    "parallel": [("", "parallel(k)", "meet in C"), ("", "parallel(x)", "stands inside another")],
    "cache_read": [
        ("", "cache_read(C, y)", "writes C"),
        ("", "cache_read(A, y, nowhere)", "the space is"),
        ("vectorize(y)", "cache_read(A, x, register)", "vector loop y would meet"),
    ],
    "cache_write": [("", "cache_write(A, y)", "writes nothing")],
    "store_at": [
        ("", "store_at(C, y)", "not a temporary"),
        ("cache_read(A, y)", "store_at(AL, x)", "outside"),
    ],
    "inline": [
        ("", "inline(A)", "not a temporary"),
        ("cache_read(A, y)", "inline(AL)", "not computed by one"),
    ],
    "share": [("", "share(C, y)", "not finished")],
    "tensorize": [
        ("", "tensorize(y, nobody)", "no block"),
        ("", "tensorize(y, gemm4x4_add)", "not what gemm4x4"),
    ],
    "pipeline": [
        ("", "pipeline(y, C)", "scratch tile"),
        ("cache_read(A, y)", "pipeline(x, AL)", "scratch tile|carries|own"),
        (TILE + "\ncache_write(C, xo)", "pipeline(ko, CL)", "carries values|of their own"),
    ],
    "branch": [],
}


@pytest.mark.row("D5")
@pytest.mark.parametrize("name", sorted(te.PRIMITIVES))
def test_every_primitive_refuses_what_could_change_a_result(name: str) -> None:
    for before, step, says in REFUSED[name]:
        schedule = product(8, 8, 8).replay(before)
        with pytest.raises(ScheduleError, match=says) as caught:
            schedule.replay(step)
        assert caught.value.hint


# -- what each family is for ----------------------------------------------------------------------------
@pytest.mark.row("D5")
def test_loop_transformations_bring_uses_of_one_element_together() -> None:
    """Between two uses of an element of B lie fewer other elements after tiling."""

    def distance(schedule: te.LoopSchedule) -> int:
        loops = [v.var for v in schedule.nest.loops.values()]
        (access,) = [
            e for e in walk(expressions(schedule.nest.body)) if isinstance(e, Load) and e.buffer.name == "B"
        ]
        used = [v for v in loops if v in access.free]
        innermost_unused = max(loops.index(v) for v in loops if v not in access.free and v.extent > 1
                               and any(v is f.var for f in schedule.nest.around(leaf(schedule))))  # fmt: skip
        return int(np.prod([v.extent for v in used if loops.index(v) > innermost_unused]))

    def leaf(schedule: te.LoopSchedule) -> For:
        return [s for s in statements(schedule.nest.body) if isinstance(s, For)][-1]

    plain, tiled = product(8, 8, 8), product(8, 8, 8).replay(TILE)
    assert distance(tiled) < distance(plain)
    check(tiled)


@pytest.mark.row("D5")
def test_integer_reductions_may_run_in_any_order_and_float_ones_may_not() -> None:
    steps = "fission(x)\nfission(y)\nreorder(k, y_1, x_1)\nsplit(k, 4)\nreorder(ki, ko)"
    check(product(8, 8, 8, "int32").replay(steps))
    with pytest.raises(ScheduleError, match="order in which C is combined"):
        product(8, 8, 8).replay(steps)


@pytest.mark.row("D5")
def test_threads_get_chunks_and_lanes_get_vectors() -> None:
    schedule = product(8, 16, 8).replay("fission(x)\nreorder(k, x_1)\nvectorize(x_1)\nparallel(y)")
    (kernel,) = te.kernels_of(schedule)
    assert kernel.num_chunks == 8
    assert "<16 x float>" in llvm(schedule)
    assert "<16 x float>" not in llvm(product(8, 16, 8))
    check(schedule)


@pytest.mark.row("D5")
def test_unrolled_loops_leave_no_branch_and_allow_register_tiles() -> None:
    """The accumulator of a tile stays in registers: nothing is stored to memory but the result, once."""
    steps = """
    split(x, 16)
    reorder(y, xo, xi)
    fission(xi)
    reorder(k, xi_1)
    vectorize(xi)
    vectorize(xi_1)
    cache_write(C, xo, register)
    vectorize(c1)
    """
    schedule = product(4, 32, 8).replay(steps)
    assert llvm(schedule).count("store <16 x float>") == 1
    check(schedule)


@pytest.mark.row("D5")
def test_tiles_in_the_cache_are_read_many_times_for_one_load_from_memory() -> None:
    plain = product(8, 8, 8)
    tiled = plain.replay(TILE).cache_write("C", "xo").cache_read("A", "ko").cache_read("B", "ko")
    assert loads_of(plain, "A") == loads_of(plain, "B") == 8**3
    assert loads_of(tiled, "A") == loads_of(tiled, "B") == 8**3 // 4  # each element serves a tile of 4
    assert te.traffic(tiled.nest.body)[tiled.nest.buffer("C")] == (0, 64)
    check(tiled)


@pytest.mark.row("D5")
def test_tails_are_read_and_written_within_bounds() -> None:
    steps = TILE + "\ncache_write(C, xo)\ncache_read(A, ko)\ncache_read(B, ko)"
    for m, n, p in ((7, 5, 9), (1, 6, 3), (4, 4, 1)):
        check(product(m, n, p).replay(steps))


@pytest.mark.row("D5")
def test_chunks_that_share_a_tile_load_every_element_once_instead_of_once_each() -> None:
    alone = product(8, 8, 8).replay(TILE).cache_read("B", "xo").parallel("yo")
    shared = product(8, 8, 8).replay(TILE).share("B", "xo").parallel("xo_1").parallel("yo")
    assert loads_of(alone, "B") == 2 * 8 * 8  # both chunks copy all of B
    assert loads_of(shared, "B") == 8 * 8
    first, second = te.kernels_of(shared)
    assert first.num_chunks == second.num_chunks == 2
    assert [b.name for b in first.writes] == ["BS"]
    check(shared)
    check(alone)


@pytest.mark.row("D5")
def test_a_block_takes_the_place_of_exactly_what_it_declares() -> None:
    schedule = te.parse(te.PRIMITIVES["tensorize"].example)
    assert "unroll gemm4x4_add in 1:" in schedule.loops
    assert "<4 x float>" in llvm(schedule)
    other = product(4, 4, 4, "float64").replay("fission(x)\nfission(y)")
    with pytest.raises(ScheduleError, match="another tensor"):
        other.replay("tensorize(y_1, gemm4x4_add)")
    transposed = te.parse(
        'A = placeholder((4, 4), "float32")\nB = placeholder((4, 4), "float32")\nk = reduce_axis(4)\n'
        "C = compute((4, 4), lambda y, x: sum(A[y, k] * B[k, x], axis=k))\n\nfission(x)\nfission(y)"
    )
    with pytest.raises(ScheduleError, match="another index"):
        transposed.replay("tensorize(y_1, gemm4x4_add)")


def test_a_block_is_declared_once() -> None:
    a = te.placeholder((3,))
    block = te.intrinsic("double3", te.compute((3,), lambda i: a[i] + a[i]))
    assert te.intrinsic("double3", te.compute((3,), lambda i: a[i] + a[i])) is block
    with pytest.raises(ScheduleError, match="declared otherwise"):
        te.intrinsic("double3", te.compute((3,), lambda i: a[i] * a[i]))


@pytest.mark.row("D5")
def test_a_pipelined_loop_copies_for_the_next_iteration_before_it_works_on_its_own() -> None:
    steps = TILE + "\ncache_write(C, xo)\ncache_read(A, ko)\ncache_read(B, ko)"
    plain = product(8, 8, 16).replay(steps)
    ahead = plain.pipeline("ko", "AL", "BL")
    assert _timeline(plain) == [
        "copy 0",
        "work 0",
        "copy 1",
        "work 1",
        "copy 2",
        "work 2",
        "copy 3",
        "work 3",
    ]
    assert _timeline(ahead) == [
        "copy 0",
        "copy 1",
        "work 0",
        "copy 2",
        "work 1",
        "copy 3",
        "work 2",
        "work 3",
    ]
    assert _length(_timeline(ahead)) < _length(_timeline(plain))
    check(ahead)


def _timeline(schedule: te.LoopSchedule) -> list[str]:
    """Return the order of copies into AL and of the work that reads it, by the first tile's iterations."""
    events: list[str] = []

    def visit(stmt: object, ko: int) -> None:
        if isinstance(stmt, For):
            named = stmt.var.name
            if named.startswith(("a0", "yi_1")):
                kind = "copy" if named.startswith("a0") else "work"
                events.append(f"{kind} {sum(e.startswith(kind) for e in events)}")
                return
            for k in range(stmt.var.extent if named.startswith("ko") else 1):
                visit(stmt.body, k)
        for part in getattr(stmt, "body", ()) if not isinstance(stmt, For) else ():
            visit(part, ko)

    visit(schedule.nest.body, 0)
    return events


def _length(events: list[str]) -> int:
    """Return when the last event ends: one engine copies, one works, a tile of either kind takes one unit.

    A copy waits for the work that used its slot, work for its copy; each engine takes events in order.
    """
    slots = 2 if events[1].startswith("copy") else 1
    ends: dict[str, int] = {}
    free = {"copy": 0, "work": 0}
    for event in events:
        kind, number = event.split()
        k = int(number)
        needs = ends.get(f"work {k - slots}", 0) if kind == "copy" else ends[f"copy {k}"]
        ends[event] = free[kind] = max(free[kind], needs) + 1
    return max(ends.values())


@pytest.mark.row("D5")
def test_stages_are_inlined_or_kept_near_their_readers() -> None:
    plain = te.parse(STAGES.strip())
    assert {b.name: b.size for b in plain.nest.local} == {"t": 48, "s": 8}
    near = plain.merge("a", "r", "i").store_at("t", "a").store_at("s", "a", "register")
    assert {b.name: b.size for b in near.nest.local} == {"t": 6, "s": 1}
    again = plain.inline("t")
    assert [b.name for b in again.nest.local] == ["s"]
    check(near)
    check(again)


def test_loops_merge_only_where_an_iteration_needs_its_own_alone() -> None:
    shifted = te.parse(
        'x = placeholder((8,), "float32")\nt = compute((8,), lambda a: x[a] * 2.0)\n'
        "y = compute((8,), lambda b: t[7 - b])"
    )
    with pytest.raises(ScheduleError, match="meet in t"):
        shifted.merge("a", "b")


def test_only_an_outermost_loop_is_parallel_and_stays_so() -> None:
    elementwise = te.parse(
        'x = placeholder((4, 4), "float32")\ny = compute((4, 4), lambda i, j: x[i, j] + 1.0)\n\nparallel(i)'
    )
    with pytest.raises(ScheduleError, match="stands inside another"):
        elementwise.reorder("j", "i")


def test_the_documentation_shows_every_primitive() -> None:
    page = (DOCS / "schedule.md").read_text(encoding="utf-8")
    assert [n for n in te.PRIMITIVES if f"<!-- printed by step_{n} -->" not in page] == []


def test_the_primitive_that_the_documentation_adds_works() -> None:
    page = (DOCS / "schedule.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(\"\"\"Loops that run backwards.*?)```", page, re.DOTALL)
    try:
        exec(code, {})
        check(te.parse(te.PRIMITIVES["reverse"].example))
        with pytest.raises(ScheduleError, match="meet in C"):
            product(4, 4, 4).reverse("k")
    finally:
        te.PRIMITIVES.pop("reverse", None)


def test_threads_and_copies_that_run_ahead_go_together() -> None:
    steps = TILE + "\ncache_write(C, xo)\ncache_read(A, ko)\ncache_read(B, ko)"
    tiled = product(8, 8, 12).replay(steps)
    check(tiled.pipeline("ko", "AL", "BL").parallel("yo"))
    check(tiled.parallel("yo").pipeline("ko", "AL", "BL"))


def test_a_temporary_that_is_only_sometimes_written_is_not_private() -> None:
    i, j = Var("i", 4), Var("j", 4)
    x, y, t = (Buffer(name, float32, (4,)) for name in "xyt")
    filled = For(i, Store(t, (i,), x[i]))
    sometimes = For(i, If(call("lt", x[i], x[0]), Store(t, (i,), x[i])))
    backwards = For(i, Seq((Store(t, (index.sub(3, i),), x[i]), Store(y, (i,), t[i]))))
    reader = For(j, Store(y, (j,), t[j]))
    assert private(Seq((filled, reader)), t)
    assert not private(Seq((sometimes, reader)), t)
    assert not private(backwards, t)
    h, g = Var("h", 2), Var("g", 2)
    assert not private(Seq((For(h, Store(t, (h,), x[h])), reader)), t)
    both = Seq((For(h, Store(t, (h,), x[h])), For(g, Store(t, (index.add(g, 2),), x[g])), reader))
    assert private(both, t)
