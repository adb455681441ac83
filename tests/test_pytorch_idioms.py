"""What scripts written for PyTorch say in passing: constructors, keywords, indices, older spellings."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import DTypeError


def test_tensor_called_with_sizes() -> None:
    assert st.Tensor(2, 3).shape == (2, 3) and st.Tensor(4).shape == (4,) and st.Tensor().shape == (0,)
    assert st.Tensor(2, 3, 4, 5).shape == (2, 3, 4, 5) and st.Tensor(2, 3).dtype == st.float32
    assert nn.Parameter(st.Tensor(2, 3)).requires_grad
    assert st.Tensor([4]).tolist() == [4] and st.Tensor([1.0], None, True).requires_grad
    assert st.tensor(4).shape == ()


def test_sizes_by_name() -> None:
    for make in (st.zeros, st.ones, st.empty, st.rand, st.randn):
        assert make(size=(2, 3)).shape == make((2, 3)).shape == make(2, 3).shape == (2, 3)
    assert st.full(size=(2, 3), fill_value=1.0).shape == st.zeros(shape=(2, 3)).shape


def test_ranges_are_indices() -> None:
    x = st.zeros(3, 4)
    x[range(3), st.tensor([1, 2, 3])] = x.max() + 1
    assert x.tolist() == np.eye(3, 4, 1).tolist()
    assert x[range(0)].shape == (0, 4)


def test_dropout2d_takes_rows_of_channels() -> None:
    found = nn.functional.dropout2d(st.ones(64, 64), 0.5).numpy()
    assert set(np.unique(found)) == {0.0, 2.0} and 0.3 < (found == 0).mean() < 0.7


def test_type_is_an_attribute() -> None:
    with pytest.raises(DTypeError, match="attribute") as raised:
        st.ones(2).type(st.int64)
    assert "x.to(dtype)" in str(raised.value)
