"""Programs of tests of captures, as text: a set-up, a function, what changes between its calls, what is seen.

A body is an expression of the arguments, or lines. All parts stand in one function, so that what the set-up
makes is in cells of the function. In a change and in what is given `i` is the number of the call. A part that
names them finds what all calls returned in `results`, what the last was given in `arguments`; if none does,
nothing is held from one call to the next. `folder` is the test's own.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable, Collection, Container
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from capture_kinds import SETUP

import stratal as st

PRELUDE = f"{SETUP}\nimport contextlib, io, statistics, threading\n"
TEMPLATE = """
def program(results, arguments, folder):
{setup}
{function}
    def change(i):
{change}
    def given(i):
        return ({given},)
    def seen():
        return [{seen}]
    return f, change, given, seen
"""


class Case(NamedTuple):
    setup: str
    body: str
    change: str = "pass"
    seen: str = ""  # after each call, beside its result
    given: str = "st.full((1,), i + 1.0)"
    parameters: str = "x"
    calls: int = 5
    at: Container[int] = (3,)  # the calls before which the change runs
    captures: Collection[int] = ()  # the counts that are right; none, if it does not matter
    rtol: float = 0
    atol: float = 0

    def program(self, results: list[Any], arguments: list[Any], folder: Path | None = None) -> Any:
        """Return the function, and functions for the other parts."""
        text = TEMPLATE.format(
            setup=_lines(self.setup, 1), function=_function(self.parameters, self.body),
            change=_lines(self.change, 2), given=self.given, seen=self.seen,
        )  # fmt: skip
        scope: dict[str, Any] = {"__name__": "capture_case"}
        exec(compile(PRELUDE + text, f"<case: {self.body}>", "exec", dont_inherit=True), scope)
        return scope["program"](results, arguments, folder)


def _lines(text: str, depth: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n") or "pass", "    " * depth)


def _function(parameters: str, body: str) -> str:
    if body.startswith("f = "):
        return _lines(body, 1)
    try:
        compile(body, "<body>", "eval")
    except SyntaxError:
        lines = body
    else:
        lines = f"return {body}"
    return f"    def f({parameters}):\n{_lines(lines, 2)}"


def plain(value: Any) -> Any:
    """Return tensors as lists, so that values compare and stay what they are."""
    if isinstance(value, st.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple | deque) else value


def history(case: Case, compiled: Callable[..., Any]) -> tuple[list[Any], Any]:
    """Return what is seen after each call, and the function that was called."""
    results: list[Any] = []
    arguments: list[Any] = []
    f, change, given, seen = case.program(results, arguments)
    f, found, parts = compiled(f), [], f"{case.change} {case.seen} {case.setup}"
    for i in range(case.calls):
        if i in case.at:
            change(i)
        passed = given(i)
        if "arguments" in parts:
            arguments[:] = passed
        try:
            result = f(*passed)
        except ArithmeticError as error:
            result = type(error)
        if "results" in parts:
            results.append(result)
        found.append([plain(result), plain(seen())])
        del passed, result  # what is computed into memory of theirs must be right, too
    return found, f


def check(case: Case, compiled: Callable[..., Any]) -> None:
    """A compiled function gives what it gives uncompiled, at as many captures as its case allows."""
    (found, f), (want, _) = history(case, compiled), history(case, lambda f: f)
    if case.rtol:
        rest, numbers = _parted(found)
        assert rest == _parted(want)[0]
        np.testing.assert_allclose(numbers, _parted(want)[1], case.rtol, case.atol)
    else:
        np.testing.assert_equal(found, want)
    assert not case.captures or f.captures in case.captures, f.reasons


def check_noticed(case: Case, compiled: Callable[..., Any]) -> None:
    """As `check`; and the change is one that shows."""
    unchanged, _ = history(case._replace(at=()), lambda f: f)
    assert unchanged != history(case, lambda f: f)[0]
    check(case, compiled)


def _parted(value: Any) -> tuple[Any, list[float]]:
    """Return a value with None for its numbers, and these."""
    if isinstance(value, dict):
        value = [[k, v] for k, v in value.items()]
    if isinstance(value, list):
        parts = [_parted(v) for v in value]
        return [rest for rest, _ in parts], [x for _, numbers in parts for x in numbers]
    return (None, [value]) if isinstance(value, int | float) else (value, [])
