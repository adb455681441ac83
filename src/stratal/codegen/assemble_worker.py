"""LLVM text to object code with llvmlite alone; run as a script, the same for jobs that arrive on a pipe.

    job    := four fields, triple, cpu, features, text:  u32 length, bytes
    answer := u8 status (0 object code, 1 message), u64 length, bytes

When it is ready a worker says, in an answer, what LLVM calls this machine: triple, cpu and features, a line
each. It ends when its input does, or when no job has come for a while: LLVM takes 90 MB. Where it waits for
the rest of a job, or until an answer is read, the end of the process that asked ends the wait. It imports
nothing of Stratal, so it starts in the time llvmlite takes to load.
"""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

IDLE_S = 20.0  # without a job; who has one later starts another worker
LENGTH = struct.Struct("<I")
ANSWER = struct.Struct("<BQ")
_NARROW = re.compile(r'"(?:min-legal|prefer)-vector-width"\s*=\s*"(\d+)"')
# From how many accesses on a block's dependences through memory are simplified before it is scheduled: their
# number grows with the square, and half of the time for a long unrolled block was spent on them.
_MOST_ACCESSES = "-dag-maps-huge-region=200"
# Kernels count along the multiples of loop variables that addresses need (`Values._multiple`): LLVM's search
# for those took a third of the time and found nothing better.
_OWN_STEPS = "-disable-lsr"
_machines: dict[tuple[str, str, str], Any] = {}


def describe_host() -> tuple[str, str, str]:
    """Return LLVM's triple, processor name and list of features for this machine."""
    import llvmlite.binding as llvm

    try:
        features = str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM cannot list them on every system; the cpu name then says what is known
        features = ""
    return str(llvm.get_process_triple()), str(llvm.get_host_cpu_name()), features


def emit_object(triple: str, cpu: str, features: str, text: str) -> bytes:
    """Return the object code of an LLVM module: code generation level 2, no IR passes, position independent.

    Raises: RuntimeError with LLVM's message for text it rejects; ValueError for attributes that would split
    512-bit vectors.
    """
    with _module(triple, cpu, features, text) as (machine, module):
        code: bytes = machine.emit_object(module)
        return code


def assembly_of(triple: str, cpu: str, features: str, text: str) -> str:
    """Return the assembly of the same code. Raises: as `emit_object`."""
    with _module(triple, cpu, features, text) as (machine, module):
        return str(machine.emit_assembly(module))


@contextmanager
def _module(triple: str, cpu: str, features: str, text: str) -> Iterator[tuple[Any, Any]]:
    """Parse and verify a module; yield the machine to emit it for, and the module."""
    import llvmlite.binding as llvm

    for width in _NARROW.findall(text):
        if int(width) < 512:
            raise ValueError(f"a vector width attribute of {width} bits splits <16 x float>")
    machine = _machine(triple, cpu, features)
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
        yield machine, module


def _machine(triple: str, cpu: str, features: str) -> Any:
    import llvmlite.binding as llvm

    key = (triple, cpu, features)
    if not _machines:
        llvm.set_option("stratal", _MOST_ACCESSES)
        llvm.set_option("stratal", _OWN_STEPS)
    if key not in _machines:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple(triple)
        _machines[key] = target.create_target_machine(cpu, features, opt=2, reloc="pic", codemodel="default")
    return _machines[key]


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """Return `count` bytes of an unbuffered or buffered stream. Raises: EOFError when it ends before."""
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def pack_job(triple: str, cpu: str, features: str, text: str) -> bytes:
    """Return a job as its bytes on the pipe."""
    fields = [field.encode() for field in (triple, cpu, features, text)]
    return b"".join(LENGTH.pack(len(f)) + f for f in fields)


def pack_answer(status: int, content: bytes) -> bytes:
    """Return an answer as its bytes on the pipe."""
    return ANSWER.pack(status, len(content)) + content


def unpack_answer(received: bytearray) -> tuple[bool, bytes] | None:
    """Take an answer from what was received: whether a job worked, and its object code or message.

    None where the answer is not all there.
    """
    if len(received) < ANSWER.size:
        return None
    status, length = ANSWER.unpack_from(received)
    end = ANSWER.size + length
    if len(received) < end:
        return None
    answer = bytes(received[ANSWER.size : end])
    del received[:end]
    return status == 0, answer


def _answer(stream: BinaryIO) -> bytes:
    fields = []
    for _ in range(4):
        (length,) = LENGTH.unpack(read_exactly(stream, LENGTH.size))
        fields.append(read_exactly(stream, length).decode())
    try:
        code = emit_object(*fields)
    except (RuntimeError, ValueError) as error:
        return pack_answer(1, str(error).encode())
    return pack_answer(0, code)


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until the input ends or stays silent; `jobs` is unbuffered."""
    answers.write(pack_answer(0, "\n".join(describe_host()).encode()))
    answers.flush()
    while select.select([jobs], [], [], IDLE_S)[0]:
        try:
            answer = _answer(jobs)
        except EOFError:
            return
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, sys.argv[1])  # where llvmlite lives: the worker runs without site packages
    try:
        serve(os.fdopen(0, "rb", buffering=0), sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # whoever asked is gone; an ordinary end would try to write what is left, and say so
