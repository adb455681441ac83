"""Losses with margins and likelihoods against PyTorch: every reduction, as layers and as functions."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch


def x(*shape, seed=0):
    return draw(*shape, dtype=np.float64, seed=seed)


SIGNS = np.array([1.0, -1.0, -1.0, 1.0, 1.0])
CLASSES = np.array([0, 3, 1, 3, 2])
LABELS = np.array([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3], [2, -1, -1, -1], [1, 3, 2, -1]])
MARKS = (x(5, 4, seed=3) > 0).astype(np.float64)
WEIGHT = np.array([0.5, 1.0, 2.0, 1.5])
SHARES = np.abs(x(5, 4, seed=4)) / np.abs(x(5, 4, seed=4)).sum(1, keepdims=True)
COUNTS = np.array([[0, 1, 2, 5]] * 5, np.float64)

# name: (layer, options, differentiable inputs, targets)
LOSSES = {
    "kl": ("KLDivLoss", {}, [x(5, 4)], [SHARES * (COUNTS > 0)]),
    "kl of logarithms": ("KLDivLoss", {"log_target": True}, [x(5, 4)], [np.log(SHARES)]),
    "poisson": ("PoissonNLLLoss", {}, [x(5, 4)], [COUNTS]),
    "poisson full": ("PoissonNLLLoss", {"full": True}, [x(5, 4)], [COUNTS]),
    "poisson of expectations": (
        "PoissonNLLLoss", {"log_input": False, "eps": 1e-3}, [np.abs(x(5, 4))], [COUNTS],
    ),
    "gauss": ("GaussianNLLLoss", {}, [x(5, 4), x(5, 4, seed=1), np.abs(x(5, 4, seed=2))], []),
    "gauss full, small variances": (
        "GaussianNLLLoss", {"full": True, "eps": 0.5}, [x(5, 4), x(5, 4, seed=1), np.abs(x(5, seed=2))], [],
    ),
    "gauss of shared variances": (
        "GaussianNLLLoss", {}, [x(5, 4), x(5, 4, seed=1), np.abs(x(5, 1, seed=2))], [],
    ),
    "hinge embedding": ("HingeEmbeddingLoss", {}, [x(5)], [SIGNS]),
    "hinge embedding wide": ("HingeEmbeddingLoss", {"margin": 2.0}, [x(5)], [SIGNS]),
    "soft margin": ("SoftMarginLoss", {}, [30 * x(5)], [SIGNS]),
    "ranking": ("MarginRankingLoss", {}, [x(5), x(5, seed=1)], [SIGNS]),
    "ranking wide": ("MarginRankingLoss", {"margin": 0.7}, [x(5), x(5, seed=1)], [SIGNS]),
    "cosine": ("CosineEmbeddingLoss", {}, [x(5, 4), x(5, 4, seed=1)], [SIGNS]),
    "cosine with margin": ("CosineEmbeddingLoss", {"margin": 0.2}, [x(5, 4), x(5, 4, seed=1)], [SIGNS]),
    "cosine of one pair": ("CosineEmbeddingLoss", {}, [x(4), x(4, seed=1)], [np.array(1.0)]),
    "multi margin": ("MultiMarginLoss", {}, [x(5, 4)], [CLASSES]),
    "multi margin squared": ("MultiMarginLoss", {"p": 2, "margin": 0.5}, [x(5, 4)], [CLASSES]),
    "multi margin weighted": ("MultiMarginLoss", {"weight": WEIGHT}, [x(5, 4)], [CLASSES]),
    "multi margin of one": ("MultiMarginLoss", {}, [x(4)], [np.array(2)]),
    "multilabel margin": ("MultiLabelMarginLoss", {}, [x(5, 4)], [LABELS]),
    "multilabel margin of one": ("MultiLabelMarginLoss", {}, [x(4)], [LABELS[0]]),
    "multilabel soft margin": ("MultiLabelSoftMarginLoss", {}, [x(5, 4)], [MARKS]),
    "multilabel soft margin weighted": ("MultiLabelSoftMarginLoss", {"weight": WEIGHT}, [x(5, 4)], [MARKS]),
    "triplet": ("TripletMarginLoss", {}, [x(5, 4), x(5, 4, seed=1), x(5, 4, seed=2)], []),
    "triplet swapped": (
        "TripletMarginLoss", {"swap": True, "p": 1.0}, [x(5, 4), x(5, 4, seed=1), x(5, 4, seed=2)], [],
    ),
    "triplet wide": ("TripletMarginLoss", {"margin": 3.0}, [x(4), x(4, seed=1), x(4, seed=2)], []),
    "triplet with distance": (
        "TripletMarginWithDistanceLoss", {"swap": True}, [x(5, 4), x(5, 4, seed=1), x(5, 4, seed=2)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_agrees_with_pytorch_in_every_reduction(name):
    kind, options, inputs, targets = LOSSES[name]

    def make(library, tensor, reduction):
        given = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        return getattr(library, kind)(**given, reduction=reduction)

    def forward(module, *arrays):
        tensor = st.tensor if isinstance(module, nn.Module) else torch.tensor
        return module(*arrays, *map(tensor, targets))

    reductions = ["sum", "none"] + ["batchmean"] * (kind == "KLDivLoss")
    compare(make(nn, st.tensor, "mean"), make(torch.nn, torch.tensor, "mean"), *inputs, forward=forward)
    with st.eager():  # the formulas again, without compiling each
        for r in reductions:
            compare(make(nn, st.tensor, r), make(torch.nn, torch.tensor, r), *inputs, forward=forward)


FUNCTIONS = {
    "kl_div": lambda f, t, x: f.kl_div(x, t(SHARES), reduction="batchmean"),
    "poisson_nll_loss": lambda f, t, x: f.poisson_nll_loss(x, t(COUNTS), full=True),
    "gaussian_nll_loss": lambda f, t, x: f.gaussian_nll_loss(x, t(COUNTS), t(SHARES), full=True),
    "hinge_embedding_loss": lambda f, t, x: f.hinge_embedding_loss(x, t(2 * MARKS - 1), margin=0.3),
    "soft_margin_loss": lambda f, t, x: f.soft_margin_loss(x, t(2 * MARKS - 1)),
    "margin_ranking_loss": lambda f, t, x: f.margin_ranking_loss(x, x * x, t(2 * MARKS - 1), margin=0.1),
    "cosine_embedding_loss": lambda f, t, x: f.cosine_embedding_loss(x, x + 1, t(SIGNS), margin=0.5),
    "multi_margin_loss": lambda f, t, x: f.multi_margin_loss(x, t(CLASSES), p=2),
    "multilabel_margin_loss": lambda f, t, x: f.multilabel_margin_loss(x, t(LABELS)),
    "multilabel_soft_margin_loss": lambda f, t, x: f.multilabel_soft_margin_loss(x, t(MARKS)),
    "triplet_margin_loss": lambda f, t, x: f.triplet_margin_loss(x, x + 1, x * x, swap=True),
    "triplet_margin_with_distance_loss": lambda f, t, x: f.triplet_margin_with_distance_loss(
        x, x + 1, x * x, distance_function=lambda a, b: ((a - b) ** 2).sum(-1), margin=0.5
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_pytorch(name):
    compare_functions(FUNCTIONS[name], x(5, 4))


@pytest.mark.parametrize("alpha", [0.25, -1])
@pytest.mark.parametrize("gamma", [2.0, 0.5])
def test_the_focal_loss_is_its_definition(alpha, gamma):
    """torchvision's formula, said with PyTorch's functions."""

    def focal(f, t, logits):
        if f is nn.functional:
            return f.sigmoid_focal_loss(logits, t(MARKS), alpha, gamma)
        target, p = t(MARKS), torch.sigmoid(logits)
        hit = p * target + (1 - p) * (1 - target)
        loss = f.binary_cross_entropy_with_logits(logits, target, reduction="none") * (1 - hit) ** gamma
        return loss if alpha < 0 else (alpha * target + (1 - alpha) * (1 - target)) * loss

    compare_functions(focal, x(5, 4))
    layer = nn.SigmoidFocalLoss(alpha, gamma, "mean")
    want = nn.functional.sigmoid_focal_loss(st.tensor(x(5, 4)), MARKS, alpha, gamma, "mean")
    assert float(layer(st.tensor(x(5, 4)), MARKS)) == float(want)


def test_a_variance_may_be_a_number():
    a, b = x(5, 4), x(5, 4, seed=1)
    got = nn.functional.gaussian_nll_loss(st.tensor(a), b, 0.5)
    assert float(got) == pytest.approx((0.5 * (math.log(0.5) + (a - b) ** 2 / 0.5)).mean())


SAMPLE = st.tensor(x(5, 4))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda f: f.kl_div(SAMPLE, SHARES[:2]), "differ in shape"),
        (lambda f: f.kl_div(SAMPLE, SHARES, "median"), "reduction"),
        (lambda f: f.gaussian_nll_loss(SAMPLE, SHARES, np.ones(4)), "variances have"),
        (lambda f: f.gaussian_nll_loss(SAMPLE, SHARES, -1.0), "not negative"),
        (lambda f: f.gaussian_nll_loss(SAMPLE, SHARES, 1.0, eps=0), "eps must be positive"),
        (lambda f: f.margin_ranking_loss(SAMPLE, SAMPLE, SIGNS), "as many axes"),
        (lambda f: f.cosine_embedding_loss(SAMPLE, SAMPLE, np.array(1.0)), "target"),
        (lambda f: f.cosine_embedding_loss(SAMPLE, SAMPLE.astype("float32"), SIGNS), "one dtype"),
        (lambda f: f.multi_margin_loss(SAMPLE, SIGNS), "integers"),
        (lambda f: f.multi_margin_loss(SAMPLE, CLASSES[:3]), "do not fit"),
        (lambda f: f.multi_margin_loss(SAMPLE, CLASSES, p=3), "p is 1 or 2"),
        (lambda f: float(f.multi_margin_loss(SAMPLE, CLASSES + 1)), "out of|range|index"),
        (lambda f: float(f.multi_margin_loss(SAMPLE, CLASSES - 1)), "out of|range|index"),
        (lambda f: float(f.multilabel_margin_loss(SAMPLE, LABELS + 1)), "out of|range|index"),
        (lambda f: f.triplet_margin_loss(SAMPLE, SAMPLE, SAMPLE[0]), "as many axes"),
        (lambda f: f.triplet_margin_loss(SAMPLE, SAMPLE, SAMPLE, margin=0), "margin must be positive"),
        (lambda f: nn.KLDivLoss("median"), "reduction"),
        (lambda f: nn.MultiMarginLoss(p=3), "p is 1 or 2"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(nn.functional)
    assert "test_nn_margin_losses.py" in str(info.value)
