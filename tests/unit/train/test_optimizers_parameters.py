"""A step clips, averages and checks the gradients of all of the optimizer's parameters, and of no others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from trained import LOSS, X, Y, small

import stratal as st
from stratal import nn, optim
from stratal.train import NonFiniteError, Trainer

OPTIONS = [
    {"clip_norm": 0.05}, {"clip_value": 0.01}, {"accumulate": 2}, {"accumulate": 2, "clip_norm": 0.05},
    {"check_finite": "gradients", "clip_norm": 0.05}, {"precision": "float16", "clip_norm": 0.05},
]  # fmt: skip


class Heated(nn.Module):
    """A loss with parameters: one that it divides scores by, one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(st.ones(2))
        self.shift = nn.Parameter(st.zeros(2))

    def forward(self, outputs: Any, y: Any) -> Any:
        return LOSS((outputs + self.shift) / self.heat, y) * 20 + (self.heat**2).sum()


def trained(names: tuple[str, ...], options: dict[str, Any], freeze: bool) -> tuple[list[Any], list[Any]]:
    """Return parameters after training those that are named: others frozen, or unknown to the optimizer."""
    net, loss = small(), Heated()
    everything = {"body": net[0], "head": net[3], "loss": loss}
    chosen = [p for name in names for p in everything[name].parameters() if p is not loss.shift]
    if freeze:
        known = {id(p) for p in chosen}
        for p in (*net.parameters(), *loss.parameters()):
            p.requires_grad_(id(p) in known)
    sgd = optim.SGD(chosen, lr=0.1, momentum=0.9)
    Trainer(net, loss=loss, optimizer=sgd, **options).fit((X, Y), epochs=3, batch_size=16, shuffle=False)
    others = [p for p in (*net.parameters(), *loss.parameters()) if id(p) not in {id(q) for q in chosen}]
    return [np.array(p.detach()) for p in (*net.parameters(), *loss.parameters())], others


CHOICES = [c for n in (1, 2, 3) for c in itertools.combinations(("body", "head", "loss"), n)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("names", CHOICES, ids="+".join)
def test_what_the_optimizer_does_not_have_is_as_if_it_were_frozen(
    names: tuple[str, ...], options: dict[str, Any], compiled: bool
) -> None:
    found, others = trained(names, {**options, "compiled": compiled}, freeze=False)
    expected, _ = trained(names, {**options, "compiled": compiled}, freeze=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert all(p.grad is None for p in others)


def test_a_compiled_step_does_not_compute_gradients_of_what_nobody_trains() -> None:
    sizes = []
    for frozen in (True, False):
        net = small()
        net[0].requires_grad_(not frozen)
        sgd = optim.SGD(net[3].parameters(), lr=0.1)
        trainer = Trainer(net, loss=LOSS, optimizer=sgd, clip_norm=1.0)
        trainer.fit((X, Y), batch_size=35, epochs=2)
        sizes.append((len(trainer.step.programs["step"].graph.nodes), trainer.step.captures))
    assert sizes[0] == sizes[1] and sizes[0][1] == 1


@pytest.mark.torch
@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_parameters_of_the_loss_are_clipped_and_averaged_with_the_nets(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    found, _ = trained(("body", "head", "loss"), options, freeze=False)
    net, heat = small(), torch.ones(2, requires_grad=True)
    start = [torch.tensor(np.array(p.detach()), requires_grad=True) for p in net.parameters()]
    params, window = [*start, heat], options.get("accumulate", 1)
    sgd = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    rows = [slice(k, k + 16) for k in range(0, 70, 16)]
    for _, first in itertools.product(range(3), range(0, len(rows), window)):
        sgd.zero_grad()
        for part in rows[first : first + window]:
            w, b, v, c = start
            scores = torch.relu(torch.tensor(X[part]) @ w.T + b) @ v.T + c
            loss = torch.nn.functional.cross_entropy(scores / heat, torch.tensor(Y[part])) * 20
            ((loss + (heat**2).sum()) / len(rows[first : first + window])).backward()
        if "clip_norm" in options:
            torch.nn.utils.clip_grad_norm_(params, options["clip_norm"])
        if "clip_value" in options:
            torch.nn.utils.clip_grad_value_(params, options["clip_value"])
        sgd.step()
    for a, b in zip(found, [*params], strict=False):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_gradient_of_the_loss_that_is_not_finite_is_named_and_one_of_others_does_no_harm() -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(st.zeros(2))

        def forward(self, outputs: Any, y: Any) -> Any:
            return LOSS(outputs + st.sqrt(self.scale), y)

    def of(with_scale: bool) -> Trainer:
        net, loss = small(), Rooted()
        params = [*net.parameters(), *([loss.scale] if with_scale else [])]
        return Trainer(net, loss=loss, optimizer=optim.SGD(params, lr=0.1), check_finite="gradients")

    of(with_scale=False).fit((X, Y))
    with pytest.raises(NonFiniteError, match=r"the gradient of loss\.scale is the first"):
        of(with_scale=True).fit((X, Y))
