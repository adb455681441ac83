"""The page: data, script and style in one HTML document.

The data is JSON inside a script element that no browser runs. `<`, `>` and `&` are written as escapes of
JSON, so no label and no source line can end the element, and the script shows every text as text. A policy in
the page's head lets only this very script and style in, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

from stratal.base.files import replace_whole

SCRIPTS: Final = ("base.js", "code.js", "layout.js", "graph.js", "plots.js", "views.js", "panel.js", "app.js")
_ESCAPES: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
JSON = dict[str, Any]


class Page:
    """Some programs as one HTML document; a notebook shows it in a frame."""

    __slots__ = ("__dict__", "programs")

    def __init__(self, programs: Sequence[JSON]) -> None:
        self.programs: Final = list(programs)

    @cached_property
    def html(self) -> str:
        """The document."""
        style = _asset("explorer.css")
        script = "\n".join(map(_asset, SCRIPTS))
        policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}"
        names = ", ".join(dict.fromkeys(str(p["name"]) for p in self.programs))
        parts: Mapping[str, str] = {
            "TITLE": escape(f"{names} · Stratal"), "POLICY": escape(policy), "STYLE": style,
            "SCRIPT": script, "DATA": escaped(self.programs),
        }  # fmt: skip
        return "".join(parts.get(piece, piece) for piece in _asset("explorer.html").split("@@"))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document, whole or not at all. Raises: OSError."""
        target = Path(path)
        replace_whole(target, [self.html.encode()])
        return target

    def _repr_html_(self) -> str:
        """Return a frame of its own: neither the page's style nor its script reach the notebook."""
        frame = 'sandbox="allow-scripts" style="width:100%;height:720px;border:1px solid #8884"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        names = ", ".join(str(p["name"]) for p in self.programs)
        return f"<explorer page of {names}: {len(self.html.encode()):,} bytes>"


def escaped(value: object) -> str:
    """Return JSON that may stand inside an element of HTML."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str).translate(_ESCAPES)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the source expression of Content Security Policy for one inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
