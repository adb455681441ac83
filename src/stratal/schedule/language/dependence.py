"""Which loops carry dependences: what the legality checks of the schedule language ask.

Two iterations depend on each other where both touch one element and one of them writes it. The tests below
are exact for indices that are sums of loop variables in mixed radix, as tiling makes them, and say "depends"
where they cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from stratal.loops import index
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, loads
from stratal.loops.interpret import Array, evaluate, grid
from stratal.loops.stmt import Fail, For, If, Seq, Stmt, Store, parts, statements, stored
from stratal.schedule.language.nest import Access, accesses, touched

_WIDEST = 1 << 62
_REST = " rest"  # no loop can be called so
MOST_POINTS = 1 << 20  # accesses that are gone through one by one


def variables_of(stmt: Stmt) -> set[Var]:
    """Return the variables that loops of a statement bind."""
    return {s.var for s in statements(stmt) if isinstance(s, For)}


def carried(body: Stmt, loops: Sequence[Var], skip: Collection[Buffer] = ()) -> dict[Buffer, frozenset[Var]]:
    """Return, per buffer that `body` writes, which of the loops around it carry dependences through it.

    Iterations that differ in any other of the loops touch different elements. Buffers in `skip` are left out.
    """
    inner = variables_of(body)
    found: dict[Buffer, frozenset[Var]] = {}
    for b in stored(body):
        if b not in skip:
            apart = separated([a.indices for a in touched(body, b)], loops, inner)
            found[b] = frozenset(v for v in loops if v not in apart and v.extent > 1)
    return found


def separated(places: Sequence[tuple[Expr, ...]], loops: Sequence[Var], inner: Collection[Var]) -> set[Var]:
    """Return which of `loops` have one value wherever two of the places are one element.

    `inner` variables may take any value on either side; all others are the same on both.
    """
    mine, free = set(loops), set(inner)
    known = []
    for column in zip(*places, strict=True):
        form = _common(column, mine, free)
        if form is not None:
            known.append(form)
    return _determined(known, mine | free) & mine


def _common(column: Iterable[Expr], loops: set[Var], inner: set[Var]) -> Expr | None:
    """Return one index for all of a column: what they share in `loops`, and the rest as a range."""
    shared: dict[Expr, int] | None = None
    fixed: set[tuple[tuple[Expr, int], ...]] = set()
    low, high = _WIDEST, -_WIDEST
    for i in set(column):
        terms, constant = index.linear(i)
        part = {a: c for a, c in terms.items() if a.free & loops}
        still = {a: c for a, c in terms.items() if not a.free & loops and not a.free & inner}
        rest = {a: c for a, c in terms.items() if a not in part and a not in still}
        if shared is not None and part != shared:
            return None
        shared = part
        fixed.add(tuple(sorted(still.items(), key=lambda item: id(item[0]))))
        a, b = index.bounds(index.from_linear(rest, constant))
        low, high = min(low, a), max(high, b)
    if len(fixed) > 1 or shared is None or high - low >= _WIDEST:
        return None
    return index.add(index.from_linear(shared, 0), Var(_REST, high - low + 1))


def _determined(known: Sequence[Expr], unknown: set[Var]) -> set[Var]:
    """Return the variables whose values follow from the values of some expressions."""
    waiting, atoms = list(known), set[Expr]()
    changed = True
    while changed:
        changed = False
        for e in list(waiting):
            for atom in _leading(e, atoms, unknown):
                if atom not in atoms:
                    atoms.add(atom)
                    changed = True
                    waiting += _joined(atom, atoms)
    return {a for a in atoms if isinstance(a, Var)}


def _leading(e: Expr, known: set[Expr], unknown: set[Var]) -> list[Expr]:
    """Return the atoms of a sum that follow from its value: each outweighs all smaller ones together."""
    terms, _ = index.linear(e)
    left = {a: c for a, c in terms.items() if (a not in known and a.free & unknown) or _is_rest(a)}
    found: list[Expr] = []
    for atom in sorted(left, key=lambda a: (-abs(left[a]), _is_rest(a))):
        others = [a for a in left if a is not atom and a not in found]
        if sum(abs(left[a]) * _width(a) for a in others) >= abs(left[atom]):
            break
        found.append(atom)
    return [a for a in found if not _is_rest(a)]


def _is_rest(e: Expr) -> bool:
    return isinstance(e, Var) and e.name == _REST


def _width(e: Expr) -> int:
    low, high = index.bounds(e)
    return high - low


def _joined(atom: Expr, known: set[Expr]) -> list[Expr]:
    """Return `x` where both x // c and x % c are known."""
    if not (isinstance(atom, Call) and atom.fn in ("floordiv", "mod")):
        return []
    other = "mod" if atom.fn == "floordiv" else "floordiv"
    met = any(isinstance(a, Call) and a.fn == other and a.args == atom.args for a in known)
    low, high = index.bounds(atom.args[0])
    divisor = atom.args[1]
    alone = atom.fn == "mod" and isinstance(divisor, Const) and high - low < int(divisor.value)
    return [atom.args[0]] if met or alone else []


