"""The text form of kernels, read back: the inverse of `stmt.kernel_to_text`.

    kernel  := "kernel" name ":" declaration* block
    decl    := ("in" | "out" | "scratch" | "register") name ":" dtype "[" ints "]" ("strides[" ints "]")?
    stmt    := ("for" | "parallel" | "unroll" | "vector") name "in" int ":" block
             | "if" expr ":" block ("else:" block)?
             | "gemm" name "in" int "," name "in" int "," name "in" int ":" block
             | name "[" exprs "]" "=" expr | "prefetch" name "[" exprs "]" ("+" int)?
             | "fail" int "if" expr | "let" %n "=" expr | "pass"
    expr    := number (":" dtype)? | name | name "[" exprs "]" | "(" expr operator expr ")" | %n
             | fn ("." dtype)? "(" exprs ")" | "guard(" exprs ")" | "lanes." fn "(" name "in" int ":" expr ")"

Blocks are indented by two spaces. A loop variable means the innermost loop of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

from stratal.base.dtypes import ALL, DType, as_dtype, int64
from stratal.base.errors import FormatError, VerifyError
from stratal.loops.expr import INFIX, Buffer, Expr, Var, call, const, guard, lanes
from stratal.loops.stmt import Fail, For, If, Kernel, LoopKind, Prefetch, ProductCall, Seq, Stmt, Store

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<name>%\d+|[A-Za-z_][\w.]*)|(?P<sign>//|<=|>=|==|!=|[-+*/%<>&|()\[\],:=]))"
)
_OPERATORS: Final = {symbol: fn for fn, symbol in INFIX.items()}
_LOOPS: Final[dict[str, LoopKind]] = {
    "for": "serial", "parallel": "parallel", "unroll": "unroll", "vector": "vector"
}  # fmt: skip
_DTYPES: Final = frozenset(d.short for d in ALL)
_WORDS: Final = {"nan": float("nan"), "inf": float("inf"), "True": True, "False": False}


class _Line:
    """The tokens of one line, consumed from the left."""

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number
        self.indent = len(text) - len(text.lstrip())
        self.tokens: list[str] = []
        at = 0
        body = text.rstrip()
        while at < len(body):
            match = _TOKEN.match(body, at)
            if match is None:
                raise self.error(f"unexpected {body[at:].strip()[:20]!r}")
            self.tokens.append(match.group().strip())
            at = match.end()
        self.at = 0

    def error(self, what: str) -> FormatError:
        return FormatError(f"kernel text: {what}", got=f"line {self.number}: {self.text.strip()[:200]}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise self.error("the line ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, *wanted: str) -> None:
        for w in wanted:
            if (got := self.take()) != w:
                raise self.error(f"{w!r} expected, not {got!r}")

    def integer(self) -> int:
        negative = self.peek() == "-" and bool(self.take())
        token = self.take()
        if not token.isdigit():
            raise self.error(f"an integer expected, not {token!r}")
        return -int(token) if negative else int(token)

    def integers(self) -> list[int]:
        """Read `[1, 2, 3]`."""
        self.expect("[")
        found: list[int] = []
        while self.peek() != "]":
            found.append(self.integer())
            if self.peek() == ",":
                self.take()
        self.expect("]")
        return found

    def end(self) -> None:
        if self.at != len(self.tokens):
            raise self.error(f"{self.peek()!r} is too much")


class _Parser:
    """Lines, the buffers declared so far and the `let` names of the statement at hand."""

    def __init__(self, text: str) -> None:
        numbered = enumerate(text.splitlines(), 1)
        self.lines = [_Line(line, k) for k, line in numbered if line.strip()]
        self.next = 0
        self.buffers: dict[str, Buffer] = {}
        self.lets: dict[str, Expr] = {}

    def line(self) -> _Line | None:
        return self.lines[self.next] if self.next < len(self.lines) else None

    # -- statements ----------------------------------------------------------------------------------------
    def block(self, indent: int, scope: Mapping[str, Var]) -> Stmt:
        """Read the statements of one indentation."""
        found: list[Stmt] = []
        empty = True
        while (line := self.line()) is not None and line.indent == indent:
            empty = False
            if line.peek() == "else":
                break
            self.next += 1
            try:
                found += self.one(line, indent, scope)
            except VerifyError as wrong:  # of the functions that build expressions
                raise line.error(wrong.rule) from None
        if empty:
            raise FormatError("kernel text: a block is empty", got=f"indentation {indent}")
        return found[0] if len(found) == 1 else Seq(found)

    def one(self, line: _Line, indent: int, scope: Mapping[str, Var]) -> list[Stmt]:
        """Read what starts on `line`: a statement, or a definition, which is none."""
        if line.peek() == "let":
            self.let(line, scope)
            return []
        if line.tokens == ["pass"]:
            return [Seq(())]
        statement = self.statement(line, indent, scope)
        self.lets = {}
        return [statement]

    def let(self, line: _Line, scope: Mapping[str, Var]) -> None:
        line.expect("let")
        name = line.take()
        line.expect("=")
        self.lets[name] = self.expression(line, scope)
        line.end()

    def statement(self, line: _Line, indent: int, scope: Mapping[str, Var]) -> Stmt:
        word = line.take()
        if word in _LOOPS and line.peek() not in ("[", "="):
            return self.loop(line, word, indent, scope)
        if word == "gemm" and line.peek() not in ("[", "="):
            return self.product(line, indent, scope)
        if word == "if":
            return self.conditional(line, indent, scope)
        if word == "fail":
            code = line.integer()
            line.expect("if")
            condition = self.expression(line, scope)
            line.end()
            return Fail(condition, code)
        prefetched = word == "prefetch" and line.peek() not in ("[", "=")
        name = line.take() if prefetched else word
        buffer = self.buffers.get(name)
        if buffer is None:
            raise line.error(f"no buffer is called {name!r}")
        indices = self.list_of(line, scope, "[", "]")
        if prefetched:
            ahead = line.integer() if line.peek() == "+" and line.take() else 0
            line.end()
            return Prefetch(buffer, indices, ahead)
        line.expect("=")
        value = self.expression(line, scope)
        line.end()
        return Store(buffer, indices, value)

    def loop(self, line: _Line, word: str, indent: int, scope: Mapping[str, Var]) -> Stmt:
        name = line.take()
        line.expect("in")
        var = Var(name, line.integer())
        line.expect(":")
        line.end()
        return For(var, self.block(indent + 2, {**scope, name: var}), _LOOPS[word])

    def product(self, line: _Line, indent: int, scope: Mapping[str, Var]) -> Stmt:
        loops = []
        for end in (",", ",", ":"):
            name = line.take()
            line.expect("in")
            loops.append(Var(name, line.integer()))
            line.expect(end)
        line.end()
        rows, columns, depth = loops
        return ProductCall(
            rows, columns, depth, self.block(indent + 2, {**scope, **{v.name: v for v in loops}})
        )

    def conditional(self, line: _Line, indent: int, scope: Mapping[str, Var]) -> Stmt:
        condition = self.expression(line, scope)
        line.expect(":")
        line.end()
        self.lets = {}
        then = self.block(indent + 2, scope)
        follow = self.line()
        if follow is None or follow.indent != indent or follow.peek() != "else":
            return If(condition, then)
        self.next += 1
        follow.expect("else", ":")
        follow.end()
        return If(condition, then, self.block(indent + 2, scope))

    # -- expressions ---------------------------------------------------------------------------------------
    def list_of(self, line: _Line, scope: Mapping[str, Var], opening: str, closing: str) -> list[Expr]:
        line.expect(opening)
        found: list[Expr] = []
        while line.peek() != closing:
            found.append(self.expression(line, scope))
            if line.peek() != closing:
                line.expect(",")
        line.expect(closing)
        return found

    def expression(self, line: _Line, scope: Mapping[str, Var]) -> Expr:
        token = line.take()
        if token == "(":
            left = self.expression(line, scope)
            operator = line.take()
            if operator not in _OPERATORS:
                raise line.error(f"{operator!r} is not an operator")
            right = self.expression(line, scope)
            line.expect(")")
            return call(_OPERATORS[operator], left, right)
        if token == "-" or token[0].isdigit() or token in _WORDS:
            return self.constant(line, token)
        if token in self.lets:
            return self.lets[token]
        if line.peek() == "[" and token in self.buffers:
            return self.buffers[token][tuple(self.list_of(line, scope, "[", "]"))]
        if line.peek() == "(":
            return self.function(line, scope, token)
        if token in scope:
            return scope[token]
        raise line.error(f"nothing is called {token!r}")

    def constant(self, line: _Line, token: str) -> Expr:
        negative = token == "-"
        if negative:
            token = line.take()
        dtype = int64
        if line.peek() == ":" and line.at + 1 < len(line.tokens) and _is_dtype(line.tokens[line.at + 1]):
            line.take()
            dtype = _dtype(line, line.take())
        value: object = _WORDS.get(token)
        if value is None:
            value = int(token) if dtype.is_integer else float(token)
        return const(-cast(float, value) if negative else value, dtype)

    def function(self, line: _Line, scope: Mapping[str, Var], token: str) -> Expr:
        name, _, suffix = token.partition(".")
        if name == "lanes":
            line.expect("(")
            var = Var(line.take(), 0)
            line.expect("in")
            var = Var(var.name, line.integer())
            line.expect(":")
            value = self.expression(line, {**scope, var.name: var})
            line.expect(")")
            return lanes(suffix, value, var)
        args = self.list_of(line, scope, "(", ")")
        if name == "guard" and len(args) == 3:
            return guard(*args)
        return call(name, *args, dtype=_dtype(line, suffix) if suffix else None)

    # -- declarations --------------------------------------------------------------------------------------
    def declarations(self) -> Iterator[tuple[str, Buffer]]:
        while (line := self.line()) is not None and line.peek() in ("in", "out", "scratch", "register"):
            if len(line.tokens) < 3 or line.tokens[2] != ":":
                return
            self.next += 1
            role, name = line.take(), line.take()
            line.expect(":")
            dtype = _dtype(line, line.take())
            shape = line.integers()
            strides = None
            if line.peek() == "strides":
                line.take()
                strides = line.integers()
            line.end()
            space = role if role in ("scratch", "register") else "global"
            buffer = Buffer(name, dtype, shape, strides, space)
            if name in self.buffers:
                raise line.error(f"two buffers are called {name!r}")
            self.buffers[name] = buffer
            yield role, buffer

    def kernel(self) -> Kernel:
        line = self.line()
        if line is None:
            raise FormatError("kernel text: is empty")
        self.next += 1
        line.expect("kernel")
        name = line.take()
        line.expect(":")
        line.end()
        declared = list(self.declarations())
        body = self.block(2, {})
        if (rest := self.line()) is not None:
            raise rest.error("a line of unexpected indentation")
        of = {role: [b for r, b in declared if r == role] for role in ("in", "out")}
        local = [b for r, b in declared if r not in ("in", "out")]
        return Kernel(name, of["in"], of["out"], body, local)


def _is_dtype(token: str) -> bool:
    return token in _DTYPES


def _dtype(line: _Line, token: str) -> DType:
    if not _is_dtype(token):
        raise line.error(f"{token!r} is not a dtype")
    return as_dtype(token)


def parse_kernel(text: str) -> Kernel:
    """Read a kernel from its text. Raises: FormatError naming the line."""
    return _Parser(text).kernel()
