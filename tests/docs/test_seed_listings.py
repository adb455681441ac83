"""The lectures' PyTorch listing, made runnable: it trains, it can be debugged where it stands, and it
compiles whole.

As printed the listing skips its relu (`self.fc(t1)`) and multiplies a 4-d convolution output with a matrix.
The corrected twin feeds the relu's output on, averaged over the image, and gives its logits to the loss.
"""

import io
import pdb  # noqa: T100 the row asks that pdb works

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import StratalError


class LinearLayer(nn.Module):
    def __init__(self, in_sz, out_sz):
        super().__init__()
        t1 = st.randn(in_sz, out_sz)
        self.w = nn.Parameter(t1)
        t2 = st.randn(out_sz)
        self.b = nn.Parameter(t2)

    def forward(self, activations):
        t = st.mm(activations, self.w)
        return t + self.b


class FullBasicModel(nn.Module):
    def __init__(self, probe=None):
        super().__init__()
        self.conv = nn.Conv2d(1, 128, 3)
        self.fc = LinearLayer(128, 10)
        self.probe = probe

    def forward(self, x):
        t1 = self.conv(x)
        t2 = nn.functional.relu(t1)
        if self.probe is not None:
            self.probe(t2)
        t3 = self.fc(t2.mean(dim=(2, 3)))
        return nn.functional.softmax(t3, dim=1)


def _digits():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 1, 6, 6)).astype(np.float32)
    return st.tensor(x), st.tensor((x.mean((1, 2, 3)) > 0).astype(np.int64))


def _train(compiled, steps=30):
    st.manual_seed(0)
    model = FullBasicModel()
    optimizer = optim.Adam(model.parameters(), lr=0.02)

    def step(x, y):
        loss = nn.functional.nll_loss(model(x).log(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = st.compile(step) if compiled else step
    x, y = _digits()
    return model, [float(run(x, y)) for _ in range(steps)], run


@pytest.mark.row("B2")
@pytest.mark.parametrize("compiled", [False, True], ids=["lazy", "compiled"])
def test_the_corrected_listing_trains_and_its_parameters_are_found(compiled):
    model, losses, _ = _train(compiled)
    assert [n for n, _ in model.named_parameters()] == ["conv.weight", "conv.bias", "fc.w", "fc.b"]
    assert losses[-1] < 0.5 * losses[0] and all(np.isfinite(losses))


@pytest.mark.row("B2")
def test_a_parameter_made_of_random_numbers_is_a_leaf_that_trains():
    layer = LinearLayer(4, 3)
    assert layer.w.is_leaf and layer.w.requires_grad and layer.w.shape == (4, 3)
    layer(st.tensor(np.ones((2, 4), np.float32))).sum().backward()
    np.testing.assert_array_equal(layer.w.grad.numpy(), np.full((4, 3), 2.0, np.float32))


@pytest.mark.row("B3")
@pytest.mark.parametrize("eager", [False, True])
def test_print_shows_values_in_the_middle_of_forward(eager, capsys):
    model = FullBasicModel(probe=lambda t: print("relu:", t.shape, float(t.min()), t[0, 0, 0, :2]))
    x, _ = _digits()
    if eager:
        with st.eager():
            model(x)
    else:
        model(x)
    printed = capsys.readouterr().out
    assert "relu: (16, 128, 4, 4) 0.0" in printed and "tensor(" in printed


@pytest.mark.row("B3")
def test_pdb_stops_in_the_middle_of_forward_and_shows_values():
    commands, output = io.StringIO("p float(t.min())\np t.shape\ncontinue\n"), io.StringIO()

    def probe(t):
        debugger = pdb.Pdb(stdin=commands, stdout=output, nosigint=True)
        debugger.use_rawinput = False
        debugger.set_trace()
        assert t.ndim == 4

    with st.eager():
        FullBasicModel(probe)(_digits()[0])
    assert "0.0" in output.getvalue() and "(16, 128, 4, 4)" in output.getvalue()


@pytest.mark.row("B3")
def test_an_error_in_forward_names_the_users_line_also_when_compiled():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = LinearLayer(7, 10)

        def forward(self, x):
            return self.fc(x)  # the matrix has 7 rows

    x = st.tensor(np.ones((2, 5), np.float32))
    for call in (Wrong(), st.compile(Wrong())):
        with pytest.raises(StratalError) as info:
            call(x)
        assert "test_seed_listings.py" in str(info.value) and "[2,5]" in str(info.value)


@pytest.mark.row("B3")
def test_python_control_flow_on_a_traced_value_names_line_and_alternative():
    @st.compile
    def step(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(StratalError) as info:
        step(st.tensor(np.ones(3, np.float32)))
    assert "test_seed_listings.py" in str(info.value) and "cond" in str(info.value)


@pytest.mark.row("B4")
def test_compiling_the_listing_changes_no_number():
    _, lazy, _ = _train(False)
    _, compiled, _ = _train(True)
    np.testing.assert_allclose(compiled, lazy, rtol=1e-5)


@pytest.mark.row("B4")
def test_relu_and_matmul_are_one_kernel_in_the_plan():
    st.manual_seed(0)
    layer = LinearLayer(64, 32)
    forward = st.compile(lambda x: nn.functional.relu(layer(x)))
    x = st.tensor(np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32))
    expected = np.maximum(x.numpy() @ layer.w.numpy() + layer.b.numpy(), 0)
    np.testing.assert_allclose(forward(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(forward.plan.kernels) == 1, str(forward.plan)
