"""The process that measures: compiles two programs, compares their results, times them in turns.

    request := u32 length, JSON header, then as many blobs as the header lists sizes for
    answer  := u32 length, JSON

It says `{"ready": true}` when it takes requests and ends when its input does. Whatever a candidate does to
it, the process that asked only sees that no answer comes.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import struct
import sys
import time
from functools import lru_cache
from typing import Any, BinaryIO, Final

import numpy as np

from stratal.base.artifact import Executable, KernelObject, Value
from stratal.base.errors import StratalError
from stratal.codegen.assemble import Machine, assemble
from stratal.codegen.assemble_worker import read_exactly
from stratal.runtime.pack import unpack
from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage, layout_of
from stratal.runtime.timing import TimedProgram

LENGTH: Final = struct.Struct("<I")
LEAST_SAMPLE_NS: Final = 100_000  # of one sample: shorter runs are repeated
LOST_AFTER: Final = 4  # rounds, if a candidate then takes LOST times as long
LOST: Final = 1.4
TOLERANCE: Final = {"float16": 2e-2, "bfloat16": 4e-2, "float32": 2e-4, "float64": 1e-10}
"""The largest difference to the other program's result, as a share of its largest element: algorithms add up
in different orders."""


def send(stream: BinaryIO, header: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
    """Write a message."""
    text = json.dumps(header | ({"sizes": [len(b) for b in blobs]} if blobs else {})).encode()
    stream.write(b"".join([LENGTH.pack(len(text)), text, *blobs]))
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message. Raises: EOFError."""
    (length,) = LENGTH.unpack(read_exactly(stream, LENGTH.size))
    header = json.loads(read_exactly(stream, length))
    return header, [read_exactly(stream, size) for size in header.get("sizes", ())]


class Subject:
    """A program under test with its inputs."""

    def __init__(self, executable: Executable, driver: bytes, inputs: list[Storage]) -> None:
        self.timed = TimedProgram(LoadedProgram(executable, driver, checked=False))
        self.inputs = inputs
        self.repeats = 1

    def run(self) -> list[Storage]:
        return self.timed.run(self.inputs)

    def nanoseconds(self) -> float:
        """Return the native time of one run, averaged over a sample."""
        total = 0
        for _ in range(self.repeats):
            self.run()
            total += int(self.timed.total_ns[-1])
        return max(total / self.repeats, 1.0)

    def settle(self) -> float:
        """Warm up; choose how many runs make a sample. Return the nanoseconds of a sample."""
        self.run()
        once = self.nanoseconds()
        self.repeats = max(1, min(1000, round(LEAST_SAMPLE_NS / once)))
        return once * self.repeats


def measure(header: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Return times of two programs taken in turns, or why the second is no candidate."""
    machine = Machine(*header["machine"])
    first, second = (_compiled(blob, machine) for blob in blobs[:2])
    driver = blobs[2]
    inputs = _random_inputs(first, frozenset(header["indices"]), header["seed"])
    a = Subject(first, driver, inputs)
    b = Subject(second, driver, inputs)
    expected = [storage.array.copy() for storage in a.run()]
    wrong = _differences(expected, [storage.array for storage in b.run()])
    if wrong:
        return {"error": f"wrong numbers: {wrong}"}
    times = _in_turns(a, b, header["seconds"], header["rounds"])
    return {"a": times[0], "b": times[1]}


def _in_turns(a: Subject, b: Subject, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    """Return nanoseconds of both, each round in the other order; few where one has clearly lost."""
    a.settle()
    b.settle()
    times: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + seconds
    while len(times[0]) < rounds or time.perf_counter() < deadline:
        turn = ((0, a), (1, b)) if len(times[0]) % 2 == 0 else ((1, b), (0, a))
        for which, subject in turn:
            times[which].append(subject.nanoseconds())
        if len(times[0]) == LOST_AFTER and min(times[1]) > LOST * statistics.median(times[0]):
            break
    return times


@lru_cache(maxsize=16)
def _compiled(program: bytes, machine: Machine) -> Executable:
    """Return a program whose kernels were LLVM text."""
    made = unpack(program)
    made.kernels = {
        name: KernelObject(name, assemble(k.code.decode(), machine), k.key)
        for name, k in made.kernels.items()
    }
    return made


def _random_inputs(executable: Executable, indices: frozenset[int], seed: int) -> list[Storage]:
    """Return inputs: numbers of either sign, and zeros for what chooses elements."""
    rng = np.random.default_rng(seed)
    values = [executable.values[i] for i in executable.inputs]
    return [_random(v, rng, is_index=k in indices) for k, v in enumerate(values)]


def _random(value: Value, rng: np.random.Generator, *, is_index: bool) -> Storage:
    shape, dtype = value.type.ints, value.type.dtype
    if is_index:
        made = np.zeros(shape)
    elif dtype.name == "bool":
        made = rng.integers(0, 2, shape).astype(np.float64)
    elif dtype.np.kind in "iu":
        made = rng.integers(0 if dtype.np.kind == "u" else -8, 8, shape).astype(np.float64)
    else:
        made = rng.standard_normal(shape)
    strides = tuple(s * dtype.itemsize for s in value.strides)
    return Storage.in_layout(made.astype(dtype.np), layout_of(value.type, strides))


def _differences(expected: list[Any], found: list[Any]) -> str:
    """Say where results differ by more than another order of summation explains, or an empty string."""
    for number, (e, f) in enumerate(zip(expected, found, strict=True)):
        tolerance = TOLERANCE.get(str(e.dtype), 0.0)
        wide, got = e.astype(np.float64), f.astype(np.float64)
        if not np.array_equal(np.isfinite(wide), np.isfinite(got)):
            return f"result {number} is not finite where it should be"
        wide, got = np.nan_to_num(wide), np.nan_to_num(got)
        error = float(np.abs(wide - got).max(initial=0.0))
        if error > tolerance * float(np.abs(wide).max(initial=0.0)):
            return f"result {number} is off by {error:.3g}"
    return ""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the input ends."""
    send(answers, {"ready": True})
    while True:
        try:
            header, blobs = receive(requests)
        except EOFError:
            return
        try:
            answer = measure(header, blobs)
        except (StratalError, MemoryError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        send(answers, answer)


def main() -> None:
    """Serve the pipes this process was started with; prints of anybody else go to the error stream."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
