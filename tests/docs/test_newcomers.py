"""What people who know other libraries try: an error says what there is instead."""

from __future__ import annotations

import io
import operator
from pathlib import Path

import numpy as np
import pytest
from benchmarks.surface.draws import Draws
from benchmarks.surface.entries import entries
from benchmarks.surface.layers import call_of, made_and_called

import stratal as st
from stratal import nn, optim
from stratal.base.elsewhere import _BY_NAME
from stratal.base.errors import AttributeValueError, FormatError, StratalError


@pytest.mark.parametrize(
    ("read", "hint"),
    [
        (lambda: st.accelerator, "only the CPU"),
        (lambda: st.autograd, "st.grad"),
        (lambda: st.ones(2).stride, "x.numpy"),
        (lambda: nn.DataParallel, "all cores"),
        (lambda: st.summary, "net.summary"),
        (lambda: nn.Dense, "nn.Linear"),
        (lambda: st.from_pretrained, "st.models"),
        (lambda: nn.Sequential().fit, "st.train.Trainer"),
        (lambda: st.Size, "a tuple"),
        (lambda: st.set_printoptions, "np.set_printoptions"),
        (lambda: st.ones(2).detach_, "x.detach"),
        (lambda: st.Linear, "st.nn"),
        (lambda: st.DataLoader, "st.data"),
    ],
)
def test_a_name_of_another_library_says_what_is_here(read, hint):
    with pytest.raises(AttributeError, match=f"(?s)has no attribute.*hint:.*{hint}"):
        read()


def test_other_names_are_plain_errors_that_python_finds_a_neighbour_for():
    with pytest.raises(AttributeError) as caught:
        st.ones(2).reshpae(1, 2)
    assert str(caught.value) == "Tensor has no attribute 'reshpae'"
    assert caught.value.name == "reshpae" and isinstance(caught.value.obj, st.Tensor)
    assert not hasattr(st.ones(2), "foo") and not hasattr(st, "foo") and not hasattr(nn, "foo")


def test_what_is_said_to_be_elsewhere_is_not_here():
    assert [n for n in _BY_NAME if hasattr(st, n)] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optim.Adam(nn.Linear(2, 2)), "net.parameters()"),
        (lambda: st.grad(lambda x: float(x) ** 2)(st.tensor(3.0)), "end the derivative"),
        (lambda: st.grad(lambda x: x * 2)(st.ones(3)), "st.vjp"),
        (lambda: st.value_and_grad(lambda x: x.sum(), has_aux=True)(st.ones(3)), "return a pair"),
        (lambda: st.vjp(lambda x: x, st.ones(3), has_aux=True), "return a pair"),
    ],
)
def test_what_newcomers_try_is_refused_with_the_way_to_do_it(call, words):
    with pytest.raises(StratalError) as caught:
        call()
    assert words in str(caught.value)


CONVERSIONS = {"array", "asarray", "from_dlpack", "from_numpy"}
UNTOUCHED = {"is_complex", "Identity", "alpha_dropout", "feature_alpha_dropout"}  # but in training


@pytest.mark.torch
@pytest.mark.parametrize("family", ["math", "special", "linalg", "fft", "functional", "layers"])
def test_a_tensor_of_pytorch_is_refused_by_name_and_the_way_is_said(family):
    torch = pytest.importorskip("torch")
    draws, silent, calls = Draws(64), {}, 0
    for entry in entries((family,)):
        made = made_and_called(entry, draws) if family == "layers" else (entry.value, call_of(entry, draws))
        if made is None or made[1] is None or entry.name in CONVERSIONS | UNTOUCHED:
            continue
        function, call = made
        if not any(isinstance(x, np.ndarray) for x in (*call.args, *call.kwargs.values())):
            continue
        calls += 1
        try:
            silent[entry.path] = call.mapped(lambda x: torch.from_numpy(x.copy())).of(function)
        except StratalError as error:
            if "PyTorch" not in str(error) or "st.from_dlpack(x)" not in str(error):
                silent[entry.path] = error
    assert silent == {} and calls > 10


class Elsewhere:
    """An array of a library nobody knows."""

    def __array__(self, *args, **kwargs):
        return np.ones(2)


