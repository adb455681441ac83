"""Loop IR to LLVM text: one kernel, one function, explicit vectors, registers as SSA values, no IR passes needed.

Every expression is emitted once, in the outermost scope where its variables are bound and its loads are safe, so loop
invariants and common sub-expressions need no later pass. Loops run at least once and are tested at the bottom.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import DType, bool_, int32, int64
from stratal.base.errors import VerifyError
from stratal.codegen.scalar import ScalarEmitter, mangled, splat, vector_of
from stratal.codegen.types import immediate, memory_type, register_type
from stratal.loops import index
from stratal.loops.expr import COMPARISONS, Buffer, Call, Const, Expr, Guard, Lanes, Load, Var, substitute
from stratal.loops.stmt import Fail, For, If, Kernel, Seq, Stmt, Store, loaded, store_groups, stored

FRAME: Final = "{ ptr, ptr, ptr, ptr, i64, ptr }"
_ALGEBRA: Final = frozenset(("add", "sub", "mul", "floordiv", "mod", "min", "max"))


class _Info(NamedTuple):
    """What placing an expression needs to know."""

    depth: int  # index of the outermost scope it can be emitted in
    vector: bool  # differs between lanes
    loads: bool  # reads memory, so a mask matters
    mutable: bool  # reads something this kernel writes: valid within one statement only
    unrolled: tuple[Var, ...]  # variables of unrolled loops it mentions: its value depends on theirs


class _Place(NamedTuple):
    """Where an access lies: base + constant + sum of coefficient * atom, plus a part that differs between lanes."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int
    stride: int | None  # elements per lane; None where it is not a constant
    varying: Expr  # the part that differs between lanes


class _Scope:
    """Text of one loop body or branch under construction."""

    def __init__(self, label: str, branch: bool = False) -> None:
        self.lines: list[str] = []
        self.label = label  # of the block that is being appended to
        self.branch = branch
        self.memo: dict[object, str] = {}


def lane_count(extent: int) -> int:
    """Return the vector width that holds `extent` lanes: the next power of two."""
    return 1 << max(extent - 1, 0).bit_length()


