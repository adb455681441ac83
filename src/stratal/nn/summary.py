"""Table of a module's parts: outputs, parameters, bytes and operations, without computing anything.

Where example inputs are given, a call of the module in evaluation mode is traced: forward hooks see the type
of what each part returns, and ops recorded between its inputs and its outputs are counted as its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from math import prod
from typing import Any, Final, NamedTuple

from stratal.base import tree
from stratal.base.dtypes import DType, float32
from stratal.base.errors import CallOrderError, DTypeError
from stratal.base.log import short_count
from stratal.base.types import TensorType
from stratal.graph.node import Item, Node
from stratal.memory.render import format_bytes
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.state import ModeBlock, no_grad, tracing
from stratal.tensor.values.trace import Trace

_WIDEST_OUTPUT: Final = 44  # characters
_HEADINGS: Final = ("module", "output", "parameters", "trainable", "bytes", "operations")


class Row(NamedTuple):
    """One module: what it returns, and what it has, with all modules below it.

    `output` is the type of its first call's result, empty where it was not called. `operations` are
    floating-point operations of all its calls in one forward pass, a multiply-add counted as two.
    """

    path: str
    kind: str
    depth: int
    output: str
    parameters: int
    trainable: int
    nbytes: int  # of parameters and buffers
    calls: int
    operations: float

    def _cells(self, traced: bool) -> list[str]:
        name = self.path.rpartition(".")[2]
        label = "  " * self.depth + (f"{name}: {self.kind}" if name else self.kind)
        share = "" if not self.parameters else "no" if not self.trainable else "yes"
        if 0 < self.trainable < self.parameters:
            share = f"{self.trainable:,}"
        cells = [label, _cut(self.output), f"{self.parameters:,}", share, format_bytes(self.nbytes)]
        if not traced:
            return [cells[0], *cells[2:]]
        calls = f" in {self.calls} calls" if self.calls > 1 else ""
        return [*cells, short_count(self.operations) + calls if self.calls else ""]


class Summary:
    """What `Module.summary` returns: printed, a table; `rows` has its numbers, the module itself first."""

    def __init__(self, rows: Iterable[Row], inputs: str, buffer_bytes: int, deepest: int | None) -> None:
        self.rows = tuple(rows)
        self.inputs = inputs  # the types of the example inputs; empty without
        self.buffer_bytes = buffer_bytes
        self._deepest = deepest

    @property
    def parameters(self) -> int:
        """The number of all parameters, one that several modules share counted once."""
        return self.rows[0].parameters

    @property
    def trainable(self) -> int:
        """The number of those that take gradients."""
        return self.rows[0].trainable

    def __str__(self) -> str:
        traced = bool(self.inputs)
        shown = [row for row in self.rows if self._deepest is None or row.depth <= self._deepest]
        headings = _HEADINGS if traced else (_HEADINGS[0], *_HEADINGS[2:5])
        lines = [list(headings), *(row._cells(traced) for row in shown)]
        left = 2 if traced else 1
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.ljust(w) if k < left else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(map(len, text))
        return "\n".join([text[0], rule, *text[1:], rule, self._totals()])

    __repr__ = __str__

    def _totals(self) -> str:
        top = self.rows[0]
        parts = [f"{top.parameters:,} parameters", f"{top.trainable:,} trainable"]
        parts.append(format_bytes(top.nbytes - self.buffer_bytes))
        if self.buffer_bytes:
            parts.append(f"buffers {format_bytes(self.buffer_bytes)}")
        text = ", ".join(parts)
        if not self.inputs:
            return text
        return f"{text}\n{short_count(top.operations)} operations in a forward pass of {self.inputs}"

    def _repr_html_(self) -> str:
        """Return the table for notebooks, in one width."""
        return f"<pre>{escape(str(self))}</pre>"


def summary(module: Any, inputs: tuple[Any, ...], named: Mapping[str, Any], depth: int | None) -> Summary:
    """Return the summary of a module; see `Module.summary`."""
    floats = next((p.dtype for p in module.parameters() if p.dtype.is_float), float32)
    types = tuple(_types(x, floats) for x in inputs), {k: _types(x, floats) for k, x in named.items()}
    calls = _Calls(module)
    given = [leaf for leaf in tree.leaves(types) if isinstance(leaf, TensorType)]
    if inputs or named:
        calls.trace(types)
    unknown = [name for name, p in module.named_parameters() if type(p).__name__ == "UninitializedParameter"]
    if unknown:
        raise CallOrderError(
            "summary: a lazy layer has no size before its first call", got=", ".join(unknown)[:80],
            hint="give summary() an example input or its shape",
        )  # fmt: skip
    rows = [
        _row(path, part, calls.outputs.get(id(part), []), calls.operations.get(id(part), 0.0))
        for path, part in module.named_modules()
    ]
    buffers = sum(b.nbytes for b in module.buffers())
    shown = ", ".join(map(str, given)) or ("no tensor" if inputs or named else "")
    return Summary(rows, shown, buffers, depth)


def _row(path: str, part: Any, outputs: list[str], operations: float) -> Row:
    parameters, buffers = list(part.parameters()), list(part.buffers())
    return Row(
        path, type(part).__name__, path.count(".") + 1 if path else 0, outputs[0] if outputs else "",
        sum(prod(p.shape) for p in parameters), sum(prod(p.shape) for p in parameters if p.requires_grad),
        sum(x.nbytes for x in (*parameters, *buffers)), len(outputs), operations,
    )  # fmt: skip


class _SummaryTrace(Trace):
    """The trace of one call. Python may look at parameters and buffers, which have values."""

    def reads(self, tensor: Handle) -> bool:
        cell = self.cells.get(id(tensor))
        return cell is not None and cell.written


class _Calls:
    """What the parts of a module return and compute in one traced call."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.outputs: dict[int, list[str]] = {}  # by id of a part, for each call
        self.operations: dict[int, float] = {}  # with those of the parts that it calls
        self._running: list[tuple[int, float]] = []  # the parts under way, with operations so far
        self._counted: set[Node] = set()

    def trace(self, types: tuple[Any, Any]) -> None:
        """Call the module on placeholders of types. Raises: CaptureError, and what its forward raises."""
        parts = list(self._module.modules())
        modes = [(part, part.training) for part in parts]
        trace = _SummaryTrace(type(self._module).__name__)
        handles: list[Any] = []
        try:
            for part in parts:
                object.__setattr__(part, "training", False)
                handles.append(part.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
                handles.append(part.register_forward_hook(self._leave))
            with no_grad(), ModeBlock("eager", None), tracing(trace):
                args, named = tree.map(lambda x: _placeholder(x, trace), types)
                self._module(*args, **named)
        finally:
            trace.closed = True
            for handle in handles:
                handle.remove()
            for part, mode in modes:
                object.__setattr__(part, "training", mode)

    def _enter(self, part: Any, args: Any, kwargs: Any) -> None:
        if self._running:
            self._add(self._uncounted((args, kwargs)))
        else:
            self._uncounted((args, kwargs))
        self._running.append((id(part), 0.0))

    def _leave(self, part: Any, args: Any, result: Any) -> None:
        self._add(self._uncounted(result))
        key, operations = self._running.pop()
        self.operations[key] = self.operations.get(key, 0.0) + operations
        self.outputs.setdefault(key, []).append(_shown(result))
        if self._running:
            self._add(operations)

    def _add(self, operations: float) -> None:
        key, before = self._running[-1]
        self._running[-1] = key, before + operations

    def _uncounted(self, values: Any) -> float:
        """Return the operations of the ops that values depend on and no part was given before."""
        total, todo = 0.0, [node_of(x) for x in tree.leaves(values) if isinstance(x, Tensor)]
        while todo:
            node = todo.pop()
            if node in self._counted:
                continue
            self._counted.add(node)
            todo += node.inputs
            if node.inputs and not isinstance(node.op, Item):
                total += node.op.cost(*[i.aval for i in node.inputs]).flops
        return total


# -- example inputs ------------------------------------------------------------------------------------------
def _types(given: Any, floats: DType) -> Any:
    """Return examples with types for shapes and arrays; what is no array goes to forward as it is."""
    if isinstance(given, tuple) and given and all(type(n) is int for n in given):
        return TensorType(floats, given)
    if type(given) in (tuple, list):
        return type(given)(_types(part, floats) for part in given)
    if isinstance(given, dict):
        return {key: _types(part, floats) for key, part in given.items()}
    if isinstance(given, TensorType):
        return given
    if isinstance(given, Tensor) or hasattr(given, "__array__"):
        return tensor(given).type
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    raise DTypeError(
        "summary: takes example inputs, or their shapes as tuples",
        got=f"{type(given).__name__} {given!r:.40}",
        hint='net.summary((32, 10)), or st.spec((32, 10), "int64") where inputs are no floats',
    )  # fmt: skip


def _placeholder(leaf: Any, trace: Trace) -> Any:
    if not isinstance(leaf, TensorType):
        return leaf
    return wrap(node_values.placeholder("input", leaf, trace.name))


def _shown(result: Any) -> str:
    """Return the types of what a part returned."""
    types = [str(x.type) if isinstance(x, Tensor) else type(x).__name__ for x in tree.leaves(result)]
    return types[0] if len(types) == 1 else f"({', '.join(types)})"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST_OUTPUT else text[: _WIDEST_OUTPUT - 2] + ".."
