"""The tensor expression and schedule language: write a formula, schedule its loops, run it.

    A, B, k = te.placeholder((p, m)), te.placeholder((p, n)), te.reduce_axis(p)
    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k))
    s = te.schedule(C).split("x", 16).vectorize("xi").parallel("y")
    run = te.build(s)                                   print(s), s.loops, te.parse(str(s)), te.interpret
"""

import stratal.schedule.language  # noqa: F401  fills the table of primitives
from stratal.loops.te.algorithm import Algorithm
from stratal.loops.te.functions import (
    abs,
    all,
    any,
    ceil,
    cos,
    equal,
    erf,
    exp,
    floor,
    log,
    max,
    maximum,
    min,
    minimum,
    not_equal,
    power,
    prod,
    sigmoid,
    sign,
    sin,
    sqrt,
    sum,
    tanh,
    where,
)
from stratal.loops.te.tensor import axes, compute, placeholder, reduce_axis
from stratal.loops.te.term import cast
from stratal.loops.te.text import parse_algorithm
from stratal.schedule.language.intrinsic import INTRINSICS, Intrinsic, intrinsic
from stratal.schedule.language.kernels import interpret, kernels_of
from stratal.schedule.language.nest import traffic
from stratal.schedule.language.registry import PRIMITIVES
from stratal.schedule.language.schedule import LoopSchedule, schedule
from stratal.schedule.language.schedule import parse_schedule as parse
from stratal.te.function import function
from stratal.te.native import NativeSchedule, build

__all__ = [
    "INTRINSICS", "PRIMITIVES", "Algorithm", "Intrinsic", "LoopSchedule", "NativeSchedule", "abs", "all",
    "any", "axes", "build", "cast", "ceil", "compute", "cos", "equal", "erf", "exp", "floor", "function",
    "interpret", "intrinsic", "kernels_of", "log", "max", "maximum", "min", "minimum", "not_equal", "parse",
    "parse_algorithm", "placeholder", "power", "prod", "reduce_axis", "schedule", "sigmoid", "sign", "sin",
    "sqrt", "sum", "tanh", "traffic", "where",
]  # fmt: skip
