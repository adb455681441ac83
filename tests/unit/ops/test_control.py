"""Control flow: gradients through scan, cond and while; what is saved, merged, trimmed and refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from stratal.autodiff import check_grad, grad_graph, jvp_graph, trace, value_and_grad_graph, vjp_graph
from stratal.base.dtypes import DType, bool_, float32, float64, int64, uint64
from stratal.base.errors import NotDifferentiableError, ShapeError, StratalError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Array
from stratal.graph.text import parse_graph
from stratal.ops.control.cond import Cond
from stratal.ops.control.host_call import first_alike, register_host_function
from stratal.ops.control.scan import Scan
from stratal.ops.control.while_ import While
from stratal.optimize.control import merge_twins, trim_control
from stratal.optimize.simplify import simplify

V = TensorType(float64, (3,))
SCALAR = TensorType(float64, ())
INDEX = TensorType(int64, ())
FLAG = TensorType(bool_, ())
Body = Callable[..., Sequence[Node]]


def region(body: Body, types: Sequence[TensorType], name: str = "body") -> Graph:
    return trace(body, types, name)


def run(graph: Graph, *arrays: Any) -> list[Array]:
    return interpret(verify(graph), [np.asarray(a) for a in arrays])[0]


def ops(graph: Graph, name: str) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == name]


# -- the hard case: a recurrent step with dropout, a runtime length and a host call --------------------------
def _dropout(b: Any, x: Node, key: Node) -> Node:
    """Zero each element with probability 1/2, from the bits of a per-step key; scale the others by two."""
    bits = b.random_bits(key, shape=x.shape)
    keep = b.eq(b.rem(bits, b.like(bits, 2)), b.like(bits, 0))
    return b.select(keep, b.mul(x, b.like(x, 2)), b.like(x, 0))


def _recurrent(length: int, *, dynamic: bool = False, host: str = "", dtype: DType = float64) -> Graph:
    """loss(h0, xs, w, key[, length]) of h' = tanh(dropout(h) w + x), y = h' . h'"""
    row, matrix = TensorType(dtype, (3,)), TensorType(dtype, (3, 3))

    def step(b: Any, h: Node, x: Node, w: Node, key: Node, i: Node) -> list[Node]:
        dropped = _dropout(b, h, b.add(key, b.cast(i, dtype=uint64)))
        if host:
            (dropped,) = b.items(
                b.host_call(dropped, function=host, results=(row,), derivative=f"{host}.vjp")
            )
        after = b.tanh(b.add(b.contract(dropped, w, spec="k,kn->n"), x))
        return [after, b.sum(b.mul(after, after), axes=(0,))]

    body = region(step, [row, row, matrix, TensorType(uint64, ()), INDEX])

    def loss(b: Any, h: Node, xs: Node, w: Node, key: Node, *steps: Node) -> list[Node]:
        final, ys = items(make(Scan(body, length, 1, 1, dynamic_length=dynamic), h, xs, w, key, *steps))
        return [b.add(b.sum(ys, axes=(0,)), b.sum(final, axes=(0,)))]

    types = [row, row.with_shape((length, 3)), matrix, TensorType(uint64, ()), *([INDEX] if dynamic else [])]
    return trace(loss, types, "recurrent")


def _values(length: int, dtype: DType = float64) -> list[Array]:
    rng = np.random.default_rng(1)
    shapes = ((3,), (length, 3), (3, 3))
    return [*(rng.uniform(-1, 1, s).astype(dtype.np) for s in shapes), np.asarray(7, np.uint64)]


@pytest.mark.row("A4", "A5")
def test_the_gradient_through_a_scan_with_dropout_inside_is_right_to_second_order() -> None:
    assert check_grad(_recurrent(4), _values(4), order=2, rtol=1e-5).ok


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 9])
def test_the_gradient_through_a_runtime_length_is_right(steps: int) -> None:
    graph = _recurrent(4, dynamic=True)
    values = [*_values(4), np.asarray(steps)]
    assert check_grad(graph, values, order=2 if steps == 3 else 1).ok
    by_rows = run(grad_graph(graph, [1]), *values)[0]
    assert np.all(by_rows[min(steps, 4) :] == 0)
    assert steps == 0 or np.all(by_rows[min(steps, 4) - 1] != 0)


