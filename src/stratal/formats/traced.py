"""What a model computes as a graph: for the batch size of a sample, and by two such graphs for any.

Where a model is traced with a symbol for the batch size and its Python asks nothing of it, it computes the
same at all sizes. Two graphs then say how every size follows from that of the batch (`symbolic_sizes`); a
third is compared. A batch of one is traced by itself: an axis of size 1 broadcasts, and may be squeezed away.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, Final

import numpy as np

from stratal.base import tree
from stratal.base.dims import Dim, Sym
from stratal.base.errors import CaptureError, FormatError, ShapeError, StratalError
from stratal.base.interrupts import block
from stratal.base.lru import LRU
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Node, constant, graph_input, topological
from stratal.tensor.lazy.symbolic_sizes import Generalization, skeleton
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.state import ModeBlock, no_grad, tracing
from stratal.tensor.values.trace import Trace

MAX_BATCH: Final = 1 << 24
_MADE: Final = 64  # graphs


def detached(value: Any) -> Any:
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


@block
def evaluating(model: Any) -> Generator[None]:
    """Put a module into evaluation mode for a block; every part then goes back to the mode it was in."""
    parts = list(model.modules()) if hasattr(model, "modules") else []
    before = [(vars(part), "training", part.training) for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        any(starmap(dict.__setitem__, before))  # in C: no handler of signals comes before the last


class _ModelTrace(Trace):
    """The trace of a model's call: its inputs, what depends on them, and what the call writes have no value.

    Python may look at weights and buffers, which are what they are where the model is written.
    """

    def reads(self, tensor: Handle) -> bool:
        cell = self.cells.get(id(tensor))
        return cell is not None and cell.written


def graph_of(
    function: Callable[..., Any], inputs: Sequence[TensorType], named: Mapping[str, Tensor]
) -> Graph:
    """Return what a function computes as a graph of inputs of such types and of the tensors in `named`.

    It is traced: nothing that depends on the inputs has a value meanwhile. Other tensors it reads become
    constants. Raises: CaptureError when it changes a tensor of `named`, when Python asks for a value that
    depends on an input, or when it returns anything but tensors.
    """
    name = type(function).__name__
    trace = _ModelTrace(name)
    cells = {key: trace.enter(value) for key, value in named.items()}
    labels = {cell.placeholder: key for key, cell in cells.items()}
    given = [node_values.placeholder(f"input {k}", type_, name) for k, type_ in enumerate(inputs)]
    labels |= {node: f"input {k}" for k, node in enumerate(given)}
    try:
        with no_grad(), ModeBlock("eager", None), tracing(trace):
            examples = [wrap(node) for node in given]
            for x in examples:
                trace.symbols |= {str(n): (x, k) for k, n in enumerate(x.type.shape) if isinstance(n, Sym)}
            results = tree.leaves(function(*examples))
            if not results or not all(isinstance(r, Tensor) for r in results):
                raise CaptureError(
                    "save: the model must return tensors", got=", ".join(type(r).__name__ for r in results)
                )
            roots = [node_of(r) for r in results]
    finally:
        trace.closed = True
    if changed := [key for key, cell in cells.items() if cell.written]:
        raise CaptureError("save: the model changes its own state in evaluation mode", got=", ".join(changed))
    others = [cell for cell in trace.cells.values() if cell.placeholder not in labels]
    known = {cell.placeholder: np.asarray(detached(cell.tensor)) for cell in others}
    return _closed(roots, labels, known, name)


def _closed(
    roots: list[Node], labels: Mapping[Node, str], known: Mapping[Node, np.ndarray[Any, Any]], name: str
) -> Graph:
    """Return the graph of some values over labelled leaves; others, that have a value, become constants."""
    leaves = [node for node in topological(roots) if isinstance(node.op, Input)]
    fresh = {
        node: graph_input(label, node.aval, frozen=not label.startswith("input "))
        for node, label in labels.items()
    }
    replaced = dict(fresh)
    for leaf in leaves:
        if leaf not in fresh:
            storage = node_values.finished(leaf)
            if storage is None and leaf not in known:
                raise CaptureError(
                    "save: a value the model reads is not known", got=str(leaf.type), where=leaf.where
                )
            replaced[leaf] = constant(known[leaf] if storage is None else storage.array)
    outputs = substitute(roots, replaced)
    used = set(leaves) | {node for node, label in labels.items() if label.startswith("input ")}
    return Graph([fresh[node] for node in labels if node in used], outputs, name=name)


# -- for any batch size --------------------------------------------------------------------------------------
class DynamicBatch:
    """A model's graphs for all batch sizes: those given, and from 2 on what the greatest two of them make.

    Raises: FormatError for two graphs that differ in more than what follows from the batch size.
    """

    def __init__(self, graphs: Mapping[int, Graph]) -> None:
        self._graphs = dict(graphs)
        self._made: LRU[int, Graph] = LRU(_MADE)
        one, other = sorted(graphs)[-2:]
        self._like, self._general = graphs[other], None
        if skeleton(graphs[one]) == skeleton(graphs[other]):
            with suppress(StratalError):
                self._general = Generalization(graphs[one], graphs[other])
        if not self.gives(one, graphs[one]) or not self.gives(other, graphs[other]):
            raise FormatError("model: graphs that differ in more than batch sizes", got=f"{one} and {other}")

    def gives(self, batch: int, graph: Graph) -> bool:
        """Return whether a graph for some batch size is what the two make."""
        return self._general is not None and self._general.sizes_of(graph) == [batch]

    def graph(self, batch: int) -> Graph:
        """Return the graph for a batch size. Raises: ShapeError where the model takes no such batch."""
        found = self._graphs.get(batch) or self._made.get(batch)
        if found is None:
            if not 1 < batch <= MAX_BATCH:
                raise ShapeError("saved model: takes batches of 2 rows or more", got=str(batch))
            assert self._general is not None
            found = self._made.keep(batch, self._general.at(self._like, [batch]))
        return found


def batch_of(inputs: Iterable[TensorType]) -> int | None:
    """Return the batch size of inputs, which is that of axis 0 of all; None where there is no one size."""
    sizes = {x.ints[0] if x.ndim else 0 for x in inputs}
    return None if len(sizes) != 1 or 0 in sizes else sizes.pop()


def graphs_by_batch(
    function: Callable[..., Any], inputs: Sequence[TensorType], named: Mapping[str, Tensor]
) -> dict[int, Graph]:
    """Return graphs for other batch sizes than that of the inputs, which with that graph make a
    `DynamicBatch`; none where the function does not take any batch size.
    """
    batch = batch_of(inputs)
    if batch is None:
        return {}

    def at(size: Dim) -> Graph:
        return graph_of(function, [x.with_shape((size, *x.shape[1:])) for x in inputs], named)

    one, other, third = (batch, 2 * batch + 1, batch + 1) if batch > 1 else (2, 5, 3)
    try:
        at(Sym.named("batch", 2, MAX_BATCH))  # what Python asks of the size has no answer
        found = {n: at(n) for n in (one, other)}
        if not DynamicBatch(found).gives(third, at(third)):
            return {}
    except Exception:  # it may need an int in a hundred ways
        return {}
    with suppress(StratalError):
        found[1] = at(1)
    found.pop(batch, None)
    return found
