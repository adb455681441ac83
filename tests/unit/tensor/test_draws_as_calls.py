"""Draws that came before are one call each: the numbers of calls that build their ops, and no node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.session import SESSION
from stratal.tensor.functions import random
from stratal.tensor.values import deferred

CASES: dict[str, Callable[[Any], Any]] = {
    "rand": lambda lib: lib.rand(3, 2),
    "randn": lambda lib: lib.randn((4,), dtype=st.float64),
    "randint": lambda lib: lib.randint(-3, 9, (5,)),
    "randint of a size": lambda lib: lib.randint(7, (2, 2)),
    "randperm": lambda lib: lib.randperm(6),
    "normal": lambda lib: lib.normal(1.0, 0.5, (3,)),
    "normal of tensors": lambda lib: lib.normal(st.tensor([0.0, 10.0]), st.tensor([1.0, 2.0])),
    "rand_like": lambda lib: lib.rand_like(st.ones(2, 3)),
    "randn_like": lambda lib: lib.randn_like(st.ones(3)),
    "bernoulli": lambda lib: lib.bernoulli(st.tensor([0.2, 0.9, 0.5])),
    "with a key": lambda lib: lib.randn(3, key=random.key(5)),
    "of changing sizes": lambda lib: lib.rand(next(SIZES)),
}
SIZES = iter(())


@pytest.mark.quick
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_draw_gives_the_numbers_and_the_state_of_one_that_builds_its_ops(name: str, asked: bool) -> None:
    global SIZES
    found = []
    for library in (random, st):
        SIZES = iter([2, 3, 4, 3, 2, 5, 2])
        st.manual_seed(11)
        drawn = []
        for _ in range(6):
            drawn.append(CASES[name](library))
            drawn[-1].tolist() if asked else None
        found.append(([x.numpy().tobytes() for x in drawn], st.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert name == "with a key" or len(set(found[0][0])) > 1


@pytest.mark.usefixtures("nothing_waits")
def test_draws_that_came_before_make_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    SESSION.reset()
    made: list[deferred.PendingCall] = []
    nodes = deferred.CallTemplate.nodes

    def counted(self: deferred.CallTemplate, *rest: Any) -> Any:
        made.append(self)  # type: ignore[arg-type]
        return nodes(self, *rest)

    monkeypatch.setattr(deferred.CallTemplate, "nodes", counted)
    values = []
    for turn in range(8):
        if turn == 6:
            made.clear()
        values.append(st.randn(3).numpy())
    assert not made and len({v.tobytes() for v in values}) == 8
    assert np.isfinite(values).all()
