"""Products of tensors: matmul, einsum and their kin, all of them contractions."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from stratal.base.dims import known_equal
from stratal.base.dtypes import bool_, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.ops.views.in_memory import Layout, row_major
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import OPS, apply, as_tensor, common_dtype, iota, plain
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.reductions import signed, sum
from stratal.tensor.functions.shapes import as_axes, is_contiguous, permute_dims, reshape, view_of
from stratal.tensor.tensor import Tensor


def _pair(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    a, b = as_tensor(x, name), as_tensor(y, name)
    if a.dtype is b.dtype and not a.dtype.is_bool:
        return a, b
    dtype = common_dtype(name, (a, b))
    dtype = int64 if dtype is bool_ else dtype
    return cast(a, dtype), cast(b, dtype)


def contract(spec: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the contraction an einsum spec of two operands names."""
    return apply(OPS["contract"](spec), x, y)


def matmul(x: Any, y: Any, /) -> Tensor:
    """Return the matrix product; leading axes are batches that broadcast, a vector is a row or a column."""
    a, b = _pair("matmul", x, y)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            "matmul: a tensor without axes is no matrix", got=f"{a.type} @ {b.type}", hint="use *"
        )
    inner_a, inner_b = a.shape[-1], b.shape[-2 if b.ndim > 1 else -1]
    if not known_equal(inner_a, inner_b):
        raise ShapeError(
            "matmul: inner sizes differ",
            got=f"{a.type} @ {b.type}",
            hint=f"the second operand should have {inner_a} rows",
        )
    if a.ndim <= 2 and b.ndim <= 2:
        left, right = ("k", "mk")[a.ndim - 1], ("k", "kn")[b.ndim - 1]
        return contract(f"{left},{right}->{left[:-1]}{right[1:]}", a, b)
    return _batched(a, b)


def _batched(a: Tensor, b: Tensor) -> Tensor:
    rank = max(a.ndim, b.ndim, 3) - 2
    letters = ascii_letters[:rank].replace("k", "y").replace("m", "w").replace("n", "x")
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    kept_a, kept_b, out, sizes = "", "", "", []
    for k, letter in enumerate(letters):
        ia, ib = k - rank + len(batch_a), k - rank + len(batch_b)
        na = batch_a[ia] if ia >= 0 else 1
        nb = batch_b[ib] if ib >= 0 else 1
        one_a, one_b = known_equal(na, 1), known_equal(nb, 1)
        if not one_a and not one_b and not known_equal(na, nb):
            raise ShapeError("matmul: batch sizes differ", got=f"{a.type} @ {b.type}")
        kept_a += letter if not one_a else ""
        kept_b += letter if not one_b else ""
        out += letter if not (one_a and one_b) else ""
        sizes.append(nb if one_a else na)
    row, column = ("m" if a.ndim > 1 else ""), ("n" if b.ndim > 1 else "")
    x = _drop_ones(a, len(batch_a))
    y = _drop_ones(b, len(batch_b))
    tail = [*a.shape[-2:-1], *(b.shape[-1:] if column else ())]
    return reshape(contract(f"{kept_a}{row}k,{kept_b}k{column}->{out}{row}{column}", x, y), [*sizes, *tail])


def _drop_ones(t: Tensor, batch: int) -> Tensor:
    kept = [n for n in t.shape[:batch] if not known_equal(n, 1)]
    return reshape(t, [*kept, *t.shape[batch:]])


def mm(x: Any, y: Any) -> Tensor:
    """Return the product of two matrices."""
    a, b = as_tensor(x, "mm"), as_tensor(y, "mm")
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError(
            "mm: takes two matrices", got=f"{a.type} @ {b.type}", hint="matmul takes batches and vectors"
        )
    return matmul(a, b)


def bmm(x: Any, y: Any) -> Tensor:
    """Return the products of two batches of matrices."""
    a, b = as_tensor(x, "bmm"), as_tensor(y, "bmm")
    if a.ndim != 3 or b.ndim != 3 or not known_equal(a.shape[0], b.shape[0]):
        raise ShapeError("bmm: takes two batches of as many matrices", got=f"{a.type} @ {b.type}")
    return matmul(a, b)


def dot(x: Any, y: Any) -> Tensor:
    """Return the sum of products of two vectors."""
    a, b = as_tensor(x, "dot"), as_tensor(y, "dot")
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError("dot: takes two vectors", got=f"{a.type} and {b.type}")
    return matmul(a, b)


