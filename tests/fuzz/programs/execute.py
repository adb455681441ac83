"""Run the text of a program in several ways and judge it.

A program defines `program(lib, compiled)` or, where the functions it compiles are the module's own,
`calls()`; both yield observations. Ways: eager (the oracle), lazy, compiled, torch. Verdicts:

    right     all ways see the same
    refused   the compiled run raises a CaptureError that names a line of the program, and all can be read
    wrong     a run sees something else
    raises    a run raises something that the oracle does not
    invalid   the program cannot be run uncompiled either: the generator's fault
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import importlib
import io
import linecache
import os
import random
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from programs.observe import NAME, STATE, difference, facts, look

FILE = f"/fuzzed/{NAME}.py"
WAYS = ("eager", "lazy", "compiled")
COMPILED = ("compiled", "unaudited")
ORDER = ("torch", "lazy", "compiled", "unaudited")  # in which ways are compared with the first


@dataclass
class Run:
    """What one run of a program saw."""

    seen: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    unreadable: str = ""  # what a failed call left behind


@dataclass
class Verdict:
    """How a program was judged; `cause` is what failures of one kind have in common."""

    verdict: str
    way: str = ""
    cause: str = ""
    detail: str = ""

    @property
    def fault(self) -> bool:
        return self.verdict not in ("right", "refused")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.verdict, self.way, self.cause


def judge(text: str, ways: tuple[str, ...] = WAYS, say: Callable[[str], None] = lambda way: None) -> Verdict:
    """Run a program in all ways; the first is the oracle."""
    runs = {}
    for way in ways:
        say(way)
        runs[way] = execute(text, way)
    oracle, *others = ways
    if "torch" in runs and runs["torch"].error is not None:
        return _raised("torch", runs["torch"], "invalid")
    if runs[oracle].error is not None:
        return _raised(oracle, runs[oracle], "raises" if "torch" in runs else "invalid")
    for way in sorted(others, key=ORDER.index):
        found = _compared(way, oracle, runs)
        if found is not None:
            return found
    return Verdict("right")


def _compared(way: str, first: str, runs: dict[str, Run]) -> Verdict | None:
    oracle, run = runs[first], runs[way]
    for k, (a, b) in enumerate(zip(oracle.seen, run.seen, strict=False)):
        if way == "torch":
            a = _entries_of_both(a, b)
        elif first == "torch":
            b = _entries_of_both(b, a)
        found = difference(a, b, f"call {k + 1}")
        if found:
            return Verdict("wrong", way, _place(found), " ".join(found.split()))
    if run.error is not None:
        if run.unreadable:
            return Verdict("raises", way, "left unreadable", f"{_text(run.error)}; then {run.unreadable}")
        refused = way in COMPILED and refusal(run.error)
        return _raised(way, run, "refused" if refused else "raises")
    if len(oracle.seen) != len(run.seen):
        return Verdict("wrong", way, "calls", f"{len(oracle.seen)} calls, but {len(run.seen)}")
    return None


def _entries_of_both(ours: Any, theirs: Any) -> Any:
    """Return our observation without the states of optimisers that PyTorch's lack."""
    return ({k: v for k, v in ours[0].items() if k in theirs[0] or not k.startswith(STATE)}, ours[1])


def refusal(error: BaseException) -> bool:
    """Return whether an error says by the user's line that a function is not captured."""
    from stratal.base.errors import CaptureError

    return isinstance(error, CaptureError) and any(line.file == FILE for line in error.where)


def execute(text: str, way: str) -> Run:
    """Run a program in one way, isolated as far as one process allows."""
    importlib.import_module("torch" if way == "torch" else "stratal")  # what it registers stays
    with contextlib.ExitStack() as stack:
        _restore_later(stack)
        return contextvars.copy_context().run(_execute, text, way)


def _restore_later(stack: contextlib.ExitStack) -> None:
    """Put back what programs change of the process."""
    import stratal as st

    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(st.set_grad_enabled(True))
    for mapping in (os.environ, sys.modules, vars(builtins)):
        stack.callback(_put_back, mapping, dict(mapping))
    stack.callback(os.chdir, os.getcwd())
    stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
    stack.callback(setattr, sys, "argv", sys.argv)
    stack.callback(setattr, threading.current_thread(), "name", threading.current_thread().name)


def _put_back(mapping: Any, before: dict[str, Any]) -> None:
    for name in [n for n in mapping if n not in before]:
        if mapping is not sys.modules or getattr(mapping[name], "__file__", None) in (None, FILE):
            del mapping[name]
    if mapping is not sys.modules:
        mapping.update(before)


def _execute(text: str, way: str) -> Run:
    import stratal as st

    lib: Any = st
    if way == "torch":
        lib = _torch()
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    module = types.ModuleType(NAME)
    module.__file__ = FILE
    sys.modules[NAME] = module
    compiled = functools.partial(st.compile, audit=way != "unaudited") if way in COMPILED else _unchanged
    vars(module).update(lib=lib, compiled=compiled, look=look, facts=facts)
    for seed in (random.seed, np.random.seed, lib.manual_seed):
        seed(0)
    run = Run()
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        if way == "eager":
            stack.enter_context(st.eager())
        try:
            exec(compile(text, FILE, "exec"), vars(module))
            made = module.program(lib, compiled) if hasattr(module, "program") else module.calls()
            for seen in made:
                run.seen.append((seen, sys.stdout.getvalue()))
        except Exception as error:
            run.error = error
            run.unreadable = _unreadable(error, module)
    return run


def _torch() -> Any:
    """Return PyTorch, with the rates of NAdam and ASGD in float64: it rounds them to its default dtype."""
    import torch

    for kind in (torch.optim.ASGD, torch.optim.NAdam):
        if not hasattr(kind.step, "rounding"):
            kind.step = _in_float64(torch, kind.step)  # type: ignore[method-assign]
    return torch


def _in_float64(torch: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return step(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    stepped.rounding = torch.float64  # type: ignore[attr-defined]
    return stepped


def _unchanged(function: Any) -> Any:
    return function


def _unreadable(error: BaseException, module: types.ModuleType) -> str:
    """Return which variable outside of the failed call cannot be read after an error."""
    from stratal.base.errors import StratalError

    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename == FILE]
    values = [*vars(module).items(), *(item for f in frames[:1] for item in f.f_locals.items())]
    for name, value in values:
        if name.startswith("__") or name in ("lib", "compiled", "look", "facts"):
            continue
        try:
            look(value)
        except StratalError as found:
            return f"{name}: {_text(found)}"
        except Exception:  # of the object's own: it refuses to be looked at
            continue
    return ""


def _raised(way: str, run: Run, verdict: str) -> Verdict:
    error = run.error
    assert error is not None
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/stratal/" in f.filename]
    place = f" in {ours[-1].name}" if ours and verdict != "refused" else ""
    rule = re.sub(r"[\d.]+|'[^']*'|\[[^]]*\]|\([^)]*\)", "_", str(error).split("\n")[0])
    where = [f"line {f.lineno}: {f.line}" for f in frames if f.filename == FILE]
    cause = f"{type(error).__name__}{place}: {rule}"[:160]
    return Verdict(verdict, way, cause, f"{_text(error)} (call {len(run.seen) + 1}, {where[-1:]})")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' | '.join(str(error).splitlines())}"[:400]


def _place(found: str) -> str:
    """Return what differs, less the numbers of calls, layers and parameters."""
    path = found.split(":")[0].split(".")[1:]
    if path == ["1"]:
        return "output"
    return " ".join(p for p in path if not p[:1].isdigit())[:40] or "values"
