"""The dependency engine: any program of reads and mutations gives what it gives in serial order."""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError
from stratal.engine import Engine, EngineTimeoutError, Operation

WAIT = 20.0  # seconds until a hang is a failure


# -- random programs -----------------------------------------------------------------------------------------
class Machine:
    """Resources of four kinds: arrays, buffers that are recycled, a random generator, a channel, a file."""

    def __init__(self) -> None:
        self.arrays = [[k] for k in range(4)]
        self.buffers: list[list[int]] = [[0], [0]]
        self.generator = random.Random(7)
        self.channel: list[int] = []
        self.file = io.StringIO()

    def state(self) -> Any:
        return self.arrays, self.buffers, self.generator.getstate(), self.channel, self.file.getvalue()


NAMES = ("array 0", "array 1", "array 2", "array 3", "buffer 0", "buffer 1", "generator", "channel", "file")
Step = tuple[Callable[[Machine], None], set[str], set[str], float]


def random_step(rng: random.Random) -> Step:
    """Return a closure over a machine, what it reads, what it mutates, and a delay in seconds."""
    i, j, k, n = rng.randrange(4), rng.randrange(4), rng.randrange(2), rng.randrange(9)
    kind = rng.choice(("add", "copy", "recycle", "draw", "send", "write", "host"))

    def run(m: Machine) -> None:
        if kind == "add":
            m.arrays[i][0] = (3 * m.arrays[i][0] + m.arrays[j][0] + n) % 10007
        elif kind == "copy":
            m.buffers[k][0] = m.arrays[i][0] + n
        elif kind == "recycle":  # the old memory goes, what others saw of it must have been read
            m.buffers[k] = [m.buffers[k][0] + 1]
        elif kind == "draw":
            m.arrays[i][0] += m.generator.randrange(1000)
        elif kind == "send":
            m.channel.append(m.buffers[k][0])
        elif kind == "write":
            m.file.write(f"{m.arrays[i][0]} {m.buffers[k][0]}\n")
        else:
            m.arrays[i][0] ^= sum(m.channel[-2:])

    a, b, buffer = f"array {i}", f"array {j}", f"buffer {k}"
    touched: dict[str, tuple[set[str], set[str]]] = {
        "add": ({b}, {a}), "copy": ({a}, {buffer}), "recycle": (set(), {buffer}),
        "draw": (set(), {a, "generator"}), "send": ({buffer}, {"channel"}), "write": ({a, buffer}, {"file"}),
        "host": ({"channel"}, {a}),
    }  # fmt: skip
    delay = rng.choice((0.0, 0.0, 0.0, 0.0, 1e-5, 1e-4)) if rng.random() < 0.3 else 0.0
    return run, *touched[kind], delay


def agrees(engine: Engine, seed: int, delays: bool = True) -> None:
    rng = random.Random(seed)
    steps = [random_step(rng) for _ in range(rng.randrange(1, 16))]
    serial, parallel = Machine(), Machine()
    for run, *_ in steps:
        run(serial)
    tags = {name: engine.new_variable(name) for name in NAMES}

    def operation(run: Callable[[Machine], None], delay: float) -> Callable[[], None]:
        def work() -> None:
            if delay and delays:
                time.sleep(delay)
            run(parallel)

        return work

    for run, reads, mutates, delay in steps:
        engine.push(operation(run, delay), reads=[tags[n] for n in reads], mutates=[tags[n] for n in mutates])
    engine.wait_all(WAIT)
    assert parallel.state() == serial.state(), seed


@pytest.mark.sampled(5)
@pytest.mark.row("G1", "G3", "G4")
def test_random_programs_of_reads_writes_draws_and_sends_equal_serial_order_on_four_threads() -> None:
    with Engine(threads=4) as engine:
        for seed in range(3000):
            agrees(engine, seed)


@pytest.mark.slow
@pytest.mark.row("G4")
def test_no_deadlock_in_a_hundred_thousand_random_programs() -> None:
    with Engine(threads=4) as engine:
        for seed in range(100_000):
            agrees(engine, seed, delays=seed % 10 == 0)


def test_a_program_whose_tags_lie_differs_from_serial_order() -> None:
    """The comparison above can fail: an operation that hides what it mutates runs out of order."""
    with Engine(threads=2) as engine:
        found: list[int] = []
        tag = engine.new_variable("list")
        engine.push(lambda: (time.sleep(0.1), found.append(1)), mutates=[tag])
        engine.push(lambda: found.append(2))
        engine.wait_all(WAIT)
        assert found == [2, 1]


