"""State of optimizers: when a parameter has it, whose step count it is, how it is kept, copied and loaded."""

import collections
import copy
import pickle

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError, StratalError

COUNTED = {
    "adam": lambda p: optim.Adam(p, lr=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, amsgrad=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.1),
    "radam": lambda p: optim.RAdam(p, lr=0.1),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adamax": lambda p: optim.Adamax(p, lr=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "asgd": lambda p: optim.ASGD(p, lr=0.1, t0=2),
    "rprop": lambda p: optim.Rprop(p, lr=0.1),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "lamb": lambda p: optim.LAMB(p, lr=0.1),
}
STYLES = ["lazy", "compiled"]


def _parameters(*sizes):
    return [nn.Parameter(np.linspace(0.5, 1.5, n, dtype=np.float32)) for n in sizes]


def _step_of(optimizer, *used):
    def step():
        optimizer.zero_grad()
        sum((p**2).sum() for p in used).backward()
        optimizer.step()

    return step


def _maybe_compiled(step, style):
    return st.compile(step) if style == "compiled" else step


def _steps(optimizer):
    return {k: float(s["step"]) for k, s in optimizer.state_dict()["state"].items()}


def _loaded(blob):
    return pickle.loads(blob)  # noqa: S301, written here


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda x: _loaded(pickle.dumps(x))}


# -- kinds ---------------------------------------------------------------------------------------------------
KINDS = COUNTED | {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "lion": lambda p: optim.Lion(p, lr=0.1),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_a_state_dict_of_another_kind_of_optimizer_is_refused(name, stepped):
    p = _parameters(2)
    saver = KINDS[name](p)
    if stepped:
        _step_of(saver, *p)()
    saved = saver.state_dict()
    for other, make in KINDS.items():
        loader = make(_parameters(2))
        if other == name:
            loader.load_state_dict(saved)
            continue
        before = repr(loader.state_dict())
        try:
            loader.load_state_dict(saved)
        except StratalError as error:
            assert "another kind of optimizer" in str(error)
            assert repr(loader.state_dict()) == before
        else:
            _step_of(loader, *loader.param_groups[0]["params"])()
            needed = set(loader.state_dict()["state"].get(0, ()))
            assert not stepped or set(saved["state"][0]) >= needed, other


@pytest.mark.torch
def test_a_state_dict_of_another_kind_in_pytorch_is_refused():
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.ones(2))
    saver = torch.optim.Adam([p])
    (p * 2).sum().backward()
    saver.step()
    with pytest.raises(StratalError, match="another kind of optimizer"):
        optim.SGD(_parameters(2), momentum=0.9).load_state_dict(saver.state_dict())
    optim.Adam(_parameters(2)).load_state_dict(saver.state_dict())


# -- counts --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", COUNTED)
def test_a_parameter_that_never_has_a_gradient_changes_nothing_for_the_others(name, style):
    def train(extra):
        used, idle = _parameters(3, 2)
        optimizer = COUNTED[name]([used, idle] if extra else [used])
        step = _maybe_compiled(_step_of(optimizer, used), style)
        for _ in range(6):
            step()
        return used.numpy(), _steps(optimizer)

    (alone, count), (beside, counts) = train(False), train(True)
    np.testing.assert_array_equal(beside, alone)
    assert count == {0: 6} and counts[0] == 6
    assert counts.get(1, 0) == 0 and (1 in counts) == (name == "adagrad")


@pytest.mark.parametrize("style", STYLES)
def test_parameters_that_take_turns_have_counts_of_their_own(style):
    body, a, b = _parameters(2, 2, 2)
    optimizer = optim.Adam([body, a, b])
    steps = [_maybe_compiled(_step_of(optimizer, body, head), style) for head in (a, b, a, b)]
    for step in steps:
        step()
    assert _steps(optimizer) == {0: 4, 1: 2, 2: 2}


