"""Algorithms as text: lines of Python that build them, read back without running any Python.

algorithm := line ...
line      := name "= placeholder(" shape "," dtype ")" | name "= reduce_axis(" int ")"
           | name "= compute(" shape ", lambda" axis, ... ":" body ("," dtype)? ")"
body      := term | combiner "(" term ", axis=" axis-or-tuple ")"
"""

from __future__ import annotations

import ast
from typing import Any, Final

from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError, StratalError
from stratal.loops.te.algorithm import Algorithm
from stratal.loops.te.tensor import Computed, Tensor, compute, placeholder, reduce_axis, with_names
from stratal.loops.te.term import CALLED, FUNCTIONS, Axis, Term, apply, cast, reduction

_COMBINERS: Final = ("sum", "prod", "max", "min", "any", "all")
_INFIX: Final = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.BitAnd: "and", ast.BitOr: "or", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge",
}  # fmt: skip
_FUNCTION_OF: Final = {CALLED.get(n, n): n for n in FUNCTIONS}
_MAX_TEXT: Final = 1 << 20


# -- reading ---------------------------------------------------------------------------------------------
def parse_algorithm(text: str) -> Algorithm:
    """Read an algorithm; its results are the tensors nothing else reads. Raises: FormatError."""
    if len(text) > _MAX_TEXT:
        raise FormatError("te: an algorithm of more than a megabyte", got=f"{len(text)} characters")
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError("te: an algorithm is lines of Python", got=str(error)) from None
    reader = _Reader(text)
    for line in module.body:
        reader.line(line)
    read = {r for t in reader.tensors.values() if isinstance(t, Computed) for r in t.reads}
    results = [t for t in reader.tensors.values() if isinstance(t, Computed) and t not in read]
    if not results:
        raise FormatError("te: an algorithm computes something", got=text[:200])
    return Algorithm(*results)


class _Reader:
    """What the lines so far have named."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tensors: dict[str, Tensor] = {}
        self.axes: dict[str, Axis] = {}

    def error(self, what: str, node: ast.AST) -> FormatError:
        got = ast.get_source_segment(self.text, node) or ""
        return FormatError(
            f"te: {what}", got=f"line {getattr(node, 'lineno', 0)}: {got[:200]}",
            hint="docs/schedule.md has the grammar; print(algorithm) shows an example",
        )  # fmt: skip

    def line(self, node: ast.stmt) -> None:
        if not (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            raise self.error(
                "a line is `name = placeholder(...)`, `reduce_axis(...)` or `compute(...)`", node
            )
        name, made, kind = node.targets[0].id, node.value, node.value.func.id
        if name in self.tensors or name in FUNCTIONS or name in _COMBINERS:
            raise self.error(f"{name!r} is taken", node)
        try:
            self._define(name, kind, made)
        except FormatError:
            raise
        except (StratalError, IndexError) as error:
            raise self.error(getattr(error, "rule", "an argument is missing"), node) from None

    def _define(self, name: str, kind: str, made: ast.Call) -> None:
        if kind == "reduce_axis":
            self.axes[name] = reduce_axis(self.literal(made.args[0]), name)
        elif kind == "placeholder":
            dtype = self.literal(made.args[1]) if len(made.args) > 1 else "float32"
            self.tensors[name] = placeholder(self.literal(made.args[0]), dtype, name)
        elif kind == "compute":
            self.tensors[name] = self._compute(name, made)
        else:
            raise self.error(f"there is no {kind!r}", made)

    def _compute(self, name: str, made: ast.Call) -> Computed:
        shape, function = self.literal(made.args[0]), made.args[1]
        if not isinstance(function, ast.Lambda):
            raise self.error("compute takes a lambda", made)
        names = [a.arg for a in function.args.args]
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if len(names) != len(sizes):
            raise self.error("one index per axis", made)
        dtype = next((self.literal(k.value) for k in made.keywords if k.arg == "dtype"), None)
        scope = self.axes
        own: list[Axis] = []

        def body(*indices: Axis) -> Term:
            own.extend(indices)
            self.axes = {**scope, **dict(zip(names, indices, strict=True))}
            found: Term = self.body(function.body)
            return found

        try:
            return compute(shape, with_names(body, names), name, dtype)
        finally:
            self.axes = scope

    def literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise self.error("a literal was expected", node) from None

    def body(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMBINERS:
            axis = next((k.value for k in node.keywords if k.arg == "axis"), None)
            if len(node.args) != 1 or axis is None:
                raise self.error(f"{node.func.id} takes a term and axis=...", node)
            names = axis.elts if isinstance(axis, ast.Tuple) else [axis]
            return reduction(node.func.id, self.term(node.args[0]), tuple(self.term(n) for n in names))
        return self.term(node)

    def term(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            tensor = self.tensors.get(node.value.id)
            if tensor is None:
                raise self.error(f"no tensor is called {node.value.id!r}", node)
            where = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tensor[tuple(self.term(i) for i in where)]
        if isinstance(node, ast.BinOp) and type(node.op) in _INFIX:
            return apply(_INFIX[type(node.op)], self.term(node.left), self.term(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _INFIX:
            return apply(_INFIX[type(node.ops[0])], self.term(node.left), self.term(node.comparators[0]))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.term(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return apply("not", self.term(node.operand))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node, node.func.id)
        raise self.error("not a term", node)

    def _name(self, node: ast.Name) -> Any:
        words = {"inf": float("inf"), "nan": float("nan")}
        if node.id in words:
            return words[node.id]
        if node.id not in self.axes:
            raise self.error(f"no axis is called {node.id!r}", node)
        return self.axes[node.id]

    def _call(self, node: ast.Call, name: str) -> Term:
        if name == "cast":
            return cast(self.term(node.args[0]), as_dtype(self.literal(node.args[1])))
        if name not in _FUNCTION_OF:
            raise self.error(f"there is no function {name!r}", node)
        return apply(_FUNCTION_OF[name], *[self.term(a) for a in node.args])
