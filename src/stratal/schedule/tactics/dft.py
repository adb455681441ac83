"""Fourier transforms, a vector of them at a time: lanes are neighbouring lines, so no stage moves a lane.

A worker brings a vector of lines into scratch, as real and imaginary parts apart, runs the stages of a
mixed-radix transform between two buffers (the self-sorting order of Stockham; see Van Loan, "Computational
Frameworks for the Fast Fourier Transform", 1992, 1.7), and writes the lines out. Of real lines two neighbours
are one complex number, so half the length is transformed (the same, 4.3). The inverse exchanges the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var, call, const
from stratal.loops.index import Index
from stratal.loops.stmt import For, Seq, Stmt, Store
from stratal.ops.fourier.lengths import RADICES, radices
from stratal.schedule.butterflies import Complex, conjugate, minus, plus, scaled, times, transform, turned
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import chunk_size

KIND = "dft"

NEIGHBOURS: Final = 8  # places of a line that are read or written together, and turned in registers


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is."""
    yield Candidate("lines", 0.0, lambda x: schedule_dft(x, target))


def schedule_dft(x: GroupExpressions, target: Target) -> Tactic:
    """Return the kernel of a `dft` node."""
    made = Lines(x, target)
    body = made.body()
    stages = " x ".join(map(str, made.radices)) or "1"
    return Tactic(body, tuple(made.scratch), "dft", (f"{made.lanes} lines at a time, stages of {stages}",))


