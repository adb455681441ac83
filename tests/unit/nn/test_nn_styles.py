"""Layers in every style: lazy, compiled and eager give the same numbers and move the same state; no PyTorch
needed.
"""

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError

X = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)


class Everything(nn.Module):
    """A small net with state of every kind: batch statistics, random masks, weights."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(2),
        )
        self.norm, self.attn = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.25), nn.Linear(16, 5)

    def forward(self, x):
        tokens = self.norm(self.features(x).flatten(2).permute(0, 2, 1))
        mixed, _ = self.attn(tokens, tokens, tokens, need_weights=False)
        return self.head(self.dropout(nn.functional.gelu(mixed)).flatten(1))


def _train(style, steps=4):
    st.manual_seed(5)
    net = Everything()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    target = st.tensor(np.array([0, 1, 2, 3]))

    def step(x):
        loss = nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = st.compile(step) if style == "compiled" else step
    losses = []
    for _ in range(steps):
        if style == "eager":
            with st.eager():
                losses.append(float(run(st.tensor(X))))
        else:
            losses.append(float(run(st.tensor(X))))
    return losses, {name: np.array(value) for name, value in net.state_dict().items()}


@pytest.fixture(scope="module")
def eager():
    return _train("eager")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("style", ["lazy", "compiled"])
def test_training_gives_the_same_losses_and_state_as_eager(style, eager):
    losses, state = _train(style)
    np.testing.assert_allclose(losses, eager[0], rtol=1e-4)
    assert int(state["features.1.num_batches_tracked"]) == 4
    for name, value in eager[1].items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=2e-4, err_msg=name)


def test_training_and_evaluation_alternate_with_two_captures_and_leave_statistics_alone():
    st.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5))
    forward = st.compile(net)
    x = st.tensor(X)
    for _ in range(3):
        net.train()
        noisy = forward(x).numpy()
        net.eval()
        before = np.array(net[0].running_mean)
        first, second = forward(x).numpy(), forward(x).numpy()
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(np.array(net[0].running_mean), before)
        assert np.any(noisy == 0) and not np.any(first == 0)
    assert forward.captures == 2


def test_dropout_scales_what_it_keeps_and_repeats_only_with_the_seed():
    x = st.tensor(np.ones((200, 200), np.float32))
    layer = nn.Dropout(0.3)
    st.manual_seed(1)
    first, second = layer(x).numpy(), layer(x).numpy()
    st.manual_seed(1)
    again = layer(x).numpy()
    np.testing.assert_array_equal(first, again)
    assert np.any(first != second)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1) * np.float32(1 / 0.7)}
    assert (first == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert layer.eval()(x) is x


def test_the_gradient_of_dropout_has_the_mask_of_its_forward_pass():
    x = st.tensor(np.ones(100, np.float32), requires_grad=True)
    y = nn.Dropout(0.5)(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())


def test_batch_statistics_move_without_an_optimizer_and_once_per_call():
    layer = nn.BatchNorm2d(3)
    for k in range(1, 4):
        layer(st.tensor(X))
        assert int(layer.num_batches_tracked) == k
    batch = X.mean((0, 2, 3))
    np.testing.assert_allclose(layer.running_mean.numpy(), batch * (1 - 0.9**3), rtol=1e-4)
    variance = X.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9**3 + variance * (1 - 0.9**3), rtol=1e-4)


def test_an_lstm_compiles_and_learns_to_remember_its_first_input():
    st.manual_seed(0)
    lstm, head = nn.LSTM(1, 8), nn.Linear(8, 1)
    optimizer = optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.05)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 16, 1)).astype(np.float32)
    target = st.tensor(np.sign(x[0]))

    @st.compile
    def step(x):
        y, _ = lstm(x)
        loss = nn.functional.mse_loss(head(y[-1]), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(lstm.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = [float(step(st.tensor(x))) for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]


def test_tied_weights_receive_the_sum_of_both_gradients():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(5, 3)

        def forward(self, tokens):
            return nn.functional.linear(self.tok(tokens), self.tok.weight)

    net = Tied().double()
    tokens = np.array([1, 3])
    net(st.tensor(tokens)).sum().backward()
    w = net.tok.weight.numpy()
    expected = np.tile(w[tokens].sum(0), (5, 1))
    np.add.at(expected, tokens, w.sum(0))
    np.testing.assert_allclose(net.tok.weight.grad.numpy(), expected, rtol=1e-12)


def test_bias_gradients_of_permuted_and_plain_activations_in_one_program_are_right():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 2, 8)), rng.standard_normal((4, 2, 8))
    sums = st.compile(lambda a, b: (a.permute(1, 0, 2).sum(dim=(0, 1)), b.sum(dim=(0, 1))))
    for got, want in zip(sums(st.tensor(a), st.tensor(b)), (a, b), strict=True):
        np.testing.assert_allclose(got.numpy(), want.sum((0, 1)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: nn.Linear(3, 2)(st.tensor(np.ones((4, 5), np.float32))), "inner sizes differ"),
        (lambda: nn.Conv2d(3, 2, 3)(st.tensor(np.ones((1, 4, 8, 8), np.float32))), "channels differ"),
        (lambda: nn.Conv2d(3, 2, 3, padding_mode="mirror"), "padding_mode"),
        (lambda: nn.Conv2d(3, 2, 3, stride=2, padding="same"), "stride of 1"),
        (lambda: nn.Conv2d(3, 2, 3, groups=2), "groups must divide"),
        (lambda: nn.BatchNorm2d(3)(st.tensor(np.ones((4, 3), np.float32))), "BatchNorm2d: takes 4 axes"),
        (lambda: nn.BatchNorm1d(3)(st.tensor(np.ones((1, 3), np.float32))), "more than one value"),
        (lambda: nn.LayerNorm(4)(st.tensor(np.ones((2, 3), np.float32))), "normalised sizes"),
        (lambda: nn.MaxPool2d(2, padding=2)(st.tensor(X)), "half the kernel"),
        (lambda: nn.Embedding(4, 2)(st.tensor(np.ones(3, np.float32))), "indices are integers"),
        (lambda: nn.MultiheadAttention(6, 4), "must divide embed_dim"),
        (lambda: nn.Dropout(1.5), "p must lie"),
        (lambda: nn.MSELoss()(st.tensor([1.0, 2.0]), st.tensor([1.0])), "differ in shape"),
        (lambda: nn.MSELoss("median"), "reduction"),
        (lambda: nn.functional.cross_entropy(st.tensor([[1.0, 2.0]]), st.tensor([0.5])), "class indices"),
        (lambda: nn.functional.cross_entropy(st.tensor([[1.0, 2.0]]), st.tensor([0, 1])), "do not fit"),
        (lambda: nn.Linear(3, 2)(st.tensor(np.ones((4, 3)))), "differ in dtype"),
    ],
)
def test_a_wrong_call_is_refused_with_the_users_line(call, says):
    with pytest.raises(StratalError, match=says) as info:
        call()
    assert "test_nn_styles.py" in str(info.value)


def test_a_class_outside_the_range_is_an_error_and_an_ignored_one_is_not():
    logits = st.tensor(np.zeros((3, 4), np.float32))
    with pytest.raises(StratalError):
        float(nn.functional.cross_entropy(logits, st.tensor(np.array([0, 4, 1]))))
    kept = nn.functional.cross_entropy(logits, st.tensor(np.array([0, -100, 1])))
    assert float(kept) == pytest.approx(np.log(4))
