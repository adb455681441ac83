"""The rules that ship are proved again, agree with NumPy, and are of use on graphs of other sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_expressions import extended

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.dtypes import float32, float64
from stratal.base.errors import FormatError, StratalError
from stratal.base.types import TensorType
from stratal.cli import main
from stratal.discover.families import FIXED, given
from stratal.discover.generalise import generalised
from stratal.discover.matching import apply
from stratal.discover.prove import prove
from stratal.discover.rules import FoundRule, build, check, ops_of
from stratal.discover.rules_file import from_json, read_rules, to_json
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input

B = Builder()
RULES, COUNTS = read_rules()


def named(name: str) -> FoundRule:
    (rule,) = (r for r in RULES if r.given == name)
    return rule


HOSTILE = [
    {}, [], None, 5, "", "x9", "$x", [1, 2], ["neg", {"foo": 3}, "x0"], ["max", {}, "x0"], ["neg", [], "x0"],
    {"m": -2}, {"m": 0}, {"m": "2"}, {"m": 2.5}, {"m": 10**30}, {"x0": ["m**m**m", "n"]}, {"x0": ["m"] * 40},
    {"x0": ["__import__('os')", "n"]},
]  # fmt: skip


def nested(depth: int) -> Any:
    side: Any = "x0"
    for _ in range(depth):
        side = ["neg", {}, side]
    return side


@pytest.mark.parametrize("field", ["inputs", "lhs", "rhs", "sizes", "class", "dtype", "attributes"])
def test_a_rule_of_a_file_that_is_none_is_refused_or_fails(field: str, tmp_path: Path) -> None:
    """Whatever stands in a field: an error that says so, and never a rule that counts."""
    rule = next(to_json(r) for r in RULES if r.attributes)
    for value in [*HOSTILE, nested(300), nested(5000)]:
        if rule[field] == value:
            continue
        try:
            made = from_json({**rule, field: value})
        except FormatError:
            continue
        proof = check(made)
        assert not proof.proved and proof.reason, value


@pytest.mark.parametrize("text", ["[" * 200_000, '{"format": "stratal-rules", "version": 1}'])
def test_a_file_without_rules_is_a_clear_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(text)
    with pytest.raises(FormatError, match="rules: not"):
        read_rules(tmp_path / "rules.json")


def tensor(*shape: int) -> Node:
    return graph_input("x", TensorType(float32, shape))


def test_the_rules_that_ship_are_counted_and_named() -> None:
    assert len(RULES) == COUNTS["rules"] >= 200
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.row("C10")
def test_both_sides_of_every_rule_that_ships_agree_with_numpy() -> None:
    compared = 0
    for k, rule in enumerate(RULES):
        rng = np.random.default_rng(k)
        attributes = {n: values[k % len(values)] for n, values in rule.attributes.items()}
        sizes = {s: min(n, 9) + k % 2 for s, n in rule.sizes.items()} if len(rule.sizes) < 5 else rule.sizes
        for chosen, at in ((sizes, attributes), (rule.sizes, {n: v[0] for n, v in rule.attributes.items()})):
            try:
                lhs, rhs, inputs = build(rule, chosen, at, float64)
            except StratalError:
                continue
            arrays = [rng.standard_normal(x.shape) for x in inputs]
            ((left, right), _) = interpret(Graph(inputs, (lhs, rhs)), arrays)
            if rule.exact:
                assert left.tobytes() == right.tobytes(), str(rule)
            np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10, err_msg=str(rule))
            compared += 1
    assert compared > len(RULES)


@pytest.mark.row("C10")
def test_rules_to_the_bit_hold_for_infinities_negative_zeros_and_what_is_no_number() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -1.5], np.float32)
    for k, rule in enumerate(r for r in RULES if r.exact):
        lhs, rhs, inputs = build(rule, rule.sizes, {n: v[0] for n, v in rule.attributes.items()})
        rng = np.random.default_rng(k)
        for _ in range(4):
            arrays = [rng.choice(special, x.shape) for x in inputs]
            with np.errstate(all="ignore"):
                ((left, right), _) = interpret(Graph(inputs, (lhs, rhs)), arrays)
            one, other = (np.where(np.isnan(a), np.float32(7), a) for a in (left, right))
            assert one.tobytes() == other.tobytes(), str(rule)


def test_given_pairs_are_judged_as_found_ones_are() -> None:
    for name, lhs, rhs, inputs in given():
        assert prove(lhs, rhs, inputs).proved
        rule = generalised(lhs, rhs, inputs, name, FIXED.get(name, ()))
        assert rule is not None and rule == named(name)


@pytest.mark.row("C2")
def test_a_convolution_then_batch_norm_is_a_convolution_of_scaled_filters() -> None:
    rule = named("conv-batch-norm")
    x, w, c, s, t = tensor(1, 3, 8, 9), tensor(6, 3, 3, 2), tensor(6), tensor(6), tensor(6)
    plain = {"strides": (1, 1), "padding": ((0, 0),) * 2, "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    y = B.conv(x, w, groups=1, **plain)

    def spread(v: Node) -> Node:
        return B.broadcast(v, shape=y.shape, axes=(1,))

    graph = B.add(B.mul(B.add(y, spread(c)), spread(s)), spread(t))
    made = apply(rule, graph)
    assert made is not None and made.op.name == "add"
    rng = np.random.default_rng(0)
    inputs = (x, w, c, s, t)
    arrays = [rng.standard_normal(i.shape).astype(np.float32) for i in inputs]
    ((left, right), _) = interpret(Graph(inputs, (graph, made)), arrays)
    assert np.abs(left - right).max() <= 1e-5
    assert apply(rule, graph, exact=True) is None  # real numbers, not bits


@pytest.mark.row("C4")
@pytest.mark.parametrize("stride", [1, 2])
def test_a_1x1_convolution_is_enlarged_whatever_its_stride(stride: int) -> None:
    x, w = tensor(1, 3, 8, 9), tensor(6, 3, 1, 1)
    attributes = {"strides": (stride,) * 2, "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": 1}
    made = apply(named("conv-enlarge"), B.conv(x, w, padding=((0, 0), (0, 0)), **attributes))
    assert made is not None and made.inputs[1].op.name == "pad"
    assert apply(named("conv-enlarge"), B.conv(x, w, padding=((1, 1), (1, 1)), **attributes)) is None


def test_three_products_of_one_input_are_one() -> None:
    x, *w = tensor(5, 8), tensor(8, 8), tensor(8, 4), tensor(8, 4)
    graph = B.concatenate(*(B.contract(x, y, spec="mk,kn->mn") for y in w), axis=1)
    made = apply(named("three-products"), graph)
    assert made is not None and made.op.name == "contract"


def test_rules_that_a_person_would_have_written_are_among_those_found() -> None:
    found = {(tuple(ops_of(r.lhs)), tuple(ops_of(r.rhs))) for r in RULES if not r.given}
    for pair in (
        (("permute", "permute"), ()), (("conv", "conv", "add"), ("add", "conv")),
        (("contract", "contract"), ("contract", "contract")), (("neg", "neg"), ()),
        (("contract", "contract", "concatenate"), ("concatenate", "contract")),
        (("conv", "conv", "concatenate"), ("concatenate", "conv")),
        (("sum", "sum"), ("sum",)), (("reduce_max", "reduce_max"), ("reduce_max",)),
    ):  # fmt: skip
        assert pair in found, pair


# -- the command ---------------------------------------------------------------------------------------------
@pytest.mark.row("C5")
@pytest.mark.row("C10")
def test_the_command_proves_every_rule_that_ships_again_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discover", "--check", "--json", str(tmp_path / "counts.json")]) == 0
    assert "rules proved again" in capsys.readouterr().out
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["failed"] == 0 and counts["rules proved"] == len(RULES)
    assert counts["lines of the search and the prover"] < 53_000 / 10


def test_the_command_says_which_rules_of_a_file_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.json"
    assert main(["discover", "--ops", "add,sub,neg", "--size", "2", "--inputs", "2", "--out", str(file)]) == 0
    text = file.read_text()
    assert main(["discover", "--check", "--rules", str(file)]) == 0
    file.write_text(text.replace('["neg", {}, ["neg", {}, "x0"]]', '["neg", {}, "x0"]'))
    assert file.read_text() != text
    assert main(["discover", "--check", "--rules", str(file)]) == 1
    assert "1 rules fail" in capsys.readouterr().out


def test_the_command_refuses_an_op_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--ops", "add,nothing"]) == 1
    assert "no such op" in capsys.readouterr().err


# -- anywhere ------------------------------------------------------------------------------------------------
def applied_everywhere(seeds: range, rules: list[FoundRule]) -> int:
    """Apply every rule wherever it matches in random graphs; return how often, each time with equal values.

    Values are whole numbers that floats hold, so that sums round nowhere and real rules must be exact, too.
    """
    by_root: dict[str, list[FoundRule]] = {}
    for rule in rules:
        by_root.setdefault(ops_of(rule.lhs)[-1], []).append(rule)
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        inputs = [tensor(*shape) for shape in ((2, 3), (3, 2), (2, 3), (3, 4))]
        values = list(inputs)

        def draw(n: int, rng: np.random.Generator = rng, values: list[Node] = values) -> int:
            late = n == len(values) and rng.random() < 0.7  # so that graphs grow deep
            return n - 1 - int(rng.integers(min(n, 2))) if late else int(rng.integers(max(n, 1)))

        for _ in range(9):
            made = extended(draw, values)
            if made is not None and 0 < np.prod(made.shape) <= 64 and made.aval.ndim <= 3:
                values.append(made)
        arrays = [rng.integers(-2, 3, i.shape).astype(np.float32) for i in inputs]
        for node in values[len(inputs) :]:
            for rule in by_root.get(node.op.name, []):
                other = apply(rule, node)
                if other is None or other is node:
                    continue
                ((left, right), _) = interpret(Graph(inputs, (node, other)), arrays)
                assert np.array_equal(left, right), (seed, str(rule))
                count += 1
    return count


@pytest.mark.row("C10")
def test_no_rule_changes_a_value_wherever_it_is_applied_in_random_graphs() -> None:
    assert applied_everywhere(range(400), RULES) >= 100


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
def test_no_rule_changes_a_value_in_five_thousand_random_graphs() -> None:
    assert applied_everywhere(range(1000, 6000), RULES) >= 1000
