"""Activations against PyTorch, as layers and as functions, also where their pieces meet."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_twins import compare, compare_functions, draw  # noqa: E402

import stratal as st  # noqa: E402
from stratal import nn  # noqa: E402

pytestmark = pytest.mark.torch

# Ends of pieces, of the default options and those below, and values far out.
KINKS = np.array([-30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.1, 0.5, 1.0, 3.0, 6.0, 30.0])

LAYERS = {
    "relu": lambda nn: nn.ReLU(),
    "relu6": lambda nn: nn.ReLU6(),
    "leaky relu": lambda nn: nn.LeakyReLU(0.2),
    "prelu": lambda nn: nn.PReLU(),
    "prelu per channel": lambda nn: nn.PReLU(4, init=0.3),
    "rrelu in evaluation": lambda nn: nn.RReLU(0.1, 0.5).eval(),
    "hardtanh": lambda nn: nn.Hardtanh(-0.5, 3.0),
    "hardsigmoid": lambda nn: nn.Hardsigmoid(),
    "hardswish": lambda nn: nn.Hardswish(),
    "hardshrink": lambda nn: nn.Hardshrink(0.5),
    "softshrink": lambda nn: nn.Softshrink(0.5),
    "threshold": lambda nn: nn.Threshold(0.1, 20.0),
    "elu": lambda nn: nn.ELU(1.5),
    "celu": lambda nn: nn.CELU(1.5),
    "selu": lambda nn: nn.SELU(),
    "gelu": lambda nn: nn.GELU(),
    "gelu tanh": lambda nn: nn.GELU("tanh"),
    "silu": lambda nn: nn.SiLU(),
    "mish": lambda nn: nn.Mish(),
    "tanh": lambda nn: nn.Tanh(),
    "tanhshrink": lambda nn: nn.Tanhshrink(),
    "sigmoid": lambda nn: nn.Sigmoid(),
    "log sigmoid": lambda nn: nn.LogSigmoid(),
    "softsign": lambda nn: nn.Softsign(),
    "softplus": lambda nn: nn.Softplus(2.0, 1.5),
    "glu": lambda nn: nn.GLU(),
    "glu along axis 1": lambda nn: nn.GLU(1),
    "softmax": lambda nn: nn.Softmax(dim=1),
    "softmin": lambda nn: nn.Softmin(dim=-1),
    "log softmax": lambda nn: nn.LogSoftmax(dim=-1),
    "softmax 2d": lambda nn: nn.Softmax2d(),
}
TOLERANCE = {"hardsigmoid": 1e-7}  # PyTorch's gradient is 1 / 6 rounded to float32
ALONG_AN_AXIS = ("glu", "softm", "log softmax", "per channel")


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch(name):
    make = LAYERS[name]
    compare(make(nn), make(torch.nn), 2 * draw(3, 4, 2, 2, dtype=np.float64), tolerance=TOLERANCE.get(name))


@pytest.mark.parametrize("name", [n for n in LAYERS if not any(part in n for part in ALONG_AN_AXIS)])
def test_a_layer_agrees_with_pytorch_where_pieces_meet_and_far_out(name):
    make = LAYERS[name]
    compare(make(nn), make(torch.nn), KINKS, tolerance=TOLERANCE.get(name))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_agrees_with_pytorch_in_float32_and_prints_like_it(name):
    make = LAYERS[name]
    compare(make(nn), make(torch.nn), draw(2, 4, 2, 2))
    plain = repr(make(nn)).replace(", inplace=False", "")
    assert plain == repr(make(torch.nn)).replace(", inplace=False", "")


FUNCTIONS = {
    "relu6": lambda f, t, x: f.relu6(x),
    "hardtanh": lambda f, t, x: f.hardtanh(x, -0.3, 0.4),
    "hardsigmoid": lambda f, t, x: f.hardsigmoid(x),
    "hardswish": lambda f, t, x: f.hardswish(x),
    "hardshrink": lambda f, t, x: f.hardshrink(x, 0.3),
    "softshrink": lambda f, t, x: f.softshrink(x, 0.3),
    "threshold": lambda f, t, x: f.threshold(x, 0.2, -7.0),
    "prelu of one slope": lambda f, t, x: f.prelu(x, t(np.array([0.3]))),
    "rrelu in evaluation": lambda f, t, x: f.rrelu(x),
    "celu": lambda f, t, x: f.celu(x, 0.75),
    "selu": lambda f, t, x: f.selu(x),
    "mish": lambda f, t, x: f.mish(x),
    "logsigmoid": lambda f, t, x: f.logsigmoid(x),
    "softsign": lambda f, t, x: f.softsign(x),
    "tanhshrink": lambda f, t, x: f.tanhshrink(x),
    "glu": lambda f, t, x: f.glu(x, 0),
    "softmin": lambda f, t, x: f.softmin(x, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_pytorch(name):
    compare_functions(FUNCTIONS[name], draw(4, 6, dtype=np.float64), tolerance=TOLERANCE.get(name))


def test_nan_stays_nan_in_every_activation_as_in_pytorch():
    x = np.array([np.nan, 1.0], np.float32)
    for name, make in LAYERS.items():
        if not any(part in name for part in ALONG_AN_AXIS):
            got = make(nn)(st.tensor(x)).detach().numpy()
            want = make(torch.nn)(torch.tensor(x)).detach().numpy()
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=name)


def test_random_slopes_lie_between_their_bounds_and_scale_gradients_too():
    st.manual_seed(0)
    x = st.tensor(-np.ones((50, 60), np.float32), requires_grad=True)
    y = nn.RReLU(0.2, 0.4)(x)
    y.sum().backward()
    slopes = -y.detach().numpy()
    assert slopes.min() >= 0.2 and slopes.max() <= 0.4 and slopes.std() > 0.05
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-6)


def test_gumbel_samples_follow_the_logits_and_hard_ones_pass_the_gradient_of_soft_ones():
    st.manual_seed(0)
    p = np.array([0.2, 0.5, 0.3])
    logits = st.tensor(np.tile(np.log(p), (20000, 1)), requires_grad=True)
    hard = nn.functional.gumbel_softmax(logits, tau=0.5, hard=True)
    values = hard.detach().numpy()
    assert set(np.unique(values.round(12))) == {0.0, 1.0} and np.allclose(values.sum(1), 1)
    np.testing.assert_allclose(values.mean(0), p, atol=0.01)
    (hard * st.tensor(np.array([1.0, 2.0, 3.0]))).sum().backward()
    grad = logits.grad.numpy()
    assert np.abs(grad).max() > 0.01
    np.testing.assert_allclose(grad.sum(1), 0, atol=1e-12)
    soft = nn.functional.gumbel_softmax(logits.detach(), dim=0)
    np.testing.assert_allclose(soft.numpy().sum(0), 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: nn.functional.glu(x, 1), "its size is even"),
        (lambda x: nn.functional.glu(x, 2), "axis out of range"),
        (lambda x: nn.functional.prelu(x, st.ones(4)), "one per channel"),
        (lambda x: nn.functional.softshrink(x, -1.0), "not be negative"),
        (lambda x: nn.functional.rrelu(x, 0.5, 0.1), "at most upper"),
        (lambda x: nn.Hardtanh(1.0, -1.0)(x), "min_val lies below"),
        (lambda x: nn.functional.celu(x, 0.0), "alpha must not be 0"),
        (lambda x: nn.Softmax2d()(x), "3 or 4 axes"),
        (lambda x: nn.functional.softmax(x, 5), "dim out of range"),
        (lambda x: nn.GELU("erf"), "approximate"),
    ],
)
def test_a_wrong_call_is_refused(call, says):
    with pytest.raises(st.StratalError, match=says) as info:
        call(st.ones((2, 3)))
    assert "test_nn_activations.py" in str(info.value)
