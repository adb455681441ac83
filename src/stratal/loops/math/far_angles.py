"""Angles of 2^47 and more, up to the largest float, reduced by multiples of pi/2.

x is a whole number m times 2^e. Of 2/pi, in binary, those bits that 2^e makes multiples of 4 turn m into
whole circles; those far behind the point change nothing. A window of 192 bits between them (128 for float32,
which has fewer numbers near multiples of pi/2) times m, modulo the window, is x in quarters of a circle: an
integer, exact but for its last 53 bits. See Payne and Hanek, "Radian reduction for trigonometric functions"
(1983). No float64 lies nearer than 2^-61 to a multiple of pi/2, so at least 60 significant bits are left.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

from stratal.base.dtypes import float32, float64, uint32, uint64
from stratal.loops.expr import Const, Expr, cast, const
from stratal.loops.math.arith import INF, NAN, fma, like, ne, select
from stratal.loops.math.floats import from_bits, to_bits

_ZEROS: Final = 7  # in front of the table: the window of 2^47 begins at the second place before the point
_DIGITS: Final = int(
    "145F306DC9C882A53F84EAFA3EA69BB81B6C52B3278872083FCA2C757BD778AC36E48DC74849BA5C00C9"
    "25DD413A32439FC3BD63962534E7DD1046BEA5D768909D338E04D68BEFC827323AC7306A673E93908BF1"
    "77BF250763FF12FFFBC0B301FDE5E2316B414DA3EDA6CFD9E4F96136E9E8C7ECD3CBFD45AEA4F758FD7C"
    "BE2F67A0E73EF14A525D4D7F6BF623F1ABA10AC06608DF8F6D7",
    16,
)  # the first 1209 bits of 2/pi behind the point
_NUM_WORDS: Final = (_ZEROS + 1209) // 64
_TABLE: Final = [(_DIGITS >> (64 * k)) % (1 << 64) for k in reversed(range(_NUM_WORDS))]
_FIRST_EXPONENT: Final = 1023 + 47  # the exponent field of the least number that comes here
_HALF_PI: Final = (1.5707963267948966, 6.123233995736766e-17)


class Angle(NamedTuple):
    """x = quadrant*pi/2 + r + low, not negative; the low two bits of `quadrant` (uint32) count."""

    r: Expr
    low: Expr
    quadrant: Expr


def far_angle(x: Expr) -> Angle:
    """Return a reduced float32 or float64 of 2^47 or more; r is NaN for infinity."""
    a = cast(x, float64)
    bits = to_bits(a)
    start = (bits >> 52) - _FIRST_EXPONENT
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    single = x.dtype is float32
    window = _window(start, 2, 80) if single else _window(start, 3, 976)
    high, middle = _product(window, mantissa)[:2]
    fraction = _joined(high, middle, 2)
    negative = fraction >> 63  # nearer to the next quadrant
    quadrant = cast((high >> 62) + negative, uint32)
    away = 0 - negative  # all bits where it is
    parts = [fraction] if single else [fraction, middle << 2]
    r, low = _radians([part ^ away for part in parts])
    sign = negative << 63
    r, low = (from_bits(to_bits(v) ^ sign) for v in (r, low))
    r = select(a < INF, r, NAN)
    return Angle(cast(r, float32), like(0.0, x), quadrant) if single else Angle(r, low, quadrant)


def _word(value: int) -> Const:
    return const(value, uint64)


def _window(start: Expr, num_words: int, last: int) -> list[Expr]:
    """Return the words of the table from bit `start` on, which is `last` at most, the highest first.

    Each bit of the word's number halves the words it may be: a shift of constants, without a load.
    """
    most = last // 64
    words: list[Expr] = [_word(w) for w in _TABLE[: most + num_words + 1]]
    for step in (s for s in (8, 4, 2, 1) if s <= most):
        moved = ne(start & (64 * step), 0)
        words = [select(moved, words[k + step], words[k]) for k in range(num_words + step)]
    by = start & 63
    back = 64 - by
    return [(a << by) | (b >> back) for a, b in itertools.pairwise(words)]


def _joined(a: Expr, b: Expr, by: int) -> Expr:
    """Return the word that begins at bit `by` of two words."""
    return (a << by) | (b >> (64 - by))


def _product(words: list[Expr], m: Expr) -> list[Expr]:
    """Return the words of a long integer times one of 53 bits, modulo its size; by halves of words."""
    low, high = _lower(m), m >> 32
    carry: Expr = _word(0)
    behind: Expr = _word(0)  # the half before times the upper half of m
    found: list[Expr] = []
    for word in reversed(words):
        halves = []
        for half in (_lower(word), word >> 32):
            here = half * low
            total = _lower(here) + _lower(behind) + carry
            carry = (here >> 32) + (behind >> 32) + (total >> 32)
            behind = half * high
            halves.append(_lower(total))
        found.insert(0, (halves[1] << 32) | halves[0])
    return found


def _lower(word: Expr) -> Expr:
    return word & ((1 << 32) - 1)


def _radians(words: list[Expr]) -> tuple[Expr, Expr]:
    """Return a fraction of a quadrant, behind the point of these words, times pi/2 in two parts."""
    halves = [h for w in words for h in (w >> 32, _lower(w))]
    parts = [cast(h, float64) * 2.0 ** (-32 * k) for k, h in enumerate(halves, 1)]
    r: Expr = parts[0]
    rest: Expr = const(0.0, float64)
    for part in parts[1:]:  # falling: what each sum rounds off is exact
        total = r + part
        rest, r = rest + (part - (total - r)), total
    high, low = (const(v, float64) for v in _HALF_PI)
    angle = r * high
    return angle, fma(r, low, fma(rest, high, fma(r, high, -angle)))
