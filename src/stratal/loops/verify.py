"""What every kernel must obey, checked: scopes of variables, dtypes and places of loads and stores.

Bounds are checked where they can be decided: for accesses under no condition whose index is affine, or out of
range at every point. The rest is up to guards, checks and the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from stratal.base.dtypes import bool_, int64
from stratal.base.errors import VerifyError
from stratal.loops import index
from stratal.loops.expr import Buffer, Const, Expr, Guard, Lanes, Load, Var
from stratal.loops.index import matrix
from stratal.loops.stmt import Fail, For, Kernel, Prefetch, ProductCall, Seq, Stmt, Store, stmt_to_text

_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")
_MAX_TEXT: Final = 4000


class _Check:
    """One kernel under verification: what is declared, and which loops are open."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.readable = frozenset((*kernel.reads, *kernel.writes, *kernel.local))
        self.writable = frozenset((*kernel.writes, *kernel.local))
        self.loops: list[For] = []
        self.certain = 0  # conditions around the statement at hand
        self.seen: set[tuple[Expr, bool, tuple[Var, ...]]] = set()

    def fail(self, rule: str, got: object) -> VerifyError:
        text = str(self.kernel)
        if len(text) > _MAX_TEXT:
            text = text[:_MAX_TEXT] + "\n  ..."
        return VerifyError(
            f"kernel {self.kernel.name}: {rule}", got=str(got), hint=f"the kernel reads\n{text}"
        )

    # -- declarations --------------------------------------------------------------------------------------
    def declarations(self) -> None:
        kernel = self.kernel
        names: set[str] = set()
        for b in (*kernel.parameters, *kernel.local):
            if b.name in names:
                raise self.fail("two buffers have one name", b)
            names.add(b.name)
            if not _NAME.fullmatch(b.name):
                raise self.fail("a buffer's name is not an identifier", repr(b.name))
            if len(b.strides) != len(b.shape) or any(n < 0 for n in b.shape):
                raise self.fail("a buffer's shape and strides do not fit", b)
        for b in kernel.parameters:
            if b.space != "global":
                raise self.fail(f"a parameter lives in {b.space} memory", b)
        for b in kernel.local:
            if b.space not in ("scratch", "register"):
                raise self.fail("a local buffer is neither scratch nor register", b)

    # -- statements ----------------------------------------------------------------------------------------
    def statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Seq):
            for s in stmt.body:
                self.statement(s)
        elif isinstance(stmt, For):
            self.loop(stmt)
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, Prefetch):
            self.prefetch(stmt)
        elif isinstance(stmt, ProductCall):
            self.product(stmt)
        else:
            wanted = int64 if isinstance(stmt, Fail) and not stmt.code else bool_
            if stmt.condition.dtype is not wanted:
                got = f"{stmt.condition}: {stmt.condition.dtype}"
                raise self.fail(f"a condition is not a {wanted.name}", got)
            self.expression(stmt.condition)
            if isinstance(stmt, Fail):
                return
            self.certain += 1
            self.statement(stmt.then)
            if stmt.otherwise is not None:
                self.statement(stmt.otherwise)
            self.certain -= 1

    def loop(self, stmt: For) -> None:
        around = [f.var for f in self.loops]
        if stmt.var in around:
            raise self.fail("a loop binds the variable of a loop around it", stmt.var)
        if stmt.var.extent < 0:
            raise self.fail("a loop has a negative extent", f"{stmt.var} in {stmt.var.extent}")
        if stmt.kind == "vector" and any(f.kind == "vector" for f in self.loops):
            raise self.fail("a vector loop is inside a vector loop", stmt.var)
        if stmt.kind == "parallel" and any(f.kind in ("vector", "unroll") for f in self.loops):
            raise self.fail("a parallel loop is inside an unrolled or vector loop", stmt.var)
        self.loops.append(stmt)
        self.statement(stmt.body)
        self.loops.pop()

    def store(self, stmt: Store) -> None:
        if stmt.buffer not in self.writable:
            raise self.fail("a store goes to a buffer that is not written or local", stmt.buffer)
        if stmt.value.dtype is not stmt.buffer.dtype:
            raise self.fail(f"a store of {stmt.value.dtype} to another dtype", stmt.buffer)
        if len(stmt.indices) != len(stmt.buffer.shape):
            raise self.fail(f"a store with {len(stmt.indices)} indices", stmt.buffer)
        for e in (*stmt.indices, stmt.value):
            self.expression(e)
        self.within("store to", stmt.buffer, stmt.indices, self.certain == 0)

    def prefetch(self, stmt: Prefetch) -> None:
        if stmt.buffer not in self.kernel.parameters:
            raise self.fail("what is prefetched is no parameter", stmt.buffer)
        if len(stmt.indices) != len(stmt.buffer.shape):
            raise self.fail(f"a prefetch with {len(stmt.indices)} indices", stmt.buffer)
        if stmt.ahead < 0:
            raise self.fail("a prefetch looks back", stmt.ahead)
        for e in stmt.indices:
            self.expression(e)
        self.within("prefetch of", stmt.buffer, stmt.indices, self.certain == 0)

    def product(self, stmt: ProductCall) -> None:
        """Check that all three are matrices, the result row-major, and that they lie in their buffers."""
        store, a, b = stmt.parts()
        rows, columns, depth = stmt.loops
        out = matrix(store.buffer[store.indices], rows, columns)
        lies = matrix(a, rows, depth) is not None and matrix(b, depth, columns) is not None
        if out is None or out.transposed or not lies:
            raise self.fail(
                "a library is called for something that is no product of matrices", stmt_to_text(stmt)
            )
        if not {a.buffer, b.buffer, store.buffer} <= set(self.kernel.parameters):
            raise self.fail("a library is called on a local buffer", stmt_to_text(stmt))
        nest: Stmt = stmt.body
        for var in stmt.loops:
            nest = For(var, nest)
        self.statement(nest)

    # -- expressions ---------------------------------------------------------------------------------------
    def expression(self, root: Expr) -> None:
        """Check a root expression and all below it, each once per set of circumstances; iterative."""
        bound = tuple(f.var for f in self.loops)
        stack: list[tuple[Expr, bool, tuple[Var, ...]]] = [(root, self.certain == 0, bound)]
        while stack:
            here = stack.pop()
            if here in self.seen:
                continue
            self.seen.add(here)
            e, always, scope = here
            self.one(e, always, scope)
            if isinstance(e, Guard):
                stack += [(e.condition, always, scope), (e.value, False, scope), (e.otherwise, always, scope)]
            elif isinstance(e, Lanes):
                stack.append((e.value, always, (*scope, e.var)))
            else:
                stack += [(c, always, scope) for c in e.parts]

    def one(self, e: Expr, always: bool, scope: Sequence[Var]) -> None:
        if isinstance(e, Var) and e not in scope:
            raise self.fail("a variable is used outside its loop", e)
        if isinstance(e, Guard) and e.condition.dtype is not bool_:
            raise self.fail("the condition of a guard is not a bool", e.condition)
        if isinstance(e, Lanes):
            if e.var in scope:
                raise self.fail("a lane reduction binds the variable of a loop around it", e.var)
            if e.var.extent < 1 or e.var.extent & (e.var.extent - 1):
                raise self.fail("a lane reduction is not over a power of two", f"{e.var} in {e.var.extent}")
        if isinstance(e, Load):
            if e.buffer not in self.readable:
                raise self.fail("a load reads an undeclared buffer", e.buffer)
            self.within("load from", e.buffer, e.indices, always)

    def within(self, what: str, buffer: Buffer, indices: Iterable[Expr], always: bool) -> None:
        """Check that an access which always happens is in range, where that can be decided."""
        if any(f.var.extent == 0 for f in self.loops):
            return
        for axis, (i, n) in enumerate(zip(indices, buffer.shape, strict=True)):
            if i.dtype is not int64:
                raise self.fail(f"{what} {buffer.name}: an index is not an int64", f"{i}: {i.dtype}")
            low, high = index.bounds(i)
            never = high < 0 or low >= n
            sometimes = (low < 0 or high >= n) and _is_affine(i)
            if always and (never or sometimes):
                got = f"index {i} in [{low}, {high}] of axis {axis}, size {n}"
                raise self.fail(f"{what} {buffer.name}: leaves the buffer", got)


def _is_affine(i: Expr) -> bool:
    """Whether the bounds of an index are attained: its atoms are distinct loop variables."""
    terms, _ = index.linear(i)
    return all(isinstance(a, (Var, Const)) for a in terms)


def verify_kernel(kernel: Kernel) -> None:
    """Raise VerifyError, with the text of the kernel, unless it obeys the rules of the loop IR."""
    check = _Check(kernel)
    check.declarations()
    check.statement(kernel.body)
