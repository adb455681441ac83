"""Optimizers: published formulas, PyTorch's trajectories, state, groups, and how they behave in compiled
steps.
"""

import math

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError

STEPS = 20


def _gradients(shape, steps=STEPS):
    rng = np.random.default_rng(4)
    return [rng.standard_normal(shape) for _ in range(steps)]


def _trajectory(make, shape=(3, 2), dtype=np.float64, steps=STEPS):
    """Return the parameter after each of the steps, fed with fixed gradients."""
    p = nn.Parameter(np.ones(shape, dtype))
    optimizer = make([p])
    seen = []
    for g in _gradients(shape, steps):
        p.grad = st.tensor(g.astype(dtype))
        optimizer.step()
        seen.append(np.array(p.detach()))
    return seen, optimizer


# -- A14: the published formulas, by hand ----------------------------------------------------------
def _hand_sgd(p, g, t, s, lr=0.1, momentum=0.9):
    s["v"] = momentum * s.get("v", 0) + g
    return p - lr * s["v"]


def _hand_adagrad(p, g, t, s, lr=0.1):
    s["h"] = s.get("h", 0) + g * g
    return p - lr * g / (np.sqrt(s["h"]) + 1e-10)


def _hand_adam(p, g, t, s, lr=0.1, b1=0.9, b2=0.999):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    return p - lr * (s["m"] / (1 - b1**t)) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-8)


def _hand_adamw(p, g, t, s):
    return _hand_adam(p * (1 - 0.1 * 0.01), g, t, s)


def _hand_lion(p, g, t, s, lr=0.1, decay=0.05):
    m = s.get("m", np.zeros_like(g))
    s["m"] = 0.99 * m + 0.01 * g
    return p - lr * (np.sign(0.9 * m + 0.1 * g) + decay * p)


def _hand_lars(p, g, t, s, lr=0.5, decay=0.05, trust=0.1):
    local = trust * np.linalg.norm(p) / (np.linalg.norm(g) + decay * np.linalg.norm(p) + 1e-8)
    s["v"] = 0.9 * s.get("v", 0) + local * (g + decay * p)
    return p - lr * s["v"]


def _hand_lamb(p, g, t, s, lr=0.1, decay=0.05):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    r = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-6) + decay * p
    return p - lr * np.linalg.norm(p) / np.linalg.norm(r) * r


def _hand_muon(p, g, t, s, lr=0.1, decay=0.1):
    s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
    x = 0.05 * g + 0.95 * s["m"]
    x = x.T / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return p * (1 - lr * decay) - lr * np.sqrt(1.5) * x.T


@pytest.mark.row("A14")
@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (lambda p: optim.SGD(p, lr=0.1), lambda p, g, t, s: p - 0.1 * g),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), _hand_sgd),
        (lambda p: optim.Adagrad(p, lr=0.1), _hand_adagrad),
        (lambda p: optim.Adam(p, lr=0.1), _hand_adam),
        (lambda p: optim.AdamW(p, lr=0.1), _hand_adamw),
        (lambda p: optim.Lion(p, lr=0.1, weight_decay=0.05), _hand_lion),
        (lambda p: optim.LARS(p, lr=0.5, weight_decay=0.05, trust_coefficient=0.1), _hand_lars),
        (lambda p: optim.LAMB(p, lr=0.1, weight_decay=0.05), _hand_lamb),
        (lambda p: optim.Muon(p, lr=0.1), _hand_muon),
    ],
    ids=["sgd", "momentum", "adagrad", "adam", "adamw", "lion", "lars", "lamb", "muon"],
)
def test_updates_match_the_published_formulas(make, formula):
    seen, _ = _trajectory(make)
    p, state = np.ones((3, 2)), {}
    for t, g in enumerate(_gradients((3, 2)), 1):
        p = formula(p, g, t, state)
        np.testing.assert_allclose(seen[t - 1], p, rtol=1e-12)