@pytest.mark.parametrize(
    "call",
    [lambda x: st.ones(2) + x, lambda x: st.stack([x, x]), st.sum, nn.ReLU(), lambda x: st.where(x, 1, x)],
)
def test_an_array_of_any_library_is_refused_with_the_way_to_bring_it(call):
    with pytest.raises(TypeError, match=r"(?s)takes tensors of Stratal.*Elsewhere.*st\.tensor\(x\)"):
        call(Elsewhere())
    assert st.tensor(Elsewhere()).tolist() == [1, 1]


DEFAULTS = {"fullgraph": True, "mode": "default", "backend": "inductor", "options": None, "disable": False}
OTHERS = {"mode": "max-autotune", "backend": "eager", "options": {"a": 1}, "disable": True, "nosuch": 1}


def test_what_pytorch_says_by_default_of_compiling_and_loading_is_taken(tmp_path):
    assert st.compile(lambda x: x + 1, **DEFAULTS)(st.ones(1)).item() == 2
    assert st.compile(fullgraph=True)(lambda x: x + 1)(st.ones(1)).item() == 2
    st.save({"a": 1}, tmp_path / "a.stratal")
    for where in (None, "cpu", st.device("cpu")):
        assert st.load(tmp_path / "a.stratal", map_location=where, weights_only=False, mmap=True) == {"a": 1}
    assert st.ones(1).is_cuda is False


@pytest.mark.parametrize("word", OTHERS)
def test_what_pytorch_compiles_by_another_way_is_refused(word):
    with pytest.raises(StratalError, match=f"compile: {word} is not to be chosen"):
        st.compile(lambda x: x, **{word: OTHERS[word]})


@pytest.mark.parametrize("where", ["cuda:0", "nowhere", {"cuda:0": "cpu"}, lambda storage, location: storage])
def test_a_file_is_loaded_to_the_cpu_only(where, tmp_path):
    st.save({"a": 1}, tmp_path / "a.stratal")
    with pytest.raises(StratalError, match="device"):
        st.load(tmp_path / "a.stratal", map_location=where)


@pytest.mark.parametrize("change", ["append", "assign", "replace"])
def test_a_group_the_optimizer_did_not_make_is_refused_by_name(change: str) -> None:
    net = nn.Linear(2, 2)
    opt = optim.SGD(net.parameters(), lr=0.1)
    plain = {"params": [*nn.Linear(2, 2).parameters()], "lr": 0.1}
    if change == "append":
        opt.param_groups.append(plain)
    elif change == "assign":
        opt.param_groups = [plain]
    else:
        opt.param_groups[0] = plain
    net(st.ones(1, 2)).sum().backward()
    with pytest.raises(AttributeValueError, match="did not make"):
        opt.step()


@pytest.mark.parametrize("file", ["file", "bytes"])
def test_a_checkpoint_goes_to_an_open_file_and_back(file: str, tmp_path: Path) -> None:
    value = {"w": st.ones(2, 3), "epoch": 3}
    opened = io.BytesIO() if file == "bytes" else (tmp_path / "a.bin").open("w+b")
    with opened:
        st.save(value, opened)
        opened.seek(0)
        found = st.load(opened)
    assert found["epoch"] == 3 and found["w"].tolist() == value["w"].tolist()


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x02}q\x00.", b"x" * 5000])
def test_an_open_file_of_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        st.load(io.BytesIO(data))


def test_what_is_no_file_to_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="opened as binary"):
        st.load(io.StringIO("text"))
    with pytest.raises(TypeError, match="takes a path or an open file"):
        st.load(3)
    with pytest.raises(FileNotFoundError, match="there is no"):
        st.load(tmp_path / "nothing.stratal")


def test_a_forgotten_call_of_parameters_is_told() -> None:
    with pytest.raises(TypeError, match=r"(?s)Adam.*call it: net.parameters\(\)"):
        optim.Adam(nn.Linear(2, 2).parameters)


@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_a_checkpoint_in_place_of_a_state_dict_says_which_part_is_one(key: str) -> None:
    net = nn.Linear(2, 2)
    checkpoint = {"epoch": 1, "optimizer": {"state": {}}, key: net.state_dict()}
    with pytest.raises(StratalError, match=rf"a checkpoint: load_state_dict\(checkpoint\['{key}'\]\)"):
        net.load_state_dict(checkpoint)


@pytest.mark.parametrize("name", ["onnx", "export", "distributed.init_process_group", "distributed.get_rank"])
def test_names_that_are_elsewhere_are_told(name: str) -> None:
    with pytest.raises(AttributeError, match=r"hint:"):
        operator.attrgetter(name)(st)
