"""`stratal.linalg` against NumPy: values, shapes of empty stacks, errors, compiled functions, derivatives."""

import ctypes

import numpy as np
import pytest

import stratal as st
from stratal import linalg
from stratal.base import vendor
from stratal.ops.linalg import blocked, by_lapack, by_numpy, choice, library

F32, F64, C64, C128 = np.float32, np.float64, np.complex64, np.complex128


def draw(*shape, dtype=F64, seed=0):
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype in (C64, C128) else x).astype(dtype)


def positive(*shape, dtype=F64):
    x = draw(*shape, dtype=dtype)
    return (x @ np.swapaxes(x, -1, -2).conj() + np.eye(shape[-1])).astype(dtype)


def close(got, want, rtol=1e-9):
    got, want = np.asarray(got), np.asarray(want)
    rtol = 2e-4 if {F32, C64} & {got.dtype.type, want.dtype.type} else rtol
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


SQUARE = {
    "det": np.linalg.det,
    "inv": np.linalg.inv,
    "eigvals": np.linalg.eigvals,
    "svdvals": lambda x: np.linalg.svd(x, compute_uv=False),
    "pinv": np.linalg.pinv,
    "matrix_rank": np.linalg.matrix_rank,
    "cond": np.linalg.cond,
    "slogdet": np.linalg.slogdet,
}


@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
@pytest.mark.parametrize("name", SQUARE)
def test_functions_of_square_matrices_agree_with_numpy(name, dtype):
    x = draw(2, 4, 4, dtype=dtype)
    got, want = getattr(linalg, name)(x), SQUARE[name](x)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        close(g, w)


@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 3), (2, 3, 5)])
def test_factors_multiply_to_the_matrix(shape, dtype):
    x = draw(*shape, dtype=dtype)
    p, low, up = linalg.lu(x)
    close(p @ low @ up, x)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(x, mode=mode)
        close(q @ r, x)
        close(r, np.linalg.qr(x, mode=mode)[1])
    for full in (True, False):
        u, s, vh = map(np.asarray, linalg.svd(x, full_matrices=full))
        k = s.shape[-1]
        close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x)
        close(
            np.swapaxes(u, -1, -2).conj() @ u,
            np.broadcast_to(np.eye(u.shape[-1]), (*x.shape[:-2], *u.shape[-1:] * 2)),
        )


@pytest.mark.parametrize("dtype", [F64, C128])
def test_eigenvectors_are_turned_by_nothing(dtype):
    x, p = draw(2, 4, 4, dtype=dtype), positive(2, 4, 4, dtype=dtype)
    w, v = map(np.asarray, linalg.eig(x))
    close(x @ v, v * w[..., None, :])
    w, v = linalg.eigh(p)
    close(w, np.linalg.eigvalsh(p))
    close(np.asarray(v) * np.asarray(w)[..., None, :] @ np.swapaxes(np.asarray(v), -1, -2).conj(), p)
    close(linalg.cholesky(p), np.linalg.cholesky(p))
    close(linalg.cholesky(p, upper=True), np.swapaxes(np.linalg.cholesky(p), -1, -2).conj())


def test_one_triangle_is_read_where_it_is_named():
    p = positive(3, 3, dtype=C128)
    for name, part in (("L", np.tril(p)), ("U", np.triu(p))):
        close(linalg.eigvalsh(part, UPLO=name), np.linalg.eigvalsh(p))
        close(linalg.eigh(part, name).eigenvalues, np.linalg.eigvalsh(p))
    x = draw(3, 3)
    close(linalg.eigvalsh(x), np.linalg.eigvalsh(x))