# -- temporaries of one iteration --------------------------------------------------------------------------
def private(stmt: Stmt, buffer: Buffer) -> bool:
    """Return whether a statement surely writes every element of a buffer before it reads it."""
    if isinstance(stmt, Store):
        return all(e.buffer is not buffer for e in loads((*stmt.indices, stmt.value)))
    if isinstance(stmt, Seq):
        users = [s for s in stmt.body if touched(s, buffer)]
        if not users or not private(users[0], buffer):
            return not users
        inner = variables_of(stmt)
        if len(users) == 1 or _covers(users[0], touched(stmt, buffer), buffer, inner):
            return True
        return written_before_read(stmt, buffer, inner)
    if isinstance(stmt, If) and any(e.buffer is buffer for e in loads((stmt.condition,))):
        return False
    return all(private(s, buffer) for s in parts(stmt))


def _covers(head: Stmt, places: Sequence[Access], buffer: Buffer, inner: set[Var]) -> bool:
    """Return whether the first store of `head` goes to all elements that any of the places may be."""
    first = next((a for a in accesses(head) if a.buffer is buffer), None)
    if first is None or not first.is_store or first.conditions:
        return False
    used: set[Var] = set()
    for axis, i in enumerate(first.indices):
        outer, rest, constant = divided(i, inner)
        low, high = index.bounds(index.from_linear(rest, constant))
        for p in places:
            around, more, extra = divided(p.indices[axis], inner)
            a, b = index.bounds(index.from_linear(more, extra))
            if around != outer or a < low or b > high:
                return False
        if not _dense(rest) or used & rest.keys():
            return False
        used |= {v for v in rest if isinstance(v, Var)}
    return True


def divided(i: Expr, inner: Collection[Var]) -> tuple[dict[Expr, int], dict[Expr, int], int]:
    """Split an index: terms without any of the variables, terms with them, the constant."""
    terms, constant = index.linear(i)
    moving = set(inner)
    rest = {a: c for a, c in terms.items() if a.free & moving}
    return {a: c for a, c in terms.items() if a not in rest}, rest, constant


def _dense(terms: dict[Expr, int]) -> bool:
    """Return whether a sum takes every value between its bounds: variables in mixed radix."""
    step = 1
    for atom, c in sorted(terms.items(), key=lambda item: item[1]):
        if not isinstance(atom, Var) or c != step:
            return False
        step *= atom.extent
    return True


def privates(whole: Stmt, body: Stmt, local: Iterable[Buffer]) -> set[Buffer]:
    """Return the temporaries that nothing outside of `body` touches and that each run of it writes first."""
    found = set()
    for b in local:
        inside = touched(body, b)
        if inside and len(inside) == len(touched(whole, b)) and private(body, b):
            found.add(b)
    return found


def meeting(whole: Stmt, loop: For, local: Iterable[Buffer], *, lanes: bool) -> list[Buffer]:
    """Return the buffers through which iterations of a loop depend on each other.

    A temporary that each iteration fills for itself does not count, unless they are `lanes`, which share it.
    """
    own = set() if lanes else {b for b in privates(whole, loop.body, local) if b.space != "global"}
    return [b for b, loops in carried(loop.body, [loop.var], own).items() if loops]


