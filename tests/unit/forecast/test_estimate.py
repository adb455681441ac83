"""Estimates equal the plans of compiled steps to the byte, and the figures of papers, without the memory."""

from __future__ import annotations

import copy
import resource
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError
from stratal.forecast import DEVICES
from stratal.forecast.estimate import largest
from stratal.models import GPT2Config, GPT2LMHeadModel, resnet18

F = nn.functional
GB = 10**9


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )  # fmt: skip


def gpt2(config: Any = None) -> nn.Module:
    small = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config or small)


class Recurrent(nn.Module):
    """With a weight of the user's own drawing, and one that takes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(16, 24, batch_first=True)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.out = nn.Parameter(st.randn(24, 10) * 0.1)

    def forward(self, x: st.Tensor) -> st.Tensor:
        return self.cell(self.frozen(x))[0][:, -1] @ self.out


ROWS = st.tensor(np.arange(8) % 10)
IDS = st.tensor(np.arange(64).reshape(4, 16) % 50)
CASES: dict[str, tuple[Any, ...]] = {
    "adam": (net, optim.Adam, (st.ones((8, 64)), ROWS), F.cross_entropy, None),
    "momentum": (images, lambda p: optim.SGD(p, momentum=0.9), (st.ones((8, 3, 8, 8)), ROWS),
                 F.cross_entropy, None),
    "mixed": (net, optim.AdamW, (st.ones((8, 64), dtype="bfloat16"), ROWS), F.cross_entropy,
              "bfloat16-mixed"),
    "half": (net, optim.RMSprop, (st.ones((8, 64), dtype="float16"), ROWS), F.cross_entropy, "float16"),
    "lion": (Recurrent, optim.Lion, (st.ones((8, 5, 16)), ROWS), F.cross_entropy, None),
    "tied": (gpt2, optim.AdamW, {"input_ids": IDS, "labels": IDS}, None, None),
    "residual": (lambda: resnet18(num_classes=10), optim.Adam,
                 (st.ones((2, 3, 32, 32)), ROWS[:2]), F.cross_entropy, None),
}  # fmt: skip


def trained(model: Any, optimizer: Any, batch: Any, loss: Any) -> Any:
    """Return the plan of the step that an estimate is of."""

    @st.compile(dynamic=False)
    def step(batch: Any) -> st.Tensor:
        found = model(**batch).loss if loss is None else loss(model(batch[0]), *batch[1:])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        return found

    step(batch)
    step(batch)
    return step.plan


@pytest.mark.row("E9", "E10")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "residual" else []) for n in CASES]
)
def test_an_estimate_is_the_plan_of_the_compiled_step_to_the_byte(name: str) -> None:
    make, chosen, batch, loss, precision = CASES[name]
    found = st.estimate(make, chosen, precision, batch=batch, loss=loss)
    model = make()
    given = st.estimate(model, chosen, precision, batch=batch, loss=loss)
    if precision is not None:
        model.to(precision.partition("-")[0])
    optimizer = chosen(model.parameters())
    optimizer.master_weights = "mixed" in (precision or "")
    plan = trained(model, optimizer, batch, loss)
    assert found.total_bytes == given.total_bytes == plan.planned_peak_bytes
    assert found.activation_bytes == plan.memory["arena_bytes"] + plan.memory["output_bytes"]
    state = [x for entries in optimizer.state.values() for x in entries.values() if x.ndim]
    assert found.parameter_bytes == sum(p.nbytes for p in model.parameters())
    assert found.gradient_bytes == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert found.optimizer_bytes == sum(x.nbytes for x in {id(x): x for x in state}.values())


def test_an_optimizer_of_the_model_is_taken_as_it_is_and_nothing_of_it_changes() -> None:
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=0.5, amsgrad=True)
    before = copy.deepcopy(model.state_dict()), repr(optimizer)
    found = st.estimate(model, optimizer, batch=(st.ones((8, 64)), ROWS), loss=F.cross_entropy)
    assert found.optimizer_bytes == 3 * found.parameter_bytes
    assert not optimizer.state and all(p.grad is None for p in model.parameters())
    assert repr(optimizer) == before[1]
    for name, value in model.state_dict().items():
        assert np.array_equal(value, before[0][name])
    plan = trained(model, optimizer, (st.ones((8, 64)), ROWS), F.cross_entropy)
    assert found.total_bytes == plan.planned_peak_bytes


# -- figures of papers ---------------------------------------------------------------------------------------
@pytest.mark.row("E11")
def test_the_table_of_zero_is_that_of_the_paper() -> None:
    found = st.estimate(7.5e9, "adam", "bfloat16-mixed", ranks=64)
    assert [round(b / GB, 1) for b in found.per_rank.values()] == [120.0, 31.4, 16.6, 1.9]
    assert found.optimizer_bytes == 12 * 7.5e9  # K = 12: a master copy, momentum, variance
    for stage, name in enumerate(found.per_rank):
        of_one = st.estimate(7.5e9, "adam", "bfloat16-mixed", ranks=64, zero=stage)
        assert of_one.total_bytes == found.per_rank[name]
        assert of_one.total_bytes == pytest.approx(
            of_one.parameter_bytes + of_one.gradient_bytes + of_one.optimizer_bytes
        )


@pytest.mark.row("E10")
def test_gpt2_of_1_5_billion_parameters_is_6_gb_of_weights_and_is_built_without_them() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest_gpt2 = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    found = st.estimate(lambda: gpt2(largest_gpt2))
    assert found.num_parameters == 1_557_611_200  # the paper's 1542 million, and the vocabulary's rest
    assert round(found.parameter_bytes / GB) == 6 and found.total_bytes == found.parameter_bytes
    trained = st.estimate(lambda: gpt2(largest_gpt2), "adam", "float16-mixed")
    assert trained.total_bytes == 16 * found.num_parameters
    assert trained.parameter_bytes == trained.gradient_bytes == 2 * found.num_parameters
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    assert st.estimate(175e9).total_bytes == 700 * GB  # GPT-3


@pytest.mark.row("E10")
def test_a_split_is_printed_and_is_json() -> None:
    found = st.estimate(net, "adam", batch=(st.ones((8, 64)), ROWS), loss=F.cross_entropy, ranks=4, zero=1)
    text = str(found)
    for part in ("parameters", "gradients", "optimizer state", "activations", "workspace", "zero 3"):
        assert part in text
    parts = found.to_json()
    names = ("parameter", "gradient", "optimizer", "activation", "workspace", "input")
    assert parts["total_bytes"] == sum(parts[f"{name}_bytes"] for name in names) == found.total_bytes
    assert str(st.estimate(1e9)).splitlines()[1].split() == ["parameters", "4.00", "GB"]


# -- devices and budgets -------------------------------------------------------------------------------------
@pytest.mark.row("E9")
def test_devices_from_12_to_141_gb_suffice_or_do_not() -> None:
    assert [d.memory_bytes // GB for d in DEVICES] == [12, 16, 24, 32, 40, 48, 80, 80, 141]
    assert st.estimate(3e9).devices == DEVICES  # 12 GB to the byte
    assert [d.name for d in st.estimate(3e9 + 1).devices][:2] == ["V100", "RTX 4090"]
    assert [d.name for d in st.estimate(7.5e9, "adam", "bfloat16-mixed").devices] == ["H200"]
    assert "fits on: H200 (141 GB)\n" in str(st.estimate(7.5e9, "adam", "bfloat16-mixed"))
    too_large = st.estimate(175e9)
    assert too_large.devices == () and "none up to H200 (141 GB)" in str(too_large)
    assert st.estimate(3e9).fits("12 GB") and not st.estimate(3e9).fits(11_999_999_999)


@pytest.mark.row("E12")
def test_ten_billion_parameters_fit_one_v100_with_state_on_the_host() -> None:
    found = st.estimate(10e9, "adam", "float16-mixed")
    assert found.offloaded == (20 * GB, 140 * GB)
    assert "20.00 GB there, gradients and optimizer state, 140.00 GB, on the host" in str(found)


@pytest.mark.row("E9")
def test_the_largest_batch_fits_and_one_row_more_does_not() -> None:
    found = st.estimate(net, "adam", batch=(st.ones((8, 64)), ROWS), loss=F.cross_entropy)
    most = found.largest_batch("200 kB")
    assert most > 8

    def total(rows: int) -> int:
        batch = st.ones((rows, 64)), st.zeros((rows,), dtype="int64")
        return st.estimate(net, "adam", batch=batch, loss=F.cross_entropy).total_bytes

    assert total(most) <= 200_000 < total(most + 1)
    assert found.largest_batch(found.parameter_bytes) == 0


@pytest.mark.quick
def test_the_search_ends_between_two_sizes_that_were_tried_whatever_the_totals() -> None:
    def jump(size: int) -> int:
        return 100 + size * size // 7 + 1000 * (size > 300)

    def line(size: int) -> int:
        return 100 + 3 * size

    def doubling(size: int) -> int:
        return 2 ** min(size, 60)

    for total_of in (line, jump, doubling, lambda size: 100 + size // 64 * 64):
        for budget in (1, 99, 100, 103, 1099, 5000, 10**6):
            tried: list[int] = []

            def asked(size: int, of: Any = total_of, tried: list[int] = tried) -> int:
                tried.append(size)
                return int(of(size))

            found = largest(asked, budget, 8)
            assert (found == 0 or total_of(found) <= budget) and total_of(found + 1) > budget
            assert {found, found + 1} - {0} <= set(tried) and len(tried) < 50


# -- optimizers ----------------------------------------------------------------------------------------------
PER_PARAMETER = {
    "adam": 2, "adamw": 2, "sgd": 0, "lion": 1, "rmsprop": 1, "adamax": 2, "nadam": 2, "adagrad": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", PER_PARAMETER)
def test_bytes_of_state_are_the_optimizers_own(name: str) -> None:
    assert st.estimate(1000, name).optimizer_bytes // 4000 == PER_PARAMETER[name]
    found = st.estimate(net, name)
    assert found.optimizer_bytes // found.parameter_bytes == PER_PARAMETER[name]


def test_factored_state_of_a_number_of_parameters_is_that_of_large_ones() -> None:
    assert st.estimate(1e9, "adafactor").optimizer_bytes < 0.001 * 4e9


def test_groups_with_names_and_frozen_parameters_are_taken() -> None:
    model = Recurrent()
    optimizer = optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    found = st.estimate(model, optimizer)
    frozen = sum(p.nbytes for p in model.frozen.parameters())
    assert found.optimizer_bytes == found.gradient_bytes == found.parameter_bytes - frozen


def test_an_optimizer_with_a_step_of_its_own_is_asked_by_steps_on_a_small_parameter() -> None:
    class Averaged(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["mean"] = p.grad * 0.5
                    p.data = p.data - self.state[p]["mean"]

    class Growing(Averaged):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                self.state[p][len(self.state[p])] = p.grad * 1.0

    found = st.estimate(net, Averaged)
    assert found.optimizer_bytes == found.parameter_bytes
    with pytest.raises(AttributeValueError, match="grows from step to step"):
        st.estimate(net, Growing)
    with pytest.raises(AttributeValueError, match="cannot be planned"):
        st.estimate(net, Averaged, batch=st.ones((8, 64)))
    history = st.estimate(net, lambda p: optim.LBFGS(p, history_size=10))
    assert history.optimizer_bytes == 22 * history.parameter_bytes


# -- what it takes -------------------------------------------------------------------------------------------
def test_an_estimate_draws_nothing_and_is_the_same_in_any_mode() -> None:
    before = np.asarray(st.get_rng_state()).copy()
    st.estimate(Recurrent, batch=st.ones((8, 5, 16)))
    assert np.array_equal(st.get_rng_state(), before)
    with st.eager(), st.no_grad():
        within = st.estimate(net, "adam", batch=st.ones((8, 64)))
    assert within.total_bytes == st.estimate(net, "adam", batch=st.ones((8, 64))).total_bytes
    scaled = st.compile(lambda x: x * st.estimate(1e3).total_bytes)
    assert np.array_equal(scaled(st.ones(2)), [4000, 4000])


def test_inference_holds_no_gradients_and_a_compiled_module_is_its_module() -> None:
    found = st.estimate(st.compile(net()), batch=st.ones((8, 64)))
    assert found.gradient_bytes == found.optimizer_bytes == 0 and found.activation_bytes > 0
    assert "inference" in str(found)


def test_a_result_stands_for_the_loss_by_its_mean_where_there_is_none() -> None:
    found = st.estimate(net, "sgd", batch=st.ones((8, 64)))
    assert found.total_bytes > st.estimate(net, "sgd").total_bytes


WRONG: dict[str, tuple[Any, Any]] = {
    "no such optimizer": (lambda: st.estimate(net, "adm"), AttributeValueError),
    "no such precision": (lambda: st.estimate(net, precision="fp8"), AttributeValueError),
    "takes an optimizer": (lambda: st.estimate(net, 3), DTypeError),
    "takes a module": (lambda: st.estimate("gpt2"), DTypeError),
    "builds a module": (lambda: st.estimate(lambda: 3), DTypeError),
    "whole and not negative": (lambda: st.estimate(1.5), AttributeValueError),
    "whole number from 1": (lambda: st.estimate(net, ranks=0), AttributeValueError),
    "stage of ZeRO": (lambda: st.estimate(net, zero=4), AttributeValueError),
    "batch is of a model": (lambda: st.estimate(1e9, batch=st.ones(3)), AttributeValueError),
    "batch is a tensor": (lambda: st.estimate(net, batch="images"), DTypeError),
    "loss is a function": (lambda: st.estimate(net, batch=st.ones((8, 64)), loss=3), DTypeError),
    "without a batch": (lambda: st.estimate(net).largest_batch("1 GB"), CallOrderError),
    "other parameters": (lambda: st.estimate(net, optim.SGD(net().parameters())), AttributeValueError),
    "one size of axis 0": (
        lambda: st.estimate(net, batch=(st.ones((8, 64)), st.ones(3)), loss=lambda y, _: y.sum())
        .largest_batch("1 GB"), ShapeError,
    ),
    "not a size": (lambda: st.estimate(net).fits("lots"), AttributeValueError),
}  # fmt: skip


@pytest.mark.parametrize("rule", WRONG)
def test_what_cannot_be_estimated_is_refused_in_four_lines(rule: str) -> None:
    call, kind = WRONG[rule]
    with pytest.raises(kind, match=rule) as caught:
        call()
    assert "got:" in str(caught.value) and "test_estimate.py" in str(caught.value)
