"""Configurations: TOML files whose keys are in a table, which also makes the commented examples.

    kind = "table" | "images" | "text"
    [data]      where the data are, and what of them is predicted
    [model]     which net
    [training]  optimizer, rate, epochs
    [output]    the folder of results

Paths are relative to the file. What a file leaves out has its default; what it does not know, it refuses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.files import read_whole
from stratal.train.recipes.keys import KINDS, MEANT, REQUIRED, SECTIONS, Key, toml_of

MOST_BYTES: Final = 1 << 20
Section = dict[str, Any]


class Config(NamedTuple):
    """A checked configuration; every key of its kind has a value, None where it says nothing."""

    path: Path  # of the file it was read from
    kind: str
    data: Section
    model: Section
    training: Section
    output: Section

    def located(self, name: str) -> Path:
        """Return a path that the file gives, relative to it."""
        return self.path.parent / name

    def files(self) -> list[Path]:
        """Return the files that are read: this one, that of the data, or all those of a folder of data."""
        data = self.located(self.data["path"])
        return [self.path, *(sorted(p for p in data.rglob("*") if p.is_file()) if data.is_dir() else [data])]

    def refuse(self, what: str, got: object = "", hint: str = "") -> AttributeValueError:
        """Return the error for what the file asks for and its data do not give."""
        return AttributeValueError(f"{self.path.name}: {what}", got=str(got)[:120], hint=hint)

    def to_toml(self) -> str:
        """Return the configuration as a file, every value written out, the path of the data absolute."""
        lines = [f"kind = {toml_of(self.kind)}"]
        for name in SECTIONS:
            lines += ["", f"[{name}]"]
            section = getattr(self, name)
            if name == "data":
                section = {**section, "path": str(self.located(section["path"]).absolute())}
            lines += [f"{key} = {toml_of(value)}" for key, value in section.items() if value is not None]
        return "\n".join(lines) + "\n"


# -- reading -------------------------------------------------------------------------------------------------
def read_config(path: str | Path) -> Config:
    """Return a checked configuration. Raises: FormatError where it is no TOML; AttributeValueError naming
    file, section, key, what the key takes, and what may have been meant.
    """
    file = Path(path)
    try:
        data = tomllib.loads(bytes(read_whole(file, MOST_BYTES)).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{file.name}: not TOML", got=str(error)[:120],
                          hint="`stratal train --init table` writes an example") from None  # fmt: skip
    kind = data.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        got = "no key of that name" if kind is None else _shown(kind)
        raise _error(file, f"kind is one of {', '.join(map(toml_of, KINDS))}", got, _near(kind, KINDS))
    tables = KINDS[kind]
    for name, value in data.items():
        if name not in tables or not isinstance(value, dict):
            got = _shown(value) if name in tables else name
            rule = f"has the sections {', '.join(f'[{s}]' for s in tables)} and `kind`"
            owner = next((s for s, keys in tables.items() if name in keys), None)
            hint = f"{name} stands in the section [{owner}]" if owner else _near(name, tables)
            raise _error(file, rule, got, hint)
    sections = {name: _section(file, name, tables[name], data.get(name, {})) for name in SECTIONS}
    return Config(file, kind, **sections)


def _section(file: Path, name: str, keys: Mapping[str, Key], given: Mapping[str, Any]) -> Section:
    for key, value in given.items():
        if key not in keys:
            rule = f"[{name}] has no key {key!r}"
            raise _error(file, rule, f"{key} = {_shown(value)}", _near(key, keys))
        if not keys[key].fits(value):
            raise _error(file, f"[{name}] {key} is {keys[key].takes}", _shown(value), keys[key].about)
    missing = [key for key, row in keys.items() if row.default is REQUIRED and key not in given]
    if missing:
        row = keys[missing[0]]
        rule = f"[{name}] needs {missing[0]}: {row.about}"
        hint = f"{missing[0]} = {toml_of(row.example)}, for instance"
        raise _error(file, rule, "no key of that name", hint)
    return {key: given.get(key, row.default) for key, row in keys.items()}


def _error(file: Path, rule: str, got: str, hint: str) -> AttributeValueError:
    return AttributeValueError(f"{file.name}: {rule}", got=got, hint=hint)


def _near(name: Any, names: Mapping[str, Any]) -> str:
    """Return the hint for a name that is not there."""
    text = name if isinstance(name, str) else ""
    likely = [meant for meant in (MEANT.get(text), *get_close_matches(text, names, 1)) if meant in names]
    return f"did you mean {likely[0]}?" if likely else f"there are {', '.join(names)}"


def _shown(value: Any) -> str:
    return toml_of(value) if isinstance(value, (str, bool, int, float, list)) else type(value).__name__


def example(kind: str) -> str:
    """Return a commented file of a kind, keys with a default commented out. Raises: AttributeValueError."""
    if kind not in KINDS:
        raise AttributeValueError(f"train: an example is one of {', '.join(KINDS)}", got=kind,
                                  hint=_near(kind, KINDS))  # fmt: skip
    lines = ["# stratal train FILE trains what this file says; paths are relative to it.",
             "# What is commented out has the value shown unless the file gives another.", "",
             f"kind = {toml_of(kind)}"]  # fmt: skip
    for name, keys in KINDS[kind].items():
        lines += ["", f"[{name}]"]
        for key, row in keys.items():
            needed, shown = row.default is REQUIRED, row.default
            if needed or shown is None:
                shown = row.example
            choices = row.takes if row.takes.startswith("one of") else ""
            unset = "" if row.default is not None else "not set unless given"
            comment = "; ".join(filter(None, (choices, row.about, unset)))
            line = f"{'' if needed else '# '}{key} = {toml_of(shown)}"
            lines.append(f"{line:<32}  # {comment}" if comment else line)
    return "\n".join(lines) + "\n"
