"""What records of linear algebra share: type rules, errors, matrices to test on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, known_equal, upper_bound
from stratal.base.dtypes import DType, as_dtype, complex64, complex128, float16, float32, float64
from stratal.base.errors import DTypeError, LinAlgError, ShapeError
from stratal.base.types import TensorType, Type
from stratal.graph.op import Array, Draw, Reject, Sample
from stratal.ops.families import RowWise

DTYPES = (float64, float32, complex128, complex64)
SQUARE = ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2))
ANY_SHAPE = ((3, 3), (4, 2), (2, 4), (2, 2, 2), (1, 1), (0, 2), (0, 0), (0, 2, 2))
NO_CONVERGENCE = "the iteration did not converge"


class OnMatrices(RowWise):
    """Works on each matrix of a stack, whose leading axes all operands share. What may fail is not folded."""

    foldable = False
    not_lowered = "LAPACK factorises matrices, as a host call"
    work: ClassVar[float]  # operations on a matrix of the first operand, in m n min(m, n)
    is_square: ClassVar[bool] = False  # takes one stack of square matrices
    shapes: ClassVar[Sequence[tuple[int, ...]]]  # of samples
    spread: ClassVar[float] = 1.0  # of singular values of samples; see draw_matrices
    positive: ClassVar[bool] = False  # whether samples are positive definite

    def infer(self, *types: TensorType) -> Type:
        (check_square if self.is_square else check_matrix)(self.name, *types)
        return types[0]

    def cost(self, *types: TensorType) -> Cost:
        return cubic(types, self.work)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in DTYPES:
            for shape in cls.shapes:
                types = types_of(dtype, shape)
                draw = draw_matrices(types, spread=cls.spread, positive=cls.positive)
                yield Sample(cls(), types, draw=draw)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), types_of(float32, (3,)), "two axes")
        yield Reject(cls(), types_of(float16, (3, 3)), "takes")
        if cls.is_square:
            yield Reject(cls(), types_of(float32, (2, 3)), "square")


# -- types ---------------------------------------------------------------------------------------------------
def check_matrix(name: str, *types: TensorType) -> None:
    """Refuse what is no stack of matrices of one dtype that LAPACK has. Raises: ShapeError, DTypeError."""
    for t in types:
        if t.ndim < 2:
            raise ShapeError(f"{name}: takes matrices, with at least two axes", got=str(t))
        if t.dtype not in DTYPES:
            raise DTypeError(
                f"{name}: takes float32, float64, complex64, complex128", got=str(t), hint="cast to float32"
            )
        if t.dtype is not types[0].dtype:
            raise DTypeError(f"{name}: operands differ in dtype", got=", ".join(map(str, types)))


def check_square(name: str, *types: TensorType) -> None:
    """Refuse matrices whose first is not square. Raises: ShapeError, DTypeError."""
    check_matrix(name, *types)
    if not known_equal(*types[0].shape[-2:]):
        raise ShapeError(f"{name}: takes square matrices", got=str(types[0]))


def check_system(name: str, a: TensorType, b: TensorType) -> None:
    """Refuse what is no stack of systems A X = B, A [..., n, n] and B [..., n, k]."""
    check_square(name, a, b)
    if a.shape[:-2] != b.shape[:-2] or not known_equal(a.shape[-1], b.shape[-2]):
        raise ShapeError(
            f"{name}: sizes of matrix and right-hand side differ", got=f"{a} and {b}",
            hint=f"the right-hand side should be {[*a.shape[:-1], 'k']}",
        )  # fmt: skip


def smaller(m: Dim, n: Dim) -> Dim:
    """Return the lesser of two sizes. Raises: ShapeError where symbols do not say which it is."""
    return m if known_equal(m, n) or m < n else n


def cubic(types: Sequence[TensorType], factor: float) -> Cost:
    """Return the cost of `factor` m n min(m, n) operations on each matrix of the first operand."""
    x = types[0]
    m, n = map(upper_bound, x.shape[-2:])
    read = float(sum(t.nbytes for t in types))
    return Cost(factor * upper_bound(x.size) * min(m, n), read, read)


# -- what LAPACK refuses -------------------------------------------------------------------------------------
class Refused(Exception):
    """A factorisation does not exist, or was not found, of the matrix of a stack at `place`."""

    def __init__(self, place: Iterable[int]) -> None:
        super().__init__()
        self.place = tuple(map(int, place))


@contextmanager
def refusing(name: str, fault: str, matrices: Array) -> Iterator[None]:
    """Say which matrix of a stack was refused, and why. Raises: LinAlgError."""
    try:
        yield
    except Refused as refused:
        got = TensorType(as_dtype(matrices.dtype), matrices.shape)
        hint = (
            "NaN and infinite elements do that: st.isfinite(x) finds them" if fault is NO_CONVERGENCE else ""
        )
        raise LinAlgError(
            f"{name}: {fault}", got=f"matrix {list(refused.place)} of {got}" if refused.place else str(got),
            hint=hint,
        ) from None  # fmt: skip


# -- matrices to test on -------------------------------------------------------------------------------------
def types_of(dtype: DType, *shapes: tuple[int, ...]) -> tuple[TensorType, ...]:
    """Return tensor types of one dtype."""
    return tuple(TensorType(dtype, shape) for shape in shapes)


def draw_matrices(types: Sequence[TensorType], *, spread: float = 1.0, positive: bool = False) -> Draw:
    """Return a drawing of well-conditioned operands, whose first has singular values apart from each other.

    They are random orthonormal vectors times 1, 1 + spread, ...; `positive`: the same on both sides.
    """

    def draw(rng: np.random.Generator) -> Sequence[Array]:
        arrays = [_random(rng, t) for t in types]
        first = arrays[0]
        k = min(first.shape[-2:])
        if k and first.size:
            u, _, vh = np.linalg.svd(first, full_matrices=False)
            u, vh = (np.swapaxes(vh, -1, -2).conj(), vh) if positive else (u, vh)
            arrays[0] = (u * (1 + spread * np.arange(k)) @ vh).astype(types[0].dtype.np)
        return arrays

    return draw


def _random(rng: np.random.Generator, t: TensorType) -> Array:
    values = rng.uniform(-1, 1, t.ints)
    if t.dtype.is_complex:
        values = values + 1j * rng.uniform(-1, 1, t.ints)
    return np.asarray(values).astype(t.dtype.np)
