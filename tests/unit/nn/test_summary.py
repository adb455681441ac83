"""The table of a module's parts: its numbers, and that nothing is computed or changed for it."""

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import CallOrderError, CaptureError, DTypeError


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", st.ones(4))

    def forward(self, x, mask=None):
        doubled = x + x
        y = self.second(self.first(doubled)) * self.scale
        return {"out": y if mask is None else st.where(mask, y, 0.0), "in": doubled}


def rows_of(summary):
    return {row.path: row for row in summary.rows}


def test_without_inputs_a_summary_has_parameters_and_bytes_alone():
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Sequential(nn.Linear(5, 2)))
    net[0].requires_grad_(False)
    found = net.summary()
    rows = rows_of(found)
    assert found.parameters == sum(p.numel() for p in net.parameters()) == 42
    assert found.trainable == 22
    assert (rows["0"].parameters, rows["0"].trainable, rows["2"].parameters) == (20, 0, 12)
    assert rows["1"].nbytes == 10 * 4 + 10 * 4 + 8
    assert rows["2.0"].depth == 2
    assert "operations" not in str(found) and "output" not in str(found)


def test_a_parameter_that_two_modules_share_counts_once():
    found = Residual().summary()
    assert found.parameters == 16
    assert [row.parameters for row in found.rows] == [16, 16, 16]


@pytest.mark.row("B7")
def test_operations_belong_to_the_module_whose_forward_computes_them():
    found = Residual().summary((3, 4))
    rows = rows_of(found)
    products = 2 * 3 * 4 * 4
    assert rows["first"].operations == rows["second"].operations == products
    assert rows[""].operations == 2 * products + 12 + 12
    assert rows["first"].output == "f32[3,4]"
    assert rows[""].output == "(f32[3,4], f32[3,4])"


def test_a_module_that_is_called_twice_says_so_and_one_that_is_not_has_no_output():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(self.layer(x))

    rows = rows_of(found := Twice().summary((1, 2)))
    assert (rows["layer"].calls, rows["spare"].calls, rows["spare"].output) == (2, 0, "")
    assert rows["layer"].operations == rows[""].operations == 2 * (8 + 2)
    assert "in 2 calls" in str(found)


@pytest.mark.parametrize("example", [(3, 4), st.ones(3, 4), np.ones((3, 4), np.float32), st.spec((3, 4))])
def test_an_input_is_a_tensor_a_type_or_a_shape(example):
    found = Residual().summary(example, mask=st.spec((3, 4), "bool"))
    assert rows_of(found)["first"].output == "f32[3,4]"


def test_nothing_is_computed_drawn_or_changed():
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    net[2].eval()
    before = [x.numpy().copy() for x in net.state_dict().values()]
    drawn = st.get_rng_state().numpy().copy()
    net.summary((4, 3))
    assert all(np.array_equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))
    assert np.array_equal(drawn, st.get_rng_state())
    assert [part.training for part in net.modules()] == [True, True, True, False]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
    net.summary((1 << 30, 3))  # 12 GB, were it computed


def test_an_error_in_forward_leaves_modes_and_hooks_as_they_were():
    net = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(st.StratalError, match="inner sizes"):
        net.summary((4, 2))
    assert net.training and not net[0]._forward_hooks


def test_lazy_layers_take_their_size_from_the_example():
    net = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(CallOrderError, match=r"0\.weight"):
        net.summary()
    assert net.summary((1, 5)).parameters == 12
    assert net(st.ones(1, 5)).shape == (1, 2)


def test_recurrent_nets_and_embeddings_take_types_of_integers():
    net = nn.Sequential(nn.Embedding(20, 4), nn.LSTM(4, 3, batch_first=True))
    rows = rows_of(net.summary(st.spec((2, 6), "int64")))
    assert rows["1"].output.startswith("(f32[2,6,3]")
    assert rows["1"].operations > 2 * 6 * 2 * (4 + 3) * 12


def test_a_forward_that_asks_for_values_is_refused_by_name():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match="Branches"):
        Branches().summary((3,))


def test_what_is_no_example_is_refused():
    with pytest.raises(DTypeError, match="example inputs"):
        nn.Linear(2, 2).summary(object())


def test_depth_bounds_what_is_printed_and_a_notebook_gets_the_same_table():
    found = nn.Sequential(nn.Sequential(nn.Linear(2, 2))).summary(depth=1)
    assert len(found.rows) == 3 and "Linear" not in str(found)
    assert found._repr_html_().startswith("<pre>module")
