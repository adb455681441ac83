"""Make a failing program small: delete what can go while the same kind of failure stays.

What can go: statements (one, or half of those that are left), arguments and keywords of calls, branches and
blocks around statements. Nothing here knows what the program is about.
"""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

from programs.execute import Verdict

_BLOCKS = ("body", "orelse", "finalbody", "handlers")


def shrunk(
    text: str, verdict: Verdict, judge: Callable[[str], Verdict], tries: int = 200, seconds: float = 300.0
) -> tuple[str, Verdict]:
    """Return the smallest text found that fails in the same way, and its verdict."""
    tree, best = ast.parse(text), (ast.unparse(ast.parse(text)), verdict)
    until, left, start = time.monotonic() + seconds, tries, 0
    size = max(1, _count(tree) // 2)
    while left > 0 and time.monotonic() < until:
        for k, smaller in enumerate(_smaller(tree, size, start)):
            candidate = ast.unparse(smaller)
            if candidate == best[0] or not _compiles(candidate):
                continue
            left -= 1
            found = judge(candidate)
            if found.key == verdict.key:
                tree, best, start = smaller, (candidate, found), start + k
                break
            if left <= 0 or time.monotonic() > until:
                break
        else:
            if start:
                start = 0
            elif size > 1:
                size = size // 2
            else:
                break
    return best


def _compiles(text: str) -> bool:
    try:
        compile(text, "candidate", "exec")
    except SyntaxError:
        return False
    return True


def _blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        for name in _BLOCKS:
            if isinstance(getattr(node, name, None), list) and getattr(node, name):
                yield node, name


def _count(tree: ast.AST) -> int:
    return sum(len(getattr(node, name)) for node, name in _blocks(tree))


def _smaller(tree: ast.Module, size: int, start: int) -> Iterator[ast.Module]:
    """Yield trees without `size` statements, later ones first; without a part of one statement."""
    edits: list[Callable[[ast.Module], None]] = []
    for b, (node, name) in enumerate(_blocks(tree)):
        count = len(getattr(node, name))
        edits += (
            [_without(b, at, size) for at in range(max(0, count - size), -1, -1)] if count >= size else []
        )
    if size == 1:
        edits += [
            _unwrapped(b, at)
            for b, (n, name) in enumerate(_blocks(tree))
            for at in range(len(getattr(n, name)))
        ]
        edits += [
            _fewer_arguments(c, part, at)
            for c, call in enumerate(_calls(tree))
            for part in ("args", "keywords", "elts")
            for at in range(len(getattr(call, part, ())))
        ]
    for edit in edits[start:]:
        made = copy.deepcopy(tree)
        edit(made)
        yield made


def _without(block: int, at: int, size: int) -> Callable[[ast.Module], None]:
    def edit(tree: ast.Module) -> None:
        node, name = list(_blocks(tree))[block]
        statements = getattr(node, name)
        del statements[at : at + size]
        if not statements and name == "body" and not isinstance(node, ast.Module):
            statements.append(ast.Pass())

    return edit


def _unwrapped(block: int, at: int) -> Callable[[ast.Module], None]:
    """Put what is inside an `if`, `with` or `for` in its place."""

    def edit(tree: ast.Module) -> None:
        node, name = list(_blocks(tree))[block]
        statements = getattr(node, name)
        if isinstance(statements[at], (ast.If, ast.With, ast.Try)):
            statements[at : at + 1] = statements[at].body

    return edit


def _calls(tree: ast.AST) -> list[ast.AST]:
    return [n for n in ast.walk(tree) if isinstance(n, (ast.Call, ast.List, ast.Tuple))]


def _fewer_arguments(call: int, part: str, at: int) -> Callable[[ast.Module], None]:
    def edit(tree: ast.Module) -> None:
        del getattr(_calls(tree)[call], part)[at]

    return edit
