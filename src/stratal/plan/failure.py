"""Which text a failed pass worked on: the smallest stage that still fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stratal.base.errors import CompilerError
from stratal.codegen.assemble import assemble
from stratal.codegen.module import kernel_module
from stratal.graph.graph import Graph, graph_to_text
from stratal.loops.stmt import Kernel, kernel_to_text
from stratal.loops.verify import verify_kernel
from stratal.plan.host import current_target
from stratal.schedule.draft import Draft


class Offender(NamedTuple):
    """A stage as text, under the file name `stratal explain` knows its kind by."""

    file: str
    text: str

    def write(self, folder: Path) -> Path:
        """Write it into a folder; return the path. Raises: OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file
        path.write_text(self.text, encoding="utf-8")
        return path


def offending(value: object, graph: Graph) -> Offender:
    """Return the text a pass failed on: one kernel where one is to blame, else the graph."""
    if isinstance(value, Draft):
        for symbol, scheduled in value.kernels.items():
            if not _generates(scheduled.kernel):
                return Offender(f"{symbol}.kernel", kernel_to_text(scheduled.kernel) + "\n")
    elif isinstance(value, Mapping):
        for symbol, text in value.items():
            if not _assembles(text):
                return Offender(f"{symbol}.ll", text)
    elif isinstance(value, Graph):
        return Offender("failed.graph", graph_to_text(value) + "\n")
    return Offender("failed.graph", graph_to_text(graph) + "\n")


def _generates(kernel: Kernel) -> bool:
    try:
        verify_kernel(kernel)
        kernel_module(kernel, current_target())
    except Exception:
        return False
    return True


def _assembles(text: str) -> bool:
    try:
        assemble(text, current_target())
    except CompilerError:
        return False
    return True
