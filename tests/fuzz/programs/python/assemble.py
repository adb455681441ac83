"""Programs of pieces: the source text of a compiled function and of its calls, with changes in between."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator

from programs.pool import Program
from programs.python.issues import ISSUES
from programs.python.kinds import KINDS
from programs.python.library import library_programs
from programs.python.piece import CALLS, Piece
from programs.python.rows import cells, drawn, drawn_pass, renamed

_MODULES = (
    "abc", "builtins", "contextlib", "contextvars", "decimal", "enum", "functools", "heapq", "importlib", "io", "itertools",
    "logging", "math", "operator", "os", "random", "re", "sys", "tempfile", "threading", "time", "types", "warnings", "weakref",
)  # fmt: skip
_NAMES = {
    "argparse": ("Namespace",),
    "array": ("array",),
    "collections": ("ChainMap", "Counter", "OrderedDict", "UserDict", "UserList", "defaultdict", "deque"),
    "dataclasses": ("dataclass",),
    "datetime": ("date", "datetime", "timedelta"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "pathlib": ("Path",),
    "types": ("SimpleNamespace",),
    "typing": ("NamedTuple",),
    "uuid": ("UUID",),
}
_HELPERS = {
    "one": "def one(k): return lib.full((1,), float(k))",
    "touch": "def touch(r):\n    if hasattr(r, 'add_') and not r.requires_grad: r.add_(1)",
}
SHELLS = ("function", "local", "helper", "method", "instances", "forward", "nested", "grad", "sizes", "modes", "fails")
_ORDER = (r"a\d+$", r"a\d+=", r"\*a", r"\*, a", r"\*\*")


def headed(text: str) -> str:
    """Return a text with the imports and helpers it uses."""
    words = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    lines = [code for name, code in _HELPERS.items() if name in words]
    read = set(re.findall(r"(?<![\w.])([A-Za-z_]\w*(?:\.\w+)*)\.", text))
    read = {name for dotted in read for name in itertools.accumulate(dotted.split("."), "{}.{}".format)}
    imports = [f"import {name}" for name in _MODULES if name in read]
    imports += [
        f"from {module} import {', '.join(n for n in names if n in words)}"
        for module, names in _NAMES.items()
        if words & set(names)
    ]
    if "np" in read:
        imports.append("import numpy as np")
    return "\n".join([*imports, *lines, text])


def assembled(pieces: list[Piece], shell: str = "function", touch: bool = False) -> str:
    """Return the text of a program."""
    parameters = sorted((p for piece in pieces for p in piece.parameters), key=_form)
    order = [(p, piece, i) for piece in pieces for i, p in enumerate(piece.parameters)]
    order.sort(key=lambda entry: _form(entry[0]))
    names = list(dict.fromkeys(name for piece in pieces for name in piece.names))
    assigned = list(dict.fromkeys([*names, *_assigned(pieces)]))
    setup = [line for piece in pieces for line in piece.setup]
    inside = [f"{'nonlocal' if shell == 'local' else 'global'} {', '.join(names)}"] if names else []
    body = [*inside, "out = x * 1.0", *(line for piece in pieces for line in piece.body)]
    if shell == "sizes":
        body.append("out = out - out.mean() * x.amax()")
    if shell == "fails":
        body.append("if failing: raise ValueError('midway')")
    results = [r for piece in pieces for r in piece.results]
    body.append(f"return {', '.join(['out', *results])}")
    signature = ", ".join(["x", *parameters])
    setup += _definition(shell, signature, body, [_passed_on(p) for p in parameters])
    calls = [line for k in range(CALLS) for line in _call(k, pieces, order, shell, touch)]
    if shell == "local":
        return headed("\n".join(["def calls():", *_indented([*setup, *calls])]))
    declared = [*assigned, *(["failing"] if shell == "fails" else [])]
    scope = [f"global {', '.join(declared)}"] if declared else []
    return headed("\n".join([*setup, "def calls():", *_indented([*scope, *calls])]))


def _form(parameter: str) -> int:
    return next((k for k, form in enumerate(_ORDER) if re.match(form, parameter)), 0)


def _passed_on(parameter: str) -> str:
    if parameter.startswith("*, "):
        return f"{parameter[3:]}={parameter[3:]}"
    return parameter.split("=")[0]


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _assigned(pieces: list[Piece]) -> Iterator[str]:
    """Yield variables that statements ahead of calls bind."""
    for piece in pieces:
        known = set(piece.names)
        for lines in piece.before:
            for node in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in known:
                    yield node.id


def _definition(shell: str, signature: str, body: list[str], passed_on: list[str]) -> list[str]:
    """Return the lines that define `f`."""
    on = ", ".join(["x", *passed_on])
    if shell == "helper":
        return [f"def inner({signature}):", *_indented(body), "@compiled", f"def f({signature}):", f"    return inner({on})"]
    if shell == "nested":
        return ["@compiled", f"def inner({signature}):", *_indented(body), "@compiled", f"def f({signature}):",
                f"    return inner({on})"]  # fmt: skip
    if shell in ("method", "instances"):
        method = ["@compiled", f"def f(self, {signature}):", *_indented(body)]
        equal = ["def __eq__(self, other): return True", "def __hash__(self): return 1"]
        lines = ["class Model:", *_indented([*(equal if shell == "instances" else []), *method])]
        return [*lines, "models = [Model(), Model()]"]
    if shell == "forward":
        return ["class Net(lib.nn.Module):", *_indented([f"def forward(self, {signature}):", *_indented(body)]),
                "f = compiled(Net())"]  # fmt: skip
    lines = ["@compiled", f"def f({signature}):", *_indented(body)]
    return ["failing = False", *lines] if shell == "fails" else lines


def _call(k: int, pieces: list[Piece], order: list[tuple[str, Piece, int]], shell: str, touch: bool) -> list[str]:
    """Return the lines of call `k`: changes, arguments, the call, what is seen."""
    size = (3, 5, 4, 7, 3, 2)[k] if shell == "sizes" else 3
    lines = [f"x = lib.arange({size}.0) + {k + 1}"]
    if shell in ("grad", "modes"):
        lines.append("x.requires_grad_(True)")
    if shell == "fails":
        lines.append(f"failing = {k in (0, 2)}")
    lines += [line for piece in pieces for line in piece.before[k]]
    given = ", ".join(["x", *(piece.given[k][i] for _, piece, i in order)])
    f = {"method": "models[0].f", "instances": f"models[{k % 2}].f"}.get(shell, "f")
    call = f"{f}({given})"
    seen = [s for piece in pieces for s in piece.seen if s != "GROWS"]
    known = [f"{name}={name}" for name in ("x", *_known(pieces)) if name not in seen]
    look = ", ".join(["r", *seen, *(["x.grad"] if shell == "grad" else []), *known])
    if any("GROWS" in piece.seen for piece in pieces):
        return [*lines, *(["last = 0.0"] if k == 0 else []), f"r = float({call}.double().sum())", "yield r > last", "last = r"]
    if shell == "fails":
        return [*lines, f"try: r = {call}", "except ValueError as error: r = str(error)", f"yield look({look})"]
    if shell == "modes" and k % 2:
        lines += ["with lib.no_grad():", f"    r = {call}"]
    else:
        lines.append(f"r = {call}")
    if shell == "grad":
        lines.append("(r[0] if isinstance(r, tuple) else r).sum().backward()")
    lines.append(f"yield look({look})")
    if touch:
        lines += ["touch(r[1])", f"yield look({', '.join(known)})"]
    return lines


def _known(pieces: list[Piece]) -> list[str]:
    """Return variables of pieces whose identity a result may show."""
    names = []
    for piece in pieces:
        if piece.label.startswith("return") and piece.setup:
            for node in ast.parse("\n".join(piece.setup)).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    names.append(node.targets[0].id)
    return names


def cell_programs(every: int = 1) -> Iterator[tuple[str, Program]]:
    """Yield a program for every cell of the tables and every report, with its group.

    Of the tables whose rows are combined only each `every`-th cell.
    """
    pieces = list(cells())
    sampled = [pair for pair in pieces if pair[0] != "library"][::every]
    for group, piece in sampled + [pair for pair in pieces if pair[0] == "library"]:
        yield group, Program(piece.label, assembled([piece], touch=group == "return"))
    for name, text in ISSUES.items():
        yield "issue", Program(name, headed(text))
    for name, text in library_programs():
        yield "library", Program(f"library: {name}", headed(text))


def mixed(seed: int, k: int) -> Program:
    """Draw a program of several pieces in some shell. Kinds are dealt in turn: soon each was passed to a function."""
    rng = random.Random(f"{seed}:{k}")
    kinds = random.Random(seed).sample(list(KINDS.values()), len(KINDS))
    pieces = [renamed(drawn_pass(rng, 0, kinds[k // 2 % len(kinds)]), 0)]
    for n in range(1, rng.choice([1, 1, 2, 2, 3, 4])):
        special = not any(_form(p) for piece in pieces for p in piece.parameters)
        special = special and not any(piece.label.startswith("alias") for piece in pieces)
        pieces.append(renamed(drawn(rng, n, special), n))
    sized = any(p.label.startswith(("library", "alias", "effect")) or "(3)" in "".join([*p.setup, *p.results]) for p in pieces)
    graded = any("backward()" in "".join([*p.setup, *p.body]) for p in pieces)
    if graded:  # not where gradients are off
        pieces = [p for p in pieces if p.label != "ask grad mode"]
    graded |= any("x.mul_(-1)" in line or "x.add_(1)" in line for p in pieces for line in p.results)  # where x takes gradients: refused
    unfit = ("grad", "sizes", "modes") if sized else ("grad", "modes") if graded else ()
    shell = rng.choice([s for s in SHELLS if s not in unfit])
    return Program(f"{shell}: " + " + ".join(p.label for p in pieces), assembled(pieces, shell))
