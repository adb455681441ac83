"""Measured rounding errors of the math records: `python -m benchmarks.ulp --target avx512 haswell`.

Each row runs one record over a dense range, in the loop-IR interpreter or as native code for a target, and
compares it with extended precision. Errors are in units in the last place of the correctly rounded result.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

import stratal.ops  # noqa: F401  (registers the records)
from stratal.base.artifact import KernelObject
from stratal.base.dtypes import DType, as_dtype, float32, float64
from stratal.base.errors import CompilerError
from stratal.base.target import Instructions, Target
from stratal.codegen.assemble import assemble
from stratal.codegen.kernel import kernel_to_llvm
from stratal.graph.op import REGISTRY
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.interpret import evaluate
from stratal.loops.stmt import For, Kernel, Store
from stratal.plan.host import target_named
from stratal.runtime.loader import load_kernels

Array = np.ndarray[Any, Any]
Spacing = Literal["even", "floats"]  # evenly spaced numbers, or evenly spaced among representable ones
Run = Callable[[str, Sequence[Array]], Array]

_MULTIPLE: Final = 64  # point counts are padded to it: whole vectors for every target


class Range(NamedTuple):
    """Where one operand is sampled."""

    low: float
    high: float
    spacing: Spacing = "even"

    def __str__(self) -> str:
        return f"[{self.low:.5g}, {self.high:.5g}]" + ("" if self.spacing == "even" else " all magnitudes")


class Case(NamedTuple):
    """One row to measure."""

    name: str
    dtype: DType
    ranges: tuple[Range, ...]


class Row(NamedTuple):
    """One measured row."""

    name: str
    dtype: str
    range: str
    backend: str
    points: int
    worst_ulp: float
    at: tuple[float, ...]
    bound_ulp: float

    @property
    def within(self) -> bool:
        return self.worst_ulp <= self.bound_ulp


_EVEN: Final[dict[str, tuple[float, float]]] = {
    "exp2": (-20, 20), "expm1": (-20, 20), "log": (0.25, 4), "log2": (0.25, 4), "log1p": (-0.9, 3),
    "erf": (-4.2, 4.2), "erfc": (-4, 9), "tanh": (-12, 12), "logistic": (-40, 40), "sinh": (-20, 20),
    "cosh": (-20, 20), "asinh": (-10, 10), "acosh": (1, 10), "atanh": (-0.99, 0.99), "asin": (-1, 1),
    "acos": (-1, 1), "atan": (-10, 10), "sin": (-100, 100), "cos": (-100, 100), "tan": (-100, 100),
    "rsqrt": (0.1, 10), "exp": (-20, 20), "cbrt": (-10, 10),
}  # fmt: skip
_WIDE32: Final[dict[str, tuple[float, float]]] = {
    "exp": (-104, 88.7),
    "exp2": (-149, 127.9),
    "expm1": (-30, 88.7),
}
_WIDE64: Final[dict[str, tuple[float, float]]] = {"exp": (-745, 709.7), "exp2": (-1074, 1023.9),
                                                  "expm1": (-40, 709.7)}  # fmt: skip
_POSITIVE: Final = ("log", "log2", "rsqrt", "acosh")


def cases(dtypes: Iterable[DType] = (float32, float64)) -> list[Case]:
    """Return every row: each function over its main range and over its whole domain."""
    found: list[Case] = []
    for dtype in dtypes:
        info = np.finfo(dtype.np)
        for name in sorted(_EVEN):
            found.append(Case(name, dtype, (Range(*_EVEN[name]),)))
            wide = (_WIDE32 if dtype is float32 else _WIDE64).get(name)
            found.append(Case(name, dtype, (Range(*wide) if wide else _whole(name, info),)))
        small, large = (1e-3, 1e3) if dtype is float32 else (1e-30, 1e30)
        found.append(Case("pow", dtype, (Range(small, large, "floats"), Range(-10, 10))))
        found.append(Case("pow", dtype, (Range(0.999, 1.001), Range(-60000, 60000))))
        found.append(Case("atan2", dtype, (Range(-1e3, 1e3, "floats"), Range(-10, 10))))
    return found


def _whole(name: str, info: Any) -> Range:
    """Return all magnitudes a function takes."""
    top, tiny = float(info.max), float(info.smallest_subnormal)
    if name in ("sinh", "cosh"):
        top = 88.0 if info.bits == 32 else 709.0
    elif name in ("asin", "acos", "atanh"):
        top = 1.0 - float(info.epsneg)
    low = {"log1p": -1.0 + float(info.epsneg), "acosh": 1.0, "erfc": -top}.get(name, -top)
    if name == "erfc":
        top = 9.0 if info.bits == 32 else 26.0
    return Range(tiny if name in _POSITIVE and name != "acosh" else low, top, "floats")


def sample(where: Range, points: int, dtype: DType) -> Array:
    """Return `points` numbers of a range, ends included."""
    if where.spacing == "even":
        return np.linspace(where.low, where.high, points).astype(dtype.np)
    ends = _ordinal(np.array([where.low, where.high], dtype.np))
    steps = [int(ends[0]) + (int(ends[1]) - int(ends[0])) * k // max(points - 1, 1) for k in range(points)]
    return _from_ordinal(np.array(steps, np.int64), dtype)


def _ordinal(x: Array) -> Array:
    """Return the place of each float among all floats of its dtype, 0 for zero."""
    bits = x.view(np.int32 if x.itemsize == 4 else np.int64).astype(np.int64)
    least = -(1 << 31) if x.itemsize == 4 else np.iinfo(np.int64).min
    return np.asarray(np.where(bits < 0, np.int64(least) - bits, bits))


def _from_ordinal(place: Array, dtype: DType) -> Array:
    magnitude = np.abs(place).astype(np.uint32 if dtype is float32 else np.uint64)
    sign = np.where(place < 0, -1, 1).astype(dtype.np)
    return np.asarray(np.copysign(magnitude.view(dtype.np), sign))


def operands(case: Case, points: int) -> list[Array]:
    """Return the sampled operands; a second one walks its range by the golden ratio: pairs spread evenly."""
    first, *others = (sample(r, points, case.dtype) for r in case.ranges)
    stride = int(points * 0.6180339887) | 1
    while np.gcd(stride, points) != 1:
        stride += 2
    shuffled = (np.arange(points) * stride) % points
    return [first, *(o[shuffled] for o in others)]


def ulp_errors(got: Array, want: Array) -> Array:
    """Return errors in units in the last place of `want` (extended precision); equal infinities are exact."""
    with np.errstate(all="ignore"):
        nearest = want.astype(got.dtype)
        spacing = np.spacing(np.where(np.isfinite(nearest), np.abs(nearest), 1)).astype(want.dtype)
        error = np.abs(got.astype(want.dtype) - want) / spacing
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    finite = np.isfinite(got) & np.isfinite(nearest)
    return np.asarray(np.where(finite, error, np.where(same, 0, np.inf)), np.float64)


def measure(case: Case, backend: str, run: Run, points: int) -> Row:
    """Run one case and return its row."""
    xs = operands(case, points)
    got = run(case.name, xs)
    with np.errstate(all="ignore"):
        want = REFERENCES[case.name](*(x.astype(np.longdouble) for x in xs))
    errors = ulp_errors(got, want)
    worst = int(np.argmax(errors))
    return Row(
        case.name, case.dtype.short, " x ".join(map(str, case.ranges)), backend, points,
        float(errors[worst]), tuple(float(x[worst]) for x in xs), REGISTRY[case.name].ulp,
    )  # fmt: skip


# -- the functions in extended precision (64-bit mantissa on x86) ------------------------------------------
def extended_is_wider() -> bool:
    """Whether `np.longdouble` is precise enough to judge float64."""
    return bool(np.finfo(np.longdouble).nmant >= 63)


def _erf_series(x: Array) -> Array:
    """erf by 2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1)/(2n+1)!!, whose terms are all of one sign; |x| <= 3."""
    x = np.clip(x, -3, 3)
    term, total, square = x, x, x * x
    for n in range(1, 120):
        term = term * (2 * square) / (2 * n + 1)
        total = total + term
    return np.asarray(2 / np.sqrt(np.longdouble(_PI)) * np.exp(-square) * total)


def _erfc_fraction(x: Array) -> Array:
    """erfc for x >= 2 by its continued fraction, evaluated from its 200th term back."""
    x = np.maximum(x, 2)
    tail = x
    for n in range(200, 0, -1):
        tail = x + (np.longdouble(n) / 2) / tail
    return np.asarray(np.exp(-x * x) / tail / np.sqrt(np.longdouble(_PI)))


def _erf(x: Array) -> Array:
    a = np.abs(x)
    return np.where(np.isnan(x), x, np.where(a < 2, _erf_series(x), np.copysign(1 - _erfc_fraction(a), x)))


def _erfc(x: Array) -> Array:
    a = np.abs(x)
    tail = np.where(x > 0, _erfc_fraction(a), 2 - _erfc_fraction(a))
    return np.where(np.isnan(x), x, np.where(a < 2, 1 - _erf_series(x), tail))


_PI: Final = np.longdouble("3.14159265358979323846264338327950288")
REFERENCES: Final[dict[str, Callable[..., Array]]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "cos": np.cos, "cosh": np.cosh, "erf": _erf,
    "erfc": _erfc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "logistic": lambda x: 1 / (1 + np.exp(-x)), "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,    "sinh": np.sinh, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip


# -- backends --------------------------------------------------------------------------------------------


def scalar_of(name: str, args: Sequence[Expr]) -> Expr:
    """Return the expression of an element-wise record without attributes."""
    return REGISTRY[name]().scalar(*args)  # type: ignore[attr-defined, no-any-return]


def interpreted(name: str, xs: Sequence[Array]) -> Array:
    """Evaluate with the loop-IR interpreter."""
    dtype = as_dtype(xs[0].dtype)
    loads = [Buffer(f"x{k}", dtype, ())[()] for k in range(len(xs))]
    return evaluate([scalar_of(name, loads)], dict(zip(loads, xs, strict=True)), {})[0]


def native(target: Target, instructions: Instructions | None = None) -> Run:
    """Return a backend that compiles the record for `target` and runs it on this machine.

    `instructions` are those to use, by default what the target has.
    """
    chosen = target.instructions if instructions is None else instructions

    def run(name: str, xs: Sequence[Array]) -> Array:
        count = -(-len(xs[0]) // _MULTIPLE) * _MULTIPLE
        padded = [np.ascontiguousarray(np.resize(x, count)) for x in xs]
        out = np.empty(count, xs[0].dtype)
        _call(_compiled(target, chosen, name, as_dtype(xs[0].dtype), len(xs), count), [*padded, out])
        return out[: len(xs[0])]

    return run


def measuring_kernel(name: str, dtype: DType, arity: int, count: int, lanes: int) -> Kernel:
    """Return the kernel `out[i] = f(x0[i], ...)` in vectors of `lanes`."""
    xs = [Buffer(f"x{k}", dtype, (count,)) for k in range(arity)]
    out = Buffer("out", dtype, (count,))
    block, lane = Var("block", count // lanes), Var("lane", lanes)
    at = index.add(index.mul(block, lanes), lane)
    store = Store(out, (at,), scalar_of(name, [x[at] for x in xs]))
    return Kernel(f"ulp_{name}_{dtype.short}", xs, [out], For(block, For(lane, store, "vector")))


def _compiled(
    target: Target, instructions: Instructions, name: str, dtype: DType, arity: int, count: int
) -> tuple[int, object]:
    kernel = measuring_kernel(name, dtype, arity, count, target.lanes(dtype.itemsize))
    attributes = " ".join(["nounwind", *(f'"{k}"="{v}"' for k, v in target.function_attributes)])
    text = f'target triple = "{target.triple}"\n' + kernel_to_llvm(kernel, attributes, instructions)
    addresses, libraries = load_kernels([KernelObject(kernel.name, assemble(text, target), "")])
    return addresses[kernel.name], libraries


def _call(compiled: tuple[int, object], arrays: Sequence[Array]) -> None:
    """Call a kernel of the kernel ABI on dense arrays, as one chunk."""
    buffers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    error = ctypes.c_int64(0)
    frame = (ctypes.c_void_p * 6)(ctypes.addressof(buffers), 0, 0, 0, 0, ctypes.addressof(error))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)(compiled[0])(
        ctypes.addressof(frame), 0, 0
    )
    if error.value:
        raise CompilerError("ulp: the measuring kernel failed", got=str(error.value))


# -- the table -------------------------------------------------------------------------------------------


def table(backends: dict[str, Run], points: int, dtypes: Iterable[DType] = (float32, float64)) -> list[Row]:
    """Measure every case with every backend."""
    return [measure(c, name, run, points) for c in cases(dtypes) for name, run in backends.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the status is 1 if a row is beyond the bound its record states."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ulp", description=main.__doc__)
    parser.add_argument("--target", nargs="*", default=["avx512", "haswell"], help="targets to run natively")
    parser.add_argument("--interpret", action="store_true", help="the interpreter too")
    parser.add_argument("--points", type=int, default=100_000, help="points of a row")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args(argv)
    backends: dict[str, Run] = {name: native(target_named(name)) for name in options.target}
    if options.interpret:
        backends["interpreter"] = interpreted
    rows = table(backends, options.points)
    for row in rows:
        mark = "" if row.within else "   BEYOND ITS BOUND"
        at = ", ".join(f"{v:.9g}" for v in row.at)
        figures = f"{row.worst_ulp:6.2f} of {row.bound_ulp:.1f}   at {at}{mark}"
        print(f"{row.name:9}{row.dtype:5}{row.range:44}{row.backend:12}{figures}")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([r._asdict() | {"within": r.within} for r in rows], indent=1))
    return 0 if all(r.within for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