@pytest.mark.parametrize("dtype", [F32, F64, C128])
def test_systems_are_solved(dtype):
    a, b = draw(2, 4, 4, dtype=dtype), draw(2, 4, 3, dtype=dtype)
    p = positive(2, 4, 4, dtype=dtype)
    want = np.linalg.solve(a, b)
    close(linalg.solve(a, b), want)
    close(linalg.solve(a, b[0]), np.linalg.solve(a, b[0]))
    close(linalg.solve(a[0], b), np.linalg.solve(a[0], b))
    close(st.vmap(linalg.solve, in_axes=(None, 0))(st.tensor(a[0]), st.tensor(b)), np.linalg.solve(a[0], b))
    assert linalg.solve(a[0], b[:0]).shape == (0, 4, 3)
    close(linalg.solve(a[0], b[0, :, 0]), np.linalg.solve(a[0], b[0, :, 0]))
    close(a @ np.asarray(linalg.solve(a, b[0, :, 0]))[..., None], np.broadcast_to(b[0, :, :1], (2, 4, 1)))
    turned = np.swapaxes(b, -1, -2)
    close(np.asarray(linalg.solve(a, turned, left=False)) @ a, turned)
    close(np.asarray(linalg.solve(a[0], turned[0, 0], left=False)) @ a[0], turned[0, 0])
    close(linalg.lu_solve(*linalg.lu_factor(a), b), want)
    close(linalg.cholesky_solve(b, linalg.cholesky(p)), np.linalg.solve(p, b))
    close(linalg.cholesky_solve(b, linalg.cholesky(p, upper=True), upper=True), np.linalg.solve(p, b))
    close(linalg.cholesky_inverse(linalg.cholesky(p)), np.linalg.inv(p))
    close(linalg.tensorsolve(draw(2, 3, 6), draw(2, 3)), np.linalg.tensorsolve(draw(2, 3, 6), draw(2, 3)))
    moved = draw(6, 2, 3)
    close(
        linalg.tensorsolve(moved, draw(2, 3), axes=(0,)), np.linalg.tensorsolve(moved, draw(2, 3), axes=(0,))
    )
    close(linalg.tensorinv(draw(6, 2, 3), ind=1), np.linalg.tensorinv(draw(6, 2, 3), ind=1))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
def test_triangular_systems_read_one_triangle(dtype, upper, unit):
    a, b = draw(2, 20, 20, dtype=dtype) / 5 + 3 * np.eye(20, dtype=dtype), draw(2, 20, 3, dtype=dtype)
    part = (np.triu if upper else np.tril)(a)
    if unit:
        part = part * (1 - np.eye(20)) + np.eye(20)
    want = np.linalg.solve(part.astype(C128), b)
    for solved in (linalg.solve_triangular(a, b, upper=upper, unitriangular=unit),
                   by_numpy.solve_triangular(a, b, not upper, unit)):  # fmt: skip
        rtol = 2e-3 if dtype in (F32, C64) else 1e-9
        np.testing.assert_allclose(np.asarray(solved), want, rtol=rtol, atol=1e-5)
    right = linalg.solve_triangular(a, np.swapaxes(b, -1, -2), upper=upper, left=False, unitriangular=unit)
    np.testing.assert_allclose(np.asarray(right) @ part, np.swapaxes(b, -1, -2), rtol=2e-3, atol=1e-3)


# -- LAPACK's functions and NumPy's --------------------------------------------------------------------------
needs_library = pytest.mark.skipif(library.library() is None, reason="NumPy came without its own OpenBLAS")


@pytest.fixture(params=["lapack", "numpy"])
def way(request, monkeypatch):
    """Run a test by LAPACK's own functions, and by NumPy's."""
    if request.param == "numpy":
        monkeypatch.setattr(choice, "library", lambda: None)
    elif library.library() is None:
        pytest.skip("NumPy came without its own OpenBLAS")


def adjoint(x):
    return np.swapaxes(x, -1, -2).conj()


SHAPES = [
    (50, 50),
    (2, 40, 70),
    (2, 70, 40),
    (2, 3, 4, 4),
    (1, 1),
    (2, 0, 3),
    (0, 3),
    (3, 0),
    (0, 3, 3),
]


