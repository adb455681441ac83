"""The safetensors reader and writer: what is written is read back; a hostile file is refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratal.base.errors import FormatError
from stratal.formats.files import FileWriteError, read_whole, write_atomically
from stratal.formats.safetensors import DTYPES, decode, encode, load_tensors, save_tensors

pytestmark = pytest.mark.quick

TENSORS: dict[str, Any] = {
    name: (np.arange(6) % 2).reshape(2, 3).astype(dtype) for name, dtype in DTYPES.items()
} | {
    "empty": np.zeros((0, 3), ml_dtypes.bfloat16),
    "scalar": np.array(2.5),
    "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    "naïve name": np.ones(1, np.float16),
}


def packed(header: object, data: bytes = b"") -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(bytearray(struct.pack("<Q", len(text)) + text + data))


def one(**changes: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def test_every_dtype_and_shape_comes_back_aligned_and_writable(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t.safetensors", TENSORS, {"by": "test"})
    found = load_tensors(tmp_path / "t.safetensors")
    assert set(found) == set(TENSORS)
    for name, array in found.items():
        assert array.dtype == TENSORS[name].dtype
        assert array.shape == TENSORS[name].shape
        assert array.tobytes() == np.ascontiguousarray(TENSORS[name]).tobytes()
        assert array.flags.writeable
        assert array.ctypes.data % array.dtype.itemsize == 0
    assert decode(read_whole(tmp_path / "t.safetensors"))[1] == {"by": "test"}


def test_big_endian_arrays_are_written_little_endian(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"x": np.array([1, 2], ">i4")})
    assert load_tensors(tmp_path / "t")["x"].tolist() == [1, 2]


def test_the_same_tensors_give_the_same_bytes_in_any_order() -> None:
    assert b"".join(encode(TENSORS)) == b"".join(encode(dict(reversed(TENSORS.items()))))


def test_other_readers_and_writers_understand_the_file(tmp_path: Path) -> None:
    other = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.arange(5)}
    save_tensors(tmp_path / "ours", tensors)
    assert {k: v.tolist() for k, v in other.load_file(tmp_path / "ours").items()} == {
        k: v.tolist() for k, v in tensors.items()
    }
    other.save_file(tensors, tmp_path / "theirs")
    assert load_tensors(tmp_path / "theirs")["b"].tolist() == tensors["b"].tolist()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (memoryview(b"1234567"), "too short"),
        (memoryview(struct.pack("<Q", 1 << 63) + b"{}"), "header is longer"),
        (memoryview(struct.pack("<Q", 100) + b"{}"), "header is longer"),
        (packed(b"{"), "not JSON"),
        (packed(b"\xff{}"), "not JSON"),
        (packed(b"[" * 100_000), "not JSON"),
        (packed(b'{"x": ' + b"9" * 5000 + b"}"), "not JSON"),
        (packed(b'{"a": NaN}'), "not a JSON number"),
        (packed([1]), "not an object"),
        (packed(b'{"x": 1, "x": 2}'), "twice"),
        (packed({"__metadata__": {"a": 1}}), "text to text"),
        (packed({"x": 3}), "needs dtype"),
        (packed(one(extra=1), bytes(8)), "nothing else"),
        (packed(one(dtype="F7"), bytes(8)), "not known"),
        (packed(one(dtype=[]), bytes(8)), "not known"),
        (packed(one(shape=[-2]), bytes(8)), "no size"),
        (packed(one(shape=[True, 2]), bytes(8)), "no size"),
        (packed(one(shape=[2.0]), bytes(8)), "no size"),
        (packed(one(shape=[1 << 61, 8]), bytes(8)), "do not fit"),
        (packed(one(shape=[1] * 100 + [2]), bytes(8)), "do not fit"),
        (packed(one(data_offsets=[8, 0]), bytes(8)), "bad offsets"),
        (packed(one(data_offsets=[0, 4]), bytes(8)), "do not fit"),
        (packed(one(data_offsets=[1 << 40, (1 << 40) + 8]), bytes(8)), "gap or overlap"),
        (packed(one(), bytes(7)), "not as long"),
        (packed(one(), bytes(9)), "not as long"),
        (packed(one() | {"y": one()["x"]}, bytes(8)), "gap or overlap"),
        (packed({"b": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\x02"), "neither 0 nor 1"),
    ],
)
def test_a_malformed_file_is_refused_in_words(file: memoryview, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        decode(file)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_but_never_break(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        decode(memoryview(bytearray(struct.pack("<Q", len(data)) + data)))


def test_dtypes_the_format_lacks_are_refused_when_writing(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not name"):
        save_tensors(tmp_path / "t", {"x": np.array(["text"])})
    assert not (tmp_path / "t").exists()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert bytes(read_whole(tmp_path / "link")) == b"12345"
    for path, says, options in (
        ("pipe", "not a regular file", {}),
        (".", "not a regular file", {}),
        ("absent", "there is no absent", {}),
        ("link", "cannot open", {"follow": False}),
        ("file", "too large", {"limit": 4}),
    ):
        with pytest.raises(FormatError, match=says):
            read_whole(tmp_path / path, **options)  # type: ignore[arg-type]


def test_a_full_disk_keeps_the_old_file_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t"
    write_atomically(target, [b"old"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileWriteError, match="cannot write t") as caught:
        write_atomically(target, [b"new"])
    assert "No space left" in str(caught.value)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["t"]


def test_an_interrupt_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield b"half"
        raise KeyboardInterrupt

    write_atomically(tmp_path / "t", [b"old"])
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "t", chunks())
    assert (tmp_path / "t").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["t"]


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array(["2020-01-01"], "M8[D]"), np.array([1, None]), np.array([b"a"])]
)
def test_an_array_that_files_do_not_hold_is_refused_with_what_to_save_instead(
    array: Any, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=r"'words' has a dtype(.|\n)*hint:  files hold numbers"):
        save_tensors(tmp_path / "a", {"words": array})
