"""Quantiles of the normal distribution and the inverses of erf and erfc, which are quantiles in other words.

In the middle a polynomial in x^2, in the tails one in r = sqrt(-2 log p) (after Wichura, algorithm AS 241,
1988; these are Chebyshev interpolations in 60 digits). All compute in float64 and round once, but for erfinv
of float32, which is twice a polynomial in -log(1 - x^2) (after Giles, GPU Computing Gems, 2012).
"""

from __future__ import annotations

import math
from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr, call
from stratal.loops.math.arith import (
    INF,
    NAN,
    absolute,
    at_least,
    at_most,
    both,
    copysign,
    div,
    eq,
    fma,
    gt,
    in_float64,
    like,
    lt,
    mul,
    neg,
    polynomial,
    select,
    sqrt,
    sub,
    with_sign,
)
from stratal.loops.math.logarithm import log, log_of_normal

# ndtri(1/2 + x/2) / x in 32/9 x^2 - 1, |x| <= 3/4, degree 22: 2^-54.7
_CENTRE: Final = (
    1.3633324743487374, 0.13218344571930307, 0.0278475002155367, 0.007315745728935942, 0.002135070581730464,
    0.0006626284632388269, 0.00021410598388606108, 7.117615099063233e-05, 2.4166465258637757e-05,
    8.340139978875508e-06, 2.9158323949598926e-06, 1.0301719526289235e-06, 3.6718214306553354e-07,
    1.3199395831875786e-07, 4.7696497439335954e-08, 1.707102193670653e-08, 6.229339544805848e-09,
    2.571475446256949e-09, 9.478773140399233e-10, 1.4787717147257127e-10, 5.401883916540626e-11,
    1.0085580054532344e-10, 3.7668531307871773e-11,
)  # fmt: skip
# -ndtri(p) in (2r - 7)/3, r = sqrt(-2 log p), 2 <= r <= 5, degree 22: 2^-52.1
_NEAR: Final = (
    2.849777501782414, 1.6699313447255717, -0.0521818440835022, 0.017113918615612525, -0.005832330664410529,
    0.0020423750293705927, -0.0007308789645265626, 0.00026641978158885684, -9.869203285199277e-05,
    3.707955495940708e-05, -1.4103800198733318e-05, 5.421159345219968e-06, -2.1034041041146185e-06,
    8.253012742844541e-07, -3.250159968663279e-07, 1.241347181063363e-07, -4.937460497490027e-08,
    2.489157046814847e-08, -1.0031917314453762e-08, 4.336870891310091e-10, -1.598731586223703e-10,
    1.5081064612712364e-09, -6.15872451721035e-10,
)  # fmt: skip
# -ndtri(p) in (2r - 19)/9, 5 <= r <= 14, degree 24: 2^-54.0
_MIDDLE: Final = (
    9.162895182857289, 4.611862528453537, -0.042205099066390084, 0.016750627731862887,
    -0.006836338943186699, 0.0028405445663618883, -0.0011952155084031814, 0.0005076633411299949,
    -0.0002172253021632352, 9.35111545577735e-05, -4.0461284357773864e-05, 1.758795605616609e-05,
    -7.675048533396752e-06, 3.3541680232922765e-06, -1.4740415711282564e-06, 6.660561600632533e-07,
    -2.9477206301050713e-07, 1.0707131583171458e-07, -4.7422963201221324e-08, 4.441239577128587e-08,
    -2.0003835699808564e-08, -5.647846465916216e-09, 2.5942887065663302e-09, 4.144493267317506e-09,
    -1.879702770819011e-09,
)  # fmt: skip
# -ndtri(p) / r in (1/r - 27/560) 560/13, 14 <= r <= 40, degree 16: 2^-51.8
_FAR: Final = (
    0.9907889646750336, -0.007768428546180357, -0.0013453975804431381, 8.142333882545876e-05,
    -1.0493984361929163e-05, 2.027495488680448e-06, -4.866317463903723e-07, 1.335385298218832e-07,
    -4.011950204557296e-08, 1.2829789627191894e-08, -4.3189462664169675e-09, 1.5779126562320666e-09,
    -5.724251926539645e-10, 1.4075184759466657e-10, -5.150894630978911e-11, 6.047560107102326e-11,
    -2.4089189901272645e-11,
)  # fmt: skip
# erfinv(x) / x in w - 3/2 and in w - 21/2, w = -log(1 - x^2) <= 5 and >= 5, degree 9: 2^-25.3 and 2^-24.6
_SINGLE_NEAR: Final = (
    1.2520638704299927, 0.25036245584487915, 0.0008796065812930465, -0.0020923104602843523,
    0.0001778004370862618, 2.3218526621349156e-05, -5.3892899813945405e-06, -3.172289453345911e-08,
    1.0666897054534275e-07, -9.568027259376777e-09,
)  # fmt: skip
_SINGLE_FAR: Final = (
    3.0742058753967285, 0.15509864687919617, -0.0035624864976853132, 0.00015552551485598087,
    -7.583141723443987e-06, 3.049407268918003e-07, -4.243153828298318e-09, -1.8253406564028296e-09,
    4.944341602808322e-10, -4.113752394285797e-11,
)  # fmt: skip
_LN2: Final = math.log(2.0)


