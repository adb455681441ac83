"""Random programs of views: views of views, writes in place through any of them, reads in any order.

A program is text that PyTorch and Stratal run as it stands, with a twin for NumPy, whose arrays have views,
too. It sets up tensors, some of them views of each other, calls a function on them, writes through what came
back and reads everything; three rounds of the same text with other numbers. Without gradients, NumPy looks at
some of the tensors and writes there, too, until a tensor of that memory is changed in place.

    python tests/fuzz/fuzz_views.py 1000 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np

USED_UP = 3  # the history of such a tensor was overwritten: `backward` refuses it
SHAPES = [(3, 4), (2, 3, 2), (4,), (2, 6), (1, 5), (3, 1, 2)]


class Line(NamedTuple):
    """A statement, and what NumPy does in its place."""

    text: str
    numpy: str


class Program(NamedTuple):
    """What is done before the call, in the function, and after the call; `shape` is that of `x` and `w`.

    `g` and `h`, a view of it, live through all rounds, and the function reads them where they stand.
    """

    shape: tuple[int, ...]
    made: list[Line]
    setup: list[Line]
    body: list[Line]
    after: list[Line]
    arguments: list[tuple[str, str]]  # in even and in odd rounds
    returned: list[str]
    final: list[str]
    gradients: bool

    def source(self, numpy: bool = False) -> str:
        def lines(block: list[Line], indent: int) -> list[str]:
            chosen = [line.numpy if numpy else line.text for line in block]
            return [" " * indent + part for text in chosen for part in text.split("\n")]

        names = ", ".join([f"p{k}" for k in range(len(self.arguments))] + ["w"] * self.gradients)
        even, odd = (", ".join([pair[k] for pair in self.arguments] + ["w"] * self.gradients) for k in (0, 1))
        got = ", ".join(self.returned)
        return "\n".join(
            [
                *lines(self.made, 0),
                f"def body({names}):",
                "    global g, h",
                *lines(self.body, 4),
                f"    return [{got}]",
                "",
                "def run(x, w, f, turn):",
                "    global g, h",
                *lines(self.setup, 4),
                f"    [{got}] = f({odd}) if turn % 2 else f({even})",
                *lines(self.after, 4),
                f"    return [{', '.join(self.final)}]",
                "",
            ]
        )


class Writer:
    """Writes one program; NumPy's arrays say which shapes and which memory every name has."""

    def __init__(self, seed: int, gradients: bool) -> None:
        self.random = random.Random(seed)
        self.gradients = gradients
        self.shape = self.random.choice(SHAPES)
        self.env: dict[str, Any] = {"x": np.zeros(self.shape), "w": np.zeros(self.shape)}
        self.block: list[Line] = []
        self.count = 0
        self.inside = False
        self.stretched: set[str] = set()
        self.arrays: dict[str, Any] = {}  # what NumPy sees of tensors
        self.wrote, self.certain = False, True  # whether names have the same memory in even and odd rounds

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def emit(self, text: str, numpy: str | None = None) -> None:
        line = Line(text, text if numpy is None else numpy)
        exec(line.numpy, {"np": np, "C": _copy, "contiguous": _contiguous, **self.arrays}, self.env)
        self.block.append(line)

    def names(self) -> list[str]:
        return [n for n in self.env if n != "w" or self.gradients]

    def written(self) -> str | None:
        """Return a name that may be written."""
        fine = [n for n in self.env if n != "w" and n not in self.stretched]
        return self.random.choice(fine) if fine else None

    # -- statements ------------------------------------------------------------------------------------------
    def statement(self) -> None:
        kind = self.random.random()
        if not self.gradients and not self.inside and self.random.random() < 0.4:
            self.outside()
        elif kind < 0.45:
            self.view()
        elif kind < 0.8:
            self.write()
        elif kind < 0.93:
            self.copy()
        elif len(self.env) > 3:
            self.env_delete(self.pick(*[n for n in self.env if n not in ("g", "h", "w")]))

    def env_delete(self, name: str) -> None:
        self.emit(f"{name} = None", f"{name} = None")
        del self.env[name]
        self.stretched.discard(name)

    def outside(self) -> None:
        """Let NumPy look at a tensor, or write where it looks."""
        if self.arrays and self.random.random() < 0.6:
            name = self.random.choice(list(self.arrays))
            index = self.index(self.arrays[name])[1] if self.arrays[name].ndim else "[...]"
            self.emit(f"{name}{index} {self.pick('=', '+=', '*=')} {self.random.randint(2, 5)}.0")
            return
        fine = [n for n in self.env if n not in self.stretched]
        if fine:
            name, of = self.name(), self.random.choice(fine)
            text = self.pick(f"{of}.numpy()", f"{of}.detach().numpy()", f"np.asarray({of})")
            self.emit(f"{name} = {text}", f"{name} = {of}[...]")
            self.arrays[name] = self.env.pop(name)

    def leave(self, *changed: Any) -> None:
        """Look no more at memory that was changed in place."""
        for name, array in list(self.arrays.items()):
            if any(np.shares_memory(array, a) for a in changed):
                del self.arrays[name]

    def index(self, a: np.ndarray[Any, Any]) -> tuple[str, str]:
        """Return an index for PyTorch, and for NumPy, whose result stays an array."""
        parts = []
        for n in a.shape[: self.random.randint(1, max(1, a.ndim))]:
            kind = self.random.random()
            if kind < 0.4 and n:
                parts.append(str(self.random.randint(-n, n - 1)))
            elif kind < 0.9:
                low = self.random.randint(0, max(0, n - 1))
                step = self.pick("", "", ":2")
                parts.append(f"{low or ''}:{self.pick('', self.random.randint(low, n))}{step}")
            else:
                parts.append("None")
                parts.append(":")
        text = ", ".join(parts) or "..."
        return f"[{text}]", f"[{text}]" if "..." in text else f"[{text}, ...]"

    def view(self) -> None:
        name, of = self.name(), self.random.choice(self.names())
        a = self.env[of]
        d = self.random.randrange(a.ndim) if a.ndim else 0
        e = self.random.randrange(a.ndim) if a.ndim else 0
        n = a.shape[d] if a.ndim else 0
        options: list[tuple[str, str]] = [
            (f"{of}.detach()", f"{of}[...]"),
            (f"{of}.data", f"{of}[...]"),
            (f"{of}.unsqueeze({d})", f"np.expand_dims({of}, {d})"),
            (f"{of}.squeeze()", f"{of}.squeeze()"),
            (f"{of}.contiguous()", f"contiguous({of})"),
            (f"t.atleast_2d({of})", f"np.atleast_2d({of})"),
            (f"{of}[...]", f"{of}[...]"),
        ]
        if a.size:
            options += [
                (f"{of}.reshape(-1)", f"{of}.reshape(-1)"),
                (f"t.reshape({of}, (-1, 1))", f"{of}.reshape(-1, 1)"),
                (f"{of}.flatten()", f"{of}.reshape(-1)"),
                (f"t.ravel({of})", f"contiguous({of}).reshape(-1)"),
            ]
            if a.size % 2 == 0:
                options.append((f"{of}.reshape(2, -1)", f"{of}.reshape(2, -1)"))
            if a.flags.c_contiguous and not self.inside:
                options.append((f"{of}.view(-1)", f"{of}.reshape(-1)"))
        if a.ndim:
            index, theirs = self.index(a)
            options += [(f"{of}{index}", f"{of}{theirs}")] * 5
            options += [
                (f"{of}.transpose({d}, {e})", f"{of}.swapaxes({d}, {e})"),
                (f"t.transpose({of}, {d}, {e})", f"{of}.swapaxes({d}, {e})"),
                (f"{of}.swapaxes({d}, {e})", f"{of}.swapaxes({d}, {e})"),
                (f"{of}.movedim({d}, {e})", f"np.moveaxis({of}, {d}, {e})"),
            ]
            slices = ", ".join([":"] * d)
            before = slices + ", " if slices else ""
            if n:
                k = self.random.randrange(n)
                length = self.random.randint(1, n - k)
                options += [
                    (f"{of}.narrow({d}, {k}, {length})", f"{of}[{before}{k}:{k + length}]"),
                    (f"t.narrow({of}, {d}, {k}, {length})", f"{of}[{before}{k}:{k + length}]"),
                    (f"{of}.select({d}, {k})", f"{of}[{before}{k}, ...]"),
                    (f"{of}.unbind({d})[{k}]", f"{of}[{before}{k}, ...]"),
                    (f"t.unbind({of}, {d})[{k}]", f"{of}[{before}{k}, ...]"),
                    (f"{of}.split(1, {d})[{k}]", f"{of}[{before}{k}:{k + 1}]"),
                    (f"t.split({of}, 1, {d})[{k}]", f"{of}[{before}{k}:{k + 1}]"),
                    (f"{of}.chunk(2, {d})[0]", f"{of}[{before}:{-(-n // 2)}]"),
                    (f"t.tensor_split({of}, 2, {d})[0]", f"{of}[{before}:{-(-n // 2)}]"),
                    (f"{of}.unflatten({d}, (1, {n}))", f"np.expand_dims({of}, {d})"),
                ]
            if n == 1:
                shape = tuple(3 if k == d else m for k, m in enumerate(a.shape))
                options.append((f"{of}.expand({shape})", f"np.broadcast_to({of}, {shape})"))
        if a.ndim >= 2:
            perm = list(range(a.ndim))
            self.random.shuffle(perm)
            options += [
                (f"{of}.permute({perm})", f"{of}.transpose({perm})"),
                (f"t.permute({of}, {perm})", f"{of}.transpose({perm})"),
                (f"{of}.mT", f"{of}.swapaxes(-1, -2)"),
            ]
            if d != e:
                offset = self.random.randint(-1, 1)
                given = f"{offset}, {d}, {e}"
                options.append((f"{of}.diagonal({given})", f"np.diagonal({of}, {given})"))
        if a.ndim == 2:
            options += [(f"{of}.T", f"{of}.T"), (f"{of}.t()", f"{of}.T")]
        text, theirs = self.random.choice(options)
        self.emit(f"{name} = {text}", f"{name} = {theirs}")
        if of in self.stretched or ".expand(" in text:
            self.stretched.add(name)
        if "diagonal" in text:
            self.env[name].flags.writeable = self.env[of].flags.writeable
            self.block[-1] = Line(self.block[-1].text, f"{name} = {theirs}; {name}.flags.writeable = True")

    def copy(self) -> None:
        name, of = self.name(), self.random.choice(self.names())
        k = self.random.randint(1, 3)
        same = [n for n in self.names() if self.env[n].shape == self.env[of].shape]
        other = self.random.choice(same)
        text, theirs = self.pick(
            (f"({of} * {k}.0).contiguous()", f"C({of} * {k}.0)"),
            (f"({of} + {other}).contiguous()", f"C({of} + {other})"),
            (f"{of}.contiguous().clone()", f"C({of})"),
        )
        self.emit(f"{name} = {text}", f"{name} = {theirs}")

    def write(self) -> None:
        to = self.written()
        if to is None:
            return
        a, k = self.env[to], self.random.randint(2, 5)
        same = [n for n in self.names() if self.env[n].shape == a.shape]
        other = self.random.choice(same)
        text, theirs = self.pick(
            (f"{to}.add_({k}.0)", f"{to}[...] += {k}.0"),
            (f"{to}.mul_({k}.0)", f"{to}[...] *= {k}.0"),
            (f"{to} += {k}.0", f"{to}[...] += {k}.0"),
            (f"{to} *= -0.5", f"{to}[...] *= -0.5"),
            (f"{to}.copy_({other})", f"{to}[...] = {other}.copy()"),
            (f"{to}.add_({other}, alpha=2)", f"{to}[...] += 2 * {other}"),
            (f"{to}.add_({other} * 1.0)", f"{to}[...] += {other} * 1.0"),
            (f"{to}.masked_fill_({to} > 1.0, {k}.0)", f"{to}[{to} > 1.0] = {k}.0"),
            (f"{to}.clamp_(max={k}.0)", f"{to}[...] = np.minimum({to}, {k}.0)"),
            (f"{to}[...] = {k}.0", f"{to}[...] = {k}.0"),
        )
        if a.ndim and self.random.random() < 0.35:
            index, full = self.index(a)
            text, theirs = self.pick(
                (f"{to}{index} = {k}.0", f"{to}{full} = {k}.0"),
                (f"{to}{index} += {k}.0", f"{to}{full} += {k}.0"),
                (f"{to}{index} *= {k}.0", f"{to}{full} *= {k}.0"),
                (f"{to}{index}.zero_()", f"{to}{full} = 0.0"),
            )
        of_leaf = self.gradients and "w" in self.env and np.shares_memory(self.env["w"], a)
        if of_leaf or self.random.random() < (0.2 if self.gradients else 0.05):
            text = f"with t.no_grad():\n    {text}"
        self.emit(text, theirs)
        self.wrote = True
        self.leave(*[a] if self.certain else self.env.values())

    # -- the program -----------------------------------------------------------------------------------------
    def take_block(self) -> list[Line]:
        block, self.block = self.block, []
        return block

    def program(self, length: int) -> Program:
        x, w = self.env["x"], self.env["w"]
        self.env = {}
        self.emit(f"g = t.ones({self.shape}, dtype=t.float64)", f"g = np.ones({self.shape})")
        self.emit("h = g[...]")
        if self.random.random() < 0.7:
            self.view()
            self.block[-1] = Line(*(part.replace(f"v{self.count}", "h") for part in self.block[-1]))
            self.env["h"] = self.env.pop(f"v{self.count}")
            if f"v{self.count}" in self.stretched:
                self.stretched.add("h")
        made = self.take_block()
        shared = dict(self.env) if self.random.random() < 0.5 else {}
        self.env = {"x": x, "w": w, **shared}
        for _ in range(self.random.randint(0, 3)):
            self.statement() if self.gradients else self.view()
        setup = self.take_block()
        outside, arrays, self.arrays = dict(self.env), self.arrays, {}
        arguments = []
        for _ in range(self.random.randint(1, 2)):
            even = self.pick(*[n for n in outside if n != "w"])
            like = [n for n in outside if n != "w" and outside[n].shape == outside[even].shape]
            odd = self.pick(even, self.pick(*like))
            arguments.append((even, odd))
        known = set(self.stretched)
        for k, pair in enumerate(arguments):
            if known.intersection(pair):
                self.stretched.add(f"p{k}")
        self.env = {f"p{k}": outside[even] for k, (even, _) in enumerate(arguments)} | shared
        self.env |= {"w": w} if self.gradients else {}
        self.inside, self.wrote = True, False
        for _ in range(self.random.randint(1, length)):
            self.statement()
        self.inside = False
        body = self.take_block()
        self.certain = all(even == odd for even, odd in arguments)
        self.arrays = {} if self.wrote else arrays
        inside = self.env
        new = [n for n in inside if n not in outside and not n.startswith("p")]
        returned = self.random.sample(new, min(len(new), self.random.randint(0, 3)))
        self.env = {**outside, **{n: inside[n] for n in returned}}
        for _ in range(self.random.randint(0, 3)):
            self.statement()
        after = self.take_block()
        final = [n for n in self.env if n != "w"] + list(self.arrays)
        self.random.shuffle(final)
        return Program(self.shape, made, setup, body, after, arguments, returned, final, self.gradients)


