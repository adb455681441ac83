"""What the loop IR means: a reference interpreter of expressions, tensor expressions and kernels, in NumPy.

Slow where that is clearer. Loads outside a buffer raise VerifyError; a guarded load does not happen where its
condition fails; `fma` rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stratal.base.errors import VerifyError, check_failed
from stratal.loops.compute import Compute
from stratal.loops.exact import apply
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Lanes, Load, Var, load
from stratal.loops.math.rare import RARE, rare
from stratal.loops.stmt import Fail, For, Kernel, Prefetch, ProductCall, Seq, Stmt, Store

Array = np.ndarray[Any, Any]
Values = Mapping[Expr, Array]
Arrays = Mapping[Buffer, Array]


class _Scope:
    """Values known at one place: bound variables, a memo, and the points at which loads really happen."""

    __slots__ = ("active", "arrays", "memo")

    def __init__(self, values: Values, arrays: Arrays, active: Array) -> None:
        self.memo = dict(values)
        self.arrays = arrays
        self.active = active

    def narrowed(self, condition: Array) -> _Scope:
        return _Scope(self.memo, self.arrays, self.active & condition)

    def with_lanes(self, bound: Var) -> _Scope:
        """Give every value a trailing axis and bind `bound` along it."""
        values = {e: v[..., None] for e, v in self.memo.items()}
        values[bound] = np.arange(bound.extent, dtype=np.int64)
        return _Scope(values, self.arrays, self.active[..., None])


def evaluate(roots: Iterable[Expr], values: Values, arrays: Arrays) -> list[Array]:
    """Evaluate expressions at many points at once: `values` binds variables or sub-expressions to arrays.

    `arrays` holds each buffer's elements in its logical shape. Results broadcast against the bindings.
    """
    scope = _Scope(values, arrays, np.True_)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        return [_value(r, scope) for r in roots]


def _value(root: Expr, scope: _Scope) -> Array:
    stack = [root]
    while stack:
        expr = stack[-1]
        if expr in scope.memo:
            stack.pop()
            continue
        needed = _needed_first(expr)
        missing = [c for c in needed if c not in scope.memo]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        scope.memo[expr] = _step(expr, scope)
    return scope.memo[root]


def _needed_first(expr: Expr) -> tuple[Expr, ...]:
    """Return the sub-expressions of the same scope; a guard's value and reduced lanes have their own."""
    if isinstance(expr, Guard):
        return (expr.condition, expr.otherwise)
    return () if isinstance(expr, Lanes) else expr.parts


def _step(expr: Expr, scope: _Scope) -> Array:
    if isinstance(expr, Const):
        return constant(expr)
    if isinstance(expr, Call):
        if expr.fn in RARE:
            return _cold_call(expr, *(scope.memo[a] for a in expr.args))
        return apply(expr.fn, [scope.memo[a] for a in expr.args], expr.dtype)
    if isinstance(expr, Load):
        return _loaded(expr, scope)
    if isinstance(expr, Guard):
        condition = scope.memo[expr.condition]
        value = _value(expr.value, scope.narrowed(condition))
        return np.where(condition, value, scope.memo[expr.otherwise])
    if isinstance(expr, Lanes):
        value = _value(expr.value, scope.with_lanes(expr.var))
        return _tree(expr, np.broadcast_to(value, np.broadcast_shapes(value.shape, (expr.var.extent,))))
    raise VerifyError("interpreter: a loop variable has no value", got=str(expr))


def _cold_call(expr: Call, *operands: Array) -> Array:
    """Return the usual result, the last operand, and the defined one where it is another."""
    definition = rare(expr.fn, expr.dtype)
    *xs, usual = np.broadcast_arrays(*operands)
    (needed,) = evaluate([definition.condition], dict(zip(definition.xs, xs, strict=True)), {})
    if not np.any(needed):
        return usual
    given: dict[Expr, Array] = {load: x[needed] for load, x in zip(definition.xs, xs, strict=True)}
    (found,) = evaluate([definition.value], given, {})
    result = usual.copy()
    result[needed] = found
    return result