# -- orders that do not matter ------------------------------------------------------------------------------
def accumulates_exactly(body: Stmt, buffer: Buffer) -> bool:
    """Return whether a statement only combines values into a buffer so that no order changes a bit."""
    combined: set[str] = set()
    num_loads = 0
    for s in statements(body):
        if isinstance(s, Store) and s.buffer is buffer:
            v = s.value
            if not (isinstance(v, Call) and len(v.args) == 2 and isinstance(v.args[0], Load)):
                return False
            if v.args[0].buffer is not buffer or v.args[0].indices != s.indices:
                return False
            combined.add(v.fn)
            num_loads += 1
    found = sum(not a.is_store for a in touched(body, buffer))
    exact = {"add", "mul", "min", "max"} if buffer.dtype.is_integer else {"and", "or"}
    return len(combined) == 1 and combined <= exact and found == num_loads


# -- accesses one by one -------------------------------------------------------------------------------------
def written_before_read(stmt: Stmt, buffer: Buffer, inner: Collection[Var]) -> bool:
    """Return whether every element a statement reads of a buffer was written in it before.

    Stores under conditions do not count, loads under conditions do. Places may depend on the loops around
    only by a shift that all have in common; where they do otherwise, or are too many, the answer is no.
    """
    moving = set(inner)
    shifts = {tuple(_fixed(i, moving) for i in a.indices) for a in touched(stmt, buffer)}
    if len(shifts) != 1 or _points(stmt, buffer) > MOST_POINTS:
        return False
    return _Replay(buffer, moving).run(stmt, {})


def _fixed(i: Expr, moving: set[Var]) -> Expr:
    """Return the part of an index that only the loops around decide."""
    terms, _ = index.linear(i)
    return index.from_linear({a: c for a, c in terms.items() if not a.free & moving}, 0)


def _points(stmt: Stmt, buffer: Buffer) -> int:
    if not touched(stmt, buffer):
        return 0
    below = sum(_points(s, buffer) for s in parts(stmt)) or 1
    return below * stmt.var.extent if isinstance(stmt, For) else below


class _Replay:
    """The elements written so far."""

    def __init__(self, buffer: Buffer, moving: set[Var]) -> None:
        self.buffer = buffer
        self.moving = moving
        self.written: Array = np.zeros(buffer.shape, bool)
        self.conditions = 0  # around the statement at hand

    def run(self, stmt: Stmt, values: dict[Expr, Array]) -> bool:
        """Go through a statement; return whether no element was read too early."""
        if not touched(stmt, self.buffer):
            return True
        loops, leaf = _perfect(stmt)
        if isinstance(leaf, Store):  # its loads count before all of its stores: cautious, and many at once
            points = grid(loops)
            bound = {**values, **points}
            found = list(accesses(leaf))
            return all(self._read(a, bound) for a in found if not a.is_store) and all(
                self._write(a, bound, tuple(v.extent for v in loops)) for a in found if a.is_store
            )
        if isinstance(stmt, For):
            steps = (np.asarray(k, np.int64) for k in range(stmt.var.extent))
            return all(self.run(stmt.body, {**values, stmt.var: k}) for k in steps)
        if isinstance(stmt, If):
            asked = [a for a in accesses(Fail(stmt.condition, 1)) if a.buffer is self.buffer]
            self.conditions += 1
            fine = not asked and all(self.run(s, values) for s in parts(stmt))
            self.conditions -= 1
            return fine
        return not isinstance(stmt, Fail) and all(self.run(s, values) for s in parts(stmt))

    def _places(self, access: Access, values: dict[Expr, Array]) -> tuple[Array, ...] | None:
        """Return where an access goes, without the shift; None where the loops around decide more."""
        moving = [index.sub(i, _fixed(i, self.moving)) for i in access.indices]
        if any(v not in values for i in moving for v in i.free):
            return None
        where = tuple(evaluate(moving, values, {}))
        inside = all(np.all((w >= 0) & (w < n)) for w, n in zip(where, self.buffer.shape, strict=True))
        return where if inside else None

    def _read(self, access: Access, values: dict[Expr, Array]) -> bool:
        if access.buffer is not self.buffer:
            return True
        where = self._places(access, values)
        return where is not None and bool(np.all(self.written[where]))

    def _write(self, access: Access, values: dict[Expr, Array], shape: tuple[int, ...]) -> bool:
        if access.buffer is not self.buffer or not math.prod(shape):
            return True
        where = self._places(access, values)
        if where is not None and not self.conditions:
            self.written[where] = True
        return True


def _perfect(stmt: Stmt) -> tuple[list[Var], Stmt]:
    loops: list[Var] = []
    while isinstance(stmt, For):
        loops.append(stmt.var)
        stmt = stmt.body
    return loops, stmt
