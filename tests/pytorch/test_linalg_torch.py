"""Gradients through `stratal.linalg`, real and complex, beside those of `torch.linalg`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stratal as st  # noqa: E402

pytestmark = pytest.mark.torch


def draw(*shape, whole=False):
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if whole else x


def positive(n, whole=False):
    x = draw(2, n, n, whole=whole)
    return x @ np.swapaxes(x, -1, -2).conj() + np.diag(np.arange(1.0, n + 1))


def size(x):
    """Return what of vectors does not depend on their phases."""
    return abs(x) ** 2


CALLS = {
    "inv": (lambda m, x: m.inv(x), (3, 3)),
    "det": (lambda m, x: m.det(x), (3, 3)),
    "slogdet": (lambda m, x: m.slogdet(x)[1], (3, 3)),
    "matrix_power": (lambda m, x: m.matrix_power(x, -3), (3, 3)),
    "matrix_exp": (lambda m, x: m.matrix_exp(x), (3, 3)),
    "eigvals": (lambda m, x: m.eigvals(x), (3, 3)),
    "eig": (lambda m, x: size(m.eig(x)[1]), (3, 3)),
    "svdvals": (lambda m, x: m.svdvals(x), (4, 3)),
    "svd left": (lambda m, x: size(m.svd(x, full_matrices=False)[0]), (4, 3)),
    "svd right": (lambda m, x: size(m.svd(x, full_matrices=False)[2]), (3, 4)),
    "svd full": (lambda m, x: m.svd(x)[1], (4, 3)),
    "qr": (lambda m, x: m.qr(x), (4, 3)),
    "qr wide": (lambda m, x: m.qr(x), (3, 4)),
    "qr complete": (lambda m, x: m.qr(x, mode="complete"), (3, 4)),
    "lu": (lambda m, x: m.lu(x)[1:], (3, 3)),
    "lu wide": (lambda m, x: m.lu(x)[1:], (3, 4)),
    "lu tall": (lambda m, x: m.lu(x)[1:], (4, 3)),
    "pinv": (lambda m, x: m.pinv(x), (4, 3)),
    "pinv wide": (lambda m, x: m.pinv(x), (3, 4)),
    "lstsq": (lambda m, x: m.lstsq(x, x[:, :, :1] ** 2)[0], (4, 3)),
    "cond": (lambda m, x: m.cond(x), (4, 3)),
    "nuclear": (lambda m, x: m.matrix_norm(x, "nuc"), (4, 3)),
    "spectral": (lambda m, x: m.norm(x, 2, dim=(1, 2)), (4, 3)),
    "vector_norm": (lambda m, x: m.vector_norm(x, 3, dim=-1), (4, 3)),
    "vander": (lambda m, x: m.vander(x), (2, 4)),
    "cross": (lambda m, x: m.cross(x[0], x[1], dim=-1), (4, 3)),
    "multi_dot": (lambda m, x: m.multi_dot([x[0], x[1], x[0]]), (3, 3)),
    "householder": (lambda m, x: m.householder_product(x, x[..., 0, :] * 0.3), (4, 3)),
    "solve": (lambda m, x: m.solve(x, x[..., :2] ** 2), (3, 3)),
    "solve right": (lambda m, x: m.solve(x, x[..., :2, :] ** 2, left=False), (3, 3)),
    "triangular": (lambda m, x: m.solve_triangular(x, x[..., :1], upper=False), (3, 3)),
    "triangular right": (
        lambda m, x: m.solve_triangular(x, x[..., :1, :], upper=True, left=False, unitriangular=True),
        (3, 3),
    ),
    "tensorinv": (lambda m, x: m.tensorinv(x, 1), (1, 2)),
}


def compare(function, x):
    """Compare values and the gradients of a weighted sum of them."""
    ours, theirs = st.tensor(x).requires_grad_(), torch.tensor(x, requires_grad=True)
    got, want = function(st.linalg, ours), function(torch.linalg, theirs)
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    total = wanted = 0.0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(
            g.detach().numpy(), w.detach().resolve_conj().numpy(), rtol=1e-8, atol=1e-8
        )
        weight = draw(*w.shape)
        total = total + (st.tensor(weight) * size(g)).sum()
        wanted = wanted + (torch.tensor(weight) * size(w)).sum()
    total.backward()
    wanted.backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.resolve_conj().numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("whole", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_agree(name, whole):
    function, shape = CALLS[name]
    compare(function, draw(2, *shape, whole=whole))


HERMITIAN = {
    "cholesky": lambda m, x: m.cholesky(x),
    "cholesky upper": lambda m, x: m.cholesky(x, upper=True),
    "eigvalsh": lambda m, x: m.eigvalsh(x),
    "eigh": lambda m, x: size(m.eigh(x)[1]),
}


@pytest.mark.parametrize("whole", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", HERMITIAN)
def test_gradients_of_hermitian_matrices_are_hermitian_as_pytorchs(name, whole):
    compare(HERMITIAN[name], positive(3, whole))


AS_METHODS = {
    "det": lambda m, x: m.det(x),
    "slogdet": lambda m, x: m.slogdet(x)[1],
    "logdet": lambda m, x: m.logdet(x * x.mH if x.dtype in (torch.float64, st.float64) else x),
    "inverse": lambda m, x: m.inverse(x),
    "pinverse": lambda m, x: m.pinverse(x[..., :2]),
    "matrix_exp": lambda m, x: m.matrix_exp(x),
    "matrix_power": lambda m, x: m.matrix_power(x, 3),
    "qr": lambda m, x: m.qr(x[..., :2]),
    "qr complete": lambda m, x: m.qr(x[..., :2, :], False),
    "svd": lambda m, x: m.svd(x[..., :2])[1],
    "svd V": lambda m, x: size(m.svd(x[..., :2, :])[2]),
    "svd values": lambda m, x: m.svd(x[..., :2], compute_uv=False)[1],
    "cholesky": lambda m, x: m.cholesky(x @ x.mH),
    "cholesky_solve": lambda m, x: m.cholesky_solve(x[..., :1], m.tril(x)),
    "cholesky_inverse": lambda m, x: m.cholesky_inverse(m.cholesky(x @ x.mH).mH, True),
}


@pytest.mark.parametrize("whole", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("name", AS_METHODS)
def test_functions_and_methods_outside_linalg_agree(name, whole):
    x = draw(2, 3, 3, whole=whole)
    compare(lambda m, t: AS_METHODS[name](torch if m is torch.linalg else st, t), x)
    compare(lambda m, t: AS_METHODS[name](torch.Tensor if m is torch.linalg else st.Tensor, t), x)


def test_shapes_of_factors_nobody_asked_for_are_pytorchs():
    x = draw(4, 3)
    for some in (True, False):
        got, want = st.tensor(x).svd(some, compute_uv=False), torch.tensor(x).svd(some, compute_uv=False)
        assert [g.shape for g in got] == [tuple(w.shape) for w in want]
        assert not got.U.numpy().any() and not got.V.numpy().any()
    products = [draw(2, 3), draw(3, 4), draw(4, 2)]
    want = torch.chain_matmul(*map(torch.tensor, products))
    np.testing.assert_allclose(st.chain_matmul(*products).numpy(), want.numpy())


def test_logarithms_of_determinants_that_have_none():
    x = np.stack([np.diag([1.0, -2]), np.zeros((2, 2)), np.eye(2)])
    np.testing.assert_array_equal(st.tensor(x).logdet().numpy(), torch.tensor(x).logdet().numpy())
