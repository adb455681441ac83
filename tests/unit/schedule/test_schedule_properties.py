"""A random legal schedule never changes a bit of the result, and reads back from its text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs
from random_schedules import inputs, schedules
from test_te import product

from stratal import te
from stratal.base.errors import ScheduleError


def _same(a: object, b: object) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.row("D4")
@settings(max_examples=40)
@given(schedules())
def test_a_random_legal_schedule_gives_the_same_bits_interpreted_and_native(pair) -> None:
    plain, scheduled = pair
    arrays = inputs(plain)
    expected = te.interpret(plain, *arrays)
    assert _same(expected, te.interpret(scheduled, *arrays)), str(scheduled)
    try:
        native = te.build(scheduled)
    except ScheduleError as refused:
        assert "register" in str(refused)
        return
    assert _same(expected, native(*arrays)), str(scheduled)


@settings(max_examples=40)
@given(schedules())
def test_the_text_of_a_random_schedule_reads_back_to_the_same_schedule(pair) -> None:
    _, scheduled = pair
    again = te.parse(str(scheduled))
    assert str(again) == str(scheduled)
    assert again.loops == scheduled.loops


@hs.composite
def tilings(draw):
    """Draw a product of any size, tiled by any factors, its tiles kept, shared, fetched ahead or not."""
    m, n, p = (draw(hs.integers(1, 11)) for _ in range(3))
    plain = product(m, n, p, draw(hs.sampled_from(["float32", "int16", "bfloat16"])))
    s = plain
    for name in ("y", "x", "k"):
        s = s.split(name, draw(hs.integers(1, 5)))
    s = s.reorder("yo", "xo", "yi", "xi")
    total = "C_acc" if "C_acc" in [b.name for b in s.nest.local] else "C"
    s = s.fission("xi").fission("yi")
    if total != "C":
        s = s.fission("xi_1").fission("yi_1")
    s = s.reorder("ko", "yi_1", "xi_1", "ki")
    if draw(hs.booleans()):
        s = s.cache_write(total, "xo", "scratch") if total == "C" else s.store_at(total, "xo")
    wanted = draw(hs.sampled_from(["", "read", "ahead", "share"]))
    for tensor in ("A", "B"):
        s = {"read": s.cache_read, "ahead": s.cache_read}.get(wanted, s.share)(tensor, "ko") if wanted else s
    if wanted == "ahead" and s.nest.loops["ko"].var.extent > 1:
        s = s.pipeline("ko", "AL", "BL")
    if draw(hs.booleans()):
        s = s.vectorize("xi")
    if total == "C" or wanted == "read":
        s = s.parallel("yo") if draw(hs.booleans()) else s
    return plain, s


@pytest.mark.sampled(4)
@pytest.mark.row("D4")
@settings(max_examples=20)
@given(tilings())
def test_a_product_tiled_in_any_way_gives_the_same_bits(pair) -> None:
    plain, tiled = pair
    arrays = inputs(plain)
    expected = te.interpret(plain, *arrays)
    assert _same(expected, te.interpret(tiled, *arrays)), str(tiled)
    assert _same(expected, te.build(tiled)(*arrays)), str(tiled)