def _copy(a: Any) -> Any:
    return np.array(a, order="C", copy=True)


def _contiguous(a: Any) -> Any:
    return a if a.flags.c_contiguous else _copy(a)


def written(seed: int, gradients: bool, length: int = 6) -> Program:
    """Return the program of a seed."""
    return Writer(seed, gradients).program(length)


# -- running it ----------------------------------------------------------------------------------------------
def _data(program: Program, turn: int) -> tuple[Any, Any]:
    numbers = np.random.default_rng(turn)
    return tuple(numbers.integers(-8, 9, (2, *program.shape)) / 4.0)  # type: ignore[return-value]


def by_numpy(program: Program, rounds: int = 3) -> list[list[Any]]:
    """Return what every round leaves in every name, by NumPy's views."""
    env: dict[str, Any] = {"np": np, "C": _copy, "contiguous": _contiguous}
    exec(program.source(numpy=True), env)
    found = []
    for turn in range(rounds):
        x, w = _data(program, turn)
        found.append([np.array(a) for a in env["run"](x, w, env["body"], turn)])
    return found


def by_library(program: Program, t: Any, compiled: bool = False, rounds: int = 3) -> list[list[Any]]:
    """Return what every round leaves in every name, and in the gradient of `w`."""
    env: dict[str, Any] = {"t": t, "np": np}
    exec(compile(program.source(), "<program>", "exec"), env)
    f = t.compile(env["body"]) if compiled else env["body"]
    warnings.filterwarnings("error", category=getattr(t, "AuditWarning", UserWarning))
    found = []
    for turn in range(rounds):
        x, w = (t.tensor(a, dtype=t.float64) for a in _data(program, turn))
        if program.gradients:
            w.requires_grad_()
        values = env["run"](x, w, f, turn)
        results = []
        if program.gradients:
            takes = [v.requires_grad or getattr(v, "_track", 0) == USED_UP for v in values]
            tracked = [(v * (k + 1.0)).sum() for k, v in enumerate(values) if takes[k]]
            if tracked:
                sum(tracked).backward()
            results.append(np.zeros(program.shape) if w.grad is None else np.array(w.grad.tolist()))
        found.append([np.array(v.tolist()).reshape(tuple(v.shape)) for v in values] + results)
    return found


