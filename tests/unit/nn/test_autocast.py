"""Mixed precision: what runs in 16 bits under `autocast`, loss scaling, float32 weights all the while."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError

F = nn.functional


def x(*shape: int, seed: int = 0) -> Any:
    return st.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


# name: (function, does its result have the short dtype)
FUNCTIONS = {
    "matmul": (lambda: x(3, 4) @ x(4, 5), True),
    "batched matmul": (lambda: x(2, 3, 4) @ x(4, 5), True),
    "einsum": (lambda: st.einsum("ij,kj->ik", x(3, 4), x(5, 4)), True),
    "linear": (lambda: F.linear(x(3, 4), x(5, 4), x(5)), True),
    "bilinear": (lambda: F.bilinear(x(3, 4), x(3, 2), x(5, 4, 2)), True),
    "conv1d": (lambda: F.conv1d(x(1, 2, 8), x(3, 2, 3), x(3)), True),
    "conv2d": (lambda: F.conv2d(x(1, 2, 6, 6), x(3, 2, 3, 3)), True),
    "conv_transpose2d": (lambda: F.conv_transpose2d(x(1, 2, 6, 6), x(2, 3, 3, 3), x(3)), True),
    "attention": (lambda: F.scaled_dot_product_attention(x(2, 20, 8), x(2, 20, 8), x(2, 20, 8)), True),
    "relu of a product": (lambda: F.relu(x(3, 4) @ x(4, 5)), True),
    "gelu of a product": (lambda: F.gelu(x(3, 4) @ x(4, 5)), True),
    "product and float32": (lambda: x(3, 4) @ x(4, 5) + x(3, 5), False),
    "softmax of a product": (lambda: F.softmax(x(3, 4) @ x(4, 5), -1), False),
    "sum of a product": (lambda: (x(3, 4) @ x(4, 5)).sum(), False),
    "mean of a product": (lambda: (x(3, 4) @ x(4, 5)).mean(0), False),
    "exp of a product": (lambda: st.exp(x(3, 4) @ x(4, 5)), False),
    "power of a product": (lambda: st.pow(x(3, 4) @ x(4, 5), 3.0), False),
    "layer norm of a product": (lambda: F.layer_norm(x(3, 4) @ x(4, 5), (5,), x(5), x(5)), False),
    "loss of a product": (lambda: F.mse_loss(x(3, 4) @ x(4, 5), x(3, 5)), False),
    "cross entropy of a product": (lambda: F.cross_entropy(x(3, 4) @ x(4, 5), st.tensor([0, 1, 2])), False),
    "distance of products": (lambda: F.pairwise_distance(x(3, 4) @ x(4, 5), x(3, 5)), False),
    "a plain sum": (lambda: x(3) + x(3), False),
}


@pytest.mark.parametrize("dtype", [st.bfloat16, st.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_runs_in_the_precision_the_table_has_for_it(name: str, dtype: Any) -> None:
    function, short = FUNCTIONS[name]
    exact = function().numpy()
    with st.autocast(dtype=dtype):
        found = function()
    assert found.dtype is (dtype if short else st.float32)
    step = 2.0**-8 if dtype is st.bfloat16 else 2.0**-11
    np.testing.assert_allclose(found.astype("float32").numpy(), exact, atol=16 * step * np.abs(exact).max())


LAYERS = {
    "BatchNorm2d": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 2, 6, 6)),
    "GroupNorm": (nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), (2, 2, 6)),
    "pooling": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.AvgPool2d(2)), (2, 2, 10, 10)),
    "RNN": (nn.RNN(3, 5, num_layers=2, batch_first=True), (2, 4, 3)),
    "LSTM": (nn.LSTM(3, 5, bidirectional=True), (4, 2, 3)),
    "GRU": (nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 5)), (4, 2, 3)),
    "MultiheadAttention": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 20, 8)),
    "decoder": (nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), (6, 2, 8)),
    "PReLU": (nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, 2), nn.Softmax(-1)), (3, 4)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(2, 3, 2, 2), nn.Upsample(scale_factor=2)), (1, 2, 4, 4)),
    "RMSNorm": (nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.Linear(6, 3)), (5, 4)),
}  # fmt: skip


def run(layer: Any, *inputs: Any) -> Any:
    given = (*inputs, *inputs) if isinstance(layer, nn.TransformerDecoderLayer) else inputs
    out = layer(*given)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.sampled(20)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_stay_near_float32(name: str, compiled: bool) -> None:
    layer, shape = LAYERS[name]
    gradients = []
    for enabled in (False, True):

        def step(a: Any, enabled: bool = enabled) -> Any:
            with st.autocast(dtype=st.bfloat16, enabled=enabled):
                out = run(layer, a)
            loss = (out.astype("float32") * 0.3).square().sum()
            layer.zero_grad()
            loss.backward()
            return loss

        loss = (st.compile(step) if compiled else step)(x(*shape))
        gradients.append([loss.numpy(), *(p.grad.numpy() for p in layer.parameters())])
        assert all(p.grad.dtype is st.float32 for p in layer.parameters())
    largest = max(np.abs(g).max() for g in gradients[0][1:])
    for exact, short in zip(*gradients, strict=True):
        np.testing.assert_allclose(short, exact, atol=0.08 * max(np.abs(exact).max(), 0.1 * largest))
    assert any((a != b).any() for a, b in zip(*gradients, strict=True))


def network() -> Any:
    st.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))


DATA = x(48, 8), st.tensor(np.random.default_rng(1).integers(0, 3, 48))


def losses(dtype: Any, scaler: Any, compiled: bool, steps: int = 24) -> tuple[list[float], list[float]]:
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)

    def step(a: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        with st.autocast(dtype=dtype or st.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(a), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step = st.compile(step) if compiled else step
    found = [(float(run_step(*DATA)), scaler.get_scale()) for _ in range(steps)]
    assert all(p.dtype is st.float32 for p in model.parameters())
    assert not compiled or run_step.captures == 1
    first, second = zip(*found, strict=True)
    return list(first), list(second)


@pytest.mark.sampled(7)
@pytest.mark.row("E13")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [st.bfloat16, st.float16])
def test_a_model_trains_in_mixed_precision_as_in_float32(dtype: Any, compiled: bool) -> None:
    plain, _ = losses(None, st.amp.GradScaler(enabled=False), compiled)
    mixed, scales = losses(dtype, st.amp.GradScaler(init_scale=256.0, growth_interval=5), compiled)
    np.testing.assert_allclose(mixed, plain, rtol=0.05)
    assert mixed != plain and plain[-1] < 0.5 * plain[0]
    assert scales[:6] == [256.0] * 4 + [512.0] * 2 and scales[-1] == 256.0 * 2**4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_with_an_infinite_gradient_changes_nothing_but_the_scale(compiled: bool) -> None:
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    scaler = st.amp.GradScaler(init_scale=4.0)

    def step(a: Any) -> Any:
        optimizer.zero_grad()
        loss = model(a).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = st.compile(step) if compiled else step
    step(DATA[0])
    before = [p.numpy().copy() for p in model.parameters()]
    states = [v.numpy().copy() for s in optimizer.state.values() for v in s.values()]
    step(DATA[0] * np.inf)
    assert scaler.get_scale() == 2.0
    for old, p in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), old)
    for old, v in zip(states, (v for s in optimizer.state.values() for v in s.values()), strict=True):
        np.testing.assert_array_equal(v.numpy(), old)
    step(DATA[0])
    assert all((p.numpy() != old).any() for old, p in zip(before, model.parameters(), strict=True))


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_losses_and_scales_follow_pytorchs(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tnn = torch.nn
    theirs = tnn.Sequential(tnn.Linear(8, 32), tnn.LayerNorm(32), tnn.GELU(), tnn.Linear(32, 3))
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in network().state_dict().items()})
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    data = [torch.tensor(d.numpy()) for d in DATA]
    found, scales = [], []
    for _ in range(24):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            loss = tnn.functional.cross_entropy(theirs(data[0]), data[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
        scales.append(scaler.get_scale())
    ours, our_scales = losses(
        getattr(st, dtype), st.amp.GradScaler(init_scale=2.0**24, growth_interval=3), True
    )
    assert our_scales == scales
    np.testing.assert_allclose(ours, found, rtol=0.02)


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    norms = []
    for scale in (1.0, 1024.0):
        model, scaler = network(), st.amp.GradScaler(init_scale=scale)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(F.cross_entropy(model(DATA[0]), DATA[1])).backward()
        scaler.unscale_(optimizer)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        scaler.step(optimizer)
        scaler.update()
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-5)


def test_calls_in_the_wrong_order_say_so() -> None:
    model, scaler = network(), st.amp.GradScaler()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallOrderError, match="no parameter of the optimizer has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(CallOrderError, match="update"):
        scaler.update()
    scaler.scale(model(DATA[0]).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(CallOrderError, match="once between two"):
        scaler.unscale_(optimizer)


def test_the_state_of_a_scaler_is_saved_under_pytorchs_keys() -> None:
    scaler = st.amp.GradScaler(init_scale=8.0, growth_interval=2)
    losses(st.float16, scaler, compiled=False, steps=3)
    state = scaler.state_dict()
    assert set(state) == {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
    again = st.amp.GradScaler()
    again.load_state_dict(state)
    assert again.state_dict() == state and state["scale"] == 16.0 and state["_growth_tracker"] == 1
    with pytest.raises(AttributeValueError, match="lacks entries"):
        again.load_state_dict({"scale": 1.0})


def test_a_compiled_function_is_captured_once_for_each_precision_it_is_called_in() -> None:
    product = st.compile(lambda a, b: a @ b)
    a, b = x(4, 4), x(4, 4, seed=1)
    for _ in range(3):
        assert product(a, b).dtype is st.float32
        with st.autocast():
            assert product(a, b).dtype is st.bfloat16
    assert product.captures == 2 and "autocast is bf16" in product.reasons[1]


def test_contexts_nest_and_decorate() -> None:
    with st.autocast("cpu", st.float16):
        assert st.is_autocast_enabled() and st.get_autocast_dtype() is st.float16
        with st.autocast(enabled=False):
            assert (x(2, 2) @ x(2, 2)).dtype is st.float32
        assert (x(2, 2) @ x(2, 2)).dtype is st.float16
    assert not st.is_autocast_enabled()
    assert st.autocast()(lambda: x(2, 2) @ x(2, 2))().dtype is st.bfloat16
    double = st.tensor(np.ones((2, 2)))
    with st.autocast():
        assert (double @ double).dtype is st.float64


def test_what_autocast_does_not_take_is_refused() -> None:
    with pytest.raises(AttributeValueError, match="only the CPU"):
        st.autocast("cuda")
    with pytest.raises(AttributeValueError, match="only the CPU"):
        st.autocast(st.bfloat16)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="bfloat16 or float16"):
        st.autocast(dtype=st.int8)


def test_gradients_of_the_block_are_short_wherever_they_are_asked_for() -> None:
    a, w = x(16, 16), x(16, 16, seed=1).requires_grad_()
    with st.autocast():
        loss = (a @ w).sum()
    (gradient,) = st.gradients(loss, [w])
    short = a.astype("bfloat16").numpy().astype(np.float32).sum(0)[:, None]
    assert gradient.dtype is st.float32
    np.testing.assert_allclose(gradient.numpy(), np.broadcast_to(short, (16, 16)), rtol=2.0**-7)


@pytest.mark.row("E13")
def test_a_checkpoint_loads_at_the_rate_of_its_bytes(tmp_path: Path, record_property: Any) -> None:
    """A model of 25 MB, its optimizer's state beside it: every value comes back; the time is on record."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)])
    st.save(model, tmp_path / "model", optimizer=optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    began = time.perf_counter()
    state = st.load(tmp_path / "model").state_dict()
    seconds = time.perf_counter() - began
    size = sum(v.nbytes for v in state.values())
    record_property("checkpoint_load", f"{size / 1e6:.0f} MB in {seconds * 1e3:.0f} ms")
    print(f"loaded {size / 1e6:.0f} MB in {seconds * 1e3:.0f} ms")
    assert size == 6 * (1024 * 1024 + 1024) * 4
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(state[name].numpy(), value.numpy())