@pytest.mark.row("A14")
def test_state_bytes_match_k_twelve_bytes_a_parameter_for_adam():
    count = 96 * 32
    # Mixed precision, as the ZeRO table counts it: a float32 copy of the weights, the mean, the mean square.
    half = nn.Parameter(np.ones((96, 32), np.float16))
    assert optim.Adam([half], master_weights=True).state_bytes == 12 * count
    # In float32 the parameter is its own master copy: 8 bytes of state and 4 of parameter.
    single = nn.Parameter(np.ones((96, 32), np.float32))
    assert optim.Adam([single], master_weights=True).state_bytes + single.nbytes == 12 * count
    assert optim.SGD([single], lr=0.1).state_bytes == 0
    assert optim.SGD([single], lr=0.1, momentum=0.9).state_bytes == 4 * count
    assert optim.Adagrad([single]).state_bytes == 4 * count


def test_master_weights_keep_updates_that_sixteen_bits_would_lose():
    def train(master):
        p = nn.Parameter(np.ones(4, np.float16))
        optimizer = optim.SGD([p], lr=1e-4, master_weights=master)
        for _ in range(50):
            p.grad = st.tensor(np.ones(4, np.float16))
            optimizer.step()
        return p.numpy().astype(np.float64)

    assert np.all(train(False) == 1.0)
    np.testing.assert_allclose(train(True), 1 - 50e-4, rtol=1e-3)


