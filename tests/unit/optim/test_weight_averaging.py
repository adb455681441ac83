"""Averages of weights: PyTorch's values, in compiled steps too, and statistics of batch norms."""

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError
from stratal.optim import swa_utils

pytestmark = pytest.mark.quick

AVERAGES = {
    "equal": lambda m: {},
    "exponential": lambda m: {"avg_fn": m.get_ema_avg_fn(0.8)},
    "equal, all at once": lambda m: {"multi_avg_fn": m.get_swa_multi_avg_fn()},
    "exponential, all at once": lambda m: {"multi_avg_fn": m.get_ema_multi_avg_fn(0.8)},
    "buffers too": lambda m: {"multi_avg_fn": m.get_ema_multi_avg_fn(0.8), "use_buffers": True},
}


@pytest.mark.torch
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_has_pytorchs_values(name):
    torch = pytest.importorskip("torch")
    ours, theirs = nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    our_average = swa_utils.AveragedModel(ours, **AVERAGES[name](swa_utils))
    their_average = torch.optim.swa_utils.AveragedModel(theirs, **AVERAGES[name](torch.optim.swa_utils))
    rng = np.random.default_rng(0)
    for _ in range(4):
        x, weight = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
        ours(st.tensor(x))
        theirs(torch.from_numpy(x))
        with st.no_grad(), torch.no_grad():
            ours.weight.copy_(st.tensor(weight))
            theirs.weight.copy_(torch.from_numpy(weight))
        our_average.update_parameters(ours)
        their_average.update_parameters(theirs)
    state = our_average.state_dict()
    assert set(state) == set(their_average.state_dict())
    for key, value in their_average.state_dict().items():
        np.testing.assert_allclose(np.array(state[key]), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=key)


def test_an_average_is_taken_inside_a_compiled_step():
    model = nn.Linear(2, 1, bias=False)
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @st.compile
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        average.update_parameters(model)

    want = None
    for k in range(5):
        step(st.tensor(np.full((1, 2), k + 1.0, np.float32)))
        now = np.array(model.weight.detach())
        want = now if want is None else 0.5 * want + 0.5 * now
    np.testing.assert_allclose(np.array(average.module.weight.detach()), want, rtol=1e-6)
    assert int(average.n_averaged) == 5 and step.captures == 1


def test_statistics_of_batch_norms_become_those_of_one_pass():
    model = nn.Sequential(nn.BatchNorm1d(3))
    batches = [np.random.default_rng(k).standard_normal((6, 3)).astype(np.float32) + k for k in range(3)]
    model.eval()
    swa_utils.update_bn([(st.tensor(b), None) for b in batches], model)
    mean = np.mean([b.mean(0) for b in batches], axis=0)
    var = np.mean([b.var(0, ddof=1) for b in batches], axis=0)
    np.testing.assert_allclose(np.array(model[0].running_mean), mean, rtol=1e-5)
    np.testing.assert_allclose(np.array(model[0].running_var), var, rtol=1e-5)
    assert model[0].momentum == 0.1 and not model.training


def test_a_wrong_average_is_refused():
    average = swa_utils.get_swa_avg_fn()
    with pytest.raises(StratalError, match="not both"):
        swa_utils.AveragedModel(
            nn.Linear(1, 1), avg_fn=average, multi_avg_fn=swa_utils.get_swa_multi_avg_fn()
        )
    with pytest.raises(StratalError, match="anneal_strategy"):
        swa_utils.SWALR(optim.SGD(nn.Linear(1, 1).parameters()), 0.1, anneal_strategy="none")