def _quantile(x: Expr, tail: Expr) -> Expr:
    """Return the normal quantile of 1/2 + x/2, of the sign of x; `tail` is the logarithm of (1 - |x|)/2."""
    a = at_most(absolute(x), 0.75)
    middle = mul(a, polynomial(fma(mul(a, a), like(32.0 / 9.0, x), like(-1.0, x)), _CENTRE))
    r = sqrt(mul(like(-2.0, x), tail))
    near = polynomial(fma(at_least(at_most(r, 5.0), 2.0), like(2 / 3, x), like(-7 / 3, x)), _NEAR)
    further = polynomial(fma(at_least(at_most(r, 14.0), 5.0), like(2 / 9, x), like(-19 / 9, x)), _MIDDLE)
    inverse = div(like(1.0, x), at_least(r, 14.0))
    far = mul(r, polynomial(fma(inverse, like(560 / 13, x), like(-27 / 13, x)), _FAR))
    beyond = select(lt(r, like(5.0, x)), near, select(lt(r, like(14.0, x)), further, far))
    beyond = select(eq(tail, like(-INF, x)), like(INF, x), beyond)
    size = select(lt(absolute(x), like(0.75, x)), middle, beyond)
    return select(gt(absolute(x), like(1.0, x)), like(NAN, x), with_sign(size, x))


@in_float64
def ndtri(p: Expr) -> Expr:
    """Return the number a normal variable lies below with probability p; infinite at 0 and 1, NaN beyond."""
    half, one = like(0.5, p), like(1.0, p)
    upper = gt(p, half)
    x = mul(like(2.0, p), sub(p, half))
    inside = both(call("ge", p, like(0.0, p)), call("le", p, one))
    return select(inside, _quantile(x, log(select(upper, sub(one, p), p))), like(NAN, p))


def erfinv(x: Expr) -> Expr:
    """Return the number whose erf is x; infinite at -1 and 1, NaN beyond."""
    return _erfinv32(x) if x.dtype is float32 else _erfinv64(x)


def _erfinv32(x: Expr) -> Expr:
    one, size = like(1.0, x), absolute(x)
    w = neg(log_of_normal(fma(neg(x), x, one)))
    near = polynomial(sub(w, like(1.5, x)), _SINGLE_NEAR)
    far = polynomial(sub(w, like(10.5, x)), _SINGLE_FAR)
    found = mul(x, select(lt(w, like(5.0, x)), near, far))
    edge = select(eq(size, one), copysign(like(INF, x), x), like(NAN, x))
    return select(lt(size, one), found, edge)


def _erfinv64(x: Expr) -> Expr:
    tail = sub(log(sub(like(1.0, x), absolute(x))), like(_LN2, x))
    found = mul(_quantile(x, tail), like(math.sqrt(0.5), x))
    return select(lt(absolute(x), like(1e-300, x)), mul(x, like(math.sqrt(math.pi) / 2, x)), found)


@in_float64
def erfcinv(x: Expr) -> Expr:
    """Return the number whose erfc is x; infinite at 0 and 2, NaN beyond."""
    one = like(1.0, x)
    tail = sub(log(select(lt(x, one), x, sub(like(2.0, x), x))), like(_LN2, x))
    inside = both(call("ge", x, like(0.0, x)), call("le", x, like(2.0, x)))
    found = mul(_quantile(sub(one, x), tail), like(math.sqrt(0.5), x))
    return select(inside, found, like(NAN, x))
