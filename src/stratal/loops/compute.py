"""Tensor expressions: what an op or a fused group computes, with no word on how.

out[axes] = body                                          no reduction
out[axes] = result of combining term(axes, reduce) ...    with a named combiner over a tuple of states
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, final

import numpy as np

from stratal.base.dtypes import DType
from stratal.base.errors import VerifyError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.loops.expr import Buffer, Const, Expr, Var, call, const, loads

States = Sequence[Expr]


class Combiner(NamedTuple):
    """An associative combination of states. `combine(states, terms)` gives the new states.

    `merge(states, states)` joins two partial results; `lanes` names the function that joins vector lanes of a
    one-state combiner. With `in_order` terms must come in the order of their indices.
    """

    name: str
    num_states: int
    num_terms: int
    identity: Callable[[Sequence[DType]], list[Const]]
    combine: Callable[[States, States], list[Expr]]
    merge: Callable[[States, States], list[Expr]]
    lanes: str | None = None
    in_order: bool = False


def lowest(dtype: DType) -> float | int:
    """Return the value every other is at least as great as."""
    if dtype.is_bool:
        return 0
    return int(np.iinfo(dtype.np).min) if dtype.is_integer else float("-inf")


def highest(dtype: DType) -> float | int:
    """Return the value no other is greater than."""
    if dtype.is_bool:
        return 1
    return int(np.iinfo(dtype.np).max) if dtype.is_integer else float("inf")


def _fold(name: str, fn: str, identity: Callable[[DType], float | int]) -> Combiner:
    def combine(states: States, terms: States) -> list[Expr]:
        return [call(fn, states[0], terms[0])]

    return Combiner(name, 1, 1, lambda d: [const(identity(d[0]), d[0])], combine, combine, fn)


def _dot() -> Combiner:
    def combine(states: States, terms: States) -> list[Expr]:
        acc, (a, b) = states[0], terms
        if acc.dtype.is_float:
            return [call("fma", a, b, acc)]
        return [call("add", acc, call("mul", a, b))]

    def merge(states: States, others: States) -> list[Expr]:
        return [call("add", states[0], others[0])]

    return Combiner("dot", 1, 2, lambda d: [const(0, d[0])], combine, merge, "add")


def _arg(name: str, better: str, worst: Callable[[DType], float | int]) -> Combiner:
    """First index of the best value; NaN beats everything, as in NumPy."""

    def combine(states: States, terms: States) -> list[Expr]:
        best, at = states
        value, index = terms
        take = call(better, value, best)
        if value.dtype.is_float:
            take = call("or", take, call("and", call("ne", value, value), call("eq", best, best)))
        ties = call("eq", value, best)
        if value.dtype.is_float:
            ties = call("or", ties, call("and", call("ne", value, value), call("ne", best, best)))
        take = call("or", take, call("and", ties, call("lt", index, at)))
        return _chosen(take, states, terms)

    def identity(dtypes: Sequence[DType]) -> list[Const]:
        return [const(worst(dtypes[0]), dtypes[0]), const(highest(dtypes[1]), dtypes[1])]

    return Combiner(name, 2, 2, identity, combine, combine)


def _first_arg(name: str, better: str, no_better: str, worst: Callable[[DType], float | int]) -> Combiner:
    """The same for terms whose index starts at 0 and grows: a tie never takes, so a step is two comparisons.

    Where all values are the worst there is, none takes, and the first index is that of the identity.
    """
    anyhow = _arg(name, better, worst)

    def combine(states: States, terms: States) -> list[Expr]:
        best, value = states[0], terms[0]
        if not value.dtype.is_float:
            return _chosen(call(better, value, best), states, terms)
        take = call("and", call("not", call(no_better, value, best)), call("eq", best, best))
        return _chosen(take, states, terms)

    def identity(dtypes: Sequence[DType]) -> list[Const]:
        return [const(worst(dtypes[0]), dtypes[0]), const(0, dtypes[1])]

    return Combiner(name, 2, 2, identity, combine, anyhow.merge, in_order=True)


def _chosen(take: Expr, states: States, terms: States) -> list[Expr]:
    return [call("select", take, t, s) for t, s in zip(terms, states, strict=True)]


COMBINERS: Final[dict[str, Combiner]] = {
    c.name: c
    for c in (
        _fold("sum", "add", lambda d: 0),
        _fold("prod", "mul", lambda d: 1),
        _fold("max", "max", lowest),
        _fold("min", "min", highest),
        _fold("any", "or", lambda d: 0),
        _fold("all", "and", lambda d: 1),
        _dot(),
        _arg("argmax", "gt", lowest),
        _first_arg("first_argmax", "gt", "le", lowest),
        _first_arg("first_argmin", "lt", "ge", highest),
    )
}


class Check(NamedTuple):
    """Values of argument `arg` must lie in [0, bound); tested before any state is written."""

    arg: int
    bound: int
    message: str


@final
class Compute(Lowered):
    """One tensor as an expression of others. `terms` has one entry without a combiner, `num_terms` with one.

    Terms of a reduction have the states' dtypes (float32 for 16-bit floats: round once, at the end); the
    result is `states[result]` cast to `dtype`.
    """

    __slots__ = ("args", "axes", "checks", "combiner", "dtype", "loads", "reduce", "result", "terms")

    def __init__(
        self, args: Iterable[Buffer], axes: Iterable[Var], dtype: DType, terms: Expr | Iterable[Expr], *,
        reduce: Iterable[Var] = (), combiner: str | None = None, result: int = 0, checks: Iterable[Check] = ()
    ) -> None:
        self.args: Final = tuple(args)
        self.axes: Final = tuple(axes)
        self.dtype: Final = dtype
        self.terms: Final = tuple(terms) if isinstance(terms, (tuple, list)) else (terms,)
        self.reduce: Final = tuple(reduce)
        self.combiner: Final = COMBINERS[combiner] if combiner is not None else None
        self.result: Final = result
        self.checks: Final = tuple(checks)
        self.loads: Final = tuple(loads(self.terms))  # read often, and the terms of a function are long
        expected = self.combiner.num_terms if self.combiner else 1
        if len(self.terms) != expected:
            raise VerifyError(f"compute: {combiner or 'an element-wise body'} takes {expected} terms",
                              got=str(len(self.terms)))  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(v.extent for v in self.axes)

    @property
    def state_dtypes(self) -> tuple[DType, ...]:
        if self.combiner is None:
            return ()
        return tuple(t.dtype for t in self.terms[: self.combiner.num_states])

    def __str__(self) -> str:
        out = f"out[{', '.join(f'{v}<{v.extent}' for v in self.axes)}] = "
        if self.combiner is None:
            return out + str(self.terms[0])
        return (
            f"{out}{self.combiner.name}[{', '.join(f'{v}<{v.extent}' for v in self.reduce)}]"
            f"({', '.join(map(str, self.terms))})"
        )


def arguments(*types: TensorType) -> list[Buffer]:
    """Return placeholder buffers for an op's inputs: `a0`, `a1`, ..."""
    return [Buffer(f"a{k}", t.dtype, t.ints) for k, t in enumerate(types)]


