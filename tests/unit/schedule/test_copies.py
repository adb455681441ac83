"""Copies that move elements: turned, flipped and repeated axes are read in vectors, without divisions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import settings

COPIES: dict[str, tuple[tuple[int, ...], str, str]] = {
    "turned": ((300, 200), "permute_dims(x, (1, 0))", "transpose"),
    "turned, odd": ((211, 307), "permute_dims(x, (1, 0))", "transpose"),
    "few rows turned": ((5, 4001), "permute_dims(x, (1, 0))", "transpose"),
    "few columns turned": ((4001, 5), "permute_dims(x, (1, 0))", "transpose"),
    "stacks turned": ((70, 33, 41), "permute_dims(x, (0, 2, 1))", "transpose"),
    "the last axis first": ((30, 40, 50), "permute_dims(x, (2, 0, 1))", "transpose"),
    "a quarter turn": ((300, 207), "rot90(x)", "transpose"),
    "three quarters": ((300, 207), "rot90(x, 3)", "transpose"),
    "half a turn": ((300, 207), "rot90(x, 2)", "sweep"),
    "tiles": ((120, 130), "tile(x, (3, 2))", "sweep"),
    "tiles of a prime width": ((11, 127), "tile(x, (3, 40))", "sweep"),
    "short tiles": ((50, 20), "tile(x, (2, 30))", "sweep"),
    "pairs": ((500, 60), "stack([x, x[::-1]], axis=-1)", "sweep"),
    "fours": ((500, 60), "stack([x, x[::-1], x, x], axis=-1)", "sweep"),
    "pairs of blocks": ((60,), "stack([repeat(x, 100), tile(x, 100)], axis=1)", "sweep"),
    "pairs scaled": ((5000, 2), "multiply(x, x[:, :1])", "sweep"),
    "heads side by side": ((6, 40, 50, 64), "reshape(permute_dims(x, (0, 2, 1, 3)), (6, 50, 2560))", "sweep"),
}


def _call(words: str, space: Any) -> Callable[[Any], Any]:
    names = {
        name: getattr(space, name)
        for name in ("permute_dims", "multiply", "repeat", "reshape", "rot90", "stack", "tile")
    }
    return eval(f"lambda x: {words}", names)  # noqa: S307


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16"])
@pytest.mark.parametrize("name", COPIES)
def test_copies_hold_numpys_elements(name: str, dtype: str) -> None:
    shape, words, tactic = COPIES[name]
    x = np.random.default_rng(0).integers(-11, 11, shape).astype(np.float32)
    given = st.tensor(x).astype(dtype)
    copy = st.compile(_call(words, st), dynamic=False)
    found = copy(given)
    if dtype.startswith("float"):
        assert tactic in str(copy.explain()), "the way it was meant to go"
    np.testing.assert_array_equal(found.numpy().astype(np.float32), _call(words, np)(x))


@pytest.mark.parametrize("name", ["tiles", "tiles of a prime width", "heads side by side"])
def test_repeated_axes_are_loops_of_their_own(name: str) -> None:
    shape, words, _ = COPIES[name]
    copy = st.compile(_call(words, st), dynamic=False)
    copy(st.zeros(shape))
    loops = str(copy.explain(kernel=1)).split("loops")[-1]
    (lane, *_) = re.findall(r"vector (\w+) in", loops)
    assert not re.search(rf"\b{lane}\b[^()]*\)* (%|//) \d", loops), "no lane divides"


BYTES: dict[str, tuple[str, Callable[..., Any]]] = {
    "logical_xor": ("bool", np.logical_xor),
    "logical_not": ("bool", np.logical_not),
    "logical_or": ("bool", np.logical_or),
    "bitwise_and": ("uint8", np.bitwise_and),
    "add": ("int8", np.add),
    "multiply": ("uint8", np.multiply),
    "maximum": ("int8", np.maximum),
    "less": ("int8", np.less),
    "bitwise_left_shift": ("uint8", np.left_shift),
    "floor_divide": ("int8", np.floor_divide),
}


@pytest.mark.parametrize("target", ["host", "generic"])
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_computed_in_whole_registers(name: str, target: str) -> None:
    dtype, reference = BYTES[name]
    rng = np.random.default_rng(0)
    count = 1 if name == "logical_not" else 2
    with settings.target(target):
        for shape in ((1,), (63,), (65, 3), (40, 999)):
            given = [rng.integers(1, 100, shape).astype(dtype) for _ in range(count)]
            given = [x & rng.integers(0, 2, shape).astype(bool) if dtype == "bool" else x for x in given]
            call = st.compile(getattr(st, name), dynamic=False)
            found = call(*map(st.tensor, given)).numpy()
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, reference(*given).astype(found.dtype))
