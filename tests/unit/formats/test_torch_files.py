"""Files of `torch.save`: what PyTorch wrote is read back, and nothing that a file names is called."""

from __future__ import annotations

import io
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_files import call, name, op, rebuilt, stored, torch_file, value

import stratal as st
from stratal import nn
from stratal.base import tree
from stratal.base.errors import AttributeValueError, FormatError

SIX = np.arange(6, dtype=np.float32)
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def six(shape: tuple[Any, ...] = (2, 3), strides: tuple[Any, ...] = (3, 1), offset: Any = 0) -> bytes:
    return rebuilt(stored("FloatStorage", "0", 6), shape, strides, offset)


def load(root: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> Any:
    data = torch_file(root, {"0": SIX.tobytes()} if storages is None else storages, **options)
    return st.load(io.BytesIO(data))


def written(value: Any, **options: Any) -> io.BytesIO:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


# -- what PyTorch writes -------------------------------------------------------------------------------------
@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_any_dtype_comes_back_bit_by_bit(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, dtype))
    found = st.load(written({"x": x, "part": x[1, 1:], "none": x[:0], "one": x[1, 2]}))
    for key, theirs in {"x": x, "part": x[1, 1:], "none": x[:0], "one": x[1, 2]}.items():
        assert found[key].dtype.name == dtype
        assert found[key].shape == tuple(theirs.shape)
        mine = found[key].numpy().reshape(-1).view(np.uint8)
        assert mine.tobytes() == theirs.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.torch
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_strides_shared_storages_parameters_and_plain_values_come_back(protocol: int) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12.0).reshape(3, 4)
    marked = torch.ones(2)
    marked.note = "an attribute of its own"
    given = {
        "t": x.t(), "row": x[1], "column": x[:, ::2], "wide": x[:1].expand(5, 4), "marked": marked,
        "parameter": torch.nn.Parameter(x), "order": OrderedDict(a=1), 3: [1.5, True, None, 1 << 70, -7],
        "size": x.size(), "dtype": torch.float16, "device": torch.device("cuda:1"), "complex": 1 + 2j,
    }  # fmt: skip
    found = st.load(written(given, pickle_protocol=protocol))
    assert list(found) == list(given)
    for key in ("t", "row", "column", "wide", "marked", "parameter"):
        assert np.array_equal(found[key], given[key].detach().numpy())
        assert not found[key].requires_grad
    assert found[3] == given[3] and found["order"] == {"a": 1} and found["size"] == (3, 4)
    assert (found["dtype"], found["device"], found["complex"]) == (st.float16, "cuda:1", 1 + 2j)
    found["row"][0] = 9.0
    assert found["t"][0, 1].item() == 4.0  # copies


@pytest.mark.torch
@pytest.mark.row("B6")
def test_weights_that_pytorch_saved_load_into_the_net_here() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )  # fmt: skip
    opt = torch.optim.Adam(theirs.parameters())
    theirs(torch.randn(2, 1, 6, 6)).sum().backward()
    opt.step()
    saved = {"model": theirs.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}
    checkpoint = st.load(written(saved), map_location="cpu", weights_only=True)
    mine = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(st.StratalError, match=r"load_state_dict\(checkpoint\['model'\]\)"):
        mine.load_state_dict(checkpoint)
    mine.load_state_dict(checkpoint["model"])
    x = torch.randn(2, 1, 6, 6)
    expected = theirs.eval()(x).detach().numpy()
    assert np.allclose(mine.eval()(st.tensor(x.numpy())), expected, atol=1e-5)
    exp_avg = checkpoint["optimizer"]["state"][0]["exp_avg"]
    assert np.array_equal(exp_avg, opt.state_dict()["state"][0]["exp_avg"].numpy())


@pytest.mark.torch
def test_what_is_no_plain_data_is_refused_with_the_name_the_file_gives_it() -> None:
    torch = pytest.importorskip("torch")
    cases = {
        "torch.nn.modules.linear.Linear": torch.nn.Linear(1, 1), "__builtin__.set": {1},
        "torch.nn.functional.relu": torch.nn.functional.relu, "torch.float8_e4m3fn": torch.float8_e4m3fn,
        "torch._utils._rebuild_sparse_tensor": torch.eye(2).to_sparse(),
        "numpy._core.multiarray.scalar": np.float64(3.0),
    }  # fmt: skip
    for refused, given in cases.items():
        with pytest.raises(FormatError, match="neither a tensor nor plain data") as caught:
            st.load(written({"x": given}))
        assert refused in str(caught.value) and "state_dict()" in str(caught.value)
    with pytest.raises(FormatError, match="conjugated"):
        st.load(written({"x": torch.ones(2, dtype=torch.complex64).conj()}))


@pytest.mark.torch
def test_files_from_before_the_zip_format_say_how_to_write_one() -> None:
    old = written({"x": 1}, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match=r"PyTorch from 1\.6 on"):
        st.load(old)