class Lines:
    """A vector of lines: where they lie, and the steps that transform them."""

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        (node,) = x.group.members
        self.x = x
        self.source, self.table = node.inputs
        self.out = x.buffer(node)
        op = node.op.attributes
        self.form, self.inverse, self.scale = op["form"], op["inverse"], op["scale"]
        self.rows, _, self.columns = self.source.aval.ints[:3]
        self.n = self.table.aval.ints[0]
        self.m = self.n if self.form == "complex" else self.n // 2  # complex numbers of a line in scratch
        self.radices = radices(self.m)
        self.dtype = node.dtype
        most = target.lanes(self.dtype.itemsize)
        self.along_columns = self.columns >= min(most, self.rows)
        side = self.columns if self.along_columns else self.rows
        self.lanes = max(1, min(most, side))
        self.blocks = -(-side // self.lanes)
        self.tasks = self.blocks * (self.rows if self.along_columns else self.columns)  # maybe none
        self.side = side
        self.lane = Var("lane", self.lanes)
        shape = (2, self.m, self.lanes)
        self.scratch = [Buffer(name, self.dtype, shape, space="scratch") for name in ("here", "there")]
        self.row: Index = 0
        self.column: Index = 0

    # -- the whole -------------------------------------------------------------------------------------------
    def body(self) -> Stmt:
        """Return the loop over vectors of lines; the last one begins early enough to be full."""
        work = 16.0 * self.m * self.lanes * max(1, len(self.radices))
        per_chunk = chunk_size(self.tasks * work, self.tasks) if self.tasks else 1
        chunk, turn = Var("chunk", -(-self.tasks // per_chunk)), Var("turn", per_chunk)
        task = index.add(index.mul(chunk, per_chunk), turn)
        if self.tasks % per_chunk:
            task = call("min", task, index.as_expr(self.tasks - 1))
        start = index.mul(index.mod(task, max(1, self.blocks)), self.lanes)
        if self.side % self.lanes:
            start = call("min", start, index.as_expr(self.side - self.lanes))
        other, along = index.floordiv(task, max(1, self.blocks)), index.add(start, self.lane)
        self.row, self.column = (other, along) if self.along_columns else (along, other)
        load, store = {
            "complex": (self.load_complex, self.store_complex),
            "from_real": (self.load_real, self.store_half),
            "to_real": (self.load_half, self.store_real),
        }[self.form]
        steps = [load(), *self.stages(), store()]
        return For(chunk, For(turn, sequence(*steps)), "parallel")

    # -- places ----------------------------------------------------------------------------------------------
    def given(self, place: Index, *part: int) -> Expr:
        """Return an element of the operand."""
        where = (self.row, place, self.column, *part)
        return self.x.at(self.source, tuple(map(index.as_expr, where)))

    def root(self, power: Index) -> Complex:
        """Return exp(-2 pi i power / n)."""
        re, im = (self.x.at(self.table, (index.as_expr(power), index.as_expr(k))) for k in range(2))
        return re, im

    def put(self, place: Index, value: Complex) -> list[Stmt]:
        """Store a number before the first stage; parts are exchanged for the inverse."""
        return self._held(self.scratch[0], place, value[::-1] if self.inverse else value)

    def found(self, place: Index) -> Complex:
        """Return a number after the last stage."""
        re, im = self._at(self.scratch[len(self.radices) % 2], place)
        return (im, re) if self.inverse else (re, im)

    def result(self, place: Index, value: Expr, *part: int) -> Stmt:
        where = (self.row, place, self.column, *part)
        return Store(self.out, tuple(map(index.as_expr, where)), value)

    def _at(self, buffer: Buffer, place: Index) -> Complex:
        where = index.as_expr(place)
        return buffer[0, where, self.lane], buffer[1, where, self.lane]

    def _held(self, buffer: Buffer, place: Index, value: Complex) -> list[Stmt]:
        where = index.as_expr(place)
        return [Store(buffer, (index.as_expr(k), where, self.lane), v) for k, v in enumerate(value)]

    def along(self, first: int, stop: int, step: Callable[[Expr], list[Stmt]]) -> Stmt:
        """Run over places from `first` on, some neighbours side by side."""
        count = stop - first
        parts = []
        many, few = divmod(count, NEIGHBOURS)
        for start, blocks, size in ((first, many, NEIGHBOURS), (first + many * NEIGHBOURS, 1, few)):
            if blocks and size:
                block = Var("block", blocks)
                place = index.add(index.mul(block, size), start)
                body = Seq([s for k in range(size) for s in step(index.add(place, k))])
                parts.append(For(block, For(self.lane, body, "vector")))
        return sequence(*parts)

    # -- stages ----------------------------------------------------------------------------------------------
    def stages(self) -> Iterator[Stmt]:
        """Yield the stages. After some of them every `done` numbers in order are transforms of what lies
        m / done apart.
        """
        done = 1
        for k, radix in enumerate(self.radices):
            stage = self.stage if radix in RADICES else self.prime_stage
            yield stage(self.scratch[k % 2], self.scratch[1 - k % 2], radix, done)
            done *= radix

    def stage(self, source: Buffer, target: Buffer, radix: int, done: int) -> Stmt:
        """there[q + done (radix p + k)] = w^(p k) sum over j of w_radix^(j k) here[q + done (p + left j)]."""
        left = self.m // (done * radix)
        p, q = Var("p", left), Var("q", done)
        here = index.add(index.mul(p, done), q)
        values = [self._at(source, index.add(here, done * left * j)) for j in range(radix)]
        body: list[Stmt] = []
        for k, value in enumerate(transform(values)):
            power = index.mul(p, k * done * (self.n // self.m))
            twisted = value if k == 0 or left == 1 else times(value, self.root(power))
            where = index.add(index.mul(p, done * radix), index.add(q, done * k))
            body += self._held(target, where, twisted)
        return For(p, For(q, For(self.lane, Seq(body), "vector")))

    def prime_stage(self, source: Buffer, target: Buffer, radix: int, done: int) -> Stmt:
        """Return the last stage, where the radix is too large to be written out: what lies symmetrically is
        added and subtracted first, and two results at a time are sums over these.
        """
        half, q = radix // 2, Var("q", done)
        folded = Buffer("folded", self.dtype, (2, radix, self.lanes), space="scratch")
        self.scratch.append(folded)

        def given(j: Index) -> Complex:
            return self._at(source, index.add(q, index.mul(j, done)))

        j = index.add(Var("j", half), 1)
        mirrored = index.sub(radix, j)
        pair = given(j), given(mirrored)
        sums = self._held(folded, j, plus(*pair)) + self._held(folded, mirrored, minus(*pair))
        total = first = given(0)
        for step in range(1, half + 1):
            total = plus(total, self._at(folded, step))
        k = index.add(Var("k", half), 1)
        even: list[Expr] = list(first)
        odd: list[Expr] = [const(0.0, self.dtype)] * 2
        for step in range(1, half + 1):
            cosine, sine = self.root(index.mul(index.mod(index.mul(k, step), radix), self.n // radix))
            for part in range(2):
                even[part] = call("fma", cosine, self._at(folded, step)[part], even[part])
                odd[part] = call("fma", sine, self._at(folded, radix - step)[part], odd[part])
        (a, b), (c, d) = even, odd
        results = [
            *self._held(target, index.add(q, index.mul(k, done)), (a - d, b + c)),
            *self._held(target, index.add(q, index.mul(index.sub(radix, k), done)), (a + d, b - c)),
        ]
        steps = (
            _over(j, For(self.lane, Seq(sums), "vector")),
            For(self.lane, Seq(self._held(target, q, total)), "vector"),
            _over(k, For(self.lane, Seq(results), "vector")),
        )
        return For(q, sequence(*steps))

    # -- complex lines ---------------------------------------------------------------------------------------
    def load_complex(self) -> Stmt:
        return self.along(0, self.n, lambda j: self.put(j, (self.given(j, 0), self.given(j, 1))))

    def store_complex(self) -> Stmt:
        def step(k: Expr) -> list[Stmt]:
            return [self.result(k, v, part) for part, v in enumerate(scaled(self.found(k), self.scale))]

        return self.along(0, self.n, step)

    # -- real lines ------------------------------------------------------------------------------------------
    def load_real(self) -> Stmt:
        """Make a complex number of two neighbours."""

        def step(j: Expr) -> list[Stmt]:
            return self.put(j, (self.given(index.mul(j, 2)), self.given(index.add(index.mul(j, 2), 1))))

        return self.along(0, self.m, step)

    def store_half(self) -> Stmt:
        """X[k] = (Z[k] + Z[-k]*) / 2 - i w^k (Z[k] - Z[-k]*) / 2."""

        def step(k: Expr) -> list[Stmt]:
            here = self.found(index.mod(k, self.m))
            there = conjugate(self.found(index.mod(index.sub(2 * self.m, k), self.m)))
            odd = times(turned(minus(here, there), 1, 4), self.root(k))
            whole = scaled(plus(plus(here, there), odd), self.scale / 2)
            return [self.result(k, v, part) for part, v in enumerate(whole)]

        return self.along(0, self.out.shape[1], step)

    def load_half(self) -> Stmt:
        """Z[k] = X[k] + X[m - k]* + i w^-k (X[k] - X[m - k]*); the ends are real."""

        def step(k: Expr) -> list[Stmt]:
            here, other = ((self.given(at, 0), self.given(at, 1)) for at in (k, index.sub(self.m, k)))
            there = conjugate(other)
            odd = times(turned(minus(here, there), 3, 4), conjugate(self.root(k)))
            return self.put(k, plus(plus(here, there), odd))

        first, last = self.given(0, 0), self.given(self.m, 0)
        ends = Seq(self.put(0, (first + last, first - last)))
        return sequence(For(self.lane, ends, "vector"), self.along(1, self.m, step))

    def store_real(self) -> Stmt:
        def step(j: Expr) -> list[Stmt]:
            parts = scaled(self.found(j), self.scale)
            return [self.result(index.add(index.mul(j, 2), part), v) for part, v in enumerate(parts)]

        return self.along(0, self.m, step)


def _over(place: Expr, body: Stmt) -> Stmt:
    """Run over the one variable of a place."""
    (var,) = place.free
    return For(var, body)