def test_several_steps_in_one_compiled_function_count_for_those_that_step():
    body, a, b = _parameters(2, 2, 2)
    optimizer = optim.Adam([body, a, b])
    step = st.compile(lambda: [_step_of(optimizer, body, head)() for head in (a, b, a)] and None)
    for k in range(1, 5):
        step()
        assert _steps(optimizer) == {0: 3 * k, 1: 2 * k, 2: k}
    assert step.captures == 2  # the first finds no state


def test_functions_that_step_other_parameters_of_one_optimizer_share_its_counts():
    a, b = _parameters(2, 3)
    optimizer = optim.Adam([a, b])
    both, first = st.compile(_step_of(optimizer, a, b)), st.compile(_step_of(optimizer, a))
    both(), both(), first(), both(), first(), first(), both()
    assert _steps(optimizer) == {0: 7, 1: 4}
    captures = both.captures, first.captures
    both(), first()
    assert (both.captures, first.captures) == captures and _steps(optimizer) == {0: 9, 1: 5}


def test_freezing_a_layer_midway_keeps_its_count():
    a, b = _parameters(2, 3)
    optimizer = optim.Adam([a, b])

    @st.compile
    def step():
        optimizer.zero_grad()
        ((a**2).sum() + (b**2).sum()).backward()
        optimizer.step()

    step(), step()
    b.requires_grad_(False)
    b.grad = None
    step(), step()
    b.requires_grad_(True)
    step()
    assert _steps(optimizer) == {0: 5, 1: 3}


