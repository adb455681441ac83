"""Sizes in bytes as people write them: `8 GB`, `512MiB`, `1.5e9`.

    size := number [unit]      number := digits, with a fraction and an exponent where needed
    unit := B | kB MB GB TB PB (powers of 1000) | KiB MiB GiB TiB PiB (powers of 1024), in any case
"""

from __future__ import annotations

import math
import operator
import re
from decimal import Decimal
from typing import Any, Final

from stratal.base.errors import AttributeValueError, DTypeError

_PREFIXES: Final = "kmgtp"
UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000**n for n, p in enumerate(_PREFIXES, 1)},
    **{f"{p}ib": 1024**n for n, p in enumerate(_PREFIXES, 1)},
}
MOST_BYTES: Final = (1 << 63) - 1  # what an offset can say
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e([+-]?[0-9]{1,3}))?\s*([a-z]*)")
_HINT: Final = 'such as "8GB" (8e9 bytes), "512 MiB" (512 * 2**20) or a whole number of bytes'


def bytes_in(text: str) -> int:
    """Return the number of bytes a text stands for, parts of a byte dropped; it may be 0.

    Raises: ValueError where it is no size, or more than a file can have.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    unit = None if match is None else UNITS.get(match[3])
    if match is None or unit is None:
        raise ValueError(text)
    found = Decimal(f"{match[1]}e{match[2] or 0}") * unit  # exact: 0.1 GB is 100,000,000 bytes
    if found > MOST_BYTES:
        raise ValueError(text)
    return int(found)


def parse_bytes(given: Any, what: str) -> int:
    """Return a size as a number of bytes, at least 1. `what` is said in errors: the argument's name.

    `given`: a text, or a number of bytes. Units: bytes; GB is 10^9, GiB 2^30.
    Raises: AttributeValueError for nonsense, unknown units, zero and negative sizes; DTypeError for what is
    neither text nor number.

    >>> parse_bytes("1.5 GB", "memory"), parse_bytes("512MiB", "memory"), parse_bytes(4096, "memory")
    (1500000000, 536870912, 4096)
    """
    found = _parsed(given, what) if isinstance(given, str) else _number(given, what)
    if not 0 < found <= MOST_BYTES:
        rule = f"{what}: takes from one byte to 2^63 - 1"
        raise AttributeValueError(rule, got=repr(given)[:80], hint=_HINT)
    return found


def _number(given: Any, what: str) -> int:
    if isinstance(given, float):
        return int(given) if math.isfinite(given) else 0
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise DTypeError(f"{what}: takes a size in bytes", got=repr(given)[:80], hint=_HINT)


def _parsed(text: str, what: str) -> int:
    try:
        return bytes_in(text)
    except ValueError:
        pass
    unit = re.search(r"[^\W\d_]+\s*$", text)
    if re.match(r"\s*-\s*[0-9.]", text):
        rule = f"{what}: a size in bytes is not negative"
    elif unit is not None and unit[0].strip().lower() not in UNITS and re.match(r"\s*[0-9.]", text):
        rule = f"{what}: no such unit of bytes; there are B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB"
    else:
        rule = f"{what}: not a size in bytes"
    raise AttributeValueError(rule, got=repr(text)[:80], hint=_HINT)