@needs_library
@pytest.mark.parametrize("dtype", [F32, F64, C64, C128])
@pytest.mark.parametrize("shape", SHAPES)
def test_lapacks_functions_and_numpys_agree(shape, dtype):
    x, k = draw(*shape, dtype=dtype), min(shape[-2:])
    for full in (False, True):
        q, r = by_lapack.qr(x, full)
        u, s, vh = by_lapack.svd(x, full)
        wanted = (*by_numpy.qr(x, full), *by_numpy.svd(x, full))
        assert [(f.shape, f.dtype) for f in (q, r, u, s, vh)] == [(f.shape, f.dtype) for f in wanted]
        close(r, wanted[1])
        close(s, wanted[3])
        close(q @ r, x)
        close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x)
        for columns in (q, u, adjoint(vh)):
            close(
                adjoint(columns) @ columns,
                np.broadcast_to(np.eye(columns.shape[-1]), (*shape[:-2], *columns.shape[-1:] * 2)),
            )
    close(by_lapack.svdvals(x), s)
    for way in (by_lapack, by_numpy):
        packed, order = way.lu(x)
        low, up = np.tril(packed[..., :k], -1) + np.eye(shape[-2], k), np.triu(packed[..., :k, :])
        close(low @ up, np.take_along_axis(x, order[..., None], axis=-2))
    if dtype in (F32, F64):  # LAPACK compares |re| + |im| of complex pivots
        np.testing.assert_array_equal(by_lapack.lu(x)[1], order)
    if shape[-2] != shape[-1]:
        return
    p, b = (x @ adjoint(x) + shape[-1] * np.eye(shape[-1])).astype(dtype), draw(*shape[:-1], 3, dtype=dtype)
    close(by_lapack.cholesky(p), by_numpy.cholesky(p))
    close(by_lapack.solve(p, b), by_numpy.solve(p, b))
    (w, v), want = by_lapack.eigh(p), by_numpy.eigvalsh(p)
    close(w, want)
    close(by_lapack.eigvalsh(p), want)
    close(p @ v / shape[-1], v * w[..., None, :] / shape[-1])
    w, v = by_lapack.eig(x)
    close(x @ v, v * w[..., None, :], 1e-8)
    close(np.linalg.norm(v, axis=-2), np.ones(w.shape))
    assert w.dtype == v.dtype == np.result_type(dtype, C64) == by_lapack.eigvals(x).dtype
    close(np.sort(np.abs(by_lapack.eigvals(x))), np.sort(np.abs(by_numpy.eigvals(x))))
    close(by_lapack.eigvals(x).sum(axis=-1), np.trace(x, axis1=-2, axis2=-1))
    for got, want in zip(by_lapack.slogdet(x), by_numpy.slogdet(x), strict=True):
        close(got, want)
        assert got.dtype == want.dtype
    close(by_lapack.det(x / 4), by_numpy.det(x / 4))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [F32, F64, C128])
@pytest.mark.parametrize("shape", [(600, 5, 5), (70, 64, 64)])
def test_stacks_are_shared_out_among_threads(way, shape, dtype):
    a, b = draw(*shape, dtype=dtype), draw(*shape[:-1], 2, dtype=dtype)
    p = positive(*shape, dtype=dtype)
    low = np.tril(a) / 9 + 3 * np.eye(shape[-1], dtype=dtype)
    f = st.compile(lambda a, p, low, b: (
        *linalg.lu(a), linalg.solve(p, b), linalg.solve_triangular(low, b, upper=False), linalg.cholesky(p),
        *linalg.eigh(p), *linalg.svd(a), linalg.slogdet(a).logabsdet,
    ))  # fmt: skip
    p_, l_, u_, x, y, c, w, v, u, s, vh, size = map(np.asarray, f(*map(st.tensor, (a, p, low, b))))
    scale = np.abs(p).max()
    close(p_ @ l_ @ u_, a)
    close(p @ x / scale, b / scale)
    close(low @ y, b)
    close(c @ adjoint(c) / scale, p / scale)
    close(p @ v / scale, v * w[..., None, :] / scale)
    close(u * s[..., None, :] @ vh, a)
    close(size, np.linalg.slogdet(a.astype(C128))[1])


