"""Sizes in bytes as people write them: exact, or refused in four lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stratal.base import settings
from stratal.base.byte_sizes import MOST_BYTES, bytes_in, parse_bytes
from stratal.base.errors import AttributeValueError, DTypeError

pytestmark = pytest.mark.quick

SIZES: dict[Any, int] = {
    "8GB": 8 * 10**9, "8 gb": 8 * 10**9, "512 MB": 512 * 10**6, "512MiB": 512 << 20, " 1.5e9 ": 1_500_000_000,
    "1": 1, "64 B": 64, "2 kB": 2000, "2KiB": 2048, "0.1 GB": 100_000_000, ".5 MB": 500_000, "1. MB": 10**6,
    "3TiB": 3 << 40, "1 PB": 10**15, "1e3 kB": 10**6, "1E-3 GB": 10**6, "1.0000000001 GB": 10**9,
    "16.7772165 MB": 16_777_216, f"{MOST_BYTES}": MOST_BYTES, 4096: 4096, 1.5e9: 1_500_000_000,
    np.int64(7): 7, np.float64(2.0): 2,
}  # fmt: skip


@pytest.mark.parametrize("given", SIZES)
def test_a_size_is_read_exactly(given: Any) -> None:
    assert parse_bytes(given, "memory") == SIZES[given]


BAD = {
    "": "not a size", "lots": "not a size", "GB": "not a size", "8 GB or so": "no such unit", "1 2 GB": "not",
    "nan": "not a size", "inf GB": "not a size", "1e999 GB": "not a size", "8,5 GB": "not a size",
    "\0": "not", "\u0668GB": "not",
    "8 elephants": "no such unit", "8G": "no such unit", "8 Gbit": "no",
    "-8GB": "not negative", "- 1": "not negative", "0": "one byte", "0 GB": "one byte",
    "0.4 B": "one byte", 0: "one byte", -1: "one byte", 0.5: "one byte", float("nan"): "one byte",
    float("inf"): "one byte", 1 << 63: "one byte",
}  # fmt: skip


@pytest.mark.parametrize("given", BAD, ids=repr)
def test_nonsense_zero_negative_sizes_and_unknown_units_are_refused_in_four_lines(given: Any) -> None:
    with pytest.raises(AttributeValueError, match=BAD[given]) as caught:
        parse_bytes(given, "memory")
    rule, got, where, hint = str(caught.value).split("\n")
    assert rule.startswith("memory: ") and "got:" in got and repr(given) in got
    assert "test_byte_sizes.py" in where and "8GB" in hint


@pytest.mark.parametrize("given", [None, True, [8], b"8GB", 1j], ids=repr)
def test_what_is_neither_text_nor_number_is_refused(given: Any) -> None:
    with pytest.raises(DTypeError, match="memory: takes a size in bytes"):
        parse_bytes(given, "memory")


def test_settings_read_sizes_by_the_same_rules_but_may_be_zero() -> None:
    assert bytes_in("0") == 0
    with settings.cache_limit("0.1 GB"):  # type: ignore[arg-type]  # a text, as the environment has
        assert settings.cache_limit.value == 100_000_000
