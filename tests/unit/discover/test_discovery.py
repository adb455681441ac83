"""Rules are found from records alone, proved, generalised, pruned, and written to files."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from layout import ROOT

from stratal.base.dtypes import float32, float64
from stratal.base.errors import AttributeValueError, FormatError
from stratal.base.types import TensorType
from stratal.discover.discovery import Discovery, discover
from stratal.discover.enumerate import DRAWS, Enumeration, Pair, records, signatures, value_of
from stratal.discover.fingerprint import PRIME, draws, inverse
from stratal.discover.matching import apply, matches
from stratal.discover.rules import Applied, FoundRule, Free, Literal, build, check, ops_of
from stratal.discover.rules_file import from_json, read_rules, text_of_rules, to_json
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import graph_input
from stratal.graph.op import REGISTRY, Array, Op, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import call

B = Builder()


def sides(rules: Iterable[FoundRule]) -> set[str]:
    return {str(r) for r in rules}


@pytest.fixture(scope="module")
def products() -> Discovery:
    return discover(records(["add", "contract"]), 2)


@pytest.fixture(scope="module")
def convolutions() -> Discovery:
    types = signatures(records(["conv"]))
    types = [t for t in types if t[0].ndim == 4 and t[1] == t[2]]
    return discover(records(["add", "conv"]), 3, types=types, once=["conv"])


@pytest.fixture(scope="module")
def moves() -> Discovery:
    return discover(records(["permute", "neg", "concatenate"]), 2)


# -- fingerprints --------------------------------------------------------------------------------------------
def test_a_quotient_in_the_field_times_its_divisor_is_the_dividend() -> None:
    (x, y) = draws([TensorType(float32, (50,))] * 2, 0)
    assert np.array_equal(inverse(y) * y % PRIME, np.ones(50))
    assert np.array_equal(x * inverse(y) % PRIME * y % PRIME, x)


@pytest.mark.parametrize("name", ["exp", "max", "reduce_max", "div", "gt"])
def test_a_function_gives_what_its_arguments_decide(name: str) -> None:
    x = graph_input("x", TensorType(float32, (3, 4)))
    attributes = {"axes": (0,)} if name == "reduce_max" else {}
    operands = [x] * (REGISTRY[name].arity or 1)
    node = B.op(name, *operands, **attributes)
    turned = B.op(name, *[B.flip(o, axes=(1,)) for o in operands], **attributes)
    known = {x: draws([x.aval], 3)[0]}
    assert np.array_equal(value_of(node, known), value_of(turned, known)[..., ::-1])
    assert not np.array_equal(value_of(node, known), value_of(B.neg(node), known) if name != "gt" else 2)


# -- enumeration ---------------------------------------------------------------------------------------------
def test_sizes_of_axes_differ_wherever_the_type_rule_allows_it() -> None:
    found = [tuple(map(str, types)) for types in signatures(records(["contract"]), 2)]
    assert ("f32[2,3]", "f32[3,7]") in found
    conv = next(t for t in signatures(records(["conv"]), 2) if t[0].ndim == 4)
    assert len({n for t in conv for n in t.ints}) == 7  # of eight axes, only the channels' are one size


def test_no_two_graphs_of_one_value_are_built_on() -> None:
    (types, *_) = signatures(records(["add", "mul"]))
    search = Enumeration(records(["add", "mul"]), types, 2)
    pairs = list(search.pairs())
    assert pairs and search.seen > len(pairs)
    values = [tuple(v.tobytes() for v in search.values[x]) for level in search.levels for x in level]
    assert len(set(values)) == len(values)
    for larger, smaller, inputs in pairs:
        for seed in (*DRAWS, 77):
            known = dict(zip(inputs, draws(types, seed), strict=True))
            assert np.array_equal(value_of(larger, known), value_of(smaller, known))


def test_graphs_that_agree_by_chance_are_both_built_on() -> None:
    types = (TensorType(float32, ()),) * 2
    search = Enumeration(records(["max"]), types, 1)
    list(search.pairs())
    x, y = search.inputs
    assert not search.confirmed(Pair(B.max(x, y), x, search.inputs))
    assert search.confirmed(Pair(B.max(x, x), x, search.inputs))


# -- rules ---------------------------------------------------------------------------------------------------
@pytest.mark.row("C10")
def test_products_of_matrices_associate_and_distribute(products: Discovery) -> None:
    assert products.finished and not products.tested and not products.dropped
    wanted = (
        'contract(contract(x0, x1, spec="mk,kn->mn", dtype=none), x2, spec="mk,kn->mn", dtype=none)  =  '
        'contract(x0, contract(x1, x2, spec="mk,kn->mn", dtype=none), spec="mk,kn->mn", dtype=none)'
    )
    assert wanted in sides(products.rules)
    (rule,) = (r for r in products.rules if str(r) == wanted)
    assert rule.inputs == {"x0": ("m", "n"), "x1": ("n", "k"), "x2": ("k", "p")}
    assert not rule.exact


@pytest.mark.row("C3")
def test_a_sum_of_convolutions_is_found_where_strides_padding_and_dilation_agree(
    convolutions: Discovery,
) -> None:
    sums = [r for r in convolutions.rules if ops_of(r.lhs) == ["conv", "conv", "add"]]
    (rule,) = (r for r in sums if ops_of(r.rhs) == ["add", "conv"] and set(r.inputs) == {"x0", "x1", "x2"})
    assert isinstance(rule.lhs, Applied) and isinstance(rule.rhs, Applied)
    for each in (*rule.lhs.arguments, rule.rhs):
        assert isinstance(each, Applied)
        for name in ("strides", "padding", "lhs_dilation", "rhs_dilation"):
            assert each.attributes[name] == Free(name)
    assert len(rule.attributes["strides"]) >= 3
    x, w, v = (graph_input("x", TensorType(float32, s)) for s in ((2, 3, 9, 9), (4, 3, 3, 3), (4, 3, 3, 3)))

    def conv(w: object, stride: int, padding: int, dilation: int) -> object:
        return B.conv(x, w, strides=(stride,) * 2, padding=((padding,) * 2,) * 2, lhs_dilation=(1, 1),
                      rhs_dilation=(dilation,) * 2, groups=1)  # fmt: skip

    assert apply(rule, B.add(conv(w, 2, 1, 1), conv(v, 2, 1, 1))) is conv(B.add(w, v), 2, 1, 1)
    assert apply(rule, B.add(conv(w, 1, 1, 1), conv(v, 1, 2, 2))) is None  # padding and dilation differ


def test_transposes_that_cancel_are_found_to_the_bit(moves: Discovery) -> None:
    (rule,) = (r for r in moves.rules if ops_of(r.lhs) == ["permute", "permute"])
    assert rule.exact and rule.rhs == "x0"
    assert any(sorted(ops_of(r.lhs)) == ["neg", "permute"] and r.exact for r in moves.rules)


def test_what_follows_from_other_rules_is_no_rule(products: Discovery) -> None:
    found = products.counts
    assert found["derived"] + found["proved"] + found["tested"] + found["dropped"] == found["pairs"]
    assert found["rules"] < found["proved"] < found["pairs"] / 4
    again = discover(records(["add", "contract"]), 2, known=products.rules)
    assert len(again.rules) <= len(products.rules) / 5  # those that several steps away follow


def test_a_search_ends_when_its_time_is_up() -> None:
    found = discover(records(["add", "mul", "sub", "contract", "permute"]), 4, seconds=0.5)
    assert not found.finished and found.graphs


def test_a_rule_that_is_changed_in_one_word_fails_its_check(
    convolutions: Discovery, moves: Discovery
) -> None:
    changed = 0
    for rule in (*convolutions.rules, *moves.rules):
        assert check(rule).proved
        if isinstance(rule.rhs, Applied) and isinstance(rule.rhs.attributes.get("groups"), Literal):
            worse = dataclasses.replace(rule.rhs, attributes={**rule.rhs.attributes, "groups": Literal(7)})
            assert not check(dataclasses.replace(rule, rhs=worse)).proved
            changed += 1
        assert not check(dataclasses.replace(rule, certificate=rule.certificate + " ")).proved
        if not rule.exact:
            assert not check(dataclasses.replace(rule, exact=True)).proved
    assert changed


def test_rules_are_read_back_as_they_were_written(convolutions: Discovery, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(text_of_rules(convolutions.rules, convolutions.counts), encoding="utf-8")
    assert read_rules(file) == (convolutions.rules, convolutions.counts)
    for rule in convolutions.rules:
        assert from_json(json.loads(json.dumps(to_json(rule)))) == rule


@pytest.mark.parametrize("text", ["", "[]", '{"format": "stratal-rules", "version": 2}'])
def test_a_file_that_holds_no_rules_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError):
        read_rules(tmp_path / "bad.json")


# -- a new op ------------------------------------------------------------------------------------------------
@pytest.fixture
def scale_rows() -> Iterable[type[Op]]:
    """Declare an op that multiplies each row by a number of its own, for the length of a test."""

    @record
    class ScaleRows(Op):
        """out[i, j] = x[i, j] * s[i]."""

        name = "scale_rows"
        arity = 2

        def infer(self, *types: TensorType) -> TensorType:
            x, s = types
            if x.ndim != 2 or s.shape != x.shape[:1] or s.dtype is not x.dtype:
                from stratal.base.errors import ShapeError

                raise ShapeError("scale_rows: takes a matrix and a number per row", got=f"{x}, {s}")
            return x

        def ref(self, *arrays: Array) -> Array:
            return np.asarray(arrays[0] * arrays[1][:, None])

        def lower(self, *types: TensorType) -> Compute:
            x, s = arguments(*types)
            i, j = fresh_axes(types[0].ints)
            return Compute((x, s), (i, j), types[0].dtype, call("mul", x[i, j], s[i,]))

        @classmethod
        def samples(cls) -> Iterable[Sample]:
            yield Sample(cls(), (TensorType(float32, (4, 5)), TensorType(float32, (4,))))

    yield ScaleRows
    REGISTRY.pop("scale_rows")


@pytest.mark.row("C9")
def test_a_new_record_brings_verified_rules_and_no_line_is_written_for_it(scale_rows: type[Op]) -> None:
    found = discover([scale_rows, *records(["add", "mul"])], 3, seconds=20)
    texts = sides(found.rules)
    assert not found.tested
    with_it = [r for r in found.rules if "scale_rows" in (*ops_of(r.lhs), *ops_of(r.rhs))]
    assert len(with_it) >= 3
    assert "scale_rows(scale_rows(x0, x1), x2)  =  scale_rows(x0, mul(x1, x2))" in texts
    assert "add(scale_rows(x0, x1), scale_rows(x2, x1))  =  scale_rows(add(x0, x2), x1)" in texts
    rng = np.random.default_rng(0)
    for rule in with_it:
        lhs, rhs, inputs = build(rule, {s: n + 2 for s, n in rule.sizes.items()}, {}, float64)
        arrays = [rng.standard_normal(x.shape) for x in inputs]
        ((left, right), _) = interpret(Graph(inputs, (lhs, rhs)), arrays)
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.row("C9")
def test_rules_with_a_new_record_and_a_product_are_found_too(scale_rows: type[Op]) -> None:
    found = discover([scale_rows, *records(["contract"])], 2, seconds=20)
    assert any(
        r.inputs["x0"] == ("m", "n") and ops_of(r.lhs) == ["contract", "scale_rows"] for r in found.rules
    )  # fmt: skip


@pytest.mark.row("C9")
def test_the_page_adds_an_op_and_sees_its_rules_in_a_process_of_their_own(tmp_path: Path) -> None:
    page = ROOT / "docs" / "rewrites.md"
    _, section = page.read_text(encoding="utf-8").split("## Adding an op, and seeing its rules\n")
    blocks = re.findall(r"```(python|output)\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    script = tmp_path / "outer.py"
    script.write_text("".join(text for kind, text in blocks if kind == "python"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "".join(text for kind, text in blocks if kind == "output"), done.stderr


def test_a_record_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeValueError, match="no such op"):
        records(["add", "nothing"])


def test_a_rule_matches_in_any_order_of_commutative_operands(products: Discovery) -> None:
    (rule,) = (r for r in products.rules if ops_of(r.lhs) == ["add", "add"])
    x, y, z = (graph_input("x", TensorType(float32, (2, 3, 4))) for _ in range(3))  # of any rank
    assert len(list(matches(rule, B.add(B.add(x, y), z)))) >= 2
