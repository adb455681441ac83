"""Attribute values as text: printed so that they parse back to the same value.

value := int | float | true | false | none | "string" | dtype | (value, ...) | literal | { graph }
literal := dtype[dims]{value, ...} | dtype[dims]{base64:...}
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from stratal.base.dims import Sym
from stratal.base.dtypes import ALL, as_dtype
from stratal.base.errors import FormatError
from stratal.base.types import TensorType

_INLINE = 16  # literals up to this many elements are printed one by one
_SHORT = {d.short: d for d in ALL}


@final
class Literal:
    """An immutable array as an attribute value: equal and hashed by its bytes."""

    __slots__ = ("_digest", "array", "type")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        own = np.array(array, order="C", copy=True)
        own.flags.writeable = False
        self.array: Final = own
        self.type: Final = TensorType(as_dtype(own.dtype), own.shape)
        self._digest: Final = hashlib.blake2b(own.tobytes(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.type == other.type and self._digest == other._digest

    def __hash__(self) -> int:
        return hash((self.type, self._digest))

    def __str__(self) -> str:
        if self.array.size <= _INLINE and not self.type.dtype.is_complex:
            body = ", ".join(show(v) for v in self.array.astype(self.array.dtype).ravel().tolist())
        else:
            body = "base64:" + base64.b64encode(self.array.tobytes()).decode()
        return f"{self.type}{{{body}}}"

    __repr__ = __str__


def show(value: object) -> str:
    """Return the text of an attribute value."""
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(str(value), "nan")
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(map(show, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Sym):
        return f"dim({json.dumps(str(value))})"
    return str(value)


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<base64>base64:[A-Za-z0-9+/=]*)
    |(?P<number>[-+]?(?:inf|nan|\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d+)(?![A-Za-z_]))
    |(?P<name>[%@]?[A-Za-z_0-9][A-Za-z_0-9.]*)
    |(?P<arrow><-|->)
    |(?P<punct>[][(){},:=]))""",
    re.VERBOSE,
)


class Tokens:
    """A cursor over the tokens of a text form; errors name the line and the text found."""

    def __init__(self, text: str) -> None:
        self.items: list[tuple[str, str, int]] = []
        self.at = 0
        for number, line in enumerate(text.split("\n"), 1):
            line = _strip_comment(line)
            position = 0
            while position < len(line.rstrip()):
                match = _TOKEN.match(line, position)
                if match is None or match.lastgroup is None:
                    raise FormatError(
                        "text form: unexpected text", got=f"line {number}: {line[position : position + 40]!r}"
                    )
                self.items.append((match.lastgroup, match.group(match.lastgroup), number))
                position = match.end()

    def peek(self, ahead: int = 0) -> str:
        i = self.at + ahead
        return self.items[i][1] if i < len(self.items) else ""

    def kind(self) -> str:
        return self.items[self.at][0] if self.at < len(self.items) else ""

    def take(self, expected: str | None = None) -> str:
        text = self.peek()
        if (expected is not None and text != expected) or not text:
            line = self.items[min(self.at, len(self.items) - 1)][2] if self.items else 0
            raise FormatError(f"text form: expected {expected or 'more text'}", got=f"line {line}: {text!r}")
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False


def _strip_comment(line: str) -> str:
    if "#" not in line:
        return line
    quoted = False
    for i, c in enumerate(line):
        if c == '"' and (i == 0 or line[i - 1] != "\\"):
            quoted = not quoted
        if c == "#" and not quoted:
            return line[:i]
    return line


def parse_type(tokens: Tokens) -> TensorType:
    """Parse `f32[2,3]`. Symbolic sizes do not parse back."""
    name = tokens.take()
    if name not in _SHORT:
        raise FormatError("text form: not a dtype", got=repr(name))
    tokens.take("[")
    dims: list[int] = []
    while not tokens.accept("]"):
        dims.append(int(tokens.take()))
        tokens.accept(",")
    return TensorType(_SHORT[name], dims)


def parse_value(tokens: Tokens, graph: Callable[[Tokens], Any]) -> Any:
    """Parse one attribute value; `graph` parses a nested `{ ... }` region."""
    kind, text = tokens.kind(), tokens.peek()
    if kind == "string":
        return json.loads(tokens.take())
    if kind == "number":
        tokens.take()
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    if text == "(":
        tokens.take()
        items = []
        while not tokens.accept(")"):
            items.append(parse_value(tokens, graph))
            tokens.accept(",")
        return tuple(items)
    if text == "graph":
        return graph(tokens)
    if text in ("true", "false", "none"):
        tokens.take()
        return {"true": True, "false": False, "none": None}[text]
    if text in _SHORT and tokens.peek(1) == "[":
        return _parse_literal(tokens)
    if text in _SHORT:
        tokens.take()
        return _SHORT[text]
    raise FormatError("text form: not an attribute value", got=repr(text))


def _parse_literal(tokens: Tokens) -> Literal | TensorType:
    type_ = parse_type(tokens)
    if not tokens.accept("{"):
        return type_
    shape = type_.ints
    if tokens.kind() == "base64":
        data = base64.b64decode(tokens.take()[len("base64:") :])
        tokens.take("}")
        if len(data) != type_.nbytes:
            raise FormatError("text form: literal of the wrong size", got=f"{len(data)} bytes for {type_}")
        return Literal(np.frombuffer(data, type_.dtype.np).reshape(shape))
    values = []
    while not tokens.accept("}"):
        values.append(parse_value(tokens, lambda _: None))
        tokens.accept(",")
    if len(values) != math.prod(shape):
        raise FormatError("text form: literal of the wrong size", got=f"{len(values)} values for {type_}")
    return Literal(np.array(values, dtype=type_.dtype.np).reshape(shape))
