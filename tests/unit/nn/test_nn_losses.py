"""Losses against PyTorch: every reduction, weights, ignored classes, smoothing, probabilities."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402
from stratal.base.errors import StratalError  # noqa: E402

pytestmark = pytest.mark.torch

CLASSES = np.array([0, 3, 1, 3, 2])
CLASS_WEIGHT = np.array([0.5, 1.0, 2.0, 1.5])


def _tensor(module, array):
    if array is None:
        return None
    return st.tensor(array) if isinstance(module, nn.Module) else torch.tensor(array)


def _against(target):
    return lambda module, x: module(x, _tensor(module, target))


def _check(name, x, target, **options):
    def make(library, tensor):
        return getattr(library, name)(
            **{k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        )

    compare(make(nn, st.tensor), make(torch.nn, torch.tensor), x, forward=_against(target))
    with st.eager():  # the formulas again, without compiling each
        for reduction in ("sum", "none"):
            options["reduction"] = reduction
            compare(make(nn, st.tensor), make(torch.nn, torch.tensor), x, forward=_against(target))


@pytest.mark.parametrize("options", [
    {}, {"weight": CLASS_WEIGHT}, {"ignore_index": 3}, {"label_smoothing": 0.1},
    {"weight": CLASS_WEIGHT, "ignore_index": 1, "label_smoothing": 0.2},
])  # fmt: skip
def test_cross_entropy_of_class_indices(options):
    _check("CrossEntropyLoss", draw(5, 4, dtype=np.float64), CLASSES, **options)


@pytest.mark.parametrize("options", [{}, {"weight": CLASS_WEIGHT}, {"label_smoothing": 0.1}])
def test_cross_entropy_of_probabilities(options):
    target = np.abs(draw(5, 4, dtype=np.float64, seed=1))
    _check("CrossEntropyLoss", draw(5, 4, dtype=np.float64), target / target.sum(1, keepdims=True), **options)


def test_cross_entropy_over_positions_and_of_a_single_sample():
    target = np.random.default_rng(0).integers(0, 4, (2, 3))
    _check("CrossEntropyLoss", draw(2, 4, 3, dtype=np.float64), target, label_smoothing=0.1)
    _check("CrossEntropyLoss", draw(4, dtype=np.float64), np.array(2))


def test_cross_entropy_in_float32_of_large_logits():
    compare(nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(), 100 * draw(5, 4), forward=_against(CLASSES))


@pytest.mark.parametrize("options", [{}, {"weight": CLASS_WEIGHT}, {"ignore_index": 3}])
def test_negative_log_likelihood(options):
    _check("NLLLoss", -np.abs(draw(5, 4, dtype=np.float64)), CLASSES, **options)


@pytest.mark.parametrize("name", ["MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"])
def test_regression_losses(name):
    _check(name, draw(5, 4, dtype=np.float64), draw(5, 4, dtype=np.float64, seed=1))


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_elements(name, reduction):
    weight, y = np.abs(draw(5, 4, dtype=np.float64, seed=2)), draw(5, 4, dtype=np.float64, seed=1)
    compare_functions(
        lambda f, t, x: getattr(f, name)(x, t(y), reduction=reduction, weight=t(weight)),
        draw(5, 4, dtype=np.float64),
    )


def test_smooth_l1_and_huber_with_other_widths():
    x, y = 3 * draw(5, 4, dtype=np.float64), draw(5, 4, dtype=np.float64, seed=1)
    _check("SmoothL1Loss", x, y, beta=0.5)
    _check("HuberLoss", x, y, delta=2.0)


def test_binary_cross_entropy_of_probabilities_and_logits():
    target = (draw(5, 4, seed=1) > 0).astype(np.float64)
    logits = draw(5, 4, dtype=np.float64)
    _check("BCELoss", 1 / (1 + np.exp(-logits)), target, weight=CLASS_WEIGHT)
    _check("BCEWithLogitsLoss", 30 * logits, target)
    _check("BCEWithLogitsLoss", logits, target, weight=CLASS_WEIGHT, pos_weight=2 * CLASS_WEIGHT)


def test_binary_cross_entropy_stays_finite_at_zero_and_one():
    x, target = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0])
    # PyTorch's smallest divisor is 1e-12 rounded to float32.
    compare(nn.BCELoss(), torch.nn.BCELoss(), x, forward=_against(target), tolerance=1e-8)


@pytest.mark.parametrize(
    ("target", "cure"),
    [(st.zeros(8), "target.long()"), (st.ones(8, dtype=bool), "target.long()"),
     (st.ones(8, 4, dtype="int64"), "target.float()"), (st.ones(8, 1, dtype="int64"), "target.reshape([8])")],
    ids=["floats", "bools", "one-hot", "a column"],
)  # fmt: skip
def test_labels_that_do_not_fit_are_refused_with_what_would(target, cure):
    with pytest.raises(st.StratalError) as raised:
        nn.functional.cross_entropy(st.zeros(8, 4), target)
    assert cure in raised.value.hint
    nn.functional.cross_entropy(st.zeros(8, 4), eval(cure, {"target": target})).item()  # noqa: S307


def test_class_weights_of_another_number_of_classes_are_refused() -> None:
    x, y = st.ones(4, 3), st.zeros(4, dtype=st.int64)
    for loss in (nn.functional.cross_entropy, nn.functional.nll_loss):
        with pytest.raises(StratalError, match="weight has one number per class"):
            loss(x, y, weight=st.ones(2))
