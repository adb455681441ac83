"""Containers: a few named files and a manifest of their checksums, as a folder or as one zip file.

    manifest := {"format": "stratal-model", "version": 1, "written_by": text,
                 "files": {name: {"file": file name, "bytes": number, "sha256": hex}},
                 "sha256": hex of the manifest without this line}

In a folder every file carries part of its checksum in its name, and the manifest is written last: until it
is renamed into place, the old manifest still finds the old files. A zip file is stored, not compressed, and
holds the same files. Every byte is checked: what differs from what was written is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from stratal.base.errors import FormatError
from stratal.base.version import VERSION as CODE_VERSION
from stratal.formats.files import Bytes, FileWriteError, read_whole, write_atomically
from stratal.formats.safetensors import parse_json

MANIFEST: Final = "manifest.json"
FORMAT: Final = "stratal-model"
VERSION: Final = 1
SINGLE_FILE: Final = ".stratal"  # a path that ends so is one file; any other is a folder
_MANIFEST_LIMIT: Final = 1 << 20
_MANIFEST_KEYS: Final = {"format", "version", "written_by", "files", "sha256"}
_FILE_NAME: Final = re.compile(r"[a-z]+\.[0-9a-f]{16}\.(json|safetensors)")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_container(path: str | Path, files: Mapping[str, Iterable[Bytes]]) -> None:
    """Write named files and their manifest; a container that stood there is replaced whole or stays whole.

    Raises: FileWriteError.
    """
    chunks = {name: list(parts) for name, parts in files.items()}
    rows = {name: _row(name, parts) for name, parts in chunks.items()}
    manifest = _manifest_bytes(
        {"format": FORMAT, "version": VERSION, "written_by": f"stratal {CODE_VERSION}", "files": rows}
    )
    members = {rows[name]["file"]: parts for name, parts in chunks.items()}
    if Path(path).suffix == SINGLE_FILE:
        joined = {name: b"".join(parts) for name, parts in members.items()}
        write_atomically(path, [_zip_bytes({MANIFEST: manifest, **joined})])
    else:
        _write_folder(Path(path), manifest, members)


def _row(name: str, parts: Sequence[Bytes]) -> dict[str, Any]:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    stem, _, suffix = name.partition(".")
    file = f"{stem}.{sha.hexdigest()[:16]}.{suffix}"
    return {"file": file, "bytes": sum(map(len, parts)), "sha256": sha.hexdigest()}


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return the one way a manifest is written, so that any other bytes are refused."""
    content = {k: v for k, v in manifest.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=2, sort_keys=True) + "\n").encode()


def _zip_bytes(members: Mapping[str, bytes]) -> bytes:
    """Return the one way a zip of these members is written: stored, in order, without a date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _write_folder(folder: Path, manifest: bytes, members: Mapping[str, Sequence[Bytes]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stale = _files_of(folder) - set(members)
    except OSError as error:
        raise FileWriteError(f"save: cannot write {folder.name}", got=error.strerror or str(error)) from error
    fresh = [name for name in members if not (folder / name).exists()]
    try:
        for name, parts in members.items():
            write_atomically(folder / name, parts)
        write_atomically(folder / MANIFEST, [manifest])
    except BaseException:
        for name in fresh:
            (folder / name).unlink(missing_ok=True)
        raise
    for name in stale:
        (folder / name).unlink(missing_ok=True)


def _files_of(folder: Path) -> set[str]:
    """Return the files the manifest in a folder names; none where there is no readable manifest."""
    if not (folder / MANIFEST).exists():
        return set()
    try:
        rows = _checked_manifest(read_whole(folder / MANIFEST, _MANIFEST_LIMIT, follow=False))
    except FormatError:
        return set()
    return {row["file"] for row in rows.values()}


def read_container(path: str | Path) -> dict[str, memoryview]:
    """Return the files of a container by name, every byte checked. Raises: FormatError."""
    place = Path(path)
    if not place.exists():
        raise FormatError(
            f"load: there is no {place.name}", got=str(path), hint="st.save(net, path) writes one"
        )
    if place.is_dir():
        manifest = read_whole(place / MANIFEST, _MANIFEST_LIMIT, follow=False)
        return {
            name: _verified(name, row, read_whole(place / row["file"], row["bytes"], follow=False))
            for name, row in _checked_manifest(manifest).items()
        }
    members = _unzipped(read_whole(place))
    found = {}
    for name, row in _checked_manifest(members.pop(MANIFEST, memoryview(b""))).items():
        if row["file"] not in members:
            _refuse("a file of the manifest is missing", row["file"])
        found[name] = _verified(name, row, members.pop(row["file"]))
    if members:
        _refuse("the file holds more than its manifest says", sorted(members)[0])
    return found


def _refuse(what: str, got: object = "") -> NoReturn:
    raise FormatError(f"model file: {what}", got=str(got)[:120])


def _checked_manifest(data: memoryview) -> dict[str, dict[str, Any]]:
    """Return name -> row of a manifest. Raises: FormatError for any that `write_container` did not write."""
    manifest = parse_json(bytes(data), "model file: manifest")
    if not isinstance(manifest, dict) or set(manifest) != _MANIFEST_KEYS:
        _refuse("not the manifest of a model")
    if manifest["format"] != FORMAT or manifest["version"] != VERSION:
        _refuse("of another format or version", f"{manifest['format']} {manifest['version']}")
    rows = manifest["files"]
    if not isinstance(rows, dict) or not isinstance(manifest["written_by"], str):
        _refuse("not the manifest of a model")
    for name, row in rows.items():
        if not isinstance(row, dict) or set(row) != {"file", "bytes", "sha256"}:
            _refuse("a row of the manifest is damaged", name)
        file, digest = row["file"], row["sha256"]
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            _refuse("a file name that Stratal does not write", file)
        if type(row["bytes"]) is not int or row["bytes"] < 0 or not isinstance(digest, str):
            _refuse("a row of the manifest is damaged", name)
    if _manifest_bytes(manifest) != bytes(data):
        _refuse("the manifest is damaged")
    return rows


def _verified(name: str, row: Mapping[str, Any], data: memoryview) -> memoryview:
    if len(data) != row["bytes"] or hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise FormatError(
            f"model file: {name} is damaged",
            got=f"{len(data)} bytes whose checksum differs from the manifest",
            hint="the file was changed, cut short or copied badly; restore it from where it came",
        )
    return data


def _unzipped(data: memoryview) -> dict[str, memoryview]:
    """Return the members of a zip file that `_zip_bytes` wrote."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(e.compress_type != zipfile.ZIP_STORED or e.file_size > len(data) for e in entries):
                _refuse("a member is compressed or larger than the file")
            members = {e.filename: archive.read(e) for e in entries}
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, OSError, EOFError, OverflowError,
            RuntimeError, struct.error) as error:  # fmt: skip
        if isinstance(error, FormatError):
            raise
        raise FormatError("model file: not a model, or damaged", got=str(error)[:120]) from None
    if _zip_bytes(members) != data:
        _refuse("the file is damaged, or was not written by Stratal")
    return {name: _aligned(content) for name, content in members.items()}


def _aligned(data: bytes) -> memoryview:
    """Return a writable copy whose tensors can be used where they stand."""
    copy = np.empty(len(data), np.uint8)
    copy[:] = np.frombuffer(data, np.uint8)
    return copy.data
