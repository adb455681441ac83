"""Element types and NumPy's: equal where they mean the same, and taken for each other."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal.base import dtypes


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_dtype_equals_numpys_and_no_other(dtype: dtypes.DType) -> None:
    assert dtype == dtype.np == dtype.np.type and np.dtype(dtype) == dtype.np
    assert [d for d in dtypes.ALL if d in (dtype.np, dtype.np.type)] == [dtype]
    assert dtype not in (None, dtype.name, float, int, bool, object()) and {dtype: 1}[dtype] == 1


def test_numpy_takes_them_where_it_takes_its_own() -> None:
    assert np.zeros(2, dtype=st.float32).dtype == st.float32
    assert st.ones(2).numpy().astype(st.bfloat16).dtype == st.bfloat16
