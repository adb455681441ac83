"""Rules as JSON: the file that ships, and those that `stratal discover` writes.

    file  := {"format": "stratal-rules", "version": 1, "counts": {text: number ...}, "rules": [rule ...]}
    rule  := {"inputs": {variable: [size ...]}, "dtype", "lhs": side, "rhs": side, "class": "exact" | "real",
              "sizes": {symbol: number}, "attributes": {name: [value ...]}, "given": text,
              "certificate": text}
    side  := variable | [op, {attribute: value}, side ...]
    value := {"is": literal} | {"sizes": [size ...]} | {"any": name} | {"like": side}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import FormatError
from stratal.discover.rules import Applied, FoundRule, Free, Like, Literal, Side, Sizes, Value
from stratal.graph.literal import Literal as Scalar

FORMAT: Final = "stratal-rules"
VERSION: Final = 1
MOST_SIZE: Final = 1 << 20  # of an axis that a rule was proved at

def to_json(rule: FoundRule) -> dict[str, Any]:
    """Return a rule as JSON; literals as `graph.literal` prints them."""
    return {
        "inputs": {x: list(shape) for x, shape in rule.inputs.items()},
        "dtype": rule.dtype.name,
        "lhs": _side_to_json(rule.lhs),
        "rhs": _side_to_json(rule.rhs),
        "class": "exact" if rule.exact else "real",
        "sizes": dict(rule.sizes),
        "attributes": {n: [_plain(v) for v in values] for n, values in rule.attributes.items()},
        "given": rule.given,
        "certificate": rule.certificate,
    }


def _side_to_json(side: Side) -> Any:
    if isinstance(side, str):
        return side
    attributes = {k: _value_to_json(v) for k, v in side.attributes.items()}
    return [side.op, attributes, *map(_side_to_json, side.arguments)]


def from_json(data: Any) -> FoundRule:
    """Return a rule from its JSON. Raises: FormatError."""
    try:
        if data["class"] not in ("exact", "real"):
            raise ValueError(f"a class of {data['class']!r}")
        if not isinstance(data["dtype"], str):
            raise ValueError(f"a dtype of {data['dtype']!r}")
        if not all(type(n) is int and 1 <= n <= MOST_SIZE for n in data["sizes"].values()):
            raise ValueError(f"sizes of {data['sizes']}")
        return FoundRule(
            {x: tuple(shape) for x, shape in data["inputs"].items()},
            _side_from_json(data["lhs"]),
            _side_from_json(data["rhs"]),
            dict(data["sizes"]),
            data["class"] == "exact",
            data["certificate"],
            {n: tuple(map(_value, values)) for n, values in data["attributes"].items()},
            as_dtype(data["dtype"]),
            data["given"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError("rules: not a rule", got=f"{type(error).__name__}: {error}"[:200]) from error


def _side_from_json(data: Any) -> Side:
    if isinstance(data, str):
        return data
    op, attributes, *arguments = data
    values = {k: _value_from_json(v) for k, v in attributes.items()}
    return Applied(op, values, tuple(map(_side_from_json, arguments)))


def _value_to_json(value: Value) -> Any:
    if isinstance(value, Sizes):
        return {"sizes": list(value.texts)}
    if isinstance(value, Like):
        return {"like": _side_to_json(value.side)}
    return {"any": value.name} if isinstance(value, Free) else {"is": _plain(value.value)}


def _value_from_json(data: Any) -> Value:
    if "sizes" in data:
        return Sizes(tuple(data["sizes"]))
    if "like" in data:
        side = _side_from_json(data["like"])
        if isinstance(side, str):
            raise FormatError("rules: a shape like that of a variable", got=side)
        return Like(side)
    return Free(data["any"]) if "any" in data else Literal(_value(data["is"]))


def _plain(value: Any) -> Any:
    """Return an attribute as JSON: tuples as lists, dtypes by name, scalars. Raises: FormatError."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, Scalar) and value.type.ndim == 0:
        return {"scalar": value.array.item(), "dtype": value.type.dtype.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise FormatError("rules: an attribute that no file holds", got=repr(value))


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(map(_value, data))
    if not isinstance(data, dict):
        return data
    dtype = as_dtype(data["dtype"])
    return Scalar(np.asarray(data["scalar"], dtype.np)) if "scalar" in data else dtype


def text_of_rules(rules: Sequence[FoundRule], counts: Mapping[str, int]) -> str:
    """Return the text of a file, a rule on a line."""
    head = json.dumps({"format": FORMAT, "version": VERSION, "counts": dict(counts)})[:-1]
    rows = ",\n".join(json.dumps(to_json(r)) for r in rules)
    return f'{head}, "rules": [\n{rows}\n]}}\n'


def read_rules(path: Path | None = None) -> tuple[list[FoundRule], dict[str, int]]:
    """Return the rules of a file, of the one that ships where none is named, and its counts.

    Raises: FormatError.
    """
    file = path or resources.files("stratal.discover").joinpath("rules.json")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError("rules: not JSON", got=str(error)[:200]) from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise FormatError("rules: not a file of rules", got=f"{str(data)[:60]}")
    if not isinstance(data.get("rules"), list) or not isinstance(data.get("counts"), dict):
        raise FormatError("rules: not a file of rules", got="no list of rules, or no counts")
    return [from_json(r) for r in data["rules"]], dict(data["counts"])
