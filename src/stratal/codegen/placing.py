"""Where instructions go: the outermost scope that binds an expression's variables and has its loads safe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import DType
from stratal.base.errors import VerifyError
from stratal.base.target import Instructions
from stratal.codegen.scalar import ScalarEmitter
from stratal.loops import index
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Lanes, Load, Var
from stratal.loops.stmt import Kernel, Seq, Stmt, Store, loaded, stored

NEVER, WITH_MEMORY, WITH_REGISTERS = range(3)  # when a value may be another: what it reads is written then


class Info(NamedTuple):
    """What placing an expression needs to know."""

    depth: int  # index of the outermost scope it can be emitted in
    vector: bool  # differs between lanes
    loads: bool  # reads memory, so a mask matters
    changes: int  # NEVER, or with what this kernel writes: then it is valid until that is written
    unrolled: tuple[Var, ...]  # variables of unrolled loops it mentions: its value depends on theirs


_ANYWHERE: Final = Info(0, False, False, NEVER, ())


class Place(NamedTuple):
    """Where an access lies: base + constant + sum of coefficient * atom, plus a part that lanes differ in."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int
    stride: int | None  # elements per lane; None where it is not a constant
    varying: Expr  # the part that differs between lanes


class Form(NamedTuple):
    """Where an access lies in any iteration of the unrolled loops around it."""

    start: Place | None  # in the first one; None where iterations differ in more than the constant
    steps: tuple[tuple[Var, int], ...]  # what each of those loops adds to the constant


class Scope:
    """Text of one loop body or branch under construction; `loop` is the variable of a loop."""

    def __init__(self, label: str, *, loop: Var | None = None, branch: bool = False) -> None:
        self.lines: list[str] = []
        self.label = label  # of the block that is being appended to
        self.loop = loop
        self.branch = branch
        self.memo: dict[object, str] = {}
        self.multiples: dict[int, str] = {}  # of the loop's variable, by factor: they are counted along


def lane_count(extent: int) -> int:
    """Return the vector width that holds `extent` lanes: the next power of two."""
    return 1 << max(extent - 1, 0).bit_length()


