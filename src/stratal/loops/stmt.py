"""Statements and kernels: loop nests over buffers, with their text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Union, final

from stratal.base.errors import VerifyError
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, to_texts, unlike, walk
from stratal.loops.rebuild import substitute

LoopKind = Literal["serial", "parallel", "unroll", "vector"]


@final
class For:
    """`for var in range(var.extent)`. `vector` runs iterations as lanes; `parallel` ones are independent."""

    __slots__ = ("body", "kind", "var")

    def __init__(self, var: Var, body: Stmt, kind: LoopKind = "serial") -> None:
        self.var: Final = var
        self.body: Final = body
        self.kind: Final[LoopKind] = kind


@final
class Store:
    """`buffer[indices] = value`."""

    __slots__ = ("buffer", "indices", "value")

    def __init__(self, buffer: Buffer, indices: Iterable[Expr], value: Expr) -> None:
        self.buffer: Final = buffer
        self.indices: Final = tuple(indices)
        self.value: Final = value


@final
class If:
    """Run `then` where the scalar condition holds, else `otherwise`."""

    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> None:
        self.condition: Final = condition
        self.then: Final = then
        self.otherwise: Final = otherwise


@final
class Fail:
    """Write `code` to the error cell and leave the kernel where the scalar condition holds.

    Without a code, 0, the condition is an int64 instead: one that is not 0 is written.
    """

    __slots__ = ("code", "condition")

    def __init__(self, condition: Expr, code: int = 0) -> None:
        self.condition: Final = condition
        self.code: Final = code


@final
class Prefetch:
    """Bring the memory `ahead` elements behind `buffer[indices]` near: what follows reads or writes it.

    Nothing else happens, also where the buffer ends before that.
    """

    __slots__ = ("ahead", "buffer", "indices")

    def __init__(self, buffer: Buffer, indices: Iterable[Expr], ahead: int = 0) -> None:
        self.buffer: Final = buffer
        self.indices: Final = tuple(indices)
        self.ahead: Final = ahead


@final
class ProductCall:
    """A product of two matrices by the function of a library (`base.vendor`).

    For all `rows` and `columns`, `body` stores the sum of its value, a product of two loads, over `depth`.
    """

    __slots__ = ("body", "columns", "depth", "rows")

    def __init__(self, rows: Var, columns: Var, depth: Var, body: Stmt) -> None:
        self.rows: Final = rows
        self.columns: Final = columns
        self.depth: Final = depth
        self.body: Final = body

    @property
    def loops(self) -> tuple[Var, Var, Var]:
        return self.rows, self.columns, self.depth

    def parts(self) -> tuple[Store, Load, Load]:
        """Return the store and the two loads. Raises: VerifyError for another body."""
        store = self.body
        if isinstance(store, Store) and isinstance(store.value, Call) and store.value.fn == "mul":
            a, b = store.value.args
            if isinstance(a, Load) and isinstance(b, Load):
                return store, a, b
        raise VerifyError("loops: a call of a library stores something else than a product of two loads")


@final
class Seq:
    """Statements in order."""

    __slots__ = ("body",)

    def __init__(self, body: Iterable[Stmt]) -> None:
        self.body: Final = tuple(body)


Stmt = Union[For, Store, If, Fail, Prefetch, ProductCall, Seq]


@final
class Kernel:
    """A native function. `reads` and `writes` are its parameters in Frame order; what is both is in `writes`.

    `local` buffers are registers or per-worker scratch. If the outermost statement is a parallel loop, its
    iterations are the kernel's chunks; otherwise the kernel is one chunk.
    """

    __slots__ = ("body", "local", "name", "reads", "writes")

    def __init__(
        self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer], body: Stmt,
        local: Iterable[Buffer] = ()
    ) -> None:
        self.name: Final = name
        self.reads: Final = tuple(reads)
        self.writes: Final = tuple(writes)
        self.body: Final = body
        self.local: Final = tuple(local)

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Buffers in the order of the Frame: reads, then writes."""
        return self.reads + self.writes

    @property
    def num_chunks(self) -> int:
        return self.body.var.extent if isinstance(self.body, For) and self.body.kind == "parallel" else 1

    @property
    def scratch_bytes(self) -> int:
        """Per-worker scratch memory, each buffer aligned to 64 bytes."""
        return sum(-(-b.nbytes // 64) * 64 for b in self.local if b.space == "scratch")

    def __str__(self) -> str:
        return kernel_to_text(self)


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """Yield a statement and all below it, outermost first."""
    stack: list[Stmt] = [stmt]
    while stack:
        s = stack.pop()
        yield s
        stack.extend(reversed(parts(s)))


def parts(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements right below one."""
    if isinstance(stmt, (For, ProductCall)):
        return (stmt.body,)
    if isinstance(stmt, Seq):
        return stmt.body
    if isinstance(stmt, If):
        return (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise)
    return ()


def guarded(condition: Expr, stmt: Stmt) -> Stmt:
    """Return a statement that runs where a condition holds, which may be known to.

    One that is known to fail stands in a loop without iterations.
    """
    return stmt if isinstance(condition, Const) else If(condition, stmt)


def map_parts(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Return a statement with other statements right below it; itself where all stay the same."""
    if isinstance(stmt, For):
        body = change(stmt.body)
        return stmt if body is stmt.body else For(stmt.var, body, stmt.kind)
    old = parts(stmt)
    new = [change(part) for part in old]
    if all(a is b for a, b in zip(old, new, strict=True)):
        return stmt
    if isinstance(stmt, ProductCall):
        return ProductCall(*stmt.loops, new[0])
    return If(stmt.condition, *new) if isinstance(stmt, If) else Seq(new)


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """Yield the root expressions of every statement."""
    for s in statements(stmt):
        if isinstance(s, Store):
            yield from s.indices
            yield s.value
        elif isinstance(s, Prefetch):
            yield from s.indices
        elif isinstance(s, (If, Fail)):
            yield s.condition


def stored(stmt: Stmt) -> list[Buffer]:
    """Return the buffers a statement writes, each once."""
    return list(dict.fromkeys(s.buffer for s in statements(stmt) if isinstance(s, Store)))


def loaded(stmt: Stmt) -> list[Buffer]:
    """Return the buffers a statement reads, each once."""
    return list(dict.fromkeys(e.buffer for e in walk(expressions(stmt)) if isinstance(e, Load)))


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace loop variables throughout a statement; parts that do not mention them stay the same objects."""
    roots = list(dict.fromkeys(expressions(stmt)))
    return _with_roots(stmt, dict(zip(roots, substitute(roots, values), strict=True)))


def _with_roots(stmt: Stmt, new: Mapping[Expr, Expr]) -> Stmt:
    """Replace the root expressions of a statement and of all below it."""
    if isinstance(stmt, Store):
        indices, value = [new[i] for i in stmt.indices], new[stmt.value]
        same = value is stmt.value and all(a is b for a, b in zip(indices, stmt.indices, strict=True))
        return stmt if same else Store(stmt.buffer, indices, value)
    if isinstance(stmt, If):
        otherwise = _with_roots(stmt.otherwise, new) if stmt.otherwise is not None else None
        return If(new[stmt.condition], _with_roots(stmt.then, new), otherwise)
    if isinstance(stmt, Fail):
        return Fail(new[stmt.condition], stmt.code)
    if isinstance(stmt, Prefetch):
        return Prefetch(stmt.buffer, [new[i] for i in stmt.indices], stmt.ahead)
    return map_parts(stmt, lambda part: _with_roots(part, new))


def store_groups(body: Sequence[Stmt]) -> list[list[Store] | Stmt]:
    """Group consecutive stores none of which reads what an earlier one of the group wrote.

    Everything else stays alone.

    Generated code computes all values of a group before it writes any: what a group reads may lie where it
    writes.
    """
    groups: list[list[Store] | Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            last = groups[-1] if groups else None
            if isinstance(last, list) and not {s.buffer for s in last} & set(loaded(stmt)):
                last.append(stmt)
            else:
                groups.append([stmt])
        else:
            groups.append(stmt)
    return groups


def stmt_to_text(stmt: Stmt, indent: str = "", names: Mapping[Var, str] | None = None) -> str:
    """Print a statement; `names` are those of the loop variables around it.

    What the expressions of a statement share is defined by `let` lines before it, so texts stay short. A loop
    variable with the name of one around it gets another name: equal texts mean equal kernels.
    """
    around = names or {}
    if isinstance(stmt, For):
        name = unlike(stmt.var.name, around.values())
        word = "for" if stmt.kind == "serial" else stmt.kind
        body = stmt_to_text(stmt.body, indent + "  ", {**around, stmt.var: name})
        return f"{indent}{word} {name} in {stmt.var.extent}:\n{body}"
    if isinstance(stmt, ProductCall):
        inside = dict(around)
        for var in stmt.loops:
            inside[var] = unlike(var.name, inside.values())
        head = ", ".join(f"{inside[var]} in {var.extent}" for var in stmt.loops)
        return f"{indent}gemm {head}:\n{stmt_to_text(stmt.body, indent + '  ', inside)}"
    if isinstance(stmt, Seq):
        return "\n".join(stmt_to_text(s, indent, around) for s in stmt.body) or f"{indent}pass"
    if isinstance(stmt, Store):
        lets, (*indices, value) = to_texts((*stmt.indices, stmt.value), around)
        return _with_lets(lets, f"{stmt.buffer.name}[{', '.join(indices)}] = {value}", indent)
    if isinstance(stmt, Prefetch):
        lets, indices = to_texts(stmt.indices, around)
        ahead = f" + {stmt.ahead}" if stmt.ahead else ""
        return _with_lets(lets, f"prefetch {stmt.buffer.name}[{', '.join(indices)}]{ahead}", indent)
    lets, (condition,) = to_texts((stmt.condition,), around)
    if isinstance(stmt, Fail):
        return _with_lets(lets, f"fail {stmt.code} if {condition}", indent)
    text = (
        _with_lets(lets, f"if {condition}:", indent) + "\n" + stmt_to_text(stmt.then, indent + "  ", around)
    )
    if stmt.otherwise is not None:
        text += f"\n{indent}else:\n{stmt_to_text(stmt.otherwise, indent + '  ', around)}"
    return text


def _with_lets(lets: Iterable[tuple[str, str]], text: str, indent: str) -> str:
    return "\n".join([f"{indent}let {name} = {value}" for name, value in lets] + [indent + text])


def kernel_to_text(kernel: Kernel) -> str:
    """Print a kernel: parameters, locals, loops. `parse.parse_kernel` reads it back."""
    head = [f"  in  {b}" for b in kernel.reads] + [f"  out {b}" for b in kernel.writes]
    head += [f"  {b.space} {b}" for b in kernel.local]
    return "\n".join([f"kernel {kernel.name}:", *head, stmt_to_text(kernel.body, "  ")])
