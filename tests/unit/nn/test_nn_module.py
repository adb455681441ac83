"""Modules: registration, walking, modes, state dicts, printing."""

import copy

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import StratalError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.scale = nn.Parameter(np.ones(4, np.float32))
        self.register_buffer("seen", st.tensor(0))
        self.register_buffer("scratch", st.tensor(1.0), persistent=False)

    def forward(self, x):
        return self.fc(x) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.head(self.blocks[0](x))


@pytest.mark.row("B2")
def test_parameters_are_discovered_through_attributes_lists_and_children():
    names = [name for name, _ in Net().named_parameters()]
    assert names == [
        "blocks.0.scale", "blocks.0.fc.weight", "blocks.0.fc.bias",
        "blocks.1.scale", "blocks.1.fc.weight", "blocks.1.fc.bias", "head.weight",
    ]  # fmt: skip


def test_a_shared_parameter_is_listed_once_and_saved_under_both_names():
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    net[1].weight = net[0].weight
    assert [name for name, _ in net.named_parameters()] == ["0.weight"]
    assert list(net.state_dict()) == ["0.weight", "1.weight"]


def test_the_state_dict_has_persistent_buffers_only():
    assert list(Block().state_dict()) == ["scale", "seen", "fc.weight", "fc.bias"]


@pytest.mark.quick
def test_a_state_dict_survives_a_round_trip_and_is_a_snapshot():
    first, second = Net(), Net()
    state = first.state_dict()
    assert repr(second.load_state_dict(state)) == "<All keys matched successfully>"
    x = st.tensor(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())
    before = np.array(state["head.weight"])
    with st.no_grad():
        first.head.weight.copy_(np.zeros((2, 4), np.float32))
    np.testing.assert_array_equal(state["head.weight"].numpy(), before)


def test_a_misfit_state_dict_is_refused_whole_and_names_every_key():
    net = Net()
    before = {k: np.array(v) for k, v in net.state_dict().items()}
    state = dict(net.state_dict())
    del state["head.weight"]
    state["extra"] = np.zeros(3)
    state["blocks.0.scale"] = np.zeros(7, np.float32)
    with pytest.raises(StratalError) as info:
        net.load_state_dict(state)
    text = str(info.value)
    assert "missing head.weight" in text and "unexpected extra" in text
    assert "blocks.0.scale: [7] for [4]" in text and "test_nn_module.py" in text
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_loading_without_strict_reports_what_did_not_match():
    net = Net()
    state = dict(net.state_dict())
    del state["head.weight"]
    state["extra"] = np.zeros(3)
    result = net.load_state_dict(state, strict=False)
    assert result.missing_keys == ["head.weight"] and result.unexpected_keys == ["extra"]


def test_train_and_eval_reach_every_module():
    net = Net()
    assert all(not m.training for m in net.eval().modules())
    assert all(m.training for m in net.train().modules())


@pytest.mark.quick
def test_modules_print_like_pytorch():
    net = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.Sequential(nn.Linear(2, 3)))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))\n"
        "  (1): ReLU()\n"
        "  (2): Sequential(\n"
        "    (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  )\n"
        ")"
    )


def test_an_attribute_set_before_init_is_an_error_with_the_users_line():
    class Wrong(nn.Module):
        def __init__(self):
            self.fc = nn.Linear(1, 1)

    with pytest.raises(StratalError, match=r"super\(\).__init__"):
        Wrong()


def test_a_missing_attribute_names_module_and_attribute():
    with pytest.raises(AttributeError, match="Net: has no attribute 'tail'"):
        Net().tail  # noqa: B018


def test_a_parameter_cannot_be_overwritten_by_a_plain_value():
    with pytest.raises(StratalError, match="is a parameter"):
        Net().head.weight = 3.0


def test_hooks_run_around_forward_and_can_be_removed():
    layer, calls = nn.Linear(2, 2), []
    before = layer.register_forward_pre_hook(lambda module, args: calls.append("before"))
    after = layer.register_forward_hook(lambda module, args, result: result * 0)
    x = st.tensor(np.ones((1, 2), np.float32))
    assert np.all(layer(x).numpy() == 0) and calls == ["before"]
    before.remove()
    after.remove()
    assert np.any(layer(x).numpy() != 0) and calls == ["before"]


def test_a_deep_copy_has_weights_of_its_own():
    net = Net()
    twin = copy.deepcopy(net)
    with st.no_grad():
        twin.head.weight.copy_(np.zeros((2, 4), np.float32))
    assert np.any(net.head.weight.numpy() != 0)


def test_conversion_keeps_integer_buffers_and_parameter_identity():
    net = Block()
    weight = net.fc.weight
    net.double()
    assert net.fc.weight is weight and weight.dtype is st.float64 and net.seen.dtype is st.int64
    assert weight.requires_grad


def test_sequential_slices_and_module_dicts_behave_like_lists_and_dicts():
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    assert len(net[:2]) == 2 and net[-1] is net[2]
    table = nn.ModuleDict({"a": nn.ReLU()})
    table["b"] = nn.Linear(1, 1)
    assert list(table) == ["a", "b"] and "a" in table
    assert [n for n, _ in table.named_parameters()] == ["b.weight", "b.bias"]
    params = nn.ParameterList([np.zeros(2, np.float32), nn.Parameter(np.ones(3, np.float32))])
    assert len(list(params.parameters())) == 2 and params[-1].shape == (3,)


@pytest.mark.quick
def test_initial_weights_follow_the_seed():
    def draw():
        st.manual_seed(3)
        return nn.Linear(4, 4).weight.numpy()

    np.testing.assert_array_equal(draw(), draw())


def test_initial_weights_have_the_stated_ranges():
    st.manual_seed(0)
    layer = nn.Linear(64, 256)
    bound = 1 / 8
    assert np.abs(layer.weight.numpy()).max() <= bound and np.abs(layer.weight.numpy()).max() > 0.98 * bound
    weight = nn.init.kaiming_normal_(
        nn.Parameter(np.zeros((512, 256), np.float32)), nonlinearity="relu"
    ).numpy()
    assert weight.std() == pytest.approx(np.sqrt(2 / 256), rel=0.02)
    weight = nn.init.xavier_uniform_(nn.Parameter(np.zeros((300, 100), np.float32))).numpy()
    assert np.abs(weight).max() == pytest.approx(np.sqrt(6 / 400), rel=0.01)
    weight = nn.init.trunc_normal_(nn.Parameter(np.zeros(10000, np.float32)), std=1.0, a=-1, b=1).numpy()
    assert np.abs(weight).max() <= 1


def test_what_replaces_a_parameter_or_a_module_stands_at_its_place():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[0].weight = nn.Parameter(np.zeros((2, 2), np.float32))
    model[0] = model[0]
    model.register_module("1", nn.Tanh())
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [type(m).__name__ for m in model] == ["Linear", "Tanh", "Linear"]
