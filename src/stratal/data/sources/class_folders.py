"""Folders of files, one folder for each class, as torchvision has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stratal.base.errors import FormatError
from stratal.data.sources.opening import MissingSourceError


class ClassFolders(NamedTuple):
    """The names of classes, and (path, class) of each file."""

    classes: list[str]
    samples: list[tuple[str, int]]


def class_folders(what: str, root: str | os.PathLike[str], extensions: Sequence[str]) -> ClassFolders:
    """Return the classes below a folder, sorted by name, and their files, sorted by path.

    Raises: MissingSourceError where there is no folder, FormatError where there are no files.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise MissingSourceError(f"{what}: {folder} is a folder", got="no such folder")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    samples = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in extensions and path.is_file()
    ]
    if not samples:
        raise FormatError(
            f"{what}: {folder} has a folder of files for each class",
            got=f"{len(classes)} folders without {', '.join(extensions)}",
            hint=f"root/first/1{extensions[0]}, root/second/1{extensions[0]}",
        )
    return ClassFolders(classes, samples)
