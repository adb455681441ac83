"""The Fourier transform along one axis, in real numbers: what `fft`, `rfft` and `irfft` become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import as_int, known_equal
from stratal.base.dtypes import DType, float16, float32, float64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Nest
from stratal.ops.fourier.lengths import MOST, is_smooth

FORMS = ("complex", "from_real", "to_real")


@record
class DFT(Op):
    """The sum over j of x[:, j] exp(-2 pi i j k / n), times `scale`; + instead of - where `inverse`.

    Complex numbers are pairs. The second operand is `roots(n)`; n has no large prime factor, and is even
    where one side is real. What `form` says:

        complex    x [r, n, c, 2]          ->  [r, n, c, 2]
        from_real  x [r, n, c]             ->  [r, count, c, 2], the first terms
        to_real    x [r, n / 2 + 1, c, 2]  ->  [r, n, c]; the other terms are conjugates of these
    """

    form: str
    scale: float
    inverse: bool = False
    count: int = 0  # of terms, from_real
    arity = 2
    not_differentiable = "the compiler makes it of fft, rfft and irfft, once derivatives are taken"
    not_batched = not_differentiable

    def length(self, x: TensorType) -> int:
        """Return n."""
        size = as_int(x.shape[1])
        return 2 * (size - 1) if self.form == "to_real" else size

    def infer(self, *types: TensorType) -> TensorType:
        x, table = types
        if self.form not in FORMS:
            raise AttributeValueError("dft: no such form", got=repr(self.form), hint=", ".join(FORMS))
        if x.dtype not in (float32, float64) or table.dtype is not x.dtype:
            raise DTypeError("dft: takes float32 or float64", got=f"{x}, {table}")
        pairs = self.form != "from_real"
        if x.ndim != 3 + pairs or (pairs and not known_equal(x.shape[3], 2)):
            raise ShapeError("dft: takes rows, numbers along them, columns and parts", got=str(x))
        r, _, c = x.shape[:3]
        n = self.length(x)
        if not known_equal(table.shape[0], n) or n > MOST or not is_smooth(n):
            raise ShapeError("dft: takes roots of a length that can be cut up", got=f"{x}, {table}")
        if self.form != "complex" and n % 2:
            raise ShapeError("dft: real transforms are of even length", got=f"{x}")
        shape = {"complex": (r, n, c, 2), "from_real": (r, self.count, c, 2), "to_real": (r, n, c)}
        return x.with_shape(shape[self.form])

    def ref(self, *arrays: Array) -> Array:
        x, table = arrays
        n = len(table)
        if self.form == "from_real":
            z: Array = np.fft.fft(x, axis=1)[:, : self.count]
        else:
            z = x[..., 0] + 1j * x[..., 1]
        if self.form == "complex":
            z = np.fft.ifft(z, axis=1, norm="forward") if self.inverse else np.fft.fft(z, axis=1)
        if self.form == "to_real":
            return np.asarray(np.fft.irfft(z, n, axis=1, norm="forward") * self.scale, x.dtype)
        return np.stack([z.real * self.scale, z.imag * self.scale], -1).astype(x.dtype)

    def lower(self, *types: TensorType) -> Lowered:
        return Nest("dft")

    def cost(self, *types: TensorType) -> Cost:
        """Five operations per complex number and doubling."""
        out = self.infer(*types)
        n = self.length(types[0])
        flops = (5.0 if self.form == "complex" else 2.5) * n * np.log2(max(n, 2))
        batch = as_int(types[0].shape[0]) * as_int(types[0].shape[2])
        return Cost(float(flops) * batch, float(types[0].nbytes), float(out.nbytes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float64, float32):
            for r, n, c in (
                (3, 6, 1), (1, 8, 5), (17, 30, 1), (2, 40, 19), (0, 4, 1), (2, 1, 3), (33, 16, 2),
            ):  # fmt: skip
                for inverse in (False, True):
                    yield _sample(cls("complex", 0.5, inverse), dtype, (r, n, c, 2), n)
                if n % 2 == 0:
                    yield _sample(cls("from_real", 2.0, count=n // 2 + 1), dtype, (r, n, c), n)
                    yield _sample(cls("from_real", 1.0, count=n), dtype, (r, n, c), n)
                    yield _sample(cls("to_real", 1.0 / n, True), dtype, (r, n // 2 + 1, c, 2), n)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, table = TensorType(float32, (2, 4, 3, 2)), TensorType(float32, (4, 2))
        yield Reject(cls("real", 1.0), (x, table), "form")
        yield Reject(cls("complex", 1.0), (x.with_dtype(float16), table), "takes")
        yield Reject(cls("complex", 1.0), (TensorType(float32, (2, 4)), table), "takes rows")
        yield Reject(cls("complex", 1.0), (x, TensorType(float32, (5, 2))), "roots")
        odd = TensorType(float32, (2, 5, 3)), TensorType(float32, (5, 2))
        yield Reject(cls("from_real", 1.0, count=3), odd, "even")


def roots(n: int, dtype: DType) -> Array:
    """Return exp(-2 pi i k / n) for k < n, as pairs: angles beyond pi / 4 are turned back."""
    k = np.arange(n)
    eighth, rest = np.divmod(8 * k + n, 2 * n)  # the nearest quarter turn; rest / n is 8 times a small angle
    angle = (rest - n) * (np.pi / (4 * n))
    c, s = np.cos(angle), np.sin(angle)
    quarter = eighth % 4
    re = np.select([quarter == 0, quarter == 1, quarter == 2], [c, -s, -c], s)
    im = np.select([quarter == 0, quarter == 1, quarter == 2], [-s, -c, s], c)
    return np.stack([re, im], -1).astype(dtype.np)


def _sample(op: DFT, dtype: DType, shape: tuple[int, ...], n: int) -> Sample:
    def draw(rng: np.random.Generator) -> Sequence[Array]:
        return rng.standard_normal(shape).astype(dtype.np), roots(n, dtype)

    return Sample(op, (TensorType(dtype, shape), TensorType(dtype, (n, 2))), draw=draw)
