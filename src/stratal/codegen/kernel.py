"""Loop IR to LLVM text: one kernel, one function, explicit vectors, registers as SSA values, no IR passes.

Every expression is emitted once, in the outermost scope where its variables are bound and its loads are safe,
so loop invariants and common sub-expressions need no later pass. Loops run at least once, are tested at the
bottom, and count along the multiples of their variable that addresses are made of.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from stratal.base.errors import VerifyError
from stratal.base.target import PLAIN, Instructions
from stratal.base.vendor import NOT_TRANSPOSED, ROW_MAJOR, TRANSPOSED, symbol
from stratal.codegen.cold_paths import WEIGHTS
from stratal.codegen.placing import Scope
from stratal.codegen.scalar import mangled, vector_of
from stratal.codegen.streaming import LINE_BYTES, Streaming
from stratal.codegen.types import memory_type, register_type
from stratal.loops import index
from stratal.loops.expr import Buffer, Const, Load, Var
from stratal.loops.index import matrix
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import (
    Fail,
    For,
    If,
    Kernel,
    Prefetch,
    ProductCall,
    Seq,
    Stmt,
    Store,
    store_groups,
    stored,
)

FRAME: Final = "{ ptr, ptr, ptr, ptr, i64, ptr }"


class KernelEmitter(Streaming):
    """Emits one kernel; see `kernel_to_llvm`."""

    masks = True  # whether a store under a mask costs no more than a plain one

    # -- the function ----------------------------------------------------------------------------------------
    def emit(self, streams: frozenset[Buffer]) -> str:
        """Return the LLVM text of the kernel's module, without target lines."""
        self._prologue()
        self._open_streams(streams)
        body = self.kernel.body
        if isinstance(body, For) and body.kind == "parallel":
            self.bound[body.var] = ("%chunk", 0)
            body = body.body
        self._statement(body)
        self._end_runs()
        self._close_streams()
        lines = ["entry:", *self.scopes[0].lines, "  ret void"]
        head = f"define void @{self.kernel.name}(ptr %frame, i64 %chunk, i32 %worker) #0 {{"
        text = "\n".join((head, *lines, "}\n"))
        return "\n".join((text, *self.functions.values(), *sorted(self.scalars.declared))) + "\n"

    def _prologue(self) -> None:
        buffers = self._frame_field(0)
        for k, buffer in enumerate(self.kernel.parameters):
            slot = self._append(f"getelementptr ptr, ptr {buffers}, i64 {k}")
            self.pointers[buffer] = self._append(f"load ptr, ptr {slot}, !invariant.load !0")
        scratch = [b for b in self.kernel.local if b.space == "scratch"]
        if scratch:
            base, stride = self._frame_field(3), self._frame_field(4, "i64")
            worker = self._append("sext i32 %worker to i64")
            skipped = self._append(f"mul i64 {worker}, {stride}")
            mine = self._append(f"getelementptr i8, ptr {base}, i64 {skipped}")
            offset = 0
            for buffer in scratch:
                self.pointers[buffer] = self._append(f"getelementptr i8, ptr {mine}, i64 {offset}")
                offset += -(-buffer.nbytes // 64) * 64

    def _frame_field(self, k: int, ty: str = "ptr") -> str:
        slot = self._append(f"getelementptr {FRAME}, ptr %frame, i64 0, i32 {k}")
        return self._append(f"load {ty}, ptr {slot}, !invariant.load !0")

    # -- statements ------------------------------------------------------------------------------------------
    def _statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Seq):
            if stmt not in self.groups:
                self.groups[stmt] = store_groups(stmt.body)
            for group in self.groups[stmt]:
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
        elif isinstance(stmt, Prefetch):
            self._prefetch(stmt)
        elif isinstance(stmt, ProductCall):
            self._call(stmt)
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
        self._run_over(loop.var)
        self.bound[loop.var] = ("", 0)
        if self.lanes != loop.var.extent:
            bits = tuple(k < loop.var.extent for k in range(self.lanes))
            self.exec_mask = "<" + ", ".join(f"i1 {'true' if bit else 'false'}" for bit in bits) + ">"
            self.known_masks[self.exec_mask] = bits
        elif outer is not None:
            self.exec_mask = None
        self._statement(loop.body)
        self._run_over(None)
        self.exec_mask = outer

    def _serial(self, loop: For) -> None:
        parent = self.scopes[-1]
        inside = frozenset(stored(loop.body))
        head, exit_ = self._fresh("head")[1:], self._fresh("exit")[1:]
        variable, following = self._fresh("i"), self._fresh("n")
        carried = [key for key in self.registers if key[0] in inside]
        before = {key: self.registers[key] for key in carried}
        phis = {key: self._fresh("phi") for key in carried}
        self.registers.update(phis)
        scope = self._push(Scope(head, loop=loop.var))
        self.bound[loop.var] = (variable, len(self.scopes) - 1)
        self._statement(loop.body)
        after = {key: self.registers[key] for key in carried}
        latch = scope.label
        self._pop()
        p = parent.lines
        p += [f"  br label %{head}", f"{head}:"]
        counters = [(name, self._fresh("n"), step) for step, name in scope.multiples.items()]
        counters.append((variable, following, 1))
        for name, next_, _ in counters:
            p.append(f"  {name} = phi i64 [0, %{parent.label}], [{next_}, %{latch}]")
        for key in carried:
            ty = self.slot_types[key]
            p.append(f"  {phis[key]} = phi {ty} [{before[key]}, %{parent.label}], [{after[key]}, %{latch}]")
        p += scope.lines
        p += [f"  {next_} = add i64 {name}, {step}" for name, next_, step in counters]
        _, next_, step = next(c for c in counters if c[2] > 0)  # LLVM drops a variable nobody reads
        again = self._fresh()
        p.append(f"  {again} = icmp ult i64 {next_}, {loop.var.extent * step}")
        p += [f"  br i1 {again}, label %{head}, label %{exit_}", f"{exit_}:"]
        parent.label = exit_

    def _branch(self, stmt: If) -> None:
        known = self._known(stmt.condition)
        if known.unrolled:
            values = {v: index.as_expr(self.env[v]) for v in known.unrolled}
            stmt = If(substitute((stmt.condition,), values)[0], stmt.then, stmt.otherwise)
            known = self._known(stmt.condition)  # what is filled in may decide the part that lanes differ in
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
        before, ends = self.registers, []
        text = [f"  br i1 {condition}, label %{names[0]}, label %{names[1]}"]
        for label, arm in zip(names, arms, strict=False):
            self.registers = dict(before)
            scope = self._push(Scope(label, branch=True))
            if arm is not None:
                self._statement(arm)
            self._pop()
            text += [f"{label}:", *scope.lines, f"  br label %{names[2]}"]
            ends.append((scope.label, self.registers))
        parent.lines += [*text, f"{names[2]}:"]  # after whatever the arms hoisted
        parent.label = names[2]
        (one, then), (two, otherwise) = ends
        self.registers = dict(before)
        for key in before:
            if then[key] != otherwise[key]:
                self.registers[key] = self._fresh("phi")
                arms_of = f"[{then[key]}, %{one}], [{otherwise[key]}, %{two}]"
                parent.lines.append(f"  {self.registers[key]} = phi {self.slot_types[key]} {arms_of}")

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

    def _emit_at_current(self, instruction: str) -> str:
        self.target = self.scopes[-1]
        return self._append(instruction)

    def _fail(self, stmt: Fail) -> None:
        condition = self.value(stmt.condition, self.exec_mask)
        is_vector, code = self._known(stmt.condition).vector, str(stmt.code)
        if not stmt.code:
            code, condition = condition, self._not_zero(condition, is_vector)
        if is_vector:
            condition = self._and(self.exec_mask, condition) or condition
            code = code if stmt.code else self._one_of(code, condition)
            condition = self._any(condition)
        bad, good = self._fresh("bad")[1:], self._fresh("good")[1:]
        self.target = self.scopes[-1]
        self._line(f"  br i1 {condition}, label %{bad}, label %{good}")
        self._block(bad)
        self._line(f"  store i64 {code}, ptr {self._frame_field(5)}")
        self._close_streams()
        self._line("  ret void")
        self._block(good)

    def _not_zero(self, code: str, is_vector: bool) -> str:
        ty = vector_of("i64", self.lanes) if is_vector else "i64"
        return self._emit_at_current(f"icmp ne {ty} {code}, {'zeroinitializer' if is_vector else 0}")

    def _one_of(self, codes: str, mask: str) -> str:
        """Return one of the error codes of lanes that fail."""
        ty, bits = vector_of("i64", self.lanes), vector_of("i1", self.lanes)
        failed = self._emit_at_current(f"select {bits} {mask}, {ty} {codes}, {ty} zeroinitializer")
        return self.scalars.intrinsic(f"llvm.vector.reduce.umax.v{self.lanes}i64", "i64", [(ty, failed)])

    def _prefetch(self, stmt: Prefetch) -> None:
        """Prefetch each cache line of a vector, to the second cache what is far ahead.

        What lies beyond a mask or the buffer does no harm. What is written past the caches is not fetched.
        """
        if self._passes(stmt.buffer):
            return
        place = self._place(stmt.buffer, stmt.indices)
        place = place._replace(constant=place.constant + stmt.ahead)
        pointer = self._pointer(stmt.buffer, place, None)
        self.target = self.scopes[-1]
        extent = self.lane.extent if self.lane is not None else 1
        to_write, locality = int(stmt.buffer in self.kernel.writes), 2 if stmt.ahead else 3
        self.scalars.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for byte in range(0, extent * (place.stride or 0) * stmt.buffer.dtype.itemsize or 1, LINE_BYTES):
            line = self._append(f"getelementptr i8, ptr {pointer}, i64 {byte}")
            self._line(f"  call void @llvm.prefetch.p0(ptr {line}, i32 {to_write}, i32 {locality}, i32 1)")

    def _call(self, stmt: ProductCall) -> None:
        """Call the library on the matrices that begin where all three loops do."""
        store, a, b = stmt.parts()
        rows, columns, depth = stmt.loops
        ty, name = register_type(store.buffer.dtype), symbol(store.buffer.dtype)
        sizes = f"i64 {rows.extent}, i64 {columns.extent}, i64 {depth.extent}"
        left, left_way = self._matrix(a, rows, depth)
        right, right_way = self._matrix(b, depth, columns)
        out, _ = self._matrix(store.buffer[store.indices], rows, columns)
        self.target = self.scopes[-1]
        self.scalars.declared.add(
            f"declare void @{name}(i32, i32, i32, i64, i64, i64, {ty}, ptr, i64, ptr, i64, {ty}, ptr, i64)"
        )
        self._line(
            f"  call void @{name}(i32 {ROW_MAJOR}, i32 {left_way}, i32 {right_way}, {sizes}, "
            f"{ty} 1.0, {left}, {right}, {ty} 0.0, {out})"
        )
        self._forget()

    def _matrix(self, access: Load, rows: Var, columns: Var) -> tuple[str, int]:
        """Return the arguments that say where a matrix lies, and the one that says which way."""
        found = matrix(access, rows, columns)
        if found is None:
            raise VerifyError(f"kernel {self.kernel.name}: no matrix", got=str(access))
        first = substitute(access.indices, {rows: index.as_expr(0), columns: index.as_expr(0)})
        pointer = self._pointer(access.buffer, self._place(access.buffer, tuple(first)), None)
        return f"ptr {pointer}, i64 {found.lead}", TRANSPOSED if found.transposed else NOT_TRANSPOSED

    # -- stores ----------------------------------------------------------------------------------------------
    def _stores(self, group: Sequence[Store]) -> None:
        """Compute every value, then write: an output may share memory with an input read at its place."""
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
        self._written([s.buffer for s in group])

    def _write(self, store: Store, value: str) -> None:
        dtype = store.buffer.dtype
        place = self._place(store.buffer, store.indices)
        stride = place.stride
        if self.lane is not None and stride == 0:
            raise VerifyError(
                f"kernel {self.kernel.name}: every lane stores to one place", got=f"{store.buffer.name}"
            )
        memory = memory_type(dtype)
        if self._put(store.buffer, place, memory, value):
            return
        self._end_run(store.buffer)
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
            if not self._stream(store.buffer, pointer, ty, value):
                self._line(f"  store {ty} {value}, ptr {pointer}, align {align}")
            return
        running = self.known_masks.get(self.exec_mask or "", ())
        # One lane: LLVM 22 writes 4 bytes of a narrow one, it loses a truncation.
        if stride == 1 and running and (sum(running) == 1 or not self.masks):
            self._write_pieces(running, memory, pointer, value, align)
            return
        kind = "store" if stride == 1 else "scatter"
        at = "ptr" if stride == 1 else f"<{self.lanes} x ptr>"
        suffix = "p0" if stride == 1 else f"v{self.lanes}p0"
        name = f"llvm.masked.{kind}.{mangled(memory, self.lanes)}.{suffix}"
        mask = self.exec_mask or "splat (i1 true)"
        self.scalars.declared.add(f"declare void @{name}({ty}, {at}, {mask_ty})")
        self._line(f"  call void @{name}({ty} {value}, {at} align {align} {pointer}, {mask_ty} {mask})")

    def _write_pieces(
        self, running: Sequence[bool], memory: str, pointer: str, value: str, align: int
    ) -> None:
        """Write the running lanes, which are known, in plain stores of powers of two of them."""
        ty = vector_of(memory, self.lanes)
        for first, count in pieces(running):
            at = self._append(f"getelementptr {memory}, ptr {pointer}, i64 {first}")
            if count == 1:
                piece, part = memory, self._append(f"extractelement {ty} {value}, i64 {first}")
            else:
                piece = vector_of(memory, count)
                part = self.scalars.shuffle(ty, value, "poison", range(first, first + count))
            self._line(f"  store {piece} {part}, ptr {at}, align {align}")


def pieces(running: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where lanes run side by side, as the first and the number of them, a power of two."""
    found, first = [], 0
    for runs, lanes in itertools.groupby(running):
        end = first + len(list(lanes))
        while runs and first < end:
            count = 1 << ((end - first).bit_length() - 1)
            found.append((first, count))
            first += count
        first = end
    return found


def kernel_to_llvm(
    kernel: Kernel, attributes: str = "nounwind", instructions: Instructions = PLAIN,
    streams: frozenset[Buffer] = frozenset(), *, masks: bool = True
) -> str:
    """Return the LLVM text of a kernel with the kernel ABI.

    `attributes` are the target's function attributes, `instructions` those it has beyond the common ones,
    `streams` the results that are written past the caches. Without `masks` a store under a mask is slow:
    where the lanes are known they are written in pieces.
    """
    emitter = KernelEmitter(kernel, instructions)
    emitter.masks = masks
    text = emitter.emit(streams)
    del emitter.scalars  # which emits through it: all that it knows would wait for Python's cycle collector
    return f"{text}\nattributes #0 = {{ {attributes} }}\n!0 = !{{}}\n!1 = !{{i32 1}}\n{WEIGHTS}\n"
