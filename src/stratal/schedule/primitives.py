"""Schedule primitives: exact rewrites of loop nests, each legal only where its check passes.

A `Schedule` holds a statement tree and the list of steps that made it, so a schedule prints and replays.
Loops are named by their variable object. Before -> after, in the text form of the loop IR:

    split(i, 4)        for i in 10: S[i]            ->  for io in 3: for ii in 4: if io*4+ii < 10: S[io*4+ii]
    reorder(j, i)      for i: for j: S              ->  for j: for i: S
    fuse(i, j)         for i in 3: for j in 4: S    ->  for f in 12: S[i = f//4, j = f%4]
    merge(a, b)        for a in n: A; for b in n: B ->  for a in n: (A; B[b = a])
    unroll(i), vectorize(i), parallel(i)               change how a loop runs
    peel(io)           for io in 3: S               ->  for io in 2: S; S[io = 2]
    branch(io)         for io in 3: S               ->  for io in 3: if io < 2: S else: S[io = 2]
    shrink(t, i)       a temporary indexed by outer loops becomes one tile of it, in registers or scratch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from stratal.base.errors import VerifyError
from stratal.loops import index
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, call, load, walk
from stratal.loops.rebuild import transform
from stratal.loops.stmt import (
    Fail,
    For,
    If,
    LoopKind,
    Prefetch,
    Seq,
    Stmt,
    Store,
    expressions,
    map_parts,
    statements,
    substitute_stmt,
)


class Schedule:
    """A loop nest being scheduled; every step is recorded in `steps`."""

    def __init__(self, body: Stmt, local: Sequence[Buffer] = ()) -> None:
        self.body = body
        self.local = list(local)
        self.steps: list[str] = []
        self._counted: tuple[Stmt, int] | None = None  # a body, and its divisions

    def _log(self, step: str) -> None:
        self.steps.append(step)

    # -- loop structure --------------------------------------------------------------------------------------
    def split(self, var: Var, factor: int) -> tuple[Var, Var]:
        """Split a loop into (outer, inner of extent `factor`).

        A tail that does not divide becomes a guard.
        """
        factor = max(1, min(factor, var.extent))
        outer = Var(f"{var.name}o", -(-var.extent // factor))
        inner = Var(f"{var.name}i", factor)
        position = index.add(index.mul(outer, factor), inner)

        def change(loop: For) -> Stmt:
            body = substitute_stmt(loop.body, {var: position})
            if var.extent % factor:
                body = guard_leaves(body, index.less(position, var.extent))
            return For(outer, For(inner, body, loop.kind), loop.kind)

        self._replace(var, change)
        self._log(f"split({var}, {factor}) -> {outer}, {inner}")
        return outer, inner

    def reorder(self, *order: Var) -> None:
        """Give perfectly nested loops a new order, outermost first.

        Legal when no iteration depends on another's.
        """
        wanted = list(order)
        top = next((s.var for s in statements(self.body) if isinstance(s, For) and s.var in wanted), None)
        if top is None:
            raise VerifyError("schedule: no such loop")

        def change(loop: For) -> Stmt:
            chain: dict[Var, LoopKind] = {}
            body: Stmt = loop
            while isinstance(body, For) and not set(wanted) <= set(chain):
                chain[body.var] = body.kind
                body = body.body
            missing = [v.name for v in wanted if v not in chain]
            if missing:
                raise VerifyError("reorder: loops are not perfectly nested", got=", ".join(missing))
            moved = iter(wanted)
            sequence = [next(moved) if v in wanted else v for v in chain]
            for v in reversed(sequence):
                body = For(v, body, chain[v])
            return body

        self._replace(top, change)
        self._log(f"reorder({', '.join(v.name for v in wanted)})")

    def fuse(self, outer: Var, inner: Var) -> Var:
        """Make one loop of two perfectly nested ones."""
        fused = Var(f"{outer.name}{inner.name}", outer.extent * inner.extent)

        def change(loop: For) -> Stmt:
            if not isinstance(loop.body, For) or loop.body.var is not inner:
                raise VerifyError("fuse: loops are not perfectly nested", got=f"{outer}, {inner}")
            values: dict[Var, Expr] = {
                outer: index.floordiv(fused, inner.extent) if inner.extent else index.as_expr(0),
                inner: index.mod(fused, inner.extent) if inner.extent else index.as_expr(0),
            }
            return For(fused, substitute_stmt(loop.body.body, values), loop.kind)

        self._replace(outer, change)
        self._log(f"fuse({outer}, {inner}) -> {fused}")
        return fused

    def merge(self, *loops: Var) -> Var:
        """Run neighbouring loops of equal extent as one.

        Legal when iteration k of a later one needs only iterations k of earlier ones.
        """
        first = loops[0]
        if any(v.extent != first.extent for v in loops):
            raise VerifyError(
                "merge: loops differ in extent", got=", ".join(f"{v}<{v.extent}" for v in loops)
            )

        def join(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, Seq):
                return stmt
            at = [k for k, s in enumerate(stmt.body) if isinstance(s, For) and s.var in loops]
            if len(at) != len(loops):
                return stmt
            if at != list(range(at[0], at[0] + len(at))):
                raise VerifyError("merge: something stands between the loops", got=", ".join(map(str, loops)))
            nests = [s for s in stmt.body if isinstance(s, For) and s.var in loops]
            bodies = [substitute_stmt(loop.body, {loop.var: first}) for loop in nests]
            _check_merge(first, bodies)
            joined = For(first, sequence(*bodies), nests[0].kind)
            return sequence(*stmt.body[: at[0]], joined, *stmt.body[at[-1] + 1 :])

        self.body = rewrite(self.body, join)
        self._log(f"merge({', '.join(v.name for v in loops)})")
        return first

    def merge_nests(self, chains: Sequence[Sequence[Var]]) -> None:
        """Merge neighbouring nests over all their leading loops, outermost first."""
        for level in zip(*chains, strict=True):
            self.merge(*level)

    # -- how loops run ---------------------------------------------------------------------------------------
    def unroll(self, var: Var) -> None:
        """Repeat the body for each iteration, with the index known."""
        self._kind(var, "unroll")

    def vectorize(self, var: Var) -> None:
        """Run all iterations as lanes of vectors."""
        self._kind(var, "vector")

    def parallel(self, var: Var) -> None:
        """Make iterations the chunks of the kernel.

        The loop must be outermost when the kernel is finished.
        """
        self._kind(var, "parallel")

    def _kind(self, var: Var, kind: LoopKind) -> None:
        self._replace(var, lambda loop: For(loop.var, loop.body, kind))
        self._log(f"{kind}({var})")

    # -- tails -----------------------------------------------------------------------------------------------
    def peel(self, var: Var) -> None:
        """Run the last iteration after the loop, so that guards inside the loop are known to hold."""

        def change(loop: For) -> Stmt:
            if loop.var.extent <= 1:
                return simplify(substitute_stmt(loop.body, {loop.var: index.as_expr(0)}))
            rest = Var(loop.var.name, loop.var.extent - 1)
            last = substitute_stmt(loop.body, {loop.var: index.as_expr(loop.var.extent - 1)})
            main = For(rest, simplify(substitute_stmt(loop.body, {loop.var: rest})), loop.kind)
            return sequence(main, simplify(fresh_loops(last)))

        self._replace(var, change)
        self._log(f"peel({var})")

    def branch(self, var: Var, below: Var | None = None) -> None:
        """Give the last iteration its own arm, so that guards in the other arm are known to hold.

        The arms stand inside the loop `below`, nested in that over `var`, or right inside the loop itself.
        """
        n = var.extent
        if not guarded_by(self.body, var):
            return

        def change(loop: For) -> Stmt:
            if n <= 1:
                return For(loop.var, simplify(substitute_stmt(loop.body, {var: index.as_expr(0)})), loop.kind)
            clamped = call("min", var, index.as_expr(n - 2)) if n > 2 else index.as_expr(0)
            full = simplify(substitute_stmt(loop.body, {var: clamped}))
            last = simplify(fresh_loops(substitute_stmt(loop.body, {var: index.as_expr(n - 1)})))
            return For(loop.var, If(index.less(var, n - 1), full, last), loop.kind)

        self._replace(below or var, change)
        self._log(f"branch({var})")

    def try_fuse(self, outer: Var, inner: Var) -> Var | None:
        """Fuse two loops if no index then needs a division; otherwise leave them alone."""
        body, steps = self.body, list(self.steps)
        counted = self._counted
        before = counted[1] if counted is not None and counted[0] is body else num_divisions(body)
        fused = self.fuse(outer, inner)
        after = num_divisions(self.body)
        if after > before:
            self.body, self.steps = body, steps
            self._counted = (body, before)
            return None
        self._counted = (self.body, after)
        return fused

    # -- temporaries -----------------------------------------------------------------------------------------
    def shrink(self, temporary: Buffer, inside: Sequence[Var], space: str) -> Buffer:
        """Keep only the part of a temporary that one iteration of the loops `inside` uses.

        Legal when no value crosses iterations.
        """
        return self.shrink_all([(temporary, space)], inside)[0]

    def shrink_all(self, temporaries: Sequence[tuple[Buffer, str]], inside: Sequence[Var]) -> list[Buffer]:
        """Shrink several temporaries, each to its space, in one walk over the nest."""
        fixed = set(inside)
        accesses: dict[Buffer, list[Sequence[Expr]]] = {buffer: [] for buffer, _ in temporaries}
        for access in (*walk(expressions(self.body)), *statements(self.body)):
            if isinstance(access, (Load, Store)) and access.buffer in accesses:
                accesses[access.buffer].append(access.indices)
        tiles = {buffer: Tile(buffer, space, accesses[buffer], fixed) for buffer, space in temporaries}

        def local(e: Expr) -> Expr | None:
            if isinstance(e, Load) and (tile := tiles.get(e.buffer)) is not None:
                return load(tile.buffer, tile.moved(e.indices))
            return None

        stores = {buffer: (tile.buffer, tile.moved) for buffer, tile in tiles.items()}
        self.body = rewrite_expressions(self.body, local, stores)
        self.local = [tiles[b].buffer if b in tiles else b for b in self.local]
        for tile in tiles.values():
            self._log(f"shrink({tile.buffer.name}, {tile.buffer.space}{list(tile.buffer.shape)})")
        return [tile.buffer for tile in tiles.values()]

    # -- plumbing --------------------------------------------------------------------------------------------
    def _replace(self, var: Var, change: Callable[[For], Stmt]) -> None:
        found = False

        def visit(stmt: Stmt) -> Stmt:
            nonlocal found
            if isinstance(stmt, For) and stmt.var is var and not found:
                found = True  # once: the result may hold the loop again
                return change(stmt)
            return stmt

        self.body = rewrite(self.body, visit)
        if not found:
            raise VerifyError(f"schedule: there is no loop over {var}")


class Tile:
    """A temporary as small as its accesses, by their indices, allow where the variables `fixed` do not vary.

    It starts where the first access does.
    """

    def __init__(
        self, whole: Buffer, space: str, accesses: Sequence[Sequence[Expr]], fixed: Collection[Var]
    ) -> None:
        self._fixed: Final = frozenset(fixed)
        parts = [[self._inner(i) for i in indices] for indices in accesses]
        ranges = [[index.bounds(part) for part in axis] for axis in zip(*parts, strict=True)]
        self._first: Final = [min(low for low, _ in axis) for axis in ranges]
        shape = [max(high for _, high in axis) - f + 1 for axis, f in zip(ranges, self._first, strict=True)]
        self.buffer: Final = Buffer(whole.name, whole.dtype, shape, space=space)

    def moved(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where in the tile an element lies."""
        return tuple(index.sub(self._inner(i), f) for i, f in zip(indices, self._first, strict=True))

    def _inner(self, expr: Expr) -> Expr:
        """Return an index without its terms in fixed variables alone."""
        terms, constant = index.linear(expr)
        inner = {atom: c for atom, c in terms.items() if not (atom.free and atom.free <= self._fixed)}
        return index.from_linear(inner, constant)


