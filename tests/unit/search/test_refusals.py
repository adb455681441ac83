"""What the rest of a program needs is not computed twice for a rewrite: by every rule, in whole programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import StratalError
from stratal.discover.rules import FoundRule, build
from stratal.discover.rules_file import read_rules
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node, graph_input, topological
from stratal.search import moves
from stratal.search.moves import Context
from stratal.search.search import search

B = Builder()
F = nn.functional
RULES, _ = read_rules()


class Site(NamedTuple):
    """What a rule replaces, by itself: its root, and the values between the root and the inputs."""

    inputs: tuple[Node, ...]
    root: Node
    interior: list[Node]


def sites(rule: FoundRule) -> Iterator[Site]:
    """Yield both sides of a rule at the sizes it was proved at."""
    try:
        lhs, rhs, inputs = build(rule, rule.sizes, {n: v[0] for n, v in rule.attributes.items()})
    except StratalError:
        return
    for root in (lhs, rhs):
        if root not in inputs:
            context = Context(Graph(inputs, [root]))
            below = [n for n in topological([root]) if n is not root and n not in inputs]
            interior = [n for n in below if not isinstance(n.op, Const) and not context.moves(n)]
            yield Site(inputs, root, interior)


def replaced(rule: FoundRule, graph: Graph, root: Node) -> bool:
    """Return whether a search with one rule replaces a node, where nothing but that is worth a price.

    Several values joined into one are slices of it afterwards: none is computed twice.
    """
    made = search(graph, [rule], lambda g: float(root in g.nodes))
    return any(set(rewrite.replaced) == {root} for rewrite in made.applied)


def output(site: Site, value: Node) -> Graph:
    return Graph(site.inputs, [site.root, value])


def shared(site: Site, value: Node) -> Graph:
    return Graph(site.inputs, [site.root, B.tanh(value)])


def updated(site: Site, value: Node) -> Graph:
    state = graph_input("state", value.aval)
    return Graph([*site.inputs, state], [site.root], [(state, value)])


def broken(rules: list[FoundRule]) -> tuple[list[str], int, int]:
    """Return rules that are applied over a needed value, how many are applied where none is, and refusals."""
    found, applied, refused = [], 0, 0
    for rule in rules:
        for site in sites(rule):
            if site.interior and replaced(rule, Graph(site.inputs, [site.root]), site.root):
                applied += 1
                for value, needed in itertools.product(site.interior, (output, shared, updated)):
                    refused += 1
                    if replaced(rule, needed(site, value), site.root):
                        found.append(f"{needed.__name__} {value.op.name}: {rule}")
    return found, applied, refused


@pytest.mark.row("C6")
def test_no_rule_is_applied_over_a_value_that_something_else_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [r for r in RULES if r.given and "sub" not in r.given] + RULES[::20]
    found, applied, refused = broken(rules)
    assert not found and applied >= 12 and refused >= 50, (found, applied, refused)
    monkeypatch.setattr(moves, "_is_private", lambda *_: True)
    assert len(broken(rules[:3])[0]) >= 3


@pytest.mark.slow
@pytest.mark.row("C6")
def test_none_of_all_rules_is_applied_over_a_value_that_something_else_needs() -> None:
    found, applied, refused = broken(RULES)
    assert not found and applied >= 50 and refused >= 250, (found, applied, refused)


# -- whole programs ----------------------------------------------------------------------------------
class Twice(nn.Module):
    """Two convolutions of one image, added; `first` is needed once more, in one of several ways."""

    def __init__(self, needs: str) -> None:
        super().__init__()
        self.needs = needs
        self.a, self.b = (nn.Conv2d(8, 16, 3, padding=1, bias=False) for _ in range(2))
        self.register_buffer("seen", st.zeros(2, 16, 12, 12))

    def forward(self, x: st.Tensor) -> tuple[st.Tensor, ...]:
        first = self.a(x)
        total = first + self.b(x)
        if self.needs == "output":
            return total, first
        if self.needs == "shared":
            return total, F.relu(first).sum()
        if self.needs == "state":
            self.seen.copy_(first)
        elif self.needs == "updated":
            first.mul_(0.5)
            return total, first
        elif self.needs == "read before an update":
            view = first[0]
            first[0] = 1.0
            return total, view, first
        return (total,)


def convolutions(compiled: Callable[..., object]) -> int:
    return sum("conv" in kernel["ops"] for kernel in compiled.plan.kernels)  # type: ignore[attr-defined]


@pytest.mark.row("C6")
@pytest.mark.parametrize(
    "needs", ["nothing", "output", "shared", "state", "updated", "read before an update"]
)
def test_a_sum_of_convolutions_becomes_one_only_where_nothing_else_needs_a_part(needs: str) -> None:
    model = Twice(needs).eval()
    x = st.tensor(np.random.default_rng(0).standard_normal((2, 8, 12, 12)).astype(np.float32))
    exact, real = st.compile(model), st.compile(model, math="real")
    with st.no_grad():
        for _ in range(3):
            want = [y.numpy() for y in exact(x)]
            state = model.seen.numpy().copy()
            model.seen.zero_()
            got = [y.numpy() for y in real(x)]
            for a, b in zip([*want, state], [*got, model.seen.numpy()], strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
            model.seen.zero_()
    assert ("conv-conv-add" in chosen(real)) == (needs == "nothing")


def chosen(compiled: object) -> str:
    """Return what explain says of rewrites that were chosen."""
    text = compiled.explain("rewrites")  # type: ignore[attr-defined]
    return "\n".join(part for part in text.split("\n\n") if part.startswith("chosen"))


class Normed(nn.Module):
    def __init__(self, needs: str) -> None:
        super().__init__()
        self.needs = needs
        self.conv, self.norm = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.register_buffer("seen", st.zeros(2, 16, 12, 12))

    def forward(self, x: st.Tensor) -> tuple[st.Tensor, ...]:
        y = self.conv(x)
        z = F.relu(self.norm(y))
        if self.needs == "state":
            self.seen.copy_(y)
        return (z, y) if self.needs == "output" else (z, y.mean()) if self.needs == "shared" else (z,)


@pytest.mark.row("C6")
@pytest.mark.parametrize("needs", ["nothing", "output", "shared", "state"])
def test_a_batch_norm_is_folded_only_where_nothing_else_needs_the_convolution(needs: str) -> None:
    model = Normed(needs).eval()
    model.norm.running_var += 0.5
    x = st.tensor(np.random.default_rng(1).standard_normal((2, 8, 12, 12)).astype(np.float32))
    exact, real = st.compile(model), st.compile(model, math="real")
    with st.no_grad():
        for a, b in zip(exact(x), real(x), strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-4, atol=1e-5)
    assert ("conv-scale" in chosen(real)) == (needs == "nothing")
    assert convolutions(real) == 1
