"""Pieces of programs, of the rows of all tables: what is read, written, passed, returned, and which tensors are one."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from programs.python.carriers import CARRIERS, Carrier
from programs.python.effects import LIBRARY, RETURNS, WRITES, Effect
from programs.python.kinds import KINDS, Kind
from programs.python.passes import ALIASING, POOL, WAYS, Way
from programs.python.piece import CALLS, Piece
from programs.python.sources import SOURCES, Source

TURNS = (0, 1, 1, 2, 0, 0)  # which value stands there at each call
_BINDING = (
    "class attribute of an instance", "class attribute of a base", "attribute that hides a class attribute",
    "nn module's class attribute",
)  # fmt: skip
LATE = (0, 0, 0, 0, 1, 2)  # after a function has settled


def filled(text: str, **parts: object) -> str:
    for name, part in parts.items():
        text = text.replace("{" + name + "}", str(part))
    return text


def fits(carrier: Carrier, kind: Kind) -> bool:
    if carrier.name in _BINDING and re.search("function|lambda", kind.name):  # it would become a method there
        return False
    return not carrier.takes or kind.name in carrier.takes


def read(carrier: Carrier, kind: Kind, how: str, n: int = 0, turns: tuple[int, ...] = TURNS) -> Piece:
    """Return a piece that reads a value, put in its place or changed between the calls; or in the call."""
    values = kind.values
    at = filled(carrier.read, n=n)
    piece = Piece(f"{how} {kind.name} | {carrier.name}", names=[filled(v, n=n) for v in carrier.names])
    piece.setup = [*kind.setup, *filled(carrier.setup, n=n, value=values[0]).splitlines()]
    piece.body = [f"out = out * 2 + {filled(kind.use, v=at)}"]
    for k in range(1, CALLS):
        value = values[turns[k] % len(values)]
        if how == "read" and turns[k] != turns[k - 1]:
            piece.before[k] = [filled(carrier.write, n=n, value=value)]
        elif how == "read changed" and turns[k] != turns[k - 1]:
            piece.before[k] = [filled(kind.change, v=at, k=k)]
        elif how.startswith("write") and k in (2, 4):
            piece.before[k] = [filled(carrier.write, n=n, value=values[k // 2 % 2])]
    if how == "write":
        value = f"{at} + 1" if kind.name == "int" else values[-1]
        piece.body.append(filled(carrier.write, n=n, value=value))
    elif how == "write changed":
        piece.body.append(filled(kind.change, v=at, k=9))
    if how.startswith("write"):
        piece.seen = [at]
    return piece


def passed(kind: Kind, way: Way, how: str, n: int = 0) -> Piece:
    """Return a piece that is passed a value: made at each call, kept, changed between the calls, changed inside."""
    piece = Piece(f"{how} {kind.name} | {way.name}", setup=[*kind.setup])
    piece.parameters = [filled(way.parameter, n=n)]
    at = filled(way.read, n=n)
    piece.body = [f"out = out * 2 + {filled(kind.use, v=at)}"]
    if how == "pass kept":
        piece.setup.append(f"kept{n} = [{', '.join(kind.values)}]")
    elif how != "pass":
        piece.setup.append(f"kept{n} = {kind.values[0]}")
    for k in range(CALLS):
        which = TURNS[k] % len(kind.values)
        value = {"pass": kind.values[which], "pass kept": f"kept{n}[{which}]"}.get(how, f"kept{n}")
        piece.given[k] = [filled(way.given, n=n, value=value)]
        if how == "pass changed" and k:
            piece.before[k] = [filled(kind.change, v=f"kept{n}", k=k)]
    if how == "pass written":
        piece.body.append(filled(kind.change, v=at, k=9))
        piece.seen = [f"kept{n}"]
    return piece


def asked(source: Source) -> Piece:
    piece = Piece(f"ask {source.name}", setup=source.setup.splitlines())
    piece.body = [f"out = (out * 0).double() + {source.ask}" if source.grows else f"out = out * 2 + {source.ask}"]
    piece.before = [[filled(source.before, k=k)] if source.before and k else [] for k in range(CALLS)]
    if source.grows:
        piece.seen = ["GROWS"]
    return piece


def done(effect: Effect, group: str, n: int = 0) -> Piece:
    piece = Piece(f"{group} {effect.name}", setup=effect.setup.splitlines(), names=list(effect.names))
    piece.seen = list(effect.seen)
    if effect.given:
        piece.parameters = [f"a{n}"]
        piece.given = [[filled(effect.given, k=k + 1)] for k in range(CALLS)]
    piece.body = filled(effect.body, a=f"a{n}").splitlines()
    piece.results = [filled(effect.results, a=f"a{n}")] if effect.results else []
    piece.before = [filled(effect.before, k=k + 1).splitlines() for k in range(CALLS)]
    if effect.given and effect.names:  # made before each call, the first too
        piece.seen = list(effect.seen)
    elif effect.before:
        piece.before[0] = []
    return piece


def aliased(one: str, two: str, doing: str, rng: random.Random, n: int = 0) -> Piece:
    """Return a piece that is given tensors of a pool, at some calls the same ones."""
    piece = Piece(f"alias {one} and {two} | {ALIASING.index(doing)}")
    piece.setup = ["h = lib.ones(3)", "w = lib.nn.Parameter(lib.ones(3))", "q = lib.zeros(2, 3)", "shared = np.ones(3)"]
    piece.parameters = ["p", "q_"]
    piece.body = ["with lib.no_grad():", *("    " + line for line in doing.format("p", "q_").splitlines())]
    piece.before = [["a, b = lib.arange(3.0) + 1, lib.arange(3.0) * 2"] for _ in range(CALLS)]
    pairs = [(one, two), (one, two), rng.choice([("a", "b"), ("b", "a"), ("h", "a")]), (two, one), (one, one)]
    piece.given = [list(pair) for pair in (*pairs, (one, two))]
    piece.seen = ["a", "b", "h", "w", "q", "shared"]
    return piece


def renamed(piece: Piece, n: int) -> Piece:
    """Give what a piece defines names of its own, so that it can stand beside others."""
    names = {
        target.id
        for line in ast.walk(ast.parse("\n".join(piece.setup)))
        for target in _defined(line)
    }
    pattern = re.compile(r"(?<![\w.'\"])(" + "|".join(sorted(names)) + r")\b(?!=[^=])") if names else None

    def of(lines: list[str]) -> list[str]:
        return [pattern.sub(rf"\g<1>_{n}", line) for line in lines] if pattern else lines

    return Piece(
        piece.label, of(piece.setup), of(piece.names), piece.parameters, [of(g) for g in piece.given], of(piece.body),
        of(piece.results), [of(b) for b in piece.before], of(piece.seen),
    )  # fmt: skip


def _defined(node: ast.AST) -> Iterator[ast.Name]:
    if isinstance(node, ast.Module):
        for line in node.body:
            if isinstance(line, (ast.FunctionDef, ast.ClassDef)):
                yield ast.Name(line.name)
            elif isinstance(line, ast.Assign):
                yield from (
                    t
                    for target in line.targets
                    for t in ast.walk(target)
                    if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)
                )


def cells(seed: int = 0) -> Iterator[tuple[str, Piece]]:
    """Yield every row of every table in its plainest form, and its group."""
    rng = random.Random(seed)
    variable, plain = CARRIERS["variable"], [KINDS["float"], KINDS["object"]]
    for kind in KINDS.values():
        for how in ("read", "write", *(("read changed", "write changed") if kind.change else ())):
            yield f"{how}: kinds", read(variable, kind, how)
        ways = ("pass", "pass kept", *(("pass changed", "pass written") if kind.change else ()))
        for how in ways:
            yield f"{how}: kinds", passed(kind, WAYS["argument"], how)
    for carrier in list(CARRIERS.values())[1:]:
        for kind in [KINDS["str"]] if carrier.takes else [*plain, rng.choice(list(KINDS.values()))]:
            how = ["read", "write", *(["read changed", "write changed"] if kind.change else [])]
            for one in how if kind in plain else rng.sample(how, 1):
                yield f"{one}: carriers", read(carrier, kind, one)
    for way in list(WAYS.values())[1:]:
        for kind in (*plain, KINDS["list"], KINDS["tensor"], KINDS["dict"], KINDS["nn module"]):
            for how in ("pass", "pass kept", *(("pass changed", "pass written") if kind.change else ())):
                yield f"{how}: ways", passed(kind, way, how)
    for source in SOURCES.values():
        yield "ask", asked(source)
    for effect in WRITES:
        yield "effect", done(effect, "effect")
    for effect in LIBRARY:
        yield "library", done(effect, "library")
    for effect in RETURNS:
        yield "return", done(effect, "return")
    for j, one in enumerate(POOL):
        for k, two in enumerate(POOL):
            yield "alias", aliased(one, two, ALIASING[(j + k) % len(ALIASING)], rng)


def drawn(rng: random.Random, n: int, special: bool) -> Piece:
    """Draw any piece; only one of a program may have parameters of a `special` form."""
    kind = rng.choice(list(KINDS.values()))
    carrier = rng.choice([c for c in CARRIERS.values() if fits(c, kind)])
    changed = [" changed"] if kind.change else []
    form = rng.choice(["read", "read", "write", "pass", "pass", "ask", "effect", "library", "return", "alias"])
    if form in ("read", "write"):
        return read(carrier, kind, form + rng.choice(["", *changed]), n, rng.choice([TURNS, LATE]))
    if form == "pass":
        return drawn_pass(rng, n, kind, special)
    if form == "ask":
        return asked(rng.choice([s for s in SOURCES.values() if not s.grows]))
    if form == "alias" and special:
        return aliased(rng.choice(POOL), rng.choice(POOL), rng.choice(ALIASING), rng, n)
    table = {"effect": WRITES, "library": LIBRARY}.get(form, RETURNS)
    return done(rng.choice(table), form if table is not RETURNS else "return", n)


def drawn_pass(rng: random.Random, n: int, kind: Kind, special: bool = True) -> Piece:
    """Draw how a value of a kind is passed."""
    way = rng.choice([w for w in WAYS.values() if special or w.parameter == "a{n}"])
    changing = ["pass changed", "pass written"] if kind.change else []
    return passed(kind, way, rng.choice(["pass", "pass", "pass kept", *changing]), n)
