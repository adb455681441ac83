"""Lazy work that comes again: runs of the same calls make no node, and mean what they meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.everyday_steps import FAMILIES
from benchmarks.small_models import MODELS, training

import stratal as st
from stratal import nn, optim
from stratal.base.session import SESSION
from stratal.tensor.calls import call_cache
from stratal.tensor.values import deferred

OPTIMIZERS = {
    "SGD": {"lr": 0.1}, "SGD momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "Adam": {},
    "AdamW": {"amsgrad": True}, "NAdam": {}, "RAdam": {}, "Adagrad": {}, "Adadelta": {}, "Adamax": {},
    "RMSprop": {"momentum": 0.5, "centered": True}, "Rprop": {}, "ASGD": {}, "Lion": {}, "Adafactor": {},
    "LAMB": {}, "LARS": {"lr": 0.1},
}  # fmt: skip


@pytest.fixture
def unrecorded() -> Iterator[Callable[[], None]]:
    """What makes every call build its ops, as the first of a kind does."""
    patch = pytest.MonkeyPatch()
    call_cache._TEMPLATES.clear()
    yield lambda: (call_cache._TEMPLATES.clear(), patch.setattr(call_cache, "_template_for", lambda *_: None))  # type: ignore[func-returns-value]
    patch.undo()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[deferred.PendingCall]:
    """The calls whose nodes are made."""
    found: list[deferred.PendingCall] = []
    made = deferred.CallTemplate.nodes

    def nodes(self: deferred.CallTemplate, *rest: Any) -> Any:
        found.append(self)  # type: ignore[arg-type]
        return made(self, *rest)

    monkeypatch.setattr(deferred.CallTemplate, "nodes", nodes)
    return found


def small(seed: int = 0) -> tuple[Any, st.Tensor, st.Tensor]:
    st.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.25), nn.Linear(4, 2))
    rng = np.random.default_rng(seed)
    return net, st.tensor(rng.standard_normal((5, 3), np.float32)), st.tensor(rng.integers(0, 2, 5))


def bits(net: Any) -> list[bytes]:
    return [np.asarray(v.detach()).tobytes() for v in net.state_dict().values()]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("nothing_waits")
def test_later_steps_of_small_models_make_no_node(nodes: list[deferred.PendingCall]) -> None:
    for name in ("mlp", "siamese"):
        SESSION.reset()  # as in a process of its own
        _, step = training(st, name, 0.1)
        batch = [st.tensor(array) for array in MODELS[name].data(np.random.default_rng(0))]
        for _ in range(5):
            step(*batch)
        nodes.clear()
        step(*batch)
        assert not nodes


@pytest.mark.sampled(10)
@pytest.mark.usefixtures("nothing_waits")
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
def test_later_steps_of_recurrent_layers_make_no_node(
    kind: str, options: dict[str, Any], nodes: list[deferred.PendingCall]
) -> None:
    SESSION.reset()
    st.manual_seed(0)
    net = getattr(nn, kind)(3, 4, **options)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    x = st.randn(5, 2, 3)

    def step() -> float:
        optimizer.zero_grad()
        outputs, _ = net(x)
        loss = (outputs[-1] ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(5)]
    nodes.clear()
    assert step() < losses[-1] < losses[0]
    assert not nodes


@pytest.mark.sampled(5)
def test_steps_are_those_of_calls_that_build_their_ops(unrecorded: Callable[[], None]) -> None:
    for name in ("mlp", "transformer"):
        found = []
        for turn in range(2):
            if turn:
                unrecorded()
            st.manual_seed(0)
            net, step = training(st, name, 0.1)
            batch = [st.tensor(array) for array in MODELS[name].data(np.random.default_rng(0))]
            found.append(([step(*batch) for _ in range(5)], bits(net)))
        assert found[0] == found[1]
        call_cache._TEMPLATES.clear()


def trained(name: str, act: Callable[..., None] = lambda *_: None) -> tuple[Any, ...]:
    """Return losses, weights and the state of an optimizer after steps; before each `act` is called."""
    net, x, y = small()
    optimizer = getattr(optim, name.split()[0])(net.parameters(), **OPTIMIZERS[name])
    losses = []
    for k in range(7):
        act(k, net, optimizer)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [np.asarray(v).tobytes() for s in optimizer.state_dict()["state"].values() for v in s.values()]
    return losses, bits(net), state


@pytest.mark.sampled(29)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_when_its_ops_are_built(name: str, unrecorded: Callable[[], None]) -> None:
    recognized = trained(name)
    unrecorded()
    assert recognized == trained(name)


def rate(k: int, net: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)


def decay(k: int, net: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1 * (k >= 4)


def betas(k: int, net: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"] = (0.9 - 0.01 * k, 0.99)


def frozen(k: int, net: Any, optimizer: Any) -> None:
    net[0].weight.requires_grad_(k != 4)


def shown(k: int, net: Any, optimizer: Any) -> None:
    net[3].bias.detach().numpy()[:] += 0.25 * (k == 5)


def by_hand(k: int, net: Any, optimizer: Any) -> None:
    with st.no_grad():
        net[0].weight.mul_(0.5) if k == 4 else None


def replaced(k: int, net: Any, optimizer: Any) -> None:
    if k == 5:
        net.load_state_dict({name: value * 0.5 for name, value in net.state_dict().items()})


def evaluated(k: int, net: Any, optimizer: Any) -> None:
    net.eval()
    held.append(net(st.ones(5, 3)))  # tracked, and waiting when the weights are written
    net.train()


def asked(k: int, net: Any, optimizer: Any) -> None:
    net.eval()
    held.append(net(st.ones(5, 3)).sum().item())
    net.train()


held: list[Any] = []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("act", [rate, decay, betas, frozen, shown, by_hand, replaced, evaluated, asked])
def test_what_changes_between_steps_counts(act: Callable[..., None], unrecorded: Callable[[], None]) -> None:
    found = []
    for turn in range(2):
        if turn:
            unrecorded()
        held.clear()
        made = trained("Adam", act)
        values = [h.detach() if isinstance(h, st.Tensor) else h for h in held]
        found.append((*made, [np.asarray(value).tobytes() for value in values]))
    assert found[0] == found[1]


def test_gradients_add_up_over_passes_that_came_before(unrecorded: Callable[[], None]) -> None:
    found = []
    for turn in range(2):
        if turn:
            unrecorded()
        net, x, y = small()
        sums = []
        for k in range(9):
            if k % 3 == 0:
                net.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            sums += [np.asarray(p.grad).tobytes() for p in net.parameters()]
        found.append(sums)
    assert found[0] == found[1]


def test_a_view_that_is_written_writes_its_base_at_every_turn() -> None:
    for k in range(6):
        x = st.tensor(np.zeros((2, 3), np.float32))
        row = x[1]
        row.add_(1.0).mul_(float(2))
        y = x * 1.0
        assert x.tolist() == [[0, 0, 0], [2, 2, 2]] and y.tolist() == x.tolist(), k


def test_a_cell_that_others_hold_moves_at_every_turn() -> None:
    x = st.tensor(np.ones(3, np.float32))
    for k in range(6):
        shared = x.detach() if k % 2 else None
        seen = x.numpy() if k == 4 else None
        before = x.tolist()
        later = x * 2.0
        x.add_(1.0)
        assert x.tolist() == [v + 1 for v in before]
        assert later.tolist() == [v * 2 for v in before]
        assert seen is None or seen.tolist() == before
        del shared


def test_a_run_that_fails_fails_again_and_writes_nothing() -> None:
    table = st.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    total = st.tensor(np.zeros(3, np.float32))
    for k in range(6):
        total.add_(table[st.tensor(np.array([k % 4]))].sum(0))
        total.tolist()
    before = total.tolist()
    for _ in range(3):
        wrong = nn.functional.embedding(st.tensor(np.array([9])), table)
        with pytest.raises(st.StratalError, match="9") as caught:
            wrong.tolist()
        assert any(line.file == __file__ for line in caught.value.where)
    assert total.tolist() == before
    total.add_(1.0)
    assert total.tolist() == [v + 1 for v in before]


@pytest.mark.sampled(4)
def test_a_long_chain_of_promises_needs_no_recursion() -> None:
    x = st.tensor(np.ones(2, np.float32))
    for _ in range(3):
        y = x
        for _ in range(3000):
            y = st.sin(y)
        assert 0 < float(y.sum()) < 0.1


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("nothing_waits")
def test_steps_of_two_networks_make_no_node_once_they_came_before(nodes: list[deferred.PendingCall]) -> None:
    SESSION.reset()
    turn = FAMILIES["adversaries"](st)
    for _ in range(4):
        turn()
    nodes.clear()
    turn()
    assert not nodes


def test_what_waits_with_a_history_keeps_it_over_the_steps_of_others() -> None:
    for size in (1, 8):  # more of them than a step leaves out
        w, v = (st.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
        mine, other = optim.SGD([w], lr=1.0), optim.SGD([v], lr=1.0)
        for k in range(5):
            before = np.asarray(w.detach())
            waiting = [(w * w).sum() * (j + 1) for j in range(size)]
            mine.zero_grad()
            other.zero_grad()
            (v * sum(waiting).detach()).sum().backward()
            other.step()
            sum(waiting).backward()
            factor = sum(range(1, size + 1))
            np.testing.assert_allclose(w.grad, 2 * factor * before, rtol=1e-5)
            w.grad *= 0.01 / factor
            mine.step()
            np.testing.assert_allclose(w.detach(), 0.98 * before, rtol=1e-5)
            np.testing.assert_allclose(
                [float(t) for t in waiting], np.arange(1, size + 1) * (before @ before), 1e-5
            )
            assert k < 4 or float(v[0]) < 0


@pytest.mark.parametrize(
    "op", [st.mul, st.add, st.matmul, lambda a, b: st.where(a > 0, a, b), nn.functional.linear]
)
def test_gradients_stop_at_detached_operands_of_calls_that_came_before(op: Callable[..., Any]) -> None:
    x = st.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    found = []
    for _ in range(5):
        x.grad = None
        y = x * x
        op(y.detach(), y).sum().backward()
        found.append(np.asarray(x.grad))
    values = st.tensor(np.asarray((x * x).detach()))
    x.grad = None
    op(values, x * x).sum().backward()
    for gradient in found:
        np.testing.assert_array_equal(gradient, x.grad)