@pytest.mark.parametrize("dtype", [F32, C128])
def test_matrices_whose_rows_share_places_in_a_cache_are_turned_all_the_same(dtype):
    x = draw(2, 130, 256, dtype=dtype)
    for a in (x, x[..., :128], np.swapaxes(x, -1, -2)):
        got = by_lapack._turned(a)
        np.testing.assert_array_equal(got, np.swapaxes(a, -1, -2))
        assert got.flags.c_contiguous


def test_what_is_refused_is_named_the_same_way(way):
    stack = np.stack([np.eye(3)] * 4 + [np.zeros((3, 3))]).reshape(5, 1, 3, 3)
    for call in (lambda: linalg.inv(stack), lambda: linalg.cholesky(stack)):
        with pytest.raises(linalg.LinAlgError, match=r"matrix \[4, 0\] of f64"):
            call().numpy()
    stack[2] = np.nan
    for call in (linalg.svdvals, linalg.eigvals):
        with pytest.raises(linalg.LinAlgError, match="matrix \\[2, 0\\]"):
            call(stack).numpy()


@pytest.mark.parametrize("dtype", [F32, F64, C128])
def test_a_determinant_whose_factors_leave_the_range_does_not(way, dtype):
    big, little = np.sqrt(np.finfo(dtype).max) * 4, 1 / np.sqrt(np.finfo(dtype).max) / 4
    x = np.stack([np.diag([-big, big, little, little]), np.diag([little, little, big, -big]), 2 * np.eye(4)])
    close(linalg.det(x.astype(dtype)), [-1, -1, 16], 1e-6)
    close(np.real(linalg.det(np.diag([big] * 4).astype(dtype))), np.inf)
    close(linalg.det(np.zeros((3, 3), dtype)), 0)


@pytest.mark.parametrize("dtype", [F32, F64, C128])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 4), (40, 36)])
def test_least_squares_leave_out_what_the_pseudo_inverse_does(way, shape, dtype):
    u, _, vh = np.linalg.svd(draw(*shape, dtype=dtype), full_matrices=False)
    k, b = min(shape), draw(4, shape[0], 2, dtype=dtype)
    least = [1.0, 0.2, 0.15, 0.0]  # of the largest singular value, which is 1
    x = np.stack([(u * np.array([1.0] * (k - 1) + [s])) @ vh for s in least]).astype(dtype)
    for rcond in (None, 0.18):
        want = np.linalg.pinv(x.astype(C128), rcond=1e-5 if rcond is None else rcond) @ b
        found = linalg.lstsq(x, b, rcond)
        close(found.solution, want)
        assert found.rank.tolist() == [k, k, k if rcond is None else k - 1, k - 1]
    close(linalg.lstsq(x[1], b[1]).solution, np.linalg.pinv(x[1].astype(C128)) @ b[1])


def test_a_library_whose_integers_are_short_is_not_taken():
    def solve(*words):  # writes two pivots of 32 bits
        (ctypes.c_int32 * 2).from_address(words[4])[:] = [2, 2]

    assert not library._solves(solve)
    assert (library.library() is None) == (vendor.vendor() is None)


def test_halves_of_a_matrix_are_factorised_by_products():
    a = draw(40, 35, 50)
    packed = a.copy()
    order = blocked.lu_in_place(packed)
    low, up = np.tril(packed[..., :35], -1) + np.eye(35), np.triu(packed)
    close(low @ up, np.take_along_axis(a, order[..., None], axis=-2))


