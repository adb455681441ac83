"""Model files: read back as written, whole or not at all; every damaged or hostile one is refused."""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal.ops  # noqa: F401  (fills the registry)
from stratal.base.dtypes import float32
from stratal.base.errors import FormatError
from stratal.base.types import TensorType
from stratal.formats.document import pack, unpack
from stratal.formats.files import FileWriteError, read_whole
from stratal.formats.manifest import MANIFEST, manifest_bytes
from stratal.formats.model import ModelFile, read_model, write_model
from stratal.graph.graph import Graph
from stratal.graph.node import constant, graph_input, make
from stratal.graph.op import REGISTRY

PATHS = ("model", "model.stratal")


def small_graph() -> Graph:
    x, w = (graph_input(label, TensorType(float32, (20, 20))) for label in ("x", "w"))
    large = constant(np.arange(400, dtype=np.float32).reshape(20, 20))
    out = make(REGISTRY["add"](), make(REGISTRY["mul"](), x, w), large)
    return Graph([x, w], [out], name="scaled")


def small_model() -> ModelFile:
    state = {
        "state": {0: {"step": 3, "exp_avg": np.ones(4, np.float32)}},
        "lr": math.inf,
        "betas": (0.9, 0.99),
    }
    weights = {"w": np.full((20, 20), 2, np.float32), "count": np.array(7)}
    return ModelFile(small_graph(), weights, state, {"epochs": 5, "name": "demo"})


@pytest.mark.parametrize("path", PATHS)
def test_a_model_comes_back_as_it_was(tmp_path: Path, path: str) -> None:
    model = small_model()
    write_model(tmp_path / path, model)
    found = read_model(tmp_path / path)
    assert found.graph == model.graph
    assert {k: v.tolist() for k, v in found.weights.items()} == {
        k: v.tolist() for k, v in model.weights.items()
    }
    assert found.options == model.options
    assert found.optimizer["betas"] == (0.9, 0.99)
    assert found.optimizer["lr"] == math.inf
    assert found.optimizer["state"][0]["exp_avg"].tolist() == [1, 1, 1, 1]


@pytest.mark.row("B6")
def test_the_graph_is_text_a_person_can_read_and_the_large_constant_is_not_in_it(tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_model())
    (file,) = (tmp_path / "model").glob("graph.*.json")
    form = json.loads(file.read_text())
    assert [n["op"] for n in form["nodes"]] == ["mul", "const", "add"]
    assert len(file.read_text()) < 1000


def test_saving_again_replaces_the_model_and_its_files(tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_model())
    second = small_model()
    second.weights = {"w": np.zeros((20, 20), np.float32)}
    write_model(tmp_path / "model", second)
    assert read_model(tmp_path / "model").weights["w"].max() == 0
    assert len(list((tmp_path / "model").iterdir())) == 6


CALLS = ("open", "fsync", "replace", "unlink", "listdir", "mkdir")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_call_of_the_system_that_fails_leaves_a_whole_model_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, code: int
) -> None:
    for fail_at in range(1, 200):
        write_model(tmp_path / path, small_model())
        before = sorted(p.name for p in tmp_path.rglob("*"))
        second = small_model()
        second.weights, second.options = {"w": np.zeros((20, 20), np.float32)}, {"epochs": 6}
        count = itertools.count(1)

        def failing(real: Any, at: int = fail_at, count: Any = count) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(count) == at:
                    raise OSError(code, os.strerror(code))
                return real(*args, **kwargs)

            return call

        error: FileWriteError | None = None
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, failing(getattr(os, name)))
            try:
                write_model(tmp_path / path, second)
            except FileWriteError as caught:
                error = caught
        new = read_model(tmp_path / path).weights["w"].max() == 0
        says = "in place" if error is None else error.hint
        assert ("in place" if new else "untouched") in says
        if error is not None and not new and path == "model.stratal":
            assert sorted(p.name for p in tmp_path.rglob("*")) == before
        write_model(tmp_path / path, small_model())
        assert len(list(tmp_path.rglob("*"))) == len(before)  # nothing is left of any of them
        if next(count) <= fail_at:
            return
    raise AssertionError("a save makes fewer calls")


