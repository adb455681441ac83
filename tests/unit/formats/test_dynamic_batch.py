"""Saved models take any batch size, unless they were told otherwise or their Python asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn
from stratal.base.errors import FormatError, ShapeError
from stratal.formats.container import read_container, write_container
from stratal.nn import functional as F


class Of(nn.Module):
    """A model of a function and parts."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def heads(m: Any, x: Any) -> Any:
    return x.reshape(x.shape[0], -1, 2, 4).transpose(1, 2).reshape(x.shape[0] * 2, -1)


MODELS: dict[str, Callable[[], Any]] = {
    "layers": lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3)),
    "images": lambda: Of(
        lambda m, x: m.norm(m.conv(x.reshape(-1, 1, 6, 8))).mean((2, 3)), conv=nn.Conv2d(1, 2, 3, stride=2),
        norm=nn.BatchNorm2d(2),
    ),
    "recurrent": lambda: Of(lambda m, x: m.lstm(x)[0][:, -1], lstm=nn.LSTM(8, 4, batch_first=True)),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "batch and length joined": lambda: Of(lambda m, x: m.linear(x.reshape(-1, 8)), linear=nn.Linear(8, 2)),
    "heads in the batch": lambda: Of(heads),
    "whole batch": lambda: Of(lambda m, x: (x - x.mean(0)) / x.shape[0]),
    "pairs of rows": lambda: Of(lambda m, x: x.reshape(x.shape[0], 48) @ x.reshape(-1, 48).T),
    "size in the result": lambda: Of(
        lambda m, x: (x.sum(), st.zeros(x.shape[0], 2) + x.mean((1, 2))[:, None])
    ),
    "squeezed": lambda: Of(lambda m, x: x.sum(2).squeeze()),
    "in order": lambda: Of(lambda m, x: st.sort(x, 0, True)[0]),
}  # fmt: skip


def bits(found: Any) -> Any:
    return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]


def rows(n: int) -> Any:
    return np.random.default_rng(n).standard_normal((n, 6, 8)).astype(np.float32)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("saved", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_takes_any_batch_size(tmp_path: Path, name: str, saved: int) -> None:
    st.manual_seed(0)
    net = MODELS[name]().eval()
    st.save(net, tmp_path / "net.stratal", inputs=rows(saved))
    loaded = st.load(tmp_path / "net.stratal")
    st.save(loaded, tmp_path / "again", options={"epoch": 1})
    for n in (1, 2, 3, 4, 9, 13):
        want = bits(net(st.tensor(rows(n))))
        for got in (bits(loaded(rows(n))), bits(st.load(tmp_path / "again")(rows(n)))):
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, 1e-4, 1e-5)


ASKING: dict[str, Callable[..., Any]] = {
    "a branch": lambda m, x: x * 2 if len(x) > 3 else x,
    "a loop": lambda m, x: st.stack([x[k] * k for k in range(len(x))]),
    "a float": lambda m, x: x * (1.0 / float(x.shape[0])),
    "an array": lambda m, x: x + st.tensor(np.arange(x.shape[0], dtype=np.float32))[:, None, None],
    "text": lambda m, x: x * len(f"{x.shape[0]:d}"),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_model_whose_python_asks_for_the_batch_size_is_saved_for_that_of_the_sample(
    tmp_path: Path, name: str
) -> None:
    net = Of(ASKING[name])
    st.save(net, tmp_path / "net", inputs=rows(4))
    loaded = st.load(tmp_path / "net")
    np.testing.assert_allclose(loaded(rows(4)).numpy(), net(st.tensor(rows(4))).numpy(), 1e-6)
    with pytest.raises(ShapeError, match="does not ask its size"):
        loaded(rows(5))


def test_a_batch_axis_is_that_of_all_inputs(tmp_path: Path) -> None:
    net = Of(lambda m, x, y: F.softmax(x @ y.transpose(1, 2), -1).sum(0))
    st.save(net, tmp_path / "net", inputs=(rows(3), rows(3)))
    loaded = st.load(tmp_path / "net")
    want = net(st.tensor(rows(7)), st.tensor(rows(7)))
    np.testing.assert_allclose(loaded(rows(7), rows(7)).numpy(), want.numpy(), 1e-4)
    with pytest.raises(ShapeError):
        loaded(rows(7), rows(6))
    other = Of(lambda m, x, y: x * y.sum())
    st.save(other, tmp_path / "other", inputs=(rows(3), rows(2)))
    with pytest.raises(ShapeError):
        st.load(tmp_path / "other")(rows(4), rows(2))


def test_a_batch_of_one_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    net = Of(lambda m, x: x.sum(2).squeeze().reshape(-1, 6)[1:].sum(0) + x[1, 0, 0])
    st.save(net, tmp_path / "net", inputs=rows(3))
    loaded = st.load(tmp_path / "net")
    np.testing.assert_allclose(loaded(rows(2)).numpy(), net(st.tensor(rows(2))).numpy(), 1e-5)
    with pytest.raises(ShapeError, match="2 rows or more"):
        loaded(rows(1))


def test_one_batch_size_alone_is_saved_where_that_is_asked_for(tmp_path: Path) -> None:
    net = MODELS["layers"]()
    st.save(net, tmp_path / "net", inputs=rows(4), dynamic_batch=False)
    assert "batches.json" not in read_container(tmp_path / "net")
    with pytest.raises(ShapeError):
        st.load(tmp_path / "net")(rows(5))


def test_graphs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    forms = {}
    for name in ("layers", "whole batch"):
        st.save(MODELS[name](), tmp_path / name, inputs=rows(4))
        forms[name] = json.loads(bytes(read_container(tmp_path / name)["batches.json"]))
    own, others = forms["layers"], forms["whole batch"]
    assert set(own) == {"1", "9"}
    files = {key: [bytes(data)] for key, data in read_container(tmp_path / "layers").items()}
    wrong_forms: list[Any] = [others, [], {"9": own["9"] | {"outputs": [0]}}]
    wrong_forms += [{key: own["9"]} for key in ("4", "7", "x")] + [{"1": own["1"]}]
    for wrong in wrong_forms:
        write_container(tmp_path / "wrong", files | {"batches.json": [json.dumps(wrong).encode()]})
        with pytest.raises(FormatError):
            st.load(tmp_path / "wrong")
    write_container(tmp_path / "fixed", {key: data for key, data in files.items() if key != "batches.json"})
    with pytest.raises(ShapeError):
        st.load(tmp_path / "fixed")(rows(5))
