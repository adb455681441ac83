"""Losses of inputs and targets of different dtypes: PyTorch's dtype and numbers, or an error."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import pytest

import stratal as st

torch = pytest.importorskip("torch")

DTYPES = ("int64", "uint8", "float16", "bfloat16", "float32", "float64")
LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "kl_div", "soft_margin_loss",
    "hinge_embedding_loss", "multilabel_soft_margin_loss",
)  # fmt: skip
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-12}


def loss_of(library: Any, name: str, input_dtype: str, target_dtype: str) -> Any:
    x = library.tensor([0.75, 3.5, 1.25]).to(getattr(library, input_dtype))
    y = library.tensor([1.0, 0.0, 1.0] if name.startswith("multilabel") else [1.5, 0.25, 2.75])
    y = y.to(getattr(library, target_dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(library.nn.functional, name)(x, y)


@pytest.mark.parametrize(("input_dtype", "target_dtype"), list(product(DTYPES, DTYPES)))
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_two_dtypes_is_pytorchs(name: str, input_dtype: str, target_dtype: str) -> None:
    try:
        want = loss_of(torch, name, input_dtype, target_dtype)
    except RuntimeError:
        return  # what PyTorch has no kernel for
    made = loss_of(st, name, input_dtype, target_dtype)
    assert made.dtype.name == str(want.dtype).removeprefix("torch.")
    bound = max(TOLERANCE.get(dtype, 0.0) for dtype in (input_dtype, target_dtype, made.dtype.name))
    assert made.item() == pytest.approx(want.item(), rel=bound, abs=bound, nan_ok=True)


def test_a_gradient_flows_to_a_target_of_another_dtype() -> None:
    for library in (torch, st):
        y = library.tensor([0.5, 1.5, 2.5]).requires_grad_()
        library.nn.functional.mse_loss(library.tensor([1, 2, 3]), y).backward()
        assert y.grad.tolist() == pytest.approx([-1 / 3] * 3)
