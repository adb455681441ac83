"""Thirty-odd things people write in PyTorch, run by PyTorch and by Stratal from the same source: equal
results.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

import stratal as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)
IDIOMS = []


def idiom(function):
    IDIOMS.append(function)
    return function


def make_net(lib, *more):
    """Return a small classifier whose weights do not depend on the library."""
    net = lib.nn.Sequential(lib.nn.Linear(4, 6), lib.nn.Tanh(), lib.nn.Linear(6, 3), *more)
    rng = np.random.default_rng(1)
    with lib.no_grad():
        for p in net.parameters():
            p.copy_(lib.tensor(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.5))
    return net


def data(lib):
    return lib.tensor(X), lib.tensor(Y)


def loss_of(lib, net, x, y):
    return lib.nn.functional.cross_entropy(net(x), y)


def weights(net):
    return [p.detach().numpy().copy() for p in net.parameters()]


@idiom
def plain_training_loop(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        opt.zero_grad()
        loss = loss_of(lib, net, x, y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights(net)


@idiom
def losses_kept_and_read_at_the_end(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        opt.zero_grad()
        loss = loss_of(lib, net, x, y)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return [v.item() for v in losses], lib.stack(losses).mean()


@idiom
def running_loss_as_a_tensor(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)
    total = lib.tensor(0.0)
    for _ in range(3):
        opt.zero_grad()
        loss = loss_of(lib, net, x, y)
        loss.backward()
        opt.step()
        total += loss.detach() * len(x)
    return total


@idiom
def gradient_accumulation(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for k in range(3):
            loss = loss_of(lib, net, x[4 * k : 4 * k + 4], y[4 * k : 4 * k + 4]) / 3
            loss.backward()
        opt.step()
        opt.zero_grad()
    return weights(net)


@idiom
def exponential_moving_average_of_weights(lib):
    net, (x, y) = make_net(lib), data(lib)
    average = copy.deepcopy(net)
    for p in average.parameters():
        p.requires_grad_(False)
    opt = lib.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(4):
        opt.zero_grad()
        loss_of(lib, net, x, y).backward()
        opt.step()
        with lib.no_grad():
            for a, p in zip(average.parameters(), net.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
    return weights(average), average(x)


@idiom
def two_optimizers(lib):
    net, (x, y) = make_net(lib), data(lib)
    first, second = lib.optim.SGD(net[0].parameters(), lr=0.1), lib.optim.Adam(net[2].parameters(), lr=0.01)
    for _ in range(3):
        net.zero_grad()
        loss_of(lib, net, x, y).backward()
        first.step()
        second.step()
    return weights(net)


@idiom
def alternating_optimizers_as_in_a_gan(lib):
    g, d = make_net(lib), make_net(lib)
    x, _ = data(lib)
    og, od = lib.optim.SGD(g.parameters(), lr=0.1), lib.optim.SGD(d.parameters(), lr=0.1)
    mix = lib.tensor(RNG_MIX)
    for _ in range(3):
        fake = g(x)
        od.zero_grad()
        (d(fake.detach() @ mix).mean() - d(x).mean()).backward()
        od.step()
        og.zero_grad()
        (-d(fake @ mix).mean()).backward()
        og.step()
    return weights(g), weights(d)


RNG_MIX = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)


@idiom
def tied_weights(lib):
    rng = np.random.default_rng(2)
    table = lib.nn.Parameter(lib.tensor(rng.standard_normal((5, 4)).astype(np.float32)))
    ids = lib.tensor(np.array([0, 3, 3, 1]))
    hidden = table[ids].tanh()
    logits = hidden @ table.T
    lib.nn.functional.cross_entropy(logits, ids).backward()
    return table.grad


@idiom
def reading_and_scaling_gradients(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)
    loss_of(lib, net, x, y).backward()
    norms = [p.grad.norm().item() for p in net.parameters()]
    for p in net.parameters():
        p.grad.mul_(0.5)
        p.grad.data.add_(0.0)
    opt.step()
    return norms, weights(net)


@idiom
def clipping_the_gradient_norm(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=1.0)
    loss_of(lib, net, x * 10, y).backward()
    total = lib.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step()
    return total, weights(net)


@idiom
def manual_update_under_no_grad(lib):
    net, (x, y) = make_net(lib), data(lib)
    for _ in range(3):
        loss = loss_of(lib, net, x, y)
        loss.backward()
        with lib.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return weights(net)


@idiom
def manual_update_of_plain_tensors(lib):
    w = lib.tensor([[0.5], [-0.5], [0.2], [0.1]], requires_grad=True)
    b = lib.zeros(1, requires_grad=True)
    x, y = data(lib)
    for _ in range(3):
        loss = ((x @ w + b - y.float().unsqueeze(1)) ** 2).mean()
        loss.backward()
        with lib.no_grad():
            w.sub_(0.1 * w.grad)
            b.sub_(0.1 * b.grad)
            w.grad.zero_()
            b.grad.zero_()
    return loss, w, b


@idiom
def assigning_data(lib):
    w = lib.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    w.data = w.data - 0.1 * w.grad.data
    w.grad = None
    (w * 3.0).sum().backward()
    return w, w.grad, w.requires_grad


@idiom
def detaching_a_part(lib):
    x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
    target = (x * 2.0).detach()
    ((x**2 - target) ** 2).sum().backward()
    return x.grad, target.requires_grad


@idiom
def values_made_under_no_grad_are_constants(lib):
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    with lib.no_grad():
        scale = x * 3.0
    (x * scale).sum().backward()
    return x.grad, scale.requires_grad


@idiom
def cloning_keeps_the_history(lib):
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    y = x.clone()
    y[0] = y[0] * 5.0
    y.sum().backward()
    return x.grad, x


@idiom
def retaining_the_gradient_of_an_intermediate(lib):
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    h = x * 2.0
    h.retain_grad()
    (h * h).sum().backward()
    return h.grad, x.grad


@idiom
def backward_twice_through_one_graph(lib):
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    y = (x**3).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@idiom
def gradient_of_a_gradient(lib):
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    grad = lib.autograd.grad if lib is torch else st.gradients
    (g,) = grad((x**3).sum(), [x], create_graph=True)
    (g**2).sum().backward()
    return g, x.grad


@idiom
def gradient_penalty(lib):
    net = make_net(lib)
    x, _ = data(lib)
    x = x.clone().requires_grad_(True)
    grad = lib.autograd.grad if lib is torch else st.gradients
    (g,) = grad(net(x).sum(), [x], create_graph=True)
    ((g.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [p.grad for p in net.parameters() if p.grad is not None][:1]


@idiom
def adversarial_example(lib):
    net, (x, y) = make_net(lib), data(lib)
    moved = x.detach().clone().requires_grad_()
    loss_of(lib, net, moved, y).backward()
    with lib.no_grad():
        moved += 0.1 * moved.grad.sign()
    return moved, loss_of(lib, net, moved, y)


@idiom
def weighted_backward_of_a_vector(lib):
    x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x * x).backward(lib.tensor([1.0, 0.0, -1.0]))
    return x.grad


@idiom
def freezing_layers(lib):
    net, (x, y) = make_net(lib), data(lib)
    for p in net[0].parameters():
        p.requires_grad = False
    opt = lib.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    loss_of(lib, net, x, y).backward()
    opt.step()
    return [p.grad is None for p in net.parameters()], weights(net)


@idiom
def evaluation_between_steps(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.5)
    scores = []
    for _ in range(3):
        net.train()
        opt.zero_grad()
        loss_of(lib, net, x, y).backward()
        opt.step()
        net.eval()
        with lib.no_grad():
            scores.append((net(x).argmax(dim=1) == y).float().mean().item())
    return scores


@idiom
def printing_in_the_middle(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        hidden = net[1](net[0](x))
        repr(hidden)
        logits = net[2](hidden)
        loss = lib.nn.functional.cross_entropy(logits, y)
        f"{loss:.4f} {float(loss)}"
        opt.zero_grad()
        loss.backward()
        repr(net[0].weight.grad)
        opt.step()
        repr(net[0].weight)
    return weights(net), loss


@idiom
def python_control_flow_on_values(lib):
    x = lib.tensor([0.3], requires_grad=True)
    y, steps = x, 0
    while y.item() < 2.0:
        y = y * 1.7 if y.sum() < 1 else y + 0.5
        steps += 1
    y.backward()
    return steps, y, x.grad


@idiom
def per_parameter_learning_rates(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(
        [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters()}], lr=0.01
    )
    loss_of(lib, net, x, y).backward()
    opt.step()
    return weights(net)


@idiom
def a_learning_rate_set_by_hand(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)
    for k in range(4):
        for group in opt.param_groups:
            group["lr"] = 0.1 / (k + 1)
        opt.zero_grad()
        loss_of(lib, net, x, y).backward()
        opt.step()
    return weights(net)


@idiom
def saving_and_going_back(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.Adam(net.parameters(), lr=0.05)
    best = copy.deepcopy(net.state_dict())
    for _ in range(3):
        opt.zero_grad()
        loss_of(lib, net, x, y).backward()
        opt.step()
    moved = weights(net)
    net.load_state_dict(best)
    return moved, weights(net), loss_of(lib, net, x, y)


@idiom
def a_closure_that_computes_the_loss(lib):
    net, (x, y) = make_net(lib), data(lib)
    opt = lib.optim.SGD(net.parameters(), lr=0.1)

    def closure():
        opt.zero_grad()
        loss = loss_of(lib, net, x, y)
        loss.backward()
        return loss

    return [opt.step(closure).item() for _ in range(3)]


@idiom
def l2_penalty_written_out(lib):
    net, (x, y) = make_net(lib), data(lib)
    loss = loss_of(lib, net, x, y) + 0.01 * sum((p**2).sum() for p in net.parameters())
    loss.backward()
    return loss, [p.grad for p in net.parameters()]


@idiom
def a_hidden_state_carried_and_detached(lib):
    cell = make_net(lib)
    x, _ = data(lib)
    opt = lib.optim.SGD(cell.parameters(), lr=0.1)
    mix = lib.tensor(RNG_MIX)
    h = lib.zeros(1, 4)
    for k in range(3):
        h = h.detach()
        for row in x[4 * k : 4 * k + 4]:
            h = lib.tanh(cell(h + row.unsqueeze(0)) @ mix)
        opt.zero_grad()
        h.pow(2).sum().backward()
        opt.step()
    return h, weights(cell)


@idiom
def swapping_two_tensors(lib):
    a, b = lib.tensor([1.0]), lib.tensor([2.0])
    for _ in range(3):
        a, b = b, a + b
    held = a.clone()
    a.copy_(b)
    b.add_(1.0)
    return a, b, held


@idiom
def numpy_in_and_out(lib):
    x = lib.tensor(X)
    array = np.sin(np.asarray(x))
    back = lib.from_numpy(array)
    return (back + x).numpy(), np.concatenate([x, back])


@idiom
def building_a_batch_from_pieces(lib):
    pieces = [lib.tensor(row) for row in X[:3]]
    batch = lib.stack(pieces)
    batch = lib.cat([batch, lib.zeros(1, 4)], dim=0)
    mask = batch.abs().sum(dim=1) > 0
    return batch[mask], mask.sum(), lib.where(batch > 0, batch, lib.zeros_like(batch))


def plain(value):
    """Return nested results as NumPy arrays and Python values."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def check(got, want):
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w)
    else:
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.row("A10", "B2")
@pytest.mark.parametrize("function", IDIOMS, ids=lambda f: f.__name__)
def test_the_same_source_gives_the_same_results(function):
    check(plain(function(st)), plain(function(torch)))


def test_there_are_at_least_thirty_idioms():
    assert len(IDIOMS) >= 30
