"""save and load: the same bits without the class, in a fresh process; training goes on where it stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError, FormatError, ShapeError
from stratal.formats import ModelFile, write_model
from stratal.formats.saved import graph_of
from stratal.graph.interpret import interpret
from stratal.graph.node import label_of


def network() -> Any:
    st.manual_seed(3)
    convolution = nn.Conv2d(1, 4, 3, padding=1)
    head = nn.Linear(64, 3)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), head)


def batch(rows: int = 5) -> Any:
    return np.random.default_rng(0).random((rows, 1, 4, 4), np.float32)


def bits(value: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(value)).tobytes()


@pytest.mark.parametrize("name", ["model", "model.stratal"])
def test_a_loaded_model_computes_the_same_bits_without_its_class(tmp_path: Path, name: str) -> None:
    net, x = network(), batch()
    st.save(net, tmp_path / name, inputs=x, options={"rate": 0.1})
    loaded = st.load(tmp_path / name)
    net.eval()
    assert bits(loaded(x)) == bits(net(st.tensor(x)).detach())
    assert loaded.options == {"rate": 0.1}
    assert "9 weights" in repr(loaded)


def test_a_fresh_process_computes_the_same_bits(tmp_path: Path) -> None:
    net, x = network(), batch()
    st.save(net, tmp_path / "model", inputs=x)
    np.save(tmp_path / "x.npy", x)
    program = (
        "import sys, numpy as np, stratal as st\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"y = np.asarray(st.load({str(tmp_path / 'model')!r})(x))\n"
        "sys.stdout.write(y.tobytes().hex())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600
    )
    assert child.returncode == 0, child.stderr
    net.eval()
    assert child.stdout == bits(net(st.tensor(x)).detach()).hex()


def test_saving_leaves_the_model_in_the_mode_it_was_in(tmp_path: Path) -> None:
    net = network()
    net[1].eval()
    before = [m.training for m in net.modules()]
    st.save(net, tmp_path / "model", inputs=batch())
    assert [m.training for m in net.modules()] == before
    assert not np.asarray(net[1].running_mean).any()


def test_the_state_dict_goes_into_a_model_of_the_class(tmp_path: Path) -> None:
    net, other = network(), network()
    with st.no_grad():
        net[0].weight.add_(1.0)
    st.save(net, tmp_path / "model")
    other.load_state_dict(st.load(tmp_path / "model").state_dict())
    assert bits(other[0].weight.detach()) == bits(net[0].weight.detach())


def train(net: Any, optimizer: Any, steps: range) -> None:
    for k in steps:
        x = st.tensor(np.random.default_rng(k).random((8, 1, 4, 4), np.float32))
        y = st.tensor(np.arange(8) % 3)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain_network() -> Any:
    st.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.row("B6")
@pytest.mark.parametrize(
    "make", [lambda p: optim.Adam(p, lr=0.01), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)]
)
def test_training_resumed_from_a_file_gives_the_same_bits(tmp_path: Path, make: Any) -> None:
    whole = plain_network()
    optimizer = make(whole.parameters())
    train(whole, optimizer, range(6))

    first = plain_network()
    optimizer = make(first.parameters())
    train(first, optimizer, range(3))
    st.save(first, tmp_path / "model", optimizer=optimizer)

    saved = st.load(tmp_path / "model")
    second = plain_network()
    second.load_state_dict(saved.state_dict())
    optimizer = make(second.parameters())
    optimizer.load_state_dict(saved.optimizer)
    train(second, optimizer, range(3, 6))
    assert [bits(p.detach()) for p in second.parameters()] == [bits(p.detach()) for p in whole.parameters()]


def test_inputs_of_another_shape_number_or_dtype_are_refused_with_the_saved_one(tmp_path: Path) -> None:
    st.save(network(), tmp_path / "model", inputs=batch())
    loaded = st.load(tmp_path / "model")
    doubles = st.tensor(batch().astype(np.float64))
    refused = ((batch()[..., :3],), (), (batch(), batch()), (doubles,), (batch()[:0],))
    for inputs in refused:
        with pytest.raises(ShapeError):
            loaded(*inputs)


def test_arrays_in_float64_become_what_the_model_takes_as_in_a_trainer_and_tensors_do_not(
    tmp_path: Path,
) -> None:
    net, x = nn.Linear(4, 2), np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    st.save(net, tmp_path / "net.stratal", inputs=x)
    model = st.load(tmp_path / "net.stratal")
    expected = np.asarray(model(x))
    for given in (x.astype(np.float64), x.astype(np.float64).tolist()):
        assert np.array_equal(np.asarray(model(given)), expected)
    for wrong in (st.tensor(x.astype(np.float64)), x.astype(np.int64)):
        with pytest.raises(ShapeError, match="saved model: input 0 is f32") as caught:
            model(wrong)
        assert caught.value.hint == 'st.tensor(x, dtype="float32")'


def test_a_tensor_the_model_closes_over_is_saved_as_a_constant(tmp_path: Path) -> None:
    shift = st.tensor(np.arange(64.0, dtype=np.float32))

    class Shifted(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + shift, x * 2

    st.save(Shifted(), tmp_path / "model", inputs=np.zeros(64, np.float32))
    moved, doubled = st.load(tmp_path / "model")(np.ones(64, np.float32))
    assert np.asarray(moved).tolist() == (np.arange(64) + 1).tolist()
    assert np.asarray(doubled).max() == 2


def test_a_model_that_returns_no_tensors_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return 3

    with pytest.raises(CaptureError, match="must return tensors"):
        st.save(Odd(), tmp_path / "model", inputs=batch())
    assert os.listdir(tmp_path) == []
    with pytest.raises(FormatError, match="only a module has a graph"):
        st.save({"w": np.zeros(1)}, tmp_path / "model", inputs=batch())


@pytest.mark.parametrize("model", [3, "net", lambda x: x, None])
def test_what_is_no_model_is_refused_and_what_can_be_saved_is_said(tmp_path: Path, model: object) -> None:
    with pytest.raises(FormatError, match="a module, a state dict or a checkpoint") as caught:
        st.save(model, tmp_path / "model.stratal")
    assert "optimizer=opt" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_file_without_a_graph_is_a_mapping_of_weights(tmp_path: Path) -> None:
    """Older versions wrote state dicts so, too."""
    net, other = network(), network()
    with st.no_grad():
        net[0].weight.add_(1.0)
    arrays = {name: np.asarray(value) for name, value in net.state_dict().items()}
    write_model(tmp_path / "weights.stratal", ModelFile(None, arrays))
    loaded = st.load(tmp_path / "weights.stratal")
    other.load_state_dict(loaded)
    assert bits(other[0].weight.detach()) == bits(net[0].weight.detach())
    with pytest.raises(FormatError, match="without a graph"):
        loaded(batch())


def test_a_loaded_model_is_saved_with_its_graph(tmp_path: Path) -> None:
    st.save(network(), tmp_path / "first", inputs=batch())
    st.save(st.load(tmp_path / "first"), tmp_path / "second")
    first, second = st.load(tmp_path / "first")(batch()), st.load(tmp_path / "second")(batch())
    assert bits(first) == bits(second)


def test_a_model_saved_in_eager_mode_has_its_graph_too(tmp_path: Path) -> None:
    with st.eager():
        net = network()
        st.save(net, tmp_path / "model", inputs=batch())
    assert len(st.load(tmp_path / "model").graph.nodes) > 10


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True) for _ in range(2)]
        )

    def forward(self, tokens: st.Tensor) -> st.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Steps(nn.Module):
    def forward(self, x: st.Tensor) -> st.Tensor:
        for k in range(9000):  # more ops than wait for a value in uncompiled code
            x = x + float(k % 2) * x.reshape(-1).reshape(x.shape)
        return x * 0.0 + x.sum(1, keepdims=True) * 0.0 + 1.0


def test_no_value_that_depends_on_an_input_becomes_a_constant() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2):  # sizes that change at one line end turns of uncompiled loops
        net = Encoder().eval()
        for rows in (1, 2, 4, 8):
            sample, other = (rng.integers(0, 9, (rows, 5)) for _ in range(2))
            graph = graph_of(net, (st.tensor(sample).type,), dict(net.state_dict(keep_vars=True)))
            state = {key: np.asarray(value) for key, value in net.state_dict().items()}
            given = [state.get(label_of(node), other) for node in graph.inputs]
            (found,), _ = interpret(graph, given)
            want = np.asarray(net(st.tensor(other)).detach())
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    graph = graph_of(Steps(), (st.ones(2, 3).type,), {})
    assert not [node for node in graph.nodes if node.op.name == "const" and node.aval.ints == (2, 3)]


@pytest.mark.parametrize("ask", [
    lambda x: float(x.sum()), lambda x: x.numpy(), lambda x: x[0, 0].item(), lambda x: bool((x > 0).all()),
])  # fmt: skip
def test_python_that_asks_for_a_value_of_an_input_is_refused(ask: Callable[[st.Tensor], Any]) -> None:
    class Asking(nn.Module):
        def forward(self, x: st.Tensor) -> st.Tensor:
            return x * 2.0 if ask(x) is None else x

    with pytest.raises(CaptureError, match="Python asks for a value"):
        st.freeze(Asking(), np.ones((2, 3), np.float32))


def test_python_may_look_at_weights_and_buffers_but_not_at_what_depends_on_inputs() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", st.tensor(2.0))
            self.steps = st.tensor([1, 2])

        def forward(self, x: st.Tensor) -> st.Tensor:
            return x * float(self.scale) + sum(self.steps.tolist()) + float(np.asarray(self.scale))

    frozen = st.freeze(Scaled(), np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(np.asarray(frozen(np.full((1, 3), 4.0, np.float32))), np.full((1, 3), 13.0))

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = [st.zeros(3)]

        def forward(self, x: st.Tensor) -> st.Tensor:
            self.last[0].copy_(x[0])
            return x * float(self.last[0].numpy()[0])

    with pytest.raises(CaptureError, match="Python asks for a value"):
        st.freeze(Writing(), np.ones((2, 3), np.float32))
