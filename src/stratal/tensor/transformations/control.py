"""Control flow on traced values: cond, switch, while_loop, fori_loop, scan, associative_scan, map; and calls
to Python in the middle of a program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.dims import Dim, Sym, known_equal
from stratal.base.dtypes import as_dtype, bool_, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node, graph_input, items, make
from stratal.ops.control.host_call import first_alike, register_host_function
from stratal.tensor.arguments import check_axis, check_function
from stratal.tensor.build import OPS, as_tensor, nodes_and_track, where_now
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import concat, flip, reshape, stack
from stratal.tensor.lazy import flushing
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.transformations.regions import (
    TOKEN,
    Operands,
    Region,
    captured,
    closed,
    finished,
    trace_bodies,
)
from stratal.tensor.values.binding import node_and_track
from stratal.tensor.values.handle import CONSTANT
from stratal.tensor.values.state import MODE, tracing


def _flatten(name: str, value: Any) -> tuple[list[Tensor], tree.Structure]:
    leaves, structure = tree.flatten(value)
    return [as_tensor(x, name) for x in leaves], structure


def _check_like(name: str, what: str, got: Any, want: Any) -> None:
    if got != want:
        raise ShapeError(f"{name}: {what}", got=f"{got} for {want}")


def _check_types(name: str, what: str, got: Sequence[Tensor], want: Sequence[TensorType]) -> None:
    for k, (tensor, type_) in enumerate(zip(got, want, strict=True)):
        if tensor.type != type_:
            raise ShapeError(f"{name}: {what}", got=f"value {k} is {tensor.type}, was {type_}",
                             hint="cast or reshape it before returning it")  # fmt: skip


# -- branches ------------------------------------------------------------------------------------------------
def cond(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """Return true_fn(*operands) where the predicate holds, else false_fn(*operands); only one of them runs.

    Both return containers of tensors of the same types.
    """
    if isinstance(predicate, (bool, np.bool_)):
        return true_fn(*operands) if predicate else false_fn(*operands)
    return _one_of("cond", _flag("cond", predicate), true_fn, false_fn, operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Return branches[index](*operands); only that branch runs. An index out of range means the nearest one.

    All return containers of tensors of the same types. A tree of `cond`: log2(n) of them run.
    """
    functions = list(branches)
    if not functions:
        raise AttributeValueError("switch: takes at least one branch", got="none")
    number = as_tensor(index, "switch")
    if number.ndim or not number.dtype.is_integer:
        raise DTypeError("switch: the index is an integer scalar", got=str(number.type))
    if not isinstance(index, Tensor):
        return functions[min(max(int(index), 0), len(functions) - 1)](*operands)

    def among(low: int, high: int) -> Callable[..., Any]:
        if high - low == 1:
            return functions[low]
        middle = (low + high) // 2
        return lambda *given: _one_of(
            "switch", number < middle, among(low, middle), among(middle, high), given
        )

    return among(0, len(functions))(*operands)


