"""What records say of themselves in flags that rewrites rely on, beside references and lowerings."""

from __future__ import annotations

import numpy as np
import pytest
from layout import IMPORTED

import stratal.ops
from stratal.graph.op import REGISTRY, Op
from stratal.loops.compute import Compute

pytestmark = pytest.mark.quick
assert IMPORTED and stratal.ops

COMMUTATIVE = sorted(name for name, cls in REGISTRY.items() if cls.commutative)
POINTWISE = sorted(name for name, cls in REGISTRY.items() if cls.pointwise)


def test_the_ops_whose_operands_may_be_exchanged_are_those_of_algebra() -> None:
    algebra = ["add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"]
    assert sorted(algebra) == COMMUTATIVE


@pytest.mark.parametrize("name", COMMUTATIVE)
def test_a_commutative_op_has_the_same_bits_with_its_operands_exchanged(name: str) -> None:
    rng = np.random.default_rng(0)
    for sample in REGISTRY[name].samples():
        if any(t.dtype.is_complex for t in sample.types):
            continue  # of a NaN the sign is free
        x, y = (np.asarray(rng.integers(-3, 4, t.ints)).astype(t.dtype.np) for t in sample.types)
        assert np.asarray(sample.op.ref(x, y)).tobytes() == np.asarray(sample.op.ref(y, x)).tobytes()


@pytest.mark.parametrize("name", POINTWISE)
def test_a_pointwise_op_reads_its_operands_where_it_computes(name: str) -> None:
    for sample in REGISTRY[name].samples():
        if sample.op.host_reason(*sample.types):
            continue
        lowered = sample.op.lower(*sample.types)
        if isinstance(lowered, Compute):
            assert all(e.indices == lowered.axes for e in lowered.loads)
            assert lowered.combiner is None


def test_no_op_is_pinned_that_computes_something() -> None:
    pinned: list[type[Op]] = [cls for cls in REGISTRY.values() if cls.pinned]
    assert {cls.name for cls in pinned} == {"barrier", "constrain"}