def test_a_scan_is_what_the_same_steps_give_one_by_one() -> None:
    length, values = 4, _values(4)
    h, total = values[0], 0.0
    one = _recurrent(1)
    for k in range(length):
        one_step = [h, values[1][k : k + 1], values[2], values[3] + np.uint64(k)]
        scan = ops(one, "scan")[0]
        h_after, y = run(Graph(one.inputs, items(scan)), *one_step)
        h, total = h_after, total + y[0]
    (found,) = run(_recurrent(length), *values)
    np.testing.assert_allclose(found, total + h.sum(), rtol=1e-14)


def _registered() -> tuple[str, list[str]]:
    calls: list[str] = []

    def halve(x: Array) -> Array:
        calls.append("halve")
        return x * 0.5

    def halve_vjp(x: Array, out: Array, ct: Array) -> Array:
        return ct * 0.5

    name = register_host_function(halve, f"halve {len(calls)} {id(calls)}")
    register_host_function(halve_vjp, f"{name}.vjp")
    return name, calls


def test_a_host_call_in_the_body_runs_once_per_step_and_has_its_own_derivative() -> None:
    name, calls = _registered()
    graph = _recurrent(4, host=name)
    both = simplify(value_and_grad_graph(graph, [0, 1, 2]))
    found = run(both, *_values(4))
    assert calls == ["halve"] * 4, "the scan and the one that saves are one"
    step = 1e-5
    values = _values(4)
    for k, gradient in enumerate(found[1:]):
        index = (0,) * values[k].ndim
        moved = []
        for sign in (1, -1):
            changed = [v.copy() for v in values]
            changed[k][index] += sign * step
            moved.append(run(graph, *changed)[0])
        np.testing.assert_allclose(gradient[index], (moved[0] - moved[1]) / (2 * step), rtol=1e-7)


def test_a_host_call_without_a_derivative_refuses_the_gradient_and_names_itself() -> None:
    name = register_host_function(np.sin, "plain sine")
    body = region(lambda b, h, i: b.items(b.host_call(h, function=name, results=(V,))), [V, INDEX])
    graph = trace(lambda b, h: [b.sum(items(make(Scan(body, 3, 1, 0), h))[0], axes=(0,))], [V])
    with pytest.raises(NotDifferentiableError, match="plain sine is not differentiable"):
        grad_graph(graph, [0])


# -- what reverse mode saves ---------------------------------------------------------------------------------
def test_the_backward_scan_reads_what_was_saved_and_does_not_run_the_body_again() -> None:
    both = simplify(value_and_grad_graph(_recurrent(4), [0, 1, 2]))
    forward, backward = ops(both, "scan")
    assert forward.op.reverse is False and backward.op.reverse is True
    inside = [n.op.name for n in backward.op.body.nodes]
    assert "tanh" not in inside and "random_bits" not in inside
    assert inside.count("contract") == 1, "the carry's; the weight's product is taken once, after the loop"
    (product,) = ops(both, "contract")
    assert [i.shape[0] for i in product.inputs] == [4, 4], "over the rows of all steps"