@pytest.mark.parametrize("ord", [0, 1, 2, 3, -1, 0.5, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [0, (0, 2), None])
def test_vector_norms_agree_with_numpy(ord, axis):
    x = draw(3, 4, 5, dtype=C128)
    axes = (0, 1, 2) if axis is None else (axis,) if axis == 0 else axis
    rows = np.moveaxis(x, axes, range(-len(axes), 0)).reshape(
        *(n for k, n in enumerate(x.shape) if k not in axes), -1
    )
    want = np.expand_dims(np.linalg.norm(rows, ord, -1), axes)
    close(linalg.vector_norm(x, ord=ord, axis=axis, keepdims=True), want)
    close(linalg.vector_norm(x, ord, axis, keepdim=True), want)


@pytest.mark.parametrize("ord", [1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"])
def test_matrix_norms_and_conditions_agree_with_numpy(ord):
    x = draw(3, 4, 2, 4)
    for axes in ((-2, -1), (0, 1), (3, 0)):
        want = np.linalg.norm(x, ord, axes, keepdims=True)
        close(linalg.matrix_norm(x, ord=ord, axis=axes, keepdims=True), want)
        close(linalg.norm(x, ord, dim=axes, keepdim=True), want)
    square = draw(2, 4, 4)
    close(linalg.cond(square, ord), np.linalg.cond(square, ord))
    assert linalg.cond(np.zeros((2, 2)), 1).item() == np.inf


def test_the_norm_of_everything_and_of_one_vector_or_matrix():
    x = draw(3, 4)
    close(linalg.norm(x), np.linalg.norm(x))
    close(linalg.norm(draw(2, 3, 4)), np.linalg.norm(draw(2, 3, 4)))
    close(linalg.norm(x, 1), np.linalg.norm(x, 1))
    close(linalg.norm(x[0], 3), np.linalg.norm(x[0], 3))
    assert linalg.vector_norm(draw(3, dtype=F32)).dtype is st.float32
    assert linalg.vector_norm(draw(3, dtype=F32), dtype=st.float64).dtype is st.float64


@pytest.mark.quick
@pytest.mark.parametrize("power", [0, 1, 2, 7, -1, -3])
def test_powers_of_matrices(power):
    x = draw(2, 3, 3)
    close(linalg.matrix_power(x, power), np.linalg.matrix_power(x, power))


def test_the_exponential_squares_as_often_as_each_matrix_needs():
    rotation = np.array([[0.0, -1.0], [1.0, 0.0]])
    for angle in (0.0, 1e-9, 0.5, 3.0, 100.0):
        c, s = np.cos(angle), np.sin(angle)
        close(linalg.matrix_exp(angle * rotation), [[c, -s], [s, c]], 1e-8)
    stack = np.stack([np.diag([1.0, -2.0]), np.diag([300.0, -300.0]), np.full((2, 2), np.inf)])
    got = np.asarray(linalg.matrix_exp(stack))
    close(got[:2], [np.diag(np.exp([1, -2.0])), np.diag(np.exp([300, -300.0]))])
    assert np.isnan(got[2]).all()
    assert np.asarray(linalg.matrix_exp(np.full((1, 1), 1e308)))[0, 0] == np.inf


@pytest.mark.quick
def test_products():
    chain = [draw(4, 9), draw(9, 2), draw(2, 7), draw(7)]
    close(linalg.multi_dot(chain), np.linalg.multi_dot(chain))
    close(linalg.multi_dot(chain[:2]), chain[0] @ chain[1])
    close(linalg.multi_dot([chain[3], chain[3]]), chain[3] @ chain[3])
    x, y = draw(2, 3, 4), draw(3, 1)
    close(linalg.cross(x, y, axis=-2), np.cross(x, y[None], axis=-2))
    close(linalg.vander(x, 3), x[..., None] ** np.arange(3))
    assert linalg.vander(np.array([2, 3]), 0).shape == (2, 0)
    assert linalg.vander(np.array([2, 3])).dtype is st.int64
    x, y = draw(2, 4, dtype=C128), draw(4, dtype=C128)
    close(linalg.vecdot(x, y), (x.conj() * y).sum(-1))


def test_rank_pseudo_inverse_and_least_squares_take_cutoffs():
    x = draw(2, 5, 2) @ draw(2, 2, 3)
    close(linalg.matrix_rank(x), [2, 2])
    close(linalg.matrix_rank(x[0] @ x[0].T, hermitian=True), 2)
    close(linalg.matrix_rank(np.diag([3.0, 1.0, 0.1]), rtol=0.5), 1)
    close(linalg.matrix_rank(np.diag([3.0, 1.0, 0.1]), 0.5), 2)
    close(linalg.matrix_rank(np.stack([np.diag([3.0, 1.0])] * 2), rtol=np.array([0.1, 0.5])), [2, 1])
    close(linalg.pinv(np.diag([4.0, 1.0]), rtol=0.5), np.diag([0.25, 0]))
    close(linalg.pinv(np.diag([4.0, 1.0]), atol=2.0), np.diag([0.25, 0]))
    close(linalg.pinv(x), np.linalg.pinv(x))
    b = draw(5, 2)
    for a in (draw(5, 3), x[0], draw(5, 5)):
        want = np.linalg.lstsq(a, b, rcond=None)
        got = linalg.lstsq(a, b)
        close(got.solution, want[0])
        close(got.rank, want[2])
        close(got.singular_values, want[3], 1e-8)
    close(linalg.lstsq(draw(5, 3), b).residuals, np.linalg.lstsq(draw(5, 3), b, rcond=None)[1])
    vector = linalg.lstsq(draw(5, 3), b[:, 0])
    assert vector.solution.shape == (3,) and vector.residuals.shape == (1,)  # as NumPy's


# -- nothing, and what is wrong ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["det", "inv", "cholesky", "eigvalsh", "eigvals", "matrix_exp", "slogdet",
"eigh", "lu",
                                  "qr", "svdvals", "pinv", "matrix_rank"])  # fmt: skip
@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)])
def test_empty_stacks_have_the_shapes_numpy_gives_them(name, shape):
    own = {"matrix_exp": lambda x: x, "lu": lambda x: (x, x, x)}
    wanted = own.get(name) or SQUARE.get(name) or getattr(np.linalg, name)
    want, got = wanted(np.zeros(shape)), getattr(linalg, name)(np.zeros(shape))
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    assert [g.numpy().shape for g, _ in pairs] == [
        np.shape(w) for w in (want if isinstance(want, tuple) else [want])
    ]


