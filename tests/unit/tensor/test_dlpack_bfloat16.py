"""bfloat16 passes through DLPack, which NumPy alone does not know there."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import stratal as st


class _Old:
    """A producer from before versions: it takes no options."""

    def __init__(self, x: st.Tensor) -> None:
        self.x = x

    def __dlpack__(self) -> Any:
        return self.x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class _New(_Old):
    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)


@pytest.mark.parametrize("producer", [_Old, _New])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint16", "int16", "float32"])
def test_an_array_of_another_library_keeps_its_dtype_and_memory(producer: Any, dtype: str) -> None:
    x = st.arange(12, dtype=dtype).reshape(3, 4)
    y = st.from_dlpack(producer(x))
    assert y.dtype is x.dtype
    assert y.numpy().ctypes.data == x.numpy().ctypes.data
    np.testing.assert_array_equal(y.astype("float32").numpy(), x.astype("float32").numpy())


def test_a_capsule_outlives_its_tensor_and_one_not_used_is_freed() -> None:
    x = st.arange(1000, dtype="bfloat16")
    y = st.from_dlpack(_New(x))
    expected = x.astype("float32").numpy().copy()
    x.__dlpack__()
    del x
    gc.collect()
    np.testing.assert_array_equal(y.astype("float32").numpy(), expected)


@pytest.mark.torch
def test_pytorch_gives_and_takes_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    ours = st.tensor([[1.5, -2.0], [float("inf"), 0.25]], dtype="bfloat16")
    theirs = torch.from_dlpack(ours)
    assert theirs.dtype is torch.bfloat16
    assert theirs.tolist() == ours.tolist()
    given = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    back = st.from_dlpack(given)
    assert back.dtype is st.bfloat16
    given[0, 1] = 7  # the memory is shared
    assert back.tolist() == given.tolist()
    strided = st.from_dlpack(torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T)
    assert strided.tolist() == torch.arange(6).reshape(2, 3).T.tolist()
    assert st.from_dlpack(torch.zeros(0, 3, dtype=torch.bfloat16)).shape == (0, 3)
