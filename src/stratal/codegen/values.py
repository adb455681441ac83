"""Expressions to instructions: each once, on scalars or on vectors, under the masks of guards and tails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratal.base.dtypes import DType, int32, int64
from stratal.base.errors import VerifyError
from stratal.codegen.cold_paths import ColdPaths
from stratal.codegen.placing import NEVER, Form, Info, Place, lane_count, strays
from stratal.codegen.scalar import mangled, splat, vector_of
from stratal.codegen.types import immediate, memory_type, register_type
from stratal.loops import index
from stratal.loops.expr import COMPARISONS, Buffer, Call, Const, Expr, Guard, Lanes, Load, Var
from stratal.loops.math.rare import RARE
from stratal.loops.rebuild import substitute

_ALGEBRA: Final = frozenset(("add", "sub", "mul", "floordiv", "mod", "min", "max"))


class Values(ColdPaths):
    """Emits values, addresses and loads."""

    # -- values ----------------------------------------------------------------------------------------------
    def value(self, expr: Expr, mask: str | None) -> str:
        """Return the SSA name (or immediate) of an expression; loads in it happen only where `mask` holds."""
        stack = [expr]
        opened: set[Expr] = set()  # those whose operands were looked at
        while stack:
            e = stack[-1]
            info, memo, key = self._entry(e, mask)
            if key in memo:
                stack.pop()
                continue
            if isinstance(e, Call) and e not in opened and self._word(e) is None:
                opened.add(e)
                needed = [c for c in e.args if not isinstance(c, Const) and not self._has(c, mask)]
                if needed:
                    stack.extend(needed)
                    continue
            memo[key] = self._one(e, info, mask)
            stack.pop()
        return memo[key]

    def _has(self, e: Expr, mask: str | None) -> bool:
        _, memo, key = self._entry(e, mask)
        return key in memo

    def _one(self, e: Expr, info: Info, mask: str | None) -> str:
        if isinstance(e, Const):
            return self._immediate(e, e.dtype)
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
        if e.fn == "mul" and e.dtype is int64 and isinstance(e.args[1], Const):
            counted = self._multiple(e.args[0], int(e.args[1].value))
            if counted is not None:
                return counted
        word = self._word(e)
        if word is not None:
            place = self._place(word.buffer, word.indices)
            return self._read(word.buffer, place, "i32", info, self._under(e, mask)[1])
        args = [self._operand(a, info.vector, mask, self._form(e, a)) for a in e.args]
        self.target = self._home(info)[0]
        lanes = self.lanes if info.vector else 0
        if e.fn in RARE:
            return self._cold_call(e, args, lanes)
        if e.fn in ("idiv", "irem") and lanes and e.dtype.bits == 64 and not isinstance(e.args[1], Const):
            return self._divided(e, args, lanes)
        value_arg = e.args[1] if e.fn in ("select", "pick8") else e.args[0]
        dtype = self._form(e, value_arg)
        if e.fn == "cast" and dtype is int32 and (self._narrow(e) if info.vector else e.dtype) is int32:
            return args[0]
        have = dtype if e.dtype is int64 and e.fn in _ALGEBRA else e.dtype
        value = self.scalars.call(e.fn, args, dtype, have, lanes)
        return self.scalars.cast(value, have, self._narrow(e), lanes) if info.vector else value

    def _lane_numbers(self, var: Var) -> str:
        return "<" + ", ".join(f"i32 {k}" for k in range(lane_count(var.extent))) + ">"

    def _narrow(self, e: Expr) -> DType:
        """Return int32 for vector index arithmetic whose bounds allow it: it halves registers and gathers."""
        if e.dtype is not int64 or (isinstance(e, Call) and e.fn == "cast" and e.args[0].dtype is int32):
            return int32 if e.dtype is int64 else e.dtype
        low, high = index.bounds(e)
        algebra = isinstance(e, (Var, Const)) or (isinstance(e, Call) and e.fn in _ALGEBRA)
        return int32 if algebra and low >= -(1 << 31) and high < 1 << 31 else int64

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
        if isinstance(e, Const):
            number = self._immediate(e, form if vector else e.dtype)
            return splat(number, register_type(form), self.lanes) if vector else number
        _, memo, key = self._entry(e, mask)
        value = memo[key]
        if not vector:
            return value
        if e in self.env:
            return splat(immediate(self.env[e], form), register_type(form), self.lanes)
        info = self._under(e, mask)[0]
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

    def _immediate(self, e: Const, form: DType) -> str:
        """Return a constant as text, written once per dtype."""
        key = (e, form)
        if key not in self.immediates:
            self.immediates[key] = immediate(e.value, form)
        return self.immediates[key]

    def _broadcast(self, e: Expr, value: str, mask: str | None) -> str:
        """Return a scalar repeated over the lanes, next to where the scalar was made."""
        scalar = register_type(e.dtype)
        if isinstance(e, Const):
            return splat(self._immediate(e, e.dtype), scalar, self.lanes)
        scope, memo = self._home(self._under(e, mask)[0])
        key = ("splat", value, self.lanes)
        if key not in memo:
            self.target = scope
            ty = vector_of(scalar, self.lanes)
            first = self._append(f"insertelement {ty} poison, {scalar} {value}, i64 0")
            memo[key] = self._append(
                f"shufflevector {ty} {first}, {ty} poison, <{self.lanes} x i32> zeroinitializer"
            )
        return memo[key]

    # -- loads -----------------------------------------------------------------------------------------------
    def _folded(self, expr: Expr) -> tuple[index.Terms, int]:
        """Return the linear form of an index with the iterations of unrolled loops filled in."""
        key = (expr, *[self.env[v] for v in self._known(expr).unrolled])
        found = self.folded.get(key)
        if found is None:
            found = self.folded[key] = self._fold(expr)
        return found

    def _fold(self, expr: Expr) -> tuple[index.Terms, int]:
        terms, constant = index.linear(expr)
        if not any(self._known(a).unrolled for a in terms):
            return terms, constant
        kept: dict[Expr, int] = {}
        for atom, c in terms.items():
            if atom in self.env:
                constant += c * self.env[atom]
            elif self._known(atom).unrolled:
                more, extra = self._folded_atom(atom)
                constant += c * extra
                for a, k in more.items():
                    kept[a] = kept.get(a, 0) + c * k
            else:
                kept[atom] = kept.get(atom, 0) + c
        return {a: c for a, c in kept.items() if c}, constant

    def _folded_atom(self, atom: Expr) -> tuple[index.Terms, int]:
        """Return the same of one atom: it mentions fewer of these loops than the indices it is part of."""
        iterations = {v: self.env[v] for v in self._known(atom).unrolled}
        key = (atom, *iterations.values())
        found = self.folded.get(key)
        if found is None:
            values = {v: index.as_expr(k) for v, k in iterations.items()}
            found = self.folded[key] = index.linear(substitute((atom,), values)[0])
        return found

    def _place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place:
        """Return where an access lies, with unrolled iterations filled in."""
        key: object = (buffer, indices, self.lane)
        offset = self.offsets.get(key)
        if offset is None:
            offset = self.offsets[key] = index.place(buffer, indices)
        unrolled = self._known(offset).unrolled
        key = (key, unrolled)
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = self._form_of(offset)
        if form.start is not None:
            constant = form.start.constant
            for var, step in form.steps:
                constant += step * self.env[var]
            return form.start._replace(constant=constant)
        key = (key, *[self.env[v] for v in unrolled])
        found = self.places.get(key)
        if found is None:
            found = self.places[key] = self._place_of(*self._folded(offset))
        return found

    def _form_of(self, offset: Expr) -> Form:
        """Return an offset with the unrolled iterations left open, where only a sum of them counts."""
        terms, constant = index.linear(offset)
        steps = tuple((a, c) for a, c in terms.items() if isinstance(a, Var) and a in self.env)
        rest = {a: c for a, c in terms.items() if a not in self.env}
        if any(self._known(a).unrolled for a in rest):
            return Form(None, steps)
        return Form(self._place_of(rest, constant), steps)

    def _place_of(self, terms: index.Terms, constant: int) -> Place:
        """Return the place that a linear form names: what lanes differ in is set apart."""
        varying = {a: c for a, c in terms.items() if self._known(a).vector}
        uniform = tuple((a, c) for a, c in terms.items() if a not in varying)
        stride = varying.get(self.lane, 0) if set(varying) <= {self.lane} else None  # type: ignore[arg-type]
        return Place(uniform, constant, stride, index.from_linear(varying, 0))

    def _load(self, e: Load, info: Info, mask: str | None) -> str:
        if e.buffer.space == "register":
            key = (e.buffer, self._slot(e.buffer, e.indices))
            if key not in self.registers:
                raise VerifyError(
                    f"kernel {self.kernel.name}: a register is read before it is written", got=str(e)
                )
            return self.registers[key]
        value = self._read(e.buffer, self._place(e.buffer, e.indices), memory_type(e.dtype), info, mask)
        if not e.dtype.is_bool:
            return value
        if not info.vector:
            return self._append(f"icmp ne i8 {value}, 0")
        return self._append(f"icmp ne {vector_of('i8', self.lanes)} {value}, zeroinitializer")

    def _read(self, buffer: Buffer, place: Place, memory: str, info: Info, mask: str | None) -> str:
        """Return what lies at a place, loaded as `memory`: an element, or a word of several."""
        size = buffer.dtype.itemsize
        adjacent = 4 // size if memory == "i32" else 1
        if not info.vector:
            pointer = self._pointer(buffer, place, mask)
            self.target = self._home(info)[0]
            if mask is not None:
                pointer = self._safe(pointer, self.pointers[buffer], mask)
            return self._append(f"load {memory}, ptr {pointer}, align {size}")
        assert self.lane is not None
        if place.stride == adjacent:
            pointer = self._pointer(buffer, place, mask)
            self.target = self._home(info)[0]
            if mask is None:
                return self._append(f"load {vector_of(memory, self.lanes)}, ptr {pointer}, align {size}")
            if strays(buffer, place, by=0 if mask in self.uniform else self.lanes):
                pointer = self._safe(pointer, self.pointers[buffer], mask)
            return self._masked_load("load", memory, f"align {size} {pointer}", mask)
        if place.stride == -adjacent:
            return self._read_backwards(buffer, place, memory, info, mask)
        turned = self._turned(buffer, place, memory, mask)
        if turned is not None:
            return turned
        pointers = self._pointers(buffer, place, mask)
        self.target = self._home(info)[0]
        return self._masked_load("gather", memory, f"align {size} {pointers}", mask or "splat (i1 true)")

    def _read_backwards(self, buffer: Buffer, place: Place, memory: str, info: Info, mask: str | None) -> str:
        """Return what lies at a place whose lanes run towards memory's start, read forwards and turned."""
        assert place.stride is not None
        first = place.constant + place.stride * (self.lanes - 1)
        self.target = self._home(info)[0]
        turned_mask = mask and self._backwards("i1", mask)
        forwards = place._replace(constant=first, stride=-place.stride)
        return self._backwards(memory, self._read(buffer, forwards, memory, info, turned_mask))

    def _backwards(self, element: str, value: str) -> str:
        """Return a vector with its last lane first."""
        ty = vector_of(element, self.lanes)
        return self.scalars.shuffle(ty, value, "poison", range(self.lanes)[::-1])

    def _word(self, e: Expr) -> Load | None:
        """Return the first load of a word whose parts are neighbours in memory, which are one load."""
        if not isinstance(e, Call) or e.fn not in ("bytes4", "halves2"):
            return None
        found = [a for a in e.args if isinstance(a, Load) and a.buffer.space != "register"]
        if len(found) < len(e.args) or any(a.buffer is not found[0].buffer for a in found):
            return None
        first, *others = (self._place(a.buffer, a.indices) for a in found)
        together = all(p == first._replace(constant=first.constant + k) for k, p in enumerate(others, 1))
        return found[0] if together else None

    def _masked_load(self, kind: str, memory: str, where: str, mask: str) -> str:
        ty, mask_ty = vector_of(memory, self.lanes), vector_of("i1", self.lanes)
        at = "ptr" if kind == "load" else f"<{self.lanes} x ptr>"
        pointers = "p0" if kind == "load" else f"v{self.lanes}p0"
        name = f"llvm.masked.{kind}.{mangled(memory, self.lanes)}.{pointers}"
        return self.scalars.intrinsic(name, ty, [(at, where), (mask_ty, mask), (ty, "zeroinitializer")])

    def _safe(self, pointer: str, base: str, mask: str) -> str:
        """Return a pointer that may be read in any case: the buffer's start where the mask does not hold."""
        if self.lane is not None:
            first = f"extractelement {vector_of('i1', self.lanes)} {mask}, i64 0"
            mask = self._append(first) if mask in self.uniform else self._any(mask)
        return self._append(f"select i1 {mask}, ptr {pointer}, ptr {base}")

    def _pointer(self, buffer: Buffer, place: Place, mask: str | None) -> str:
        """Return the address of an element (of lane 0), built from the outermost scope inwards."""
        ordered = sorted(place.terms, key=lambda t: (self._known(t[0]).depth, self._order(t[0])))
        memory = memory_type(buffer.dtype)
        pointer = self.pointers[buffer]
        depth, loads, changes = 0, False, NEVER
        for atom, c in ordered:
            info = self._under(atom, mask)[0]
            depth, loads = max(depth, info.depth), loads or info.loads
            changes = max(changes, info.changes)
            key: object = (pointer, atom, c, mask if loads else None)
            scope, memo = self._at(depth, changes)
            if key not in memo:
                step = self._scaled(atom, c, mask)
                self.target = scope
                memo[key] = self._append(f"getelementptr {memory}, ptr {pointer}, i64 {step}")
            pointer = memo[key]
        if place.constant:
            scope, memo = self._at(depth, changes)
            key = (pointer, place.constant)
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
        counted = self._multiple(atom, c)
        if counted is not None:
            return counted
        value = self.value(atom, mask)
        if c == 1:
            return value
        scope, memo = self._home(self._under(atom, mask)[0])
        key = ("scaled", value, c)
        if key not in memo:
            self.target = scope
            memo[key] = self._append(f"mul i64 {value}, {c}")
        return memo[key]

    def _multiple(self, atom: Expr, c: int) -> str | None:
        """Return a multiple of the variable of a loop, which is counted along; None for another index."""
        if c == 1 or not isinstance(atom, Var) or atom in self.env or atom is self.lane:
            return None
        scope = self.scopes[self.bound[atom][1]]
        if scope.loop is not atom:
            return None
        if c not in scope.multiples:
            scope.multiples[c] = self._fresh("m")
        return scope.multiples[c]

    def _pointers(self, buffer: Buffer, place: Place, mask: str | None) -> str:
        """Return a vector of addresses, one per lane: a scalar base plus the part lanes differ in."""
        base = self._pointer(buffer, place, mask)
        value = self.value(place.varying, mask)
        form = register_type(self._narrow(place.varying))
        infos = [self._under(a, mask)[0] for a in (place.varying, *(t for t, _ in place.terms))]
        self.target = self._at(max(i.depth for i in infos), max(i.changes for i in infos))[0]
        return self._append(
            f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, <{self.lanes} x {form}> {value}"
        )

    # -- guards, lanes ---------------------------------------------------------------------------------------
    def _guard(self, e: Guard, info: Info, mask: str | None) -> str:
        condition = self.value(e.condition, mask)
        condition_info = self._under(e.condition, mask)[0]
        inner = condition
        if self.lane is not None and not condition_info.vector and self._known(e.value).loads:
            inner = self._broadcast(e.condition, condition, mask)
            self.uniform.add(inner)
        elif condition_info.vector:
            self._know_lanes(inner, e.condition)
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

    def _know_lanes(self, mask: str, condition: Expr) -> None:
        """Note which lanes run under a mask if its condition depends on nothing but the lane, by now."""
        if mask in self.known_masks or not condition.free <= {self.lane, *self.env}:
            return
        per_lane = self._per_lane(condition)
        if all(isinstance(c, Const) for c in per_lane):
            self.known_masks[mask] = tuple(bool(c.value) for c in per_lane if isinstance(c, Const))

    def _per_lane(self, condition: Expr) -> list[Expr]:
        """Return a condition for each lane, with the iterations of unrolled loops filled in."""
        assert self.lane is not None
        values = {v: index.as_expr(k) for v, k in self.env.items()}
        lanes = ({**values, self.lane: index.as_expr(k)} for k in range(self.lanes))
        return [substitute((condition,), lane)[0] for lane in lanes]

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
            if {a, b} <= self.uniform:
                self.uniform.add(memo[key])
            if a in self.known_masks and b in self.known_masks:
                both = zip(self.known_masks[a], self.known_masks[b], strict=True)
                self.known_masks[memo[key]] = tuple(x and y for x, y in both)
        return memo[key]

    def _across(self, e: Lanes) -> str:
        """Reduce a vector over its lanes by halves."""
        outer, mask = self.lane, self.exec_mask
        self._run_over(e.var)
        self.exec_mask = None
        self.bound[e.var] = ("", 0)
        value = self.value(e.value, None)
        lanes, scalar = self.lanes, register_type(e.dtype)
        self.target = self.scopes[-1]
        while lanes > 1:
            half = lanes // 2
            ty = vector_of(scalar, lanes)
            halves = range(half), range(half, lanes)
            parts = [self.scalars.shuffle(ty, value, "poison", numbers) for numbers in halves]
            value = self.scalars.call(e.fn, parts, e.dtype, e.dtype, half)
            lanes = half
        result = self._append(f"extractelement {vector_of(scalar, 1)} {value}, i64 0")
        self._run_over(outer)
        self.exec_mask = mask
        return result

    # -- registers -----------------------------------------------------------------------------------------
    def _slot(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[int, ...]:
        """Return which register an access names: indices are constants, one of them plus the lane."""
        slot = []
        for i in indices:
            if isinstance(i, Const) or i in self.env:
                slot.append(int(i.value) if isinstance(i, Const) else self.env[i])
                continue
            terms, constant = self._folded(i)
            if terms and terms != {self.lane: 1}:
                raise VerifyError(
                    f"kernel {self.kernel.name}: a register is indexed by something that is not unrolled",
                    got=f"{buffer.name}[{', '.join(map(str, indices))}]",
                )
            slot.append(constant)
        return tuple(slot)
