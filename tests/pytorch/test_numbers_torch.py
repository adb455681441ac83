"""Python's numbers beside tensors give what they give beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stratal as st  # noqa: E402

pytestmark = pytest.mark.torch

INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")


def both(call, values, dtype):
    """Return what a call gives for a tensor of ours, lazy, eager and compiled, and for one of PyTorch's."""
    ours = st.tensor(values).astype(dtype)
    with st.eager():
        eager = call(st, ours)
    theirs = call(torch, torch.tensor(values).to(getattr(torch, dtype)))
    return [call(st, ours), eager, st.compile(lambda x: call(st, x))(ours)], theirs


@pytest.mark.parametrize("base", [0, 1, 2, 3, -1, -2, 10])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_number_to_the_power_of_integers(dtype, base):
    if dtype == "uint8" and base < 0:
        pytest.skip("a negative number is none of uint8")
    ours, theirs = both(lambda m, x: base**x, [0, 1, 2, 3, 5, 7], dtype)
    for got in ours:
        np.testing.assert_array_equal(got.numpy(), theirs.numpy())


NUMBERS = (0.333, 1.7, -2.71, 1e5, 1e-9, 2**31, 3, 0.5, -1000.25)
FACTORS = {
    "x * n": lambda m, x, n: x * n,
    "n * x": lambda m, x, n: n * x,
    "x / n": lambda m, x, n: x / n,
    "multiply": lambda m, x, n: m.multiply(x, n),
    "div": lambda m, x, n: m.div(x, n),
    "mul_": lambda m, x, n: m.clone(x).mul_(n),
    "div_": lambda m, x, n: m.clone(x).div_(n),
    "*=": lambda m, x, n: m.clone(x).__imul__(n),
    "x + n": lambda m, x, n: x + n,
    "x - n": lambda m, x, n: x - n,
    "n - x": lambda m, x, n: n - x,
    "addcmul": lambda m, x, n: m.addcmul(x, x.flip(0), x.roll(1), value=n),
    "addcdiv": lambda m, x, n: m.addcdiv(x, x.flip(0), x.roll(1), value=n),
    "lerp": lambda m, x, n: m.lerp(x, x.flip(0), n),
    "there and back": lambda m, x, n: x * n / n,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FACTORS)
def test_a_number_beside_16_bit_floats(name, dtype):
    """A factor is one in float32; a term is rounded first."""
    values = np.random.default_rng(0).uniform(0.1, 3, 64).astype(np.float32)
    call = FACTORS[name]
    varying = st.compile(lambda x, n: call(st, x, n))
    for n in NUMBERS:
        ours, theirs = both(lambda m, x, n=n: call(m, x, n), values, dtype)
        lerps = {"atol": 0, "rtol": 0} if name != "lerp" else {"atol": 1e-2, "rtol": 1e-2}
        for got in (*ours, varying(st.tensor(values).astype(dtype), n)):
            assert got.dtype.name == dtype
            np.testing.assert_allclose(got.float().numpy(), theirs.float().numpy(), **lerps, err_msg=str(n))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["x * n", "n * x", "x / n"])
def test_the_gradient_beside_a_number_of_16_bit_floats(name, dtype):
    values = np.random.default_rng(0).uniform(0.1, 3, 64).astype(np.float32)
    for n in NUMBERS:
        grads = []
        for m, x in ((st, st.tensor(values)), (torch, torch.tensor(values))):
            x = x.to(getattr(m, dtype)).requires_grad_()
            FACTORS[name](m, x, n).sum().backward()
            grads.append(x.grad.float().numpy())
        np.testing.assert_array_equal(*grads)


ADDED = {
    "addmm": lambda m, x, a, b, **o: m.addmm(x, a, b, **o),
    "baddbmm": lambda m, x, a, b, **o: m.baddbmm(x[None], a[None], b[None], **o),
    "addbmm": lambda m, x, a, b, **o: m.addbmm(x, a[None], b[None], **o),
    "addmv": lambda m, x, a, b, **o: m.addmv(x[:, 0], a, b[:, 0], **o),
    "addr": lambda m, x, a, b, **o: m.addr(x, a[:, 0], b[0], **o),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "factors", [{}, {"alpha": 0.01}, {"beta": 0.3, "alpha": 0.01}, {"beta": 0, "alpha": 0.02}]
)
@pytest.mark.parametrize("name", ADDED)
def test_products_do_not_overflow_before_their_factor(name, factors, dtype):
    rng = np.random.default_rng(0)
    size = 1.0 if not factors else 60.0
    drawn = [(rng.uniform(0.5, 1, s) * size).astype(np.float32) for s in ((3, 4), (3, 100), (100, 4))]
    results = []
    for m, make in ((st, st.tensor), (torch, torch.tensor)):
        results.append(ADDED[name](m, *(make(x).to(getattr(m, dtype)) for x in drawn), **factors))
    got, want = (r.float().numpy() for r in results)
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got, want, rtol={"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name, fused", [("SGD", False), ("Adam", True), ("AdamW", True)])
def test_optimizers_do_not_round_their_factors_to_16_bits(name, fused, dtype):
    """As PyTorch's fused steps, which compute in float32 and round once."""
    results = []
    for m in (st, torch):
        p = m.nn.Parameter(m.linspace(1, 3, 16).to(getattr(m, dtype)))
        options = {"fused": True} if fused and m is torch else {}
        optimizer = getattr(m.optim, name)([p], lr=0.012, weight_decay=0.5, **options)
        for _ in range(50):
            p.grad = m.zeros(16, dtype=getattr(m, dtype))
            optimizer.step()
        results.append(p.detach().float().numpy())
    np.testing.assert_allclose(*results, rtol=1e-2)
