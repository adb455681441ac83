"""Philox4x32-10 against its published vectors, and its expressions against its NumPy form."""

from __future__ import annotations

import numpy as np
import pytest

from stratal.base.dtypes import DType, float32, int64, uint32, uint64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Buffer, Var, const
from stratal.loops.interpret import evaluate
from stratal.loops.philox import philox4x32, philox_bits, philox_words, random_bits

KNOWN = [  # counter, key, output: the vectors that come with Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_the_published_vectors_come_out(
    counter: tuple[int, ...], key: tuple[int, int], output: tuple[int, ...]
) -> None:
    assert tuple(philox_words(np.array(counter, np.uint32), np.array(key, np.uint32))) == output
    words = philox4x32([const(c, uint32) for c in counter], (const(key[0], uint32), const(key[1], uint32)))
    assert tuple(int(w) for w in evaluate(words, {}, {})) == output


@pytest.mark.parametrize("dtype", [uint32, uint64], ids=str)
def test_expressions_give_the_bits_of_the_numpy_form(dtype: DType) -> None:
    key = 0x0123456789ABCDEF
    elements = np.array([0, 1, 2, 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**62])
    place = Buffer("e", int64, ())[()]
    (bits,) = evaluate([random_bits(const(key, uint64), place, dtype)], {place: elements}, {})
    assert bits.dtype == dtype.np
    assert np.array_equal(bits, philox_bits(key, elements, dtype))


def test_bits_depend_on_key_and_element_alone() -> None:
    whole = philox_bits(7, np.arange(100), uint64)
    assert np.array_equal(philox_bits(7, np.arange(40, 60), uint64), whole[40:60])
    assert np.array_equal(philox_bits(7, np.arange(100).reshape(4, 25), uint64).ravel(), whole)
    assert not np.any(philox_bits(8, np.arange(100), uint64) == whole)
    assert len(np.unique(whole)) == 100


def test_the_bits_of_uint64_hold_those_of_uint32_below() -> None:
    elements = np.arange(50)
    low = philox_bits(3, elements, uint64) & np.uint64(0xFFFFFFFF)
    assert np.array_equal(low, philox_bits(3, elements, uint32))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(VerifyError, match="uint32 or uint64"):
        random_bits(const(0, uint64), Var("e", 4), float32)
    with pytest.raises(VerifyError, match="uint32 or uint64"):
        philox_bits(0, np.arange(3), float32)


def test_every_bit_is_set_half_of_the_time() -> None:
    bits = philox_bits(11, np.arange(20_000), uint32)
    share = [float(np.mean((bits >> np.uint32(k)) & np.uint32(1))) for k in range(32)]
    assert max(abs(s - 0.5) for s in share) < 0.015
