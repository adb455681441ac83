"""The plan of one program: a JSON value that can be printed, saved, loaded, compared and named by its hash.

    name, graph (digest), target, threads, overrides
    fallbacks                 what failed and was compiled with less ambition: stage, error, outcome, from
    inputs, states, outputs   numbers of values
    values                    type, strides, home, index or offset, alias, label, from
    constants                 digests, in order
    commands                  {do: kernel | host | copy | loop | while | branch | once, ..}, nested
    memory                    bytes by purpose, `planned_peak_bytes` their sum
    calls                     native and host calls of one run, and which promises hold
    compile                   seconds, kernels, kernels from the cache

The hash covers what decides the result and where it lies: values, constants, and commands with the kernels'
own hashes. It leaves out names, source lines, estimates, times, threads and what the cache held.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from stratal.base.errors import FormatError
from stratal.plan.text import BODIES, estimated_seconds, nested, plan_to_html, plan_to_text

FORMAT: Final = 1
JSON = dict[str, Any]
_LASTING: Final = ("format", "target", "inputs", "states", "outputs", "constants", "overrides")
_LASTING_VALUE: Final = ("type", "strides", "home", "index", "offset", "alias")
_LASTING_COMMAND: Final = (
    "do", "frozen", "symbol", "op", "reads", "writes", "chunks", "ints", "floats",
    "trips", "trips_value", "counter", "reverse", "predicate",
)  # fmt: skip


class Plan:
    """What a program does when it runs, as data. Equal hashes mean equal results, to the bit."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        if value.get("format") != FORMAT:
            raise FormatError("plan: not a plan of this format", got=repr(value.get("format"))[:100])
        self._value: Final = dict(value)

    @cached_property
    def hash(self) -> str:
        """A hash of all that decides the result; the same in every process."""
        lasting: JSON = {key: self._value[key] for key in _LASTING}
        lasting["values"] = [_only(v, _LASTING_VALUE) for v in self._value["values"]]
        lasting["commands"] = [_lasting(c) for c in self._value["commands"]]
        text = json.dumps(lasting, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        return str(self._value["name"])

    @property
    def commands(self) -> list[JSON]:
        """The commands in order; loops and branches hold others."""
        return list(self._value["commands"])

    @property
    def kernels(self) -> list[JSON]:
        """Every kernel launch in order, nested ones included; `number` counts them from 1."""
        return [dict(c) for c, _ in nested(self._value["commands"]) if c["do"] == "kernel"]

    @property
    def host_calls(self) -> list[JSON]:
        """Every call of Python, with the reason."""
        return [dict(c) for c, _ in nested(self._value["commands"]) if c["do"] == "host"]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by purpose."""
        return dict(self._value["memory"])

    @property
    def planned_peak_bytes(self) -> int:
        """Bytes of everything a run needs: inputs, states, arena, outputs, scratch and constants."""
        return int(self._value["memory"]["planned_peak_bytes"])

    @property
    def estimated_seconds(self) -> float:
        """What the roofline gives one run; loops of unknown length count one trip."""
        return estimated_seconds(self._value["commands"])

    def __getitem__(self, key: str) -> Any:
        return self._value[key]

    def to_json(self) -> JSON:
        """Return the plan as a JSON value, its hash included."""
        return {**self._value, "hash": self.hash}

    @classmethod
    def from_json(cls, value: object) -> Plan:
        """Return the plan `to_json` gave. Raises: FormatError where it is none, or was altered since."""
        if not isinstance(value, dict):
            raise FormatError("plan: an object", got=type(value).__name__)
        written = value.get("hash")
        plan = cls({k: v for k, v in value.items() if k != "hash"})
        try:
            found = plan.hash
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("plan: a part is missing", got=repr(error)) from None
        if written is not None and written != found:
            raise FormatError(
                "plan: altered since it was written", got=f"{written}, its content gives {found}"
            )
        return plan

    def __str__(self) -> str:
        return plan_to_text(self._value, self.hash)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return plan_to_html(self._value, self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def diff(self, other: Plan) -> str:
        """Return how another plan differs from this one: a line diff of their prints, times left out."""
        mine, others = (plan_to_text(p._value, p.hash, lasting=True).splitlines() for p in (self, other))
        return "\n".join(difflib.unified_diff(mine, others, self.name, other.name, lineterm="", n=1))


def _only(value: Mapping[str, Any], keys: Sequence[str]) -> JSON:
    return {key: value[key] for key in keys if key in value}


def _lasting(command: JSON) -> JSON:
    kept = _only(command, _LASTING_COMMAND)
    return kept | {key: [_lasting(c) for c in command[key]] for key in BODIES if key in command}