def guarded_by(stmt: Stmt, var: Var) -> bool:
    """Return whether a guard above the leaves mentions a loop variable: it has a tail."""
    return any(
        isinstance(s, If) and s.otherwise is None and index.depends(s.condition, var)
        for s in statements(stmt)
    )


def num_divisions(stmt: Stmt) -> int:
    """Count the divisions that addresses and conditions need, accesses counted by their place in memory."""
    seen: set[Expr] = set()
    stack: list[Expr] = []
    for s in statements(stmt):
        if isinstance(s, Store):
            stack += [s.value, index.place(s.buffer, s.indices)]
        elif isinstance(s, (If, Fail)):
            stack.append(s.condition)
    count = 0
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Load):
            stack.append(index.place(e.buffer, e.indices))
            continue
        count += isinstance(e, Call) and e.fn in ("floordiv", "mod")
        stack.extend(e.parts)
    return count


def sequence(*stmts: Stmt) -> Stmt:
    """Return statements in order, flattened."""
    flat = [part for s in stmts for part in listed(s)]
    return flat[0] if len(flat) == 1 else Seq(flat)


def listed(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements of a sequence; any other statement alone."""
    return stmt.body if isinstance(stmt, Seq) else (stmt,)


def at_once(stores: Sequence[Store], suffix: str = "n") -> tuple[Stmt, list[Buffer]]:
    """Return stores that all see the old values, through registers of their own where there are several.

    `suffix` is added to the names of their buffers: who calls this again for the same ones gives another.
    """
    if len(stores) == 1:
        return stores[0], []
    held = [Buffer(s.buffer.name + suffix, s.buffer.dtype, s.buffer.shape, space="register") for s in stores]
    first = [Store(h, s.indices, s.value) for h, s in zip(held, stores, strict=True)]
    return Seq(
        [*first, *(Store(s.buffer, s.indices, load(h, s.indices)) for h, s in zip(held, stores, strict=True))]
    ), held


def rewrite(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Rebuild a tree outermost first: `change` sees a statement before its parts."""
    stmt = change(stmt)
    if isinstance(stmt, Seq):
        return sequence(*(rewrite(s, change) for s in stmt.body))
    return map_parts(stmt, lambda part: rewrite(part, change))


def rewrite_expressions(
    stmt: Stmt,
    change: Callable[[Expr], Expr | None],
    stores: Mapping[Buffer, tuple[Buffer, Callable[[Sequence[Expr]], Sequence[Expr]]]],
) -> Stmt:
    """Rebuild every expression, and retarget stores to the buffers and indices in `stores`."""

    roots = list(dict.fromkeys(expressions(stmt)))
    new = dict(zip(roots, transform(roots, change), strict=True))

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            buffer, local = stores.get(s.buffer, (s.buffer, tuple))
            return Store(buffer, local([new[i] for i in s.indices]), new[s.value])
        if isinstance(s, If):
            return If(new[s.condition], s.then, s.otherwise)
        if isinstance(s, Fail):
            return Fail(new[s.condition], s.code)
        if isinstance(s, Prefetch):
            buffer, local = stores.get(s.buffer, (s.buffer, tuple))
            return Prefetch(buffer, local([new[i] for i in s.indices]), s.ahead)
        return s

    return rewrite(stmt, visit)


def guard_leaves(stmt: Stmt, condition: Expr) -> Stmt:
    """Put a condition around every innermost statement, keeping loops perfectly nested."""
    if isinstance(condition, Const):
        return stmt if condition.value else Seq(())
    if isinstance(stmt, For):
        return For(stmt.var, guard_leaves(stmt.body, condition), stmt.kind)
    if isinstance(stmt, If) and stmt.otherwise is None:
        return If(index.both(stmt.condition, condition), stmt.then)
    return If(condition, stmt)


def fresh_loops(stmt: Stmt) -> Stmt:
    """Give every loop of a copied tree variables of its own."""
    if isinstance(stmt, For):
        var = Var(stmt.var.name, stmt.var.extent)
        return For(var, fresh_loops(substitute_stmt(stmt.body, {stmt.var: var})), stmt.kind)
    return map_parts(stmt, fresh_loops)


def simplify(stmt: Stmt) -> Stmt:
    """Drop branches that are decided and iterations that no guard lets run."""
    if isinstance(stmt, Seq):
        return sequence(*(s for s in map(simplify, stmt.body) if not (isinstance(s, Seq) and not s.body)))
    if isinstance(stmt, If) and isinstance(stmt.condition, Const):
        arm = stmt.then if stmt.condition.value else stmt.otherwise
        return simplify(arm) if arm is not None else Seq(())
    if not isinstance(stmt, For):
        return map_parts(stmt, simplify)
    extent = min(_useful(stmt.body, stmt.var), stmt.var.extent)
    if stmt.kind == "vector" and extent > 0:  # a guard in a vector loop is a mask; the lanes stay
        extent = stmt.var.extent
    if extent <= 0:
        return Seq(())
    if extent == stmt.var.extent:
        body = simplify(stmt.body)
        return For(stmt.var, body, stmt.kind) if not (isinstance(body, Seq) and not body.body) else body
    if extent == 1:
        return simplify(substitute_stmt(stmt.body, {stmt.var: index.as_expr(0)}))
    var = Var(stmt.var.name, extent)
    return simplify(For(var, substitute_stmt(stmt.body, {stmt.var: var}), stmt.kind))


def _useful(stmt: Stmt, var: Var) -> int:
    """Return how many iterations of `var` can pass the guards below."""
    if isinstance(stmt, For):
        return _useful(stmt.body, var)
    if isinstance(stmt, Seq):
        return max((_useful(s, var) for s in stmt.body), default=0)
    if isinstance(stmt, If) and stmt.otherwise is None:
        return min([_limit(c, var) for c in index.conjuncts(stmt.condition)], default=var.extent)
    return var.extent


def _limit(condition: Expr, var: Var) -> int:
    """Return the number of iterations of `var` for which `a < b` can hold."""
    if not (isinstance(condition, Call) and condition.fn == "lt"):
        return var.extent
    left = index.sub(condition.args[1], condition.args[0])  # must be positive
    step = -index.linear(left)[0].get(var, 0)
    rest = index.add(left, index.mul(var, step))
    if step <= 0 or index.depends(rest, var):
        return var.extent
    most = index.bounds(rest)[1]
    return max(0, -(-most // step)) if most < 1 << 60 else var.extent


def _check_merge(var: Var, bodies: Sequence[Stmt]) -> None:
    """Every buffer that one body writes and a later one reads must be read at an index the same iteration
    wrote, or hold the same values in every iteration.
    """
    stores = [[s for s in statements(body) if isinstance(s, Store)] for body in bodies]
    every = [s for group in stores for s in group]
    written: dict[Buffer, list[Store]] = {}
    for body, group in zip(bodies, stores, strict=True):
        for e in walk(expressions(body)):
            if isinstance(e, Load):
                for s in written.get(e.buffer, ()):
                    if not _constant(var, s, e, every):
                        _same_slice(var, e.buffer, s.indices, e.indices)
        for s in group:
            written.setdefault(s.buffer, []).append(s)


def _constant(var: Var, store: Store, read: Load, stores: Sequence[Store]) -> bool:
    """Return whether every iteration stores the same values at the same places, and nothing else does."""
    if any(index.depends(e, var) for e in (*store.indices, store.value, *read.indices)):
        return False
    known = {store.buffer, *(e.buffer for e in walk([store.value]) if isinstance(e, Load))}
    return not any(s is not store and s.buffer in known for s in stores)


def _shared(a: Expr, b: Expr, var: Var) -> Expr:
    """Return what two indices have in common besides `var`: loops around both, at one iteration for both."""
    (left, _), (right, _) = index.linear(a), index.linear(b)
    common = {atom: c for atom, c in left.items() if right.get(atom) == c and atom is not var}
    return index.from_linear(common, 0)


def _same_slice(var: Var, buffer: Buffer, stored_at: Sequence[Expr], read_at: Sequence[Expr]) -> None:
    """Some axis must be indexed by `var` with one step in both, the rest staying within that step."""
    if not buffer.shape or var.extent <= 1:
        return
    for s, r in zip(stored_at, read_at, strict=True):
        step = index.stride_of(s, var)
        if step and index.stride_of(r, var) == step:
            shared = index.add(index.mul(var, step), _shared(s, r, var))
            rest = [index.bounds(index.sub(e, shared)) for e in (s, r)]
            low, high = min(b[0] for b in rest), max(b[1] for b in rest)
            if high - low < step:
                return
        elif s is r and index.depends(s, var):
            return
    raise VerifyError(
        "merge: a later loop reads what other iterations of an earlier one write", got=buffer.name
    )
