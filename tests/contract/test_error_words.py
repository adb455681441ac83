"""What errors say: the function or layer that was called, the argument, and what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim

F = nn.functional
WIDE = st.tensor(np.ones((2, 2, 6, 6)))
NAMES = [
    (lambda: nn.Conv2d(2, 2, 3)(WIDE), "Conv2d: operands differ in dtype", "x.float()"),
    (lambda: F.conv2d(WIDE, st.ones(2, 2, 3, 3)), "conv2d: operands differ in dtype", "x.float()"),
    (lambda: nn.BatchNorm2d(2)(WIDE), "batch_norm: operands differ in dtype", "x.float()"),
    (lambda: nn.Linear(6, 2)(WIDE), "linear: operands differ in dtype", "x.float()"),
    (lambda: nn.MaxPool2d(9)(WIDE), "MaxPool2d: the window is larger", ""),
    (lambda: F.max_pool2d(WIDE, 9), "max_pool2d: the window is larger", ""),
    (lambda: F.avg_pool2d(WIDE, 9), "avg_pool2d: the window is larger", ""),
    (lambda: st.ones(2, 3).permute(0, 0), "permute: an axis is named twice", ""),
    (lambda: st.permute(st.ones(2, 3), (0, 5)), "permute: axis out of range", ""),
    (lambda: st.gather(st.ones(2, 3), 0, st.ones(2, 3)), "gather: indices must be integers", ""),
    (lambda: st.gather(st.ones(2, 3), 0, st.ones(2, 4).long()), "gather: the index is larger", ""),
    (lambda: st.take_along_axis(st.ones(2), st.ones(2), 0), "take_along_axis: indices must be", ""),
    (lambda: F.nll_loss(st.zeros(2, 3), st.tensor([0, 7])).item(), "nll_loss: index out of range", ""),
    (lambda: nn.Linear(3, 2)(np.ones(3)), "'input' must be a tensor", "st.tensor(x)"),
    (lambda: nn.Linear(3, 2)([1.0, 2.0, 3.0]), "'input' must be a tensor", "st.tensor(x)"),
    (lambda: optim.Adam(nn.Linear(1, 1).parameters(), learning_rate=0.1), "Adam: an option", "mean lr?"),
    (lambda: optim.SGD(nn.Linear(1, 1).parameters(), momentun=0.1), "SGD: an option", "mean momentum?"),
    (lambda: nn.Linear(1, 1).foward(1), "has no attribute 'foward'", "did you mean forward?"),
    (lambda: nn.Linear(1, 1).wieght, "has no attribute 'wieght'", "did you mean weight?"),
    (lambda: f"{st.ones(2):.2f}", "format: numbers are formatted one by one", "x.mean()"),
]


@pytest.mark.parametrize("case", NAMES, ids=[f"{k} {c[1]}" for k, c in enumerate(NAMES)])
def test_an_error_names_what_was_called_and_what_to_do(case) -> None:
    call, rule, hint = case
    with pytest.raises(st.StratalError) as caught:
        call()
    assert rule in str(caught.value) and hint in str(caught.value)
    assert str(caught.value).splitlines()[-1].startswith("  hint:")


def test_an_error_of_a_users_function_keeps_its_name() -> None:
    with pytest.raises(st.StratalError, match="matmul") as caught:
        st.vmap(lambda x: x @ st.ones(5))(st.ones(2, 3))
    assert not str(caught.value).startswith("vmap")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: nn.Conv2d(1, 2), "Conv2d.__init__() missing 1 required positional argument: 'kernel_size'"),
        (lambda: nn.MaxPool2d(), "MaxPool2d.__init__() missing"),
        (lambda: st.metrics.Accuracy(), "Accuracy.__init__() missing"),
        (lambda: nn.Linear(3), "Linear.__init__() missing"),
        (lambda: nn.CrossEntropyLoss(wieght=1), "CrossEntropyLoss.__init__() got an unexpected keyword"),
    ],
)
def test_a_missing_argument_is_one_of_the_class_that_was_called(call, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(says)


def test_attributes_that_are_not_there_cost_no_search() -> None:
    assert not hasattr(nn.Linear(1, 1), "foward")
    with pytest.raises(AttributeError, match="CPU"):
        st.backends  # noqa: B018


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    for value in ({"a": 1}, nn.Linear(1, 1)):
        with pytest.raises(OSError, match="there is no folder") as caught:
            st.save(value, tmp_path / "runs" / "x.stratal")
        assert str(tmp_path / "runs") in str(caught.value) and "os.makedirs" in str(caught.value)


def test_a_file_of_another_kind_is_told_by_its_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    np.save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "a.txt").write_text("epoch 3\n")
    st.formats.save_tensors(str(tmp_path / "a.safetensors"), {"x": st.ones(2)})
    kinds = {"a.npz": ".npz", "a.npy": ".npy", "a.txt": "text", "a.safetensors": "safetensors"}
    with zipfile.ZipFile(tmp_path / "scripted.pt", "w") as archive:
        archive.writestr("archive/data/0", b"")
    kinds["scripted.pt"] = "torch.jit.save"
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.save({"x": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
        kinds |= {"old.pt": "torch.save"}
    for name, kind in kinds.items():
        with pytest.raises(st.StratalError, match="not written by") as caught:
            st.load(tmp_path / name)
        assert kind in str(caught.value) and name in str(caught.value)
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(st.StratalError, match="not a model, or damaged"):
        st.load(tmp_path / "noise")