def files_of(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", PATHS)
def test_a_bit_flipped_anywhere_is_found(tmp_path: Path, path: str) -> None:
    write_model(tmp_path / path, small_model())
    for file in files_of(tmp_path):
        good = file.read_bytes()
        step = max(1, len(good) // 150)
        for at in range(0, len(good), step):
            bad = bytearray(good)
            bad[at] ^= 1 << at % 8
            file.write_bytes(bad)
            with pytest.raises(FormatError):
                read_model(tmp_path / path)
        file.write_bytes(good)
    read_model(tmp_path / path)


@pytest.mark.parametrize("path", PATHS)
def test_a_file_cut_short_or_grown_is_found(tmp_path: Path, path: str) -> None:
    write_model(tmp_path / path, small_model())
    for file in files_of(tmp_path):
        good = file.read_bytes()
        for bad in (b"", good[:1], good[: len(good) // 2], good[:-1], good + b"\0"):
            file.write_bytes(bad)
            with pytest.raises(FormatError):
                read_model(tmp_path / path)
        file.unlink()
        with pytest.raises(FormatError):
            read_model(tmp_path / path)
        file.write_bytes(good)


def rewritten(folder: Path, change: Any) -> None:
    """Change a manifest the way an attacker would: consistent with itself."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "graph.0123456789abcdef.json/../x", "manifest.json"]
)
def test_a_path_that_climbs_out_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    write_model(tmp_path / "model", small_model())
    rewritten(tmp_path / "model", lambda m: m["files"]["graph.json"].update(file=name))
    with pytest.raises(FormatError, match="file name that Stratal does not write"):
        read_model(tmp_path / "model")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_model())
    (file,) = (tmp_path / "model").glob("weights.*")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="cannot open"):
        read_model(tmp_path / "model")


def test_a_zip_with_a_path_that_climbs_out_or_a_bomb_is_refused(tmp_path: Path) -> None:
    for name, data, method in (
        ("../x", b"x", zipfile.ZIP_STORED),
        ("a", bytes(1 << 20), zipfile.ZIP_DEFLATED),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr(name, data)
        (tmp_path / "m.stratal").write_bytes(buffer.getvalue())
        with pytest.raises(FormatError):
            read_model(tmp_path / "m.stratal")
    assert os.listdir(tmp_path) == ["m.stratal"]


def test_absurd_sizes_in_a_manifest_allocate_nothing(tmp_path: Path) -> None:
    write_model(tmp_path / "model", small_model())
    for size in (1 << 60, -1, 1.5, True, "9"):
        rewritten(tmp_path / "model", lambda m, n=size: m["files"]["graph.json"].update(bytes=n))
        with pytest.raises(FormatError):
            read_model(tmp_path / "model")


def test_weights_that_do_not_fit_the_graph_are_refused(tmp_path: Path) -> None:
    model = small_model()
    model.weights = {"w": np.ones((3, 3), np.float32)}
    write_model(tmp_path / "model", model)
    with pytest.raises(FormatError, match="does not fit the graph"):
        read_model(tmp_path / "model")


def test_a_missing_model_and_one_that_is_none_are_errors_in_words(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no nothing"):
        read_model(tmp_path / "nothing")
    with pytest.raises(FormatError, match=r"there is no manifest\.json"):
        read_model(tmp_path)
    with pytest.raises(FileWriteError, match="cannot write"):
        write_model("/proc/model", small_model())


DOCUMENTS = [
    None, True, 3, -2.5, "text", [], {}, (), [1, (2, [3])], {"a": {"b": None}}, {1: "x", "$y": 2},
    {(1, "a"): 3}, {"nan": math.nan, "inf": -math.inf},
]  # fmt: skip


@pytest.mark.parametrize("value", DOCUMENTS, ids=repr)
def test_a_document_comes_back_as_it_was(value: Any) -> None:
    tensors: dict[str, Any] = {}
    data = json.loads(json.dumps(pack(value, tensors)))
    assert repr(unpack(data, tensors)) == repr(value)


def test_what_files_do_not_hold_is_refused_with_its_path() -> None:
    with pytest.raises(FormatError, match=r"groups\.0\.fn is of a type"):
        pack({"groups": [{"fn": print}]}, {})


@pytest.mark.parametrize(
    "data",
    [{"$tensor": "absent"}, {"$tensor": 3}, {"$float": "1"}, {"$tuple": 3}, {"$dict": [[1]]}, {"$eval": "1"},
     {"$tuple": [], "x": 1}, {"$dict": [[[1], 2]]}],
)  # fmt: skip
def test_a_malformed_document_is_refused(data: Any) -> None:
    with pytest.raises(FormatError, match=r"not a value|in no file"):
        unpack(data, {})


def test_what_is_read_begins_at_a_multiple_of_64_bytes(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100)))
    found = [read_whole(path) for _ in range(8)]
    assert all(np.frombuffer(view, np.uint8).ctypes.data % 64 == 0 for view in found)
    assert found[0].tobytes() == bytes(range(100))
