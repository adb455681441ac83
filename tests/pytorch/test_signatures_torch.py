"""PyTorch's names of arguments are taken, and mean what they mean there, or docs say which are not."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import numpy as np
import pytest
from layout import ROOT
from torch_signatures import Pair, pairs, takes

import stratal as st
from stratal.tensor.functions.naming import words_of

torch = pytest.importorskip("torch")

from benchmarks.surface.draws import Draws  # noqa: E402
from benchmarks.surface.entries import entries  # noqa: E402
from benchmarks.surface.layers import call_of  # noqa: E402
from benchmarks.surface.twins import arrays  # noqa: E402

pytestmark = pytest.mark.torch
TITLE = "## Arguments that are not taken"


def listed() -> set[tuple[str, str]]:
    section = (ROOT / "docs" / "from-pytorch.md").read_text().split(TITLE)[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    found = [[re.findall(r"`([^`]+)`", cell) for cell in row[:2]] for row in rows]
    return {(function, name) for functions, names in found for function in functions for name in names}


def all_pairs() -> list[Pair]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(pairs(st, torch))


def test_every_name_of_an_argument_is_taken_or_listed() -> None:
    found = all_pairs()
    missing = {
        (pair.path, name)
        for pair in found
        for name in pair.names
        if not takes(pair.ours, words_of(pair.ours), name)
    }
    assert len(found) > 450
    assert missing == listed()


@pytest.mark.filterwarnings("ignore")
def test_arguments_by_pytorchs_names_are_those_at_their_positions() -> None:
    compared, wrong = 0, []
    calls = {entry.path.removeprefix("st."): call_of(entry, Draws(6)) for entry in entries()}
    for pair in all_pairs():
        call = calls.get(pair.path)
        if call is None or not call.args or len(call.args) > len(pair.names):
            continue
        named = dict(zip(pair.names, call.mapped(torch.tensor).args, strict=False))
        try:
            pair.theirs(**named)
        except (TypeError, RuntimeError, ValueError):  # no call of PyTorch's
            continue
        args = call.mapped(st.tensor).args
        st.manual_seed(0)
        want = arrays(pair.ours(*args))
        st.manual_seed(0)
        found = arrays(pair.ours(**dict(zip(pair.names, args, strict=False))))
        compared += 1
        if len(found) != len(want) or any(map(_differ, found, want)):
            wrong.append(f"{pair.path}{inspect.signature(pair.ours)}: {[*named]}")
    assert compared > 150
    assert not wrong, "\n".join(wrong)


def _differ(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


@pytest.mark.parametrize(
    ("call", "want"),
    [
        ("roll(x, shifts=1, dims=0)", [3, 1, 2]),
        ("add(x, x, alpha=2)", [3, 6, 9]),
        ("sub(x, other=x, alpha=2)", [-1, -2, -3]),
        ("pow(x, exponent=2)", [1, 4, 9]),
        ("cat(tensors=[x, x], dim=0)", [1, 2, 3, 1, 2, 3]),
        ("nonzero(x, as_tuple=False)", [[0], [1], [2]]),
        ("arange(end=3)", [0, 1, 2]),
        ("linspace(start=0, end=4, steps=3)", [0, 2, 4]),
        ("einsum('i,i->', [x, x])", 14),
        ("x.roll(shifts=1, dims=0)", [3, 1, 2]),
        ("x.pow(exponent=2)", [1, 4, 9]),
        ("x.add(other=x, alpha=2)", [3, 6, 9]),
    ],
)
def test_a_call_in_pytorchs_words(call: str, want: Any) -> None:
    for library in (st, torch):
        x = library.tensor([1.0, 2.0, 3.0])
        found = eval(call if call.startswith("x.") else f"library.{call}", {"library": library, "x": x})  # noqa: S307
        assert found.tolist() == want, library


@pytest.mark.parametrize(("dtype", "alpha"), [("int64", 0.5), ("bool", 2)])
def test_an_alpha_that_changes_the_dtype_is_refused(dtype: str, alpha: Any) -> None:
    x = st.ones(2, dtype=dtype)
    for add in (st.add, st.Tensor.add):
        with pytest.raises(st.StratalError, match="alpha is an integer where the operands are"):
            add(x, x, alpha=alpha)


def test_a_name_that_is_not_taken_is_answered_with_those_that_are() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'along'") as raised:
        st.roll(st.ones(3), 1, along=0)
    assert "roll(x: " in raised.value.__notes__[0]
