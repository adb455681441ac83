"""The public surface: every name is counted, tested, and equal to its twin in NumPy, SciPy or PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.surface.coverage import covering
from benchmarks.surface.draws import Draws
from benchmarks.surface.entries import FAMILIES, entries
from benchmarks.surface.facts import facts_of
from benchmarks.surface.layers import call_of
from benchmarks.surface.twins import SPACES, arrays, compared, difference, twins
from layout import TESTS

import stratal as st

ENTRIES = {family: list(entries((family,))) for family in FAMILIES}


@pytest.mark.row("A8")
@pytest.mark.parametrize("family", [name for name, f in FAMILIES.items() if f.owed])
def test_a_family_has_the_names_it_owes_aliases_counted_once(family: str) -> None:
    assert len(ENTRIES[family]) >= FAMILIES[family].owed
    names = [name for e in ENTRIES[family] for name in (e.name, *e.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.torch
@pytest.mark.row("A8")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_public_name_is_called_by_a_test_that_is_there(family: str) -> None:
    pytest.importorskip("torch")  # some are tested by their twins there alone
    found = {e.path: covering(e, TESTS) for e in ENTRIES[family]}
    assert [name for name, tests in found.items() if not tests] == []
    for file, test in {tuple(t.split("::")) for tests in found.values() for t in tests}:
        assert f"def {test}(" in (TESTS / file).read_text()


def test_a_name_nobody_tests_is_seen(tmp_path: Path) -> None:
    (tmp_path / "test_little.py").write_text("import stratal as st\n\ndef test_one():\n    st.exp(1.0)\n")
    little = {e.name: covering(e, tmp_path) for e in ENTRIES["math"] if e.name in ("exp", "log")}
    assert little == {"exp": ["test_little.py::test_one"], "log": []}


@pytest.mark.sampled(4)
@pytest.mark.row("A8")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", SPACES)
def test_a_function_equals_its_twins(family: str) -> None:
    """One call of each function beside every library that has the name and takes the same arguments."""
    wrong, agree = [], set()
    for entry in ENTRIES[family]:
        call = call_of(entry, Draws(400))
        with st.eager():
            result = call.mapped(st.tensor).of(entry.value)
            ours = arrays(result) if entry.name != "broadcast_shapes" else []
        for space, theirs in twins(entry, call):
            try:
                found = arrays(theirs())
            except Exception:  # it takes other arguments
                continue
            text = difference(ours, found)
            wrong += [f"{entry.path} beside {space}: {text}"] if text else []
            agree.add(entry.path)
    assert not wrong
    left_out = [e.path for e in ENTRIES[family] if compared(e) and e.path not in agree]
    assert not left_out, "a twin that takes no such call belongs into twins.OTHERS"


FACTS = {
    "exp": ("record", "yes", ""), "linalg.qr": ("record", "yes", "LAPACK"),
    "sort": ("record", "yes", ""),
    "nn.functional.softmax": ("composite", "yes", ""), "nn.Conv2d": ("layer", "yes", ""),
    "unique": ("at once", "no", "when it is called"), "sign": ("record", "no: zero", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_read_off_the_call_itself(name: str) -> None:
    facts = next(facts_of(e) for own in ENTRIES.values() for e in own if e.path == name)
    kind, gradient, host = FACTS[name]
    assert facts.differentiable.startswith(gradient) and host in facts.host and bool(host) == bool(facts.host)
    assert facts.kind == kind


@pytest.mark.sampled(5)
@pytest.mark.row("A8")
def test_the_manifest_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "surface.json"
    assert main(["names", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert all(family["met"] for family in found["families"])
    assert len(found["names"]) > 700 and all(row["kind"] for row in found["names"])
    assert "linalg.solve" in capsys.readouterr().out


def test_a_name_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["names", "nosuch"])
    assert "no public name whose name contains 'nosuch'" in capsys.readouterr().err


# -- names no other file calls -------------------------------------------------------------------------------
def test_an_array_is_shared_and_a_diagonal_filled() -> None:
    x = np.arange(12.0).reshape(4, 3)
    assert np.array_equal(st.from_numpy(x), x)
    want = x.copy()
    np.fill_diagonal(want, 7)
    assert np.array_equal(st.fill_diagonal(st.tensor(x), 7), want)


def test_draws_have_their_moments() -> None:
    st.manual_seed(3)
    p = np.full(20_000, 0.3, np.float32)
    assert abs(np.asarray(st.bernoulli(st.tensor(p))).mean() - 0.3) < 0.02
    unit = np.asarray(st.rand_like(st.tensor(p)))
    assert (
        unit.min() >= 0
        and unit.max() < 1
        and abs(unit.mean() - 0.5) < 0.02
        and abs(unit.var() - 1 / 12) < 0.01
    )
    assert np.bincount(st.randint(2, 6, (8000,)), minlength=6)[2:].min() > 1800
    assert np.array_equal(np.sort(st.randperm(50)), np.arange(50))
    picked = np.asarray(st.multinomial(st.tensor([1.0, 0.0, 3.0]), 20_000, replacement=True))
    assert not (picked == 1).any() and abs((picked == 2).mean() - 0.75) < 0.02


def test_error_rates_count_edits_and_a_curve_rises_to_both_ends() -> None:
    said, meant = ["the cat sat", "a dog"], ["the cat sits", "a big dog"]
    for metric, rate in ((st.metrics.WordErrorRate(), 2 / 6), (st.metrics.CharErrorRate(), 6 / 21)):
        metric.update(said, meant)
        assert metric.compute() == pytest.approx(rate)
    roc = st.metrics.ROC()
    roc.update(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    false, true, scores = roc.compute()
    assert false.tolist() == [0, 0, 0.5, 0.5, 1] and true.tolist() == [0, 0.5, 0.5, 1, 1]
    assert scores.tolist() == [np.inf, 0.8, 0.4, 0.35, 0.1]


RESIDUAL = {  # torchvision's numbers
    "34": (st.models.resnet34, 21_797_672), "50": (st.models.resnet50, 25_557_032),
    "101": (st.models.resnet101, 44_549_160), "152": (st.models.resnet152, 60_192_808),
}  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", RESIDUAL)
def test_a_residual_network_has_the_published_number_of_parameters(name: str) -> None:
    make, parameters = RESIDUAL[name]
    assert sum(p.numel() for p in make().parameters()) == parameters
