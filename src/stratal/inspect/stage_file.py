"""One stage in a file, run through the rest of the pipeline: how a failed compilation is reproduced.

.graph    the text form of a graph, to be compiled whole
.kernel   a kernel's loops: verified, turned into LLVM text, assembled
.ll       LLVM text: assembled
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stratal.base.errors import FormatError
from stratal.codegen.assemble import assemble, emit_assembly
from stratal.codegen.module import kernel_module
from stratal.graph.graph import Graph
from stratal.graph.text import parse_graph
from stratal.loops.parse import parse_kernel
from stratal.loops.verify import verify_kernel
from stratal.plan.host import current_target

SUFFIXES: Final = (".graph", ".kernel", ".ll")


def read_stage(path: Path) -> str:
    """Return the text of a stage. Raises: FormatError."""
    if path.suffix not in SUFFIXES:
        raise FormatError(f"stage: a file ending in {', '.join(SUFFIXES)}", got=str(path))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError("stage: the file cannot be read", got=str(error)) from None


def parse_stage(path: Path) -> Graph:
    """Return the graph in a file. Raises: FormatError, VerifyError."""
    return parse_graph(read_stage(path))


def code_of_stage(path: Path) -> str:
    """Return what code generation makes of a kernel or of LLVM text. Raises: VerifyError, CompilerError."""
    text, target = read_stage(path), current_target()
    parts = []
    if path.suffix == ".kernel":
        kernel = parse_kernel(text)
        verify_kernel(kernel)
        text = kernel_module(kernel, target)
        parts.append(text)
    parts += [
        emit_assembly(text, target),
        f"{len(assemble(text, target))} bytes of object code for {target.name}",
    ]
    return "\n".join(parts)