# -- A9: the three stages, bit for bit -------------------------------------------------------------
@pytest.mark.row("A9")
@pytest.mark.parametrize("style", ["lazy", "compiled", "eager"])
def test_forward_backward_update_equals_a_hand_numpy_loop_to_the_bit(style):
    """W <- W - lr * mean of per-sample gradients, on integers small enough that every sum is exact in any
    order.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (8, 5)).astype(np.float32)
    y = rng.integers(-3, 4, (8, 2)).astype(np.float32)
    lr = np.float32(0.125)
    w = nn.Parameter(np.zeros((5, 2), np.float32))
    optimizer = optim.SGD([w], lr=0.125)

    def step(x, y):
        loss = ((x @ w - y) ** 2).sum() * 0.5 / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = st.compile(step) if style == "compiled" else step
    hand = np.zeros((5, 2), np.float32)
    for _ in range(3):
        per_sample = [np.outer(a, a @ hand - b).astype(np.float32) for a, b in zip(x, y, strict=True)]
        hand = hand - lr * (np.sum(per_sample, axis=0) / np.float32(8))
        if style == "eager":
            with st.eager():
                run(st.tensor(x), st.tensor(y))
        else:
            run(st.tensor(x), st.tensor(y))
        np.testing.assert_array_equal(w.numpy(), hand)


@pytest.mark.row("A9")
def test_the_gradient_of_a_mean_is_the_mean_of_per_sample_gradients():
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = np.random.default_rng(0).standard_normal((6, 4))
    y = np.array([0, 1, 2, 0, 1, 2])

    def gradients(rows):
        net.zero_grad()
        nn.functional.cross_entropy(net(st.tensor(x[rows])), st.tensor(y[rows])).backward()
        return [np.array(p.grad) for p in net.parameters()]

    whole = gradients(slice(None))
    singles = [gradients(slice(k, k + 1)) for k in range(6)]
    for k, g in enumerate(whole):
        np.testing.assert_allclose(g, np.mean([s[k] for s in singles], axis=0), rtol=1e-9, atol=1e-14)


# -- A10: logistic regression, NumPy and imperative ------------------------------------------------
@pytest.mark.row("A10")
@pytest.mark.parametrize("style", ["lazy", "compiled", "eager"])
def test_logistic_regression_in_numpy_and_here_give_equal_weights(style):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 5)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 64)]
    hand = np.zeros((5, 3), np.float32)
    for _ in range(30):  # softmax regression as the lecture writes it: probabilities, gradient, update
        scores = np.exp(x @ hand)
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        hand -= np.float32(0.5) * (x.T @ (probabilities - y)) / np.float32(64)
    w = nn.Parameter(np.zeros((5, 3), np.float32))
    optimizer = optim.SGD([w], lr=0.5)

    def step(x, y):
        loss = -(y * nn.functional.log_softmax(x @ w, dim=1)).sum() / 64
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    run = st.compile(step) if style == "compiled" else step
    xs, ys = st.tensor(x), st.tensor(y)
    for _ in range(30):
        if style == "eager":
            with st.eager():
                run(xs, ys)
        else:
            run(xs, ys)
    np.testing.assert_allclose(w.numpy(), hand, atol=1e-6, rtol=0)


# -- against PyTorch -------------------------------------------------------------------------------
OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd decay": ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    "sgd momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd maximize": ("SGD", {"lr": 0.1, "maximize": True}),
    "adagrad": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.2},
    ),
    "adam": ("Adam", {"lr": 0.05}),
    "adam decay": ("Adam", {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adam amsgrad": ("Adam", {"lr": 0.05, "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.05, "weight_decay": 0.1}),
    "adam decoupled": ("Adam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adam ignored": ("Adam", {"lr": 0.05, "foreach": False, "fused": False, "maximize": True}),
    "adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.01}),
    "adamax": ("Adamax", {"lr": 0.05, "weight_decay": 0.01, "maximize": True}),
    "nadam": ("NAdam", {"lr": 0.05, "weight_decay": 0.01, "momentum_decay": 0.01}),
    "nadam decoupled": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.05, "weight_decay": 0.01}),
    "radam short": ("RAdam", {"lr": 0.05, "betas": (0.9, 0.95), "decoupled_weight_decay": True}),
    "radam never": ("RAdam", {"lr": 0.05, "betas": (0.9, 0.5), "weight_decay": 0.1}),
    "asgd": ("ASGD", {"lr": 0.1, "lambd": 0.01, "weight_decay": 0.01}),
    "asgd averaged": ("ASGD", {"lr": 0.1, "t0": 5}),
    "rprop": ("Rprop", {"lr": 0.05, "step_sizes": (1e-3, 0.2)}),
    "adafactor": ("Adafactor", {"lr": 0.3, "weight_decay": 0.1}),
    "adafactor eps": ("Adafactor", {"lr": 0.3, "eps": (1e-3, 0.1), "d": 2.0, "beta2_decay": -0.5}),
    "rmsprop": ("RMSprop", {"lr": 0.05}),
    "rmsprop centered": ("RMSprop", {"lr": 0.05, "centered": True, "momentum": 0.9, "weight_decay": 0.01}),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_optimizer_follows_pytorchs_trajectory(name, dtype, request):
    torch = pytest.importorskip("torch")
    cls, options = OPTIMIZERS[name]
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, np.dtype(dtype).name))  # that of its scalar state
    request.addfinalizer(lambda: torch.set_default_dtype(before))
    seen, optimizer = _trajectory(lambda p: getattr(optim, cls)(p, **options), dtype=dtype)
    p = torch.nn.Parameter(torch.from_numpy(np.ones((3, 2), dtype)))
    theirs = getattr(torch.optim, cls)([p], **options)
    for k, g in enumerate(_gradients((3, 2))):
        p.grad = torch.from_numpy(g.astype(dtype))
        theirs.step()
        want, rtol = p.detach().numpy(), 1e-5 if dtype is np.float32 else 1e-11
        np.testing.assert_allclose(seen[k], want, rtol=rtol, atol=rtol * np.abs(want).max())
    saved = theirs.state_dict()["state"].get(0, {})
    names = {k for k, v in saved.items() if v is not None} - {"step"}
    assert names <= set(optimizer.state_dict()["state"].get(0, {}))


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["Adam", "Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop", "RMSprop"]
)
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_a_pytorch_optimizer_state_dict_resumes_here(name, shape):
    torch = pytest.importorskip("torch")
    gradients = _gradients(shape, 10)
    p = torch.nn.Parameter(torch.ones(shape, dtype=torch.float64))
    theirs = getattr(torch.optim, name)([p], lr=0.05)
    for g in gradients[:5]:
        p.grad = torch.from_numpy(g)
        theirs.step()
    q = nn.Parameter(p.detach().numpy())
    ours = getattr(optim, name)([q], lr=0.5)
    ours.load_state_dict(theirs.state_dict())
    for g in gradients[5:]:
        p.grad, q.grad = torch.from_numpy(g), st.tensor(g)
        theirs.step()
        ours.step()
    rtol = 1e-6 if name in ("NAdam", "ASGD") else 1e-12  # PyTorch keeps their scalars in float32
    np.testing.assert_allclose(q.numpy(), p.detach().numpy(), rtol=rtol)
    theirs.load_state_dict(
        {
            "state": {
                k: {name: torch.tensor(np.array(v)) for name, v in entries.items()}
                for k, entries in ours.state_dict()["state"].items()
            },
            "param_groups": ours.state_dict()["param_groups"],
        }
    )
    for g in gradients[:2]:
        p.grad, q.grad = torch.from_numpy(g), st.tensor(g)
        theirs.step()
        ours.step()
    np.testing.assert_allclose(q.numpy(), p.detach().numpy(), rtol=rtol)


# -- state, groups, capture ------------------------------------------------------------------------
def test_saving_and_loading_resumes_to_the_bit():
    def build(value):
        p = nn.Parameter(value)
        return p, optim.Adam([{"params": [p], "lr": 0.05}], lr=0.1)

    gradients = _gradients((4,), 10)
    p, optimizer = build(np.ones(4, np.float32))
    for g in gradients[:5]:
        p.grad = st.tensor(g.astype(np.float32))
        optimizer.step()
    q, resumed = build(p.numpy())
    resumed.load_state_dict(optimizer.state_dict())
    for g in gradients[5:]:
        p.grad = st.tensor(g.astype(np.float32))
        q.grad = st.tensor(g.astype(np.float32))
        optimizer.step()
        resumed.step()
    np.testing.assert_array_equal(p.numpy(), q.numpy())
    assert float(resumed.state[q]["step"]) == 10


def test_groups_have_hyper_parameters_of_their_own():
    a, b = nn.Parameter(np.zeros(2, np.float32)), nn.Parameter(np.zeros(2, np.float32))
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.5)
    for p in (a, b):
        p.grad = st.tensor(np.ones(2, np.float32))
    optimizer.step()
    np.testing.assert_array_equal(a.numpy(), [-0.5, -0.5])
    np.testing.assert_array_equal(b.numpy(), [-1.0, -1.0])


def test_a_parameter_without_a_gradient_keeps_its_step_count():
    a, b = nn.Parameter(np.ones(2)), nn.Parameter(np.ones(2))
    optimizer = optim.Adam([a, b], lr=0.1)
    for moving in ((a, b), (a,), (a,), (a, b)):
        for p in (a, b):
            p.grad = st.tensor(np.ones(2)) if any(p is m for m in moving) else None
        optimizer.step()
    assert float(optimizer.state[a]["step"]) == 4 and float(optimizer.state[b]["step"]) == 2
    state, values = {}, np.ones(2)
    for t in (1, 2):
        values = _hand_adam(values, np.ones(2), t, state)
    np.testing.assert_allclose(b.numpy(), values, rtol=1e-12)


def test_a_closure_is_called_and_its_loss_returned():
    p = nn.Parameter(np.array([2.0], np.float32))
    optimizer = optim.SGD([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 4.0
    assert float(p) == pytest.approx(1.6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2),
        lambda p: optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
        lambda p: optim.AdamW(p, lr=0.1),
        lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
        lambda p: optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
        lambda p: optim.Adadelta(p, weight_decay=0.1),
        lambda p: optim.Adafactor(p, lr=0.1, weight_decay=0.1),
        lambda p: optim.Adamax(p, lr=0.1),
        lambda p: optim.ASGD(p, lr=0.1, t0=3),
        lambda p: optim.LAMB(p, lr=0.1, weight_decay=0.1),
        lambda p: optim.LARS(p, lr=1.0, weight_decay=0.1, trust_coefficient=0.1),
        lambda p: optim.Lion(p, lr=0.1, weight_decay=0.1),
        lambda p: optim.Muon(p, lr=0.1),
        lambda p: optim.NAdam(p, lr=0.1),
        lambda p: optim.RAdam(p, lr=0.1),
        lambda p: optim.Rprop(p, lr=0.1),
    ],
    ids=[
        "sgd",
        "adam",
        "adamw",
        "adagrad",
        "rmsprop",
        "adadelta",
        "adafactor",
        "adamax",
        "asgd",
        "lamb",
        "lars",
        "lion",
        "muon",
        "nadam",
        "radam",
        "rprop",
    ],
)
def test_a_compiled_step_equals_the_lazy_one(make):
    def train(compiled):
        w = nn.Parameter(np.linspace(-1, 1, 6, dtype=np.float64).reshape(2, 3))
        optimizer = make([w])

        def step(x):
            loss = ((x @ w).tanh() ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = st.compile(step) if compiled else step
        rng = np.random.default_rng(0)
        losses = [float(run(st.tensor(rng.standard_normal((4, 2))))) for _ in range(10)]
        return losses, w.numpy()

    (losses, weights), (lazy_losses, lazy_weights) = train(True), train(False)
    np.testing.assert_allclose(losses, lazy_losses, rtol=1e-12)
    np.testing.assert_allclose(weights, lazy_weights, rtol=1e-12)


def test_switching_weight_decay_on_is_seen_by_a_compiled_step():
    w = nn.Parameter(np.ones(2, np.float32))
    optimizer = optim.SGD([w], lr=0.5)

    @st.compile
    def step():
        optimizer.zero_grad()
        (w * 0.0).sum().backward()
        optimizer.step()

    step()
    np.testing.assert_array_equal(w.numpy(), [1, 1])
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step()
    np.testing.assert_array_equal(w.numpy(), [0.75, 0.75])
    optimizer.param_groups[0]["weight_decay"] = 1.0
    step()
    np.testing.assert_array_equal(w.numpy(), [0.375, 0.375])


@pytest.mark.torch
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_muon_follows_pytorchs_to_the_precision_of_its_bfloat16(adjust, shape):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("PyTorch without Muon")
    seen, _ = _trajectory(lambda p: optim.Muon(p, lr=0.1, adjust_lr_fn=adjust), shape=shape, steps=5)
    p = torch.nn.Parameter(torch.ones(shape, dtype=torch.float64))
    theirs = torch.optim.Muon([p], lr=0.1, adjust_lr_fn=adjust)
    for k, g in enumerate(_gradients(shape, 5)):
        p.grad = torch.from_numpy(g)
        theirs.step()
        np.testing.assert_allclose(seen[k], p.detach().numpy(), atol=0.02)


def test_layerwise_steps_of_zero_parameters_and_zero_gradients_are_plain_ones():
    for make in (optim.LAMB, optim.LARS):
        p = nn.Parameter(np.zeros(3, np.float32))
        optimizer = make([p], lr=0.1, weight_decay=0.1)
        p.grad = st.tensor(np.zeros(3, np.float32))
        optimizer.step()
        np.testing.assert_array_equal(p.numpy(), 0)
        p.grad = st.tensor(np.ones(3, np.float32))
        optimizer.step()
        assert np.all(p.numpy() < 0) and np.all(np.isfinite(p.numpy()))


def test_gradients_of_several_batches_add_up_to_that_of_one():
    """Two halves of a batch, clipped and stepped once, move weights as the whole batch does."""
    x = np.random.default_rng(0).standard_normal((8, 4))

    def train(parts):
        w = nn.Parameter(np.ones((4, 2)))
        optimizer = optim.Adam([w], lr=0.1)

        @st.compile
        def accumulate(x):
            ((x @ w) ** 2).sum().backward()

        @st.compile
        def update():
            norm = nn.utils.clip_grad_norm_([w], 1.0)
            optimizer.step()
            return norm

        for _ in range(3):
            optimizer.zero_grad()
            for part in np.split(x, parts):
                accumulate(st.tensor(part))
            norm = update()
        return w.numpy(), float(norm)

    (whole, norm), (halves, half_norm) = train(1), train(2)
    np.testing.assert_allclose(halves, whole, rtol=1e-12)
    assert half_norm == pytest.approx(norm)


def test_clipping_scales_gradients_by_their_joint_norm():
    a, b = nn.Parameter(np.zeros(2, np.float32)), nn.Parameter(np.zeros(1, np.float32))
    a.grad, b.grad = st.tensor(np.array([3.0, 0.0], np.float32)), st.tensor(np.array([4.0], np.float32))
    assert float(nn.utils.clip_grad_norm_([a, b], 1.0)) == pytest.approx(5.0)
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0], rtol=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    assert float(nn.utils.clip_grad_norm_([a, b], 10.0)) == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-5)
    nn.utils.clip_grad_value_([a, b], 0.5)
    np.testing.assert_allclose(np.concatenate([a.grad, b.grad]), [0.5, 0, 0.5], rtol=1e-5)
    assert math.isclose(float(nn.utils.clip_grad_norm_([a, b], 1.0, norm_type=math.inf)), 0.5, rel_tol=1e-6)
    assert float(nn.utils.clip_grad_norm_([nn.Parameter(np.zeros(2, np.float32))], 1.0)) == 0.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: optim.SGD([], lr=0.1), "no parameters"),
        (lambda p: optim.SGD([p], lr=-1.0), "lr must not be negative"),
        (lambda p: optim.Adam([p], betas=(1.0, 0.9)), "betas"),
        (lambda p: optim.SGD([p], lr=0.1, nesterov=True), "Nesterov"),
        (lambda p: optim.SGD([p, p], lr=0.1), "twice"),
        (lambda p: optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1), "more than one group"),
        (lambda p: optim.SGD([3.0], lr=0.1), "can only optimise tensors"),
        (lambda p: optim.Adadelta([p], rho=1.5), "rho must lie"),
        (lambda p: optim.NAdam([p], momentum_decay=-1.0), "momentum_decay must not be negative"),
        (lambda p: optim.Rprop([p], etas=(0.5, 0.9)), "etas"),
        (lambda p: optim.Adafactor([p], d=0.5), "d of at least 1"),
        (lambda p: optim.Muon([p]), "two axes"),
        (lambda p: optim.Adam([p], differentiable=True), "an option it does not have"),
        (lambda p: optim.Adam([p], no_such=True), "an option it does not have"),
        (lambda p: optim.swa_utils.get_ema_avg_fn(1.5), "decay must lie"),
    ],
)
def test_a_wrong_optimizer_is_refused_with_the_users_line(make, says):
    with pytest.raises(StratalError, match=says) as info:
        make(nn.Parameter(np.ones(2, np.float32)))
    assert "test_optim.py" in str(info.value)


CHANGES_OF_GRADIENTS = {
    "norm": lambda net, opt, scaler: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
    "value": lambda net, opt, scaler: nn.utils.clip_grad_value_(net.parameters(), 0.01),
    "unscaled": lambda net, opt, scaler: scaler.unscale_(opt),
    "accumulated": lambda net, opt, scaler: net(st.ones(2, 3)).sum().backward(),
    "zeros": lambda net, opt, scaler: opt.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
@pytest.mark.parametrize("change", CHANGES_OF_GRADIENTS)
def test_who_holds_a_gradient_sees_what_is_done_to_it_in_place(change, compiled):
    st.manual_seed(0)
    net = nn.Linear(3, 2)
    opt, scaler = optim.SGD(net.parameters(), lr=0.1), st.amp.GradScaler(init_scale=4.0)

    def step(x):
        opt.zero_grad()
        scaler.scale(net(x).sum()).backward()
        held = net.weight.grad
        part, before = held[0], held.clone()
        CHANGES_OF_GRADIENTS[change](net, opt, scaler)
        seen = held * 1, part * 1, net.weight.grad * 1, before
        scaler.step(opt)
        scaler.update()
        return seen

    step = st.compile(step) if compiled else step
    for k in range(3):
        held, part, now, before = (r.numpy() for r in step(st.full((4, 3), 1.0 + k)))
        np.testing.assert_array_equal(held, now)
        np.testing.assert_array_equal(part, now[0])
        assert not np.array_equal(before, now)


def test_adafactor_keeps_rows_and_columns_of_matrices_only() -> None:
    vector, matrix = (st.ones(*shape).requires_grad_() for shape in ((3,), (2, 3)))
    optimizer = st.optim.Adafactor([vector, matrix])
    (vector.sum() + matrix.sum()).backward()
    optimizer.step()
    kinds = [set(state) - {"step"} for state in optimizer.state_dict()["state"].values()]
    assert kinds == [{"variance"}, {"row_var", "col_var"}]
