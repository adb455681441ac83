"""What takes Hermitian matrices reads one triangle, and has Hermitian gradients: as PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stratal as st  # noqa: E402

pytestmark = pytest.mark.torch

CALLS = {
    "cholesky": lambda m, x: m.linalg.cholesky(x),
    "cholesky upper": lambda m, x: m.linalg.cholesky(x, upper=True),
    "cholesky method": lambda m, x: x.cholesky(),
    "cholesky method upper": lambda m, x: x.cholesky(upper=True),
    "eigvalsh": lambda m, x: m.linalg.eigvalsh(x),
    "eigvalsh U": lambda m, x: m.linalg.eigvalsh(x, UPLO="U"),
    "eigh": lambda m, x: m.linalg.eigh(x)[0],
    "eigh vectors": lambda m, x: abs(m.linalg.eigh(x)[1]),
    "eigh vectors L": lambda m, x: abs(m.linalg.eigh(x, "L")[1]),
    "eigh vectors U": lambda m, x: abs(m.linalg.eigh(x, "U")[1]),
    "pinv": lambda m, x: m.linalg.pinv(x, hermitian=True),
    "matrix_rank": lambda m, x: m.linalg.matrix_rank(x, hermitian=True),
}
REAL = {
    "normal": lambda m, x: m.distributions.MultivariateNormal(x[..., 0] * 0, x, validate_args=False).log_prob(
        x[..., 1]
    ),
    "normal by precision": lambda m, x: m.distributions.MultivariateNormal(
        x[..., 0] * 0, precision_matrix=x, validate_args=False
    ).log_prob(x[..., 1]),
}


def draw(dtype, symmetric):
    """Return matrices both of whose triangles are those of positive definite ones, alike if symmetric."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2, 4, 4))
    if dtype.startswith("complex"):
        x = x + 1j * rng.uniform(-1, 1, (2, 4, 4))
    x = x + x.conj().swapaxes(-1, -2) if symmetric else x
    return (np.tril(x, -1) + np.triu(x, 1) + np.diag([6.0, 7.0, 8.0, 9.5])).astype(dtype)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("name", CALLS | REAL)
def test_one_triangle_is_read_and_gradients_are_hermitian(name, dtype, symmetric, compiled):
    if name in REAL and dtype.startswith("complex"):
        pytest.skip("a distribution of real numbers")
    call, x = (CALLS | REAL)[name], draw(dtype, symmetric)

    def run(m, t):
        value = call(m, t)
        if name == "matrix_rank":
            return (value,)
        size = abs(value) ** 2
        weight = m.arange(1, size.numel() + 1).reshape(size.shape)
        (size * weight).sum().backward()
        if name == "pinv" and not symmetric:  # PyTorch's derivative reads the other triangle, too
            return (value,)
        return value, t.grad

    ours = run if not compiled else st.compile(run)
    got = ours(st, st.tensor(x).requires_grad_())
    want = run(torch, torch.tensor(x).requires_grad_())
    tolerance = 2e-3 if dtype == "float32" else 1e-8
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().resolve_conj().numpy(),
                                   rtol=tolerance, atol=tolerance)  # fmt: skip
