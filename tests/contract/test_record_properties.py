"""Element-wise records where things break: NaN, infinities, both zeros, denormals, the ends of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered import evaluate_lowered
from record_samples import Array
from tolerance import disagreement, same_zeros

from stratal.base.dtypes import ALL, DType, bool_
from stratal.base.types import TensorType
from stratal.graph.interpret import apply
from stratal.graph.op import REGISTRY, Op
from stratal.ops.families import Elementwise

POINTWISE = sorted(name for name, r in REGISTRY.items() if issubclass(r, Elementwise) and not r.not_lowered)
POINTWISE.remove("complex")  # which takes two of the four dtypes of floats: see test_complex_native.py
LENGTH = 12


def special_values(dtype: DType) -> list[float]:
    """Return the values of a dtype where rules change."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_integer:
        ends = np.iinfo(dtype.np)
        near = {
            0,
            1,
            2,
            3,
            7,
            8,
            dtype.bits - 1,
            dtype.bits,
            ends.max,
            ends.max - 1,
            ends.min,
            ends.min + 1,
            -1,
            -2,
            -3,
        }
        return sorted(v for v in near if ends.min <= v <= ends.max)
    info = np.finfo(np.float32) if dtype.short == "bf16" else np.finfo(dtype.np)
    sizes = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, math.pi, 7.9, 88.0, 1000.0,
             float(info.max), float(info.tiny), float(info.smallest_subnormal), float(info.eps),
             math.inf]  # fmt: skip
    return [math.nan, *sizes, *(-v for v in sizes)]


def arrays_of(dtype: DType, count: int) -> st.SearchStrategy[list[Array]]:
    """Draw `count` arrays of special values and arbitrary bits: nine bytes an element, one fast draw."""
    size = 9 * LENGTH
    return st.binary(min_size=size * count, max_size=size * count).map(
        lambda raw: [decoded(raw[size * k : size * (k + 1)], dtype) for k in range(count)]
    )


def decoded(raw: bytes, dtype: DType) -> Array:
    """Return elements whose first byte picks a special value or, once in four, the bits that follow."""
    rows = np.frombuffer(raw, np.uint8).reshape(LENGTH, 9)
    bits = (
        np.ascontiguousarray(rows[:, 1 : 1 + dtype.itemsize]).view(dtype.np)[:, 0]
        if not dtype.is_bool
        else rows[:, 1] > 127
    )
    special = special_values(dtype)
    with np.errstate(all="ignore"):
        chosen = np.array(
            [special[k % len(special)] for k in rows[:, 0]], np.float64 if dtype.is_float else dtype.np
        )
        return np.where(rows[:, 0] < 192, chosen.astype(dtype.np), bits)


def compare(op: Op, arrays: Sequence[Array], types: tuple[TensorType, ...]) -> None:
    want = np.asarray(apply(op, *arrays))
    (got,) = evaluate_lowered(op.lower(*types), arrays, [(op.infer(*types).dtype, want.shape)])  # type: ignore[union-attr]
    shown = ", ".join(f"{t}{a.tolist()}" for t, a in zip(types, arrays, strict=True))
    fault = disagreement(op, got, want) or same_zeros(op, got, want)
    assert not fault, f"{op.name} of {shown}: {fault}"


@pytest.mark.parametrize("name", POINTWISE)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_lowered_form_equals_the_reference_on_special_values(name: str, data: st.DataObject) -> None:
    record = REGISTRY[name]
    assert issubclass(record, Elementwise)
    op = record()
    calls = [(TensorType(d, (LENGTH,)),) * (op.arity or 1) for d in ALL if d.kind in record.kinds]
    types = data.draw(st.sampled_from([types for types in calls if not op.host_reason(*types)]))
    compare(op, data.draw(arrays_of(types[0].dtype, len(types))), types)


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_cast_from_special_values_equals_the_reference(dtype: DType, data: st.DataObject) -> None:
    arrays = data.draw(arrays_of(dtype, 1))
    for target in ALL:
        if not target.is_complex:
            compare(REGISTRY["cast"](dtype=target), arrays, (TensorType(dtype, (LENGTH,)),))


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_select_passes_every_value_through_unchanged(dtype: DType, data: st.DataObject) -> None:
    condition = data.draw(arrays_of(bool_, 1))[0]
    x, y = data.draw(arrays_of(dtype, 2))
    types = (TensorType(bool_, (LENGTH,)), *(TensorType(dtype, (LENGTH,)),) * 2)
    op = REGISTRY["select"]()
    (got,) = evaluate_lowered(op.lower(*types), [condition, x, y], [(dtype, (LENGTH,))])
    assert got.tobytes() == np.where(condition, x, y).astype(dtype.np).tobytes()