class KernelEmitter:
    """Emits one kernel; see `kernel_to_llvm`."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = itertools.count()
        self.scalars = ScalarEmitter(self._append)
        written = set(stored(kernel.body))
        self.mutable = frozenset(b for b in loaded(kernel.body) if b in written)
        self.scopes = [_Scope("entry")]
        self.target = self.scopes[0]  # where instructions are appended right now
        self.bound: dict[Var, tuple[str, int]] = {}
        self.registers: dict[tuple[Buffer, tuple[int, ...]], str] = {}
        self.slot_types: dict[tuple[Buffer, tuple[int, ...]], str] = {}
        self.env: dict[Var, int] = {}  # iterations of the unrolled loops around
        self.orders: dict[Expr, int] = {}
        self.offsets: dict[object, Expr] = {}
        self.places: dict[object, _Place] = {}
        self.lane: Var | None = None
        self.exec_mask: str | None = None  # lanes that run, where not all do
        self.some_lane = False  # whether at least one lane is known to run
        self.mask_depth: dict[str, int] = {}
        self.known_masks: dict[str, tuple[bool, ...]] = {}  # masks whose lanes are known now
        self.statement_memo: dict[object, str] = {}
        self.info: dict[Expr, _Info] = {}

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

    @property
    def lanes(self) -> int:
        return lane_count(self.lane.extent) if self.lane is not None else 0

    # -- the function ----------------------------------------------------------------------------------------
    def emit(self) -> str:
        """Return the LLVM text of the kernel's module, without target lines."""
        self._prologue()
        body = self.kernel.body
        if isinstance(body, For) and body.kind == "parallel":
            self.bound[body.var] = ("%chunk", 0)
            body = body.body
        self._statement(body)
        lines = ["entry:", *self.scopes[0].lines, "  ret void"]
        text = f"define void @{self.kernel.name}(ptr %frame, i64 %chunk, i32 %worker) #0 {{\n" + "\n".join(lines) + "\n}\n"
        return text + "\n" + "\n".join(sorted(self.scalars.declared)) + "\n"

    def _prologue(self) -> None:
        self.pointers: dict[Buffer, str] = {}
        buffers = self._frame_field(0)
        for k, buffer in enumerate(self.kernel.parameters):
            slot = self._append(f"getelementptr ptr, ptr {buffers}, i64 {k}")
            self.pointers[buffer] = self._append(f"load ptr, ptr {slot}, !invariant.load !0")
        scratch = [b for b in self.kernel.local if b.space == "scratch"]
        if scratch:
            base, stride = self._frame_field(3), self._frame_field(4, "i64")
            worker = self._append("sext i32 %worker to i64")
            mine = self._append(f"getelementptr i8, ptr {base}, i64 {self._append(f'mul i64 {worker}, {stride}')}")
            offset = 0
            for buffer in scratch:
                self.pointers[buffer] = self._append(f"getelementptr i8, ptr {mine}, i64 {offset}")
                offset += -(-buffer.size * buffer.dtype.itemsize // 64) * 64

    def _frame_field(self, k: int, ty: str = "ptr") -> str:
        slot = self._append(f"getelementptr {FRAME}, ptr %frame, i64 0, i32 {k}")
        return self._append(f"load {ty}, ptr {slot}, !invariant.load !0")

    # -- statements ------------------------------------------------------------------------------------------
    def _statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Seq):
            for group in store_groups(stmt.body):
                if isinstance(group, list):
                    self._stores(group)
                else:
                    self._statement(group)
        elif isinstance(stmt, Store):
            self._stores([stmt])
        elif isinstance(stmt, For):
            self._loop(stmt)
        elif isinstance(stmt, If):
            self._branch(stmt)
        else:
            self._fail(stmt)

    def _loop(self, loop: For) -> None:
        extent = loop.var.extent
        if loop.kind == "vector" and extent > 1:
            self._vector(loop)
        elif loop.kind == "unroll" or extent <= 1:
            for value in range(extent):
                self.env[loop.var] = value
                self._statement(loop.body)
            self.env.pop(loop.var, None)
        else:  # a parallel loop that is not outermost runs serially
            self._serial(loop)

    def _vector(self, loop: For) -> None:
        if self.lane is not None:
            raise VerifyError("codegen: a vector loop inside a vector loop", got=str(loop.var))
        outer = self.exec_mask
        self.lane, lanes = loop.var, lane_count(loop.var.extent)
        self.bound[loop.var] = ("", 0)
        if lanes != loop.var.extent:
            bits = tuple(k < loop.var.extent for k in range(lanes))
            self.exec_mask = "<" + ", ".join(f"i1 {'true' if bit else 'false'}" for bit in bits) + ">"
            self.known_masks[self.exec_mask] = bits
        elif outer is not None:
            self.exec_mask = None
        self._statement(loop.body)
        self.lane, self.exec_mask = None, outer

    def _serial(self, loop: For) -> None:
        parent = self.scopes[-1]
        inside = frozenset(stored(loop.body))
        head, exit_ = self._fresh("head")[1:], self._fresh("exit")[1:]
        variable, following = self._fresh("i"), self._fresh("n")
        carried = [key for key in self.registers if key[0] in inside]
        before = {key: self.registers[key] for key in carried}
        phis = {key: self._fresh("phi") for key in carried}
        self.registers.update(phis)
        scope = self._push(_Scope(head))
        self.bound[loop.var] = (variable, len(self.scopes) - 1)
        self._statement(loop.body)
        after = {key: self.registers[key] for key in carried}
        latch = scope.label
        self._pop()
        p = parent.lines
        p += [f"  br label %{head}", f"{head}:"]
        p.append(f"  {variable} = phi i64 [0, %{parent.label}], [{following}, %{latch}]")
        for key in carried:
            ty = self.slot_types[key]
            p.append(f"  {phis[key]} = phi {ty} [{before[key]}, %{parent.label}], [{after[key]}, %{latch}]")
        p += scope.lines
        p.append(f"  {following} = add nuw nsw i64 {variable}, 1")
        again = self._fresh()
        p.append(f"  {again} = icmp ult i64 {following}, {loop.var.extent}")
        p += [f"  br i1 {again}, label %{head}, label %{exit_}", f"{exit_}:"]
        parent.label = exit_

    def _push(self, scope: _Scope) -> _Scope:
        self.scopes.append(scope)
        self._enter()
        return scope

    def _pop(self) -> None:
        self.scopes.pop()
        self._enter()

    def _enter(self) -> None:
        self.target = self.scopes[-1]
        self.statement_memo.clear()
        self.info.clear()  # depths speak of the scopes there were

    def _branch(self, stmt: If) -> None:
        known = self._known(stmt.condition)
        if known.unrolled:
            values = {v: index.as_expr(self.env[v]) for v in known.unrolled}
            stmt = If(substitute((stmt.condition,), values)[0], stmt.then, stmt.otherwise)
        if isinstance(stmt.condition, Const):
            chosen = stmt.then if stmt.condition.value else stmt.otherwise
            if chosen is not None:
                self._statement(chosen)
            return
        if known.vector:
            self._masked(stmt)
            return
        condition = self.value(stmt.condition, None)
        names = [self._fresh("b")[1:] for _ in range(3)]
        parent = self.scopes[-1]
        arms = (stmt.then, stmt.otherwise)
        registers = dict(self.registers)
        text = [f"  br i1 {condition}, label %{names[0]}, label %{names[1]}"]
        for label, arm in zip(names, arms, strict=False):
            scope = self._push(_Scope(label, branch=True))
            if arm is not None:
                self._statement(arm)
            self._check_registers(registers)
            self._pop()
            text += [f"{label}:", *scope.lines, f"  br label %{names[2]}"]
            self.registers = dict(registers)
        parent.lines += [*text, f"{names[2]}:"]  # after whatever the arms hoisted
        parent.label = names[2]

    def _check_registers(self, before: dict[tuple[Buffer, tuple[int, ...]], str]) -> None:
        if any(self.registers[key] != value for key, value in before.items()):
            raise VerifyError(f"kernel {self.kernel.name}: a register that lives across a branch is changed inside it")

    def _masked(self, stmt: If) -> None:
        outer, sure = self.exec_mask, self.some_lane
        condition = self.value(stmt.condition, outer)
        self.mask_depth.setdefault(condition, self._under(stmt.condition, outer)[0].depth)
        per_lane = self._per_lane(stmt.condition)
        first = per_lane[0]
        if all(isinstance(c, Const) for c in per_lane):
            self.known_masks[condition] = tuple(bool(c.value) for c in per_lane if isinstance(c, Const))
        self.exec_mask = self._and(outer, condition)
        self.some_lane = isinstance(first, Const) and bool(first.value) and (outer is None or sure)
        self._statement(stmt.then)
        if stmt.otherwise is not None:
            ones = self._emit_at_current(f"xor {vector_of('i1', self.lanes)} {condition}, splat (i1 true)")
            self.mask_depth[ones] = len(self.scopes) - 1
            self.exec_mask, self.some_lane = self._and(outer, ones), False
            self._statement(stmt.otherwise)
        self.exec_mask, self.some_lane = outer, sure

    def _per_lane(self, condition: Expr) -> list[Expr]:
        """Return a condition for each lane."""
        assert self.lane is not None
        return [substitute((condition,), {self.lane: index.as_expr(k)})[0] for k in range(self.lanes)]

    def _emit_at_current(self, instruction: str) -> str:
        self.target = self.scopes[-1]
        return self._append(instruction)

    def _fail(self, stmt: Fail) -> None:
        condition = self.value(stmt.condition, self.exec_mask)
        if self._known(stmt.condition).vector:
            condition = self._any(self._and(self.exec_mask, condition) or condition)
        bad, good = self._fresh("bad")[1:], self._fresh("good")[1:]
        self.target = self.scopes[-1]
        self._line(f"  br i1 {condition}, label %{bad}, label %{good}")
        self._block(bad)
        self._line(f"  store i64 {stmt.code}, ptr {self._frame_field(5)}")
        self._line("  ret void")
        self._block(good)

    def _any(self, mask: str) -> str:
        return self.scalars.intrinsic(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", [(vector_of("i1", self.lanes), mask)])

    # -- stores ----------------------------------------------------------------------------------------------
    def _stores(self, group: Sequence[Store]) -> None:
        """Compute every value, then write: an output may share memory with an input read at the same place."""
        ready = []
        for store in group:
            value = self.value(store.value, self.exec_mask)
            if self.lane is not None:
                value = self._wide(store.value, value, self.exec_mask)
            ready.append((store, value))
        for store, value in ready:
            if store.buffer.space == "register":
                key = (store.buffer, self._slot(store.buffer, store.indices))
                self.registers[key] = value
                self.slot_types[key] = vector_of(register_type(store.buffer.dtype), self.lanes)
            else:
                self._write(store, value)
        if any(s.buffer in self.mutable for s in group):
            self.statement_memo.clear()

    def _write(self, store: Store, value: str) -> None:
        dtype = store.buffer.dtype
        place = self._place(store.buffer, store.indices)
        stride = place.stride
        if self.lane is not None and stride == 0:
            raise VerifyError(f"kernel {self.kernel.name}: every lane stores to one place", got=f"{store.buffer.name}")
        memory = memory_type(dtype)
        ty = vector_of(memory, self.lanes)
        mask_ty = vector_of("i1", self.lanes)
        if self.lane is None or stride == 1:
            pointer = self._pointer(store.buffer, place, self.exec_mask)
        else:
            pointer = self._pointers(store.buffer, place, self.exec_mask)
        self.target = self.scopes[-1]
        if dtype.is_bool:
            value = self._append(f"zext {mask_ty} {value} to {ty}")
        align = dtype.itemsize
        if self.lane is None or (stride == 1 and self.exec_mask is None):
            self._line(f"  store {ty} {value}, ptr {pointer}, align {align}")
            return
        running = self.known_masks.get(self.exec_mask or "", ())
        if stride == 1 and sum(running) == 1:  # LLVM 22 writes 4 bytes of a narrow one: it loses a truncation
            k = running.index(True)
            lane = self._append(f"extractelement {ty} {value}, i64 {k}")
            pointer = self._append(f"getelementptr {memory}, ptr {pointer}, i64 {k}")
            self._line(f"  store {memory} {lane}, ptr {pointer}, align {align}")
            return
        kind = "store" if stride == 1 else "scatter"
        at = "ptr" if stride == 1 else f"<{self.lanes} x ptr>"
        suffix = "p0" if stride == 1 else f"v{self.lanes}p0"
        name = f"llvm.masked.{kind}.{mangled(memory, self.lanes)}.{suffix}"
        mask = self.exec_mask or "splat (i1 true)"
        self.scalars.declared.add(f"declare void @{name}({ty}, {at}, {mask_ty})")
        self._line(f"  call void @{name}({ty} {value}, {at} align {align} {pointer}, {mask_ty} {mask})")

    def _slot(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[int, ...]:
        """Return which register an access names: indices are constants, one of them plus the lane."""
        slot = []
        for i in indices:
            terms, constant = self._folded(i)
            if terms and terms != {self.lane: 1}:
                raise VerifyError(
                    f"kernel {self.kernel.name}: a register is indexed by something that is not unrolled",
                    got=f"{buffer.name}[{', '.join(map(str, indices))}]",
                )
            slot.append(constant)
        return tuple(slot)

    # -- what is known of an expression ----------------------------------------------------------------------
    def _known(self, expr: Expr) -> _Info:
        found = self.info.get(expr)
        if found is not None:
            return found
        stack = [expr]
        while stack:
            e = stack[-1]
            if e in self.info:
                stack.pop()
                continue
            missing = [c for c in _inputs(e) if c not in self.info]
            if missing:
                stack.extend(missing)
                continue
            self.info[e] = self._derive(e, [self.info[c] for c in _inputs(e)])
            stack.pop()
        return self.info[expr]

    def _derive(self, e: Expr, parts: Sequence[_Info]) -> _Info:
        depth = max((p.depth for p in parts), default=0)
        vector = any(p.vector for p in parts)
        loads = any(p.loads for p in parts)
        mutable = any(p.mutable for p in parts)
        unrolled = tuple(dict.fromkeys(v for p in parts for v in p.unrolled))
        if isinstance(e, Var):
            if e is self.lane:
                return _Info(0, True, False, False, ())
            if e in self.env:
                return _Info(0, False, False, False, (e,))
            if e not in self.bound:
                raise VerifyError(f"kernel {self.kernel.name}: variable {e} is used outside its loop")
            return _Info(self.bound[e][1], False, False, False, ())
        if isinstance(e, Load):
            if e.buffer in self.mutable:
                return _Info(len(self.scopes) - 1, vector, True, True, unrolled)
            last_branch = max((k for k, s in enumerate(self.scopes) if s.branch), default=0)
            return _Info(max(depth, last_branch), vector, True, mutable, unrolled)
        if isinstance(e, Guard) and self._known(e.value).loads:  # its mask may be joined with others right here
            return _Info(len(self.scopes) - 1, vector, True, mutable, unrolled)
        if isinstance(e, Lanes):
            return _Info(len(self.scopes) - 1, False, True, True, tuple(self.env))
        return _Info(depth, vector, loads, mutable, unrolled)

    def _under(self, e: Expr, mask: str | None) -> tuple[_Info, str | None]:
        """Return what is known of an expression under a mask, and the mask if it matters."""
        info = self._known(e)
        if mask is None or not info.loads:
            return info, None
        if not info.vector and mask == self.exec_mask and self.some_lane:
            return info, None
        return info._replace(depth=max(info.depth, self.mask_depth.get(mask, 0))), mask

    def _home(self, info: _Info) -> tuple[_Scope, dict[object, str]]:
        return self._at(info.depth, info.mutable)

    def _at(self, depth: int, mutable: bool) -> tuple[_Scope, dict[object, str]]:
        if mutable:
            return self.scopes[-1], self.statement_memo
        scope = self.scopes[depth]
        return scope, scope.memo

    # -- values ----------------------------------------------------------------------------------------------
    def value(self, expr: Expr, mask: str | None) -> str:
        """Return the SSA name (or immediate) of an expression; loads in it happen only where `mask` holds."""
        stack = [expr]
        while stack:
            e = stack[-1]
            info, under = self._under(e, mask)
            memo = self._home(info)[1]
            key = self._key(e, info, under)
            if key in memo:
                stack.pop()
                continue
            needed = [] if isinstance(e, (Guard, Load, Lanes)) else [c for c in _inputs(e) if not self._has(c, mask)]
            if needed:
                stack.extend(needed)
                continue
            result = self._one(e, info, mask)
            self._home(info)[1][key] = result
            stack.pop()
        return self._get(expr, mask)

    def _has(self, e: Expr, mask: str | None) -> bool:
        info, under = self._under(e, mask)
        return self._key(e, info, under) in self._home(info)[1]

    def _get(self, e: Expr, mask: str | None) -> str:
        info, under = self._under(e, mask)
        return self._home(info)[1][self._key(e, info, under)]

    def _key(self, e: Expr, info: _Info, mask: str | None) -> object:
        """Return what the value of an expression depends on, besides the scope it lives in."""
        if info.unrolled:
            return (e, mask if info.loads else None, *[self.env[v] for v in info.unrolled])
        return (e, mask) if info.loads else e

    def _one(self, e: Expr, info: _Info, mask: str | None) -> str:
        if isinstance(e, Const):
            return immediate(e.value, e.dtype)
        if isinstance(e, Var):
            if e in self.env:
                return str(self.env[e])
            return self._lane_numbers(e) if e is self.lane else self.bound[e][0]
        if isinstance(e, Load):
            return self._load(e, info, self._under(e, mask)[1])
        if isinstance(e, Guard):
            return self._guard(e, info, mask)
        if isinstance(e, Lanes):
            return self._across(e)
        args = [self._operand(a, info.vector, mask, self._form(e, a)) for a in e.args]
        self.target = self._home(info)[0]
        lanes = self.lanes if info.vector else 0
        value_arg = e.args[1] if e.fn == "select" else e.args[0]
        dtype = self._form(e, value_arg)
        if e.fn == "cast" and dtype is int32 and e.dtype is int32:
            return args[0]
        have = dtype if e.dtype is int64 and e.fn in _ALGEBRA else e.dtype
        value = self.scalars.call(e.fn, args, dtype, have, lanes)
        return self.scalars.cast(value, have, self._narrow(e), lanes) if info.vector else value

    def _lane_numbers(self, var: Var) -> str:
        return "<" + ", ".join(f"i32 {k}" for k in range(lane_count(var.extent))) + ">"

    def _narrow(self, e: Expr) -> DType:
        """Return int32 for vector index arithmetic whose bounds allow it: half the registers, cheaper gathers."""
        if e.dtype is not int64:
            return e.dtype
        low, high = index.bounds(e)
        algebra = isinstance(e, (Var, Const)) or (isinstance(e, Call) and e.fn in _ALGEBRA)
        return int32 if algebra and -(1 << 31) <= low and high < 1 << 31 else int64

    def _form(self, parent: Call, child: Expr) -> DType:
        """Return the dtype in which `parent` takes `child`: int64 indices may be int32 in vectors."""
        if child.dtype is not int64 or not self._known(parent).vector:
            return child.dtype
        if parent.fn == "cast":
            return self._narrow(child)
        if parent.fn not in _ALGEBRA and parent.fn not in COMPARISONS:
            return int64
        operands = parent.args
        forms = [self._narrow(a) for a in operands]
        if parent.dtype is int64:
            forms.append(self._narrow(parent))
        return int32 if all(f is int32 for f in forms) else int64

    def _operand(self, e: Expr, vector: bool, mask: str | None, form: DType) -> str:
        """Return an emitted operand in the shape and integer width its user takes."""
        value = self._get(e, mask)
        info = self._under(e, mask)[0]
        if not vector:
            return value
        if isinstance(e, Const) or e in self.env:
            number = e.value if isinstance(e, Const) else self.env[e]  # type: ignore[index]
            return splat(immediate(number, form), register_type(form), self.lanes)
        if not info.vector:
            value = self._broadcast(e, value, mask)
            have = e.dtype
        else:
            have = self._narrow(e)
        if have is not form:
            scope, memo = self._home(info)
            key = ("form", value, form.name)
            if key not in memo:
                self.target = scope
                memo[key] = self.scalars.cast(value, have, form, self.lanes)
            value = memo[key]
        return value

    def _broadcast(self, e: Expr, value: str, mask: str | None) -> str:
        """Return a scalar repeated over the lanes, next to where the scalar was made."""
        scalar = register_type(e.dtype)
        if isinstance(e, Const):
            return splat(immediate(e.value, e.dtype), scalar, self.lanes)
        scope, memo = self._home(self._under(e, mask)[0])
        key = ("splat", value, self.lanes)
        if key not in memo:
            self.target = scope
            ty = vector_of(scalar, self.lanes)
            first = self._append(f"insertelement {ty} poison, {scalar} {value}, i64 0")
            memo[key] = self._append(f"shufflevector {ty} {first}, {ty} poison, <{self.lanes} x i32> zeroinitializer")
        return memo[key]

    # -- loads -----------------------------------------------------------------------------------------------
    def _folded(self, expr: Expr) -> tuple[dict[Expr, int], int]:
        """Return the linear form of an index with the iterations of unrolled loops filled in."""
        terms, constant = index.linear(expr)
        if not any(self._known(a).unrolled for a in terms):
            return terms, constant
        values = {v: index.as_expr(k) for v, k in self.env.items()}
        kept: dict[Expr, int] = {}
        for atom, c in terms.items():
            if atom in self.env:
                constant += c * self.env[atom]  # type: ignore[index]
            elif self._known(atom).unrolled:
                more, extra = index.linear(substitute((atom,), values)[0])
                constant += c * extra
                for a, k in more.items():
                    kept[a] = kept.get(a, 0) + c * k
            else:
                kept[atom] = kept.get(atom, 0) + c
        return {a: c for a, c in kept.items() if c}, constant

    def _place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> _Place:
        """Return where an access lies, with unrolled iterations filled in."""
        key: object = (buffer, indices, self.lane)
        offset = self.offsets.get(key)
        if offset is None:
            offset = index.as_expr(0)
            for i, s in zip(indices, buffer.strides, strict=True):
                offset = index.add(offset, index.mul(i, s))
            self.offsets[key] = offset
        unrolled = self._known(offset).unrolled
        key = (key, *[self.env[v] for v in unrolled])
        found = self.places.get(key)
        if found is None:
            terms, constant = self._folded(offset)
            varying = {a: c for a, c in terms.items() if self._known(a).vector}
            uniform = tuple((a, c) for a, c in terms.items() if a not in varying)
            stride = varying.get(self.lane, 0) if set(varying) <= {self.lane} else None  # type: ignore[arg-type]
            found = _Place(uniform, constant, stride, index.from_linear(varying, 0))
            self.places[key] = found
        return found

    def _load(self, e: Load, info: _Info, mask: str | None) -> str:
        if e.buffer.space == "register":
            key = (e.buffer, self._slot(e.buffer, e.indices))
            if key not in self.registers:
                raise VerifyError(f"kernel {self.kernel.name}: a register is read before it is written", got=str(e))
            return self.registers[key]
        place = self._place(e.buffer, e.indices)
        memory = memory_type(e.dtype)
        if not info.vector:
            pointer = self._pointer(e.buffer, place, mask)
            self.target = self._home(info)[0]
            if mask is not None:
                pointer = self._safe(pointer, self.pointers[e.buffer], mask)
            value = self._append(f"load {memory}, ptr {pointer}, align {e.dtype.itemsize}")
            return self._append(f"icmp ne i8 {value}, 0") if e.dtype.is_bool else value
        assert self.lane is not None
        ty = vector_of(memory, self.lanes)
        if place.stride == 1:
            pointer = self._pointer(e.buffer, place, mask)
            self.target = self._home(info)[0]
            if mask is None:
                value = self._append(f"load {ty}, ptr {pointer}, align {e.dtype.itemsize}")
            else:
                value = self._masked_load("load", memory, f"ptr align {e.dtype.itemsize} {pointer}", mask)
        else:
            pointers = self._pointers(e.buffer, place, mask)
            self.target = self._home(info)[0]
            where = f"<{self.lanes} x ptr> align {e.dtype.itemsize} {pointers}"
            value = self._masked_load("gather", memory, where, mask or "splat (i1 true)")
        return self._append(f"icmp ne {ty} {value}, zeroinitializer") if e.dtype.is_bool else value

    def _masked_load(self, kind: str, memory: str, where: str, mask: str) -> str:
        ty, mask_ty = vector_of(memory, self.lanes), vector_of("i1", self.lanes)
        at = "ptr" if kind == "load" else f"<{self.lanes} x ptr>"
        name = f"llvm.masked.{kind}.{mangled(memory, self.lanes)}.{'p0' if kind == 'load' else f'v{self.lanes}p0'}"
        self.scalars.declared.add(f"declare {ty} @{name}({at}, {mask_ty}, {ty})")
        return self._append(f"call {ty} @{name}({where}, {mask_ty} {mask}, {ty} zeroinitializer)")

    def _safe(self, pointer: str, base: str, mask: str) -> str:
        """Return a pointer that may be read in any case: the buffer's start where the mask does not hold."""
        if self.lane is not None:
            mask = self._any(mask)
        return self._append(f"select i1 {mask}, ptr {pointer}, ptr {base}")

    def _pointer(self, buffer: Buffer, place: _Place, mask: str | None) -> str:
        """Return the address of an element (of lane 0), built from the outermost scope inwards."""
        ordered = sorted(place.terms, key=lambda t: (self._known(t[0]).depth, self._order(t[0])))
        memory = memory_type(buffer.dtype)
        pointer = self.pointers[buffer]
        done: tuple[object, ...] = ("pointer", buffer)
        depth, loads, mutable = 0, False, False
        for atom, c in ordered:
            info = self._under(atom, mask)[0]
            depth, loads, mutable = max(depth, info.depth), loads or info.loads, mutable or info.mutable
            done = (*done, atom, c, mask if loads else None)
            scope, memo = self._at(depth, mutable)
            if done not in memo:
                step = self._scaled(atom, c, mask)
                self.target = scope
                memo[done] = self._append(f"getelementptr {memory}, ptr {pointer}, i64 {step}")
            pointer = memo[done]
        if place.constant:
            scope, memo = self._at(depth, mutable)
            key = (*done, place.constant)
            if key not in memo:
                self.target = scope
                memo[key] = self._append(f"getelementptr {memory}, ptr {pointer}, i64 {place.constant}")
            pointer = memo[key]
        return pointer

    def _order(self, atom: Expr) -> int:
        """Return a number that keeps address terms in one order, first seen first."""
        return self.orders.setdefault(atom, len(self.orders))

    def _scaled(self, atom: Expr, c: int, mask: str | None) -> str:
        """Return a scalar index times a constant."""
        value = self.value(atom, mask)
        if c == 1:
            return value
        scope, memo = self._home(self._under(atom, mask)[0])
        key = ("scaled", value, c)
        if key not in memo:
            self.target = scope
            memo[key] = self._append(f"mul i64 {value}, {c}")
        return memo[key]

    def _pointers(self, buffer: Buffer, place: _Place, mask: str | None) -> str:
        """Return a vector of addresses, one per lane: a scalar base plus the part that differs between lanes."""
        base = self._pointer(buffer, place, mask)
        value = self.value(place.varying, mask)
        form = register_type(self._narrow(place.varying))
        infos = [self._under(a, mask)[0] for a in (place.varying, *(t for t, _ in place.terms))]
        self.target = self._at(max(i.depth for i in infos), any(i.mutable for i in infos))[0]
        return self._append(f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, <{self.lanes} x {form}> {value}")

    # -- guards, lanes ---------------------------------------------------------------------------------------
    def _guard(self, e: Guard, info: _Info, mask: str | None) -> str:
        condition = self.value(e.condition, mask)
        condition_info = self._under(e.condition, mask)[0]
        inner = condition
        if self.lane is not None and not condition_info.vector and self._known(e.value).loads:
            inner = self._broadcast(e.condition, condition, mask)
        self.mask_depth[inner] = max(self.mask_depth.get(inner, 0), condition_info.depth)
        value = self.value(e.value, self._and(mask, inner) if self._known(e.value).loads else mask)
        otherwise = self.value(e.otherwise, mask)
        if info.vector:
            value = self._wide(e.value, value, self._and(mask, inner) if self._known(e.value).loads else mask)
            otherwise = self._wide(e.otherwise, otherwise, mask)
            if not condition_info.vector:
                condition = self._broadcast(e.condition, condition, mask)
        self.target = self._home(info)[0]
        lanes = self.lanes if info.vector else 0
        ty = vector_of(register_type(e.dtype), lanes)
        return self._append(f"select {vector_of('i1', lanes)} {condition}, {ty} {value}, {ty} {otherwise}")

    def _wide(self, e: Expr, value: str, mask: str | None) -> str:
        if not self._known(e).vector:
            return self._broadcast(e, value, mask)
        have = self._narrow(e)
        return value if have is e.dtype else self.scalars.cast(value, have, e.dtype, self.lanes)

    def _and(self, a: str | None, b: str) -> str:
        if a is None or a == b:
            return b
        key = ("and", a, b)
        memo = self.scopes[-1].memo
        if key not in memo:
            self.target = self.scopes[-1]
            memo[key] = self._append(f"and {vector_of('i1', self.lanes)} {a}, {b}")
            self.mask_depth[memo[key]] = len(self.scopes) - 1
            if a in self.known_masks and b in self.known_masks:
                both = zip(self.known_masks[a], self.known_masks[b], strict=True)
                self.known_masks[memo[key]] = tuple(x and y for x, y in both)
        return memo[key]

    def _across(self, e: Lanes) -> str:
        """Reduce a vector over its lanes by halves."""
        outer, mask = self.lane, self.exec_mask
        self.lane, self.exec_mask = e.var, None
        self.bound[e.var] = ("", 0)
        value = self.value(e.value, None)
        lanes, scalar = self.lanes, register_type(e.dtype)
        self.target = self.scopes[-1]
        while lanes > 1:
            half = lanes // 2
            ty = vector_of(scalar, lanes)
            parts = [
                self._append(f"shufflevector {ty} {value}, {ty} poison, <{half} x i32> <{_numbers(s, half)}>")
                for s in (0, half)
            ]
            value = self.scalars.call(e.fn, parts, e.dtype, e.dtype, half)
            lanes = half
        result = self._append(f"extractelement {vector_of(scalar, 1)} {value}, i64 0")
        self.lane, self.exec_mask = outer, mask
        return result


def _numbers(start: int, count: int) -> str:
    return ", ".join(f"i32 {start + k}" for k in range(count))


def _inputs(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Load):
        return e.indices
    if isinstance(e, Call):
        return e.args
    if isinstance(e, Guard):
        return (e.condition, e.value, e.otherwise)
    return ()


def kernel_to_llvm(kernel: Kernel, attributes: str = "nounwind") -> str:
    """Return the LLVM text of a kernel with the kernel ABI; `attributes` are the target's function attributes."""
    text = KernelEmitter(kernel).emit()
    return f"{text}\nattributes #0 = {{ {attributes} }}\n!0 = !{{}}\n"
