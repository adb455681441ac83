"""Wrong rules, planted by spoiling those that ship, are refused by the prover, the re-check and a match."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from search_networks import B, batch_norm, channels, conv, in_dtype, tensor
from wrong_rules import NO_TYPES, TRUE, WRONG, Instance, Spoilt, judged, spoilt

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.dtypes import float32, float64
from stratal.cli import main
from stratal.discover.generalise import generalised
from stratal.discover.matching import apply
from stratal.discover.prove import prove
from stratal.discover.rules import FoundRule, check, ops_of
from stratal.discover.rules_file import read_rules, text_of_rules
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret

RULES, _ = read_rules()
KINDS = {"operator", "operands", "variables", "dropped", "guard", "off by one", "turned", "spec", "group",
         "class", "dtype"}  # fmt: skip
OF_A_KIND = 6


def folded_batch_norm() -> FoundRule:
    """Return batch normalisation with its variance and eps, folded into the convolution before it."""
    x, w = tensor(2, 3, 31, 47), tensor(5, 3, 11, 13)
    mean, variance, gamma, beta = (tensor(5) for _ in range(4))
    y = conv(x, w)
    eps = B.broadcast(B.const(1e-5, float32), shape=(5,), axes=())
    scale = B.mul(gamma, B.rsqrt(B.add(variance, eps)))
    scaled = B.mul(w, B.broadcast(scale, shape=w.shape, axes=(0,)))
    shift = channels(B.sub(beta, B.mul(mean, scale)), y)
    rule = generalised(
        batch_norm(y, mean, variance, gamma, beta), B.add(conv(x, scaled), shift),
        (x, w, mean, variance, gamma, beta), "folded-batch-norm",
    )  # fmt: skip
    assert rule is not None
    return rule


class Planted(NamedTuple):
    """A wrong rule, and where its sides differ."""

    kind: str
    rule: FoundRule
    differs: Instance


def wrong_among(rules: Iterable[Spoilt], most: int) -> list[Planted]:
    """Return those that evaluation shows to be wrong, of each kind at most so many."""
    found: list[Planted] = []
    count: Counter[str] = Counter()
    for kind, rule in rules:
        if count[kind] < most:
            verdict, differs = judged(rule)
            if verdict == WRONG and differs is not None:
                count[kind] += 1
                found.append(Planted(kind, rule, differs))
    return found


@pytest.fixture(scope="module")
def planted() -> list[Planted]:
    given = [r for r in RULES if r.given]
    return wrong_among(itertools.islice(spoilt([*given, *RULES[::12]]), 0, None, 3), OF_A_KIND)


def refused(wrong: Sequence[Planted]) -> None:
    for kind, rule, (lhs, rhs, inputs) in wrong:
        assert not check(rule).proved, (kind, str(rule), rule.inputs)
        here = prove(lhs, rhs, inputs)
        assert not (here.exact if rule.exact else here.proved), (kind, str(rule), here.certificate)


@pytest.mark.row("C10")
def test_the_prover_refuses_wrong_rules_of_every_kind(planted: list[Planted]) -> None:
    assert {p.kind for p in planted} == KINDS
    assert len({repr(p.rule) for p in planted}) == len(planted) >= 50
    refused(planted)


@pytest.mark.row("C2")
def test_a_batch_norm_without_its_eps_or_with_another_scale_is_refused() -> None:
    rule = folded_batch_norm()
    rule = dataclasses.replace(rule, attributes={n: v[:2] for n, v in rule.attributes.items()})
    assert check(rule).proved
    wrong = wrong_among((s for s in spoilt([rule]) if s.kind not in ("guard", "turned")), 14)
    assert {"dropped", "variables", "off by one", "operator", "operands"} <= {p.kind for p in wrong}
    assert any(str(p.rule.lhs) == str(rule.lhs) and str(p.rule.rhs).count("const(") == 1 for p in wrong)
    refused(wrong)


@pytest.mark.row("C3")
def test_sums_of_convolutions_whose_strides_padding_or_dilation_differ_are_refused() -> None:
    sums = [r for r in RULES if ops_of(r.lhs) == ["conv", "conv", "add"] and not r.given]
    guards = (s for s in spoilt(sums[:1]) if s.kind in ("guard", "turned"))
    wrong = wrong_among(itertools.islice(guards, 0, None, 2), 10)
    for name in ("strides", "padding", "rhs_dilation"):
        assert any(f"{name}=(" in str(p.rule) for p in wrong)
    assert {p.kind for p in wrong} == {"guard", "turned"}
    refused(wrong)


def test_what_is_still_true_is_told_from_what_is_wrong() -> None:
    sums = [r for r in RULES if ops_of(r.lhs) == ["conv", "conv", "add"] and not r.given]
    (grouped,) = (s.rule for s in spoilt(sums[:1]) if s.kind == "group")
    assert judged(grouped) == (TRUE, None) and check(grouped).proved
    (beside,) = (r for r in RULES if r.given == "parallel-convolutions")
    (grouped,) = (s.rule for s in spoilt([beside]) if s.kind == "group")
    assert judged(grouped)[0] == WRONG and not check(grouped).proved


@pytest.mark.row("C10")
def test_the_command_names_every_wrong_rule_of_a_file_and_no_other(
    planted: list[Planted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = RULES[::20]
    wrong = []
    for kind, rule, (lhs, _, inputs) in planted:  # each with the form of its own left side
        certificate = prove(lhs, lhs, inputs).certificate if kind != "class" else ""
        wrong.append(dataclasses.replace(rule, certificate=certificate))
    file, counts = tmp_path / "rules.json", tmp_path / "counts.json"
    file.write_text(text_of_rules([*sound, *wrong], {}), encoding="utf-8")
    assert main(["discover", "--check", "--rules", str(file), "--json", str(counts)]) == 1
    shown = "".join(capsys.readouterr().out.split())
    found = json.loads(counts.read_text())
    assert found["failed"] == len(wrong) and found["rules proved"] == len(sound)
    assert f"{len(wrong)}rulesfail" in shown
    assert all(rule.name in shown for rule in wrong)
    assert not {r.name for r in sound if r.name in shown} - {rule.name for rule in wrong}


@pytest.mark.parametrize("spoil", ["size", "op"])
def test_a_rule_with_a_size_or_an_op_that_nothing_gives_is_refused(spoil: str) -> None:
    (rule,) = (r for r in RULES if r.given == "conv-enlarge")
    sizes = {s: n for s, n in rule.sizes.items() if s != "q"}
    bad = {"size": {"sizes": sizes}, "op": {"rhs": dataclasses.replace(rule.rhs, op="convolve")}}[spoil]
    found = check(dataclasses.replace(rule, **bad))  # type: ignore[arg-type]
    assert not found.proved and "nothing says what" in found.reason


@pytest.mark.row("C10")
def test_a_wrong_rule_changes_nothing_where_it_matches(planted: list[Planted]) -> None:
    """A match is proved at its own sizes, so a wrong rule makes a graph of the same value, or none."""
    made = 0
    for _, rule, (lhs, _, inputs) in planted:
        other = apply(rule, lhs, exact=rule.exact)
        if other is not None and lhs.dtype.is_float:
            made += 1
            rng = np.random.default_rng(made)
            wide = in_dtype(Graph(inputs, (lhs, other)), float64)
            ((left, right), _) = interpret(wide, [rng.standard_normal(x.shape) for x in inputs])
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9, err_msg=str(rule))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.row("C10")
def test_the_prover_refuses_every_wrong_rule_there_is() -> None:
    count: Counter[str] = Counter()
    for kind, rule in spoilt([folded_batch_norm(), *RULES]):
        verdict, differs = judged(rule)
        count[verdict] += 1
        if verdict == WRONG and differs is not None:
            refused([Planted(kind, rule, differs)])
        elif verdict == NO_TYPES:
            assert not check(rule).proved
    assert count[WRONG] >= 4000
