"""What a compiled function reads of an optimizer's groups is what they hold at each call."""

import copy

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import CaptureError

READS = {
    "entry": lambda o: o.param_groups[0]["lr"],
    "in a dict": lambda o: {"lr": o.param_groups[0]["lr"]},
    "in nested containers": lambda o: {"a": [o.param_groups[0]["lr"], {"b": 2}]},
    "dict of a group": lambda o: dict(o.param_groups[0])["lr"],
    "items": lambda o: {k: v for k, v in o.param_groups[0].items() if k != "params"},
    "unpacked": lambda o: {**o.param_groups[0]}["lr"],
    "groups of a state dict": lambda o: o.state_dict()["param_groups"],
    "group of a state dict": lambda o: o.state_dict()["param_groups"][0],
    "number of a state dict": lambda o: o.state_dict()["param_groups"][0]["lr"],
    "repr": repr,
    "rates of a new schedule": lambda o: optim.lr_scheduler.ExponentialLR(o, 0.5).get_lr(),
    "deep copy": lambda o: copy.deepcopy(o).param_groups[0]["lr"],
    "float": lambda o: float(o.param_groups[0]["lr"]),
    "text": lambda o: f"{o.param_groups[0]['lr']:.5f} {o.param_groups[0].get('betas')}",
    "isinstance": lambda o: isinstance(o.param_groups[0]["lr"], float),
    "arithmetic": lambda o: o.param_groups[0]["lr"] * 2 + 1,
}


def _calls(read, kind, compiled, audit):
    p = nn.Parameter(np.linspace(0.5, 1.5, 4))
    optimizer = getattr(optim, kind)([p], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        ((p * x) ** 2).sum().backward()
        optimizer.step()
        return read(optimizer)

    run = st.compile(step, audit=audit) if compiled else step
    for k in range(6):
        found = run(st.tensor(np.full(4, 1 + k / 8)))
        yield repr(found), repr(optimizer.param_groups[0]["lr"]), [round(x, 10) for x in p.tolist()]
        optimizer.param_groups[0]["lr"] *= 0.9
        if k > 2 and "betas" in optimizer.param_groups[0]:
            optimizer.param_groups[0]["betas"] = (0.9 - k / 100, 0.99)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("audit", [True, False], ids=["audited", "not audited"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", READS)
def test_what_is_read_of_a_group_is_what_it_holds(name, kind, audit):
    wanted = list(_calls(READS[name], kind, False, audit))
    try:
        found = list(_calls(READS[name], kind, True, audit))
    except CaptureError:
        assert name == "rates of a new schedule"
        return
    assert found == wanted


def _hand_on(o, other):
    other.param_groups[0]["lr"] = o.param_groups[0]["lr"]


WRITES = {
    "own state dict": lambda o, other: o.load_state_dict(o.state_dict()),
    "state dict": lambda o, other: other.load_state_dict(o.state_dict()),
    "entry": _hand_on,
    "update": lambda o, other: other.param_groups[0].update(lr=o.param_groups[0]["lr"] * 2),
    "items": lambda o, other: other.param_groups[0].update(
        {k: v for k, v in o.param_groups[0].items() if k != "params"}
    ),
}


@pytest.mark.parametrize("audit", [True, False], ids=["audited", "not audited"])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_handed_from_group_to_group_is_right_or_refused(name, kind, audit):
    def calls(compiled):
        p, q = (nn.Parameter(np.linspace(0.5, 1.5, 4)) for _ in range(2))
        o, other = getattr(optim, kind)([p], lr=0.1), getattr(optim, kind)([q], lr=0.5)

        def step(x):
            o.zero_grad()
            ((p * x) ** 2).sum().backward()
            o.step()
            WRITES[name](o, other)

        run = st.compile(step, audit=audit) if compiled else step
        for k in range(6):
            run(st.tensor(np.full(4, 1 + k / 8)))
            rates = [float(opt.param_groups[0]["lr"]) for opt in (o, other)]
            yield rates, [round(x, 10) for x in p.tolist()]
            o.param_groups[0]["lr"] *= 0.9

    wanted = list(calls(False))
    try:
        assert list(calls(True)) == wanted
    except CaptureError:
        assert name == "update" or (kind == "Adam" and "state dict" in name)
