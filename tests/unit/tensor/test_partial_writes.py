"""A loop that writes a tensor place by place runs few programs, and means what it says."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from fuzz_views import judged, written

import stratal as st
from stratal.base.session import SESSION
from stratal.tensor.lazy import partial_writes, program_cache

N = 100


def numbers(x, lib):
    for i in range(N):
        x[i] = i


def rows(x, lib):
    row = lib.ones(3)
    for i in range(N):
        x[i] = row * i


def elements(x, lib):
    for i in range(N):
        x[i, 1] += 1


def ranges(x, lib):
    for i in range(0, N, 2):
        x[i : i + 2] = lib.ones(3)


def recurrence(x, lib):
    x[0] = 1
    for i in range(1, N):
        x[i] = x[i - 1] + i


def methods(x, lib):
    for i in range(N):
        x[i].add_(2.0)
        x[:, i % 3].mul_(0.5)


def columns(x, lib):
    for i in range(N):
        x.T[i % 3, i] = i


def kept(x, lib):
    before = [x * 2]
    for i in range(N):
        x[i] = i
        before.append(x.sum())
    x[0] = sum(before[1:])
    x[1] = before[0][0]


def rows_in_a_list(x, lib):
    for k, row in enumerate([x[i] for i in range(N)]):
        row += k


def windows(x, lib):
    late = x[N // 2 :]
    for i in range(N):
        x[i] = i
        late[0] = x[i]


def arrays(x, lib):
    for i in range(N):
        x[i] = np.full(3, i, np.float32)


LOOPS = [numbers, rows, elements, ranges, recurrence, methods, columns, kept, rows_in_a_list, windows, arrays]


@pytest.mark.torch
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("made", ["zeros", "computed"])
def test_a_loop_of_writes_means_what_it_says(loop, made):
    torch = pytest.importorskip("torch")
    if loop is arrays:
        pytest.skip("PyTorch takes no arrays")
    found = []
    for lib in (st, torch):
        x = lib.zeros(N, 3) if made == "zeros" else lib.arange(3.0 * N).reshape(N, 3) * 2
        loop(x, lib)
        found.append(x.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("loop", [numbers, rows, elements, ranges, recurrence, arrays])
def test_a_loop_of_writes_takes_few_programs(loop):
    SESSION.reset()
    before = program_cache.COMPILED[0]
    x = st.zeros(N, 3)
    loop(x, st)
    x.tolist()
    assert program_cache.COMPILED[0] - before <= 4


def test_a_write_that_does_not_fit_is_refused_and_changes_nothing():
    x = st.zeros(9, 3, dtype=st.int64)
    for i in range(8):
        x[i] = i
    with pytest.raises(st.StratalError):
        x[8] = st.ones(4)
    with pytest.raises(st.StratalError):
        x[9] = 1
    assert x.tolist() == [[i] * 3 for i in range(8)] + [[0] * 3]


def test_gradients_are_those_of_writes_in_order():
    w = st.ones(3).requires_grad_()
    x = st.zeros(9, 3)
    for i in range(8):
        x[i] = i
    y = w * x[7]
    x[8] = y
    x[7] = 0.0
    (x * 2).sum().backward()
    assert w.grad.tolist() == [14.0] * 3


def test_what_numpy_sees_is_left_alone():
    x = st.zeros(9)
    for i in range(8):
        x[i] = i
    seen = x.numpy()
    x[0] = 5.0
    assert (seen[0], x[0].item()) == (0.0, 5.0)


def test_views_of_what_numpy_sees_show_the_writes_that_leave_it():
    x = st.zeros(9)
    for i in range(8):
        x[i] = i
    seen, late = x.numpy(), x[5:]
    x[0] += 5
    assert (x[0].item(), x[:2].tolist(), late.tolist()) == (5.0, [5.0, 1.0], [5.0, 6.0, 7.0, 0.0])
    seen[5] = 50.0
    assert (x[0].item(), late[0].item(), x[5].item()) == (5.0, 5.0, 5.0)


def test_joining_tensors_that_repeat_takes_no_program_for_each_pattern():
    a, b = st.tensor([1.0, 2.0]), st.tensor([3.0, 4.0])
    before = program_cache.COMPILED[0]
    for k in range(1, 16):
        given = [b if k >> bit & 1 else a for bit in range(4)]
        want = [t.tolist() for t in given]
        assert st.stack(given).tolist() == want
        assert st.cat(given).tolist() == [n for row in want for n in row]
    assert program_cache.COMPILED[0] - before <= 4


@pytest.mark.sampled(4)
@pytest.mark.torch
@pytest.mark.parametrize("torch", [False, True])
def test_programs_of_views_agree_where_every_write_is_done_at_once(monkeypatch, torch):
    monkeypatch.setattr(partial_writes, "_FEW", -1)
    other = pytest.importorskip("torch") if torch else None
    for seed in range(200, 215):
        assert judged(written(seed, gradients=torch), st, other, "lazy") is None, seed


def test_a_write_at_once_takes_no_alarm_for_an_error_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a handler raises there is heard, and the place then holds the old value or the new one."""

    def alarm(number: int, frame: object) -> None:
        raise TimeoutError

    x = st.zeros(20)
    for k in range(8):
        x[k] = k + 1.0
    x.tolist()
    write = partial_writes._write

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return write(*args)

    monkeypatch.setattr(partial_writes, "_write", interrupted)
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(TimeoutError):
            x[9] = 5.0
    finally:
        signal.signal(signal.SIGALRM, before)
    assert x[9].item() in (0.0, 5.0) and x[:8].tolist() == [k + 1.0 for k in range(8)]