class Placing:
    """Scopes under construction, and what is known of expressions in them.

    `target` is where instructions are appended right now; a value is remembered where it was emitted.
    """

    def __init__(self, kernel: Kernel, instructions: Instructions) -> None:
        self.kernel = kernel
        self.names = itertools.count()
        self.scalars = ScalarEmitter(self._append, instructions)
        written = set(stored(kernel.body))
        self.mutable = frozenset(b for b in loaded(kernel.body) if b in written)
        self.scopes = [Scope("entry")]
        self.target = self.scopes[0]  # where instructions are appended right now
        self.pointers: dict[Buffer, str] = {}  # element 0 of each parameter and scratch buffer
        self.bound: dict[Var, tuple[str, int]] = {}
        self.registers: dict[tuple[Buffer, tuple[int, ...]], str] = {}
        self.slot_types: dict[tuple[Buffer, tuple[int, ...]], str] = {}
        self.env: dict[Var, int] = {}  # iterations of the unrolled loops around
        self.orders: dict[Expr, int] = {}
        self.offsets: dict[object, Expr] = {}
        self.forms: dict[object, Form] = {}
        self.places: dict[object, Place] = {}
        self.folded: dict[object, tuple[index.Terms, int]] = {}
        self.immediates: dict[tuple[Const, DType], str] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.exec_mask: str | None = None  # lanes that run, where not all do
        self.some_lane = False  # whether at least one lane is known to run
        self.mask_depth: dict[str, int] = {}
        self.known_masks: dict[str, tuple[bool, ...]] = {}  # masks whose lanes are known now
        self.fleeting: dict[int, dict[object, str]] = {WITH_MEMORY: {}, WITH_REGISTERS: {}}
        self.info: dict[Expr, Info] = {}
        self.groups: dict[Seq, list[list[Store] | Stmt]] = {}  # bodies of unrolled loops come again

    # -- text ------------------------------------------------------------------------------------------------
    def _fresh(self, prefix: str = "v") -> str:
        return f"%{prefix}{next(self.names)}"

    def _append(self, instruction: str) -> str:
        name = self._fresh()
        self.target.lines.append(f"  {name} = {instruction}")
        return name

    def _line(self, text: str) -> None:
        self.target.lines.append(text)

    def _block(self, label: str) -> None:
        self.target.lines.append(f"{label}:")
        self.target.label = label

    def _run_over(self, lane: Var | None) -> None:
        """Let what follows be done for all iterations of a loop at once, or for one (None)."""
        self.lane, self.lanes = lane, lane_count(lane.extent) if lane is not None else 0

    def _push(self, scope: Scope) -> Scope:
        self.scopes.append(scope)
        self._enter()
        return scope

    def _pop(self) -> None:
        self.scopes.pop()
        self._enter()

    def _enter(self) -> None:
        self.target = self.scopes[-1]
        self._forget()
        self.info.clear()  # depths speak of the scopes there were

    def _written(self, buffers: Sequence[Buffer]) -> None:
        """Forget the values that may be others now that some buffers are written."""
        changed = [b for b in buffers if b in self.mutable]
        if any(b.space != "register" for b in changed):
            self._forget()
        elif changed:
            self.fleeting[WITH_REGISTERS].clear()

    def _forget(self) -> None:
        """Forget all values that change."""
        for memo in self.fleeting.values():
            memo.clear()

    # -- what is known of an expression ----------------------------------------------------------------------
    def _known(self, expr: Expr) -> Info:
        found = self.info.get(expr)
        if found is not None:
            return found
        stack = [expr]
        while stack:
            e = stack[-1]
            if e in self.info:
                stack.pop()
                continue
            missing = [c for c in inputs(e) if c not in self.info]
            if missing:
                stack.extend(missing)
                continue
            self.info[e] = self._derive(e, [self.info[c] for c in inputs(e)])
            stack.pop()
        return self.info[expr]

    def _derive(self, e: Expr, parts: Sequence[Info]) -> Info:
        if isinstance(e, Var):
            if e is self.lane:
                return Info(0, True, False, NEVER, ())
            if e in self.env:
                return Info(0, False, False, NEVER, (e,))
            if e not in self.bound:
                raise VerifyError(f"kernel {self.kernel.name}: variable {e} is used outside its loop")
            return Info(self.bound[e][1], False, False, NEVER, ())
        joined = _joined(parts)
        if isinstance(e, Load):
            if e.buffer in self.mutable:
                changes = max(joined.changes, WITH_REGISTERS if e.buffer.space == "register" else WITH_MEMORY)
                return joined._replace(depth=len(self.scopes) - 1, loads=True, changes=changes)
            last_branch = max((k for k, s in enumerate(self.scopes) if s.branch), default=0)
            return joined._replace(depth=max(joined.depth, last_branch), loads=True)
        if isinstance(e, Guard) and self._known(e.value).loads:  # its mask may be joined with others here
            return joined._replace(depth=len(self.scopes) - 1, loads=True)
        if isinstance(e, Lanes):
            return Info(len(self.scopes) - 1, False, True, WITH_REGISTERS, tuple(self.env))
        return joined

    def _under(self, e: Expr, mask: str | None) -> tuple[Info, str | None]:
        """Return what is known of an expression under a mask, and the mask if it matters."""
        info = self.info.get(e) or self._known(e)
        if mask is None or not info.loads:
            return info, None
        if not info.vector and mask == self.exec_mask and self.some_lane:
            return info, None
        return info._replace(depth=max(info.depth, self.mask_depth.get(mask, 0))), mask

    def _home(self, info: Info) -> tuple[Scope, dict[object, str]]:
        return self._at(info.depth, info.changes)

    def _at(self, depth: int, changes: int) -> tuple[Scope, dict[object, str]]:
        if changes:
            return self.scopes[-1], self.fleeting[changes]
        scope = self.scopes[depth]
        return scope, scope.memo

    def _entry(self, e: Expr, mask: str | None) -> tuple[Info, dict[object, str], object]:
        """Return what is known of an expression under a mask, where its value is remembered, and as what: by
        all it depends on besides the scope it lives in.
        """
        info = self.info.get(e) or self._known(e)
        if mask is not None:
            info, mask = self._under(e, mask)
        memo = self.fleeting[info.changes] if info.changes else self.scopes[info.depth].memo
        if info.unrolled:
            if len(info.unrolled) == 1:
                return info, memo, (e, mask, self.env[info.unrolled[0]])
            return info, memo, (e, mask, *[self.env[v] for v in info.unrolled])
        return info, memo, (e, mask) if info.loads else e


def _joined(parts: Sequence[Info]) -> Info:
    """Return what holds of something made of several parts."""
    if not parts:
        return _ANYWHERE
    joined, *others = parts
    for p in others:
        if p is joined or p is _ANYWHERE:
            continue
        unrolled = joined.unrolled
        if p.unrolled and p.unrolled != unrolled:
            unrolled = tuple(dict.fromkeys((*unrolled, *p.unrolled)))
        joined = Info(
            p.depth if p.depth > joined.depth else joined.depth,
            joined.vector or p.vector,
            joined.loads or p.loads,
            p.changes if p.changes > joined.changes else joined.changes,
            unrolled,
        )
    return joined


def inputs(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Load):
        return e.indices
    if isinstance(e, Call):
        return e.args
    if isinstance(e, Guard):
        return (e.condition, e.value, e.otherwise)
    return ()


def strays(buffer: Buffer, place: Place, by: int) -> bool:
    """Return whether a place can lie further than `by` elements outside its buffer, as rows of padding do.

    Where no page is, a load under a mask without a lane takes the processor hundreds of cycles each time.
    """
    low = high = place.constant
    for atom, factor in place.terms:
        ends = [bound * factor for bound in index.bounds(atom)]
        low, high = low + min(ends), high + max(ends)
    return low < -by or high >= math.prod(buffer.shape) + by