mv = matmul


def outer(x: Any, y: Any, /) -> Tensor:
    """Return the products of every element of one vector with every element of another."""
    a, b = as_tensor(x, "outer"), as_tensor(y, "outer")
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError("outer: takes two vectors", got=f"{a.type} and {b.type}")
    return reshape(a, (a.shape[0], 1)) * b


def vecdot(x: Any, y: Any, /, axis: int = -1) -> Tensor:
    """Return the sums of conj(x) y along an axis, of the same size in both; the other axes broadcast."""
    a, b = _pair("vecdot", x, y)
    rank = max(a.ndim, b.ndim)
    behind = check_axis("vecdot", axis, rank) - rank
    if min(a.ndim, b.ndim) < -behind or not known_equal(a.shape[behind], b.shape[behind]):
        raise ShapeError("vecdot: sizes along the axis differ", got=f"{a.type} and {b.type}, axis {axis}")
    left = apply(plain("conj"), a) if a.dtype.is_complex else a
    return sum(FUNCTIONS["multiply"](left, b), axis=behind, dtype=a.dtype)


def tensordot(x: Any, y: Any, /, axes: Any = 2) -> Tensor:
    """Return the sum of products over the last `axes` of x and the first of y, or over two given lists of
    axes.
    """
    a, b = _pair("tensordot", x, y)
    if isinstance(axes, int):
        over_a, over_b = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        one, two = axes
        over_a, over_b = as_axes("tensordot", one, a.ndim), as_axes("tensordot", two, b.ndim)
    if len(over_a) != len(over_b):
        raise AttributeValueError("tensordot: needs as many axes of each", got=f"{over_a} and {over_b}")
    left = list(ascii_letters[: a.ndim])
    right = list(ascii_letters[a.ndim : a.ndim + b.ndim])
    for p, q in zip(over_a, over_b, strict=True):
        right[q] = left[p]
    out = [c for k, c in enumerate(left) if k not in over_a] + [
        c for k, c in enumerate(right) if k not in over_b
    ]
    return contract(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


# -- einsum --------------------------------------------------------------------------------------------------
def einsum(spec: str, *operands: Any) -> Tensor:
    """Return the sum of products over the letters of `spec` that the result lacks. `...` stands for leading
    axes.

    Several operands are contracted from left to right.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])  # PyTorch takes a list of them, too
    given = [as_tensor(t, "einsum") for t in operands]
    if not given:
        raise AttributeValueError("einsum: needs at least one operand", got=repr(spec))
    terms, out = _parse(spec, given)
    dtype = common_dtype("einsum", given)
    given = [cast(t, int64 if dtype is bool_ else dtype) for t in given]
    given, terms = _without_ones(given, terms)
    current, letters = given[0], terms[0]
    current, letters = _single(current, letters, set(out).union(*terms[1:]))
    for k in range(1, len(given)):
        later = set(out).union(*terms[k + 1 :])
        other, theirs = _single(given[k], terms[k], later | set(letters))
        current, letters = _single(current, letters, later | set(theirs))
        result = "".join(dict.fromkeys(c for c in letters + theirs if c in later))
        result = out if k == len(given) - 1 and set(result) == set(out) else result
        current, letters = contract(f"{letters},{theirs}->{result}", current, other), result
    return permute_dims(current, [letters.index(c) for c in out])


def _parse(spec: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    text = spec.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise AttributeValueError(
            "einsum: needs one term per operand", got=f"{spec!r} with {len(operands)} operands"
        )
    unused = [c for c in reversed(ascii_letters) if c not in text]
    dots = ""  # the letters of `...`, the same from the right
    expanded = []
    for term, t in zip(terms, operands, strict=True):
        extra = t.ndim - len(term.replace("...", ""))
        if extra < 0 or (extra and "..." not in term):
            raise ShapeError(
                "einsum: a term has another number of axes than its operand", got=f"{term!r} for {t.type}"
            )
        own = "".join(unused[:extra][::-1]) if "..." in term else ""
        dots = max(dots, own, key=len)
        expanded.append(term.replace("...", own))
    if not arrow:
        joined = "".join(expanded)
        out = dots + "".join(sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots))
    out = out.replace("...", dots)
    for c in out:
        if out.count(c) > 1 or not any(c in term for term in expanded):
            raise AttributeValueError(
                "einsum: a letter of the result is repeated or stands in no term", got=f"{c!r} in {spec!r}"
            )
    return expanded, out


def _without_ones(given: list[Tensor], terms: list[str]) -> tuple[list[Tensor], list[str]]:
    """Drop axes of size 1 whose letter has another size elsewhere: they broadcast."""
    long = {
        c for t, term in zip(given, terms, strict=True) for c, n in zip(term, t.shape, strict=True)
        if not known_equal(n, 1)
    }  # fmt: skip
    tensors, kept = [], []
    for t, term in zip(given, terms, strict=True):
        stays = [k for k, c in enumerate(term) if c not in long or not known_equal(t.shape[k], 1)]
        tensors.append(t if len(stays) == len(term) else reshape(t, [t.shape[k] for k in stays]))
        kept.append("".join(term[k] for k in stays))
    return tensors, kept


def _single(t: Tensor, letters: str, needed: set[str]) -> tuple[Tensor, str]:
    """Take diagonals of repeated letters and sum over letters nobody else needs."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            t, letters = _merge(t, letters, c)
    over = tuple(k for k, c in enumerate(letters) if c not in needed)
    if over:
        t = sum(t, axis=over, dtype=t.dtype)
        letters = "".join(c for c in letters if c in needed)
    return t, letters


def _merge(t: Tensor, letters: str, c: str) -> tuple[Tensor, str]:
    first = letters.index(c)
    second = letters.index(c, first + 1)
    result = diagonal(t, dim1=first, dim2=second)
    rest = "".join(x for k, x in enumerate(letters) if k not in (first, second))
    return result, rest + c


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the elements whose two indices differ by `offset`, along a new last axis."""
    t = as_tensor(x, "diagonal")
    a, b = check_axis("diagonal", dim1, t.ndim), check_axis("diagonal", dim2, t.ndim)
    if a == b:
        raise AttributeValueError("diagonal: needs two axes", got=f"{dim1}, {dim2}")
    rest = [k for k in range(t.ndim) if k not in (a, b)]
    rows, columns = t.type.shape[a], t.type.shape[b]
    if not isinstance(rows, int) and not offset and known_equal(rows, columns):  # no step of n + 1 is known
        t = permute_dims(t, [*rest, a, b])
        at = [iota(t.shape, t.ndim - k) for k in (2, 1)]
        return sum(where(at[0] == at[1], t, 0), axis=-1, dtype=t.dtype)
    start = max(0, offset) if offset >= 0 else -offset * columns
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not length:
        start = 0  # an offset beyond the matrix names nothing
    stop = start + (length - 1) * (columns + 1) + 1 if length else start
    lead = [t.shape[k] for k in rest]
    zeros = (0,) * len(lead)
    ops = (
        OPS["permute"]((*rest, a, b)),
        OPS["reshape"]((*lead, rows * columns)),
        OPS["slice"]((*zeros, start), (*lead, stop), (*(1 for _ in lead), columns + 1)),
    )
    layout, in_order = None, [*rest, a, b] == list(range(t.ndim))
    if not is_contiguous(t) or not in_order:
        strides = row_major(t.shape).strides if t._view is None else t._view.layout.strides
        first = offset * strides[b] if offset > 0 else -offset * strides[a]
        layout = Layout(first, (*(strides[k] for k in rest), strides[a] + strides[b]))
    return view_of(t, *ops[in_order:], layout=layout)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sum along the diagonal of the first two axes; `linalg.trace` takes the last two."""
    return sum(diagonal(x, offset), axis=-1, dtype=signed(x, dtype))


def addmm(x: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * (mat1 @ mat2)."""
    dtype = common_dtype("addmm", (x, mat1, mat2))
    if dtype.compute is not dtype:
        wide = (cast(as_tensor(t, "addmm"), dtype.compute) for t in (x, mat1, mat2))
        return cast(addmm(*wide, beta=beta, alpha=alpha), dtype)
    product = mm(mat1, mat2)
    product = product if alpha == 1 else product * alpha
    start = as_tensor(x, "addmm")
    return FUNCTIONS["add"](start if beta == 1 else start * beta, product)


__all__ = [
    "addmm", "bmm", "diagonal", "dot", "einsum", "matmul", "mm", "mv", "outer", "tensordot", "trace",
    "vecdot",
]  # fmt: skip
