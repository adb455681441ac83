"""Whole models against PyTorch with its weights loaded: outputs, losses, gradients, twenty training steps."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks import models  # noqa: E402
from torch_twins import assert_close  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn, optim  # noqa: E402

pytestmark = pytest.mark.torch


def _images(batch, *shape):
    rng = np.random.default_rng(1)
    return rng.standard_normal((batch, *shape)), rng.integers(0, 10, batch)


def _text(batch, length, vocab):
    text = np.random.default_rng(1).integers(0, vocab, (batch, length + 1))
    return text[:, :-1].copy(), text[:, 1:].copy()


MODELS = {
    "mlp": (lambda nn: models.mlp(nn, (20, 32, 32, 10)), lambda: _images(8, 20)),
    "lenet": (models.lenet, lambda: _images(2, 1, 28, 28)),
    "resnet18": (lambda nn: models.resnet18(nn, width=4), lambda: _images(2, 3, 16, 16)),
    "gpt": (
        lambda nn: models.gpt(nn, layers=2, d=16, heads=2, context=12, vocab=11),
        lambda: _text(2, 12, 11),
    ),
}


def _twins(name, dtype):
    build, data = MODELS[name]
    torch.manual_seed(0)
    theirs = build(torch.nn).to(getattr(torch, dtype))
    ours = build(nn).to(dtype=dtype)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    models.copy_weights(theirs, ours)
    x, y = data()
    x = x.astype(dtype) if x.dtype.kind == "f" else x
    return ours, theirs, x, y


def _loss(library, model, x, y):
    logits = model(x)
    return library.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1)), logits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_loss_and_gradients_agree(name, dtype):
    ours, theirs, x, y = _twins(name, dtype)
    loss, logits = _loss(nn, ours, st.tensor(x), st.tensor(y))
    their_loss, their_logits = _loss(torch.nn, theirs, torch.from_numpy(x), torch.from_numpy(y))
    loss.backward()
    their_loss.backward()
    assert_close(loss.detach(), their_loss.detach(), "loss")
    assert_close(logits.detach(), their_logits.detach(), "logits")
    twins = dict(theirs.named_parameters())
    biggest = max(float(p.grad.abs().max()) for p in twins.values())
    for key, parameter in ours.named_parameters():
        grad = twins[key].grad.numpy()
        # A gradient that is zero but for rounding (a key bias under softmax) is compared on the model's
        # scale.
        tolerance = 1e-4 if dtype == "float32" else 1e-9
        tolerance *= max(1.0, 1e-3 * biggest / max(np.abs(grad).max(), 1e-30))
        assert_close(parameter.grad, grad, key, tolerance)
    for key, buffer in theirs.named_buffers():
        assert_close(dict(ours.named_buffers())[key], buffer.numpy(), key, 1e-4)


@pytest.mark.parametrize(("name", "compiled"), [("mlp", False), ("lenet", True), ("gpt", True)])
def test_twenty_training_steps_have_the_same_losses(name, compiled):
    ours, theirs, x, y = _twins(name, "float32")
    our_optimizer = optim.AdamW(ours.parameters(), lr=1e-3, weight_decay=0.1)
    their_optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.1)

    def step(x, y):
        loss, _ = _loss(nn, ours, x, y)
        our_optimizer.zero_grad()
        loss.backward()
        our_optimizer.step()
        return loss

    run = st.compile(step) if compiled else step
    a, b = st.tensor(x), st.tensor(y)
    for _ in range(20):
        loss = float(run(a, b))
        their_loss, _ = _loss(torch.nn, theirs, torch.from_numpy(x), torch.from_numpy(y))
        their_optimizer.zero_grad()
        their_loss.backward()
        their_optimizer.step()
        assert loss == pytest.approx(their_loss.item(), rel=1e-3)