def _one_of(
    name: str, flag: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    given, structure = _flatten(name, list(operands))
    regions = trace_bodies(
        ("cond.then", "cond.otherwise"),
        [t.type for t in given],
        [_branch(name, f, structure) for f in (true_fn, false_fn)],
    )
    then, otherwise = regions
    _check_like(name, "branches must return like containers", otherwise.extra, then.extra)
    _check_types(
        name, "branches must return the same types", otherwise.result_tensors, [n.aval for n in then.results]
    )
    b = Builder(where_now())
    token = bool(then.tokens or otherwise.tokens)
    roots = [[*r.results, *r.threaded_results, *([_joined(b, r)] if token else [])] for r in regions]
    outer = list(
        dict.fromkeys(n for r, own in zip(regions, roots, strict=True) for n in captured(own, r.all_inputs))
    )
    graphs = [closed(r.name, r.all_inputs, outer, own) for r, own in zip(regions, roots, strict=True)]
    states = [node_and_track(t)[0] for t in then.threaded]
    ops = Operands().tensors([flag, *given]).outer([*states, *outer], regions)
    node = make(OPS["cond"](*graphs), *ops.nodes, where=b.where)
    results = finished(node, ops.track, regions, len(then.results), token)
    return tree.unflatten(then.extra, results[: len(then.results)])


def _flag(name: str, predicate: Any) -> Tensor:
    flag = as_tensor(predicate, name)
    if flag.numel() != 1:
        raise ShapeError(
            f"{name}: the predicate must have one element", got=str(flag.type), hint="use .any() or .all()"
        )
    return reshape(flag if flag.dtype is bool_ else cast(flag, bool_), ())


def _branch(name: str, function: Callable[..., Any], structure: tree.Structure) -> Any:
    def body(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        return _flatten(name, function(*tree.unflatten(structure, fresh)))

    return body


def _joined(b: Builder, region: Region, before: Node | None = None) -> Node:
    """Return one token that depends on every effect of a region."""
    found = before if before is not None else b.const(0, int64)
    for token in region.tokens:
        found = b.max(found, token)
    return found


# -- loops ---------------------------------------------------------------------------------------------------
def while_loop(
    cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any, *, max_steps: int | None = None
) -> Any:
    """Return what is left of `init` after `body_fn`, applied for as long as `cond_fn` of it holds.

    Differentiable in forward mode. In reverse mode only with `max_steps`, after which it ends whatever the
    condition says: each of that many steps keeps its values. `scan` with a runtime length is, too.
    """
    if max_steps is not None:

        def bounded(state: Any, _: Any) -> tuple[Any, None]:
            return cond(cond_fn(state), body_fn, lambda same: same, state), None

        return scan(bounded, init, length=max_steps)[0]
    given, structure = _flatten("while_loop", init)
    types = [t.type for t in given]

    def test(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        return [_flag("while_loop", cond_fn(tree.unflatten(structure, fresh)))], None

    def step(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        return _flatten("while_loop", body_fn(tree.unflatten(structure, fresh)))

    regions = trace_bodies(("while.condition", "while.body"), types, (test, step))
    condition, body = regions
    _check_like("while_loop", "the body must return a container like its argument", body.extra, structure)
    _check_types("while_loop", "the body must return values of their own types", body.result_tensors, types)
    b = Builder(where_now())
    token = bool(body.tokens)
    token_input = [graph_input("while.token", TOKEN)] if token else []
    roots = [*body.results, *body.threaded_results, *([_joined(b, body, token_input[0])] if token else [])]
    outer = list(dict.fromkeys([*captured(condition.results, condition.all_inputs),
                                *captured(roots, [*body.all_inputs, *token_input])]))  # fmt: skip
    graphs = [closed(condition.name, [*condition.all_inputs, *token_input], outer, condition.results),
              closed(body.name, [*body.all_inputs, *token_input], outer, roots)]  # fmt: skip
    states = [node_and_track(t)[0] for t in body.threaded]
    start = [b.const(0, int64)] if token else []
    ops = Operands().tensors(given).outer([*states, *start, *outer], regions)
    node = make(OPS["while"](*graphs, len(roots)), *ops.nodes, where=b.where)
    results = finished(node, ops.track, [body], len(given), token)
    return tree.unflatten(structure, results[: len(given)])


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None,
    reverse: bool = False,
    *, max_length: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return (last carry, stacked y) of `carry, y = f(carry, x)` over the leading axis of `xs`.

    `length` may be a tensor: then only the first rows are visited, and rows of y beyond them are 0; without
    `xs` it needs a bound, `max_length`. Differentiable in both modes.
    """
    carry, structure = _flatten("scan", init)
    rows, row_structure = _flatten("scan", xs)
    count, runtime = _length(rows, length, max_length)
    types = [t.type for t in carry] + [TensorType(t.dtype, t.shape[1:]) for t in rows]
    made: dict[str, Any] = {}

    def step(fresh: list[Tensor]) -> tuple[list[Tensor], Any]:
        before = tree.unflatten(structure, fresh[: len(carry)])
        result = f(
            before, None if xs is None else tree.unflatten(row_structure, fresh[len(carry) : len(types)])
        )
        if not isinstance(result, tuple) or len(result) != 2:
            raise DTypeError("scan: the body must return (carry, y)", got=type(result).__name__)
        after, after_structure = _flatten("scan", result[0])
        _check_like("scan", "the body must return a carry like its own", after_structure, structure)
        _check_types("scan", "the body must return carries of their own types", after, types[: len(carry)])
        ys, made["ys"] = _flatten("scan", result[1])
        return [*after, *ys], None

    (body,) = trace_bodies(("scan.body",), types, (step,))
    node, track, first_state, token = _scan_node(body, carry, rows, count, runtime, reverse)
    results = finished(node, track, [body], first_state, token)
    ys = results[len(carry) + len(body.threaded) + token :]
    return tree.unflatten(structure, results[: len(carry)]), tree.unflatten(made["ys"], ys)


def _scan_node(
    body: Region, carry: list[Tensor], rows: list[Tensor], count: Dim, runtime: Tensor | None, reverse: bool
) -> tuple[Node, int, int, int]:
    b = Builder(where_now())
    n = len(carry)
    token = int(bool(body.tokens))
    token_input = [graph_input("scan.token", TOKEN)] if token else []
    number = graph_input("scan.row", TensorType(int64, ()))
    inputs = [*body.inputs[:n], *body.threaded_inputs, *token_input, *body.inputs[n:]]
    roots = [*body.results[:n], *body.threaded_results,
    *([_joined(b, body, token_input[0])] if token else []),
             *body.results[n:]]  # fmt: skip
    outer = captured(roots, inputs)
    graph = closed(body.name, inputs, outer, roots, last=[number])
    states = [node_and_track(t)[0] for t in body.threaded]
    ops = Operands().tensors(carry)
    ops.nodes += [*states, *([b.const(0, int64)] if token else [])]
    ops.tensors(rows).outer(outer, [body])
    if runtime is not None:
        ops.nodes.append(node_and_track(cast(runtime, int64))[0])
    num_carries = n + len(body.threaded) + token
    record = OPS["scan"](graph, count, num_carries, len(rows), reverse, runtime is not None)
    return make(record, *ops.nodes, where=b.where), ops.track, n, token


def _length(rows: list[Tensor], length: Any, max_length: int | None) -> tuple[Dim, Tensor | None]:
    runtime = length if isinstance(length, Tensor) else None
    sizes = {t.shape[0] for t in rows if t.ndim}
    if any(not t.ndim for t in rows) or len(sizes) > 1:
        raise ShapeError("scan: xs must share their leading axis", got=", ".join(str(t.type) for t in rows))
    bound = sizes.pop() if sizes else max_length if runtime is not None or length is None else length
    if bound is None:
        raise AttributeValueError(
            "scan: needs xs, a length, or max_length with a runtime length", got="none of them"
        )
    if runtime is None and length is not None and not known_equal(length, bound):
        raise ShapeError("scan: length and the leading axis of xs differ", got=f"{length} and {bound}")
    if isinstance(bound, Sym):
        return bound, runtime
    try:
        count = operator.index(bound)
    except TypeError:
        raise DTypeError("scan: a length is an int", got=repr(bound)) from None
    if count >= 1 << 63:
        raise AttributeValueError("scan: a length fits into 64 bits", got=str(count))
    return count, runtime


def fori_loop(lower: Any, upper: Any, body_fn: Callable[[Tensor, Any], Any], init: Any) -> Any:
    """Return what is left of `init` after `x = body_fn(i, x)` for i from lower to upper - 1.

    With Python bounds it is a scan, and differentiable; with a tensor among them a while_loop, which is in
    forward mode only.
    """
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        start = cast(as_tensor(lower), int64)
        end = cast(as_tensor(upper), int64)
        result = while_loop(
            lambda state: state[0] < end,
            lambda state: (state[0] + 1, body_fn(state[0], state[1])),
            (start, init),
        )
        return result[1]

    def step(state: Any, _: Any) -> tuple[Any, None]:
        i, x = state
        return (i + 1, body_fn(i, x)), None

    steps = upper - lower if isinstance(upper, Sym) else max(0, int(upper) - int(lower))
    (_, last), _ = scan(step, (as_tensor(lower), init), length=steps)
    return last


def map(function: Callable[[Any], Any], xs: Any) -> Any:
    """Return the results of a function on each row of `xs`, one row after another, stacked.

    What `st.vmap` computes at once this computes in a loop, with the memory of one row.
    """
    return scan(lambda _, row: (None, function(row)), None, xs)[1]


# -- Python in the middle ------------------------------------------------------------------------------------
def host_call(
    function: Callable[..., Any],
    result: Any,
    *args: Any,
    pure: bool = False,
    vjp: Callable[..., Any] | None = None,
) -> Any:
    """Call a Python function on NumPy arrays of `args` in the middle of a program.

    `result` says what it returns: a container of tensors or of (shape, dtype) pairs made by `st.spec`; None
    for nothing. An impure call happens exactly once per run. `vjp(*args, *results, *cotangents)` returns
    cotangents of float arguments.
    """
    check_function("host_call", function)
    function = first_alike(function)
    if vjp is not None:
        check_function("host_call", vjp)
        vjp = first_alike(vjp)
    given = [as_tensor(x, "host_call") for x in args]
    specs, structure = tree.flatten(result)
    types = tuple(s if isinstance(s, TensorType) else as_tensor(s).type for s in specs)
    wanted = types if types else (TOKEN,)
    called = function if types else _returning_token(function)
    name = register_host_function(called)
    derivative = register_host_function(vjp) if vjp is not None else ""
    nodes, track = nodes_and_track(given)
    record = OPS["host_call"](name, wanted, pure and bool(types), derivative)
    node = make(record, *nodes, where=where_now())
    parts = items(node)
    results = [
        wrap(n, (track if vjp is not None else CONSTANT) if n.aval.dtype.is_inexact else CONSTANT)
        for n in parts
    ]
    if not (pure and types):
        _happen_once(parts[0], results)
    return tree.unflatten(structure, results) if types else None


_TOKEN_CALLS: dict[Callable[..., Any], Callable[..., Any]] = {}


def _returning_token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that calls `function` and returns a token; the same one each time, so programs
    repeat.
    """

    def called(*arrays: Any) -> Any:
        function(*arrays)
        return np.zeros((), np.int64)

    called.__qualname__ = getattr(function, "__qualname__", "call")
    return _TOKEN_CALLS.setdefault(function, called)


def _happen_once(part: Node, results: Sequence[Tensor]) -> None:
    if MODE.trace is None:
        flushing.flush(results)
        return
    MODE.trace.calls_back()
    b = Builder(part.where)
    with tracing(MODE.trace):
        token = part if part.aval == TOKEN else _token_of(b, part)
    MODE.trace.tokens.append(token)


def _token_of(b: Builder, part: Node) -> Node:
    """Return a token that depends on a value: whether it equals itself."""
    same = b.eq(part, part)
    flag = b.all(same, axes=tuple(range(part.aval.ndim))) if part.aval.ndim else same
    return b.cast(flag, dtype=int64)


def spec(shape: Sequence[int] = (), dtype: Any = "float32") -> TensorType:
    """Return a shape and dtype, for `host_call` to promise."""
    return TensorType(as_dtype(dtype), tuple(shape))


# -- prefixes under an associative function ------------------------------------------------------------------
Combine = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


def associative_scan(
    function: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """Return x0, f(x0, x1), f(f(x0, x1), x2), ... along an axis, for an associative `function`.

    `elems` is a tensor or a container of tensors of one size along `axis`. `function(a, b)` is given
    containers like it, with many elements along the axis at once, and returns one: matmul, add or an
    expression of them takes them as they come, `st.vmap` makes such a function of one of single elements.
    With `reverse` prefixes run from the end, and `a` is what stands later.

    Cost: 2n applications in 2 log2(n) calls. Differentiable in both modes. Source: Blelloch, "Prefix sums and
    their applications", 1990.
    """
    name = "associative_scan"
    leaves, structure = tree.flatten(elems)
    given = [as_tensor(x, name) for x in leaves]
    axes = [check_axis(name, axis, t.ndim) for t in given]
    if len({t.shape[a] for t, a in zip(given, axes, strict=True)}) != 1:
        got = ", ".join(str(t.type) for t in given) or "none"
        raise ShapeError(f"{name}: tensors share the size of axis {axis}", got=got)

    def combine(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
        made, found = tree.flatten(function(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        results = [as_tensor(x, name) for x in made]
        if found != structure or any(r.type != x.type for r, x in zip(results, a, strict=True)):
            got = ", ".join(str(r.type) for r in results)
            raise ShapeError(f"{name}: the function must return values like its arguments",
                             got=f"{got} for {', '.join(str(x.type) for x in a)}")  # fmt: skip
        return results

    def turned(tensors: list[Tensor]) -> list[Tensor]:
        return [flip(t, axis=a) for t, a in zip(tensors, axes, strict=True)] if reverse else tensors

    return tree.unflatten(structure, turned(_prefixes(combine, turned(given), axes)))


def _prefixes(combine: Combine, xs: list[Tensor], axes: list[int]) -> list[Tensor]:
    """Combine neighbours, take the prefixes of those, and combine what stands between."""
    count = xs[0].shape[axes[0]]
    if count < 2:
        return xs

    def part(tensors: list[Tensor], start: int, stop: int, step: int) -> list[Tensor]:
        return [
            t[(slice(None),) * a + (slice(start, stop, step),)] for t, a in zip(tensors, axes, strict=True)
        ]

    odd = _prefixes(combine, combine(part(xs, 0, count - 1, 2), part(xs, 1, count, 2)), axes)
    first = part(xs, 0, 1, 1)
    if count == 2:
        even = first
    else:
        later = part(xs, 2, count, 2)
        between = combine(part(odd, 0, (count - 1) // 2, 1), later)
        even = [concat([x, y], axis=a) for x, y, a in zip(first, between, axes, strict=True)]
    return [_interleaved(x, y, a) for x, y, a in zip(even, odd, axes, strict=True)]


def _interleaved(even: Tensor, odd: Tensor, axis: int) -> Tensor:
    """Return even[0], odd[0], even[1], ... along an axis; there may be one more of the first."""
    count = odd.shape[axis]
    shape = (*odd.shape[:axis], 2 * count, *odd.shape[axis + 1 :])
    before = (slice(None),) * axis
    pairs = reshape(stack([even[(*before, slice(0, count))], odd], axis=axis + 1), shape)
    rest = even[(*before, slice(count, None))]
    return concat([pairs, rest], axis=axis) if rest.shape[axis] else pairs
