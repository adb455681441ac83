"""A docstring, and a signature, as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

LABELS: Final = ("Cost", "Dtype", "Example", "Raises", "Returns", "See", "Shapes", "Units")
_LABEL: Final = re.compile(rf"^({'|'.join(LABELS)}): ")
_CODE: Final = re.compile(r"(`[^`]*`)")
_SPECIAL: Final = str.maketrans({c: f"\\{c}" for c in "\\*_[]>"} | {"<": "&lt;", "|": "&#124;"})
WIDTH: Final = 88  # of a call that stands on one line
PLAIN: Final = ("Any", "'Any'", "None", "'None'")  # annotations that tell a reader nothing


def markdown(text: str) -> str:
    """Return a docstring as Markdown: paragraphs as they are, what is indented as code, labels in bold."""
    return "\n\n".join(part for block in re.split(r"\n\s*\n", text.strip()) for part in _parts(block))


def _parts(block: str) -> Iterator[str]:
    """Yield the prose that a paragraph begins with, and what is indented below it."""
    lines = block.split("\n")
    first = next((k for k, line in enumerate(lines) if line.startswith("  ")), len(lines))
    if lines[:first]:
        prose = escaped("\n".join(lines[:first]))
        yield _LABEL.sub(lambda m: f"**{m[1]}:** ", prose)
    if lines[first:]:
        yield "```text\n" + inspect.cleandoc("\n" + "\n".join(lines[first:])) + "\n```"


def escaped(text: str) -> str:
    """Return text in which nothing but what stands between backticks means anything to Markdown."""
    parts = _CODE.split(text)
    return "".join(p if p.startswith("`") else p.translate(_SPECIAL) for p in parts)


def summary(value: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    return escaped(re.split(r"(?<=[.:]) (?=[A-Z])", first)[0])


def signature(name: str, value: Any) -> str:
    """Return how something is called, without the annotations that say nothing."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [
        p.replace(annotation=inspect.Parameter.empty) if str(p.annotation) in PLAIN else p
        for p in found.parameters.values()
        if p.name != "self"
    ]
    result = inspect.Signature.empty if str(found.return_annotation) in PLAIN else found.return_annotation
    text = re.sub(
        r"(?<=[:>] )'([^']*)'", r"\1", str(found.replace(parameters=parameters, return_annotation=result))
    )
    return _wrapped(name + text) if len(name + text) > WIDTH else name + text


def _wrapped(call: str) -> str:
    """Return a call with a line for each argument."""
    name, _, rest = call.partition("(")
    parts, depth = [], 1
    for place, letter in enumerate(rest):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return f"{name}(\n    {''.join(parts)},\n{rest[place:]}"
        parts.append(",\n   " if letter == "," and depth == 1 else letter)
    return call
