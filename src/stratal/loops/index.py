"""The index algebra: quasi-affine int64 expressions in normal form, and what can be read off them.

A normal form is a sum of integer multiples of atoms plus a constant. An atom is a loop variable, a load (a
gathered index), `floordiv(form, c)` or `mod(form, c)` with c a positive constant. Variables carry bounds,
so `i*8 + j` with j < 8 divided by 8 is `i` wherever it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple, Union

from stratal.base.dtypes import bool_, int64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, call, const, index_const, interned_call

Index = Union[Expr, int]
Linear = dict[Expr, int]
Terms = Mapping[Expr, int]
_WIDE = 1 << 80  # beyond any int64, so that nothing unknown is ever decided
_HALF = 1 << 63
_SUMS = frozenset(("add", "mul"))
_NO_TERMS: Terms = MappingProxyType({})


def as_expr(value: Index) -> Expr:
    return index_const(value) if isinstance(value, int) else value


def linear(expr: Index) -> tuple[Terms, int]:
    """Split a normal form into {atom: coefficient}, which others are given too, and the constant."""
    if isinstance(expr, Call):
        return _linear(expr) if expr.dtype is int64 and expr.fn in _SUMS else ({expr: 1}, 0)
    if isinstance(expr, int):
        return _NO_TERMS, expr
    return (_NO_TERMS, int(expr.value)) if isinstance(expr, Const) else ({expr: 1}, 0)


def is_linear(expr: Expr) -> bool:
    """Return whether an expression is a sum or a product of int64: what `linear` may take apart."""
    return isinstance(expr, Call) and expr.dtype is int64 and expr.fn in _SUMS


def atoms(expr: Expr) -> tuple[Expr, ...]:
    """Return the atoms of a sum; the factors of a product that is an atom itself."""
    terms, _ = _linear(expr)
    return expr.parts if expr in terms else tuple(terms)


@lru_cache(maxsize=1 << 16)
def _linear(expr: Expr) -> tuple[Mapping[Expr, int], int]:
    terms: Linear = {}
    constant = 0
    stack: list[tuple[Expr, int]] = [(expr, 1)]
    while stack:
        part, c = stack.pop()
        if isinstance(part, Const):
            constant += c * int(part.value)
        elif isinstance(part, Call) and part.fn == "add":
            stack += ((part.args[1], c), (part.args[0], c))
        elif isinstance(part, Call) and part.fn == "mul" and isinstance(part.args[1], Const):
            stack.append((part.args[0], c * _divisor(part)))
        else:
            terms[part] = terms.get(part, 0) + c
    return {a: c for a, c in terms.items() if c}, constant


@lru_cache(maxsize=1 << 16)
def _order(expr: Expr) -> str:
    """Return the key terms are sorted by: their text; a digest takes the place of long parts."""
    if isinstance(expr, (Const, Var)):
        return str(expr)
    name = expr.buffer.name if isinstance(expr, Load) else getattr(expr, "fn", "guard")
    text = f"{name}({','.join(map(_order, expr.parts))})"
    return text if len(text) <= 200 else f"{name}({blake2b(text.encode(), digest_size=12).hexdigest()})"


def from_linear(terms: Mapping[Expr, int], constant: int) -> Expr:
    """Build the normal form of a linear combination, joining `x//c*c + x%c` back to `x`.

    Factors and constant wrap around as int64 does: repeated squares of a constant would grow without end.
    """
    kept = {a: w for a, c in terms.items() if (w := c if -_HALF <= c < _HALF else _wrapped(c))}
    for atom in kept:
        if isinstance(atom, Call) and atom.fn == "mod":
            kept, more = _rejoin(kept)
            constant += more
            break
    result: Expr | None = None
    for atom in sorted(kept, key=_order) if len(kept) > 1 else kept:
        c = kept[atom]
        scaled = atom if c == 1 else _raw("mul", atom, index_const(c))
        result = scaled if result is None else _raw("add", result, scaled)
    if not -_HALF <= constant < _HALF:
        constant = _wrapped(constant)
    if result is None:
        return index_const(constant)
    return result if constant == 0 else _raw("add", result, index_const(constant))


def _wrapped(value: int) -> int:
    return (value + _HALF) % (2 * _HALF) - _HALF


def replace_atoms(expr: Expr, new: Mapping[Expr, Expr]) -> Expr:
    """Return a sum with some of its atoms replaced, normalised once."""
    terms, constant = linear(expr)
    if expr in terms:  # a product of two indices: no sum, an atom itself
        return rebuild("mul", tuple([new.get(a, a) for a in expr.parts]))
    total: Linear = {}
    for atom, c in terms.items():
        constant += _gather(total, new.get(atom, atom), c)
    return from_linear(total, constant)


def _gather(total: Linear, expr: Index, c: int) -> int:
    """Add c times the terms of an index to others; return c times its constant."""
    terms, constant = linear(expr)
    for a, k in terms.items():
        total[a] = total.get(a, 0) + c * k
    return c * constant


def _raw(fn: str, a: Expr, b: Expr) -> Expr:
    return interned_call(fn, (a, b), int64)


def _divisor(expr: Call) -> int:
    """Return the constant of a floordiv, mod or mul."""
    divisor = expr.args[1]
    if not isinstance(divisor, Const):
        raise VerifyError("index: not divided by a constant", got=str(expr))
    return int(divisor.value)


def _rejoin(terms: Linear) -> tuple[Linear, int]:
    for atom, c in terms.items():
        if not (isinstance(atom, Call) and atom.fn == "mod"):
            continue
        modulus = _divisor(atom)
        parts, extra = linear(floordiv(atom.args[0], modulus))
        if parts and all(terms.get(a) == k * c * modulus for a, k in parts.items()):
            joined = {a: k for a, k in terms.items() if a is not atom and a not in parts}
            shift = _gather(joined, atom.args[0], c)
            rest, more = _rejoin({a: k for a, k in joined.items() if k})
            return rest, more + shift - c * modulus * extra
    return terms, 0


def add(a: Index, b: Index) -> Expr:
    terms, constant = linear(a)
    total = dict(terms)
    return from_linear(total, constant + _gather(total, b, 1))


def mul(a: Index, c: int) -> Expr:
    terms, constant = linear(a)
    return from_linear({k: v * c for k, v in terms.items()}, constant * c)


def sub(a: Index, b: Index) -> Expr:
    return add(a, mul(b, -1))


@lru_cache(maxsize=1 << 16)
def _bounds(expr: Expr) -> tuple[int, int]:
    if isinstance(expr, Const):
        return int(expr.value), int(expr.value)
    if isinstance(expr, Var):
        return 0, max(expr.extent - 1, 0)
    if isinstance(expr, Call):
        if expr.fn == "mod":
            low, high = _bounds(expr.args[0])
            c = _divisor(expr)
            return (low, high) if low >= 0 and high < c else (0, c - 1)
        if expr.fn == "floordiv":
            low, high = _bounds(expr.args[0])
            c = _divisor(expr)
            return low // c, high // c
        if expr.fn in ("add", "mul"):
            terms, constant = linear(expr)
            if terms == {expr: 1}:
                return -_WIDE, _WIDE
            low = high = constant
            for atom, c in terms.items():
                lo, hi = _bounds(atom)
                low, high = low + min(lo * c, hi * c), high + max(lo * c, hi * c)
            return (low, high) if _fits(low, high) else (-_WIDE, _WIDE)  # it wraps around
        if expr.fn in ("min", "max"):
            (a, b), (c2, d) = _bounds(expr.args[0]), _bounds(expr.args[1])
            return (min(a, c2), min(b, d)) if expr.fn == "min" else (max(a, c2), max(b, d))
    return -_WIDE, _WIDE


def _fits(low: int, high: int) -> bool:
    return low >= -_HALF and high < _HALF


def bounds(expr: Index) -> tuple[int, int]:
    """Return the least and greatest value an index can take; very wide where nothing is known."""
    return _bounds(as_expr(expr))


def floordiv(a: Index, c: int) -> Expr:
    """Return `a // c` for a positive constant."""
    if c <= 0:
        raise VerifyError("index: division by a constant that is not positive", got=str(c))
    if c == 1:
        return as_expr(a)
    terms, constant = linear(a)
    rest = _residue(terms, c)
    whole = {k: (v - rest.get(k, 0)) // c for k, v in terms.items() if v != rest.get(k, 0)}
    quotient, remainder = divmod(constant, c)
    inner = from_linear(rest, remainder)
    low, high = bounds(inner)
    if low >= 0 and high < c:
        return from_linear(whole, quotient)
    if low // c == high // c:
        return from_linear(whole, quotient + low // c)
    if isinstance(inner, Call) and inner.fn == "floordiv":
        divided = floordiv(inner.args[0], _divisor(inner) * c)
    else:
        split = _split(rest, remainder, c)
        if split is not None:
            divided = floordiv(*split)
        else:
            divided = _raw("floordiv", inner, index_const(c))
    if not whole and quotient == 0:
        return divided
    return add(from_linear(whole, quotient), divided)


def _residue(terms: Terms, c: int) -> Linear:
    """Return coefficients reduced modulo c, the same for quotient and remainder so that they meet again."""
    return {k: v % c if abs(v) >= c or bounds(k)[0] < 0 else v for k, v in terms.items() if v % c}


def _split(terms: Terms, constant: int, c: int) -> tuple[Expr, int] | None:
    """Return (x, d) with (g*x + small)//c = x//d where 0 <= small < g, g divides c and d = c/g."""
    for g in sorted({abs(v) for v in terms.values() if c % v == 0 and abs(v) > 1}, reverse=True):
        big = {k: v // g for k, v in terms.items() if v % g == 0}
        low, high = bounds(from_linear({k: v for k, v in terms.items() if v % g}, constant % g))
        if big and low >= 0 and high < g:
            return from_linear(big, constant // g), c // g
    return None


def mod(a: Index, c: int) -> Expr:
    """Return `a % c` in [0, c) for a positive constant."""
    if c <= 0:
        raise VerifyError("index: remainder by a constant that is not positive", got=str(c))
    terms, constant = linear(a)
    rest = _residue(terms, c)
    inner = from_linear(rest, constant % c)
    low, high = bounds(inner)
    if low // c == high // c:
        return add(inner, -(low // c) * c)
    if isinstance(inner, Call) and inner.fn == "mod" and _divisor(inner) % c == 0:
        return mod(inner.args[0], c)
    for g in sorted({v for v in rest.values() if v > 1 and c % v == 0}, reverse=True):
        small = from_linear({k: v for k, v in rest.items() if v % g}, constant % c % g)
        lo, hi = bounds(small)
        if lo >= 0 and hi < g and g < c:
            big = from_linear({k: v // g for k, v in rest.items() if v % g == 0}, constant % c // g)
            return add(mul(mod(big, c // g), g), small)
    return _raw("mod", inner, index_const(c))


def rebuild(fn: str, args: tuple[Expr, ...]) -> Expr:
    """Apply an int64 function, in normal form where the arguments allow it."""
    a, b = args
    if fn == "lt":
        return less(a, b)
    if fn == "and":
        return both(a, b)
    if fn == "add":
        return add(a, b)
    if fn == "sub":
        return sub(a, b)
    if fn == "mul":
        if isinstance(b, Const):
            return mul(a, int(b.value))
        if isinstance(a, Const):
            return mul(b, int(a.value))
        return _raw("mul", a, b)
    if isinstance(b, Const) and int(b.value) > 0:
        return floordiv(a, int(b.value)) if fn == "floordiv" else mod(a, int(b.value))
    return _raw(fn, a, b)


def forget() -> None:
    """Drop what is remembered of expressions: it keeps them alive, and is of use within one compilation."""
    for remembered in (_linear, _order, _bounds, _straightened, place):
        remembered.cache_clear()


def less(a: Index, b: Index) -> Expr:
    """Return the condition a < b, decided where bounds allow."""
    if _fits(*bounds(a)) and _fits(*bounds(b)):
        low, high = bounds(sub(a, b))
        if high < 0:
            return const(True, bool_)
        if low >= 0:
            return const(False, bool_)
    return call("lt", as_expr(a), as_expr(b))


def within(a: Index, low: int, high: int) -> Expr:
    """Return the condition low <= a < high, decided where bounds allow."""
    return both(less(low - 1, a), less(a, high))


def both(a: Expr, b: Expr) -> Expr:
    """Return the conjunction of two conditions."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if x.value else x
    return a if a is b else call("and", a, b)


def conjuncts(condition: Expr) -> list[Expr]:
    """Return the conditions that a condition is the conjunction of."""
    if isinstance(condition, Call) and condition.fn == "and":
        return [c for a in condition.args for c in conjuncts(a)]
    return [condition]


def stride_of(expr: Index, var: Var) -> int | None:
    """Return the constant step of an index per step of `var`; None where it is not affine in it."""
    terms, _ = linear(expr)
    for atom in terms:
        if atom is not var and depends(atom, var):
            return None
    return terms.get(var, 0)


def depends(expr: Expr, var: Var) -> bool:
    """Return whether an expression mentions a variable."""
    return var in expr.free


def flatten(indices: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
    """Return the row-major linear position of an index tuple."""
    position: Expr = index_const(0)
    for i, n in zip(indices, shape, strict=True):
        position = add(mul(position, n), i)
    return position


def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Return the index tuple of a row-major position: the view map of a reshape."""
    indices: list[Expr] = []
    rest = as_expr(position)
    for k, n in enumerate(reversed(shape)):
        last = k == len(shape) - 1
        if n == 0:
            indices.append(index_const(0))
        else:
            indices.append(rest if last else mod(rest, n))
            rest = rest if last else floordiv(rest, n)
    return tuple(reversed(indices))


def offset(load: Load) -> Expr:
    """Return the element offset of a load from the start of its buffer."""
    return place(load.buffer, load.indices)


@lru_cache(maxsize=1 << 14)
def place(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """Return the element offset of an access from the start of its buffer."""
    total: Linear = {}
    constant = 0
    for i, s in zip(indices, buffer.strides, strict=True):
        constant += _gather(total, i, s)
    position = from_linear(total, constant)
    if any(isinstance(a, Call) and a.fn == "mod" for a in linear(position)[0]):
        return _straightened(position)
    return position


@lru_cache(maxsize=1 << 14)
def _straightened(expr: Expr) -> Expr:
    """Return a sum of quotients and remainders as one of quotients alone where more of these then cancel.

    Indices of several axes taken from one loop, and that loop split, meet again only so.
    """
    terms, constant = _without_mods(expr)
    found = from_linear(terms, constant)
    return found if _divisions_and_terms(found) < _divisions_and_terms(expr) else expr


def _divisions_and_terms(expr: Expr) -> tuple[int, int]:
    terms, _ = linear(expr)
    return sum(isinstance(a, Call) and a.fn in ("mod", "floordiv") for a in terms), len(terms)


def _without_mods(expr: Expr) -> tuple[Linear, int]:
    """Write x % m as x - m * (x // m), and (y // b + z) // m as (y + b * z) // (b * m)."""
    total: Linear = {}
    terms, constant = linear(expr)
    for atom, c in terms.items():
        if isinstance(atom, Call) and atom.fn in ("mod", "floordiv"):
            inner, divisor = atom.args[0], _divisor(atom)
            if atom.fn == "mod":
                constant += _gather(total, from_linear(*_without_mods(inner)), c)
                c *= -divisor
            constant += _gather(total, _flat_floordiv(inner, divisor), c)
        else:
            constant += _gather(total, atom, c)
    return {a: c for a, c in total.items() if c}, constant


def _flat_floordiv(expr: Expr, divisor: int) -> Expr:
    terms, constant = _without_mods(expr)
    quotients = [a for a in terms if isinstance(a, Call) and a.fn == "floordiv"]
    if len(quotients) == 1 and terms[quotients[0]] == 1:
        (quotient,) = quotients
        assert isinstance(quotient, Call)
        below = _divisor(quotient)
        rest = from_linear({a: c for a, c in terms.items() if a is not quotient}, constant)
        return floordiv(add(quotient.args[0], mul(rest, below)), below * divisor)
    return floordiv(expr, divisor)


# -- matrices ------------------------------------------------------------------------------------------------
class Matrix(NamedTuple):
    """A row-major matrix, or one that is stored `transposed`; its lines lie `lead` elements apart."""

    transposed: bool
    lead: int


def matrix(access: Load, rows: Var, columns: Var) -> Matrix | None:
    """Return how the elements of an access lie for all rows and columns; None where they form no matrix."""
    start = offset(access)
    down, across = stride_of(start, rows), stride_of(start, columns)
    if down is None or across is None:
        return None
    for transposed, (step, length), (lead, lines) in (
        (False, (across, columns.extent), (down, rows.extent)),
        (True, (down, rows.extent), (across, columns.extent)),
    ):
        if step != 1 and length > 1:
            continue
        if lines == 1:
            return Matrix(transposed, max(1, length))
        if lead >= length:
            return Matrix(transposed, lead)
    return None
