"""Random contractions and convolutions over every dtype equal NumPy in float64; what their times say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import compare_random, reference
from benchmarks.__main__ import main
from benchmarks.cases import (
    CHECKED_DTYPES,
    CONTRACTIONS,
    CONVOLUTIONS,
    TIMED_DTYPES,
    Case,
    as_product,
    draw_cases,
    num_products,
    result_shape,
)
from benchmarks.systems.stratal_compiled import build_case

GROUPS = (*CONTRACTIONS, *CONVOLUTIONS)
CASES = draw_cases(5 * len(CONTRACTIONS), 4 * len(CONVOLUTIONS), seed=1)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("group", GROUPS)
def test_random_cases_agree_with_numpy_in_float64(group: str) -> None:
    for case in CASES:
        if case.group == group:
            job = build_case(case, "")
            (result,) = job.outputs(job.call())
            assert not reference.fault(case, result), str(case)


def test_cases_are_drawn_again_from_their_seed_and_cover_every_dtype() -> None:
    cases = draw_cases(120, 80, seed=3)
    assert cases == draw_cases(120, 80, seed=3) != draw_cases(120, 80, seed=4)
    assert {c.dtype for c in cases} == {*TIMED_DTYPES, *CHECKED_DTYPES}
    assert {c.group for c in cases} == set(GROUPS)
    assert all(Case.from_json(c.to_json()) == c for c in cases)
    assert all(np.array_equal(a, b) for a, b in zip(cases[0].inputs(), cases[0].inputs(), strict=True))


@pytest.mark.parametrize("spec", ["mk,kn->nm", "bkm,bkn->bmn", "bqhd,bkhd->bhqk", "k,kn->n", "k,k->"])
def test_a_contraction_as_a_product_of_views_is_the_contraction(spec: str) -> None:
    rng = np.random.default_rng(0)
    sizes = {c: k + 2 for k, c in enumerate("bdhkmnq")}
    x, w = (rng.standard_normal([sizes[c] for c in term]) for term in spec.partition("->")[0].split(","))
    found = as_product(spec)
    assert found is not None
    product = np.matmul(x.transpose(found.left), w.transpose(found.right)).transpose(found.out)
    np.testing.assert_allclose(product, np.einsum(spec, x, w))
    case = Case(0, "product", "float64", (x.shape, w.shape), spec)
    np.testing.assert_allclose(reference.evaluate(case, x, w), product)
    assert result_shape(case) == product.shape


def test_what_is_no_product_of_views_is_known() -> None:
    assert as_product("abk,kcd->abcd") is None and as_product("m,n->mn") is None


def test_a_wrong_element_is_found() -> None:
    case = Case(0, "product", "float32", ((9, 30), (30, 7)), "mk,kn->mn")
    x, w = case.inputs()
    right = np.matmul(x, w)
    assert not reference.fault(case, right)
    right[3, 4] *= 1.00003
    assert "as far off" in reference.fault(case, right)
    assert "shape" in reference.fault(case, right.T)


def _row(ratio: float, own_ms: float = 1.0, fault: str = "") -> dict[str, Any]:
    return {"number": 0, "group": "product", "dtype": "float32", "what": "mk,kn->mn", "products": 1,
            "fault": fault, "ms": {"stratal": own_ms, "torch": own_ms / ratio}, "best_peer": "torch",
            "ratio": ratio}  # fmt: skip


def test_the_bounds_are_about_shares_of_what_is_long_enough() -> None:
    rows = [*(_row(1.0) for _ in range(96)), *(_row(1.4) for _ in range(3)), _row(1.6)]
    rows.append(_row(9.0, own_ms=0.01))
    assert compare_random.met(rows)
    assert not compare_random.met([*rows[:-2], _row(1.6), _row(1.6)])
    assert not compare_random.met([*rows, _row(1.0, fault="3 integers differ")])
    text = compare_random.text(rows)
    assert "100 timed" in text and "9.00" not in text and "1.60  1.000 ms, torch" in text


@pytest.mark.sampled(5)
def test_the_command_checks_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    counts = ["--contractions", "3", "--convolutions", "1", "--threads", "1", "--rounds", "1"]
    main(["random", *counts, "--against", "numpy", "--json", str(file)])  # slow or not: a test asks only
    assert "4 cases, 4 right" in capsys.readouterr().out  # whether they are right
    assert file.exists()
    assert main(["random", *counts, "--against", "none", "--groups", "conv"]) == 0
    assert "1 cases" in capsys.readouterr().out


def test_products_of_a_case_are_counted() -> None:
    x, w = (2, 3, 5, 5), (4, 3, 3, 3)
    geometry = {"strides": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 1}
    case = Case(0, "conv", "float32", (x, w), geometry=geometry)
    assert result_shape(case) == (2, 4, 3, 1) and num_products(case) == 2 * 4 * 3 * 27