@pytest.mark.parametrize("style", STYLES)
def test_a_count_can_be_read_and_written_without_changing_another(style):
    a, b = _parameters(2, 3)
    optimizer = optim.Adam([a, b])
    step = _maybe_compiled(_step_of(optimizer, a, b), style)
    step(), step()
    count = optimizer.state[a]["step"]
    count.zero_()
    assert _steps(optimizer) == {0: 0, 1: 2} and optimizer.state[a]["step"] is count
    step()
    assert _steps(optimizer) == {0: 1, 1: 3} and float(count) == 1
    optimizer.state[b]["step"] = 10
    optimizer.state[b]["exp_avg"] = st.zeros(3)
    step()
    assert _steps(optimizer) == {0: 2, 1: 11}
    np.testing.assert_allclose(optimizer.state[b]["exp_avg"].numpy(), 0.1 * b.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("reset", [lambda o: o.state.clear(), lambda o: setattr(o, "state", {})])
def test_an_optimizer_whose_state_is_dropped_starts_anew(style, reset):
    (w,) = _parameters(3)
    optimizer = optim.Adam([w])
    step = _maybe_compiled(_step_of(optimizer, w), style)
    step(), step()
    reset(optimizer)
    assert optimizer.state_dict()["state"] == {}
    step()
    assert _steps(optimizer) == {0: 1}


# -- when there is state -------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
def test_there_is_state_from_the_first_step_with_a_gradient_on(style):
    a, b = _parameters(2, 3)
    optimizer = optim.SGD([a, b], lr=0.1, momentum=0.9)
    assert optimizer.state_dict()["state"] == {} and optimizer.state_bytes == 20  # planned all the same
    _maybe_compiled(_step_of(optimizer, a), style)()
    assert list(optimizer.state_dict()["state"]) == [0]


def test_a_failed_capture_leaves_no_state():
    (w,) = _parameters(3)
    optimizer = optim.Adam([w])

    @st.compile
    def step():
        (w**2).sum().backward()
        optimizer.step()
        return bool(w.sum() > 0)

    with pytest.raises(CaptureError):
        step()
    assert optimizer.state_dict()["state"] == {} and w.grad is None


@pytest.mark.parametrize("style", STYLES)
def test_a_function_that_raises_after_a_step_has_taken_it(style):
    (w,) = _parameters(3)
    optimizer = optim.Adam([w])

    def step():
        (w**2).sum().backward()
        optimizer.step()
        raise KeyError("after the step")

    with pytest.raises(KeyError):
        _maybe_compiled(step, style)()
    assert _steps(optimizer) == {0: 1} and w.grad is not None


@pytest.mark.parametrize("style", STYLES)
def test_a_first_step_that_overflows_leaves_no_state(style):
    (w,) = _parameters(3)
    optimizer, scaler = optim.ASGD([w], lr=0.1), st.amp.GradScaler(init_scale=4.0)

    def step(x):
        optimizer.zero_grad()
        scaler.scale((w * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    run = _maybe_compiled(step, style)
    run(st.tensor(np.inf))
    for _ in range(2):  # whoever looks for it does not make it
        assert w not in optimizer.state and optimizer.state.get(w) is None and len(optimizer.state) == 0
        assert [state["step"] for state in optimizer.state.values()] == []
        assert optimizer.state_dict()["state"] == {}
    optimizer.param_groups[0]["lr"] = 0.5  # the first step that is taken has this rate
    run(st.tensor(1.0))
    np.testing.assert_allclose(w.numpy(), np.linspace(0.5, 1.5, 3) * (1 - 5e-5) - 0.5, atol=1e-7)
    assert _steps(optimizer) == {0: 1}


@pytest.mark.parametrize("make", [optim.ASGD, optim.Rprop])
def test_a_schedule_made_after_the_optimizer_rules_its_first_step(make):
    (w,) = _parameters(3)
    optimizer = make([w], lr=1.0)
    optim.lr_scheduler.LinearLR(optimizer, 0.25)
    _step_of(optimizer, w)()
    (v,) = _parameters(3)
    _step_of(make([v], lr=0.25), v)()
    np.testing.assert_array_equal(w.numpy(), v.numpy())


# -- dtypes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("when", [0, 3])
def test_state_follows_the_dtype_of_its_parameter(style, when):
    net = nn.Linear(3, 2)
    optimizer = optim.Adam(net.parameters())

    def train():
        optimizer.zero_grad()
        (net(st.ones(4, 3, dtype=net.weight.dtype)) ** 2).sum().backward()
        optimizer.step()

    step = _maybe_compiled(train, style)
    for _ in range(when):
        step()
    net.double()
    net.zero_grad()
    for _ in range(3):
        step()
    dtypes = {n: v.dtype for n, v in optimizer.state_dict()["state"][0].items()}
    assert dtypes == {"step": st.float32, "exp_avg": st.float64, "exp_avg_sq": st.float64}
    assert _steps(optimizer) == {0: when + 3, 1: when + 3}


def test_scalars_of_half_precision_parameters_are_kept_in_float32():
    w = nn.Parameter(np.ones(3, np.float16))
    optimizer = optim.NAdam([w])
    _step_of(optimizer, w)()
    state = optimizer.state_dict()["state"][0]
    assert state["mu_product"].dtype is st.float32 and state["exp_avg"].dtype is st.float16
    assert w.dtype is st.float16


# -- copies and state dicts ----------------------------------------------------------------------------------
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", [*COUNTED, "sgd", "betas"])
def test_a_copy_goes_on_to_the_bit_and_leaves_the_original_alone(name, how):
    a, b = _parameters(3, 2)
    if name == "sgd":
        optimizer = optim.SGD([{"params": [a], "lr": 0.2}, {"params": [b]}], 0.1, 0.9, dampening=0.5)
    else:
        optimizer = (COUNTED[name] if name in COUNTED else COUNTED["adam"])([a, b])
    if name == "betas":
        optimizer.param_groups[0]["betas"] = (0.8, 0.99)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    _step_of(optimizer, a, b)(), _step_of(optimizer, a)(), schedule.step()
    optimizer.zero_grad()
    (a2, b2), other, schedule2 = COPIES[how](((a, b), optimizer, schedule))
    before = a.numpy().copy()
    for _ in range(2):
        _step_of(other, a2, b2)(), schedule2.step()
    np.testing.assert_array_equal(a.numpy(), before)
    for _ in range(2):
        _step_of(optimizer, a, b)(), schedule.step()
    np.testing.assert_array_equal(a2.numpy(), a.numpy())
    np.testing.assert_array_equal(b2.numpy(), b.numpy())
    assert schedule2.get_last_lr() == schedule.get_last_lr() and schedule2.optimizer is other


@pytest.mark.parametrize("how", COPIES)
def test_hooks_stay_with_the_original(how):
    (w,) = _parameters(2)
    optimizer = optim.SGD([w], 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    other = COPIES[how]([w, optimizer])[1] if how == "deepcopy" else copy.copy(optimizer)
    assert not any(other._hooks.values()) and any(optimizer._hooks.values())
    other.register_step_pre_hook(lambda *_: None)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(
    "make",
    [
        lambda o: optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
        lambda o: optim.lr_scheduler.SequentialLR(
            o, [optim.lr_scheduler.ConstantLR(o), optim.lr_scheduler.StepLR(o, 2)], [2]
        ),
        lambda o: optim.swa_utils.SWALR(o, 0.1),
        lambda o: optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
        lambda o: optim.swa_utils.AveragedModel(
            nn.Linear(2, 2), multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9)
        ),
        lambda o: st.amp.GradScaler(),
    ],
)
def test_schedules_averages_and_scalers_can_be_copied(make, how):
    (w,) = _parameters(2)
    made = make(optim.SGD([w], 0.1, momentum=0.5))
    other = COPIES[how](made)
    mine, its = made.state_dict(), other.state_dict()
    assert mine.keys() == its.keys() and repr(mine) == repr(its)


def test_loading_replaces_state_and_groups():
    a, b = _parameters(2, 3)
    optimizer = optim.Adam([a, b], lr=0.1)
    _step_of(optimizer, a)(), _step_of(optimizer, a)()
    saved = optimizer.state_dict()
    saved["param_groups"][0]["mine"] = [1]
    other = optim.Adam([a, b], lr=0.5)
    optim.lr_scheduler.StepLR(other, 1)
    _step_of(other, a, b)()
    other.load_state_dict(saved)
    assert list(other.state_dict()["state"]) == [0] and _steps(other) == {0: 2}
    assert other.param_groups[0]["lr"] == 0.1 and other.param_groups[0]["mine"] == [1]
    assert "initial_lr" not in other.param_groups[0]  # none was saved
    optimizer.zero_grad()
    _step_of(optimizer, a)()
    assert _steps(other) == {0: 2}


def test_a_compiled_step_goes_on_with_what_was_loaded():
    (w,) = _parameters(3)
    optimizer = optim.Adam([w], lr=0.1)
    step = st.compile(_step_of(optimizer, w))
    step(), step()
    saved, value = optimizer.state_dict(), w.detach().clone()
    step(), step()
    after = w.numpy().copy()
    optimizer.load_state_dict(saved)
    with st.no_grad():
        w.copy_(value)
    step(), step()
    np.testing.assert_array_equal(w.numpy(), after)
    assert _steps(optimizer) == {0: 4}


def test_dampening_begins_with_the_second_step_of_loaded_state_too():
    def trained(reload):
        (w,) = _parameters(3)
        optimizer = optim.SGD([w], lr=0.1, momentum=0.9, dampening=0.5)
        _step_of(optimizer, w)()
        if reload:
            saved = optimizer.state_dict()
            assert set(saved["state"][0]) == {"momentum_buffer"}
            optimizer = optim.SGD([w], lr=0.1, momentum=0.9, dampening=0.5)
            optimizer.load_state_dict(saved)
        _step_of(optimizer, w)()
        return w.numpy()

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.torch
def test_state_in_bfloat16_loads_from_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([theirs])
    theirs.grad = torch.ones_like(theirs)
    optimizer.step()
    ours = optim.Adam([nn.Parameter(st.ones(3, dtype=st.bfloat16))])
    ours.load_state_dict(optimizer.state_dict())
    state = ours.state_dict()["state"][0]
    assert state["exp_avg"].dtype is st.bfloat16 and float(state["step"]) == 1
    np.testing.assert_allclose(state["exp_avg"].float().numpy(), 0.1, rtol=1e-2)


# -- groups --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
def test_a_rate_that_is_a_tensor_is_read_where_it_stands(style):
    (w,) = _parameters(3)
    rate = st.tensor(0.5)
    optimizer = optim.SGD([w], lr=rate)
    step = _maybe_compiled(_step_of(optimizer, w), style)
    step()
    rate.fill_(0.25)
    step()
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    schedule.step()
    step()
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == 0.125
    np.testing.assert_allclose(w.numpy(), np.linspace(0.5, 1.5, 3) * 0 * 0.5 * 0.75, atol=1e-7)


def test_a_group_hears_of_every_way_to_change_a_dict():
    (w,) = _parameters(3)
    optimizer = optim.SGD([w], lr=0.5)
    step = st.compile(_step_of(optimizer, w))
    step()  # to zero
    with st.no_grad():
        w.fill_(1.0)
    group = optimizer.param_groups[0]
    group |= {"lr": 0.25}
    step()
    np.testing.assert_array_equal(w.numpy(), 0.5)
    group.update(lr=0.125)
    step()
    np.testing.assert_array_equal(w.numpy(), 0.375)
    assert group.pop("maximize") is False and "maximize" not in group and group.pop("no such", 3) == 3


def test_names_of_parameters_are_kept_in_their_group():
    net = nn.Linear(2, 2)
    optimizer = optim.SGD(net.named_parameters(), lr=0.1)
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    other = optim.SGD(net.parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["param_names"] == ["weight", "bias"]
    optimizer.load_state_dict(optim.SGD(net.parameters(), lr=0.1).state_dict())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (lambda p: [p * 2], "can only optimise leaves"),
        (lambda p: [{"params": {p}}], "need an order"),
        (lambda p: [("w", p), nn.Parameter(np.ones(1))], "all parameters have names"),
    ],
)
def test_parameters_that_cannot_be_optimised_are_refused(params, says):
    (w,) = _parameters(2)
    with pytest.raises(StratalError, match=says):
        optim.SGD(params(w), lr=0.1)


def test_an_optimizer_with_a_step_of_its_own_keeps_plain_dicts():
    class Slowing(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @st.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["sum"] = 0, st.zeros_like(p)
                    state["step"] += 1
                    state["sum"] += p.grad
                    p.sub_(state["sum"], alpha=group["lr"] / state["step"])

    (w,) = _parameters(3)
    optimizer = Slowing([w], lr=0.1)
    step = _step_of(optimizer, w)
    step(), step()
    assert isinstance(optimizer.state, collections.defaultdict)
    saved = optimizer.state_dict()
    assert saved["state"][0]["step"] == 2 and set(saved["state"][0]) == {"step", "sum"}
    other = Slowing([w], lr=0.5)
    other.load_state_dict(saved)
    assert other.state[w]["step"] == 2 and other.param_groups[0]["lr"] == 0.1
    np.testing.assert_array_equal(other.state[w]["sum"].numpy(), optimizer.state[w]["sum"].numpy())
    scaler = st.amp.GradScaler(init_scale=2.0)
    optimizer.zero_grad()
    scaler.scale((w * np.inf).sum()).backward()
    scaler.step(optimizer)
    assert optimizer.state[w]["step"] == 2


def test_hooks_do_not_hear_of_a_step_that_a_scaler_skips():
    (w,) = _parameters(3)
    optimizer, scaler, heard = optim.Adam([w]), st.amp.GradScaler(init_scale=2.0), []
    optimizer.register_step_post_hook(lambda *_: heard.append(1))
    for scale in (np.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((w * scale).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert heard == [1] and _steps(optimizer) == {0: 1}
