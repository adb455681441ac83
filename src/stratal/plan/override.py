"""Edited stages fed back: a graph or a kernel in place of the compiler's own, checked before it is used."""

from __future__ import annotations

import hashlib
from pathlib import Path

from stratal.base.errors import FormatError, StratalError
from stratal.graph.graph import Graph, graph_to_text
from stratal.graph.text import parse_graph
from stratal.loops.parse import parse_kernel
from stratal.loops.stmt import Kernel, kernel_to_text
from stratal.loops.verify import verify_kernel
from stratal.plan.commands import relaunch
from stratal.schedule.draft import Draft


def read(path: Path) -> str | None:
    """Return the text of an edited stage, or None if there is none. Raises: FormatError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError("override: the stage cannot be read", got=f"{path}: {error}") from None


def edited_graph(graph: Graph, path: Path) -> Graph | None:
    """Return the graph in a file, or None where it says what the compiler says. Raises: FormatError."""
    text = read(path)
    if text is None or text.strip() == graph_to_text(graph):
        return None
    try:
        found = parse_graph(text)
    except StratalError as error:
        raise _refused(path, error) from None
    if found.digest == graph.digest:
        return None
    for what, mine, wanted in (
        ("inputs", found.input_types, graph.input_types),
        ("outputs", found.output_types, graph.output_types),
        ("updated inputs", _updated(found), _updated(graph)),
    ):
        if mine != wanted:
            raise FormatError(
                f"override: an edited graph must keep its {what}",
                got=f"{path}: {', '.join(map(str, mine))}",
                hint=f"the program has {', '.join(map(str, wanted))}",
            )
    return found


def _updated(graph: Graph) -> tuple[int, ...]:
    place = {node: k for k, node in enumerate(graph.inputs)}
    return tuple(place[state] for state, _ in graph.updates)


def edited_kernels(draft: Draft, folder: Path) -> list[str]:
    """Replace the kernels of a draft that have an edited text in `folder`; return the new symbols.

    An edited kernel is named by its content, so that caches never mistake it for the original, and is not
    run in place: its loops may read what they wrote. Raises: FormatError.
    """
    changed: dict[str, tuple[str, int, int]] = {}
    for symbol, scheduled in list(draft.kernels.items()):
        kernel = _edited(scheduled.kernel, folder / f"{symbol}.kernel")
        if kernel is None:
            continue
        del draft.kernels[symbol]
        steps = (f"edited by hand, was {symbol}",)
        draft.kernels[kernel.name] = scheduled._replace(kernel=kernel, steps=steps, in_place=())
        changed[symbol] = (kernel.name, kernel.num_chunks, kernel.scratch_bytes)
    draft.commands = relaunch(draft.commands, changed)
    return [new for new, _, _ in changed.values()]


def _edited(kernel: Kernel, path: Path) -> Kernel | None:
    text = read(path)
    if text is None or text.strip() == kernel_to_text(kernel):
        return None
    try:
        found = parse_kernel(text)
        content = kernel_to_text(Kernel("k", found.reads, found.writes, found.body, found.local))
        name = "k_" + hashlib.sha256(content.encode()).hexdigest()[:24]
        found = Kernel(name, found.reads, found.writes, found.body, found.local)
        verify_kernel(found)
    except StratalError as error:
        raise _refused(path, error) from None
    mine, wanted = ([str(b) for b in (*k.reads, "->", *k.writes)] for k in (found, kernel))
    if mine != wanted:
        raise FormatError(
            "override: an edited kernel must keep its parameters",
            got=f"{path}: {', '.join(mine)}",
            hint=f"the program passes {', '.join(wanted)}",
        )
    return None if name == kernel.name else found


def _refused(path: Path, error: StratalError) -> FormatError:
    return FormatError(
        f"override: {path.name} is not valid: {error.rule}", got=error.got, hint=f"edit {path}"
    )
