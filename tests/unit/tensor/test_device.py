"""Devices: scripts that choose one run on the CPU; another is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import stratal as st
from stratal import nn


def test_a_script_that_chooses_a_device_runs_as_it_is() -> None:
    device = st.device("cuda" if st.cuda.is_available() else "cpu")
    net = nn.Linear(2, 3, device=device).to(device)
    x = st.ones(4, 2, device=device).to(device, st.float32)
    y = net(x).to(device)
    assert y.device == device == "cpu" and y.device.type == "cpu" and st.cuda.device_count() == 0
    assert (
        isinstance(y.device, st.device)
        and nn.Linear(2, 3, True, device, st.float64).weight.dtype == st.float64
    )


def test_a_device_is_a_value() -> None:
    device = st.device("cpu", 0)
    assert device == st.device("cpu:0") == "cpu" and (device.type, device.index) == ("cpu", 0)
    assert repr(st.device("cpu")) == "device(type='cpu')" and repr(device) == "device(type='cpu', index=0)"
    assert {device: 1}["cpu"] == 1
    stored = pickle.loads(pickle.dumps(device))  # noqa: S301, written here
    for again in (copy.deepcopy(device), stored):
        assert repr(again) == repr(device)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "cpu:1", "cpu:x"])
def test_other_devices_are_refused_wherever_they_are_named(name: str) -> None:
    net = nn.Linear(2, 2)
    calls: list[Any] = [
        lambda: st.device(name),
        lambda: st.ones(2, device=name),
        lambda: st.ones(2).to(name),
        lambda: st.ones(2).cuda(),
        lambda: net.cuda(),
        lambda: net.to(name),
        lambda: net.to(device=name),
        lambda: nn.Linear(2, 2, device=name),
        lambda: nn.LSTM(2, 2, device=name),
        lambda: nn.Conv2d(1, 1, 1, 1, 0, 1, 1, True, "zeros", name),
    ]
    for call in calls:
        with pytest.raises(st.StratalError, match="only the CPU is here"):
            call()


def test_what_is_no_device_is_refused() -> None:
    for bad in ("fpga", "", 3, None):
        with pytest.raises(st.StratalError, match="a kind of device"):
            st.device(bad)
