"""Files from anywhere: whatever they hold, `st.load` returns or says what is wrong with them, in words."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn, optim
from stratal.base.errors import FormatError, StratalError
from stratal.formats.container import read_container, write_container
from stratal.formats.files import FileWriteError
from stratal.formats.safetensors import load_tensors, save_tensors

ODD: list[Any] = [
    None, True, 0, -1, 1 << 62, 1 << 70, 1e308, 0.5, "", "x", "\ud800", "../x", [], [[]], {},
    {"$tensor": "w"}, {"$dict": 3}, [1, 2, 3], {"a": 1}, {"$float": "nan"}, {"$tuple": []},
    "f32[1000000000000,9]", "$", "\0", "é" * 300,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every part of a JSON value."""
    yield path
    for key, part in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    """Return a JSON value with one part replaced, removed, renamed or doubled."""
    if not path:
        return rng.choice(ODD)
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    key, how = path[-1], rng.random()
    if how < 0.6:
        inside[key] = rng.choice(ODD)
    elif how < 0.75:
        del inside[key]
    elif isinstance(inside, list):
        inside.insert(rng.randrange(len(inside) + 1), inside[rng.randrange(len(inside))])
    else:
        inside[str(rng.choice(ODD))] = inside.pop(key)
    return value


def with_header(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a safetensors file whose header was changed."""
    (length,) = struct.unpack("<Q", data[:8])
    text = json.dumps(change(json.loads(data[8 : 8 + length]))).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def saved(folder: Path) -> list[Path]:
    """Return a checkpoint, and a model with its graph, constants and optimiser."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    opt = optim.Adam(net.parameters())
    net(st.ones((3, 4))).sum().backward()
    opt.step()
    st.save(net, folder / "model.stratal", optimizer=opt, inputs=st.ones((3, 4)), options={"lr": 0.1})
    st.save({"net": net.state_dict(), (1, "k"): [(2, 3.5), None, float("inf")]}, folder / "nest.stratal")
    return [folder / "model.stratal", folder / "nest.stratal"]


def load(path: Path) -> None:
    """Load a file and use what it holds. Raises: FormatError."""
    found = st.load(path)
    if hasattr(found, "graph"):
        repr(found)
        for name in found:
            np.asarray(found[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rounds", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_documents_graphs_and_headers_of_any_content_are_refused_in_words(
    tmp_path: Path, rounds: int
) -> None:
    rng = random.Random(rounds)
    for path in saved(tmp_path):
        good = {name: bytes(data) for name, data in read_container(path).items()}
        forms = {name: json.loads(data) for name, data in good.items() if name.endswith(".json")}
        for _ in range(rounds // 2):
            files: dict[str, Any] = dict(good)
            name = rng.choice(sorted(files))
            if name.endswith(".json"):
                form = forms[name]
                for _ in range(rng.choice([1, 1, 2])):
                    form = changed(form, rng.choice(list(places(form))), rng)
                files[name] = json.dumps(form).encode()
            else:
                files[name] = with_header(
                    files[name], lambda form: changed(form, rng.choice(list(places(form))), rng)
                )
            write_container(path, {n: [data] for n, data in files.items()})
            try:
                load(path)
            except FormatError as error:
                assert len(str(error)) < 2000


@pytest.mark.parametrize("text", [
    b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b'"\\ud800"', b"\xff", b"", b"nul", b"NaN",
    b'{"a": 1, "a": 2}', b"1e999", b'{"$dict": [[{"$tuple": [[1]]}, 2]]}', b'{"$dict": [[{"$dict": []}, 2]]}',
    b"-", b"[1,]", b'[' * 900 + b']' * 900,
], ids=lambda text: text[:8])  # fmt: skip
def test_texts_that_are_hard_to_read_are_refused_or_read(tmp_path: Path, text: bytes) -> None:
    good = {name: bytes(data) for name, data in read_container(saved(tmp_path)[1]).items()}
    write_container(tmp_path / "n", {**{n: [d] for n, d in good.items()}, "checkpoint.json": [text]})
    with contextlib.suppress(FormatError):
        st.load(tmp_path / "n")


def test_half_a_surrogate_pair_in_a_file_is_refused_and_later_saves_are_as_ever(tmp_path: Path) -> None:
    files = {name: bytes(data) for name, data in read_container(saved(tmp_path)[0]).items()}
    graph = files["graph.json"]
    for text, fits in ((b"\\ud83d\\ude00", True), (b"\\ud800", False), (b"\\uDfff", False)):
        changed = {**files, "graph.json": graph.replace(b"Sequential", text, 1)}
        assert changed["graph.json"] != graph
        write_container(tmp_path / "n", {n: [d] for n, d in changed.items()})
        with contextlib.nullcontext() if fits else pytest.raises(FormatError, match="not JSON"):
            st.load(tmp_path / "n")
    saved(tmp_path)


def test_files_cut_changed_or_longer_than_they_say_are_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    for path in saved(tmp_path):
        good = path.read_bytes()
        for _ in range(150):
            bad = bytearray(good)
            if rng.random() < 0.5:
                del bad[rng.randrange(len(bad)) :]
            else:
                for _ in range(rng.choice([1, 1, 8])):
                    bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            if bytes(bad) != good:
                path.write_bytes(bad)
                with pytest.raises(FormatError):
                    st.load(path)
        os.truncate(path, 40 << 30)  # sparse
        with pytest.raises(FormatError):
            st.load(path)


@pytest.mark.parametrize("read", [st.load, load_tensors])
def test_what_is_no_file_to_read_is_refused_at_once(tmp_path: Path, read: Callable[[Any], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "file").write_bytes(b"")
    for name in (
        "pipe", "folder", "zero", "self", "file", "file/below", "absent", "x" * 300, "a\0b", "/dev/null",
        "/dev/tty", "/proc/self/mem", "",
    ):  # fmt: skip
        with pytest.raises(FormatError):
            read(tmp_path / name)
    for manifest in (lambda p: os.mkfifo(p), Path.mkdir, lambda p: p.symlink_to("/dev/zero")):
        manifest(tmp_path / "folder" / "manifest.json")
        with pytest.raises(FormatError):
            read(tmp_path / "folder")
        os.rename(tmp_path / "folder" / "manifest.json", tmp_path / os.urandom(4).hex())


def test_saving_through_a_link_writes_to_a_device_and_never_replaces_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub").mkdir()
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for target in ("/dev/null", "/dev/zero", "pipe", "sub", "loop.stratal"):
        link = tmp_path / f"{Path(target).stem}.stratal"
        link.symlink_to(target)
        try:
            st.save({"epoch": 1}, link)
        except FileWriteError:
            assert target in ("sub", "loop.stratal")  # a folder, and a link to itself
        assert os.readlink(link) == target
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    copied = os.read(reader, 1 << 20)
    os.close(reader)
    (tmp_path / "copied.stratal").write_bytes(copied)
    assert st.load(tmp_path / "copied.stratal") == {"epoch": 1}
    (tmp_path / "full.stratal").symlink_to("/dev/full")
    with pytest.raises(FileWriteError, match="No space left") as caught:
        st.save({"epoch": 1}, tmp_path / "full.stratal")
    assert "untouched" not in str(caught.value)


def test_saving_through_links_replaces_the_file_at_their_end_and_keeps_its_permissions(
    tmp_path: Path,
) -> None:
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "real.stratal"
    (tmp_path / "b.stratal").symlink_to("sub/real.stratal")
    (tmp_path / "a.stratal").symlink_to(tmp_path / "b.stratal")
    st.save({"epoch": 1}, tmp_path / "a.stratal")  # the end does not exist yet
    assert st.load(target) == {"epoch": 1}
    target.chmod(0o600)
    st.save({"epoch": 2}, tmp_path / "a.stratal")
    assert st.load(target) == {"epoch": 2} and target.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a.stratal").is_symlink() and (tmp_path / "b.stratal").is_symlink()


@pytest.mark.parametrize("name", ["x" * 300, "file/x", "x" * 300 + ".stratal", "file/x.stratal"])
def test_paths_that_cannot_be_written_are_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileWriteError):
        st.save({"epoch": 1}, tmp_path / name)
    with pytest.raises(FileWriteError):
        save_tensors(tmp_path / name, {})


def test_a_name_of_any_length_the_system_takes_can_be_saved(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 247 + ".stratal")
    st.save({"epoch": 1}, path)
    st.save({"epoch": 2}, path)
    assert st.load(path) == {"epoch": 2}


@pytest.mark.parametrize("path", ["", " ", ".", "..", "/", "a/..", "a\0b", "a\0b.stratal"])
@pytest.mark.parametrize("save", [
    lambda p: st.save({"w": st.ones(2)}, p),
    lambda p: st.save(nn.Linear(2, 2), p),
    lambda p: save_tensors(p, {"w": st.ones(2)}),
], ids=["nest", "model", "tensors"])  # fmt: skip
def test_a_path_without_a_name_is_refused_before_anything_is_written(
    path: str, save: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    for given in (path, path if "\0" in path else Path(path)):
        with pytest.raises(FileWriteError, match="a path ends in the name"):
            save(given)
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == []
    with pytest.raises(StratalError):
        st.load(path)