def test_the_scan_and_its_twin_that_saves_become_one() -> None:
    both = value_and_grad_graph(_recurrent(4), [0])
    assert len(ops(both, "scan")) == 3
    merged = merge_twins(both)
    assert len(ops(merged, "scan")) == 2
    for a, b in zip(run(both, *_values(4)), run(merged, *_values(4)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_twins_of_higher_order_become_one_too() -> None:
    def curvature(b: Any, h: Node, *rest: Node) -> Node:
        return b.sum(b.mul(h, h), axes=(0,))

    first = grad_graph(_recurrent(3), [0])
    b = Builder()
    scalar = Graph(first.inputs, [curvature(b, first.outputs[0])], name="curvature")
    second = value_and_grad_graph(scalar, [0, 2])
    small = simplify(second)
    assert len(ops(small, "scan")) < len(ops(second, "scan"))
    bodies = [n.op.body for n in ops(small, "scan")]
    assert sum(n.op.name == "random_bits" for body in bodies for n in body.nodes) == 1
    for a, b_ in zip(run(second, *_values(3)), run(small, *_values(3)), strict=True):
        np.testing.assert_allclose(a, b_, rtol=1e-12)


def test_forward_mode_shares_the_primal_scan() -> None:
    graph = _recurrent(4)
    both = jvp_graph(graph, [True, True, True, False])
    small = simplify(both)
    assert len(ops(both, "scan")) == 2 and len(ops(small, "scan")) == 1
    tangents = [np.ones_like(v) for v in _values(4)[:3]]
    for a, b in zip(run(both, *_values(4), *tangents), run(small, *_values(4), *tangents), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_values_that_do_not_change_from_step_to_step_are_not_saved_per_step() -> None:
    def step(b: Any, h: Node, w: Node, i: Node) -> list[Node]:
        return [b.mul(h, b.exp(w))]

    body = region(step, [V, V, INDEX])
    graph = trace(lambda b, h, w: [b.sum(items(make(Scan(body, 5, 1, 0), h, w))[0], axes=(0,))], [V, V])
    gradient = simplify(grad_graph(graph, [0]))
    (backward,) = ops(gradient, "scan")
    assert backward.op.num_xs == 0, "exp(w) is computed once, outside"
    assert check_grad(graph, [np.ones(3), np.zeros(3)], order=2).ok


def test_only_needed_operands_are_differentiated() -> None:
    name = register_host_function(np.cos, "cosine off the path")

    def step(b: Any, h: Node, x: Node, i: Node) -> list[Node]:
        (seen,) = b.items(b.host_call(x, function=name, results=(V,), pure=True))
        return [b.mul(h, seen)]

    body = region(step, [V, V, INDEX])
    types = [V, V.with_shape((2, 3))]
    graph = trace(lambda b, h, xs: [b.sum(items(make(Scan(body, 2, 1, 1), h, xs))[0], axes=(0,))], types)
    found = run(grad_graph(graph, [0]), np.ones(3), np.zeros((2, 3)))
    np.testing.assert_array_equal(found[0], np.ones(3))


# -- cond and while ------------------------------------------------------------------------------------------
def _chosen() -> Graph:
    """One branch saves two values, the other three; they share slots."""
    then = region(lambda b, x, y: [b.tanh(b.mul(x, y)), y], [V, V], "then")
    otherwise = region(
        lambda b, u, v: [b.mul(b.exp(u), b.sin(b.mul(u, v))), b.mul(v, v)], [V, V], "otherwise"
    )

    def f(b: Any, flag: Node, x: Node, y: Node) -> list[Node]:
        first, second = items(make(Cond(then, otherwise), flag, x, y))
        return [b.sum(b.add(b.mul(first, first), second), axes=(0,))]

    return trace(f, [FLAG, V, V])


@pytest.mark.parametrize("flag", [False, True])
def test_the_gradient_of_a_cond_is_that_of_the_branch_taken(flag: bool) -> None:
    graph = _chosen()
    values = [np.asarray(flag), np.array([0.3, -0.8, 1.2]), np.array([1.0, 0.4, -0.6])]
    assert check_grad(graph, values, order=2).ok
    both = value_and_grad_graph(graph, [1, 2])
    small = simplify(both)
    assert len(ops(both, "cond")) == 3 and len(ops(small, "cond")) == 2
    for a, b in zip(run(both, *values), run(small, *values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_branch_may_save_what_depends_on_no_operand() -> None:
    def noisy(b: Any, x: Node) -> list[Node]:
        bits = b.random_bits(b.const(np.uint64(3)), shape=(3,))
        return [b.mul(b.exp(x), b.cast(b.rem(bits, b.like(bits, 5)), dtype=float64))]

    then, otherwise = region(noisy, [V], "noisy"), region(lambda b, x: [b.mul(x, x)], [V], "square")
    graph = trace(lambda b, flag, x: items(make(Cond(then, otherwise), flag, x)), [FLAG, V])
    for flag in (True, False):
        assert check_grad(graph, [np.asarray(flag), np.array([0.1, 0.2, 0.3])], order=2).ok


def test_a_cond_of_a_known_predicate_is_its_branch() -> None:
    graph = _chosen()
    known = trace(lambda b, x, y: _inlined(b, graph, [b.const(True), x, y]), [V, V])
    small = simplify(known)
    assert not ops(small, "cond")
    values = [np.ones(3), np.full(3, 0.5)]
    np.testing.assert_array_equal(run(known, *values)[0], run(small, *values)[0])


def _inlined(b: Any, graph: Graph, arguments: Sequence[Node]) -> list[Node]:
    from stratal.graph.graph import inline

    return inline(graph, arguments)


def _root() -> Graph:
    """Newton's iteration for the square root of a, until it no longer moves."""
    far = region(lambda b, x, a: b.gt(b.abs(b.sub(b.mul(x, x), a)), b.const(1e-12)), [SCALAR, SCALAR], "far")
    step = region(lambda b, x, a: b.mul(b.add(x, b.div(a, x)), b.const(0.5)), [SCALAR, SCALAR], "newton")
    return trace(lambda b, x, a: items(make(While(far, step, 1), x, a)), [SCALAR, SCALAR])


def test_forward_mode_goes_through_while() -> None:
    value, tangent = run(jvp_graph(_root(), [False, True]), 1.0, 2.0, 1.0)
    np.testing.assert_allclose(value, np.sqrt(2), rtol=1e-12)
    np.testing.assert_allclose(tangent, 0.5 / np.sqrt(2), rtol=1e-6)


def test_reverse_mode_through_while_is_refused_with_the_way_out() -> None:
    with pytest.raises(NotDifferentiableError, match="while: not differentiable") as caught:
        vjp_graph(_root(), [False, True])
    assert "use scan with a static bound" in str(caught.value)


def test_a_while_in_the_body_of_a_scan_is_fine_off_the_path() -> None:
    root = _root()

    def step(b: Any, h: Node, a: Node, i: Node) -> list[Node]:
        (found,) = _inlined(b, root, [b.const(1.0), b.stop_gradient(a)])
        return [b.mul(h, found)]

    body = region(step, [SCALAR, SCALAR, INDEX])
    graph = trace(lambda b, h, a: [items(make(Scan(body, 2, 1, 0), h, a))[0]], [SCALAR, SCALAR])
    (found,) = run(grad_graph(graph, [0]), 3.0, 2.0)
    np.testing.assert_allclose(found, 2.0, rtol=1e-10)


# -- passes --------------------------------------------------------------------------------------------------
def test_results_nobody_reads_are_not_computed() -> None:
    def step(b: Any, h: Node, g: Node, x: Node, unused: Node, i: Node) -> list[Node]:
        return [b.add(h, x), b.mul(g, unused), b.exp(h), b.tanh(g)]

    body = region(step, [V, V, V, V, INDEX])
    types = [V, V, V.with_shape((4, 3)), V]
    whole = trace(lambda b, *xs: [items(make(Scan(body, 4, 2, 1), *xs))[2]], types)
    small = trim_control(whole)
    (scan,) = ops(small, "scan")
    assert (scan.op.num_carries, scan.op.num_xs, len(scan.inputs)) == (1, 1, 2)
    assert [n.op.name for n in scan.op.body.nodes if n.inputs] == ["add", "exp"]
    values = [np.ones(3), np.ones(3), np.arange(12.0).reshape(4, 3), np.ones(3)]
    np.testing.assert_array_equal(run(whole, *values)[0], run(small, *values)[0])


def test_a_carry_that_never_changes_becomes_a_constant() -> None:
    body = region(lambda b, h, w, i: [b.mul(h, w), w], [V, V, INDEX])
    whole = trace(lambda b, h, w: items(make(Scan(body, 3, 2, 0), h, w)), [V, V])
    small = trim_control(whole)
    (scan,) = ops(small, "scan")
    assert scan.op.num_carries == 1 and small.outputs[1] is small.inputs[1]
    for a, b in zip(
        run(whole, np.ones(3), np.full(3, 2.0)), run(small, np.ones(3), np.full(3, 2.0)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_effects_keep_all_results_of_a_region() -> None:
    seen: list[int] = []
    name = register_host_function(lambda x: seen.append(1) or x, f"seen {id(seen)}")  # type: ignore[func-returns-value]

    def step(b: Any, h: Node, i: Node) -> list[Node]:
        return [h, *b.items(b.host_call(h, function=name, results=(V,)))]

    body = region(step, [V, INDEX])
    graph = trace(lambda b, h: [items(make(Scan(body, 3, 1, 0), h))[0]], [V])
    run(simplify(graph), np.ones(3))
    assert len(seen) == 3


def test_regions_are_simplified_and_loops_of_no_or_one_step_vanish() -> None:
    body = region(lambda b, h, x, i: [b.neg(b.neg(b.add(h, x))), b.mul(h, b.like(h, 1))], [V, V, INDEX])
    for length, left in ((0, 0), (1, 0), (3, 1)):
        types = [V, V.with_shape((length, 3))]
        graph = trace(lambda b, *xs, n=length: items(make(Scan(body, n, 1, 1), *xs)), types)
        small = simplify(graph)
        assert len(ops(small, "scan")) == left
        values = [np.ones(3), np.arange(3.0 * length).reshape(length, 3)]
        for a, b in zip(run(graph, *values), run(small, *values), strict=True):
            np.testing.assert_array_equal(a, b)
        for scan in ops(small, "scan"):
            assert [n.op.name for n in scan.op.body.nodes if n.inputs] == ["add"]


# -- records -------------------------------------------------------------------------------------------------
def test_control_flow_survives_its_text_form() -> None:
    for graph in (_recurrent(3, dynamic=True), _chosen(), _root(), grad_graph(_recurrent(3), [0, 2])):
        parsed = parse_graph(str(graph))
        assert parsed == graph and str(parse_graph(str(parsed))) == str(parsed)


def test_equal_functions_share_a_name_and_different_ones_do_not() -> None:
    def f(x: Array) -> Array:
        return x

    def g(x: Array) -> Array:
        return x

    g.__qualname__ = f.__qualname__
    assert register_host_function(f) == register_host_function(f)
    assert register_host_function(f) != register_host_function(g)


def test_functions_that_nobody_can_tell_apart_are_one_host_function() -> None:
    def made(k: int, *, default: Any = None) -> Any:
        return lambda v, d=default: v + k

    class Holder:
        def method(self, v: Any) -> Any:
            return v

    holder, other, shared = Holder(), Holder(), [1]
    one = made(1)
    turns = [(lambda v: v + shared[0]) for _ in range(2)]
    assert first_alike(turns[0]) is first_alike(turns[1])
    assert first_alike(holder.method) is first_alike(holder.method)
    assert first_alike(holder.method) is not first_alike(other.method)
    assert first_alike(one) is not first_alike(made(1)), "each has a variable of its own"
    assert first_alike(made(1, default=shared)) is not first_alike(made(1, default=[1]))
    one.mark = 1
    assert first_alike(one) is one


def test_a_host_function_that_breaks_its_promise_is_named() -> None:
    name = register_host_function(lambda x: x.astype(np.float32), "turns single")
    graph = trace(lambda b, x: items(b.host_call(x, function=name, results=(V,))), [V])
    with pytest.raises(StratalError, match="turns single returned another type") as caught:
        run(graph, np.ones(3))
    assert "float32[3] for f64[3]" in str(caught.value)


def test_pure_calls_merge_and_others_do_not() -> None:
    name = register_host_function(np.sqrt, "root")
    for pure in (True, False):
        graph = trace(
            lambda b, x, p=pure: [
                items(b.host_call(x, function=name, results=(V,), pure=p))[0] for _ in range(2)
            ],
            [V],
        )
        assert (graph.outputs[0] is graph.outputs[1]) is pure


def test_regions_that_do_not_fit_are_refused_with_both_types() -> None:
    body = region(lambda b, h, i: [b.cast(h, dtype=float32)], [V, INDEX])
    with pytest.raises(ShapeError, match="carries of their own types") as caught:
        make(Scan(body, 3, 1, 0), graph_input("h", V))
    assert "(f32[3]) for (f64[3])" in str(caught.value)
