"""What the documentation shows of graphs, loops, commands and schedules: printed by the code itself.

    <!-- printed by NAME -->          in a page of docs/, before a fenced block: the block is what
    ```text ... ```                   the function NAME of this module returns (or ```python)

`python tests/support/doc_examples.py` renews them; tests/docs/test_docs.py fails where one is out of date.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from accelerator import BLOCKS, LOCAL, TILED, declare_accelerator

import stratal.ops  # noqa: F401  fills the registry
from stratal import te
from stratal.base import native, settings
from stratal.base.dtypes import float32
from stratal.base.target import TARGETS
from stratal.base.types import TensorType
from stratal.codegen.module import kernel_module
from stratal.compiler import decided, link
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, graph_to_text
from stratal.graph.node import graph_input
from stratal.graph.op import REGISTRY
from stratal.loops import index
from stratal.loops.expr import Buffer, Var, call, const
from stratal.loops.stmt import For, Kernel, Seq, Store, kernel_to_text, stmt_to_text
from stratal.plan import record
from stratal.plan.commands import program_to_text
from stratal.plan.host import current_target
from stratal.schedule.primitives import Schedule

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"<!-- printed by (\w+) -->\n```(text|python)\n(.*?)```\n", re.DOTALL)


# -- one program through the pipeline -------------------------------------------------------------------
def example() -> Graph:
    """Return a graph with a view, a product, a reduction and a state."""
    b = Builder()
    x = graph_input("x", TensorType(float32, (2, 3)))
    w = graph_input("w", TensorType(float32, (3,)))
    scaled = b.mul(x, b.broadcast(w, shape=(2, 3), axes=(1,)))
    return Graph((x, w), (b.sum(scaled, axes=(1,)),), ((w, b.mul(w, b.like(w, 0.5))),), "scaled")


def graph_text() -> str:
    return graph_to_text(example(), lines=False)  # equal constants alive elsewhere lend their source lines


def expression_text() -> str:
    graph = example()
    rows = []
    for node in graph.nodes:
        if node.inputs:
            types = [i.aval for i in node.inputs]
            rows.append(f"{node.op.name:10} {node.op.lower(*types)}")
    return "\n".join(rows)


def _decided() -> tuple[str, str]:
    with settings.using(target="avx512", threads=2):
        graph = example()
        draft = decided(graph, current_target()).draft
        executable = link(graph, draft, {})
        short = {name: f"k{k}" for k, name in enumerate(draft.kernels)}
        commands = program_to_text(executable.values, executable.commands)
        for name, brief in short.items():
            commands = commands.replace(name, brief)
        (first, *_) = draft.kernels.values()
        kernel = first.kernel
        renamed = Kernel(short[kernel.name], kernel.reads, kernel.writes, kernel.body, kernel.local)
        return kernel_to_text(renamed), commands


def kernel_text() -> str:
    return _decided()[0]


def command_text() -> str:
    return _decided()[1]


def llvm_text() -> str:
    """Return the first kernel as LLVM text, without the declarations around the function."""
    target = TARGETS["avx512"]
    with settings.using(target="avx512", threads=2):
        (first, *_) = decided(example(), target).draft.kernels.values()
    text = kernel_module(first.kernel, target).replace(first.kernel.name, "k0")
    return text[text.index("define") : text.index("\n}") + 2]


def native_records() -> str:
    """Return what the layout of the records says of them."""
    lines = (inspect.getdoc(native) or "").split("\n")
    first = next(k for k, line in enumerate(lines) if "Record " in line)
    return textwrap.dedent("\n".join(lines[first : first + 9]))


def plan_shape() -> str:
    """Return what a plan holds, as the module says it."""
    return textwrap.dedent((inspect.getdoc(record) or "").split("\n\n")[1])


# -- schedules ------------------------------------------------------------------------------------------
def step(name: str) -> str:
    """Show the example of a schedule primitive: the loops, the step, the loops after it."""
    text = te.PRIMITIVES[name].example
    before, after = te.parse(text.rpartition("\n")[0] + "\n"), te.parse(text)
    return f"{before.loops}\n\n-- {after.steps[-1]}\n\n{after.loops}"


def _product(size: int = 1024) -> te.LoopSchedule:
    a, b, k = te.placeholder((size, size)), te.placeholder((size, size)), te.reduce_axis(size)
    return te.schedule(te.compute((size, size), lambda y, x: te.sum(a[k, y] * b[k, x], axis=k)))


def product_naive() -> str:
    return f"{_product()}\n\n{_product().loops}"


def product_tiled() -> str:
    tiled = _product().replay(TILED)
    return f"{tiled.script}\n\n{tiled.loops}"


def product_blocks() -> str:
    declare_accelerator()
    blocks = _product().replay(TILED).replay(LOCAL + BLOCKS)
    steps = "\n".join(map(str, blocks.steps[TILED.strip().count("\n") + 1 :]))
    return f"{steps}\n\n{blocks.loops}"


def shrink() -> str:
    """Show the rewrite that tactics keep temporaries small with."""
    x, y, t = (Buffer(name, float32, (8,)) for name in "xyt")
    a, b = Var("a", 8), Var("b", 8)
    first = For(a, Store(t, (a,), call("mul", x[a], x[a])))
    schedule = Schedule(Seq((first, For(b, Store(y, (b,), call("add", t[b], const(1.0, float32)))))), [t])
    schedule.merge(a, b)
    before = stmt_to_text(schedule.body)
    schedule.shrink(t, [a], "register")
    return f"{before}\n\n-- {schedule.steps[-1]}\n\n{stmt_to_text(schedule.body)}"


def index_text() -> str:
    """Show what the index algebra makes of a few indices."""
    i, j = Var("i", 8), Var("j", 16)
    flat = index.add(index.mul(i, 16), j)
    rows = {
        "(i * 16 + j) // 16": index.floordiv(flat, 16),
        "(i * 16 + j) % 16": index.mod(flat, 16),
        "(i * 16 + j) // 32": index.floordiv(flat, 32),
        "i * 16 + j < 128": index.less(flat, 128),
        "i * 16 + j < 100": index.less(flat, 100),
    }
    return "\n".join(f"{text:18}  ->  {found}" for text, found in rows.items())


def permute_record() -> str:
    """Show a record as its file has it."""
    return inspect.getsource(REGISTRY["permute"])


# -- pages ----------------------------------------------------------------------------------------------
def blocks() -> list[tuple[Path, str, str]]:
    """Return every printed block of the documentation: page, function, text."""
    pages = sorted(DOCS.rglob("*.md"))
    return [(p, m[1], m[3]) for p in pages for m in BLOCK.finditer(p.read_text(encoding="utf-8"))]


def printed(name: str) -> str:
    if name.startswith("step_"):
        return step(name.removeprefix("step_")).rstrip() + "\n"
    made: Callable[[], str] = globals()[name]
    return made().rstrip() + "\n"


def renew() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda m: f"<!-- printed by {m[1]} -->\n```{m[2]}\n{printed(m[1])}```\n", text)
        if new != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    renew()