def test_operations_pushed_by_several_threads_and_by_operations_lose_no_update() -> None:
    total = [0]

    def add() -> None:
        value = total[0]
        time.sleep(0)
        total[0] = value + 1

    with Engine(threads=4) as engine:
        tag = engine.new_variable("total")

        def pusher() -> None:
            for _ in range(100):
                engine.push(lambda: engine.push(add, mutates=[tag]))

        threads = [threading.Thread(target=pusher) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        engine.wait_all(WAIT)
    assert total == [300]


# -- the order of readers and writers ------------------------------------------------------------------------
@pytest.mark.quick
@pytest.mark.row("G3")
def test_readers_run_side_by_side_and_a_writer_waits_for_all_of_them() -> None:
    meeting = threading.Barrier(3, timeout=WAIT)  # three readers at once, or this breaks
    seen: list[str] = []
    with Engine(threads=4) as engine:
        tag = engine.new_variable("weights")

        def read() -> None:
            meeting.wait()
            seen.append("read")

        for _ in range(3):
            engine.push(read, reads=[tag])
        engine.push(lambda: seen.append("write"), mutates=[tag])
        engine.push(lambda: seen.append("read again"), reads=[tag])
        engine.wait(tag, timeout=WAIT)
    assert seen == ["read", "read", "read", "write", "read again"]


@pytest.mark.quick
@pytest.mark.row("G3")
def test_push_returns_before_the_operation_has_run() -> None:
    gate = threading.Event()
    with Engine(threads=1) as engine:
        operation = engine.push(lambda: gate.wait(WAIT) and None)
        assert not operation.done
        gate.set()
        operation.wait(WAIT)
        assert operation.done


@pytest.mark.row("G1")
def test_one_queue_orders_an_array_a_recycled_buffer_a_generator_and_a_channel() -> None:
    """x = draw; send x while its buffer is reused afterwards: every kind passes through the same engine."""
    rng, sent = np.random.default_rng(3), []  # type: ignore[var-annotated]
    x, pool = np.zeros(4), [np.zeros(4)]
    with Engine(threads=4) as engine:
        draws, data, memory, network = map(engine.new_variable, ("generator", "x", "buffer", "network"))
        for _ in range(20):
            engine.push(lambda: np.copyto(x, rng.standard_normal(4)), mutates=[draws, data])
            engine.push(lambda: np.copyto(pool[0], x), reads=[data], mutates=[memory])
            engine.push(lambda: sent.append(pool[0].copy()), reads=[memory], mutates=[network])
            engine.push(lambda: pool.__setitem__(0, np.full(4, np.nan)), mutates=[memory])
        engine.wait(network, timeout=WAIT)
    np.testing.assert_array_equal(sent, np.random.default_rng(3).standard_normal((20, 4)))


def test_a_resource_named_as_read_and_mutated_is_mutated_once() -> None:
    count = [0]
    with Engine(threads=2) as engine:
        tag = engine.new_variable()
        for _ in range(50):
            engine.push(lambda: count.__setitem__(0, count[0] + 1), reads=[tag, tag], mutates=[tag])
        engine.wait(tag, timeout=WAIT)
    assert count == [50]


# -- graphs without mutation ---------------------------------------------------------------------------------
@pytest.mark.row("G2")
def test_a_graph_of_immutable_values_is_the_special_case_without_tags() -> None:
    meeting = threading.Barrier(2, timeout=WAIT)

    def branch(value: int) -> int:
        meeting.wait()  # both branches of the diamond at once
        return value + 1

    with Engine(threads=2) as engine:
        source = engine.submit(lambda: 20)
        left, right = engine.submit(branch, source), engine.submit(branch, source)
        total = engine.submit(lambda a, b, c: a * b + c, left, right, 7)
        assert total.value(WAIT) == 448


@pytest.mark.row("G2")
def test_random_graphs_of_immutable_values_equal_their_serial_evaluation() -> None:
    rng = random.Random(1)
    with Engine(threads=4) as engine:
        for _ in range(200):
            values, results = [1], [engine.submit(lambda: 1)]
            for _ in range(rng.randrange(1, 30)):
                i, j = rng.randrange(len(values)), rng.randrange(len(values))
                values.append((2 * values[i] + values[j]) % 1009)
                results.append(engine.submit(lambda a, b: (2 * a + b) % 1009, results[i], results[j]))
            assert [r.value(WAIT) for r in results] == values


# -- failures ------------------------------------------------------------------------------------------------
def fails() -> None:
    raise ValueError("broken")


def test_an_operation_that_raises_fails_what_depends_on_it_and_nothing_else() -> None:
    ran: list[str] = []
    with Engine(threads=2) as engine:
        a, b, c = map(engine.new_variable, "abc")
        engine.push(fails, mutates=[a])
        late = engine.push(lambda: ran.append("b"), reads=[a], mutates=[b])
        engine.push(lambda: ran.append("c"), mutates=[c])
        engine.wait(c, timeout=WAIT)
        with pytest.raises(ValueError, match="broken") as raised:
            engine.wait(b, timeout=WAIT)
        assert "fails, pushed at test_engine.py" in raised.value.__notes__[0]
        with pytest.raises(ValueError, match="broken"):
            late.wait(WAIT)
        with pytest.raises(ValueError, match="broken"):
            engine.wait(a, timeout=WAIT)
        engine.push(lambda: ran.append("a"), mutates=[a])  # the failure was raised, and is cleared
        engine.wait(a, timeout=WAIT)
    assert ran == ["c", "a"]


def test_a_failure_that_nobody_waited_for_is_raised_when_the_engine_closes() -> None:
    with pytest.raises(ValueError, match="broken"), Engine(threads=1) as engine:
        engine.push(fails)


def test_a_failure_with_ten_thousand_dependents_reaches_the_last_of_them() -> None:
    gate = threading.Event()
    with Engine(threads=2) as engine:
        tag = engine.new_variable()
        engine.push(lambda: gate.wait(WAIT) and fails(), mutates=[tag])
        last: Operation | None = None
        for _ in range(10_000):
            last = engine.push(lambda: None, mutates=[tag])
        gate.set()
        assert last is not None
        with pytest.raises(ValueError, match="broken"):
            last.wait(WAIT)


def test_a_wait_that_takes_too_long_names_who_holds_the_resource() -> None:
    gate = threading.Event()
    with Engine(threads=1) as engine:
        tag = engine.new_variable("weights")
        engine.push(lambda: gate.wait(WAIT) and None, mutates=[tag], name="update")
        with pytest.raises(EngineTimeoutError, match=r"not done in 0\.05 s") as raised:
            engine.wait(tag, timeout=0.05)
        assert "weights is held by update, pushed at test_engine.py" in str(raised.value)
        gate.set()
        engine.wait(tag, timeout=WAIT)


def test_an_operation_may_not_wait_for_another_one() -> None:
    with Engine(threads=1) as engine:
        tag = engine.new_variable()
        inner = engine.push(lambda: engine.push(lambda: None, mutates=[tag]).wait())
        with pytest.raises(CallOrderError, match="waits for another"):
            inner.wait(WAIT)


def test_closing_is_bounded_and_cancels_what_has_not_begun() -> None:
    gate, ran = threading.Event(), []  # type: ignore[var-annotated]
    engine = Engine(threads=1)
    tag = engine.new_variable("file")
    engine.push(lambda: gate.wait(WAIT) and None, mutates=[tag], name="stuck")
    behind = engine.push(lambda: ran.append(1), reads=[tag])
    started = time.monotonic()
    with pytest.raises(EngineTimeoutError, match="stuck"):
        engine.close(timeout=0.1)
    assert time.monotonic() - started < 5
    with pytest.raises(CallOrderError, match="closed before"):
        behind.wait(WAIT)
    with pytest.raises(CallOrderError, match="no operations any more"):
        engine.push(lambda: None)
    gate.set()
    assert not ran


def test_a_closed_engine_has_no_thread_left() -> None:
    with Engine(threads=3, name="short") as engine:
        for _ in range(10):
            engine.push(lambda: time.sleep(0.001))
    assert not [t for t in threading.enumerate() if t.name.startswith("short-")]


def test_bad_arguments_are_refused_in_words() -> None:
    with pytest.raises(AttributeValueError, match="at least one thread"):
        Engine(threads=0)
    with Engine(threads=1) as engine, pytest.raises(DTypeError, match="are variables"):
        engine.push(lambda: None, reads=["weights"])  # type: ignore[list-item]
