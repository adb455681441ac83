"""Numbers that vary are floats and sizes to whatever a function does with them, where they raise, too."""

from __future__ import annotations

import pytest
from capture_cases import Case, check
from capture_ways import WAYS, each_way

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit
RAISING = (
    "1 / n", "7.0 % n", "7.0 // n", "n**-1", "(n**0.5).real", "2.0**n", "1 / (2 - n)", "1 / (n * 2)", "n / n",
)  # fmt: skip
NUMBERS = (1.0, 2.0, 3.0, 0.5, 0.0, -0.0, -2.0, 4.0, 5.0, 2.0)


@each_way
@pytest.mark.parametrize("number", ["n", "o.n"], ids=["argument", "attribute"])
@pytest.mark.parametrize("expression", RAISING)
def test_numbers_that_vary_raise_where_floats_do(expression: str, number: str, way: str) -> None:
    case = Case(
        f"o, numbers = types.SimpleNamespace(), {NUMBERS}", f"n = {number}\nreturn x * ({expression})",
        "o.n = numbers[i]", given=f"st.ones(1), {'numbers[i]' if number == 'n' else 0}", parameters="x, n",
        calls=len(NUMBERS), at=range(len(NUMBERS)),
    )  # fmt: skip
    check(case, WAYS[way])


QUOTIENTS = ("1 / (n - 1)", "n / (n - 1)", "1 / (n - 3.0)", "1 / n", "n**-0.5", "1 / (n / 2)")


@pytest.mark.parametrize("expression", QUOTIENTS)
def test_sizes_are_not_divided_by_where_they_make_zero(expression: str) -> None:
    body = f"n = x.shape[0]\nreturn x * ({expression})"
    check(Case("", body, given="st.ones((4, 5, 6, 3, 1, 7)[i])", calls=6, rtol=1e-6), WAYS["audited"])
