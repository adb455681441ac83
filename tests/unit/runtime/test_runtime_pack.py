"""Executables as bytes: what comes back is what was written, and nothing malformed comes back."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from runtime_programs import random_program
from test_memory_plan import inputs_for
from test_runtime_programs import driver, kernels, storage

from stratal.base.artifact import Executable, Launch, Value
from stratal.base.dtypes import ALL
from stratal.base.errors import FormatError
from stratal.base.source import SourceLine
from stratal.base.types import TensorType
from stratal.memory.plan import plan_arena
from stratal.runtime.pack import pack, unpack
from stratal.runtime.program import LoadedProgram

pytestmark = pytest.mark.quick


def example(seed: int) -> Executable:
    program = random_program(seed, host_calls=seed % 2 == 0)
    arena = plan_arena(program.values, program.commands, outputs=program.outputs)
    return program.executable(kernels(), arena, 2)


def test_a_program_comes_back_equal_and_runs_the_same() -> None:
    for seed in range(20):
        before = example(seed)
        after = unpack(pack(before), before.calls)
        assert after == before
        arrays = inputs_for(random_program(seed), seed)
        results = []
        for executable in (before, after):
            loaded = LoadedProgram(executable, driver(), checked=False)
            results.append(loaded.run([storage(a) for a in arrays]))
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(a.array, b.array)


def test_every_field_survives_special_numbers_included() -> None:
    line = SourceLine("train.py", 7, "step", ("net", "relu"))
    numbers = (math.inf, -0.0, 0.1, 5e-324)
    launch = Launch("k", (0,), (1,), 3, (1, -2), numbers, 128, "label", (line,), "index out of range")
    types = [TensorType(dtype, (2, 3)) for dtype in ALL]
    values = [Value(k, t, (3, 1), "const", k, 64, None, "v", (line,)) for k, t in enumerate(types)]
    blobs = [b"\0\1", b""]
    executable = Executable("all", {}, values, (launch,), (0,), (1,), (0,), blobs, 1, 2, 3, [], {"a": [1]})
    again = unpack(pack(executable))
    assert again == executable
    (command,) = again.commands
    assert isinstance(command, Launch) and math.copysign(1, command.floats[1]) == -1


def test_missing_host_calls_are_noticed() -> None:
    executable = next(e for e in map(example, range(0, 40, 2)) if e.calls)
    with pytest.raises(FormatError, match="other host calls"):
        unpack(pack(executable))


def test_damaged_bytes_are_a_format_error_or_another_plain_program() -> None:
    data = pack(example(1))
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
        for _ in range(rng.randint(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            unpack(bytes(damaged))
        except FormatError:
            continue
        assert len(damaged) == len(data)  # only a byte of a blob, a name or a number can pass unnoticed
