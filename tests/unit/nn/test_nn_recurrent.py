"""Recurrent layers: PyTorch's results and gradients, and those of a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from torch_twins import compare, draw

import stratal as st
from stratal import nn, optim
from stratal.base import settings
from stratal.base.artifact import Launch, Loop, flat
from stratal.base.errors import AttributeValueError, ShapeError

KINDS = ("LSTM", "GRU", "RNN")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def states_of(result):
    return result[1] if isinstance(result[1], tuple) else (result[1],)


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}]
)
def test_a_layer_agrees_with_pytorch(torch, kind, options):
    def make(library):
        return getattr(library, kind)(3, 4, **options)

    def everything(module, x):
        y, *_ = result = module(x)
        return y.sum() + sum((s * (k + 2.0)).sum() for k, s in enumerate(states_of(result)))

    x = draw(5, 2, 3, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=lambda m, x: m(x)[0])
    compare(make(nn), make(torch.nn), x, forward=everything)
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.torch
def test_a_relu_layer_agrees_with_pytorch(torch):
    def make(library):
        return library.RNN(3, 4, nonlinearity="relu")

    compare(make(nn), make(torch.nn), draw(5, 2, 3, dtype=np.float64), forward=lambda m, x: m(x)[0])


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_takes_states_and_inputs_without_a_batch(torch, kind):
    def make(library):
        return getattr(library, kind)(3, 4, num_layers=2)

    def from_state(module, x, h, c):
        return module(x, (h, c) if kind == "LSTM" else h)[0]

    shapes = ((5, 3), (2, 4), (2, 4))
    compare(make(nn), make(torch.nn), draw(5, 3, dtype=np.float64), forward=lambda m, x: m(x)[0])
    if kind != "LSTM":
        shapes, arrays = shapes[:2], [draw(*s, dtype=np.float64, seed=k) for k, s in enumerate(shapes[:2])]
        compare(make(nn), make(torch.nn), *arrays, forward=lambda m, x, h: m(x, h)[0])
    else:
        arrays = [draw(*s, dtype=np.float64, seed=k) for k, s in enumerate(shapes)]
        compare(make(nn), make(torch.nn), *arrays, forward=from_state)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "options"),
    [("LSTMCell", {}), ("GRUCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("GRUCell", {"bias": False})],
)
def test_a_cell_agrees_with_pytorch(torch, kind, options):
    def make(library):
        return getattr(library, kind)(3, 4, **options)

    def two_steps(module, x):
        state = module(x[0])
        state = module(x[1], state)
        return state[0] + state[1] if kind == "LSTMCell" else state

    compare(make(nn), make(torch.nn), draw(2, 5, 3, dtype=np.float64), forward=two_steps)
    compare(make(nn), make(torch.nn), draw(2, 3, dtype=np.float64), forward=two_steps)
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_cell_step_by_step(kind):
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, kind + "Cell")(3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): w.numpy() for name, w in layer.state_dict().items()})
    x = st.tensor(draw(6, 2, 3))
    state, rows = None, []
    for k in range(6):
        state = cell(x[k], state)
        rows.append(state[0] if kind == "LSTM" else state)
    np.testing.assert_allclose(layer(x)[0].detach(), st.stack(rows).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_sequences_of_any_length_run(length):
    layer = nn.LSTM(3, 4)
    y, (h, _) = layer(st.zeros((length, 2, 3)))
    assert tuple(y.shape) == (length, 2, 4)
    if length:
        assert np.array_equal(y.detach().numpy()[-1], h.detach().numpy()[0])
    else:
        assert not h.detach().numpy().any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind):
    layer = getattr(nn, kind)(2, 3, dtype="float64")
    x = st.tensor(draw(4, 2, 2, dtype=np.float64))
    state = {name: w.numpy().copy() for name, w in layer.state_dict().items()}
    way = {name: draw(*w.shape, dtype=np.float64, seed=k) for k, (name, w) in enumerate(state.items())}

    def loss(distance):
        layer.load_state_dict({name: w + distance * way[name] for name, w in state.items()})
        return (layer(x)[0] ** 2).sum()

    loss(0.0).backward()
    slope = sum(float((w.grad.numpy() * way[name]).sum()) for name, w in layer.named_parameters())
    wanted = (float(loss(1e-6)) - float(loss(-1e-6))) / 2e-6
    assert np.isclose(slope, wanted, rtol=1e-7)


def trained(layer):
    x, y = st.tensor(draw(8, 4, 6)), st.tensor(draw(4, 12, seed=1))

    @st.compile
    def step(x, y):
        for weight in layer.parameters():
            weight.grad = None
        loss = ((layer(x)[0][-1] - y) ** 2).mean()
        loss.backward()
        return loss, [weight.grad for weight in layer.parameters()]

    step(x, y)
    return step


def test_a_training_step_packs_no_weight_and_adds_no_weight_gradient_inside_the_loop():
    step = trained(nn.LSTM(6, 12))
    commands = step.program.executable.commands
    loops = [c for c in flat(commands) if isinstance(c, Loop)]
    assert len(loops) == 2
    values = step.program.executable.values
    for loop in loops:
        launches = [c for c in loop.body if isinstance(c, Launch)]
        assert not any(c.label.startswith("pack") or "row" in c.label for c in launches)
        written = [values[w].type.ints for c in launches for w in c.writes]
        assert (48, 12) not in written, "a weight's gradient is one product after the loop"


@pytest.mark.sampled(4)
def test_a_checked_run_finds_every_row_where_it_stands():
    """The counter's cell may be used again once nobody reads it: rows go by the turn itself."""
    x = st.tensor(draw(7, 3, 5))
    layer = nn.LSTM(5, 13, num_layers=2, bidirectional=True)
    optimizer = optim.Adam(layer.parameters(), lr=1e-2)

    @st.compile
    def step(x):
        loss = (layer(x)[0] ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with settings.verify(True):
        losses = [float(step(x)) for _ in range(3)]
    assert step.program.loaded.checked
    assert losses[0] > losses[1] > losses[2]


def test_wrong_inputs_are_refused():
    with pytest.raises(ShapeError, match="LSTM: takes 2 or 3 axes"):
        nn.LSTM(3, 4)(st.zeros((5, 2, 4)))
    with pytest.raises(ShapeError, match="another shape"):
        nn.GRU(3, 4)(st.zeros((5, 2, 3)), st.zeros((1, 3, 4)))
    with pytest.raises(ShapeError, match="GRUCell: takes 1 or 2 axes"):
        nn.GRUCell(3, 4)(st.zeros((5, 2, 3)))
    with pytest.raises(AttributeValueError, match="nonlinearity"):
        nn.RNN(3, 4, nonlinearity="gelu")