# -- files put together by hand ------------------------------------------------------------------------------
def test_a_file_is_read_from_a_path_an_open_file_and_memory(tmp_path: Path) -> None:
    data = torch_file(value({"w": six(), "lr": 0.5}), {"0": SIX.tobytes()})
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    with open(path, "rb") as opened:
        for source in (path, str(path), opened, io.BytesIO(data)):
            found = st.load(source)
            assert np.array_equal(found["w"], SIX.reshape(2, 3)) and found["lr"] == 0.5
    with pytest.raises(FileNotFoundError):
        st.load(tmp_path / "absent.pt")
    with pytest.raises(AttributeValueError, match="only the CPU"):
        st.load(path, map_location="cuda:0")
    st.save(found, tmp_path / "again.stratal")
    assert np.array_equal(st.load(tmp_path / "again.stratal")["w"], found["w"])


@pytest.mark.parametrize(("module", "attribute"), [
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("__builtin__", "exec"),
    ("builtins", "getattr"), ("torch.serialization", "load"), ("torch", "load"), ("torch.storage", "_load"),
    ("collections", "OrderedDict.fromkeys"), ("torch._utils", "_rebuild_tensor_v2.__globals__"),
    ("stratal.formats.torch_file", "_size"), ("", ""),
])  # fmt: skip
def test_nothing_a_file_names_is_called_or_imported(tmp_path: Path, module: str, attribute: str) -> None:
    proof = tmp_path / "called"
    for root in (
        call(module, attribute, f"touch {proof}"),
        value({"x": name(module, attribute)}),
        value(module) + value(attribute) + op("STACK_GLOBAL") + value((f"touch {proof}",)) + op("REDUCE"),
        call("torch._tensor", "_rebuild_from_type_v2", name(module, attribute), name("torch", "Tensor"),
             (f"touch {proof}",), {}),
    ):  # fmt: skip
        with pytest.raises(FormatError, match="neither a tensor nor plain data"):
            load(root)
    assert not proof.exists()


