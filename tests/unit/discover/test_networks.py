"""Rules wherever they match in the graphs of whole networks, forward and training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import workloads
from benchmarks.inference import INFERENCE
from benchmarks.models import Workload
from benchmarks.optimiser_networks import NETWORKS

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.discover.matching import matches
from stratal.discover.prove import prove
from stratal.discover.rules import FoundRule, built, ops_of
from stratal.discover.rules_file import read_rules
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.tensor.capture.ahead import captured_ahead
from stratal.tensor.capture.compiled import Compiled

RULES, _ = read_rules()
CASES = {**NETWORKS, "gpt2_decode": INFERENCE["gpt2_decode"]}
MOST_OPERATIONS = 2e8  # of a side that the interpreter computes


def graphs_of(workload: Workload) -> Iterator[Graph]:
    """Yield the graphs of a forward pass, with what it has learnt as it stands, and of a training step."""
    net = workload.build(nn)
    opt = workload.optimizer(optim, list(net.parameters()))
    rng = np.random.default_rng(0)
    x, y = (st.tensor(a) for a in workload.data(rng))
    rest = tuple(st.tensor(a) for a in workload.rest(rng))

    def step(x: st.Tensor, y: st.Tensor) -> st.Tensor:
        loss = workload.loss(nn, net, x, y, *rest)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    yield captured_ahead(Compiled(step), x, y).graph
    net.eval()
    yield captured_ahead(Compiled(lambda x: net(x, *rest)), x).graph


def sides_at(node: Node, rules: Sequence[FoundRule]) -> Iterator[tuple[FoundRule, Node, Node, list[Node]]]:
    """Yield what proved rules say of a node: both sides over inputs of their own, each pair of types once."""
    for rule in rules:
        for bound, _ in matches(rule, node):
            inputs = {x: graph_input("x", x.aval) for x in dict.fromkeys(bound.nodes.values())}
            cut = {name: inputs[x] for name, x in bound.nodes.items()}
            try:
                left, right = (built(s, cut, bound.sizes, bound.attributes) for s in (rule.lhs, rule.rhs))
            except (StratalError, KeyError):
                continue
            if left.type == right.type and prove(left, right, list(inputs.values())).proved:
                yield rule, left, right, list(inputs.values())


def operations(graph: Graph) -> float:
    return sum(n.op.cost(*(i.aval for i in n.inputs)).flops for n in graph.nodes if n.inputs)


def compared(graphs: Iterator[Graph]) -> int:
    """Compute both sides of each match on whole numbers, whose sums round nowhere; return how many agree."""
    by_root: dict[str, list[FoundRule]] = {}
    for rule in RULES:
        by_root.setdefault(ops_of(rule.lhs)[-1], []).append(rule)
    seen = set()
    for graph in graphs:
        for node in graph.nodes:
            for rule, left, right, inputs in sides_at(node, by_root.get(node.op.name, [])):
                both = Graph(inputs, (left, right))
                key = rule.name, str(both)
                if key in seen or operations(both) > MOST_OPERATIONS:
                    continue
                seen.add(key)
                rng = np.random.default_rng(len(seen))
                arrays = [rng.integers(-2, 3, i.shape).astype(np.float32) for i in inputs]
                ((a, b), _) = interpret(both, arrays)
                np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=str(rule))
    return len(seen)


@pytest.mark.row("C10")
@pytest.mark.parametrize("name", ["lenet", "gpt"])
def test_no_rule_changes_a_value_where_it_matches_in_a_network(name: str) -> None:
    assert compared(graphs_of(workloads.SMALL[name])) >= 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
@pytest.mark.parametrize("name", sorted(workloads.FULL))
def test_no_rule_changes_a_value_where_it_matches_in_a_network_of_full_size(name: str) -> None:
    assert compared(graphs_of(workloads.FULL[name])) >= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
@pytest.mark.parametrize("name", sorted(CASES))
def test_no_rule_changes_a_value_where_it_matches_in_a_network_for_inference(name: str) -> None:
    case = CASES[name]
    net = case.build(nn).eval()
    inputs = [st.tensor(a) for a in case.inputs(np.random.default_rng(0))]
    matched = compared(iter([captured_ahead(Compiled(lambda *x: net(*x)), *inputs).graph]))
    assert matched or name == "nasrnn"  # no rule is of contractions like its own
