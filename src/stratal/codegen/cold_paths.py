"""What is rarely needed: a function of single elements, called for a vector if one of its lanes needs it.

So what is long and hardly ever runs is compiled once a kernel, not in vectors and for every unrolled copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stratal.base.dtypes import DType
from stratal.base.target import Instructions
from stratal.codegen.lane_transpose import LaneTranspose
from stratal.codegen.scalar import Emit, ScalarEmitter, splat, vector_of
from stratal.codegen.types import immediate, register_type
from stratal.loops.expr import Call, Const, Expr, walk
from stratal.loops.math.rare import rare
from stratal.loops.stmt import Kernel

WEIGHTS: Final = '!2 = !{!"branch_weights", i32 1, i32 1048575}'  # of branches marked `!prof !2`


class ColdPaths(LaneTranspose):
    """Emits the functions of `loops.math.rare`."""

    def __init__(self, kernel: Kernel, instructions: Instructions) -> None:
        super().__init__(kernel, instructions)
        self.functions: dict[str, str] = {}  # texts by name

    def _cold_call(self, e: Call, operands: Sequence[str], lanes: int) -> str:
        """Emit the choice between the result as a rule and what the function gives."""
        definition, ty = rare(e.fn, e.dtype), register_type(e.dtype)
        *xs, usual = operands
        needed = _steps(definition.condition, dict(zip(definition.xs, xs, strict=True)), self.scalars, lanes)
        function = f"call {ty} {self._function(e.fn, e.dtype)}"
        before, cold, after = self.target.label, self._fresh("cold")[1:], self._fresh("after")[1:]
        some = self._any(needed) if lanes else needed
        self._line(f"  br i1 {some}, label %{cold}, label %{after}, !prof !2")
        self._block(cold)
        if lanes:
            found = self._lane_after_lane(function, needed, operands, ty, (before, after))
        else:
            found = self._append(f"{function}({', '.join(f'{ty} {x}' for x in xs)})")
            self._line(f"  br label %{after}")
        self._block(after)
        return self._append(f"phi {vector_of(ty, lanes)} [{usual}, %{before}], [{found}, %{cold}]")

    def _divided(self, e: Call, operands: Sequence[str], lanes: int) -> str:
        """Emit a division of 64-bit integers: by floats in vectors, unless a lane has a number too large.

        Machines divide integers one at a time, at ten times the cost.
        """
        usual = self.scalars.divide(e.fn, operands, e.dtype, lanes, by_floats=True)
        some = self._any(self.scalars.beyond_floats(operands, e.dtype, lanes))
        before, cold, after = self.target.label, self._fresh("large")[1:], self._fresh("after")[1:]
        self._line(f"  br i1 {some}, label %{cold}, label %{after}, !prof !2")
        self._block(cold)
        found = self.scalars.divide(e.fn, operands, e.dtype, lanes, by_floats=False)
        self._line(f"  br label %{after}")
        self._block(after)
        ty = vector_of(register_type(e.dtype), lanes)
        return self._append(f"phi {ty} [{usual}, %{before}], [{found}, %{cold}]")

    def _lane_after_lane(
        self, function: str, needed: str, operands: Sequence[str], ty: str, around: tuple[str, str]
    ) -> str:
        """Emit a loop over lanes, in the block that was begun, and return the vector of results.

        The last operand is what a lane has that does not need the function.
        """
        (before, after), here, vector = around, self.target.label, vector_of(ty, self.lanes)
        lane, some, more, next_ = (self._fresh(name) for name in ("lane", "some", "more", "next"))
        self._line(f"  {lane} = phi i64 [0, %{before}], [{next_}, %{here}]")
        self._line(f"  {some} = phi {vector} [{operands[-1]}, %{before}], [{more}, %{here}]")
        mine = self._append(f"extractelement {vector_of('i1', self.lanes)} {needed}, i64 {lane}")
        *xs, usual = (self._append(f"extractelement {vector} {v}, i64 {lane}") for v in operands)
        found = self._append(f"{function}({', '.join(f'{ty} {x}' for x in xs)})")
        chosen = self._append(f"select i1 {mine}, {ty} {found}, {ty} {usual}")
        self._line(f"  {more} = insertelement {vector} {some}, {ty} {chosen}, i64 {lane}")
        self._line(f"  {next_} = add i64 {lane}, 1")
        again = self._append(f"icmp ult i64 {next_}, {self.lanes}")
        self._line(f"  br i1 {again}, label %{here}, label %{after}")
        return more

    def _function(self, fn: str, dtype: DType) -> str:
        """Return the name of a function in this kernel's module."""
        name = f"@{fn}_{dtype.short}"
        if name not in self.functions:
            definition, ty = rare(fn, dtype), register_type(dtype)
            lines: list[str] = []
            scalars = ScalarEmitter(_numbered(lines), self.scalars.instructions)
            names: dict[Expr, str] = {load: f"%x{k}" for k, load in enumerate(definition.xs)}
            result = _steps(definition.value, names, scalars, 0)
            text = "\n".join((*lines, f"  ret {ty} {result}"))
            taken = ", ".join(f"{ty} {x}" for x in names.values())
            self.functions[name] = f"define internal {ty} {name}({taken}) #0 {{\n{text}\n}}\n"
            self.scalars.declared |= scalars.declared
        return name

    def _any(self, mask: str) -> str:
        """Return whether a mask holds for some lane."""
        ty = vector_of("i1", self.lanes)
        return self.scalars.intrinsic(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", [(ty, mask)])


def _numbered(lines: list[str]) -> Emit:
    def emit(instruction: str) -> str:
        lines.append(f"  %v{len(lines)} = {instruction}")
        return f"%v{len(lines) - 1}"

    return emit


def _steps(root: Expr, names: Mapping[Expr, str], scalars: ScalarEmitter, lanes: int) -> str:
    """Emit an expression of operands whose names are known, and return the name of its value."""
    found = dict(names)
    for e in walk([root]):
        if isinstance(e, Const):
            found[e] = splat(immediate(e.value, e.dtype), register_type(e.dtype), lanes)
        elif isinstance(e, Call):
            kind = e.args[1] if e.fn in ("select", "pick8") else e.args[0]
            found[e] = scalars.call(e.fn, [found[a] for a in e.args], kind.dtype, e.dtype, lanes)
    return found[root]
