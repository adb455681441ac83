"""The reference: a page per namespace, the methods of tensors, the primitives, settings and commands.

Everything is read off the package when the site is built; no page is kept.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Iterable, Iterator
from typing import Any

from docstrings import escaped, markdown, signature, summary
from namespaces import TENSOR, Entry, entries, functions, members, namespaces

import stratal as st
from stratal import cli
from stratal.base import errors, settings
from stratal.cli.ops import describe, primitives
from stratal.tensor.api.functions import FUNCTIONS


def pages() -> dict[str, str]:
    """Return the reference as Markdown: title of a page -> text."""
    reference = Reference()
    made = {"stratal": reference.functions(), TENSOR: reference.tensor()}
    for name, module in namespaces():
        made[name] = reference.namespace(name, module)
    made["Errors"] = all_errors()
    made["Primitives"] = primitive_ops()
    made["Settings"] = all_settings()
    made["Commands"] = commands()
    return made


class Reference:
    """Pages in the order they are made; what an earlier page has is a link on later ones."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def functions(self) -> str:
        lines = ["# stratal", "", "The functions of `stratal` itself, by what they do.", ""]
        for title, found in functions().items():
            lines += [f"## {title}", "", *self._entries("stratal", found, "###")]
        return "\n".join(lines)

    def namespace(self, name: str, module: Any) -> str:
        lines = [f"# stratal.{name}", "", markdown(module.__doc__ or ""), ""]
        return "\n".join([*lines, *self._entries(name, entries(module), "##")])

    def tensor(self) -> str:
        """Return the page of methods: a line each, for most are the function of their name."""
        lines = ["# Tensor", "", markdown(inspect.getdoc(st.Tensor) or ""), ""]
        lines += ["A method is the function of its name with the tensor as first argument.", ""]
        lines += ["| method or property | what it returns |", "|---|---|"]
        for e in members(st.Tensor):
            call = "" if isinstance(e.value, property) else "()"
            name = f"`{e.name}{call}`"
            link = f"[{name}](stratal.md#stratal.{e.name})" if e.name in FUNCTIONS else name
            lines.append(f"| {link} | {summary(e.value) or summary(FUNCTIONS.get(e.name))} |")
        return "\n".join(lines)

    def _entries(self, home: str, found: Iterable[Entry], heading: str) -> Iterator[str]:
        """Yield the entries of a page; an object's own name comes before its other names."""
        for e in sorted(found, key=lambda e: (e.name != getattr(e.value, "__name__", ""), e.name.lower())):
            yield f"{heading} {escaped(e.name)} {{ #{home}.{e.name} }}"
            yield ""
            first = self._seen.setdefault(id(inspect.unwrap(e.value)), f"{home}.md#{home}.{e.name}")
            shown = first.rpartition("#")[2]
            if shown != f"{home}.{e.name}":
                yield f"Another name of [`{shown}`]({first})."
            else:
                yield from _described(e)
            yield ""


def _described(e: Entry) -> Iterator[str]:
    yield "```python"
    yield signature(e.name, e.value)
    yield "```"
    yield ""
    yield markdown(inspect.getdoc(e.value) or "")
    if inspect.isclass(e.value):
        yield ""
        for m in members(e.value):
            if not isinstance(m.value, property) and inspect.getdoc(m.value):
                value = getattr(m.value, "__func__", m.value)
                yield f"- `{signature(m.name, value)}`: {summary(m.value)}"
    if e.place:
        yield ""
        yield f"`{e.place}`{{ .place }}"


def all_errors() -> str:
    """Return the table of exceptions, each with the classes of Python that catch it, too."""
    lines = ["# Errors", "", markdown(inspect.getdoc(errors) or ""), ""]
    lines += ["| error | is also | meaning |", "|---|---|---|"]
    for name, cls in sorted(vars(errors).items()):
        if inspect.isclass(cls) and issubclass(cls, errors.StratalError):
            also = ", ".join(f"`{b.__name__}`" for b in cls.__bases__ if b is not errors.StratalError)
            lines.append(f"| `{name}` | {also} | {summary(cls)} |")
    return "\n".join(lines)


def primitive_ops() -> str:
    """Return the table of records, as `stratal ops` prints it."""
    lines = [
        "# Primitives",
        "",
        "What graphs are made of: every op is a record in one file. [Adding an op](../ops.md) reads one.",
        "The last columns say whether it has a gradient, a rule for `vmap` (others run row by row)",
        "and native code (others run their reference in NumPy).",
        "",
        "| op | what it computes | file | gradient | vmap | native |",
        "|---|---|---|---|---|---|",
    ]
    for row in map(describe, primitives()):
        marks = " | ".join("yes" if row[k] else "" for k in ("differentiable", "batched", "lowered"))
        file = row["file"].removeprefix("stratal/ops/")
        lines.append(f"| `{row['name']}` | {escaped(row['summary'])} | `{file}` | {marks} |")
    return "\n".join(lines)


def all_settings() -> str:
    """Return the table of settings."""
    lines = [
        "# Settings",
        "",
        markdown(inspect.getdoc(settings) or ""),
        "",
        "| variable | takes | what it does |",
        "|---|---|---|",
    ]
    for setting in sorted(settings.SETTINGS.values(), key=lambda s: s.name):
        lines.append(f"| `{setting.variable}` | {escaped(setting.takes)} | {escaped(setting.doc)} |")
    return "\n".join(lines)


def commands() -> str:
    """Return what each command says of itself."""
    lines = ["# Commands", ""]
    for name in cli.COMMANDS:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.build_parser([name]).parse_args([name, "--help"])
        lines += [f"## stratal {name}", "", "```text", text.getvalue().rstrip(), "```", ""]
    return "\n".join(lines)
