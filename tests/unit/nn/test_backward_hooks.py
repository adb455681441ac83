"""Backward hooks of modules: the gradients PyTorch's hooks see, replaced where PyTorch replaces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import AttributeValueError, NotDifferentiableError, ShapeError
from stratal.tensor.lazy import program_cache

X = np.random.default_rng(0).standard_normal((5, 3))


def same(ours: Any, theirs: Any) -> None:
    """Two records of hooks: nested tuples and lists of arrays and None."""
    if isinstance(theirs, list | tuple):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif theirs is None:
        assert ours is None
    elif isinstance(theirs, str):
        assert ours == theirs
    else:
        np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), rtol=1e-12, atol=1e-14)


def build(lib: Any, nn: Any) -> Any:
    """A network with a layer used twice, one with two results, one with an argument that is no tensor."""

    class Split(nn.Module):
        def forward(self, x: Any, scale: float, y: Any) -> Any:
            return x * scale, x * y, x.detach()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared, self.split = nn.Linear(3, 4), nn.Linear(4, 4), Split()

        def forward(self, x: Any) -> Any:
            x = lib.tanh(self.first(x))
            x = self.shared(lib.tanh(self.shared(x)))
            a, b, _ = self.split(x, 2.0, x + 1)
            return (a * a).sum() + b.sum()

    net = Net()
    return net.double()


HOOKS: dict[str, Callable[[Any, list[Any]], None]] = {
    "see": lambda net, seen: [  # type: ignore[dict-item, func-returns-value]
        part.register_full_backward_hook(lambda m, gi, go: seen.append((type(m).__name__, gi, go)))
        for part in (net.first, net.shared, net.split)
    ],
    "replace inputs": lambda net, seen: net.shared.register_full_backward_hook(
        lambda m, gi, go: (gi[0] * 2 + go[0],)
    ),
    "replace results": lambda net, seen: net.shared.register_full_backward_pre_hook(
        lambda m, go: (go[0] * 3,)
    ),
    "both": lambda net, seen: [  # type: ignore[dict-item, func-returns-value]
        net.split.register_full_backward_pre_hook(lambda m, go: (go[0] * 3, go[1] - 1, go[2])),
        net.split.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[1], gi[1], gi[2] * 5)),
        net.split.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)), prepend=True),
        net.split.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go))),
    ],
    "whole": lambda net, seen: net.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go))),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("leaf", [False, True], ids=["data", "leaf"])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_see_and_replace_what_those_of_pytorch_do(name: str, leaf: bool, compiled: bool) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = build(torch, torch.nn), build(st, nn)
    ours.load_state_dict(theirs.state_dict())
    told: list[Any] = []
    seen: list[Any] = []
    HOOKS[name](theirs, told)
    HOOKS[name](ours, seen)

    x = torch.tensor(X, requires_grad=leaf)
    theirs(x).backward()
    y = st.tensor(X).requires_grad_(leaf)

    def step() -> Any:
        loss = ours(y)
        loss.backward()
        return loss

    (st.compile(step) if compiled else step)()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(a.grad, b.grad)
    if leaf:
        same(y.grad, x.grad)
    same(seen, told)


def test_hooks_change_gradients_under_grad_checkpoint_and_eager_mode() -> None:
    net = nn.Linear(3, 3, bias=False).double()
    net.register_full_backward_hook(lambda m, gi, go: (gi[0] * 10,))
    w = np.asarray(net.weight.detach())
    expected = 10 * np.ones((5, 3)) @ w
    functions = {
        "grad": lambda x: net(x).sum(),
        "checkpoint": lambda x: st.checkpoint(net, x).sum(),
        "compiled": st.compile(lambda x: net(x).sum()),
    }
    for name, function in functions.items():
        found = st.grad(function)(st.tensor(X))
        np.testing.assert_allclose(np.asarray(found), expected, err_msg=name)
    with st.eager():
        x = st.tensor(X, requires_grad=True)
        net(x).sum().backward()
        np.testing.assert_allclose(np.asarray(x.grad), expected)


def test_hooks_can_be_removed_and_with_no_grad_nothing_is_called() -> None:
    net, calls = nn.Linear(3, 3), []
    handle = net.register_full_backward_hook(lambda m, gi, go: calls.append(1))
    with st.no_grad():
        net(st.ones((2, 3)))
    net(st.ones((2, 3))).sum().backward()
    assert calls == [1]
    with net.register_full_backward_pre_hook(lambda m, go: calls.append(2)):
        handle.remove()
        net(st.ones((2, 3))).sum().backward()
    net(st.ones((2, 3))).sum().backward()
    assert calls == [1, 2]


def test_a_step_with_hooks_compiles_once() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    norms: list[float] = []
    for part in net:
        part.register_full_backward_hook(lambda m, gi, go: norms.append(float(go[0].norm())))
    counts = []
    for k in range(4):
        net.zero_grad()
        net(st.tensor(X.astype(np.float32) + k)).sum().backward()
        np.asarray(net[0].weight.grad)
        counts.append(program_cache.COMPILED[0])
    assert counts[1:] == [counts[1]] * 3
    assert len(norms) == 12 and min(norms) > 0


def test_gradients_that_a_hook_saw_do_not_outlive_the_step() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))

    @st.compile
    def step(x: Any) -> Any:
        net.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(4):
        step(st.ones(4, 3))
    assert step.captures == 1


def test_second_derivatives_pass_hooks() -> None:
    net = nn.Tanh()
    net.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    x = st.tensor(X)
    second = st.grad(lambda x: st.grad(lambda x: net(x).sum())(x).sum())(x)
    t = np.tanh(X)
    np.testing.assert_allclose(np.asarray(second), 2 * 2 * -2 * t * (1 - t * t), rtol=1e-12)


def test_what_hooks_cannot_do_is_an_error() -> None:
    net = nn.Linear(3, 3)
    x = st.ones((2, 3), requires_grad=True)

    def with_hook(hook: Any, error: type[Exception], says: str, run: Any = None) -> None:
        with net.register_full_backward_hook(hook), pytest.raises(error, match=says):
            (run or (lambda: net(x).sum().backward()))()

    with_hook(lambda m, gi, go: (gi[0], gi[0]), ShapeError, "Linear: a backward hook returns")
    with_hook(lambda m, gi, go: (3.0,), ShapeError, "Linear: a backward hook returns")
    with_hook(lambda m, gi, go: (gi[0].sum(),), ShapeError, "shape and dtype of its tensor")
    with_hook(lambda m, gi, go: (gi[0].double(),), ShapeError, "shape and dtype of its tensor")
    data = st.ones((2, 3))
    with_hook(
        lambda m, gi, go: go, AttributeValueError, "no input takes a gradient",
        lambda: net(data).sum().backward(),
    )  # fmt: skip
    batched = st.vmap(lambda row: net(row).sum())
    with_hook(
        lambda m, gi, go: None, NotDifferentiableError, "vmap", lambda: st.grad(lambda x: batched(x).sum())(x)
    )

    class Named(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"x": x * 2}

    named = Named()
    named.register_full_backward_hook(lambda m, gi, go: None)
    with pytest.raises(AttributeValueError, match="a tensor or a tuple of tensors"):
        named(x)
