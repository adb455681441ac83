"""Random nested programs for tests of the runtime and the memory plan, and a model of them in Python.

All values are int64 vectors (or bool and int64 scalars), so that results compare exactly. Kernels:

    mix(a, b) -> c      c[i] = a[i] * 3 + b[i] + k          may run in place
    reverse(a) -> c     c[i] = a[n-1-i] + 1                 may not
    offset(a, s) -> c   c[i] = a[i] + s[0]                  may run in place of a
    odd(a) -> p         p = a[0] & 1
    less(s) -> p        p = s[0] < k
    add(s) -> s         s[0] += k, reads and writes one value
    fill() -> c         c[i] = k
    check(s)            fails with code 7 where s[0] >= k
    spin() -> c         c[i] = the i-th of a row of numbers that takes k * i steps to make
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stratal.base.artifact import (
    Branch,
    Command,
    Copy,
    Executable,
    Host,
    KernelObject,
    Launch,
    Loop,
    Value,
    While,
)
from stratal.base.dtypes import bool_, int64
from stratal.base.types import TensorType

Path = tuple[int, ...]
IN_PLACE = {"mix": (0, 1), "offset": (0,)}  # which reads the write may overwrite


def kernel_texts() -> dict[str, str]:
    """Return the LLVM text of every kernel; a chunk is one element."""
    load = "%a = load i64, ptr %p0"
    pair = "%a = load i64, ptr %at0 | %b = load i64, ptr "
    bodies = {
        "mix": pair + "%at1 | %x = mul i64 %a, 3 | %y = add i64 %x, %b | %z = add i64 %y, %k"
        " | store i64 %z, ptr %at2",
        "reverse": "%m = sub i64 %n, 1 | %j = sub i64 %m, %chunk | %from = getelementptr i64, ptr %p0, i64 %j"
        " | %a = load i64, ptr %from | %z = add i64 %a, 1 | store i64 %z, ptr %at1",
        "offset": pair + "%p1 | %z = add i64 %a, %b | store i64 %z, ptr %at2",
        "odd": load + " | %x = and i64 %a, 1 | %z = trunc i64 %x to i8 | store i8 %z, ptr %p1",
        "less": load + " | %x = icmp slt i64 %a, %k | %z = zext i1 %x to i8 | store i8 %z, ptr %p1",
        "add": load + " | %z = add i64 %a, %k | store i64 %z, ptr %p1",
        "fill": "store i64 %k, ptr %at0",
        "check": load + " | %bad = icmp sge i64 %a, %k | br i1 %bad, label %fail, label %leave | fail:"
        " | %slot = getelementptr i8, ptr %frame, i64 40 | %error = load ptr, ptr %slot"
        " | store i64 7, ptr %error | br label %leave | leave:",
        "spin": "%m = mul i64 %k, %chunk | br label %loop | loop:"
        " | %i = phi i64 [0, %entry], [%j, %loop] | %x = phi i64 [%chunk, %entry], [%y, %loop]"
        " | %z = mul i64 %x, 6364136223846793005 | %y = add i64 %z, 1442695040888963407"
        " | %j = add i64 %i, 1 | %more = icmp slt i64 %j, %m | br i1 %more, label %loop, label %leave"
        " | leave: | store i64 %y, ptr %at0",
    }
    parameters = {"mix": 3, "reverse": 2, "offset": 3, "odd": 2, "less": 2, "add": 2, "fill": 1}
    parameters |= {"check": 1, "spin": 1}
    return {name: _kernel(name, parameters[name], lines.split(" | ")) for name, lines in bodies.items()}


def _kernel(name: str, parameters: int, lines: list[str]) -> str:
    head = ["%buffers = load ptr, ptr %frame", "%ints_slot = getelementptr i8, ptr %frame, i64 8",
            "%ints = load ptr, ptr %ints_slot", "%n = load i64, ptr %ints",
            "%k_slot = getelementptr i64, ptr %ints, i64 1", "%k = load i64, ptr %k_slot"]  # fmt: skip
    for j in range(parameters):
        head += [f"%slot{j} = getelementptr ptr, ptr %buffers, i64 {j}", f"%p{j} = load ptr, ptr %slot{j}",
                 f"%at{j} = getelementptr i64, ptr %p{j}, i64 %chunk"]  # fmt: skip
    text = "\n  ".join([*head, *lines])
    return f"define void @{name}(ptr %frame, i64 %chunk, i32 %worker) {{\nentry:\n  {text}\n  ret void\n}}\n"


@dataclass
class Program:
    """A random program before planning: `candidates` are the pairs that may run in place."""

    values: list[Value] = field(default_factory=list)
    commands: tuple[Command, ...] = ()
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)  # positions
    calls: list[Callable[..., Any]] = field(default_factory=list)

    @property
    def state_ids(self) -> list[int]:
        return [self.inputs[p] for p in self.states]

    def candidates(self) -> dict[Path, list[tuple[int, int]]]:
        """Return path -> pairs for every launch whose kernel may run in place."""
        found: dict[Path, list[tuple[int, int]]] = {}

        def visit(commands: tuple[Command, ...], path: Path) -> None:
            for k, command in enumerate(commands):
                if isinstance(command, Launch) and command.kernel in IN_PLACE:
                    pairs = [(command.reads[j], command.writes[0]) for j in IN_PLACE[command.kernel]]
                    found[(*path, k)] = pairs
                elif isinstance(command, Loop):
                    visit(command.body, (*path, k, 0))
                elif isinstance(command, While):
                    visit(command.condition, (*path, k, 0))
                    visit(command.body, (*path, k, 1))
                elif isinstance(command, Branch):
                    visit(command.then, (*path, k, 0))
                    visit(command.otherwise, (*path, k, 1))

        visit(self.commands, ())
        return found

    def executable(self, kernels: dict[str, KernelObject], arena_bytes: int, threads: int) -> Executable:
        return Executable(
            "random", kernels, self.values, self.commands, tuple(self.inputs), tuple(self.outputs),
            tuple(self.states), [], arena_bytes, 0, threads, list(self.calls),
        )  # fmt: skip


class Generator:
    """Builds one random program; every value is defined on every path before it is read."""

    def __init__(self, seed: int, *, host_calls: bool = False, size: int = 12) -> None:
        self.random = random.Random(seed)
        self.program = Program()
        self.host_calls = host_calls
        self.size = size
        self.lengths = [self.random.randint(1, 40) for _ in range(3)]

    def value(self, length: int, *, dtype: Any = int64, home: Any = "arena", index: int = -1) -> int:
        shape = () if length == 0 else (length,)
        id_ = len(self.program.values)
        type_ = TensorType(dtype, shape)
        self.program.values.append(Value(id_, type_, (1,) * len(shape), home, index))
        return id_

    def length(self, id_: int) -> int:
        shape = self.program.values[id_].type.ints
        return shape[0] if shape else 0

    def build(self) -> Program:
        program, rng = self.program, self.random
        defined = []
        for position in range(4):
            defined.append(self.value(self.lengths[position % 3], home="input", index=position))
            program.inputs.append(defined[-1])
        program.states = sorted(rng.sample(range(4), rng.randint(0, 2)))
        commands = self.block(defined, self.size, 3)
        for k in range(rng.randint(1, 3)):
            source = rng.choice(defined)
            if rng.random() < 0.5:
                out = self.value(self.length(source), home="output", index=k)
                commands.append(self.launch("mix", (source, source), out))
                program.outputs.append(out)
            else:
                program.outputs.append(source)
        for position in program.states:
            state = program.inputs[position]
            same = [v for v in defined if self.length(v) == self.length(state) and self.arena(v)]
            if same:
                commands.append(Copy(rng.choice(same), state))
        program.commands = tuple(commands)
        return program

    def arena(self, id_: int) -> bool:
        return self.program.values[id_].home == "arena"

    def launch(self, kernel: str, reads: tuple[int, ...], write: int, k: int | None = None) -> Launch:
        length = max(1, self.length(write))
        constant = self.random.randint(-9, 9) if k is None else k
        return Launch(kernel, reads, (write,), length, (length, constant))

    def target(self, defined: list[int], length: int, *, avoid: tuple[int, ...] = ()) -> int:
        """Return a new value, or now and then one that exists and is overwritten."""
        old = [v for v in defined if self.arena(v) and self.length(v) == length and v not in avoid]
        if old and self.random.random() < 0.25:
            return self.random.choice(old)
        return self.value(length)

    def block(self, defined: list[int], size: int, depth: int) -> list[Command]:
        """Return commands; `defined` grows by what is surely defined after them."""
        commands: list[Command] = []
        for _ in range(self.random.randint(1, size)):
            commands += self.step(defined, depth)
        return commands

    def step(self, defined: list[int], depth: int) -> list[Command]:
        kinds = ["mix", "mix", "mix", "reverse", "fill", "copy", "reduce"]
        kinds += ["host"] if self.host_calls else []
        kinds += ["loop", "while", "branch"] if depth else []
        method: Callable[..., list[Command]] = getattr(self, "step_" + self.random.choice(kinds))
        return method(defined, depth)

    def define(self, defined: list[int], id_: int) -> None:
        if id_ not in defined:
            defined.append(id_)

    def pick(self, defined: list[int]) -> int:
        vectors = [v for v in defined if self.length(v)]
        return self.random.choice(vectors[-6:] if self.random.random() < 0.7 else vectors)

    def step_mix(self, defined: list[int], depth: int) -> list[Command]:
        a = self.pick(defined)
        b = self.random.choice([v for v in defined if self.length(v) == self.length(a)])
        out = self.target(defined, self.length(a))
        self.define(defined, out)
        return [self.launch("mix", (a, b), out)]

    def step_reverse(self, defined: list[int], depth: int) -> list[Command]:
        a = self.pick(defined)
        out = self.target(defined, self.length(a), avoid=(a,))
        self.define(defined, out)
        return [self.launch("reverse", (a,), out)]

    def step_fill(self, defined: list[int], depth: int) -> list[Command]:
        out = self.target(defined, self.random.choice(self.lengths))
        self.define(defined, out)
        return [self.launch("fill", (), out)]

    def step_copy(self, defined: list[int], depth: int) -> list[Command]:
        a = self.pick(defined)
        out = self.target(defined, self.length(a), avoid=(a,))
        self.define(defined, out)
        return [Copy(a, out)]

    def step_reduce(self, defined: list[int], depth: int) -> list[Command]:
        """A scalar of one vector, added to another."""
        scalar = self.value(0)
        a, b = self.pick(defined), self.pick(defined)
        out = self.target(defined, self.length(b), avoid=())
        self.define(defined, out)
        first = Launch("add", (a,), (scalar,), 1, (1, self.random.randint(0, 5)))
        return [first, self.launch("offset", (b, scalar), out)]

    def step_host(self, defined: list[int], depth: int) -> list[Command]:
        a = self.pick(defined)
        out = self.value(self.length(a))
        self.define(defined, out)
        self.program.calls.append(lambda x: x ^ 5)
        return [Host(len(self.program.calls) - 1, (a,), (out,))]

    def step_loop(self, defined: list[int], depth: int) -> list[Command]:
        rng = self.random
        counter = self.value(0)
        inner = list(defined)
        trips = rng.randint(0, 4)
        before: list[Command] = []
        limit = None
        if rng.random() < 0.4:
            limit = self.value(0)
            before.append(Launch("fill", (), (limit,), 1, (1, rng.randint(-1, 5))))
        body = self.block(inner, 4, depth - 1)
        a = self.pick(inner)
        used = self.target(inner, self.length(a))
        b = self.pick(defined)
        body.insert(rng.randint(0, 1), self.launch("offset", (b, counter), self.value(self.length(b))))
        body.append(self.launch("offset", (a, counter), used))
        self.define(inner, used)
        carries = [v for v in defined if self.arena(v)]
        if carries and rng.random() < 0.7:
            carry = rng.choice(carries)
            same = [v for v in inner if self.length(v) == self.length(carry) and v != carry]
            if same and self.length(carry):
                body.append(Copy(rng.choice(same), carry))
        if trips and limit is None:
            for v in inner:
                self.define(defined, v)
        return [*before, Loop(tuple(body), trips, counter, limit, rng.random() < 0.3)]

    def step_while(self, defined: list[int], depth: int) -> list[Command]:
        cell, predicate = self.value(0), self.value(0, dtype=bool_)
        inner = list(defined)
        start = Launch("fill", (), (cell,), 1, (1, self.random.randint(0, 3)))
        condition = [*self.block(inner, 2, 0), Launch("less", (cell,), (predicate,), 1, (1, 3))]
        for v in inner:
            self.define(defined, v)
        body = [*self.block(inner, 3, depth - 1), Launch("add", (cell,), (cell,), 1, (1, 1))]
        return [start, While(tuple(condition), predicate, tuple(body))]

    def step_branch(self, defined: list[int], depth: int) -> list[Command]:
        predicate = self.value(0, dtype=bool_)
        test = Launch("odd", (self.pick(defined),), (predicate,), 1, (1, 0))
        then, otherwise = list(defined), list(defined)
        arms = self.block(then, 3, depth - 1), self.block(otherwise, 3, depth - 1)
        length = self.random.choice(self.lengths)
        joined = self.target(defined, length)
        tails = []
        for arm, known in zip(arms, (then, otherwise), strict=True):
            same = [v for v in known if self.length(v) == length and v != joined]
            tails.append([*arm, Copy(self.random.choice(same), joined)] if same else
                         [*arm, self.launch("fill", (), joined)])  # fmt: skip
        self.define(defined, joined)
        return [test, Branch(predicate, tuple(tails[0]), tuple(tails[1]))]


def random_program(seed: int, **options: Any) -> Program:
    return Generator(seed, **options).build()


class Model:
    """Runs a program in Python over memory that `buffer(id)` gives: separate arrays or slices of an arena."""

    def __init__(self, program: Program, buffer: Callable[[int], np.ndarray[Any, Any]]) -> None:
        self.program = program
        self.buffer = buffer

    def run(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                self.launch(command)
            elif isinstance(command, Copy):
                if not np.shares_memory(self.buffer(command.target), self.buffer(command.source)):
                    self.buffer(command.target)[...] = self.buffer(command.source)
            elif isinstance(command, Host):
                results = self.program.calls[command.call](*map(self.buffer, command.reads))
                self.buffer(command.writes[0])[...] = results
            elif isinstance(command, Loop):
                self.loop(command)
            elif isinstance(command, While):
                self.run(command.condition)
                while self.buffer(command.predicate)[()]:
                    self.run(command.body)
                    self.run(command.condition)
            else:
                self.run(command.then if self.buffer(command.predicate)[()] else command.otherwise)

    def loop(self, command: Loop) -> None:
        trips = command.trips
        if command.trips_value is not None:
            trips = max(0, min(trips, int(self.buffer(command.trips_value)[()])))
        for turn in range(trips):
            self.buffer(command.counter)[...] = trips - 1 - turn if command.reverse else turn
            self.run(command.body)

    def launch(self, command: Launch) -> None:
        reads = [self.buffer(i).reshape(-1) for i in command.reads]
        out = self.buffer(command.writes[0]).reshape(-1)
        k = command.ints[1]
        with np.errstate(over="ignore"):
            for i in range(command.chunks):  # element by element, as the kernels do it
                if command.kernel == "mix":
                    out[i] = reads[0][i] * 3 + reads[1][i] + k
                elif command.kernel == "reverse":
                    out[i] = reads[0][command.ints[0] - 1 - i] + 1
                elif command.kernel == "offset":
                    out[i] = reads[0][i] + reads[1][0]
                elif command.kernel == "odd":
                    out[0] = reads[0][0] & 1
                elif command.kernel == "less":
                    out[0] = reads[0][0] < k
                elif command.kernel == "add":
                    out[0] = reads[0][0] + k
                else:
                    out[i] = k


def run_model(
    program: Program, inputs: list[np.ndarray[Any, Any]]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Return outputs and inputs after a run in which no two values share memory."""
    memory = {v.id: np.zeros(v.type.ints, v.type.dtype.np) for v in program.values}
    for id_, array in zip(program.inputs, inputs, strict=True):
        memory[id_][...] = array
    old = {id_: memory[id_].copy() for id_ in program.inputs}
    Model(program, memory.__getitem__).run(program.commands)
    outputs = [old[i] if i in old else memory[i].copy() for i in program.outputs]
    return outputs, [memory[i] for i in program.inputs]