@pytest.mark.filterwarnings("error")  # of escapes in text that is refused unread
@pytest.mark.parametrize(
    "opcode", ["INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "PERSID", "NEXT_BUFFER", "STRING"]
)
def test_opcodes_that_make_objects_are_refused(opcode: str) -> None:
    arguments = {"INST": b"os\nsystem\n", "EXT1": b"\1", "PERSID": b"0\n", "STRING": b"'\\o'\n"}
    argument = arguments.get(opcode, b"")
    with pytest.raises(FormatError, match="no plain value"):
        load(value(1) + value(()) + op(opcode, argument))


BAD: dict[str, tuple[bytes, str]] = {
    "beyond the storage": (six((2, 4), (4, 1)), "beyond its storage"),
    "an offset beyond": (six((1,), (1,), 6), "beyond its storage"),
    "a stride beyond": (six((2,), (1 << 61,)), "beyond its storage"),
    "negative": (six((-1, 2), (1, 1)), "no size"),
    "a bool as a size": (six((True,), (1,)), "no size"),
    "of floats": (six((2.0,), (1,)), "no size"),
    "other strides than axes": (six((2, 3), (1,)), "other strides"),
    "forty axes": (six((1,) * 40, (0,) * 40), "too many"),
    "terabytes of one element": (six((1 << 40,), (0,)), "far larger"),
    "an empty one too large": (six((1 << 61, 1 << 61, 0), (0, 0, 0)), "too large"),
    "a wrong count": (rebuilt(stored("FloatStorage", "0", 7), (2,), (1,)), "not as long"),
    "a wrong type": (rebuilt(stored("DoubleStorage", "0", 6), (2,), (1,)), "not as long"),
    "no such storage": (rebuilt(stored("FloatStorage", "1", 6), (2,), (1,)), "missing"),
    "a key that climbs": (rebuilt(stored("FloatStorage", "../byteorder", 6), (2,), (1,)), "missing"),
    "a storage as a value": (value([stored("FloatStorage", "0", 6)]), "as a value"),
    "a type as a value": (value([name("torch", "FloatStorage")]), "as a value"),
    "an id of something": (value(("module", 1)) + op("BINPERSID"), "not the id"),
    "a function of text": (call("torch._utils", "_rebuild_tensor_v2", "x"), "other arguments"),
    "a tensor of text": (call("torch._utils", "_rebuild_tensor_v2", "x", 0, (), (), False, None), "storage"),
    "a parameter of text": (call("torch._utils", "_rebuild_parameter", "x", True, None), "without a tensor"),
    "a call of a list": (value([]) + value(()) + op("REDUCE"), "no function here"),
    "a call of a type": (call("torch", "FloatStorage", 3), "no function here"),
    "a call in a call": (
        call("torch._tensor", "_rebuild_from_type_v2", name("torch._tensor", "_rebuild_from_type_v2"),
             name("torch", "Tensor"), (), {}),
        "a class of its own",
    ),
    "a state of a list": (value([]) + value({}) + op("BUILD"), "state of its own"),
    "a list as a key": (value({value([]): 1}), "a key"),
    "pairs that are none": (call("collections", "OrderedDict", [1]), "no pairs"),
    "an endless int": (op("LONG4", (10**6).to_bytes(4, "little") + b"\1" * 10**6), "too long"),
    "text that is none": (op("BINUNICODE", b"\2\0\0\0\xff\xff"), "damaged"),
    "a text beyond the end": (op("BINUNICODE8", b"\xff" * 7 + b"\x7f"), "damaged"),
    "an empty stack": (op("TUPLE2"), "more than its stack"),
    "two values": (value(1) + value(2), "one value"),
    "an unknown memo": (op("BINGET", b"\7"), "has not stored"),
    "itself": (op("EMPTY_LIST") + op("BINPUT", b"\0") + op("BINGET", b"\0") + op("APPEND"), "holds itself"),
    "a deep list": (op("EMPTY_LIST") * 100_000 + op("APPEND") * 99_999, "nested too deep"),
    "a deep key": (op("EMPTY_DICT") + op("EMPTY_TUPLE") + op("TUPLE1") * 100_000 + value(1) + op("SETITEM"),
                   "a key"),
    "a billion laughs": (
        op("MARK") + op("EMPTY_LIST") + op("BINPUT", b"\0") + value(1) + op("APPEND") + b"".join(
            op("EMPTY_LIST") + op("MARK") + op("BINGET", bytes([k])) * 10 + op("APPENDS")
            + op("BINPUT", bytes([k + 1])) for k in range(12)
        ) + op("TUPLE"),
        "too large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_hold_together_is_refused_before_memory_is_taken(case: str) -> None:
    root, words = BAD[case]
    with pytest.raises(FormatError, match=words):
        load(root)


def test_a_tensor_may_repeat_its_storage_as_expand_does() -> None:
    assert np.array_equal(load(six((4, 3), (0, 1))), np.broadcast_to(SIX[:3], (4, 3)))
    assert load(six((0, 5), (7, 9), 3)).shape == (0, 5)
    assert load(six((), (), 4)).item() == 4.0


def test_the_file_around_the_pickle_is_checked() -> None:
    good = torch_file(value({"w": six()}), {"0": SIX.tobytes()})
    with pytest.raises(FormatError, match="another byte order"):
        load(six(), byteorder=b"big")
    with pytest.raises(FormatError, match="compressed"):
        load(six(), {"0": bytes(10_000)}, compressed=True)
    at = good.index(SIX.tobytes())
    with pytest.raises(FormatError, match="damaged"):
        st.load(io.BytesIO(good[:at] + b"\1" + good[at + 1 :]))
    with pytest.raises(FormatError, match="no zip, or damaged"):
        st.load(io.BytesIO(good[:-30]))
    with pytest.raises(FormatError, match="neither 0 nor 1"):
        load(rebuilt(stored("BoolStorage", "0", 2), (2,), (1,)), {"0": b"\1\2"})
    buffer = io.BytesIO(good)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(FormatError, match="two members of one name"):
        st.load(io.BytesIO(buffer.getvalue()))


# -- changed files -------------------------------------------------------------------------------------------
def _file(rng: random.Random) -> bytes:
    """Return a good file, bytes of it changed: of the whole, or of the pickle with a right checksum."""
    root = value({
        "model": call("collections", "OrderedDict", [("w", six()), ("b", six((3,), (2,), 1))]),
        "half": rebuilt(stored("BFloat16Storage", "1", 4), (2, 2), (1, 2)), "names": ["a", "b", ("c", 1.5)],
        "epoch": 3, "untyped": call(
            "torch._utils", "_rebuild_tensor_v3",
            value(("storage", name("torch.storage", "UntypedStorage"), "2", "cuda:0", 8)) + op("BINPERSID"),
            0, (4,), (1,), False, call("collections", "OrderedDict"), name("torch", "uint16"),
        ),
    })  # fmt: skip
    storages = {"0": SIX.tobytes(), "1": bytes(8), "2": bytes(range(8))}
    inside = rng.random() < 0.7
    data = bytearray(root if inside else torch_file(root, storages))
    for _ in range(rng.choice([1, 1, 2, 6])):
        at, how = rng.randrange(len(data)), rng.random()
        if how < 0.6:
            data[at] = rng.randrange(256)
        elif how < 0.75:
            del data[at : at + rng.randrange(1, 12)]
        elif how < 0.9:
            other = rng.randrange(len(data))
            data[at:at] = data[other : other + rng.randrange(1, 30)]
        else:
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\0", b"cos\nsystem\n", b"R", b"(u"])
    return torch_file(bytes(data), storages) if inside else bytes(data)


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize("rounds", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_files_changed_at_random_are_read_or_refused(rounds: int) -> None:
    rng = random.Random(rounds)
    num_read = 0
    for _ in range(rounds):
        try:
            found = st.load(io.BytesIO(_file(rng)))
        except FormatError as error:
            assert len(str(error)) < 2000
        else:
            num_read += 1
            for leaf in tree.leaves(found):
                np.asarray(leaf)
    assert 0 < num_read < rounds
