"""Manifests: which files a container holds, how long each is, and their checksums.

manifest := {"format": "stratal-model", "version": 1, "written_by": text,
             "files": {name: {"file": file name, "bytes": number, "sha256": hex}},
             "sha256": hex of the manifest without this line}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from stratal.base.errors import FormatError
from stratal.base.version import VERSION as CODE_VERSION
from stratal.formats.files import Bytes
from stratal.formats.safetensors import parse_json

MANIFEST: Final = "manifest.json"
FORMAT: Final = "stratal-model"
VERSION: Final = 1
MANIFEST_LIMIT: Final = 1 << 20
FILE_NAME: Final = re.compile(r"[a-z]+(-\d{5}){0,2}\.[0-9a-f]{16}\.(json|safetensors)")
_KEYS: Final = {"format", "version", "written_by", "files", "sha256"}

Rows = dict[str, dict[str, Any]]


def row_of(name: str, parts: Sequence[Bytes], tag: str = "") -> dict[str, Any]:
    """Return the row of a file; `tag` tells its name from others', or part of its checksum does."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    stem, _, suffix = name.partition(".")
    file = f"{stem}.{tag or sha.hexdigest()[:16]}.{suffix}"
    return {"file": file, "bytes": sum(map(len, parts)), "sha256": sha.hexdigest()}


def manifest_of(rows: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the manifest of some rows by name."""
    return manifest_bytes(
        {"format": FORMAT, "version": VERSION, "written_by": f"stratal {CODE_VERSION}", "files": rows}
    )


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return the one way a manifest is written, so that any other bytes are refused."""
    content = {k: v for k, v in manifest.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=2, sort_keys=True) + "\n").encode()


def checked_manifest(data: bytes | memoryview) -> Rows:
    """Return name -> row of a manifest. Raises: FormatError for any that `manifest_of` did not write."""
    manifest = parse_json(bytes(data), "model file: manifest")
    if not isinstance(manifest, dict) or set(manifest) != _KEYS:
        refuse("not the manifest of a model")
    if manifest["format"] != FORMAT or manifest["version"] != VERSION:
        refuse("of another format or version", f"{manifest['format']} {manifest['version']}")
    rows = manifest["files"]
    if not isinstance(rows, dict) or not isinstance(manifest["written_by"], str):
        refuse("not the manifest of a model")
    for name, row in rows.items():
        if not isinstance(row, dict) or set(row) != {"file", "bytes", "sha256"}:
            refuse("a row of the manifest is damaged", name)
        file, digest = row["file"], row["sha256"]
        if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
            refuse("a file name that Stratal does not write", file)
        if type(row["bytes"]) is not int or row["bytes"] < 0 or not isinstance(digest, str):
            refuse("a row of the manifest is damaged", name)
    if manifest_bytes(manifest) != bytes(data):
        refuse("the manifest is damaged")
    return rows


def verified(name: str, row: Mapping[str, Any], data: memoryview) -> memoryview:
    """Return the bytes of a file if they are those its row was written for. Raises: FormatError."""
    if len(data) != row["bytes"] or hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise FormatError(
            f"model file: {name} is damaged",
            got=f"{len(data)} bytes whose checksum differs from the manifest",
            hint="the file was changed, cut short or copied badly; restore it from where it came",
        )
    return data


def refuse(what: str, got: object = "") -> NoReturn:
    """Raise a FormatError about a model file."""
    raise FormatError(f"model file: {what}", got=str(got)[:120])
