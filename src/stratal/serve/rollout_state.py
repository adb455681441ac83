"""Which versions were chosen, as a file: a server that starts again goes on with them.

{"format": "stratal-rollouts", "version": 1, "models": {"digits": {
    "answers": {"version": "1", "content": ...},      the version that answers
    "canary": {"version": "2", "content": ..., "share": 0.1},    or null
    "previous": {"version": "1", "content": ...}}}}    what a rollback goes back to, or null

Only models whose version was chosen by a request are in it; of all others the newest version is loaded. The
content hash is the artefact's: another one under the same version was not chosen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stratal.base.errors import FormatError
from stratal.formats.files import read_whole, write_atomically
from stratal.formats.safetensors import parse_json

FORMAT: Final = "stratal-rollouts"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 22


@dataclass(frozen=True)
class Chosen:
    """A version of a model, and what its artefact is."""

    version: str
    content: str
    share: float | None = None  # of a canary


@dataclass(frozen=True)
class Rollout:
    """The versions of one model that were chosen."""

    answers: Chosen
    canary: Chosen | None = None
    previous: Chosen | None = None


def read_rollouts(path: Path) -> dict[str, Rollout]:
    """Return what was chosen; nothing where there is no file. Raises: FormatError for any other content."""
    if not path.exists():
        return {}
    data = parse_json(bytes(read_whole(path, MOST_BYTES)), path.name)
    if not isinstance(data, dict) or set(data) != {"format", "version", "models"}:
        raise FormatError(f"{path.name}: not a file of rollouts", got=repr(data)[:80])
    if (data["format"], data["version"]) != (FORMAT, VERSION) or not isinstance(data["models"], dict):
        got = f"{data['format']} {data['version']}"[:80]
        raise FormatError(f"{path.name}: rollouts of another format or version", got=got)
    return {name: _rollout(path.name, row) for name, row in data["models"].items()}


def _rollout(file: str, row: Any) -> Rollout:
    if not isinstance(row, dict) or set(row) != {"answers", "canary", "previous"}:
        raise FormatError(f"{file}: not the versions of a model", got=repr(row)[:80])
    chosen = [None if row[key] is None else _chosen(file, row[key], key) for key in row]
    by_key = dict(zip(row, chosen, strict=True))
    if by_key["answers"] is None:
        raise FormatError(f"{file}: a model without a version that answers")
    return Rollout(**by_key)


def _chosen(file: str, row: Any, key: str) -> Chosen:
    keys = {"version", "content"} | ({"share"} if key == "canary" else set())
    fine = isinstance(row, dict) and set(row) == keys
    fine = fine and all(isinstance(row[k], str) and 0 < len(row[k]) <= 200 for k in ("version", "content"))
    share = row.get("share") if fine else None
    if not fine or (key == "canary" and not (isinstance(share, float) and 0 < share < 1)):
        raise FormatError(f"{file}: not a version that was chosen", got=repr(row)[:80])
    return Chosen(row["version"], row["content"], share)


def write_rollouts(path: Path, rollouts: dict[str, Rollout]) -> None:
    """Write what was chosen, whole or not at all. Raises: FileWriteError."""
    models = {
        name: {"answers": _row(r.answers), "canary": _row(r.canary), "previous": _row(r.previous)}
        for name, r in sorted(rollouts.items())
    }
    text = json.dumps({"format": FORMAT, "version": VERSION, "models": models}, indent=1) + "\n"
    write_atomically(path, [text.encode()])


def _row(chosen: Chosen | None) -> dict[str, Any] | None:
    if chosen is None:
        return None
    row: dict[str, Any] = {"version": chosen.version, "content": chosen.content}
    return row if chosen.share is None else row | {"share": chosen.share}
