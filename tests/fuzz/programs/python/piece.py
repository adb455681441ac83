"""A piece: the lines that one row of a table contributes to a program."""

from __future__ import annotations

from dataclasses import dataclass, field

CALLS = 6


@dataclass
class Piece:
    """Lines of a program, by place. `out` is the tensor that the compiled function computes, `x` its argument.

    label      what it is, as a table names it: "read int in a dict"
    setup      before the function is defined
    names      variables of the setup that are assigned anew
    parameters of the function, beyond `x`; `given` has their texts, by call
    body       in the function; may read and assign `out`
    results    returned beside `out`
    before     by call: statements ahead of it
    seen       observed after each call
    """

    label: str
    setup: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    given: list[list[str]] = field(default_factory=lambda: [[] for _ in range(CALLS)])
    body: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    before: list[list[str]] = field(default_factory=lambda: [[] for _ in range(CALLS)])
    seen: list[str] = field(default_factory=list)
