"""Checkpoints: nests of dicts, lists, numbers and tensors come back as they were, or are refused by name."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import FormatError
from stratal.formats import container
from stratal.formats.document import unpack
from stratal.formats.files import FileWriteError


def same(a: Any, b: Any) -> bool:
    """Whether two nests are equal: types of containers and numbers, NaNs, bits and dtypes of tensors."""
    if isinstance(a, st.Tensor) or isinstance(b, st.Tensor):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))


def trained(steps: int) -> tuple[Any, Any]:
    st.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    opt = optim.Adam(net.parameters(), lr=0.01)
    train(net, opt, range(steps))
    return net, opt


def train(net: Any, opt: Any, steps: range) -> None:
    for k in steps:
        x = st.tensor(np.random.default_rng(k).random((8, 4), np.float32))
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()


@pytest.mark.parametrize("name", ["last.stratal", "last"])
def test_what_users_of_pytorch_save_comes_back_and_training_goes_on(tmp_path: Path, name: str) -> None:
    whole, opt = trained(6)
    net, opt = trained(3)
    saved = {"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3, "best": 0.5}
    st.save(saved, tmp_path / name)
    found = st.load(tmp_path / name)
    assert same(found, saved)

    net, opt = trained(0)
    net.load_state_dict(found["model"])
    opt.load_state_dict(found["optimizer"])
    train(net, opt, range(3, 6))
    assert same(net.state_dict(), whole.state_dict())


NESTS: list[Any] = [
    [st.arange(3), 1],
    (1, (2.5, [None, True]), "text"),
    {3: st.zeros(2)},
    {"a": {"b": st.ones(1)}, "a.b": st.zeros(1), "$x": 1},
    {"__metadata__": st.ones(2), "n": 1},
    {(1, "k"): [], None: {}, 2.5: ()},
    [math.nan, math.inf, -math.inf, -0.0, 2**70, 5e-324],
    [st.zeros((0, 3)), st.tensor(2.0), st.ones(2, dtype="bfloat16"), st.tensor([1 + 2j]), st.tensor([True])],
    [],
    {},
    {"epoch": 3},
    {"z": st.ones(2), "a": st.zeros(1), "": st.zeros(1)},
    nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict(),
]


@pytest.mark.parametrize("nest", NESTS, ids=range(len(NESTS)))
def test_nests_come_back_equal(tmp_path: Path, nest: Any) -> None:
    st.save(nest, tmp_path / "n.stratal")
    assert same(st.load(tmp_path / "n.stratal"), nest)


def test_parameters_and_arrays_come_back_as_tensors(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    st.save({"w": [net.weight, np.arange(3), np.float64(0.5)]}, tmp_path / "n.stratal")
    weight, row, half = st.load(tmp_path / "n.stratal")["w"]
    assert same(weight, net.weight.detach()) and row.tolist() == [0, 1, 2] and half == 0.5
    assert not weight.requires_grad


class Moments(NamedTuple):
    mean: Any
    count: int


def test_named_tuples_come_back_as_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    st.save({"opt": [Moments(st.ones(2), 3), (1, 2)]}, tmp_path / "n.stratal")
    found, plain = st.load(tmp_path / "n.stratal")["opt"]
    assert type(found) is Moments and found.count == 3 and found.mean.tolist() == [1, 1]
    assert type(plain) is tuple
    monkeypatch.delitem(globals(), "Moments")
    with pytest.raises(FormatError, match=r"(?s)class is not there.*Moments.*import the module"):
        st.load(tmp_path / "n.stratal")


@pytest.mark.parametrize(
    ("name", "items"),
    [*((name, [1, 2]) for name in ("os:system", "builtins:tuple", "nowhere:X", ":", "sys:modules")),
     (f"{__name__}:Moments", [1])],
)  # fmt: skip
def test_no_other_class_is_made_of_a_file(name: str, items: list[int]) -> None:
    with pytest.raises(FormatError, match="class is not there"):
        unpack({"$class": name, "$tuple": items}, {})


def test_a_named_tuple_of_a_class_inside_a_function_is_refused(tmp_path: Path) -> None:
    class Inside(NamedTuple):
        a: int

    with pytest.raises(FormatError, match=r"(?s)x is a named tuple whose class.*_asdict"):
        st.save({"x": Inside(1)}, tmp_path / "n")


def cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


REFUSED: list[tuple[Any, str]] = [
    ({"model": {"w": st.ones(1)}, "hooks": [1, abs]}, "save: hooks.1 is of a type"),
    ({"optimizer": {"state": {0: {"x": object()}}}}, "save: optimizer.state.0.x is of a type"),
    ({"net": nn.Linear(1, 1)}, r"(?s)save: net is of a type.*save its state_dict\(\)"),
    ({"a": {1, 2}}, "save: a is of a type"),
    ({"a": {b"k": 1}}, "save: a has a key"),
    ({"a": {np.int64(3): 1}}, r"(?s)save: a has a key.*int\(key\)"),
    ({"a": 1 << 5000}, "(?s)save: a is of a type.*5001 bits"),
    ({"a": np.array([abs])}, "'a' has a dtype"),
    ({"a": "\ud800", "b": 1}, "no Unicode"),
    (cycle(), "(?s)nested too deep.*hold itself"),
]


@pytest.mark.parametrize(("nest", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_files_do_not_hold_is_named_and_the_old_file_stays(tmp_path: Path, nest: Any, says: str) -> None:
    path = tmp_path / "n.stratal"
    st.save({"epoch": 1}, path)
    with pytest.raises(FormatError, match=says):
        st.save(nest, path)
    assert st.load(path) == {"epoch": 1}
    assert os.listdir(tmp_path) == ["n.stratal"]


@pytest.mark.parametrize("name", ["n.stratal", "n"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_loses_nothing_of_the_old_file(
    tmp_path: Path, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    st.save({"epoch": 1, "w": [st.ones(3)]}, tmp_path / name)

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileWriteError if isinstance(error, OSError) else KeyboardInterrupt):
        st.save({"epoch": 2, "w": [st.zeros(3)]}, tmp_path / name)
    monkeypatch.undo()
    assert same(st.load(tmp_path / name), {"epoch": 1, "w": [st.ones(3)]})


def test_a_checkpoint_takes_no_further_arguments(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds all there is"):
        st.save({"epoch": 1}, tmp_path / "n", options={"lr": 1.0})


def test_files_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "n.stratal"
    for files in ({"checkpoint.json": [b"1"]}, {"checkpoint.json": [b"[1"], "checkpoint.safetensors": [b""]}):
        container.write_container(path, files)
        with pytest.raises(FormatError):
            st.load(path)
    st.save({"epoch": 1}, path)
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), 7):
        broken = bytes(data[:place]) + bytes([data[place] ^ 1]) + bytes(data[place + 1 :])
        path.write_bytes(broken)
        with pytest.raises(FormatError):
            st.load(path)


def test_an_error_about_a_list_that_holds_itself_is_short() -> None:
    with pytest.raises(st.StratalError) as caught:
        st.linspace(cycle(), 1)
    assert len(str(caught.value)) < 1000
