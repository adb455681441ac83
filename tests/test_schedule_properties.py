"""A random legal schedule never changes a bit of the result, and reads back from its text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_schedules import inputs, schedules

from stratal import te
from stratal.base.errors import ScheduleError


def _same(a: object, b: object) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.row("D4")
@settings(max_examples=60)
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


@settings(max_examples=60)
@given(schedules())
def test_the_text_of_a_random_schedule_reads_back_to_the_same_schedule(pair) -> None:
    _, scheduled = pair
    again = te.parse(str(scheduled))
    assert str(again) == str(scheduled)
    assert again.loops == scheduled.loops
