"""The numerical check of derivatives: both modes against central finite differences, in double precision.

Convention for complex values as in `ops/families.py`: Re<ct, jvp(t)> = Re<vjp(ct), t>, so the gradient of a
real value v with respect to z = x + iy is dv/dx + i dv/dy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from stratal.autodiff.jvp import jvp_graph
from stratal.autodiff.vjp import vjp_graph
from stratal.base.dtypes import as_dtype, complex128, float64
from stratal.base.errors import DTypeError, StratalError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.graph.op import Array

Function = Union[Graph, Callable[..., Any]]
_STEP = 1e-3  # the five-point difference errs by step**4: 1e-12, as much as rounding does at this step


class GradientMismatchError(StratalError, ArithmeticError):
    """A derivative rule that disagrees with finite differences."""


class Entry(NamedTuple):
    """The element that agrees least within one comparison."""

    mode: str
    argument: str
    place: tuple[int, ...]
    derived: complex
    numeric: complex
    error: float  # relative to the larger of both values and to the tolerance's floor

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.place))}]" if self.place else ""
        return (
            f"{self.mode} of {self.argument}{at}: rule {_show(self.derived)}, "
            f"finite differences {_show(self.numeric)} (relative error {self.error:.2g})"
        )


def _show(value: complex) -> str:
    return f"{value.real:.10g}" if value.imag == 0 else f"{value:.10g}"


class GradReport(NamedTuple):
    """The worst element of every comparison that was made, worst first."""

    entries: tuple[Entry, ...]
    rtol: float

    @property
    def ok(self) -> bool:
        return all(e.error <= self.rtol for e in self.entries)

    def __str__(self) -> str:
        return (
            "\n".join(map(str, self.entries))
            or "nothing to compare: no inexact input reaches an inexact output"
        )


def trace(function: Callable[..., Any], types: Iterable[TensorType], name: str = "graph") -> Graph:
    """Return the graph of `function(b, *nodes)`, which returns a node or a sequence of nodes."""
    inputs = [graph_input(f"x{k}", t) for k, t in enumerate(types)]
    result = function(Builder(), *inputs)
    return Graph(inputs, (result,) if isinstance(result, Node) else tuple(result), name=name)


def check_grad(
    function: Function, inputs: Sequence[Any], *, order: int = 1, rtol: float = 1e-5, atol: float = 1e-8,
    seed: int = 0
) -> GradReport:
    """Compare vjp and jvp with finite differences at one point and return the report.

    `function` is a Graph or a function `(b, *nodes) -> node(s)`. Floats and complex numbers are checked in
    float64 and complex128 (a Graph must already be of these dtypes); other inputs stay as they are. With
    `order=2` the vjp itself is checked too, and so on. Cost: 4 runs per input element. Raises:
    GradientMismatchError naming the worst element of each comparison that fails.
    """
    arrays = [_doubled(np.asarray(x)) for x in inputs]
    if isinstance(function, Graph):
        graph = function
    else:
        graph = trace(function, [TensorType(as_dtype(a.dtype), a.shape) for a in arrays])
    rng = np.random.default_rng(seed)
    entries: list[Entry] = []
    for level in range(order):
        _check_types(graph)
        entries += _compare(graph, arrays, rng, atol, "" if level == 0 else f"derivative {level}: ")
        if level + 1 < order:
            graph = vjp_graph(graph, _marks(graph))
            arrays = [*arrays, *(_draw(rng, i.aval) for i in graph.inputs[len(arrays) :])]
    report = GradReport(tuple(sorted(entries, key=lambda e: -e.error)), rtol)
    if not report.ok:
        bad = [e for e in report.entries if e.error > rtol]
        raise GradientMismatchError(
            f"check_grad: {graph.name}: a derivative disagrees with finite differences (rtol {rtol:g})",
            got="\n         ".join(map(str, bad[:6])),
            where=[line for o in graph.outputs for line in o.where],
            hint="near a kink or a jump finite differences mislead; otherwise the op's rule is wrong",
        )
    return report


def _doubled(array: Array) -> Array:
    kind = as_dtype(array.dtype).kind
    return array.astype(np.complex128 if kind == "c" else np.float64) if kind in "fc" else array


def _check_types(graph: Graph) -> None:
    for node in (*graph.inputs, *graph.outputs):
        if node.dtype.is_inexact and node.dtype not in (float64, complex128):
            raise DTypeError(
                "check_grad: runs in float64 or complex128", got=str(node.type), where=node.where,
                hint="build the graph at that precision: finite differences need it",
            )  # fmt: skip


def _marks(graph: Graph) -> list[bool]:
    return [i.dtype.is_inexact for i in graph.inputs]


def _draw(rng: np.random.Generator, type_: TensorType) -> Array:
    """Return values of magnitude 0.5 to 1.5, so that no element hides behind a small weight."""

    def part() -> Array:
        return np.asarray(rng.uniform(0.5, 1.5, type_.ints) * rng.choice([-1.0, 1.0], type_.ints))

    if type_.dtype.is_complex:
        return np.asarray(part() + 1j * part(), np.complex128)
    return np.asarray(part(), np.float64)


def _run(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    return interpret(graph, arrays)[0]


def _difference(graph: Graph, move: Callable[[float], Sequence[Array]]) -> list[Array]:
    """Return d outputs / d step along `move(step)` at 0, for inexact outputs; fourth order in the step."""
    at = {k: _run(graph, move(k * _STEP)) for k in (-2, -1, 1, 2)}
    return [
        np.asarray((at[-2][n] - 8 * at[-1][n] + 8 * at[1][n] - at[2][n]) / (12 * _STEP))
        for n, o in enumerate(graph.outputs)
        if o.dtype.is_inexact
    ]


def _compare(
    graph: Graph, arrays: list[Array], rng: np.random.Generator, atol: float, label: str
) -> list[Entry]:
    marks = _marks(graph)
    if not any(marks) or not any(o.dtype.is_inexact for o in graph.outputs):
        return []
    moved = [k for k, mark in enumerate(marks) if mark]
    tangents = [_draw(rng, graph.inputs[k].aval) for k in moved]
    derived = _run(jvp_graph(graph, marks), [*arrays, *tangents])[len(graph.outputs) :]

    def along(step: float) -> list[Array]:
        by_input = dict(zip(moved, tangents, strict=True))
        return [a + step * by_input[k] if k in by_input else a for k, a in enumerate(arrays)]

    numeric = _difference(graph, along)
    found = [
        _worst(f"{label}jvp", f"output {k}", d, n, atol)
        for k, (d, n) in enumerate(zip(derived, numeric, strict=True))
    ]

    cotangents = [_draw(rng, o.aval) for o in graph.outputs if o.dtype.is_inexact]
    gradients = _run(vjp_graph(graph, marks), [*arrays, *cotangents])
    for k, gradient in zip(moved, gradients, strict=True):
        numeric_gradient = _numeric_gradient(graph, arrays, k, cotangents)
        found.append(_worst(f"{label}vjp", f"input {k}", gradient, numeric_gradient, atol))
    return [e for e in found if e is not None]


def _numeric_gradient(graph: Graph, arrays: list[Array], which: int, cotangents: Sequence[Array]) -> Array:
    """Return the gradient of Re<cotangents, outputs> with respect to one input, element by element."""
    x = arrays[which]
    gradient = np.zeros(x.shape, x.dtype)
    for index in np.ndindex(x.shape):
        for unit in (1.0, 1j) if x.dtype.kind == "c" else (1.0,):

            def along(step: float, index: tuple[int, ...] = index, unit: complex = unit) -> list[Array]:
                moved = x.copy()
                moved[index] += step * unit
                return [moved if k == which else a for k, a in enumerate(arrays)]

            slopes = _difference(graph, along)
            slope = sum(float(np.real(np.vdot(c, s))) for c, s in zip(cotangents, slopes, strict=True))
            gradient[index] = gradient[index] + slope * unit
    return gradient


def _worst(mode: str, argument: str, derived: Array, numeric: Array, atol: float) -> Entry | None:
    """Return the element of largest relative error; gaps below `atol` times the scale count as none."""
    if derived.size == 0:
        return None
    scale = max(1.0, float(np.max(np.abs(numeric), initial=0.0)))
    gap = np.abs(derived - numeric)
    size = np.maximum(np.maximum(np.abs(derived), np.abs(numeric)), np.finfo(np.float64).tiny)
    error = np.where(gap <= atol * scale, 0.0, gap / size)
    error = np.where(np.isnan(error), np.inf, error)
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    at = tuple(int(i) for i in index)
    return Entry(mode, argument, at, complex(derived[at]), complex(numeric[at]), float(error[at]))