def fresh_axes(shape: Iterable[int], prefix: str = "i") -> list[Var]:
    """Return one fresh loop variable per axis."""
    return [Var(f"{prefix}{k}", int(n)) for k, n in enumerate(shape)]


def pointwise(types: Sequence[TensorType], dtype: DType, f: Callable[..., Expr]) -> Compute:
    """Return `out[i...] = f(x[i...], ...)` for inputs of one shape."""
    args = arguments(*types)
    vs = fresh_axes(types[0].ints)
    return Compute(args, vs, dtype, f(*[a[tuple(vs)] for a in args]))


class Stage(NamedTuple):
    """One of several kernels of a loop body.

    What it writes besides results is memory that later stages may read, or `local` to it.
    """

    body: object
    local: tuple[Buffer, ...] = ()


@final
class LoopBody(Lowered):
    """Kernels no tensor expression describes (cumulative ops, scatter): statements over argument and result
    buffers.

    `build(args, outs)` returns the statement, or a list of stages that run one after another; `parallel`
    loops may be distributed. Nothing fuses into it.
    """

    __slots__ = ("build", "checks")

    def __init__(
        self, build: Callable[[Sequence[Buffer], Sequence[Buffer]], object], checks: Iterable[Check] = ()
    ) -> None:
        self.build: Final = build
        self.checks: Final = tuple(checks)


@final
class Nest(Lowered):
    """A computation whose loops only a tactic knows how to write, for its blocks depend on the target.

    `kind` names the group and so the tactic (`schedule/tactics/`). Views of its operands are seen through.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind


@final
class SameBytes(Lowered):
    """The operand's bytes under another type: no kernel, one value in memory."""

    __slots__ = ()


@final
class Region(Lowered):
    """Control flow: the compiler turns it into nested command lists. `kind` is `cond`, `while` or `scan`."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind
