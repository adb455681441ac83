"""Folders of files, one folder for each class, as torchvision has them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.data.sources.opening import MissingSourceError


class ClassFolders(NamedTuple):
    """The names of classes, and (path, class) of each file."""

    classes: list[str]
    samples: list[tuple[str, int]]


def class_folders(
    what: str, root: str | os.PathLike[str], extensions: Sequence[str], classes: Sequence[str] | None = None
) -> ClassFolders:
    """Return the classes below a folder, sorted by name, and their files, sorted by path.

    `classes` gives the names in the order of their numbers; one may have no folder, or one without files.
    Without it every folder is a class and has files: one that another split lacks would move the numbers of
    all that follow. What is hidden, by a name that begins with a dot, is neither class nor file.
    Raises: MissingSourceError where there is no folder; FormatError where there are no files, where a folder
    has none, or where one is not among `classes`.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise MissingSourceError(f"{what}: {folder} is a folder", got="no such folder")
    there = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not _hidden(entry.name))
    names = there if classes is None else _checked(what, classes)
    if unknown := [name for name in there if name not in names]:
        raise FormatError(
            f"{what}: the folders in {folder} are among the classes", got=", ".join(unknown[:8]),
            hint=f"classes={[*names, *unknown][:8]} has it, too, or move it elsewhere",
        )  # fmt: skip
    found = {name: list(files_below(folder / name, extensions)) for name in names if name in there}
    samples = [(path, label) for label, name in enumerate(names) for path in found.get(name, ())]
    if not samples:
        raise FormatError(
            f"{what}: {folder} has a folder of files for each class",
            got=f"{len(there)} folders without {', '.join(extensions)}",
            hint=f"root/first/1{extensions[0]}, root/second/1{extensions[0]}",
        )
    if classes is None and (empty := [name for name in names if not found[name]]):
        raise FormatError(
            f"{what}: each folder in {folder} is a class and has files",
            got=f"no {', '.join(extensions)} in {', '.join(empty[:8])}",
            hint="remove it, or name the classes in the order of their numbers: classes=[...]",
        )
    return ClassFolders(list(names), samples)


def files_below(folder: Path, extensions: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the paths of files below a folder, sorted, of all extensions unless given; none that is hidden,
    or lies in a folder that is.
    """
    for path in sorted(folder.rglob("*")):
        fits = extensions is None or path.suffix.lower() in extensions
        if fits and not any(map(_hidden, path.relative_to(folder).parts)) and path.is_file():
            yield str(path)


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _checked(what: str, classes: Sequence[str]) -> list[str]:
    """Return the names of classes. Raises: DTypeError, AttributeValueError."""
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise DTypeError(f"{what}: classes is a list of names", got=repr(classes)[:80],
                         hint='classes=["cat", "dog"]')  # fmt: skip
    names = list(classes)
    if not names or len(set(names)) < len(names):
        raise AttributeValueError(f"{what}: classes have different names", got=repr(names)[:80],
                                  hint='classes=["cat", "dog"]')  # fmt: skip
    return names
