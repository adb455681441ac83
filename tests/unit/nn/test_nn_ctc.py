"""CTC and the adaptive softmax against PyTorch, gradients included."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

TARGETS = np.array([[1, 2, 2, 3], [4, 4, 1, 0], [3, 1, 9, -5]])  # what pads a row may be anything
SIZES = np.array([4, 3, 2])
STEPS = np.array([9, 7, 8])


def loss_of(targets=TARGETS, steps=STEPS, sizes=SIZES, **options):
    """PyTorch's gradient is that of logits, so a log-softmax stands before."""

    def run(f, t, logits):
        return f.ctc_loss(f.log_softmax(logits, -1), t(targets), t(steps), t(sizes), **options)

    return run


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("blank", [0, 4])
def test_the_loss_and_its_gradient_agree_with_pytorch(reduction, blank):
    targets = TARGETS if blank == 0 else np.where(TARGETS == 4, 0, TARGETS)
    compare_functions(loss_of(targets, reduction=reduction, blank=blank), 2 * draw(9, 3, 5, dtype=np.float64))


def test_targets_end_to_end_agree_with_pytorch():
    flat = np.concatenate([row[:n] for row, n in zip(TARGETS, SIZES, strict=True)])
    compare_functions(loss_of(flat, reduction="none"), draw(9, 3, 5, dtype=np.float64))


def test_float32_and_the_layer_agree_with_pytorch():
    def forward(module, logits):
        t = st.tensor if isinstance(module, nn.Module) else torch.tensor
        return module(logits.log_softmax(-1), t(TARGETS), t(STEPS), t(SIZES))

    compare(nn.CTCLoss(), torch.nn.CTCLoss(), draw(9, 3, 5), forward=forward)


def test_one_sample_without_a_batch_and_one_step_agree_with_pytorch():
    compare_functions(loss_of(TARGETS[0], 9, 4), draw(9, 5, dtype=np.float64))
    compare_functions(loss_of(np.array([[1], [2]]), np.array([1, 1]), np.array([1, 0])),
                      draw(1, 2, 3, dtype=np.float64))  # fmt: skip


def test_no_labels_at_all_agree_with_pytorch():
    compare_functions(loss_of(sizes=np.array([0, 3, 0]), reduction="none"), draw(9, 3, 5, dtype=np.float64))


def test_what_cannot_be_aligned_costs_infinitely_much_or_nothing():
    steps = np.array([4, 7, 8])  # the first target needs a blank between its two equal labels
    logits = draw(9, 3, 5, dtype=np.float64)
    compare_functions(loss_of(steps=steps, zero_infinity=True, reduction="sum"), logits)
    loss = loss_of(steps=steps, reduction="none")(nn.functional, st.tensor, st.tensor(logits)).numpy()
    assert loss[0] == np.inf and np.all(np.isfinite(loss[1:]))


def test_the_loss_sums_the_probabilities_of_all_alignments():
    """By going through all of them, for a sequence small enough."""
    p = np.exp(draw(4, 3, dtype=np.float64))
    p /= p.sum(1, keepdims=True)
    target = [1, 2]
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        merged = [c for k, c in enumerate(path) if k == 0 or c != path[k - 1]]
        if [c for c in merged if c] == target:
            total += np.prod(p[np.arange(4), path])
    got = nn.functional.ctc_loss(st.tensor(np.log(p)), target, 4, 2, reduction="sum")
    assert float(got) == pytest.approx(-np.log(total), rel=1e-12)


def test_gradients_are_those_of_finite_differences_in_the_log_probabilities():
    x = draw(5, 2, 4, dtype=np.float64)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))

    def loss(x):
        return nn.functional.ctc_loss(x, np.array([[1, 2], [3, 3]]), [5, 4], [2, 2], reduction="sum")

    report = st.check_grad(loss, [x])
    assert report.ok, report


def test_a_probability_of_zero_is_no_number_less():
    p = np.full((4, 1, 3), 1 / 3)
    p[2, 0, 1] = 0
    with np.errstate(divide="ignore"):
        logs = np.log(p)
    got = nn.functional.ctc_loss(st.tensor(logs), [[1]], [4], [1], reduction="sum")
    want = torch.nn.functional.ctc_loss(
        torch.tensor(logs), torch.tensor([[1]]), torch.tensor([4]), torch.tensor([1]), reduction="sum"
    )
    assert float(got) == pytest.approx(float(want))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda f, x: f.ctc_loss(x, TARGETS, [10, 7, 8], SIZES), "at most 9"),
        (lambda f, x: f.ctc_loss(x, TARGETS, [9, 7], SIZES), "one integer per sample"),
        (lambda f, x: f.ctc_loss(x, TARGETS * 1.0, STEPS, SIZES), "targets are integers"),
        (lambda f, x: f.ctc_loss(x, TARGETS[:2], STEPS, SIZES), "targets are"),
        (lambda f, x: f.ctc_loss(x, TARGETS, STEPS, SIZES, blank=5), "one of the classes"),
        (lambda f, x: f.ctc_loss(x[0, 0], TARGETS, STEPS, SIZES), "log-probabilities"),
        (lambda f, x: f.ctc_loss(x, TARGETS, STEPS, SIZES, reduction="median"), "reduction"),
        (lambda f, x: float(f.ctc_loss(x, TARGETS + 3, STEPS, SIZES)), "out of|range|index"),
        (lambda f, x: float(f.ctc_loss(x, TARGETS - 2, STEPS, SIZES)), "out of|range|index"),
        (lambda f, x: float(f.ctc_loss(x, TARGETS, STEPS, SIZES + 3)), "target_lengths is at most 4"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(nn.functional, st.tensor(draw(9, 3, 5)))
    assert "test_nn_ctc.py" in str(info.value)


# -- the adaptive softmax ------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"head_bias": True, "div_value": 2.0}])
def test_the_adaptive_softmax_agrees_with_pytorch(options):
    def make(nn):
        return nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], **options)

    target = np.array([0, 3, 4, 9, 10, 19, 7])

    def forward(which):
        def run(module, x):
            t = st.tensor if isinstance(module, nn.Module) else torch.tensor
            return module(x, t(target))[which]

        return run

    x = draw(7, 16, dtype=np.float64)
    compare(make(nn), make(torch.nn), x, forward=forward(0))
    compare(make(nn), make(torch.nn), x, forward=forward(1))
    compare(make(nn), make(torch.nn), x, forward=lambda m, x: m.log_prob(x))
    ours, theirs = make(nn).double(), make(torch.nn).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    np.testing.assert_array_equal(ours.predict(st.tensor(x)).numpy(), theirs.predict(torch.tensor(x)).numpy())
    single = ours(st.tensor(x[0]), st.tensor(np.array(5)))
    assert single.output.shape == () and float(single.loss) == -float(single.output)
    assert repr(make(nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("classes", [[20, 0], [-1, 0]])
def test_a_class_that_is_none_is_an_error(classes):
    layer = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10])
    with pytest.raises(st.StratalError):
        float(layer(st.ones((2, 8)), st.tensor(classes)).loss)


@pytest.mark.parametrize("cutoffs", [[], [4, 4], [10, 4], [0, 4], [4, 20]])
def test_cutoffs_increase_within_the_classes(cutoffs):
    with pytest.raises(st.StratalError, match="cutoffs"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs)