def differs(want: list[list[Any]], got: list[list[Any]]) -> str | None:
    """Return where results differ, or None."""
    for turn, (a, b) in enumerate(zip(want, got, strict=True)):
        for k, (p, q) in enumerate(zip(a, b, strict=True)):
            if p.shape != q.shape or not np.allclose(p, q, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"round {turn}, result {k}: {p.tolist()} is {q.tolist()}"
    return None


def shrunk(program: Program, fails: Any) -> Program:
    """Return a program with lines left out that still fails."""
    changed = True
    while changed:
        changed = False
        for part in ("after", "body", "setup"):
            for k in range(len(getattr(program, part)) - 1, -1, -1):
                block = list(getattr(program, part))
                del block[k]
                less = program._replace(**{part: block})
                if _fails(less, fails):
                    program, changed = less, True
        for k in range(len(program.final) - 1, -1, -1):
            less = program._replace(final=program.final[:k] + program.final[k + 1 :])
            if _fails(less, fails):
                program, changed = less, True
    return program


def _fails(program: Program, fails: Any) -> bool:
    try:
        return fails(program) is not None
    except Exception:
        return False


def judged(program: Program, st: Any, torch: Any, mode: str) -> str | None:
    """Return what is wrong with a program in a mode; None too where the other library refuses it."""
    if torch is not None:
        try:
            want = by_library(program, torch)
        except RuntimeError:
            return None
    else:
        want = by_numpy(program)
    try:
        if mode == "eager":
            with st.eager():
                got = by_library(program, st)
        else:
            got = by_library(program, st, compiled=mode == "compiled")
    except Exception as error:
        if mode == "compiled" and "used up" in str(error):  # a compiled call overwrote what a history needs
            return None
        return f"{type(error).__name__}: {error}"
    return differs(want, got)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numpy", action="store_true")
    parser.add_argument("--modes", default="lazy,compiled,eager")
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--length", type=int, default=6)
    options = parser.parse_args()
    import stratal as st

    torch = None
    if not options.numpy:
        import torch
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        program = written(seed, torch is not None and seed % 2 == 0, options.length)
        for mode in options.modes.split(","):
            wrong = judged(program, st, torch, mode)
            if wrong is not None:
                bad += 1
                small = shrunk(program, partial(judged, st=st, torch=torch, mode=mode))
                print(f"== seed {seed}, {mode}: {judged(small, st, torch, mode)}", small.source(), sep="\n")
                break
        if bad >= options.most:
            break
    print(f"{seed - options.seed + 1} programs, {bad} wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
