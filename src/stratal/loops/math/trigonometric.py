"""sin, cos, tan and their inverses.

The argument is reduced by multiples of pi/2 in three parts (two for float32, which reduces in float64): with
fma each step is exact or rounds once, so the reduction holds to the last place for |x| < 2^47. Larger ones
are reduced by as many bits of 2/pi as they need (`far_angles`), in functions that are hardly ever called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratal.base.dtypes import float32, float64, uint32, uint64
from stratal.loops.expr import Expr, call, cast
from stratal.loops.math.arith import NAN, eq, fma, like, ne, polynomial, select, sqrt
from stratal.loops.math.far_angles import Angle, far_angle
from stratal.loops.math.floats import flip_sign, from_bits, sign_bit, signbit, to_bits, with_sign

# (sin(r)/r - 1)/r^2 and (cos(r) - 1 + r^2/2)/r^4 in r^2, |r| <= pi/4 (Remez, rounded as in `exponential`)
_SIN32: Final = (-0.16666653752326965, 0.008332106284797192, -0.00019507882825564593)  # 2^-27.8
_COS32: Final = (0.04166664555668831, -0.0013887304812669754, 2.4431425117654726e-05)  # 2^-32.9
_SIN64: Final = (
    -0.1666666666666663, 0.008333333333321745, -0.00019841269829238615, 2.7557313486803567e-06,
    -2.5050725126646307e-08, 1.5894843406117905e-10,
)  # fmt: skip  # 2^-57.8
_COS64: Final = (
    0.04166666666666659, -0.0013888888888872186, 2.480158728829539e-05, -2.7557314015122374e-07,
    2.0875678084756356e-09, -1.135733671452627e-11,
)  # fmt: skip  # 2^-63.8
# (tan(r)/r - 1)/r^2 in r^2, |r| <= pi/4, float64 coefficients: 2^-29.5
_TAN_SHORT: Final = (
    0.3333334978373203, 0.1333266232086078, 0.05406003485597991, 0.021281560038586902, 0.010837479708701483,
    8.737347748651738e-05, 0.004377365577379253,
)  # fmt: skip
# (atan(t)/t - 1)/t^2 in t^2, |t| <= 1: 2^-25.8 and 2^-54.6
_ATAN32: Final = (
    -0.33333152532577515, 0.19993767142295837, -0.14211007952690125, 0.1066582202911377,
    -0.07551838457584381, 0.043207596987485886, -0.016365408897399902, 0.0029200860299170017,
)  # fmt: skip
_ATAN64: Final = (
    -0.3333333333333186, 0.19999999999755186, -0.14285714271341537, 0.11111110678896575,
    -0.09090901237416787, 0.07692212949316325, -0.06665860487379605, 0.058773083775908064,
    -0.05239235233618083, 0.04673955894878027, -0.04092651876971468, 0.03406804025854868,
    -0.02582709381135507, 0.0169783296746771, -0.009184777039109571, 0.003856092051740381,
    -0.0011641149124565608, 0.0002230321411036168, -2.0259569476085144e-05,
)  # fmt: skip
# (asin(t)/t - 1)/t^2 in t^2, |t| <= 1/2: 2^-27.6 and 2^-55.9
_ASIN32: Final = (
    0.16666752099990845, 0.07495306432247162, 0.045469772070646286, 0.02418077178299427,
    0.04216642305254936,
)  # fmt: skip
_ASIN64: Final = (
    0.16666666666665403, 0.07500000000338593, 0.044642856826938464, 0.030381959197163015,
    0.022371756548391505, 0.017359728191181107, 0.013884997170154935, 0.01217081762051492,
    0.006520863269837912, 0.01954815611772562, -0.016256102302729385, 0.03193451737455346,
)  # fmt: skip

_TWO_OVER_PI: Final = 0.6366197723675814
_HALF_PI: Final = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_HALF_PI_32: Final = (1.57079637050628662109375, -4.371138828673793e-08)
_LIMIT: Final = 2.0**47


def _near_angle(x: Expr) -> Angle:
    """Return a reduced angle that is not negative, below the limit."""
    a = cast(x, float64)
    magic = like(1.5 * 2.0**52, a)
    shifted = fma(a, _TWO_OVER_PI, magic)
    k = -(shifted - magic)
    first = fma(k, _HALF_PI[0], a)  # exact: a multiple of 2^-53 below 1
    r = fma(k, _HALF_PI[1], first)
    quadrant = cast(call("bitcast", shifted, dtype=uint64), uint32)
    if x.dtype is float32:
        return Angle(cast(r, float32), like(0.0, x), quadrant)
    low = fma(k, _HALF_PI[2], fma(k, _HALF_PI[1], first - r))
    return Angle(r, low, quadrant)


def _sine(angle: Angle) -> Expr:
    r, z = angle.r, angle.r * angle.r
    if r.dtype is float32:
        return fma(r * z, polynomial(z, _SIN32), r)
    return r + fma(r * z, polynomial(z, _SIN64), angle.low)


def _cosine(angle: Angle) -> Expr:
    r, one = angle.r, like(1.0, angle.r)
    z, half = r * r, like(-0.5, r)
    if r.dtype is float32:
        return fma(z * z, polynomial(z, _COS32), fma(z, half, one))
    w = fma(z, half, one)
    lost = fma(z, half, one - w)
    return w + (lost + fma(z * z, polynomial(z, _COS64), -(r * angle.low)))


def _bit(quadrant: Expr, bit: int) -> Expr:
    return ne(quadrant & bit, 0)


def _signed(value: Expr, quadrant: Expr) -> Expr:
    """Negate where bit 1 of the quadrant is set."""
    bits = to_bits(value)
    width = bits.dtype.bits
    top = cast(quadrant & 2, bits.dtype) << width - 2
    return from_bits(bits ^ top)


def _sine_of(angle: Angle) -> Expr:
    value = select(_bit(angle.quadrant, 1), _cosine(angle), _sine(angle))
    return _signed(value, angle.quadrant)


def _cosine_of(angle: Angle) -> Expr:
    value = select(_bit(angle.quadrant, 1), _sine(angle), _cosine(angle))
    return _signed(value, angle.quadrant + 1)


def _tangent_of(angle: Angle) -> Expr:
    s, c = _sine(angle), _cosine(angle)
    odd = _bit(angle.quadrant, 1)
    return select(odd, -c, s) / select(odd, s, c)


def _single_tangent(angle: Angle) -> Expr:
    """Return the tangent in float32 of an angle reduced in float64: rounded, and then divided."""
    z = angle.r * angle.r
    t = cast(fma(angle.r * z, polynomial(z, _TAN_SHORT), angle.r), float32)
    return select(_bit(angle.quadrant, 1), -1.0 / t, t)


def sin(x: Expr) -> Expr:
    """Return the sine."""
    a = abs(x)
    return flip_sign(call("far_sin", a, _sine_of(_near_angle(a))), sign_bit(x))


def cos(x: Expr) -> Expr:
    """Return the cosine."""
    a = abs(x)
    return call("far_cos", a, _cosine_of(_near_angle(a)))


def tan(x: Expr) -> Expr:
    """Return the tangent."""
    a = abs(x)
    near = (
        _single_tangent(_near_angle(cast(a, float64))) if x.dtype is float32 else _tangent_of(_near_angle(a))
    )
    return flip_sign(call("far_tan", a, near), sign_bit(x))


def is_far(a: Expr) -> Expr:
    """Return whether an angle that is not negative is too large for the reduction above."""
    return a >= _LIMIT


def far_sin(a: Expr) -> Expr:
    """Return the sine of such an angle."""
    return _sine_of(far_angle(a))


def far_cos(a: Expr) -> Expr:
    """Return the cosine of such an angle."""
    return _cosine_of(far_angle(a))


def far_tan(a: Expr) -> Expr:
    """Return the tangent of such an angle."""
    return cast(_tangent_of(far_angle(cast(a, float64))), a.dtype)


def _half_pi_minus(p: Expr, turns: int = 1) -> Expr:
    """Return turns*pi/2 - p with pi in two parts."""
    high, low = _HALF_PI_32 if p.dtype is float32 else _HALF_PI[:2]
    return turns * high - p + turns * low


def _odd(t: Expr, single: Sequence[float], double: Sequence[float]) -> Expr:
    """Return t + t**3 p(t**2)."""
    z = t * t
    return fma(t * z, polynomial(z, single if t.dtype is float32 else double), t)


def _asin_pieces(x: Expr) -> tuple[Expr, Expr]:
    """Return whether |x| <= 1/2, and asin(|x|) there or asin(sqrt((1 - |x|)/2)) elsewhere."""
    a = abs(x)
    central = a <= 0.5
    folded = sqrt(fma(a, -0.5, 0.5))
    return central, _odd(select(central, a, folded), _ASIN32, _ASIN64)


def asin(x: Expr) -> Expr:
    """Return the arc sine; NaN outside [-1, 1]."""
    central, p = _asin_pieces(x)
    return with_sign(select(central, p, _half_pi_minus(p * 2.0)), x)


def acos(x: Expr) -> Expr:
    """Return the arc cosine; NaN outside [-1, 1]."""
    central, p = _asin_pieces(x)
    negative = x < 0.0
    twice = p * 2.0
    middle = _half_pi_minus(select(negative, -p, p))
    return select(central, middle, select(negative, _half_pi_minus(twice, 2), twice))


def atan(x: Expr) -> Expr:
    """Return the arc tangent."""
    a = abs(x)
    outer = a > 1.0
    p = _odd(select(outer, 1.0 / a, a), _ATAN32, _ATAN64)
    return with_sign(select(outer, _half_pi_minus(p), p), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """Return the angle of the point (x, y), signed zeros and infinities as in IEEE 754."""
    a, b = abs(y), abs(x)
    steep = a > b
    low, high = select(steep, b, a), select(steep, a, b)
    equal = select(eq(a, 0.0), like(0.0, x), 1.0)
    p = _odd(select(eq(a, b), equal, low / high), _ATAN32, _ATAN64)
    p = select(steep, _half_pi_minus(p), p)
    p = select(signbit(x), _half_pi_minus(p, 2), p)
    p = select(ne(x, x) | ne(y, y), NAN, p)
    return with_sign(p, y)