def constant(expr: Const) -> Array:
    """Return an immediate; integers wrap to their dtype."""
    if not expr.dtype.is_integer:
        return np.asarray(expr.value, expr.dtype.np)
    wrapped = int(expr.value) % (1 << expr.dtype.bits)
    return np.asarray(wrapped, f"uint{expr.dtype.bits}").view(expr.dtype.np)


def _tree(expr: Lanes, lanes: Array) -> Array:
    """Combine halves, then halves of those: the order of every lane reduction."""
    while (half := lanes.shape[-1] // 2) > 0:
        lanes = apply(expr.fn, [lanes[..., :half], lanes[..., half:]], expr.dtype)
    return lanes[..., 0]


def _loaded(expr: Load, scope: _Scope) -> Array:
    where = tuple(scope.memo[i] for i in expr.indices)
    array = scope.arrays.get(expr.buffer)
    if array is None:
        raise VerifyError("interpreter: a buffer has no elements", got=str(expr.buffer))
    inside: Array = np.True_  # type: ignore[assignment]
    for index, n in zip(where, expr.buffer.shape, strict=True):
        inside = inside & (index >= 0) & (index < n)
    _check_inside(f"load of {expr}", scope.active & ~inside, where, expr.buffer)
    if np.all(inside):
        return np.asarray(array[where])
    if array.size == 0:
        return np.zeros(np.broadcast_shapes(*(w.shape for w in where)), array.dtype)
    return np.asarray(array[tuple(np.where(inside, w, 0) for w in where)])


def _check_inside(what: str, bad: Array, where: Sequence[Array], buffer: Buffer) -> None:
    if np.any(bad):
        points = np.broadcast_arrays(bad, *where)
        first = tuple(int(p[points[0]].flat[0]) for p in points[1:])
        raise VerifyError(f"interpreter: {what} is outside the buffer", got=f"index {first} of {buffer}")


# -- tensor expressions ----------------------------------------------------------------------------------


def grid(variables: Sequence[Var], ndim: int | None = None, first: int = 0) -> dict[Expr, Array]:
    """Bind each variable to all its values, along axis `first + k` of `ndim` axes."""
    total = len(variables) if ndim is None else ndim
    values: dict[Expr, Array] = {}
    for k, v in enumerate(variables):
        shape = [1] * total
        shape[first + k] = v.extent
        values[v] = np.arange(v.extent, dtype=np.int64).reshape(shape)
    return values


def evaluate_compute(compute: Compute, inputs: Sequence[Array]) -> Array:
    """Return the tensor a `Compute` denotes; a reduction combines term by term, last reduce axis fastest."""
    arrays = dict(zip(compute.args, inputs, strict=True))
    for check in compute.checks:
        x = inputs[check.arg]
        if np.any((x < 0) | (x >= check.bound)):
            raise check_failed(check.message, int(x[(x < 0) | (x >= check.bound)].flat[0]))
    ndim = len(compute.axes) + len(compute.reduce)
    values = grid(compute.axes, ndim) | grid(compute.reduce, ndim, len(compute.axes))
    full = compute.shape + tuple(v.extent for v in compute.reduce)
    terms = [np.broadcast_to(t, full) for t in evaluate(compute.terms, values, arrays)]
    result = terms[0] if compute.combiner is None else _reduced(compute, terms)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(apply("cast", [result], compute.dtype)).reshape(compute.shape)


def _reduced(compute: Compute, terms: Sequence[Array]) -> Array:
    combiner = compute.combiner
    if combiner is None:
        raise VerifyError("interpreter: a reduction without a combiner", got=str(compute))
    dtypes = compute.state_dtypes
    states = [load(Buffer(f"state{k}", d, ()), ()) for k, d in enumerate(dtypes)]
    inputs = [load(Buffer(f"term{k}", t.dtype, ()), ()) for k, t in enumerate(compute.terms)]
    joined = combiner.combine(states, inputs)
    held = [np.full(compute.shape, c.value, c.dtype.np) for c in combiner.identity(dtypes)]
    count = math.prod(v.extent for v in compute.reduce)
    flat = [t.reshape((*compute.shape, count)) for t in terms]
    for k in range(count):
        here: dict[Expr, Array] = dict(zip(states, held, strict=True))
        here.update(zip(inputs, (t[..., k] for t in flat), strict=True))
        held = evaluate(joined, here, {})
    return held[compute.result]


# -- kernels ---------------------------------------------------------------------------------------------


def undefined(buffer: Buffer) -> Array:
    """Return elements nobody should read before writing them: NaN for floats, a pattern for integers."""
    if buffer.dtype.is_float or buffer.dtype.is_complex:
        return np.full(buffer.shape, np.nan, buffer.dtype.np)
    pattern = np.full(max(1, buffer.dtype.itemsize), 0x01 if buffer.dtype.is_bool else 0x5B, np.uint8)
    return np.full(buffer.shape, pattern.view(buffer.dtype.np)[0], buffer.dtype.np)


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


def run_kernel(kernel: Kernel, arrays: Arrays) -> int:
    """Run a kernel, chunk after chunk, on arrays in logical shape, in place. Returns the error cell."""
    held = dict(arrays) | {b: undefined(b) for b in kernel.local}
    for b in kernel.parameters:
        if b not in held or held[b].shape != b.shape or held[b].dtype != b.dtype.np:
            got = f"{held[b].dtype}{list(held[b].shape)}" if b in held else "nothing"
            raise VerifyError(f"interpreter: parameter {b} of {kernel.name} needs an array like it", got=got)
    try:
        _run(kernel.body, {}, held)
    except _Failed as failed:
        return failed.code
    return 0


def _run(stmt: Stmt, values: dict[Expr, Array], arrays: Arrays) -> None:
    if isinstance(stmt, Seq):
        for s in stmt.body:
            _run(s, values, arrays)
    elif isinstance(stmt, For):
        for i in range(stmt.var.extent):
            _run(stmt.body, {**values, stmt.var: np.asarray(i, np.int64)}, arrays)
    elif isinstance(stmt, Store):
        _store(stmt, values, arrays)
    elif isinstance(stmt, Prefetch):
        evaluate(stmt.indices, values, arrays)
    elif isinstance(stmt, ProductCall):
        _multiply(stmt, values, arrays)
    else:
        (condition,) = evaluate((stmt.condition,), values, arrays)
        if isinstance(stmt, Fail):
            if condition:
                raise _Failed(stmt.code or int(condition))
        elif condition:
            _run(stmt.then, values, arrays)
        elif stmt.otherwise is not None:
            _run(stmt.otherwise, values, arrays)


def _store(stmt: Store, values: dict[Expr, Array], arrays: Arrays) -> None:
    *where, value = evaluate((*stmt.indices, stmt.value), values, arrays)
    outside = any(not 0 <= int(i) < n for i, n in zip(where, stmt.buffer.shape, strict=True))
    _check_inside(f"store to {stmt.buffer.name}", np.asarray(outside), where, stmt.buffer)
    arrays[stmt.buffer][tuple(int(i) for i in where)] = value


def _multiply(stmt: ProductCall, values: dict[Expr, Array], arrays: Arrays) -> None:
    """Store a product of matrices; in which order a library adds up, it does not say."""
    store, a, b = stmt.parts()
    rows, columns, depth = stmt.loops
    (left,) = evaluate((a,), {**values, **grid((rows, depth))}, arrays)
    (right,) = evaluate((b,), {**values, **grid((depth, columns))}, arrays)
    where = evaluate(store.indices, {**values, **grid((rows, columns))}, arrays)
    inside = [(i >= 0) & (i < n) for i, n in zip(where, store.buffer.shape, strict=True)]
    bad = ~np.logical_and.reduce(np.broadcast_arrays(*inside))
    _check_inside(f"store to {store.buffer.name}", bad, where, store.buffer)
    left = np.broadcast_to(left, (rows.extent, depth.extent))
    right = np.broadcast_to(right, (depth.extent, columns.extent))
    arrays[store.buffer][tuple(where)] = left @ right
