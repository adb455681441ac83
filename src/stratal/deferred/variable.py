"""What deferred programs are written with besides functions: placeholders, variables, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stratal import autodiff
from stratal.base.dims import Sym
from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.deferred.graph import (
    LARGEST,
    Deferred,
    Graph,
    Runs,
    builds,
    get_default_graph,
    graph_of,
    run_by_default,
)
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.tensor.build import as_tensor, where_now
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import node_and_track, node_of
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED, enter_trace, initialize
from stratal.tensor.values.state import tracing


def placeholder(dtype: Any, shape: Sequence[Any] | None = None, name: str = "") -> Deferred:
    """Return a tensor whose value each run is fed.

    A size of None is open: runs say what it is, and may differ. All sizes of one run that are open on the
    same axis are one size, as a batch is; a string in place of None names a size of its own.
    """
    if not isinstance(shape, (list, tuple)) or dtype is None:
        raise ShapeError(
            "placeholder: needs a dtype and a shape", got=f"{dtype!r} and {shape!r}",
            hint="sizes may be open: placeholder(float32, [None, 784])",
        )  # fmt: skip
    graph = get_default_graph()
    sizes = [_size(k, n) for k, n in enumerate(shape)]
    type_ = TensorType(as_dtype(dtype), tuple(sizes))
    made = Deferred.__new__(Deferred)
    _become_input(made, graph, type_, name or "placeholder")
    for k, n in enumerate(sizes):
        if isinstance(n, Sym):
            graph.trace.symbols.setdefault(str(n), (made, k))
    return made


def _size(axis: int, size: Any) -> Any:
    if size is None or isinstance(size, str):
        return Sym.named(size or f"open{axis}", 1, LARGEST)
    if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
        raise ShapeError("placeholder: a size is an int, a name or None", got=repr(size))
    return int(size)


def _become_input(made: Deferred, graph: Graph, type_: TensorType, label: str) -> None:
    """Make a new tensor one of a graph that is no result of others."""
    node = node_values.placeholder(label, type_, graph.trace.name, where_now())
    initialize(made, type_, node, TRACKED if type_.dtype.is_inexact else CONSTANT)
    enter_trace(made, graph.trace)


class Operation:
    """What a session does for effect: variables take new values, all at once.

    Fetched, it gives None, or the new value where it is a single assignment.
    """

    def __init__(self, graph: Graph, writes: dict[Variable, Node], result: Node | None = None) -> None:
        self.graph = graph
        self.writes = writes
        self.result = result

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Runs | None = None) -> None:
        """Run this operation in a session, or in the default one."""
        run_by_default(self, feed_dict, session)


class Variable(Deferred):
    """A tensor that keeps its value from run to run, one in each session.

    `initial_value` is a number, an array, a tensor, a deferred tensor, or a function that returns one of
    these; running `initializer` gives it to the variable. Raises: ShapeError where a size is open.
    """

    def __init__(self, initial_value: Any, trainable: bool = True, name: str = "", dtype: Any = None) -> None:
        first = _initial(initial_value, dtype)
        if any(isinstance(n, Sym) for n in first.shape):
            raise ShapeError("Variable: every size must be known", got=str(first.type))
        graph = graph_of(initial_value)
        self.name = name or f"variable{len(graph.variables)}"
        _become_input(self, graph, first.type, self.name)
        self.trainable = trainable and self.type.dtype.is_inexact
        self.initializer = Operation(graph, {self: node_in(graph, first)})
        graph.variables.append(self)


@builds
def _initial(value: Any, dtype: Any) -> Tensor:
    """Return the first value of a variable, built as part of the graph."""
    given = value() if callable(value) and not isinstance(value, Tensor) else value
    made = given if isinstance(given, Tensor) else tensor(given)
    return made if dtype is None else cast(made, as_dtype(dtype))


def node_in(graph: Graph, value: Tensor) -> Node:
    """Return the node of a tensor, as a graph sees it. Raises: CaptureError for one of another graph."""
    with tracing(graph.trace):
        return node_of(value)


# -- giving variables values ---------------------------------------------------------------------------------
def assign(variable: Variable, value: Any) -> Operation:
    """Return the operation that gives a variable another value of its shape and kind of dtype."""
    if not isinstance(variable, Variable):
        raise AttributeValueError("assign: only a Variable keeps a value", got=type(variable).__name__)
    return _write("assign", variable, value)


@builds
def _write(name: str, variable: Variable, value: Any) -> Operation:
    new = as_tensor(value, name)
    if not isinstance(value, Tensor) and not new.ndim:  # a number stretches, and takes the dtype it can
        new = broadcast_to(new, variable.shape)
    if new.dtype is not variable.dtype:
        if not np.can_cast(new.dtype.np, variable.dtype.np, "same_kind"):
            raise DTypeError(
                f"{name}: the value does not fit the variable", got=f"{new.type} for {variable.type}"
            )
        new = cast(new, variable.dtype)
    if new.shape != variable.shape:
        raise ShapeError(f"{name}: the value has another shape", got=f"{new.type} for {variable.type}")
    node = node_of(new)
    return Operation(variable.graph, {variable: node}, node)


def assign_add(variable: Variable, value: Any) -> Operation:
    """Return the operation that adds to a variable."""
    return assign(variable, variable + value)


def assign_sub(variable: Variable, value: Any) -> Operation:
    """Return the operation that subtracts from a variable."""
    return assign(variable, variable - value)


def group(*operations: Operation) -> Operation:
    """Return the operation that does several at once. Raises: where two write one variable."""
    writes: dict[Variable, Node] = {}
    for operation in operations:
        merge_writes(writes, operation)
    return Operation(operations[0].graph if operations else get_default_graph(), writes)


def merge_writes(writes: dict[Variable, Node], operation: Operation) -> None:
    """Add what an operation writes. Raises: AttributeValueError for a variable written already."""
    for variable, node in operation.writes.items():
        if writes.setdefault(variable, node) is not node:
            raise AttributeValueError(
                "run: a variable is given two values at once", got=f"{variable.name}: {variable.type}",
                hint="run one operation after the other",
            )  # fmt: skip


def global_variables() -> list[Variable]:
    """Return all variables of the default graph, in the order they were made."""
    return list(get_default_graph().variables)


def trainable_variables() -> list[Variable]:
    """Return the variables of the default graph that optimizers change."""
    return [v for v in get_default_graph().variables if v.trainable]


def global_variables_initializer() -> Operation:
    """Return the operation that gives every variable made so far its initial value."""
    return group(*(v.initializer for v in global_variables()))


def variables_initializer(variables: Sequence[Variable]) -> Operation:
    """Return the operation that gives some variables their initial values."""
    return group(*(v.initializer for v in variables))


# -- derivatives ---------------------------------------------------------------------------------------------
def _listed(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]


@builds
def gradients(ys: Any, xs: Any, grad_ys: Any = None) -> list[Any]:
    """Return the gradient of the sum of `ys` with respect to each of `xs`, as deferred tensors.

    `grad_ys` weighs the elements of `ys`. None stands where no path leads from an x to a y.
    """
    outputs, inputs = _listed(ys), _listed(xs)
    weights = [None] * len(outputs) if grad_ys is None else _listed(grad_ys)
    b = Builder(where_now())
    roots, seeds = [], []
    for y, weight in zip(outputs, weights, strict=True):
        node, track = node_and_track(as_tensor(y, "gradients"))
        if not node.dtype.is_inexact:
            raise DTypeError("gradients: only floats and complex numbers have gradients", got=str(node.type))
        if track == STOPPED:
            continue
        seed = b.like(node, 1) if weight is None else node_of(as_tensor(weight, "gradients"))
        if seed.type != node.type:
            raise ShapeError("gradients: grad_ys must be like ys", got=f"{seed.type} for {node.type}")
        roots.append(node)
        seeds.append(seed)
    found = autodiff.vjp(roots, seeds, [node_of(as_tensor(x, "gradients")) for x in inputs])
    return [None if n is None else wrap(n, TRACKED) for n in found]
