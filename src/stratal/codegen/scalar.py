"""One scalar function of the loop IR as LLVM instructions, on scalars or on vectors alike.

`Emit` appends an instruction and returns the name of its result; `ty` is the full operand type: `float`,
`<16 x float>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import DType, bfloat16, float16, float32, float64
from stratal.base.errors import VerifyError
from stratal.base.target import Instructions
from stratal.codegen.types import immediate, register_type

Emit = Callable[[str], str]


def vector_of(scalar: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` values; 0 lanes is the scalar itself."""
    return f"<{lanes} x {scalar}>" if lanes else scalar


def mangled(scalar: str, lanes: int) -> str:
    """Return the suffix LLVM gives an overloaded intrinsic."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
    return f"v{lanes}{short}" if lanes else short


def splat(text: str, scalar: str, lanes: int) -> str:
    """Return a constant operand, repeated over the lanes."""
    return f"splat ({scalar} {text})" if lanes else text


_INTEGER: Final = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FLOAT: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUND: Final = {**{fn: fn for fn in ("sqrt", "floor", "ceil", "trunc", "rint")}, "abs": "fabs"}
_PAIRS: Final = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}


class _Scale(NamedTuple):
    """What scaling a float by powers of two needs to know about its format."""

    scalar: str
    bits: int
    mantissa: int
    bias: int
    instruction: str


_SCALES: Final = {
    "float": _Scale("float", 32, 23, 127, "llvm.x86.avx512.mask.scalef.ps.512"),
    "double": _Scale("double", 64, 52, 1023, "llvm.x86.avx512.mask.scalef.pd.512"),
}
_PICKS: Final = {
    ("i32", 8): "llvm.x86.avx2.permd",
    ("float", 8): "llvm.x86.avx2.permps",
    ("i32", 16): "llvm.x86.avx512.permvar.si.512",
    ("float", 16): "llvm.x86.avx512.permvar.sf.512",
}
_PARTS: Final = {"bytes4": 8, "halves2": 16}  # bits of what a word is made of
_ORDERED: Final = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


class ScalarEmitter:
    """Emits calls of `loops.expr.FUNCTIONS`; collects the intrinsics they need declared."""

    def __init__(self, emit: Emit, instructions: Instructions) -> None:
        self.emit = emit
        self.instructions: Final = instructions
        self.declared: set[str] = set()

    def intrinsic(self, name: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        self.declared.add(f"declare {result} @{name}({', '.join(t for t, _ in arguments)})")
        return self.emit(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    def shuffle(self, ty: str, a: str, b: str, lanes: Sequence[int]) -> str:
        """Emit a vector of some lanes of two, those of the second numbered behind the first one's."""
        numbers = ", ".join(f"i32 {k}" for k in lanes)
        return self.emit(f"shufflevector {ty} {a}, {ty} {b}, <{len(lanes)} x i32> <{numbers}>")

    def joined(self, parts: Sequence[str], scalar: str, lanes: int) -> str:
        """Emit the vector of all lanes of equal vectors, a power of two of them, by pairs."""
        while len(parts) > 1:
            ty, lanes = vector_of(scalar, lanes), 2 * lanes
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffle(ty, a, b, range(lanes)) for a, b in pairs]
        return parts[0]

    def call(self, fn: str, args: Sequence[str], arg: DType, result: DType, lanes: int) -> str:
        """Emit `fn` on operands of dtype `arg` (for select, of the values) and return the result's name."""
        scalar = register_type(arg)
        ty = vector_of(scalar, lanes)
        if fn == "cast":
            return self.cast(args[0], arg, result, lanes)
        if fn == "bitcast":
            return self.emit(f"bitcast {ty} {args[0]} to {vector_of(register_type(result), lanes)}")
        if fn == "select":
            return self.emit(f"select {vector_of('i1', lanes)} {args[0]}, {ty} {args[1]}, {ty} {args[2]}")
        if fn == "pick8":
            return self._pick8(args[0], args[1:], register_type(result), lanes)
        if fn in _PARTS:
            return self._word(args, _PARTS[fn], lanes)
        if fn in _ORDERED:
            return self._compare(fn, args, arg, ty)
        if arg.is_float:
            return self._float(fn, args, scalar, ty, lanes)
        return self._integer(fn, args, arg, scalar, ty, lanes)

    def _compare(self, fn: str, args: Sequence[str], arg: DType, ty: str) -> str:
        if arg.is_float:
            return self.emit(f"fcmp {_ORDERED[fn]} {ty} {args[0]}, {args[1]}")
        sign = "" if fn in ("eq", "ne") else "s" if arg.kind == "i" else "u"
        return self.emit(f"icmp {sign}{fn} {ty} {args[0]}, {args[1]}")

    def _float(self, fn: str, args: Sequence[str], scalar: str, ty: str, lanes: int) -> str:
        if fn in _FLOAT:
            return self.emit(f"{_FLOAT[fn]} {ty} {args[0]}, {args[1]}")
        if fn == "neg":
            return self.emit(f"fneg {ty} {args[0]}")
        if fn == "fma":
            return self.intrinsic(f"llvm.fma.{mangled(scalar, lanes)}", ty, [(ty, a) for a in args])
        if fn in _ROUND:
            return self.intrinsic(f"llvm.{_ROUND[fn]}.{mangled(scalar, lanes)}", ty, [(ty, args[0])])
        if fn == "dot2":
            return self._dot2(args, lanes)
        if fn == "ldexp":
            return self._ldexp(args, scalar, ty, lanes)
        if fn in ("min", "max"):  # x86 gives the second operand on NaN: repair when the first is NaN
            a, b = args
            mask = vector_of("i1", lanes)
            wins = self.emit(f"fcmp {'olt' if fn == 'min' else 'ogt'} {ty} {a}, {b}")
            chosen = self.emit(f"select {mask} {wins}, {ty} {a}, {ty} {b}")
            nan = self.emit(f"fcmp uno {ty} {a}, {a}")
            return self.emit(f"select {mask} {nan}, {ty} {a}, {ty} {chosen}")
        raise VerifyError(f"codegen: no float function {fn!r}")

    def _integer(self, fn: str, args: Sequence[str], arg: DType, scalar: str, ty: str, lanes: int) -> str:
        if fn in _INTEGER:
            return self.emit(f"{_INTEGER[fn]} {ty} {args[0]}, {args[1]}")
        if fn in ("min", "max"):
            if arg.is_bool:
                return self.emit(f"{'and' if fn == 'min' else 'or'} {ty} {args[0]}, {args[1]}")
            name = ("s" if arg.kind == "i" else "u") + fn
            return self.intrinsic(f"llvm.{name}.{mangled(scalar, lanes)}", ty, [(ty, a) for a in args])
        if fn == "neg":
            return self.emit(f"sub {ty} {splat('0', scalar, lanes)}, {args[0]}")
        if fn == "not":
            return self.emit(f"xor {ty} {args[0]}, {splat('true' if arg.is_bool else '-1', scalar, lanes)}")
        if fn == "abs":
            if arg.kind == "u":
                return args[0]
            return self.intrinsic(f"llvm.abs.{mangled(scalar, lanes)}", ty, [(ty, args[0]), ("i1", "false")])
        if fn in ("shl", "shr"):
            return self._shift(fn, args, arg, scalar, ty, lanes)
        if fn in ("idiv", "irem"):
            by_floats = lanes > 0 and arg.bits < 64 and not args[1].startswith("splat")
            return self.divide(fn, args, arg, lanes, by_floats)
        if fn in ("floordiv", "mod"):
            return self._floor_divide(fn, args, scalar, ty, lanes)
        if fn == "mulhi":
            wide = vector_of(f"i{2 * arg.bits}", lanes)
            a, b = (self.emit(f"zext {ty} {x} to {wide}") for x in args)
            product = self.emit(f"mul {wide} {a}, {b}")
            high = self.emit(f"lshr {wide} {product}, {splat(str(arg.bits), f'i{2 * arg.bits}', lanes)}")
            return self.emit(f"trunc {wide} {high} to {ty}")
        if fn == "dot4":
            return self._dot4(args, ty, lanes)
        raise VerifyError(f"codegen: no integer function {fn!r}")

    # -- powers of two ---------------------------------------------------------------------------------------
    def _ldexp(self, args: Sequence[str], scalar: str, ty: str, lanes: int) -> str:
        """Emit a * 2^b by one instruction a register where the machine has it."""
        form = _SCALES[scalar]
        whole = 512 // form.bits
        if not self.instructions.scaling or not lanes or lanes % whole:
            return self._ldexp_by_products(args, form, ty, lanes)
        part = vector_of(scalar, whole)
        scaled = []
        for k in range(0, lanes, whole):
            given = [(part, self._picked(a, ty, range(k, k + whole))) for a in args]
            mask = (f"i{whole}", "-1")
            scaled.append(self.intrinsic(form.instruction, part, [*given, given[0], mask, ("i32", "4")]))
        return self.joined(scaled, scalar, whole)

    def _ldexp_by_products(self, args: Sequence[str], form: _Scale, ty: str, lanes: int) -> str:
        """Emit a * 2^(b//2) * 2^(b - b//2): the first product is exact, the second is rounded.

        Exponents are read off the low bits of b + a constant, which holds twice the bias for them.
        """
        a, b = args
        scalar, bits = form.scalar, vector_of(f"i{form.bits}", lanes)
        mask = vector_of("i1", lanes)
        most = 2 * form.bias
        for test, limit in (("ogt", most), ("olt", -most)):
            edge = splat(immediate(limit, float64), scalar, lanes)
            beyond = self.emit(f"fcmp {test} {ty} {b}, {edge}")
            b = self.emit(f"select {mask} {beyond}, {ty} {edge}, {ty} {b}")
        magic = splat(immediate(1.5 * 2.0**form.mantissa + most, float64), scalar, lanes)
        n = self.emit(f"bitcast {ty} {self.emit(f'fadd {ty} {b}, {magic}')} to {bits}")
        half = self.emit(f"lshr {bits} {n}, {splat('1', f'i{form.bits}', lanes)}")
        for exponent in (half, self.emit(f"sub {bits} {n}, {half}")):
            shifted = self.emit(f"shl {bits} {exponent}, {splat(str(form.mantissa), f'i{form.bits}', lanes)}")
            a = self.emit(f"fmul {ty} {a}, {self.emit(f'bitcast {bits} {shifted} to {ty}')}")
        return a

    # -- tables ----------------------------------------------------------------------------------------------
    def _pick8(self, index: str, values: Sequence[str], scalar: str, lanes: int) -> str:
        """Emit a look-up by one instruction a register where the machine has it, else by three choices."""
        whole = min(lanes, self.instructions.picked_lanes)
        if not whole or whole % 8:
            return self._pick8_by_bits(index, values, scalar, lanes)
        part, numbers = vector_of(scalar, whole), vector_of("i32", whole)
        elements = ", ".join(v.removeprefix("splat (").removesuffix(")") for v in values)
        table = f"<{', '.join([elements] * (whole // 8))}>"
        name = _PICKS[scalar, whole]
        found = []
        for k in range(0, lanes, whole):
            at = self._picked(index, vector_of("i32", lanes), range(k, k + whole))
            found.append(self.intrinsic(name, part, [(part, table), (numbers, at)]))
        return self.joined(found, scalar, whole)

    def _pick8_by_bits(self, index: str, values: Sequence[str], scalar: str, lanes: int) -> str:
        """Emit the choice of a half of the table by each bit of the index, the lowest first."""
        ty, bits, left = vector_of(scalar, lanes), vector_of("i32", lanes), list(values)
        for k in range(3):
            bit = self.emit(f"and {bits} {index}, {splat(str(1 << k), 'i32', lanes)}")
            odd = self.emit(f"icmp ne {bits} {bit}, {splat('0', 'i32', lanes)}")
            pairs = zip(left[::2], left[1::2], strict=True)
            mask = vector_of("i1", lanes)
            left = [self.emit(f"select {mask} {odd}, {ty} {b}, {ty} {a}") for a, b in pairs]
        return left[0]

    def _picked(self, value: str, ty: str, lanes: Sequence[int]) -> str:
        """Return some lanes of a vector."""
        return self.shuffle(ty, value, "poison", lanes)

    # -- words of short numbers ------------------------------------------------------------------------------
    def _word(self, args: Sequence[str], bits: int, lanes: int) -> str:
        """Emit words of parts: scalars are shifted, vectors interleaved until neighbours are words."""
        if lanes:
            parts = list(args)
            while bits < 32:
                parts = [self._interleaved(parts[k : k + 2], bits, lanes) for k in range(0, len(parts), 2)]
                bits *= 2
            return parts[0]
        word = self.emit(f"zext i{bits} {args[0]} to i32")
        for k, part in enumerate(args[1:], 1):
            wide = self.emit(f"zext i{bits} {part} to i32")
            word = self.emit(f"or i32 {word}, {self.emit(f'shl i32 {wide}, {bits * k}')}")
        return word

    def _interleaved(self, parts: Sequence[str], bits: int, lanes: int) -> str:
        """Emit a vector of twice the width whose halves are the elements of two vectors, the first lower."""
        half, both = vector_of(f"i{bits}", lanes), vector_of(f"i{bits}", 2 * lanes)
        name = f"llvm.vector.interleave2.{mangled(f'i{bits}', 2 * lanes)}"
        found = self.intrinsic(name, both, [(half, part) for part in parts])
        return self.emit(f"bitcast {both} {found} to {vector_of(f'i{2 * bits}', lanes)}")

    def _dot4(self, args: Sequence[str], ty: str, lanes: int) -> str:
        """Emit a + the products of the bytes of b, unsigned, and c, signed."""
        bits = 32 * lanes
        if self.instructions.byte_dots == "vnni" and bits in (128, 256, 512):
            return self.intrinsic(f"llvm.x86.avx512.vpdpbusd.{bits}", ty, [(ty, a) for a in args])
        if self.instructions.byte_dots == "pairs" and bits in _PAIRS:
            return self._dot4_by_pairs(args, ty, lanes)
        total, b, c = args
        for k in range(4):
            low = self.emit(f"lshr {ty} {b}, {splat(str(8 * k), 'i32', lanes)}")
            unsigned = self.emit(f"and {ty} {low}, {splat('255', 'i32', lanes)}")
            high = self.emit(f"shl {ty} {c}, {splat(str(24 - 8 * k), 'i32', lanes)}")
            signed = self.emit(f"ashr {ty} {high}, {splat('24', 'i32', lanes)}")
            total = self.emit(f"add {ty} {total}, {self.emit(f'mul {ty} {unsigned}, {signed}')}")
        return total

    def _dot2(self, args: Sequence[str], lanes: int) -> str:
        """Emit a + the products of the bfloat16 halves of b and c; narrow vectors are filled up."""
        if not self.instructions.bfloat16_dots or lanes > 16:
            raise VerifyError("codegen: the target has no instruction for dot2")
        full = max(4, lanes)
        total, *words = args
        floats, pairs = vector_of("float", full), vector_of("bfloat", 2 * full)
        total = self._filled(total, "float", lanes, full)
        words = [self._filled(w, "i32", lanes, full) for w in words]
        words = [self.emit(f"bitcast {vector_of('i32', full)} {w} to {pairs}") for w in words]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * full}"
        found = self.intrinsic(name, floats, [(floats, total), *((pairs, w) for w in words)])
        if not lanes:
            return self.emit(f"extractelement {floats} {found}, i64 0")
        return found if lanes == full else self._shuffled(found, floats, lanes)

    def _filled(self, value: str, scalar: str, lanes: int, full: int) -> str:
        """Return a vector of `full` lanes that starts with a scalar or a vector of fewer."""
        if not lanes:
            return self.emit(f"insertelement {vector_of(scalar, full)} poison, {scalar} {value}, i64 0")
        return value if lanes == full else self._shuffled(value, vector_of(scalar, lanes), full)

    def _shuffled(self, value: str, ty: str, lanes: int) -> str:
        """Return the first lanes of a vector; those it lacks are any."""
        have = int(ty[1:].split()[0])
        return self._picked(value, ty, [k if k < have else 0 for k in range(lanes)])

    def _dot4_by_pairs(self, args: Sequence[str], ty: str, lanes: int) -> str:
        """Emit the sum by pairs of 16-bit integers: 2 * 255 * 128 is far from the end of 32 bits."""
        half = 2 * lanes
        i16 = vector_of("i16", half)
        total, b, c = args
        b, c = (self.emit(f"bitcast {ty} {x} to {i16}") for x in (b, c))
        eight = splat("8", "i16", half)
        even_b = self.emit(f"and {i16} {b}, {splat('255', 'i16', half)}")
        odd_b = self.emit(f"lshr {i16} {b}, {eight}")
        even_c = self.emit(f"ashr {i16} {self.emit(f'shl {i16} {c}, {eight}')}, {eight}")
        odd_c = self.emit(f"ashr {i16} {c}, {eight}")
        for x, y in ((even_b, even_c), (odd_b, odd_c)):
            product = self.intrinsic(_PAIRS[32 * lanes], ty, [(i16, x), (i16, y)])
            total = self.emit(f"add {ty} {total}, {product}")
        return total

    def _shift(self, fn: str, args: Sequence[str], arg: DType, scalar: str, ty: str, lanes: int) -> str:
        mask = vector_of("i1", lanes)
        a, count = args
        if count.lstrip("splat (").startswith(scalar) or count.isdigit():  # a constant below the width
            op = "shl" if fn == "shl" else "ashr" if arg.kind == "i" else "lshr"
            return self.emit(f"{op} {ty} {a}, {count}")
        legal = self.emit(f"icmp ult {ty} {count}, {splat(str(arg.bits), scalar, lanes)}")
        if fn == "shr" and arg.kind == "i":
            last = splat(str(arg.bits - 1), scalar, lanes)
            count = self.emit(f"select {mask} {legal}, {ty} {count}, {ty} {last}")
            return self.emit(f"ashr {ty} {a}, {count}")
        zero = splat("0", scalar, lanes)
        safe = self.emit(f"select {mask} {legal}, {ty} {count}, {ty} {zero}")
        shifted = self.emit(f"{'shl' if fn == 'shl' else 'lshr'} {ty} {a}, {safe}")
        return self.emit(f"select {mask} {legal}, {ty} {shifted}, {ty} {zero}")

    def divide(self, fn: str, args: Sequence[str], arg: DType, lanes: int, by_floats: bool) -> str:
        """Emit a quotient or a remainder of integers; by floats only what those hold, but in vectors."""
        scalar = register_type(arg)
        ty, mask = vector_of(scalar, lanes), vector_of("i1", lanes)
        a, d = args
        zero, one = splat("0", scalar, lanes), splat("1", scalar, lanes)
        bad = is_zero = self.emit(f"icmp eq {ty} {d}, {zero}")
        if arg.kind == "i":  # the lowest value by -1 traps: divide it by 1, which wraps the same way
            lowest = splat(str(-(1 << (arg.bits - 1))), scalar, lanes)
            low = self.emit(f"icmp eq {ty} {a}, {lowest}")
            minus = self.emit(f"icmp eq {ty} {d}, {splat('-1', scalar, lanes)}")
            bad = self.emit(f"or {mask} {bad}, {self.emit(f'and {mask} {low}, {minus}')}")
        safe = self.emit(f"select {mask} {bad}, {ty} {one}, {ty} {d}")
        if by_floats:
            value = self._divide_as_floats(fn, (a, safe), arg, lanes)
        else:
            op = ("s" if arg.kind == "i" else "u") + ("div" if fn == "idiv" else "rem")
            value = self.emit(f"{op} {ty} {a}, {safe}")
        return self.emit(f"select {mask} {is_zero}, {ty} {zero}, {ty} {value}")

    def _divide_as_floats(self, fn: str, args: Sequence[str], arg: DType, lanes: int) -> str:
        """Emit a division of numbers floats hold: none is so near below a whole one that it rounds to it."""
        form = float32 if arg.bits < 32 else float64
        ty = vector_of(register_type(form), lanes)
        a, d = (self.cast(x, arg, form, lanes) for x in args)
        value = self.emit(f"fdiv {ty} {a}, {d}")
        if fn == "irem":
            whole = self._float("trunc", [value], register_type(form), ty, lanes)
            minus = self.emit(f"fneg {ty} {whole}")
            value = self._float("fma", [minus, d, a], register_type(form), ty, lanes)
        to = vector_of(register_type(arg), lanes)
        return self.emit(f"{'fptosi' if arg.kind == 'i' else 'fptoui'} {ty} {value} to {to}")

    def beyond_floats(self, args: Sequence[str], arg: DType, lanes: int) -> str:
        """Return the mask of lanes in which an operand is 2^53 or more: float64 does not hold all those."""
        scalar = register_type(arg)
        ty, high = vector_of(scalar, lanes), splat("53", scalar, lanes)
        sizes = args
        if arg.kind == "i":
            signs = [self.emit(f"ashr {ty} {x}, {splat('63', scalar, lanes)}") for x in args]
            sizes = [self.emit(f"xor {ty} {x}, {s}") for x, s in zip(args, signs, strict=True)]
        used = self.emit(f"or {ty} {sizes[0]}, {sizes[1]}")
        rest = self.emit(f"lshr {ty} {used}, {high}")
        return self.emit(f"icmp ne {ty} {rest}, {splat('0', scalar, lanes)}")

    def _floor_divide(self, fn: str, args: Sequence[str], scalar: str, ty: str, lanes: int) -> str:
        a, c = args
        mask, zero = vector_of("i1", lanes), splat("0", scalar, lanes)
        remainder = self.emit(f"srem {ty} {a}, {c}")
        below = self.emit(f"icmp slt {ty} {remainder}, {zero}")
        if fn == "mod":
            up = self.emit(f"add {ty} {remainder}, {c}")
            return self.emit(f"select {mask} {below}, {ty} {up}, {ty} {remainder}")
        quotient = self.emit(f"sdiv {ty} {a}, {c}")
        down = self.emit(f"add {ty} {quotient}, {splat('-1', scalar, lanes)}")
        return self.emit(f"select {mask} {below}, {ty} {down}, {ty} {quotient}")

    # -- casts -----------------------------------------------------------------------------------------------
    def cast(self, value: str, source: DType, target: DType, lanes: int) -> str:
        """Emit a conversion; float16 and bfloat16 go through float32."""
        if source is target:
            return value
        if source in (float16, bfloat16):
            return self.cast(self._widen(value, source, lanes), float32, target, lanes)
        if target in (float16, bfloat16):
            return self._narrow(self.cast(value, source, float32, lanes), target, lanes)
        s, t = register_type(source), register_type(target)
        st, tt = vector_of(s, lanes), vector_of(t, lanes)
        if target.is_bool:
            zero = splat(immediate(0, source), s, lanes)
            return self.emit(f"{'fcmp une' if source.is_float else 'icmp ne'} {st} {value}, {zero}")
        if source.is_float and target.is_float:
            return self.emit(f"{'fpext' if target.bits > source.bits else 'fptrunc'} {st} {value} to {tt}")
        if source.is_float and lanes:
            return self._whole(value, source, target, lanes)
        if source.is_float:
            sign = "s" if target.kind == "i" else "u"
            name = f"llvm.fpto{sign}i.sat.{mangled(t, lanes)}.{mangled(s, lanes)}"
            return self.intrinsic(name, tt, [(st, value)])
        if target.is_float:
            return self.emit(f"{'sitofp' if source.kind == 'i' else 'uitofp'} {st} {value} to {tt}")
        if target.bits == source.bits:
            return value
        if target.bits < source.bits:
            return self.emit(f"trunc {st} {value} to {tt}")
        return self.emit(f"{'sext' if source.kind == 'i' else 'zext'} {st} {value} to {tt}")

    def _whole(self, value: str, source: DType, target: DType, lanes: int) -> str:
        """Return floats cut to whole numbers: the least or greatest of the dtype beyond those, 0 for NaN.

        LLVM's own conversion that ends at these takes vectors apart.
        """
        signed = target.kind == "i"
        beyond = 1 << (target.bits - signed)
        least = -beyond if signed else 0
        s, t = register_type(source), register_type(target)
        st, tt, masks = vector_of(s, lanes), vector_of(t, lanes), vector_of("i1", lanes)
        low, high, zero = (splat(immediate(float(v), source), s, lanes) for v in (least, beyond, 0))
        under = self.emit(f"fcmp olt {st} {value}, {low}")
        over = self.emit(f"fcmp oge {st} {value}, {high}")
        strange = self.emit(f"or {masks} {under}, {self.emit(f'fcmp uge {st} {value}, {high}')}")
        inside = self.emit(f"select {masks} {strange}, {st} {zero}, {st} {value}")
        whole = self.emit(f"fpto{'s' if signed else 'u'}i {st} {inside} to {tt}")
        for mask, end in ((under, least), (over, beyond - 1)):
            limit = splat(immediate(end, target), t, lanes)
            whole = self.emit(f"select {masks} {mask}, {tt} {limit}, {tt} {whole}")
        return whole

    def _widen(self, value: str, source: DType, lanes: int) -> str:
        i16, i32, f32 = (vector_of(t, lanes) for t in ("i16", "i32", "float"))
        if source is float16:
            half = self.emit(f"bitcast {i16} {value} to {vector_of('half', lanes)}")
            return self.emit(f"fpext {vector_of('half', lanes)} {half} to {f32}")
        bits = self.emit(f"zext {i16} {value} to {i32}")
        high = self.emit(f"shl {i32} {bits}, {splat('16', 'i32', lanes)}")
        return self.emit(f"bitcast {i32} {high} to {f32}")

    def _narrow(self, value: str, target: DType, lanes: int) -> str:
        i16, i32, f32, mask = (vector_of(t, lanes) for t in ("i16", "i32", "float", "i1"))
        if target is float16:
            half = self.emit(f"fptrunc {f32} {value} to {vector_of('half', lanes)}")
            return self.emit(f"bitcast {vector_of('half', lanes)} {half} to {i16}")
        bits = self.emit(f"bitcast {f32} {value} to {i32}")  # round to nearest even on the upper half
        upper = self.emit(f"lshr {i32} {bits}, {splat('16', 'i32', lanes)}")
        odd = self.emit(f"and {i32} {upper}, {splat('1', 'i32', lanes)}")
        bias = self.emit(f"add {i32} {odd}, {splat('32767', 'i32', lanes)}")
        high = self.emit(f"lshr {i32} {self.emit(f'add {i32} {bits}, {bias}')}, {splat('16', 'i32', lanes)}")
        nan = self.emit(f"fcmp uno {f32} {value}, {value}")
        safe = self.emit(f"select {mask} {nan}, {i32} {splat('32704', 'i32', lanes)}, {i32} {high}")
        return self.emit(f"trunc {i32} {safe} to {i16}")
