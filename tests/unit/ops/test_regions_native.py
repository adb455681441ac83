"""Control flow, state updates and shared results, compiled: equal to the interpreter, fused and unfused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from differential import check_graph
from test_control import FLAG, INDEX, SCALAR, V, _recurrent, _registered, _root, _values, region

from stratal.autodiff import grad_graph, jvp_graph, trace, value_and_grad_graph
from stratal.base.artifact import Launch, Loop, flat
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph, inline
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input, items, make
from stratal.ops.control.cond import Cond
from stratal.ops.control.scan import Scan
from stratal.ops.control.while_ import While
from stratal.optimize.simplify import simplify
from stratal.runtime.storage import Storage
from stratal.schedule.program import PACK_FOR

LONG = TensorType(float32, (1000,))


def agree(graph: Graph, *arrays: Any) -> None:
    faults = check_graph(
        graph, [np.asarray(a, i.dtype.np) for a, i in zip(arrays, graph.inputs, strict=True)]
    )
    assert not faults, "\n".join([*faults, str(graph)])


def some(*types: TensorType) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.uniform(-1, 1, t.ints).astype(t.dtype.np) for t in types]


# -- loops -------------------------------------------------------------------------------------------------
@pytest.mark.row("A5")
@pytest.mark.parametrize("steps", [0, 1, 3, 4, 9])
def test_a_scan_of_runtime_length_and_its_gradient(steps: int) -> None:
    graph = _recurrent(4, dynamic=True)
    both = simplify(value_and_grad_graph(graph, [0, 1, 2]))
    agree(both, *_values(4), np.asarray(steps))


def test_a_scan_with_dropout_and_its_gradient_in_float32() -> None:
    both = value_and_grad_graph(_recurrent(5, dtype=float32), [0, 1, 2])
    agree(both, *_values(5, float32))


def test_a_host_call_inside_a_scan_and_its_gradient() -> None:
    name, _ = _registered()
    agree(simplify(value_and_grad_graph(_recurrent(4, host=name), [0, 1, 2])), *_values(4))


def test_a_while_and_its_tangent() -> None:
    agree(_root(), 1.0, 2.0)
    agree(jvp_graph(_root(), [False, True]), 1.0, 2.0, 1.0)


def test_a_while_that_never_runs_returns_its_operands() -> None:
    no = region(lambda b, x, y: b.lt(x, b.const(-5.0)), [SCALAR, SCALAR])
    swap = region(lambda b, x, y: [y, x], [SCALAR, SCALAR])
    agree(trace(lambda b, x, y: items(make(While(no, swap, 2), x, y)), [SCALAR, SCALAR]), 1.0, 2.0)


def test_a_while_that_swaps_its_carries() -> None:
    below = region(lambda b, x, y, n: b.lt(n, b.const(np.asarray(5))), [V, V, INDEX])
    swap = region(lambda b, x, y, n: [y, b.neg(x), b.add(n, b.const(np.asarray(1)))], [V, V, INDEX])
    graph = trace(lambda b, x, y, n: items(make(While(below, swap, 3), x, y, n)), [V, V, INDEX])
    agree(graph, *some(V, V), 0)


Step = Callable[..., Sequence[Node]]
CARRIES: dict[str, Step] = {
    "swapped": lambda b, x, y, z, i: [y, x, z],
    "rotated": lambda b, x, y, z, i: [y, z, x],
    "all one": lambda b, x, y, z, i: [x, x, x],
    "one new value three times": lambda b, x, y, z, i: [b.tanh(x)] * 3,
    "never changed": lambda b, x, y, z, i: [x, y, b.add(y, z)],
    "the old value of another": lambda b, x, y, z, i: [b.add(x, y), x, y],
    "a constant": lambda b, x, y, z, i: [b.like(x, 2.0), b.add(x, y), y],
    "swapped and computed": lambda b, x, y, z, i: [b.mul(y, z), b.add(x, z), b.sub(x, y)],
    "a view": lambda b, x, y, z, i: [b.flip(y, axes=(0,)), b.flip(x, axes=(0,)), z],
    "a reduction over the others": lambda b, x, y, z, i: [
        b.add(x, b.broadcast(b.sum(y, axes=(0,)), shape=x.shape, axes=())),
        b.mul(x, z),
        y,
    ],
    "the step number": lambda b, x, y, z, i: [
        b.add(x, b.broadcast(b.cast(i, dtype=x.dtype), shape=x.shape, axes=())),
        x,
        y,
    ],
}


@pytest.mark.parametrize("length", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", CARRIES)
def test_carries_of_a_scan(kind: str, length: int) -> None:
    for t in (V, LONG):
        body = region(CARRIES[kind], [t, t, t, INDEX])
        graph = trace(lambda b, *xs, body=body: items(make(Scan(body, length, 3, 0), *xs)), [t, t, t])
        agree(graph, *some(t, t, t))


ROWS: dict[str, Step] = {
    "the row": lambda b, h, x, i: [h, x],
    "the old carry": lambda b, h, x, i: [b.add(h, x), h],
    "the new carry": lambda b, h, x, i: [b.add(h, x), b.add(h, x)],
    "the row as carry": lambda b, h, x, i: [x, h],
    "a constant": lambda b, h, x, i: [x, b.like(x, 1.5)],
    "twice": lambda b, h, x, i: [b.mul(h, x), b.tanh(h), b.tanh(h)],
    "a view": lambda b, h, x, i: [b.flip(x, axes=(0,)), b.flip(h, axes=(0,))],
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_a_scan(kind: str, reverse: bool) -> None:
    body = region(ROWS[kind], [V, V, INDEX])
    for length, trips in ((4, None), (4, 2), (4, 0), (0, None), (1, 1)):
        types = [V, V.with_shape((length, 3)), *([INDEX] if trips is not None else [])]
        op = Scan(body, length, 1, 1, reverse=reverse, dynamic_length=trips is not None)
        graph = trace(lambda b, *xs, op=op: items(make(op, *xs)), types)
        agree(graph, *some(*types[:2]), *([trips] if trips is not None else []))


def test_rows_without_elements() -> None:
    empty = TensorType(float32, (0,))
    body = region(lambda b, h, x, i: [b.add(h, x), h], [empty, empty, INDEX])
    graph = trace(lambda b, h, x: items(make(Scan(body, 3, 1, 1), h, x)), [empty, empty.with_shape((3, 0))])
    agree(graph, np.zeros(0), np.zeros((3, 0)))


def test_scans_in_scans_with_conds_inside_and_their_gradients() -> None:
    flips = region(lambda b, h, x: [b.mul(h, x)], [V, V])
    adds = region(lambda b, h, x: [h], [V, V])

    def inner_step(b: Any, h: Node, x: Node, outer: Node, i: Node) -> list[Node]:
        even = b.eq(b.rem(b.add(i, outer), b.like(i, 2)), b.like(i, 0))
        (after,) = items(make(Cond(flips, adds), even, h, x))
        return [b.tanh(after), after]

    inner = region(inner_step, [V, V, INDEX, INDEX])

    def step(b: Any, h: Node, xs: Node, i: Node) -> list[Node]:
        after, ys = items(make(Scan(inner, 3, 1, 1), h, xs, i))
        return [b.add(after, h), b.sum(ys, axes=(0,))]

    outer = region(step, [V, V.with_shape((3, 3)), INDEX])

    def loss(b: Any, h: Node, xs: Node) -> list[Node]:
        after, ys = items(make(Scan(outer, 2, 1, 1), h, xs))
        return [b.add(b.sum(after, axes=(0,)), b.sum(ys, axes=(0, 1)))]

    types = [V, V.with_shape((2, 3, 3))]
    graph = trace(loss, types)
    agree(graph, *some(*types))
    agree(simplify(value_and_grad_graph(graph, [0, 1])), *some(*types))


def test_a_while_inside_a_scan() -> None:
    root = _root()
    body = region(lambda b, h, a, i: [b.mul(h, inline(root, [b.const(1.0), a])[0])], [SCALAR, SCALAR, INDEX])
    agree(trace(lambda b, h, a: [items(make(Scan(body, 2, 1, 0), h, a))[0]], [SCALAR, SCALAR]), 3.0, 2.0)


# -- branches ------------------------------------------------------------------------------------------------
ARMS: dict[str, tuple[Step, Step]] = {
    "operands, swapped or not": (lambda b, x, y: [x, y], lambda b, x, y: [y, x]),
    "one operand twice": (lambda b, x, y: [x, x], lambda b, x, y: [y, y]),
    "a constant and a value": (
        lambda b, x, y: [b.like(x, 3.0), x],
        lambda b, x, y: [b.add(x, y), b.like(x, 1.0)],
    ),
    "one value twice": (lambda b, x, y: [b.tanh(x)] * 2, lambda b, x, y: [b.add(x, y), b.exp(x)]),
    "views": (lambda b, x, y: [b.flip(x, axes=(0,)), x], lambda b, x, y: [y, b.flip(y, axes=(0,))]),
}


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("kind", ARMS)
def test_branches(kind: str, flag: bool) -> None:
    then, otherwise = (region(arm, [V, V]) for arm in ARMS[kind])

    def both(b: Any, c: Node, x: Node, y: Node) -> list[Node]:
        p, q = items(make(Cond(then, otherwise), c, x, y))
        return [p, q, b.add(p, q), x]

    agree(trace(both, [FLAG, V, V]), flag, *some(V, V))
    total = trace(lambda b, c, x, y: [b.sum(both(b, c, x, y)[2], axes=(0,))], [FLAG, V, V])
    agree(simplify(grad_graph(total, [1, 2])), flag, *some(V, V))


# -- states --------------------------------------------------------------------------------------------------
Updates = Callable[[Any, Node, Node, Node], tuple[list[Node], list[Node]]]
STATES: dict[str, Updates] = {  # outputs; new values of p, q and r
    "swapped": lambda b, p, q, r: ([p], [q, p, r]),
    "rotated": lambda b, p, q, r: ([], [q, r, p]),
    "rotated, old values read": lambda b, p, q, r: ([b.add(p, q), p, q, r], [q, r, p]),
    "one input for all": lambda b, p, q, r: ([q], [p, p, p]),
    "one new value for all": lambda b, p, q, r: ([b.tanh(p)], [b.tanh(p)] * 3),
    "a constant": lambda b, p, q, r: (
        [p],
        [b.like(p, 1.0), b.like(p, 1.0), b.broadcast(b.like(p, 2.0), shape=p.shape, axes=(0,))],
    ),
    "a chain": lambda b, p, q, r: ([], [b.add(p, q), b.add(q, r), b.add(r, p)]),
    "momentum": lambda b, p, q, r: ([b.add(p, b.mul(q, r))], [b.add(p, b.mul(q, r)), b.mul(q, r), r]),
    "the update is an output": lambda b, p, q, r: ([b.add(p, q), b.add(p, q)], [b.add(p, q), p, b.add(p, q)]),
    "the old value is an output": lambda b, p, q, r: ([p, p, q], [b.neg(p), b.neg(q), p]),
    "a view of the old value": lambda b, p, q, r: (
        [b.flip(p, axes=(0,)), b.slice(p, start=(1,), stop=(3,), step=(1,))],
        [b.flip(p, axes=(0,)), b.flip(p, axes=(0,)), b.neg(p)],
    ),
    "read whole after the update": lambda b, p, q, r: (
        [b.broadcast(b.sum(p, axes=(0,)), shape=(2,), axes=())],
        [b.neg(p), b.add(q, b.flip(p, axes=(0,))), b.mul(p, b.flip(q, axes=(0,)))],
    ),
    "flipped onto itself": lambda b, p, q, r: (
        [],
        [b.flip(p, axes=(0,)), b.add(b.flip(q, axes=(0,)), q), b.cumsum(r, axis=0)],
    ),
}


@pytest.mark.parametrize("kind", STATES)
def test_state_updates(kind: str) -> None:
    for t in (V, LONG):
        states = [graph_input(name, t) for name in "pqr"]
        found: list[Any] = []

        def build(b: Any, *xs: Node, kind: str = kind, found: list[Any] = found) -> list[Node]:
            found[:] = STATES[kind](b, *xs)  # type: ignore[arg-type]
            return [*found[0], *found[1]]

        traced = trace(build, [t, t, t])
        made = inline(traced, states)
        count = len(found[0])
        pairs = [(s, new) for s, new in zip(states, made[count:], strict=True)]
        agree(Graph(states, made[:count], pairs, "states"), *some(t, t, t))


def test_one_storage_for_a_state_and_an_input() -> None:
    p, q = graph_input("p", V), graph_input("q", V)
    body = trace(lambda b, p, q: [b.add(p, q), b.flip(q, axes=(0,))], [V, V])
    new, flipped = inline(body, [p, q])
    program = compile_graph(Graph([p, q], [flipped], [(p, new)], "shared"))
    (values,) = some(V)
    one = Storage.copy_of(values, V)
    (out,) = program.run([one, one])
    np.testing.assert_array_equal(out.array, values[::-1])
    np.testing.assert_array_equal(one.array, values + values)


# -- results -------------------------------------------------------------------------------------------------
RESULTS: dict[str, Step] = {
    "the same twice": lambda b, x, y: [b.add(x, y), b.add(x, y)],
    "inputs": lambda b, x, y: [x, y, x],
    "a constant": lambda b, x, y: [b.like(x, 4.0), b.const(np.arange(6.0)), b.const(np.arange(6.0))],
    "views of inputs": lambda b, x, y: [b.reshape(x, shape=(1, 3)), b.flip(x, axes=(0,)), x],
    "views of results": lambda b, x, y: [
        b.add(x, y),
        b.reshape(b.add(x, y), shape=(3, 1)),
        b.flip(b.add(x, y), axes=(0,)),
    ],
    "a broadcast scalar": lambda b, x, y: [
        b.broadcast(b.sum(x, axes=(0,)), shape=(2, 2), axes=()),
        b.sum(x, axes=(0,)),
    ],
    "a result another one reads": lambda b, x, y: [b.exp(x), b.sum(b.exp(x), axes=(0,)), b.add(b.exp(x), y)],
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results(kind: str) -> None:
    agree(trace(RESULTS[kind], [V, V]), *some(V, V))


def test_the_interpreter_agrees_with_numpy_on_a_swap() -> None:
    """The oracle itself: new states are computed from old ones."""
    p, q = graph_input("p", V), graph_input("q", V)
    a, b = some(V, V)
    _, states = interpret(Graph([p, q], [], [(p, q), (q, p)], "swap"), [a, b])
    np.testing.assert_array_equal(states, [b, a])


# -- rows in place -------------------------------------------------------------------------------------------
def _sums_of_sums(reverse: bool) -> Graph:
    """A scan over rows that are scanned again: inner rows lie in rows of the outer loop."""
    row = TensorType(float32, (40,))

    def inner(b: Any, c: Node, x: Node, i: Node) -> list[Node]:
        after = b.add(b.mul(c, x), x)
        return [after, b.sub(after, c)]

    inner_body = region(inner, [row, row, INDEX])

    def outer(b: Any, c: Node, x: Node, i: Node) -> list[Node]:
        final, ys = items(make(Scan(inner_body, 3, 1, 1, not reverse), c, x))
        return [b.mul(final, final), ys, x]

    outer_body = region(outer, [row, TensorType(float32, (3, 40)), INDEX])
    return trace(
        lambda b, c, xs: items(make(Scan(outer_body, 4, 1, 1, reverse), c, xs)),
        [row, TensorType(float32, (4, 3, 40))],
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_rows_are_read_and_written_where_they_stand(reverse: bool) -> None:
    graph = _sums_of_sums(reverse)
    agree(graph, *some(*graph.input_types))
    made = compile_graph(graph).executable
    assert sum(value.row is not None for value in made.values) >= 4
    assert not any("row" in getattr(c, "label", "") for c in flat(made.commands) if isinstance(c, Launch))


def test_what_is_the_same_in_every_turn_runs_once() -> None:
    wide, square = TensorType(float32, (4, 64)), TensorType(float32, (64, 64))

    def step(b: Any, h: Node, w: Node, i: Node) -> list[Node]:
        return [b.tanh(b.contract(h, b.exp(w), spec="nk,mk->nm"))]

    body = region(step, [wide, square, INDEX])
    graph = trace(lambda b, h, w: [items(make(Scan(body, 6, 1, 0), h, w))[0]], [wide, square])
    agree(graph, *some(wide, square))
    commands = compile_graph(graph).executable.commands
    (loop,) = [c for c in commands if isinstance(c, Loop)]
    assert not any("exp" in c.label for c in loop.body if isinstance(c, Launch))
    assert any("exp" in c.label for c in commands if isinstance(c, Launch))
    assert [c.label for c in commands if isinstance(c, Launch) and c.label.startswith(PACK_FOR)]  # of exp(w)


@pytest.mark.parametrize("spec", ["nk,mk->nm", "nk,km->nm"])
def test_what_products_read_in_every_turn_is_packed_once_before_the_loop(spec: str) -> None:
    few, square = TensorType(float32, (4, 192)), TensorType(float32, (192, 192))

    def step(b: Any, h: Node, w: Node, i: Node) -> list[Node]:
        return [b.tanh(b.contract(h, w, spec=spec))]

    body = region(step, [few, square, INDEX])
    graph = trace(lambda b, h, w: [items(make(Scan(body, 6, 1, 0), h, w))[0]], [few, square])
    agree(graph, *(a / 16 for a in some(few, square)))
    commands = compile_graph(graph).executable.commands
    (loop,) = [c for c in commands if isinstance(c, Loop)]
    packs = [c for c in commands if isinstance(c, Launch) and c.label.startswith(PACK_FOR)]
    assert len(packs) == 1
    assert packs[0].writes[0] in [r for c in loop.body if isinstance(c, Launch) for r in c.reads]


def test_a_product_in_a_loop_of_few_turns_packs_no_constant() -> None:
    few, square = TensorType(float32, (4, 192)), TensorType(float32, (192, 192))

    def step(b: Any, h: Node, w: Node, i: Node) -> list[Node]:
        return [b.tanh(b.contract(h, w, spec="nk,mk->nm"))]

    body = region(step, [few, square, INDEX])
    graph = trace(lambda b, h, w: [items(make(Scan(body, 2, 1, 0), h, w))[0]], [few, square])
    agree(graph, *(a / 16 for a in some(few, square)))
    commands = flat(compile_graph(graph).executable.commands)
    assert not [c for c in commands if isinstance(c, Launch) and c.label.startswith(PACK_FOR)]
