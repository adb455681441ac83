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


@pytest.mark.torch
def test_tensor_of_numbers_is_float() -> None:
    """`torch.Tensor` makes floats of everything, `torch.tensor` keeps what it is given."""
    torch = pytest.importorskip("torch")
    for data in ([1, 2], [[1], [2]], (True, False), [], np.arange(3), np.ones(2)):
        theirs, ours = torch.Tensor(data), st.Tensor(data)
        assert ours.dtype is st.float32 and ours.shape == tuple(theirs.shape), data
    assert st.tensor([1, 2]).dtype is st.int64 and st.Tensor(st.tensor([1, 2])).dtype is st.int64
    assert st.Tensor([1, 2], dtype="int64").dtype is st.int64


def test_complex_numbers_in_lists_are_as_wide_as_alone() -> None:
    for data in (1j, [1j], [[1j, 2.0], [3, 4]], (1, 2j)):
        assert st.tensor(data).dtype is st.complex64
    assert st.tensor([np.complex128(1j)]).dtype is st.complex128
    st.set_default_dtype(st.float64)
    try:
        assert st.tensor([1j]).dtype is st.tensor(1j).dtype is st.complex128
    finally:
        st.set_default_dtype(st.float32)


def test_bytes_as_an_index_are_neither_a_mask_nor_positions() -> None:
    x, index = st.tensor([10, 20, 30]), st.tensor([1, 0, 1], dtype=st.uint8)
    for use in (lambda: x[index], lambda: x[index, ...], lambda: x.__setitem__(index, 0)):
        with pytest.raises(DTypeError, match="mask in PyTorch") as caught:
            use()
        assert "index.bool()" in str(caught.value)
    assert x[index.bool()].tolist() == [10, 30] and x[index.long()].tolist() == [20, 10, 20]
    assert x[np.array([1, 0], np.uint8)].tolist() == [20, 10] and st.take(x, index).tolist() == [20, 10, 20]
    losses = [nn.functional.nll_loss(st.zeros(2, 3), y, st.ones(3)) for y in (index[:2], index[:2].long())]
    assert losses[0].item() == losses[1].item()


def test_a_parameter_says_once_what_it_is() -> None:
    class Scale(nn.Parameter):
        pass

    want = "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert repr(nn.Parameter(st.ones(2))) == str(nn.Parameter(st.ones(2))) == want == repr(Scale(st.ones(2)))
    assert str(nn.ParameterList([nn.Parameter(st.ones(2))])).count("containing") <= 1
    assert repr(nn.UninitializedParameter()).count("Parameter") <= 2
    printed = st.compile(lambda p: print(p))
    printed(nn.Parameter(st.ones(2)))


def test_einsum_takes_a_list_of_operands() -> None:
    q, k = st.ones(2, 3), st.ones(3, 4)
    assert st.einsum("ij,jk->ik", [q, k]).tolist() == st.einsum("ij,jk->ik", q, k).tolist()
    assert st.einsum("ij->ji", (q,)).shape == (3, 2)


@pytest.mark.torch
def test_what_makes_tensors_takes_requires_grad() -> None:
    torch = pytest.importorskip("torch")
    calls = """eye(2, requires_grad=True) eye(2,3,requires_grad=True) linspace(0,1,3,requires_grad=True)
        linspace(0.,1.,3,requires_grad=True) logspace(0,1,3,requires_grad=True) arange(3.,requires_grad=True)
        randint(0,3,(2,),dtype=L.float32,requires_grad=True) normal(0.,1.,(2,),requires_grad=True)
        rand_like(L.ones(2),requires_grad=True) randn_like(L.ones(2),requires_grad=True)"""
    for call in calls.replace(", ", ",").split():
        theirs, ours = (eval(f"L.{call}", {"L": library}) for library in (torch, st))  # noqa: S307
        assert ours.requires_grad and ours.is_leaf and theirs.is_leaf, call
        assert ours.shape == tuple(theirs.shape) and ours.dtype.name == str(theirs.dtype).split(".")[1]
    with pytest.raises((DTypeError, st.StratalError)):
        st.randint(0, 3, (2,), requires_grad=True)


def test_a_second_backward_adds_gradients_again() -> None:
    """PyTorch asks for `retain_graph`; docs/from-pytorch.md says what differs."""
    for retain in ({}, {"retain_graph": True}, {"retain_graph": False}):
        x = st.ones(2, requires_grad=True)
        loss = (x * x).sum()
        loss.backward(**retain)
        loss.backward(**retain)
        assert x.grad.tolist() == [4.0, 4.0]
