"""Values and gradients at ties, bounds, zeros, infinities, NaN and of nothing are PyTorch's, or listed.

The list is the table of docs/from-pytorch.md; what it names must differ, and what differs must be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest
from layout import ROOT

pytest.importorskip("torch")

from special_points import (
    POOLS,
    Case,
    difference,
    of_functions,
    of_layers,
    of_methods,
    of_modes,
    unlike_in_none,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
PAGE = ROOT / "docs" / "from-pytorch.md"
TITLE = "## Ties, bounds and other special points"
# Which pools have points such as the table names.
WITH = {
    "equal elements": tuple(POOLS),
    "everywhere": tuple(POOLS),
    "outside of the domain": tuple(POOLS),
    "zero": ("zeros", "zero", "ties", "constant", "infinite", "mixed", "points", "nan"),
    "singular matrices": ("ties", "zeros", "zero", "constant"),
    "infinity": ("infinite", "masked", "mixed", "points"),
    "NaN": ("nan", "all nan", "mixed", "points"),
    "tiny numbers": ("points",),
    "large numbers": ("points",),
    "nothing": ("ties",),
}
KINDS = {
    "math": lambda: of_functions("math"),
    "special": lambda: of_functions("special"),
    "linalg": lambda: of_functions("linalg"),
    "fft": lambda: of_functions("fft"),
    "functional": lambda: of_functions("functional"),
    "methods": of_methods,
    "layers": of_layers,
    "modes": of_modes,
}
# PyTorch takes no call like those of the tables, or no matrix that is singular.
REFUSED = {"from_dlpack", "take", "where", "vander", "flip", "cholesky", "solve", "inv", "tensorsolve",
           "real", "imag"}  # fmt: skip


class Row(NamedTuple):
    """A row of the table: functions, the points where they differ, and why."""

    names: list[str]
    points: list[str]
    reason: str

    def covers(self, name: str, pool: str) -> bool:
        return any(fnmatchcase(name, n) for n in self.names) and any(pool in WITH[p] for p in self.points)


def _rows() -> Iterator[Row]:
    section = PAGE.read_text().split(TITLE)[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            names, points, reason = (cell.strip() for cell in line.strip("|").split(" | "))
            yield Row(re.findall(r"`([^`]+)`", names), points.split(", "), reason)


ROWS = list(_rows())


def _name(case: Case) -> str:
    """Return what a case is called in the table: the function's own name, or the expression."""
    plain = re.sub(r"^(nn\.functional|special|linalg|fft|nn|t\.linalg|x|t|F|e|e1|e2)\.", "", case.name)
    found = re.match(r"(\w+?)_?(\(|$)", plain)
    return found.group(1) if found else plain


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_special_points_are_those_of_pytorch_or_listed_with_the_reason(kind: str) -> None:
    unlisted, refused = [], set()
    for case in KINDS[kind]():
        texts = {pool: difference(case, pool) for pool in case.pools}
        wrong = {pool: text for pool, text in texts.items() if text and not _listed(case, pool)}
        unlisted += [f"{case.name} at {pool}: {text}" for pool, text in wrong.items()]
        if set(texts.values()) == {None} and not case.name.startswith("e"):  # of nothing little is defined
            refused.add(_name(case))
    assert not unlisted, "\n".join(unlisted)
    assert refused <= REFUSED


def _listed(case: Case, pool: str) -> bool:
    return any(row.covers(_name(case), pool) for row in ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_derivative_that_is_zero_is_a_gradient_of_zeros_and_no_missing_one(kind: str) -> None:
    wrong = {case.name: text for case in KINDS[kind]() if (text := unlike_in_none(case, "ties"))}
    assert {n: t for n, t in wrong.items() if "bessel" not in n and n not in NO_GRADIENT} == {}


NO_GRADIENT = {  # the page names them
    "copysign", "x.copysign", "x.copysign_", "t.cdist(x, y, p=0.0)",
    "x.eq_", "x.ne_", "x.lt_", "x.le_", "x.gt_", "x.ge_",
}  # fmt: skip


def test_what_the_page_lists_differs() -> None:
    rows = [row for row in ROWS if "some processors" not in row.reason]
    idle = {(n, p) for row in rows for n in row.names for p in row.points}
    for case in (case for cases in KINDS.values() for case in cases()):
        name = _name(case)
        for listed, points in [pair for pair in idle if fnmatchcase(name, pair[0])]:
            if any(pool in WITH[points] and difference(case, pool) for pool in case.pools):
                idle.discard((listed, points))
    assert not idle


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["functional", "modes"])
def test_compiled_kernels_have_the_same_special_points(kind: str) -> None:
    unlisted = []
    for case in KINDS[kind]():
        for pool in {"points", "ties"}.intersection(case.pools):
            text = difference(case, pool, eager=False)
            unlisted += [f"{case.name} at {pool}: {text}"] if text and not _listed(case, pool) else []
    assert not unlisted, "\n".join(unlisted)