ZERO, NAN = np.zeros((3, 3)), np.full((3, 3), np.nan)
REFUSED = {
    "inv": (lambda: linalg.inv(ZERO), "singular"),
    "solve": (lambda: linalg.solve(np.stack([np.eye(3), ZERO]), np.ones(3)), "matrix \\[1\\]"),
    "cholesky": (lambda: linalg.cholesky(-np.eye(3)), "not positive definite"),
    "power": (lambda: linalg.matrix_power(ZERO, -1), "singular"),
    "triangular": (lambda: linalg.solve_triangular(ZERO, np.eye(3), upper=True), "singular"),
    "svd": (lambda: linalg.svdvals(NAN), "converge"),
    "eigh": (lambda: linalg.eigvalsh(NAN), "converge"),
    "eig": (lambda: linalg.eigvals(NAN), "converge"),
    "pinv": (lambda: linalg.pinv(NAN), "converge"),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_lapack_refuses_is_an_error_that_names_the_line(name, eager):
    call, says = REFUSED[name]
    with pytest.raises(np.linalg.LinAlgError, match=says) as caught:
        if eager:
            with st.eager():
                call().numpy()
        else:
            call().numpy()
    assert isinstance(caught.value, linalg.LinAlgError)
    assert [line.file.endswith("test_linalg.py") for line in caught.value.where] == [True]
    assert caught.value.where[0].line == call.__code__.co_firstlineno


def test_a_compiled_function_raises_and_computes_again():
    step = st.compile(lambda a, b: linalg.solve(a, b) + 1.0)
    a, b = st.tensor(draw(3, 3)), st.tensor(draw(3, 2))
    close(step(a, b), np.linalg.solve(a.numpy(), b.numpy()) + 1)
    with pytest.raises(linalg.LinAlgError, match="singular"):
        step(st.zeros((3, 3), dtype=st.float64), b)
    close(step(a, b), np.linalg.solve(a.numpy(), b.numpy()) + 1)


def test_a_compiled_step_that_fails_leaves_its_states_as_they_were():
    count = st.zeros((64,))

    @st.compile
    def step(x):
        count.add_(1.0)
        return linalg.cholesky(st.tanh(x @ x)).sum()

    step(st.eye(3))
    with pytest.raises(linalg.LinAlgError):
        step(st.zeros((3, 3)))
    assert count.numpy().tolist() == [1.0] * 64
    step(st.eye(3))
    assert count.numpy().tolist() == [2.0] * 64


BAD = {
    "half": (lambda: linalg.inv(st.zeros((2, 2), dtype=st.float16)), TypeError, "takes float32"),
    "wide": (lambda: linalg.inv(np.zeros((2, 3))), ValueError, "square"),
    "vector": (lambda: linalg.qr(np.zeros(3)), ValueError, "two axes"),
    "text": (lambda: linalg.det("no"), TypeError, "takes tensors"),
    "rows": (lambda: linalg.solve(np.eye(3), np.ones((4, 2))), ValueError, "right-hand side"),
    "batch": (lambda: linalg.solve(np.zeros((2, 3, 3)), np.ones((4, 3, 2))), ValueError, "broadcast"),
    "mode": (lambda: linalg.qr(np.eye(3), mode="full"), ValueError, "mode"),
    "uplo": (lambda: linalg.eigh(np.eye(3), "X"), ValueError, "UPLO"),
    "ord": (lambda: linalg.matrix_norm(np.eye(3), ord=3), ValueError, "ord"),
    "vector ord": (lambda: linalg.vector_norm(np.ones(3), ord="fro"), ValueError, "ord"),
    "no ord": (lambda: linalg.matrix_norm(np.eye(3), ord=[2]), ValueError, "ord"),
    "axes": (lambda: linalg.matrix_norm(np.eye(3), axis=(0,)), ValueError, "two axes"),
    "norm": (lambda: linalg.norm(np.zeros((2, 2, 2)), 2), ValueError, "vector or a matrix"),
    "power": (lambda: linalg.matrix_power(np.eye(2), 0.5), ValueError, "int"),
    "chain": (lambda: linalg.multi_dot([np.eye(2), np.eye(3)]), ValueError, "inner sizes"),
    "one": (lambda: linalg.multi_dot([np.eye(2)]), ValueError, "two or more"),
    "cross": (lambda: linalg.cross(np.ones(2), np.ones(2)), ValueError, "three elements"),
    "vecdot": (lambda: linalg.vecdot(np.ones(3), np.ones(1)), ValueError, "sizes along"),
    "vander": (lambda: linalg.vander(np.ones(3), -1), ValueError, "negative"),
    "reflections": (lambda: linalg.householder_product(np.ones((2, 3)), np.ones(2)), ValueError, "tau"),
    "ind": (lambda: linalg.tensorinv(np.ones((2, 3))), ValueError, "ind|elements"),
    "tensorsolve": (lambda: linalg.tensorsolve(np.ones((2, 3)), np.ones(2)), ValueError, "as many"),
    "lstsq": (lambda: linalg.lstsq(np.ones((3, 2)), np.ones((2, 1))), ValueError, "rows"),
    "cond": (lambda: linalg.cond(np.zeros((0, 3))), ValueError, "empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_at_once(name):
    call, kind, says = BAD[name]
    with pytest.raises(kind, match=says) as caught:
        call()
    assert isinstance(caught.value, st.StratalError)


# -- derivatives ---------------------------------------------------------------------------------------------
def turned(v):
    """Return what of vectors does not depend on their phases."""
    return st.abs(v) ** 2


def hermitian(x):
    """Return what moves in both triangles with each element: derivatives take matrices to be Hermitian."""
    return (x + (st.conj(x) if x.dtype.is_complex else x).mT) / 2


def eigen(x):
    w, v = linalg.eigh(hermitian(x))
    return [w, turned(v)]


SMOOTH = {
    "cholesky": (lambda x: linalg.cholesky(hermitian(x)), positive(3, 3)),
    "eigh": (eigen, positive(3, 3)),
    "complex eigh": (eigen, positive(2, 2, dtype=C128)),
    "eigh U": (lambda x: linalg.eigvalsh(hermitian(x), "U"), positive(3, 3)),
    "eig": (lambda x: turned(linalg.eig(x)[1]), draw(3, 3)),
    "complex eig": (lambda x: turned(linalg.eig(x)[1]), draw(2, 2, dtype=C128)),
    "complex svd": (lambda x: [turned(v) for v in linalg.svd(x)], draw(3, 2, dtype=C128)),
    "full svd": (lambda x: [turned(v) for v in linalg.svd(x)], draw(3, 2)),
    "det": (linalg.det, draw(3, 3)),
    "slogdet": (linalg.slogdet, draw(2, 2, dtype=C128)),
    "pinv": (linalg.pinv, np.eye(3)),
    "lstsq": (lambda x: linalg.lstsq(x, x[:, :1] ** 2).solution, draw(4, 2)),
    "lstsq of a low rank": (lambda x: linalg.lstsq(x[:, :1] * x[:1], x).solution, draw(3, 2)),
    "wide lstsq": (lambda x: linalg.lstsq(x[:2], x[:2, 1:] ** 2).solution, draw(2, 3)),
    "lu_solve": (lambda x: linalg.lu_solve(*linalg.lu_factor(x), x[:, :1]), draw(3, 3)),
    "householder": (lambda x: linalg.householder_product(x, x[0] * 0.3), draw(4, 2)),
    "nuclear": (lambda x: linalg.matrix_norm(x, "nuc"), draw(3, 2)),
    "vector_norm": (lambda x: linalg.vector_norm(x, 3, axis=0), draw(3, 2)),
    "multi_dot": (lambda x: linalg.multi_dot([x, x, x[0]]), draw(2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_finite_differences_to_second_order(name):
    function, x = SMOOTH[name]
    assert st.check_grad(function, [x], order=2 if x.size < 9 else 1).ok


def test_a_tall_complete_factorisation_is_not_differentiable():
    x = st.tensor(draw(3, 2)).requires_grad_()
    with pytest.raises(st.StratalError, match="complete"):
        linalg.qr(x, mode="complete").Q.sum().backward()
    linalg.qr(x, mode="reduced").Q.sum().backward()


def test_a_gradient_is_zero_at_the_origin_of_a_norm():
    x = st.zeros((2, 3)).requires_grad_()
    (linalg.vector_norm(x) + linalg.matrix_norm(x) + linalg.norm(x, 3, axis=1).sum()).backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros((2, 3)))


SINGULAR = {
    "rank 1 of 2": [[1.0, 2], [2, 4]],
    "rank 2": [[1.0, 2, 3], [4, 5, 6], [7, 8, 9]],
    "rank 2, of zeros": [[0.0, 0, 0], [0, 3, 1], [0, 2, 1]],
    "rank 1 of 3": [[1.0, 2, 3], [2, 4, 6], [3, 6, 9]],
    "0 of 1": [[0.0]],
    "0 of 2": [[0.0, 0], [0, 0]],
    "complex": [[1j, 2], [-2, 4j]],
}


@pytest.mark.parametrize("name", SINGULAR)
def test_the_gradient_of_a_determinant_is_its_cofactors_of_singular_matrices_too(name):
    a = np.array(SINGULAR[name])
    n = len(a)
    rest = [[np.delete(np.delete(a, i, 0), j, 1) for j in range(n)] for i in range(n)]
    cofactors = [[(-1) ** (i + j) * np.linalg.det(rest[i][j]) for j in range(n)] for i in range(n)]
    x = st.tensor(a, requires_grad=True)
    value = linalg.det(st.stack([x, x + 1]))[0]
    close(value, 0)
    (value if a.dtype == F64 else st.real(value)).backward()
    close(x.grad, np.conj(cofactors))
    close(st.jvp(linalg.det, [a], [np.ones_like(a)])[1], np.sum(cofactors))
