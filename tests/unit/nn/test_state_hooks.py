"""Hooks of state dicts and steps, extra state, modules compiled in place: as PyTorch has them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, StratalError


def with_state(nn: Any) -> Any:
    """A class of modules that count in extra state."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.weight = nn.Parameter(self.inner.weight.detach() * 2)
            self.count = 0

        def get_extra_state(self) -> Any:
            return {"count": self.count, "names": ["a"]}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]

    return Counting


def libraries() -> list[tuple[Any, Any]]:
    torch = pytest.importorskip("torch")
    return [(torch.nn, torch.optim), (nn, optim)]


@pytest.mark.torch
def test_extra_state_is_saved_and_loaded_as_in_pytorch(tmp_path: Path) -> None:
    told = []
    for lib, _ in libraries():
        net = lib.Sequential(with_state(lib)(), lib.Linear(2, 1))
        net[0].count = 7
        calls: list[Any] = []
        net[0].register_state_dict_pre_hook(lambda m, prefix, keep, calls=calls: calls.append((prefix, keep)))
        state = net.state_dict()
        other = lib.Sequential(with_state(lib)(), lib.Linear(2, 1))
        result = other.load_state_dict(state)
        found = [list(state), state["0._extra_state"], other[0].count, str(result), calls]
        missing = {k: v for k, v in state.items() if k != "0._extra_state"}
        found.append([list(x) for x in other.load_state_dict(missing, strict=False)])
        with pytest.raises((RuntimeError, StratalError), match=r"0\._extra_state"):
            other.load_state_dict(missing)
        plain = lib.Sequential(lib.Linear(2, 2))
        given = {**plain.state_dict(), "0._extra_state": 1}
        found.append([list(x) for x in plain.load_state_dict(given, strict=False)])
        with pytest.raises((RuntimeError, StratalError), match=r"0\._extra_state"):
            plain.load_state_dict(given)
        told.append(found)
    assert told[0] == told[1]
    st.save(state, tmp_path / "net.stratal")
    assert st.load(tmp_path / "net.stratal")["0._extra_state"] == {"count": 7, "names": ["a"]}


def test_a_module_without_extra_state_says_so() -> None:
    with pytest.raises(StratalError, match="define get_extra_state"):
        nn.Linear(1, 1).get_extra_state()


@pytest.mark.torch
def test_hooks_of_optimizers_are_called_as_in_pytorch() -> None:
    told = []
    for lib, methods in libraries():
        net = lib.Linear(2, 1)
        opt = methods.SGD(net.parameters(), lr=0.5, momentum=0.9)
        calls: list[Any] = []

        def note(name: str, calls: list[Any] = calls) -> Any:
            return lambda *given: calls.append((name, len(given)))

        def before(opt: Any, args: Any, kwargs: Any, calls: list[Any] = calls) -> None:
            calls.append(("before", args[0] is opt, len(args), sorted(kwargs)))

        handles = [
            opt.register_step_pre_hook(before),
            opt.register_step_post_hook(note("after")),
            opt.register_state_dict_pre_hook(note("before state")),
            opt.register_state_dict_post_hook(lambda opt, state: {**state, "note": 1}),
            opt.register_state_dict_post_hook(note("first"), prepend=True),
            opt.register_load_state_dict_pre_hook(note("before load")),
            opt.register_load_state_dict_pre_hook(
                lambda opt, state: {k: v for k, v in state.items() if k != "note"}
            ),
            opt.register_load_state_dict_post_hook(note("after load")),
        ]
        net(net.weight * 0 + 1).sum().backward()
        opt.step()
        state = opt.state_dict()
        opt.load_state_dict(state)
        calls.append(sorted(state))
        for handle in handles:
            handle.remove()
        opt.step()
        calls.append(sorted(opt.state_dict()))
        told.append(calls)
    assert told[0] == told[1]


def test_a_hook_before_steps_may_give_another_closure() -> None:
    net = nn.Linear(2, 1)
    opt = optim.SGD(net.parameters(), lr=0.5)
    with opt.register_step_pre_hook(lambda opt, args, kwargs: ((*args, lambda: 3.0), kwargs)):
        assert opt.step() == 3.0
    with (
        opt.register_step_pre_hook(lambda opt, args, kwargs: 3),
        pytest.raises(AttributeValueError, match="returns None or"),
    ):
        opt.step()


def test_hooks_around_steps_run_at_capture_of_a_compiled_step() -> None:
    net = nn.Linear(2, 1)
    opt = optim.SGD(net.parameters(), lr=0.5)

    def halve(opt: Any, args: Any, kwargs: Any) -> None:
        for p in net.parameters():
            p.grad.mul_(0.5)

    opt.register_step_pre_hook(halve)
    before = np.asarray(net.weight.detach())

    @st.compile
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss

    for _ in range(3):
        step(st.ones((1, 2)))
    np.testing.assert_allclose(np.asarray(net.weight.detach()), before - 3 * 0.25, rtol=1e-6)
    assert step.captures <= 2


def test_a_module_compiled_in_place_trains_and_copies() -> None:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    x = st.tensor(np.random.default_rng(0).random((5, 3), np.float32))
    net.eval()
    plain = np.asarray(net(x).detach())
    names = list(net.state_dict())
    assert net.compile() is None
    np.testing.assert_allclose(np.asarray(net(x).detach()), plain, rtol=1e-6)
    assert net._compiled.captures == 1 and list(net.state_dict()) == names and "compiled" not in repr(net)
    net(x).sum().backward()
    assert net[0].weight.grad is not None
    with st.no_grad():
        net[2].bias.add_(1.0)
    np.testing.assert_allclose(np.asarray(net(x).detach()), plain + 1, rtol=1e-6)
    twin = copy.deepcopy(net)
    with st.no_grad():
        twin[2].bias.add_(1.0)
    np.testing.assert_allclose(np.asarray(twin(x).detach()), plain + 2, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(st.compile(net)(x).detach()), plain + 1, rtol=1e-6)
    assert net.to_empty(device="cpu") is net
    with pytest.raises(AttributeValueError, match="only the CPU is here"):
        net.to_empty(device="cuda")
